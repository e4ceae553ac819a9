"""What an attention must be given, where that is known without running the network.

A check from query and key would believe whatever the network hands over. So what can be known by other means
is worked out here: from the text which keys are padding, from the kind of network which queries see no later
key, from papers the scale and T5's biases. What isn't known is taken from the network's call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from attention import combine_masks, padding_mask
from probe.models.backend import Attention, Call
from probe.models.loading import Model
from probe.models.visibility import allowed_keys


@dataclass(frozen=True)
class Expected:
    """What one attention of B texts must be given.

    Attributes
    ----------
    allowed : (B, 1, Tq, Tk), bool, which keys each query may attend to at most; None if all.
    whole : whether that is the whole mask; else the network may keep more to itself (windows that are not
        described here, say).
    scale : what scores are multiplied with; None where the network's word has to do.
    bias : (1, H or 1, Tq, Tk), what is added to the scaled scores; None likewise.
    """

    allowed: Tensor | None
    whole: bool
    scale: float | None
    bias: Tensor | None


def expected(model: Model, here: Attention, call: Call, queries: Tensor, keys: Tensor) -> Expected:
    """What belongs into a call; ``queries`` and ``keys`` are True at real positions, (B, Tq) and (B, Tk)."""
    config: Any = getattr(call.module, "config", model.hf.config)
    causal, window, whole = _sight(model, here, call, config)
    sees = None
    if here.kind != "cross":
        sees = allowed_keys(keys.shape[1], causal=causal, window=window, device=keys.device)
    padding = None if keys.all() else padding_mask(keys)
    allowed = combine_masks(sees, padding)
    if allowed is not None:
        allowed = allowed.expand(len(keys), 1, queries.shape[1], keys.shape[1])
    known = _SCALES.get(config.model_type)
    return Expected(
        allowed,
        whole,
        None if known is None else known(config, call.query.shape[-1]),
        _t5_bias(model, here, call) if config.model_type in _T5 else None,
    )


# ---- which keys a query sees

# Encoder-decoders that mask padding and, in the decoder, later tokens, and nothing else.
_T5 = ("t5", "mt5")
_BART = ("bart", "mbart", "marian", "pegasus", "blenderbot", "blenderbot-small", "m2m_100")
_PLAIN = (*_T5, *_BART, "whisper")
# Of one stack: those whose mask is the causal one, or a window of it in some layers, and padding.
_CAUSAL = (
    *("clip_text_model", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "gpt_oss", "gptj", "llama", "mistral"),
    *("olmo2", "phi3", "qwen2", "qwen3"),
)
# And those that look both ways.
_BOTH_WAYS = ("bert", "clip_vision_model", "modernbert", "roberta", "vit", "xlm-roberta")


def _sight(model: Model, here: Attention, call: Call, config: Any) -> tuple[bool, int | None, bool]:
    """Whether later keys are hidden; how many positions are seen, None for all; whether that is all.

    ``config`` is that of the part that is calling: an encoder and a decoder may be networks of two kinds.
    """
    name = config.model_type
    if here.kind != "self" and name == model.hf.config.model_type:
        return here.kind == "decoder", None, name in _PLAIN
    if here.kind == "cross":
        return False, None, name in (*_CAUSAL, *_BOTH_WAYS)
    if here.kind == "decoder":
        return True, _window(config, here, call), name in (*_CAUSAL, *_BOTH_WAYS)
    if name in _T5:
        return config.is_decoder, None, True
    both_ways = getattr(config, "use_bidirectional_attention", False)
    if name in _CAUSAL and not both_ways:
        return True, _window(config, here, call), True
    if name in _BOTH_WAYS and not getattr(config, "is_decoder", False):
        return False, _window(config, here, call), True
    # Whether it is trained on next words alone, and says of this layer that it is causal.
    next_words = name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and name not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    says_so = bool(getattr(call.module, "is_causal", False))
    return next_words and says_so and not both_ways, None, False


def _window(config: Any, here: Attention, call: Call) -> int | None:
    """How many positions a layer sees back, itself included."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or (kinds and kinds[getattr(call.module, "layer_idx", here.layer)] == "full_attention"):
        return None
    # ModernBERT's configuration doesn't count the position itself.
    return window + 1 if config.model_type == "modernbert" else window


