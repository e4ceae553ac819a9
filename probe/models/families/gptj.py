"""GPT-J: separate maps without biases; a part of each head turned by positions, neighbour with neighbour.

Wang and Komatsuzaki 2021. Its sines and cosines lie in a table; they are those of the frequencies of Su et
al. 2021 with base 10,000, which no configuration changes.
"""

from __future__ import annotations

from typing import Any

from attention import rotary_frequencies
from probe.models.families.family import Family, causal_unless_told, positions_of_config
from probe.models.families.site import Site


def sites(hf: Any) -> tuple[Site, ...]:
    return tuple(_site(block.attn) for block in hf.base_model.h)


def _site(attention: Any) -> Site:
    return Site.of(
        attention,
        [attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj],
        num_heads=attention.num_attention_heads,
        head_dim=attention.head_dim,
        rotary_frequencies=rotary_frequencies(attention.rotary_dim or attention.head_dim),
        rotary_interleaved=True,
    )


FAMILY = Family(("gptj",), causal_unless_told, sites, max_tokens=positions_of_config, float32_inside=True)
