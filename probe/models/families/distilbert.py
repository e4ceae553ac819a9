"""DistilBERT: BERT's attention under other names, and no segments.

Sanh et al. 2019.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.family import Family, both_ways, positions_of_table
from probe.models.families.site import Site


def sites(hf: Any) -> tuple[Site, ...]:
    return tuple(_site(layer.attention) for layer in hf.base_model.transformer.layer)


def _site(attention: Any) -> Site:
    return Site.of(
        attention,
        [attention.q_lin, attention.k_lin, attention.v_lin, attention.out_lin],
        num_heads=attention.n_heads,
        head_dim=attention.attention_head_size,
    )


FAMILY = Family(("distilbert",), both_ways, sites, max_tokens=positions_of_table, pairs=True)
