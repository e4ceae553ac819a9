"""GPT-NeoX and Pythia: one map for all three roles, head by head; a part of each head turned by positions.

Black et al. 2022, Biderman et al. 2023. The columns of ``query_key_value`` are the first head's query, key
and value, then the second head's, and so on.
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
)
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    network: Any = hf.base_model
    return tuple(_site(layer.attention, turning(network.rotary_emb)) for layer in network.layers)


def _site(attention: Any, frequencies: Tensor) -> Site:
    width = attention.head_size
    query, key, value = (
        Projection(attention.query_key_value, start, start + width, every=3 * width)
        for start in (0, width, 2 * width)
    )
    return Site(
        attention=attention,
        query=query,
        key=key,
        value=value,
        output=Projection.whole(attention.dense),
        num_heads=attention.config.num_attention_heads,
        head_dim=width,
        scale=width**-0.5,
        rotary_frequencies=frequencies,
    )


FAMILY = Family(
    ("gpt_neox",),
    causal_unless_told,
    sites,
    turns_steadily,
    max_tokens=positions_of_config,
    float32_inside=True,
)
