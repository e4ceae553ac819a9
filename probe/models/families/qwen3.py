"""Qwen3: Llama's layout, with each head's queries and keys normalised before they are turned.

Yang et al. 2025, section 2. Some layers may see a window of the last tokens only, as in Qwen2.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from probe.models.families.family import (
    Family,
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
    return tuple(
        site_of(
            one.self_attn,
            layer,
            turning(network.rotary_emb),
            query_norm=_norm(one.self_attn.q_norm),
            key_norm=_norm(one.self_attn.k_norm),
        )
        for layer, one in enumerate(network.layers)
    )


def _norm(module: Any) -> Norm:
    return Norm(module, module.variance_epsilon, "head")


FAMILY = Family(
    ("qwen3",),
    causal_unless_told,
    sites,
    turns_steadily,
    window=window_by_kind,
    max_tokens=positions_of_config,
    float32_inside=True,
)
