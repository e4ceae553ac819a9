"""Phi-3: Llama's attention, with query, key and value side by side in one map.

Abdin et al. 2024. A part of each head may be turned by positions, and all layers may have a window. Those for
long texts stretch sines and cosines, and are not described.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from probe.models.families.family import (
    Family,
    causal_unless_told,
    positions_of_config,
    turning,
    turns_steadily,
    window_by_kind,
)
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    network: Any = hf.base_model
    return tuple(
        _site(one.self_attn, layer, turning(network.rotary_emb)) for layer, one in enumerate(network.layers)
    )


def _site(attention: Any, layer: int, frequencies: Tensor) -> Site:
    config = attention.config
    queries = config.num_attention_heads * attention.head_dim
    keys = config.num_key_value_heads * attention.head_dim
    return Site(
        attention=attention,
        query=Projection(attention.qkv_proj, 0, queries),
        key=Projection(attention.qkv_proj, queries, queries + keys),
        value=Projection(attention.qkv_proj, queries + keys, queries + 2 * keys),
        output=Projection.whole(attention.o_proj),
        num_heads=config.num_attention_heads,
        head_dim=attention.head_dim,
        scale=attention.head_dim**-0.5,
        num_key_value_heads=config.num_key_value_heads,
        rotary_frequencies=frequencies,
        window=window_by_kind(config, layer),
    )


FAMILY = Family(
    ("phi3",),
    causal_unless_told,
    sites,
    turns_steadily,
    window=window_by_kind,
    max_tokens=positions_of_config,
    float32_inside=True,
)
