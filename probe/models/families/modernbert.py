"""ModernBERT: an encoder with rotary positions, and windows that reach both ways in most layers.

Warner et al. 2024, section 2.1. Query, key and value lie side by side in one map. Layers with a window turn
queries and keys faster than those without.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.family import (
    Family,
    both_ways,
    positions_of_config,
    turning,
    turns_steadily,
    window_by_kind,
)
from probe.models.families.site import Projection, Site


def sites(hf: Any) -> tuple[Site, ...]:
    return tuple(_site(hf, layer, one.attn) for layer, one in enumerate(hf.base_model.layers))


def _site(hf: Any, layer: int, attention: Any) -> Site:
    width = attention.config.num_attention_heads * attention.head_dim
    return Site.of(
        attention,
        [*Projection.side_by_side(attention.Wqkv, width, width, width), attention.Wo],
        num_heads=attention.config.num_attention_heads,
        head_dim=attention.head_dim,
        rotary_frequencies=turning(hf, layer),
        window=window(attention.config, layer),
    )


def window(config: Any, layer: int) -> int | None:
    """The configuration doesn't count the position itself."""
    before = window_by_kind(config, layer)
    return None if before is None else before + 1


FAMILY = Family(
    ("modernbert",),
    both_ways,
    sites,
    turns_steadily,
    window=window,
    max_tokens=positions_of_config,
    pairs=True,
    float32_inside=True,
)
