"""OPT: a decoder with separate ``Linear`` maps.

Zhang et al. 2022. The network scales its queries before it hands them on, and passes a scale of 1; the
projections that are recorded are those before it, so the scale is the usual one here.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from probe.models.families.family import Family, causal_unless_told, unscaled
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    decoder: Any = hf.base_model.decoder
    return tuple(_site(layer.self_attn) for layer in decoder.layers)


def _site(attention: Any) -> Site:
    return Site(
        attention=attention,
        query=Projection.whole(attention.q_proj),
        key=Projection.whole(attention.k_proj),
        value=Projection.whole(attention.v_proj),
        output=Projection.whole(attention.out_proj),
        num_heads=attention.num_heads,
        head_dim=attention.head_dim,
        scale=attention.head_dim**-0.5,
    )


def max_tokens(hf: PreTrainedModel) -> int:
    decoder: Any = hf.base_model.decoder
    positions = decoder.embed_positions
    return int(positions.num_embeddings) - int(positions.offset)


FAMILY = Family(
    ("opt",), causal_unless_told, sites, scale=unscaled, max_tokens=max_tokens, float32_inside=True
)
