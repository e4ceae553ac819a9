"""GPT-J: separate maps without biases; a part of each head turned by positions, neighbour with neighbour.

Wang and Komatsuzaki 2021. Its sines and cosines lie in a table; they are those of the frequencies of Su et
al. 2021 with base 10,000, which no configuration changes.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from attention import rotary_frequencies
from probe.models.families.family import Family, causal_unless_told, positions_of_config
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    network: Any = hf.base_model
    return tuple(_site(block.attn) for block in network.h)


def _site(attention: Any) -> Site:
    frequencies = rotary_frequencies(attention.rotary_dim or attention.head_dim)
    return Site(
        attention=attention,
        query=Projection.whole(attention.q_proj),
        key=Projection.whole(attention.k_proj),
        value=Projection.whole(attention.v_proj),
        output=Projection.whole(attention.out_proj),
        num_heads=attention.num_attention_heads,
        head_dim=attention.head_dim,
        scale=attention.head_dim**-0.5,
        rotary_frequencies=frequencies,
        rotary_interleaved=True,
    )


FAMILY = Family(("gptj",), causal_unless_told, sites, max_tokens=positions_of_config, float32_inside=True)
