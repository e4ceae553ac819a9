"""Attention as modules: a ladder, each rung one idea more than the last.

    SimplifiedSelfAttention     every position mixes all positions; no weights
    SelfAttention               + trainable query, key and value projections   (RawSelfAttention: as plain matrices)
    CausalAttention             + a mask over the future, batches, dropout
    CrossAttention              + queries from one sequence, keys and values from another
    StackedMultiHeadAttention   + several heads side by side
    MultiHeadAttention          + all heads in one projection per role, split, merged, and projected back

Every module answers two calls with the same arguments: ``module(...)`` gives the output, ``module.steps(...)`` gives
every step on the way to it. Nothing is stored on the module in between. The arithmetic is in one place,
:func:`attention.scaled_dot_product_attention`; a module only makes queries, keys and values for it.

Throughout, T is a number of tokens (Tq queries, Tk keys) and B a batch size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .functional import AttentionSteps, check_dropout, scaled_dot_product_attention
from .masks import causal_mask, combine_masks


class SimplifiedSelfAttention(nn.Module):
    """Rung 1, no weights: each position asks with its own vector, and is found and mixed by it.

    The scores are plain dot products, not scaled: softmax(X X^T) X.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d) -> (..., T, d): one context vector for each position."""
        return self.steps(x, keep_steps=False).output

    def steps(self, x: Tensor, *, keep_steps: bool = True) -> AttentionSteps:
        """Every step of ``forward``."""
        return scaled_dot_product_attention(x, x, x, scale=1.0, keep_steps=keep_steps)


class SelfAttention(nn.Module):
    """Rung 2, trainable: three projections of the same input say what to look for, how to be found, what to give.

    Parameters
    ----------
    d_in : width of the input.
    d_out : width of queries, keys and values, and so of the output.

    The projections have no bias, as in Vaswani et al. 2017, section 3.2.2. They are drawn in the order query, key,
    value.
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) -> (..., T, d_out)."""
        return self.steps(x, keep_steps=False).output

    def steps(self, x: Tensor, *, keep_steps: bool = True) -> AttentionSteps:
        """Every step of ``forward``."""
        return scaled_dot_product_attention(self.W_query(x), self.W_key(x), self.W_value(x), keep_steps=keep_steps)


class RawSelfAttention(nn.Module):
    """Rung 2 once more, with the three matrices in the open: Q = X W_query, and so on.

    The same function as :class:`SelfAttention`. Two things differ: a Linear stores the transpose of the matrix on
    paper, and it draws its first weights at a size that suits training, where these are uniform on [0, 1).

    Parameters
    ----------
    d_in, d_out : the matrices are (d_in, d_out), as on paper.
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) -> (..., T, d_out)."""
        return self.steps(x, keep_steps=False).output

    def steps(self, x: Tensor, *, keep_steps: bool = True) -> AttentionSteps:
        """Every step of ``forward``."""
        return scaled_dot_product_attention(x @ self.W_query, x @ self.W_key, x @ self.W_value, keep_steps=keep_steps)

    @torch.no_grad()
    def copy_from_linear(self, linear: SelfAttention) -> None:
        """Take over the weights of a :class:`SelfAttention`, transposed."""
        self.W_query.copy_(linear.W_query.weight.T)  # (d_out, d_in) -> (d_in, d_out)
        self.W_key.copy_(linear.W_key.weight.T)
        self.W_value.copy_(linear.W_value.weight.T)

    @torch.no_grad()
    def copy_to_linear(self, linear: SelfAttention) -> None:
        """Give the weights to a :class:`SelfAttention`, transposed."""
        linear.W_query.weight.copy_(self.W_query.T)  # (d_in, d_out) -> (d_out, d_in)
        linear.W_key.weight.copy_(self.W_key.T)
        linear.W_value.weight.copy_(self.W_value.T)


class CausalAttention(SelfAttention):
    """Rung 3, causal: no position sees what comes after it. Also dropout on the weights, in training.

    Parameters
    ----------
    d_in, d_out : as in :class:`SelfAttention`.
    context_length : the most tokens it takes.
    dropout : probability that a weight is dropped while training.
    causal : with False the mask is off, and this is :class:`SelfAttention` again.

    References
    ----------
    Vaswani et al. 2017, section 3.2.3, third item; dropout on the weights as in GPT-2 (Radford et al. 2019).
    """

    mask: Tensor

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float = 0.0, *, causal: bool = True
    ) -> None:
        super().__init__(d_in, d_out)
        check_dropout(dropout)
        self.dropout = dropout
        self.context_length = context_length
        self.causal = causal
        # A buffer moves with the module to another device, and isn't trained. It isn't saved either: it follows from
        # context_length, and without it the weights fit SelfAttention, and modules of any other context length.
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def steps(self, x: Tensor, *, keep_steps: bool = True) -> AttentionSteps:
        """Every step of ``forward``; ValueError if there are more tokens than ``context_length``."""
        num_tokens = x.size(-2)
        _check_length(num_tokens, self.context_length)
        return scaled_dot_product_attention(
            self.W_query(x),
            self.W_key(x),
            self.W_value(x),
            mask=self.mask[:num_tokens, :num_tokens] if self.causal else None,  # the corner in use
            dropout_p=self.dropout if self.training else 0.0,
            keep_steps=keep_steps,
        )


class CrossAttention(nn.Module):
    """Rung 4, three inputs: queries from one sequence, keys and values from another, of another length if need be.

    In an encoder-decoder the decoder asks, and the encoder's output answers. The same tensor three times is
    self-attention, and with a causal mask it is causal attention.

    Parameters
    ----------
    d_in : width of the query input.
    d_out : width of queries and keys.
    d_key_value_in : width of the key and value inputs; ``d_in`` if not given.
    d_value : width of the values, and so of the output; ``d_out`` if not given.
    dropout : probability that a weight is dropped while training.

    References
    ----------
    Bahdanau et al. 2014, section 3.1, where a decoder first looked back at every word; Vaswani et al. 2017, section
    3.2.3, first item.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        d_key_value_in: int | None = None,
        d_value: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        if d_key_value_in is None:
            d_key_value_in = d_in
        if d_value is None:
            d_value = d_out
        self.dropout = dropout
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_key_value_in, d_out, bias=False)
        self.W_value = nn.Linear(d_key_value_in, d_value, bias=False)

    def forward(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """(..., Tq, d_in), (..., Tk, d_key_value_in) twice -> (..., Tq, d_value).

        ``mask`` is bool, broadcastable to (..., Tq, Tk), True = may attend.
        """
        return self.steps(query_input, key_input, value_input, mask, keep_steps=False).output

    def steps(
        self,
        query_input: Tensor,
        key_input: Tensor,
        value_input: Tensor,
        mask: Tensor | None = None,
        *,
        keep_steps: bool = True,
    ) -> AttentionSteps:
        """Every step of ``forward``."""
        return scaled_dot_product_attention(
            self.W_query(query_input),
            self.W_key(key_input),
            self.W_value(value_input),
            mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            keep_steps=keep_steps,
        )


class StackedMultiHeadAttention(nn.Module):
    """Rung 5, several heads: independent attentions over the same inputs, their outputs side by side.

    Each head has its own projections and can look for something else. Their concatenation is ``num_heads`` times as
    wide as one head's output. There are three ways from there back to the width of the input:

    1. a fully connected layer with that many outputs: ``nn.Sequential(stacked, nn.Linear(stacked.output_width, d))``,
       which is what :class:`MultiHeadAttention` has as ``out_proj``;
    2. narrower value matrices: ``StackedMultiHeadAttention(d, d, num_heads, d_value=d // num_heads)``;
    3. no way back: whatever comes next is built for ``stacked.output_width``.

    Parameters
    ----------
    d_in, d_out, d_key_value_in, d_value, dropout : of every head, as in :class:`CrossAttention`.
    num_heads : number of heads.

    References
    ----------
    Vaswani et al. 2017, section 3.2.2 and figure 2 (right), up to the concatenation.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        num_heads: int,
        *,
        d_key_value_in: int | None = None,
        d_value: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            CrossAttention(d_in, d_out, d_key_value_in=d_key_value_in, d_value=d_value, dropout=dropout)
            for _ in range(num_heads)
        )
        self.output_width = num_heads * (d_out if d_value is None else d_value)

    def forward(
        self,
        query_input: Tensor,
        key_input: Tensor | None = None,
        value_input: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(..., Tq, d_in), (..., Tk, d_key_value_in) twice -> (..., Tq, num_heads * d_value).

        Keys are made from ``query_input`` where ``key_input`` isn't given, values from ``key_input`` where
        ``value_input`` isn't. ``mask`` is bool, broadcastable to (..., Tq, Tk), and holds for every head.
        """
        heads = self.steps(query_input, key_input, value_input, mask, keep_steps=False)
        return torch.cat([head.output for head in heads], dim=-1)  # H times (..., Tq, dv) -> (..., Tq, H * dv)

    def steps(
        self,
        query_input: Tensor,
        key_input: Tensor | None = None,
        value_input: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        keep_steps: bool = True,
    ) -> list[AttentionSteps]:
        """Every step of ``forward``, for each head."""
        key_input = query_input if key_input is None else key_input
        value_input = key_input if value_input is None else value_input
        return [head.steps(query_input, key_input, value_input, mask, keep_steps=keep_steps) for head in self.heads]


@dataclass(frozen=True, eq=False)
class MultiHeadSteps:
    """Every step of a multi-head attention.

    Attributes
    ----------
    query : (..., num_heads, Tq, head_dim)
    key : (..., num_heads, Tk, head_dim)
    value : (..., num_heads, Tk, head_dim)
    heads : the attention of all heads; its weights are (..., num_heads, Tq, Tk), its output
        (..., num_heads, Tq, head_dim).
    context : (..., Tq, d_out), the heads' outputs side by side.
    output : (..., Tq, out_width), the context after the output projection.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    heads: AttentionSteps
    context: Tensor
    output: Tensor


class MultiHeadAttention(nn.Module):
    """Rung 6, all heads at once: one projection per role, split into heads, attended, merged, projected back.

    The same function as :class:`StackedMultiHeadAttention` and a linear layer, with one matrix multiplication per
    role where the stack has ``num_heads``. This is the attention of BERT and GPT-2: give it their weights and it
    computes what they compute.

    Parameters
    ----------
    d_in : width of the query input.
    d_out : width of all heads together; each has ``d_out / num_heads``.
    num_heads : number of heads.
    d_key_value_in : width of the key and value inputs, for cross-attention; ``d_in`` if not given.
    out_width : width of the output; ``d_out`` if not given.
    bias : whether the query, key and value projections have a bias.
    out_bias : whether the output projection has one; as ``bias`` if not given.
    causal : whether the future is masked. With more keys than queries (a cache), the queries come last.
    context_length : the most tokens it takes, or None for no limit.
    dropout : probability that a weight is dropped while training.
    scale : what the scores are multiplied with; ``1 / sqrt(head_dim)`` if not given. Some GPT-2s divide it by the
        layer's number, counted from 1.
    device, dtype : of the parameters. On ``torch.device("meta")`` no numbers are drawn, and
        ``load_state_dict(..., assign=True)`` brings the real ones: there is no buffer that would be left behind.

    Raises
    ------
    ValueError : if the heads don't divide ``d_out``, naming both, or if ``dropout`` isn't between 0 and 1.

    References
    ----------
    Vaswani et al. 2017, section 3.2.2 and figure 2 (right); Radford et al. 2019, "Language Models are Unsupervised
    Multitask Learners", section 2.3, for the sizes of GPT-2.

    Examples
    --------
    The attention of the smallest GPT-2:

    >>> layer = MultiHeadAttention(768, 768, num_heads=12, bias=True, causal=True, context_length=1024)
    >>> layer(torch.zeros(1, 5, 768)).shape
    torch.Size([1, 5, 768])
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        num_heads: int,
        *,
        d_key_value_in: int | None = None,
        out_width: int | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        causal: bool = False,
        context_length: int | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_out % num_heads != 0:
            raise ValueError(f"a width of {d_out} can't be split evenly into {num_heads} heads")
        check_dropout(dropout)
        if d_key_value_in is None:
            d_key_value_in = d_in
        if out_width is None:
            out_width = d_out
        if out_bias is None:
            out_bias = bias

        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.causal = causal
        self.context_length = context_length
        self.dropout = dropout
        self.scale = scale

        self.W_query = nn.Linear(d_in, d_out, bias=bias, device=device, dtype=dtype)
        self.W_key = nn.Linear(d_key_value_in, d_out, bias=bias, device=device, dtype=dtype)
        self.W_value = nn.Linear(d_key_value_in, d_out, bias=bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(d_out, out_width, bias=out_bias, device=device, dtype=dtype)

    def forward(
        self,
        query_input: Tensor,
        key_input: Tensor | None = None,
        value_input: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(..., Tq, d_in), (..., Tk, d_key_value_in) twice -> (..., Tq, out_width).

        Keys are made from ``query_input`` where ``key_input`` isn't given, values from ``key_input`` where
        ``value_input`` isn't. ``mask`` is bool, broadcastable to (..., num_heads, Tq, Tk), True = may attend; it is
        combined with the causal mask if there is one. ValueError if there are more tokens than ``context_length``.
        """
        return self.steps(query_input, key_input, value_input, mask, keep_steps=False).output

    def steps(
        self,
        query_input: Tensor,
        key_input: Tensor | None = None,
        value_input: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        keep_steps: bool = True,
    ) -> MultiHeadSteps:
        """Every step of ``forward``. ``keep_steps`` is about the heads, as in ``scaled_dot_product_attention``."""
        key_input = query_input if key_input is None else key_input
        value_input = key_input if value_input is None else value_input
        num_queries, num_keys = query_input.size(-2), key_input.size(-2)
        _check_length(max(num_queries, num_keys), self.context_length)

        # one projection per role, for all heads at once
        query = self._split(self.W_query(query_input))  # (..., Tq, d_in) -> (..., H, Tq, head_dim)
        key = self._split(self.W_key(key_input))  # (..., Tk, d_key_value_in) -> (..., H, Tk, head_dim)
        value = self._split(self.W_value(value_input))

        # the causal mask is made for the length in use, on the device in use, and not kept
        if self.causal:
            mask = combine_masks(mask, causal_mask(num_queries, num_keys, device=query.device))

        heads = scaled_dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            scale=self.scale,
            dropout_p=self.dropout if self.training else 0.0,
            keep_steps=keep_steps,
        )

        context = self._merge(heads.output)  # (..., H, Tq, head_dim) -> (..., Tq, d_out)
        output = self.out_proj(context)  # (..., Tq, d_out) -> (..., Tq, out_width)
        return MultiHeadSteps(query, key, value, heads, context, output)

    def _split(self, x: Tensor) -> Tensor:
        """Cut the width into heads, and bring the heads before the tokens."""
        x = x.unflatten(-1, (self.num_heads, self.head_dim))  # (..., T, d_out) -> (..., T, H, head_dim)
        return x.transpose(-3, -2)  # (..., T, H, head_dim) -> (..., H, T, head_dim)

    def _merge(self, x: Tensor) -> Tensor:
        """Bring the heads back behind the tokens, and join them into one width."""
        x = x.transpose(-3, -2)  # (..., H, T, head_dim) -> (..., T, H, head_dim)
        return x.flatten(-2)  # (..., T, H, head_dim) -> (..., T, d_out)


def _check_length(num_tokens: int, context_length: int | None) -> None:
    """Refuse more tokens than there is room for, rather than cut them."""
    if context_length is not None and num_tokens > context_length:
        raise ValueError(f"{num_tokens} tokens are more than the context length of {context_length}")
