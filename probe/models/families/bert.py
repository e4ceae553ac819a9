"""BERT and the encoders that share its layout: post-LayerNorm, three separate ``Linear`` maps with biases.

Devlin et al. 2019 (BERT), Liu et al. 2019 (RoBERTa). The input of a layer's attention is the previous layer's
output after its LayerNorm, so nothing stands between ``hidden_states[layer]`` and the three projections.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from probe.models.families.family import Family, causal_as_decoder
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    encoder: Any = hf.base_model.encoder
    return tuple(_site(layer.attention) for layer in encoder.layer)


def _site(attention: Any) -> Site:
    heads = attention.self
    return Site(
        attention=heads,
        query=Projection.whole(heads.query),
        key=Projection.whole(heads.key),
        value=Projection.whole(heads.value),
        output=Projection.whole(attention.output.dense),
        num_heads=heads.num_attention_heads,
        head_dim=heads.attention_head_size,
        scale=heads.attention_head_size**-0.5,
    )


def max_tokens(hf: PreTrainedModel) -> int:
    embeddings: Any = hf.base_model.embeddings
    positions = embeddings.position_embeddings
    # RoBERTa counts positions from padding_idx + 1, so the first rows of its table are never used.
    unused = 0 if positions.padding_idx is None else positions.padding_idx + 1
    return int(positions.num_embeddings) - unused


FAMILY = Family(
    ("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    causal_as_decoder,
    sites,
    max_tokens=max_tokens,
    pairs=True,
)
