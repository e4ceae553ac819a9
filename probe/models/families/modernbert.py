"""ModernBERT: an encoder with rotary positions, and windows that reach both ways in most layers.

Warner et al. 2024, section 2.1. Query, key and value lie side by side in one map. Layers with a window turn
queries and keys faster than those without.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from probe.models.families.family import (
    Family,
    both_ways,
    positions_of_config,
    turning,
    turns_steadily,
    window_by_kind,
)
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    network: Any = hf.base_model
    config: Any = hf.config
    return tuple(
        _site(one.attn, layer, turning(network.rotary_emb, config.layer_types[layer]))
        for layer, one in enumerate(network.layers)
    )


def _site(attention: Any, layer: int, frequencies: Tensor) -> Site:
    width = attention.Wqkv.out_features // 3
    query, key, value = (Projection(attention.Wqkv, start, start + width) for start in (0, width, 2 * width))
    return Site(
        attention=attention,
        query=query,
        key=key,
        value=value,
        output=Projection.whole(attention.Wo),
        num_heads=attention.config.num_attention_heads,
        head_dim=attention.head_dim,
        scale=attention.head_dim**-0.5,
        rotary_frequencies=frequencies,
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
