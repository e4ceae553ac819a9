"""OPT: a decoder with separate ``Linear`` maps.

Zhang et al. 2022. The network scales its queries before it hands them on, and passes a scale of 1; the
projections that are recorded are those before it, so the scale is the usual one here.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.family import Family, causal_unless_told, unscaled
from probe.models.families.site import Site


def sites(hf: Any) -> tuple[Site, ...]:
    return tuple(_site(layer.self_attn) for layer in hf.base_model.decoder.layers)


def _site(attention: Any) -> Site:
    return Site.of(
        attention,
        [attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj],
        num_heads=attention.num_heads,
        head_dim=attention.head_dim,
    )


def max_tokens(hf: Any) -> int:
    positions = hf.base_model.decoder.embed_positions
    return int(positions.num_embeddings) - int(positions.offset)


FAMILY = Family(
    ("opt",), causal_unless_told, sites, scale=unscaled, max_tokens=max_tokens, float32_inside=True
)
