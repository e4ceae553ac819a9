"""Gemma 2: capped scores and, in every other layer, a window; checked from query and key.

Gemma Team 2024, section 2. The cap is taken from the network. Where it is set to look both ways, its masks
are taken from the network too.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from probe.models.families.family import Family, by_query_scalar, causal_unless_told, window_by_kind


def causal(config: PretrainedConfig) -> bool | None:
    return None if getattr(config, "use_bidirectional_attention", False) else causal_unless_told(config)


FAMILY = Family(("gemma2",), causal, scale=by_query_scalar, window=window_by_kind, float32_inside=True)
