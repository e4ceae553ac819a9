"""Llama and the decoders that share its layout: rotary positions, grouped queries, no biases or few.

Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral), Yang et al. 2024 (Qwen2). Queries and keys are
turned by their positions after the projections; several query heads read one key head. Some layers see a
window of the last tokens only: all of Mistral's, or none, and some of Qwen2's.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from probe.models.families.family import (
    Family,
    causal_unless_told,
    positions_of_config,
    turning,
    turns_steadily,
    window_by_kind,
)
from probe.models.families.site import Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    network: Any = hf.base_model
    return tuple(
        site_of(one.self_attn, layer, turning(network.rotary_emb)) for layer, one in enumerate(network.layers)
    )


def site_of(attention: Any, layer: int, frequencies: Tensor, **otherwise: Any) -> Site:
    """One layer of this layout; ``otherwise`` is what another family that shares it does in another way."""
    usual = {
        "num_heads": attention.config.num_attention_heads,
        "head_dim": attention.head_dim,
        "scale": attention.head_dim**-0.5,
        "num_key_value_heads": attention.config.num_key_value_heads,
        "window": window_by_kind(attention.config, layer),
    }
    return Site(
        attention=attention,
        query=Projection.whole(attention.q_proj),
        key=Projection.whole(attention.k_proj),
        value=Projection.whole(attention.v_proj),
        output=Projection.whole(attention.o_proj),
        rotary_frequencies=frequencies,
        **(usual | otherwise),
    )


FAMILY = Family(
    ("llama", "mistral", "qwen2"),
    causal_unless_told,
    sites,
    turns_steadily,
    window=window_by_kind,
    max_tokens=positions_of_config,
    float32_inside=True,
)
