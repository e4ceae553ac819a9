"""Llama and the decoders that share its layout: rotary positions, grouped queries, no biases or few.

Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral), Yang et al. 2024 (Qwen2). Queries and keys are
turned by their positions after the projections; several query heads read one key head. Some layers see a
window of the last tokens only: all of Mistral's, or none, and some of Qwen2's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from probe.models.families.family import (
    Family,
    by_width,
    causal_unless_told,
    positions_of_config,
    turning,
    turns_steadily,
    window_by_kind,
)
from probe.models.families.site import Norm, Site


def separate(attention: Any) -> list[Any]:
    return [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]


def like_llama(
    model_types: tuple[str, ...],
    *,
    maps: Callable[[Any], list[Any]] = separate,
    norm: Callable[[Any], Norm] | None = None,
    scale: Callable[[Any, int, int], float] = by_width,
    causal: Callable[[Any], bool] = causal_unless_told,
) -> Family:
    """A family of this layout, with what another that shares it does in another way.

    ``maps`` gives a layer's query, key, value and output, as ``Site.of`` takes them; ``norm`` makes a norm of
    the module that queries or keys go through.
    """

    def sites(hf: Any) -> tuple[Site, ...]:
        return tuple(site(hf, layer, one.self_attn) for layer, one in enumerate(hf.base_model.layers))

    def site(hf: Any, layer: int, attention: Any) -> Site:
        config = attention.config
        return Site.of(
            attention,
            maps(attention),
            num_heads=config.num_attention_heads,
            head_dim=attention.head_dim,
            scale=scale(config, attention.head_dim, layer),
            num_key_value_heads=config.num_key_value_heads,
            rotary_frequencies=turning(hf, layer),
            window=window_by_kind(config, layer),
            query_norm=norm(attention.q_norm) if norm else None,
            key_norm=norm(attention.k_norm) if norm else None,
        )

    return Family(
        model_types,
        causal,
        sites,
        turns_steadily,
        scale,
        window_by_kind,
        max_tokens=positions_of_config,
        float32_inside=True,
    )


FAMILY = like_llama(("llama", "mistral", "qwen2"))
