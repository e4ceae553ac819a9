"""What an attention must be given, where that is known without running the network.

A check from query and key would believe whatever the network hands over. So what can be known by other means
is worked out here: from the text which keys are padding, and from the kind of network (``probe.models
.families``) which queries see which keys, the scale, and T5's biases. What isn't known is taken from the
network's call.
"""

from __future__ import annotations

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
from probe.models.families import Family, find_family
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
    # That of the part that is calling: an encoder and a decoder may be networks of two kinds.
    config: Any = getattr(call.module, "config", model.hf.config)
    family, layer = find_family(config), getattr(call.module, "layer_idx", None)
    layer = here.layer if layer is None else layer
    causal, whole = _sight(model, here, call, config, family)
    sees = None
    if here.kind != "cross":
        window = family.window(config, layer) if family is not None and whole else None
        sees = allowed_keys(keys.shape[1], causal=causal, window=window, device=keys.device)
    padding = None if keys.all() else padding_mask(keys)
    allowed = combine_masks(sees, padding)
    if allowed is not None:
        allowed = allowed.expand(len(keys), 1, queries.shape[1], keys.shape[1])
    if family is None:
        return Expected(allowed, whole, None, None)
    bias = family.bias and family.bias(model.hf, call.module, here.kind, *call.shape[2:])
    return Expected(allowed, whole, family.scale(config, call.query.shape[-1], layer), bias)


def _sight(
    model: Model, here: Attention, call: Call, config: Any, family: Family | None
) -> tuple[bool, bool]:
    """Whether later keys are hidden; whether, but for a window and padding, no others are."""
    name = config.model_type
    if here.kind == "cross" or here.kind == "decoder":
        return here.kind == "decoder", family is not None
    if here.kind == "encoder" and name == model.hf.config.model_type:  # of a network with both
        return False, family is not None
    known = None if family is None else family.causal(config)
    if known is not None:
        return known, True
    # Whether it is trained on next words alone, and says of this layer that it is causal.
    next_words = name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and name not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    says_so = bool(getattr(call.module, "is_causal", False))
    both_ways = getattr(config, "use_bidirectional_attention", False)
    return next_words and says_so and not both_ways, False


def unit_roundoff(model: Model) -> float:
    """That of the dtype, or of float32 for a float64 model whose code may go through float32 somewhere."""
    may_go = model.family is None or model.family.float32_inside
    through_float32 = model.dtype == torch.float64 and may_go
    return torch.finfo(torch.float32 if through_float32 else model.dtype).eps / 2
