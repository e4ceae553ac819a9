"""Gemma 3, its networks of text: Llama's layout, queries and keys normalised, two sorts of layers.

Gemma Team 2025, section 2. Most layers see a window of the last tokens and turn queries and keys faster than
those that see everything. The norm is each head's own, and multiplies with its weight and 1. Scores may be
scaled by another width than the head's. Some are set to look both ways, within their windows too
(EmbeddingGemma).
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from probe.models.families.family import (
    Family,
    by_query_scalar,
    causal_unless_told,
    positions_of_config,
    turning,
    turns_steadily,
    window_by_kind,
)
from probe.models.families.llama import site_of
from probe.models.families.site import Norm, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    network: Any = hf.base_model
    config: Any = hf.config
    return tuple(
        site_of(
            one.self_attn,
            layer,
            turning(network.rotary_emb, config.layer_types[layer]),
            scale=by_query_scalar(config, one.self_attn.head_dim, layer),
            query_norm=_norm(one.self_attn.q_norm),
            key_norm=_norm(one.self_attn.k_norm),
        )
        for layer, one in enumerate(network.layers)
    )


def _norm(module: Any) -> Norm:
    return Norm(module, module.eps, "head", one_more=True, heads_first=True)


def causal(config: PretrainedConfig) -> bool:
    return not getattr(config, "use_bidirectional_attention", False) and causal_unless_told(config)


FAMILY = Family(
    ("gemma3_text",),
    causal,
    sites,
    turns_steadily,
    scale=by_query_scalar,
    window=window_by_kind,
    max_tokens=positions_of_config,
    float32_inside=True,
)
