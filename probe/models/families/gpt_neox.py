"""GPT-NeoX and Pythia: one map for all three roles, head by head; a part of each head turned by positions.

Black et al. 2022, Biderman et al. 2023. The columns of ``query_key_value`` are the first head's query, key
and value, then the second head's, and so on.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.family import (
    Family,
    causal_unless_told,
    positions_of_config,
    turning,
    turns_steadily,
)
from probe.models.families.site import Projection, Site


def sites(hf: Any) -> tuple[Site, ...]:
    return tuple(_site(hf, layer, one.attention) for layer, one in enumerate(hf.base_model.layers))


def _site(hf: Any, layer: int, attention: Any) -> Site:
    width = attention.head_size
    roles = Projection.side_by_side(attention.query_key_value, width, width, width, every=3 * width)
    return Site.of(
        attention,
        [*roles, attention.dense],
        num_heads=attention.config.num_attention_heads,
        head_dim=width,
        rotary_frequencies=turning(hf, layer),
    )


FAMILY = Family(
    ("gpt_neox",),
    causal_unless_told,
    sites,
    turns_steadily,
    max_tokens=positions_of_config,
    float32_inside=True,
)
