"""Phi-3: Llama's attention, with query, key and value side by side in one map.

Abdin et al. 2024. A part of each head may be turned by positions, and all layers may have a window. Those for
long texts stretch sines and cosines, and are not described.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.llama import like_llama
from probe.models.families.site import Projection


def maps(attention: Any) -> list[Any]:
    config, width = attention.config, attention.head_dim
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    return [*Projection.side_by_side(attention.qkv_proj, queries, keys, keys), attention.o_proj]


FAMILY = like_llama(("phi3",), maps=maps)