# ---- dtypes


def keeps_float64(model: Model) -> bool:
    """Whether a network's code is known to compute nothing in float32 where everything else is float64."""
    return model.hf.config.model_type in (*_T5, *_BART, "whisper", "xlm-roberta")


# ---- scales


def _by_width(config: Any, head_dim: int) -> float | None:
    """Vaswani et al. 2017, equation 1."""
    return head_dim**-0.5


def _none(config: Any, head_dim: int) -> float | None:
    """Raffel et al. 2020, who leave it to the initial weights; or the query is scaled beforehand."""
    return 1.0


def _gemma(config: Any, head_dim: int) -> float | None:
    """Gemma Team 2024, "Gemma 2", which may scale by another width than the head's."""
    return float(config.query_pre_attn_scalar) ** -0.5


def _gpt2(config: Any, head_dim: int) -> float | None:
    plain = config.scale_attn_weights and not config.scale_attn_by_inverse_layer_idx
    return head_dim**-0.5 if plain else None


_Scale = Callable[[Any, int], float | None]
_SCALES: dict[str, _Scale] = {
    **dict.fromkeys((*_BART, *_CAUSAL, *_BOTH_WAYS), _by_width),
    **dict.fromkeys((*_T5, "whisper"), _none),
    **dict.fromkeys(("gemma2", "gemma3_text"), _gemma),
    "gpt2": _gpt2,
}


# ---- T5's biases


def _t5_bias(model: Model, here: Attention, call: Call) -> Tensor:
    """One number for each head and distance, the same in all layers; none between the two texts."""
    _, _, num_queries, num_keys = call.shape
    if here.kind == "cross":
        return call.query.new_zeros(1, 1, num_queries, num_keys)
    stacks = (part for part in model.hf.modules() if hasattr(part, "block"))
    stack: Any = next(part for part in stacks if call.module in part.modules())
    both_ways = here.kind == "encoder" or (here.kind == "self" and not stack.config.is_decoder)
    table = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.detach()  # (buckets, H)
    buckets = t5_buckets(
        num_queries,
        num_keys,
        num_buckets=len(table),
        max_distance=stack.config.relative_attention_max_distance,
        both_ways=both_ways,
    )
    return table[buckets.to(table.device)].permute(2, 0, 1)[None]  # (Tq, Tk, H) -> (1, H, Tq, Tk)


def t5_buckets(
    num_queries: int, num_keys: int, *, num_buckets: int, max_distance: int, both_ways: bool
) -> Tensor:
    """Which distances share a bias: (num_queries, num_keys), the number of each pair's bucket.

    Half of the buckets are for one distance each, from 0 on; the others grow in proportion, so that the last
    begins shortly before ``max_distance`` and holds everything beyond it. Looking both ways, keys ahead of
    their query have buckets of their own, the second half; otherwise they all count as distance 0.

    References
    ----------
    Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1; the sizes are those of the authors' code.
    """
    count = num_buckets // 2 if both_ways else num_buckets
    single = count // 2
    growing = count - single
    # Bucket single + j begins at distance single * (max_distance / single) ** (j / growing). Raised to a
    # power, both sides are whole numbers, and nothing is rounded.
    bucket_of = []
    for distance in range(max(num_queries, num_keys)):
        begun = (
            j for j in range(1, growing) if distance**growing >= max_distance**j * single ** (growing - j)
        )
        bucket_of.append(distance if distance < single else single + max(begun, default=0))
    ahead = torch.arange(num_keys) - torch.arange(num_queries)[:, None]
    behind = torch.tensor(bucket_of)
    if not both_ways:
        return behind[(-ahead).clamp_min(0)]
    return behind[ahead.abs()] + count * (ahead > 0)
