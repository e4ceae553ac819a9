"""OLMo 2: Llama's layout, with the queries of all heads normalised as one vector, and so the keys.

OLMo Team 2024, "2 OLMo 2 Furious", section 3.3. The norm stands between projection and heads.
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
    return Norm(module, module.variance_epsilon, "all")


FAMILY = Family(
    ("olmo2",),
    causal_unless_told,
    sites,
    turns_steadily,
    max_tokens=positions_of_config,
    float32_inside=True,
)
