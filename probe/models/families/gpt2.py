"""GPT-2: pre-LayerNorm, query, key and value side by side in one transposed map, causal.

Radford et al. 2019. The input of a layer's attention is ``ln_1(hidden_states[layer])``. ``c_attn`` is a
``Conv1D``, stored (in, out): its columns are query, key, value in that order. The query and output maps are
square, so a forgotten transpose raises no error; it gives other weights.
"""

from __future__ import annotations

from typing import Any

import torch

from probe.errors import ProbeError
from probe.models.families.family import Family, causal_unless_told
from probe.models.families.site import Projection, Site


def sites(hf: Any) -> tuple[Site, ...]:
    if hf.config.reorder_and_upcast_attn and hf.dtype == torch.float64:
        raise ProbeError(
            "This GPT-2 is set to reorder_and_upcast_attn, which transformers computes in float32 only.",
            "float32",
        )
    return tuple(_site(block.attn, layer, hf.config) for layer, block in enumerate(hf.base_model.h))


def _site(attention: Any, layer: int, config: Any) -> Site:
    width = attention.embed_dim
    return Site.of(
        attention,
        [*Projection.side_by_side(attention.c_attn, width, width, width), attention.c_proj],
        num_heads=attention.num_heads,
        head_dim=attention.head_dim,
        scale=scale(config, attention.head_dim, layer),
    )


def scale(config: Any, head_dim: int, layer: int) -> float:
    """By the head's width, if at all, and in some models by the number of the layer besides."""
    by_width = head_dim**-0.5 if config.scale_attn_weights else 1.0
    return float(by_width / (layer + 1) if config.scale_attn_by_inverse_layer_idx else by_width)


def max_tokens(hf: Any) -> int:
    return int(hf.base_model.wpe.num_embeddings)


FAMILY = Family(("gpt2",), causal_unless_told, sites, scale=scale, max_tokens=max_tokens)
