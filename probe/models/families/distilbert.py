"""DistilBERT: BERT's attention under other names, and no segments.

Sanh et al. 2019.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from probe.models.families.family import Family, both_ways
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    transformer: Any = hf.base_model.transformer
    return tuple(_site(layer.attention) for layer in transformer.layer)


def _site(attention: Any) -> Site:
    return Site(
        attention=attention,
        query=Projection.whole(attention.q_lin),
        key=Projection.whole(attention.k_lin),
        value=Projection.whole(attention.v_lin),
        output=Projection.whole(attention.out_lin),
        num_heads=attention.n_heads,
        head_dim=attention.attention_head_size,
        scale=attention.attention_head_size**-0.5,
    )


def max_tokens(hf: PreTrainedModel) -> int:
    embeddings: Any = hf.base_model.embeddings
    return int(embeddings.position_embeddings.num_embeddings)


FAMILY = Family(("distilbert",), both_ways, sites, max_tokens=max_tokens, pairs=True)
