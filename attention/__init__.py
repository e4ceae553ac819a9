"""Attention from scratch, in torch only: readable from top to bottom, and exact enough to verify real models.

Read ``functional.py`` first (the arithmetic), then ``masks.py``, then ``modules.py`` (a ladder from no
weights to many heads). ``reference.py`` is the same attention as nested loops, to check against, and
``examples.py`` holds worked examples.
"""

from .functional import (
    AttentionSteps,
    dropout,
    naive_softmax,
    renormalised_causal,
    scaled_dot_product_attention,
    softmax,
)
from .masks import additive_mask, causal_mask, combine_masks, padding_mask, sliding_window_mask
from .modules import (
    CausalAttention,
    CrossAttention,
    MultiHeadAttention,
    MultiHeadSteps,
    RawSelfAttention,
    SelfAttention,
    SimplifiedSelfAttention,
    StackedMultiHeadAttention,
)
from .norms import rms_norm
from .reference import attention_by_loops
from .rotary import rotary_angles, rotary_frequencies, rotate

__all__ = [
    "AttentionSteps",
    "CausalAttention",
    "CrossAttention",
    "MultiHeadAttention",
    "MultiHeadSteps",
    "RawSelfAttention",
    "SelfAttention",
    "SimplifiedSelfAttention",
    "StackedMultiHeadAttention",
    "additive_mask",
    "attention_by_loops",
    "causal_mask",
    "combine_masks",
    "dropout",
    "naive_softmax",
    "padding_mask",
    "renormalised_causal",
    "rms_norm",
    "rotary_angles",
    "rotary_frequencies",
    "rotate",
    "scaled_dot_product_attention",
    "sliding_window_mask",
    "softmax",
]
