"""Whisper, which hears: an encoder and a decoder; checked from query and key.

Radford et al. 2022. Queries are scaled before they are handed over. An encoder alone has the configuration
of both, which doesn't say which it is.
"""

from __future__ import annotations

from probe.models.families.family import Family, not_said, unscaled

FAMILY = Family(("whisper",), not_said, scale=unscaled)
