"""ALBERT: BERT's layout, with one set of weights that serves several layers.

Lan et al. 2020. Layers come in groups; all layers of a group are the same modules, called one time after the
other.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from probe.models.families.family import Family, both_ways
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    encoder: Any = hf.base_model.encoder
    config: Any = hf.config
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return tuple(
        _site(inner.attention)
        for layer in range(config.num_hidden_layers)
        for inner in encoder.albert_layer_groups[int(layer / per_group)].albert_layers
    )


def _site(attention: Any) -> Site:
    return Site(
        attention=attention,
        query=Projection.whole(attention.query),
        key=Projection.whole(attention.key),
        value=Projection.whole(attention.value),
        output=Projection.whole(attention.dense),
        num_heads=attention.num_attention_heads,
        head_dim=attention.attention_head_size,
        scale=attention.attention_head_size**-0.5,
    )


def max_tokens(hf: PreTrainedModel) -> int:
    embeddings: Any = hf.base_model.embeddings
    return int(embeddings.position_embeddings.num_embeddings)


FAMILY = Family(("albert",), both_ways, sites, max_tokens=max_tokens, pairs=True)
