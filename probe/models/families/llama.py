"""Llama and the decoders that share its layout: rotary positions, grouped queries, no biases or few.

Touvron et al. 2023 (Llama), Jiang et al. 2023 (Mistral), Yang et al. 2024 (Qwen2). Queries and keys are
turned by their positions after the projections; several query heads read one key head. Some layers see a
window of the last tokens only.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from probe.models.families.site import Family, Projection, Site


def sites(hf: PreTrainedModel) -> tuple[Site, ...]:
    network: Any = hf.base_model
    return tuple(_site(layer.self_attn, network.rotary_emb) for layer in network.layers)


def _site(attention: Any, rotary: Any) -> Site:
    return Site(
        attention=attention,
        query=Projection.whole(attention.q_proj),
        key=Projection.whole(attention.k_proj),
        value=Projection.whole(attention.v_proj),
        output=Projection.whole(attention.o_proj),
        num_heads=attention.config.num_attention_heads,
        scale=attention.head_dim**-0.5,
        num_key_value_heads=attention.config.num_key_value_heads,
        rotary_frequencies=rotary.inv_freq.detach().clone(),
        window=_window(attention),
    )


def _window(attention: Any) -> int | None:
    """Qwen2 has a window for some of its layers, and keeps it on each; Mistral has one for all, or none."""
    config = attention.config
    window: int | None = getattr(attention, "sliding_window", None)
    return config.sliding_window if config.model_type == "mistral" else window


def describes(config: PretrainedConfig) -> bool:
    """Not where the frequencies change with the length of the text, or sines and cosines are stretched."""
    parameters: Any = config.rope_parameters
    return parameters.get("rope_type", "default") in {"default", "linear", "llama3"}


def causal(config: PretrainedConfig) -> bool:
    return True


def max_tokens(hf: PreTrainedModel) -> int:
    config: Any = hf.config
    return int(config.max_position_embeddings)


FAMILY = Family(
    ("llama", "mistral", "qwen2"),
    sites,
    causal,
    max_tokens,
    pairs=False,
    float32_inside=True,
    describes=describes,
)
