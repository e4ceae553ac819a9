"""BERT and the encoders that share its layout: post-LayerNorm, three separate ``Linear`` maps with biases.

Devlin et al. 2019 (BERT), Liu et al. 2019 (RoBERTa). The input of a layer's attention is the previous layer's
output after its LayerNorm, so nothing stands between ``hidden_states[layer]`` and the three projections.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.family import Family, causal_as_decoder, positions_of_table
from probe.models.families.site import Site


def sites(hf: Any) -> tuple[Site, ...]:
    return tuple(_site(layer.attention.self, layer.attention) for layer in hf.base_model.encoder.layer)


def _site(heads: Any, whole: Any) -> Site:
    return Site.of(
        heads,
        [heads.query, heads.key, heads.value, whole.output.dense],
        num_heads=heads.num_attention_heads,
        head_dim=heads.attention_head_size,
    )


FAMILY = Family(
    ("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    causal_as_decoder,
    sites,
    max_tokens=positions_of_table,
    pairs=True,
)
