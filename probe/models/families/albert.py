"""ALBERT: BERT's layout, with one set of weights that serves several layers.

Lan et al. 2020. Layers come in groups; all layers of a group are the same modules, called one time after the
other.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.family import Family, both_ways, positions_of_table
from probe.models.families.site import Site


def sites(hf: Any) -> tuple[Site, ...]:
    groups, layers = hf.base_model.encoder.albert_layer_groups, hf.config.num_hidden_layers
    per_group = layers / hf.config.num_hidden_groups
    return tuple(
        _site(inner.attention)
        for layer in range(layers)
        for inner in groups[int(layer / per_group)].albert_layers
    )


def _site(attention: Any) -> Site:
    return Site.of(
        attention,
        [attention.query, attention.key, attention.value, attention.dense],
        num_heads=attention.num_attention_heads,
        head_dim=attention.attention_head_size,
    )


FAMILY = Family(("albert",), both_ways, sites, max_tokens=positions_of_table, pairs=True)
