"""BART and the encoder-decoders that share its attention; checked from query and key.

Lewis et al. 2020 (BART), Liu et al. 2020 (mBART), Junczys-Dowmunt et al. 2018 (Marian), Zhang et al. 2020
(PEGASUS), Roller et al. 2021 (BlenderBot), Fan et al. 2021 (M2M-100). Padding is masked and, in the decoder,
later tokens. An encoder or a decoder alone has the configuration of both, which doesn't say which it is.
"""

from __future__ import annotations

from probe.models.families.family import Family, not_said

FAMILY = Family(("bart", "mbart", "marian", "pegasus", "blenderbot", "blenderbot-small", "m2m_100"), not_said)
