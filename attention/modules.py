"""Attention as modules: a ladder, each rung one idea more than the last.

    SimplifiedSelfAttention     each position mixes all positions; no weights
    SelfAttention               + trainable query, key and value projections (RawSelfAttention: bare matrices)
    CausalAttention             + a mask over the future, batches, dropout
    CrossAttention              + queries from one sequence, keys and values from another
    StackedMultiHeadAttention   + several heads, side by side
    MultiHeadAttention          + one projection per role for all heads: split, attend, merge, project back

Each module takes two calls with the same arguments: ``module(...)`` returns the output, ``module.steps(...)``
every step on the way to it. Nothing is stored on the module in between. The arithmetic stands in one place,
:func:`attention.scaled_dot_product_attention`; a module only makes queries, keys and values for it.

In the shapes, T is a number of tokens (Tq of queries, Tk of keys), H of heads, d is head_dim, and ... any
leading dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from .functional import AttentionSteps, check_probability, scaled_dot_product_attention
from .masks import causal_mask, combine_masks
from .norms import RMSNorm
from .rotary import rotate


class SimplifiedSelfAttention(nn.Module):
    """Rung 1, no weights: each position is its own query, key and value.

    The scores are bare dot products, without scaling: softmax(X X^T) X.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) -> (..., T, d_in), one context vector per position."""
        return self.steps(x, keep_steps=False).output

    def steps(self, x: Tensor, *, keep_steps: bool = True) -> AttentionSteps:
        """Every step of ``forward``."""
        return scaled_dot_product_attention(x, x, x, scale=1.0, keep_steps=keep_steps)


class SelfAttention(nn.Module):
    """Rung 2, trainable: three projections of one input, for what to look for, how to be found, what to give.

    Parameters
    ----------
    d_in : width of the input.
    d_out : width of queries, keys and values, and so of the output.

    Notes
    -----
    The projections have no bias and are drawn in the order query, key, value.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1 and, for the projections, 3.2.2.
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, d_in) -> (..., T, d_out), one context vector per position."""
        return self.steps(x, keep_steps=False).output

    def steps(self, x: Tensor, *, keep_steps: bool = True) -> AttentionSteps:
        """Every step of ``forward``."""
        return scaled_dot_product_attention(
            self.W_query(x),  # (..., T, d_in) -> (..., T, d_out)
            self.W_key(x),
            self.W_value(x),
            keep_steps=keep_steps,
        )


class RawSelfAttention(nn.Module):
    """Rung 2 again, with its matrices in the open: Q = X W_query, K = X W_key, V = X W_value.

    The same function as :class:`SelfAttention`, and weights go both ways. Two things differ. A Linear stores
    the transpose of the matrix on paper. And it draws its first weights at a size that suits training, where
    these are simply uniform on [0, 1).

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
        """(..., T, d_in) -> (..., T, d_out), one context vector per position."""
        return self.steps(x, keep_steps=False).output

    def steps(self, x: Tensor, *, keep_steps: bool = True) -> AttentionSteps:
        """Every step of ``forward``."""
        return scaled_dot_product_attention(
            x @ self.W_query,  # (..., T, d_in) @ (d_in, d_out) -> (..., T, d_out)
            x @ self.W_key,
            x @ self.W_value,
            keep_steps=keep_steps,
        )

    @torch.no_grad()
    def copy_from(self, linear: SelfAttention) -> None:
        """Take the weights of a :class:`SelfAttention`, transposing each."""
        self.W_query.copy_(linear.W_query.weight.T)  # (d_out, d_in) -> (d_in, d_out)
        self.W_key.copy_(linear.W_key.weight.T)
        self.W_value.copy_(linear.W_value.weight.T)

    @torch.no_grad()
    def copy_to(self, linear: SelfAttention) -> None:
        """Give the weights to a :class:`SelfAttention`, transposing each."""
        linear.W_query.weight.copy_(self.W_query.T)  # (d_in, d_out) -> (d_out, d_in)
        linear.W_key.weight.copy_(self.W_key.T)
        linear.W_value.weight.copy_(self.W_value.T)


class CausalAttention(SelfAttention):
    """Rung 3, causal: no position sees what comes after it. In training, some weights are dropped.

    It is for batches, (B, T, d_in), each example on its own; one sequence, (T, d_in), will do too.

    Parameters
    ----------
    d_in, d_out : as in :class:`SelfAttention`.
    context_length : the most tokens it takes.
    dropout : probability that a weight is dropped in training.
    causal : with False the mask is off, and this is :class:`SelfAttention` again.

    Raises
    ------
    ValueError : if ``dropout`` isn't between 0 and 1; when called, if there are more tokens than
        ``context_length``, naming both.

    References
    ----------
    Vaswani et al. 2017, section 3.2.3, third item. Dropout on the weights: Srivastava et al. 2014, see
    :func:`attention.dropout`.
    """

    mask: Tensor

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float = 0.0, *, causal: bool = True
    ) -> None:
        super().__init__(d_in, d_out)
        check_probability(dropout)
        self.context_length = context_length
        self.dropout = dropout
        self.causal = causal
        # A buffer moves to another device with its module, and isn't trained. It isn't saved either: it
        # follows from context_length, and so the saved weights fit any other context length, and
        # SelfAttention.
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def steps(self, x: Tensor, *, keep_steps: bool = True) -> AttentionSteps:
        """Every step of ``forward``."""
        num_tokens = x.size(-2)
        _check_length(num_tokens, self.context_length)
        return scaled_dot_product_attention(
            self.W_query(x),  # (..., T, d_in) -> (..., T, d_out)
            self.W_key(x),
            self.W_value(x),
            mask=self.mask[:num_tokens, :num_tokens] if self.causal else None,  # the corner in use, (T, T)
            dropout_p=self.dropout if self.training else 0.0,
            keep_steps=keep_steps,
        )


class CrossAttention(nn.Module):
    """Rung 4, three inputs: queries come from one sequence, keys and values from another.

    In an encoder-decoder the decoder asks and the encoder's output answers. With the same tensor three times
    it is self-attention, and with a causal mask as well, causal attention.

    Parameters
    ----------
    d_in : width of the query input.
    d_out : width of queries and keys.
    d_key_value_in : width of the key and value inputs; ``d_in`` if not given.
    d_value : width of values, and so of the output; ``d_out`` if not given.
    dropout : probability that a weight is dropped in training.

    Raises
    ------
    ValueError : if ``dropout`` isn't between 0 and 1.

    References
    ----------
    Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate", section
    3.1, where a decoder first looked back at every word; Vaswani et al. 2017, section 3.2.3, first item.
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
        check_probability(dropout)
        d_key_value_in = d_in if d_key_value_in is None else d_key_value_in
        d_value = d_out if d_value is None else d_value

        self.dropout = dropout
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_key_value_in, d_out, bias=False)
        self.W_value = nn.Linear(d_key_value_in, d_value, bias=False)

    def forward(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """(..., Tq, d_in) and, twice, (..., Tk, d_key_value_in) -> (..., Tq, d_value).

        The mask is bool, broadcastable to (..., Tq, Tk), True = may attend.
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
            self.W_query(query_input),  # (..., Tq, d_in) -> (..., Tq, d_out)
            self.W_key(key_input),  # (..., Tk, d_key_value_in) -> (..., Tk, d_out)
            self.W_value(value_input),  # (..., Tk, d_key_value_in) -> (..., Tk, d_value)
            mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            keep_steps=keep_steps,
        )


class StackedMultiHeadAttention(nn.Module):
    """Rung 5, several heads: independent attentions over the same inputs, their outputs side by side.

    Each head has projections of its own, and can look for something else. Their outputs together are
    ``num_heads`` times as wide as one. Three ways lead from there back to the width of the input, ``d``:

    1. A fully connected layer with that many outputs:
       ``nn.Sequential(stacked, nn.Linear(stacked.output_width, d))``.
       :class:`MultiHeadAttention` has it built in, as ``out_proj``.
    2. Narrower value matrices: ``StackedMultiHeadAttention(d, d_out, num_heads, d_value=d // num_heads)``.
    3. Flexible sizes, which is no way back at all: what comes next is built for ``stacked.output_width``.

    Parameters
    ----------
    d_in, d_out, d_key_value_in, d_value, dropout : of each head, as in :class:`CrossAttention`.
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
        """(..., Tq, d_in) and, twice, (..., Tk, d_key_value_in) -> (..., Tq, num_heads * d_value).

        Keys are made from ``query_input`` if ``key_input`` isn't given, values from what keys are made from
        if ``value_input`` isn't. The mask is bool, broadcastable to (..., Tq, Tk), one for all heads.
        """
        heads = self.steps(query_input, key_input, value_input, mask, keep_steps=False)
        return torch.cat([head.output for head in heads], dim=-1)  # H of (..., Tq, dv) -> (..., Tq, H * dv)

    def steps(
        self,
        query_input: Tensor,
        key_input: Tensor | None = None,
        value_input: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        keep_steps: bool = True,
    ) -> list[AttentionSteps]:
        """Every step of ``forward``, head by head."""
        key_input = query_input if key_input is None else key_input
        value_input = key_input if value_input is None else value_input
        heads = cast(list[CrossAttention], self.heads)
        return [h.steps(query_input, key_input, value_input, mask, keep_steps=keep_steps) for h in heads]


@dataclass(frozen=True, eq=False)
class MultiHeadSteps:
    """Every step of a multi-head attention, in the order they are computed.

    Attributes
    ----------
    query : (..., num_heads, Tq, head_dim), normalised if the module does so, and turned by its positions if
        there are rotary ones.
    key : (..., num_heads, Tk, head_dim), likewise; query heads that share one each have a copy.
    value : (..., num_heads, Tk, head_dim), likewise shared.
    heads : the attention of all heads. Its weights are (..., num_heads, Tq, Tk), its output is
        (..., num_heads, Tq, head_dim).
    context : (..., Tq, d_out), the outputs of the heads side by side.
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

    The same function as :class:`StackedMultiHeadAttention` followed by a linear layer, with one matrix
    multiplication per role where the stack has ``num_heads``. This is the attention of BERT and of GPT-2:
    with their weights it computes what they compute; with rotary positions and grouped queries, that of
    Llama; with normalised queries and keys besides, that of Qwen3, Gemma 3 and OLMo 2.

    Parameters
    ----------
    d_in : width of the query input.
    d_out : width of all heads together; each is ``d_out / num_heads`` wide.
    num_heads : number of heads.
    num_key_value_heads : number of key and value heads, each read by ``num_heads / num_key_value_heads``
        query heads in a row; ``num_heads`` if not given.
    query_key_norm : whether queries and keys are normalised after the projection, see
        :func:`attention.rms_norm`: "head", each head's vector by itself; "all", the vectors of all heads
        together, as one; None, not.
    rotary_frequencies : (head_dim / 2,) or fewer, turns queries and keys by their positions, after the norm
        (:func:`attention.rotate`); not at all if not given.
    rotary_interleaved : which numbers of a vector make a pair that turns; see :func:`attention.rotate`.
    d_key_value_in : width of the key and value inputs, in cross-attention; ``d_in`` if not given.
    out_width : width of the output; ``d_out`` if not given.
    bias : whether the query, key and value projections have a bias.
    out_bias : whether the output projection has one; as ``bias`` if not given.
    causal : whether the future is masked. With more keys than queries (a cache), the queries come last.
    context_length : the most tokens it takes; no limit if not given.
    dropout : probability that a weight is dropped in training.
    scale : what the scores are multiplied with; ``1 / sqrt(head_dim)`` if not given. Some GPT-2 models divide
        that by the number of the layer, counted from 1.
    device, dtype : of the parameters. On ``"meta"`` no random numbers are drawn, and
        ``load_state_dict(..., assign=True)`` brings in the real ones; there is no buffer to be left behind.

    Raises
    ------
    ValueError : if ``num_heads`` doesn't divide ``d_out``, or ``num_key_value_heads`` doesn't divide
        ``num_heads``, naming both; if ``query_key_norm`` is none of the three; if ``dropout`` isn't between
        0 and 1; when called, if there are more tokens than ``context_length``, naming both.

    References
    ----------
    Vaswani et al. 2017, section 3.2.2 and figure 2 (right); for GPT-2, Radford et al. 2019, "Language Models
    are Unsupervised Multitask Learners", section 2.3; for grouped queries, Ainslie et al. 2023, "GQA:
    Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", section 2.2; for
    normalised queries and keys, Henry et al. 2020, "Query-Key Normalization for Transformers", section 3.

    Examples
    --------
    One layer of the smallest GPT-2:

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
        num_key_value_heads: int | None = None,
        query_key_norm: Literal["head", "all"] | None = None,
        rotary_frequencies: Tensor | None = None,
        rotary_interleaved: bool = False,
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
        num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        if num_key_value_heads < 1 or num_heads % num_key_value_heads != 0:
            raise ValueError(f"{num_heads} heads can't share {num_key_value_heads} key heads evenly")
        if query_key_norm not in ("head", "all", None):
            raise ValueError(f'query_key_norm is "head", "all" or None; got {query_key_norm!r}')
        check_probability(dropout)
        d_key_value_in = d_in if d_key_value_in is None else d_key_value_in
        out_width = d_out if out_width is None else out_width
        out_bias = bias if out_bias is None else out_bias

        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = d_out // num_heads
        self.query_key_norm = query_key_norm
        self.rotary_frequencies = rotary_frequencies
        self.rotary_interleaved = rotary_interleaved
        self.causal = causal
        self.context_length = context_length
        self.dropout = dropout
        self.scale = scale

        # query, key and value projections for all heads at once, and the output projection
        self.W_query = nn.Linear(d_in, d_out, bias=bias, device=device, dtype=dtype)
        key_value_out = num_key_value_heads * self.head_dim
        self.W_key = nn.Linear(d_key_value_in, key_value_out, bias=bias, device=device, dtype=dtype)
        self.W_value = nn.Linear(d_key_value_in, key_value_out, bias=bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(d_out, out_width, bias=out_bias, device=device, dtype=dtype)
        if query_key_norm is not None:
            of_all = query_key_norm == "all"
            self.query_norm = RMSNorm(d_out if of_all else self.head_dim, device=device, dtype=dtype)
            self.key_norm = RMSNorm(key_value_out if of_all else self.head_dim, device=device, dtype=dtype)

    def forward(
        self,
        query_input: Tensor,
        key_input: Tensor | None = None,
        value_input: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(..., Tq, d_in) and, twice, (..., Tk, d_key_value_in) -> (..., Tq, out_width).

        Keys are made from ``query_input`` if ``key_input`` isn't given, values from what keys are made from
        if ``value_input`` isn't. The mask is bool, broadcastable to (..., num_heads, Tq, Tk), True = may
        attend; if the module is causal, what both allow is allowed.
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
        """Every step of ``forward``. ``keep_steps`` concerns the steps inside ``heads``."""
        key_input = query_input if key_input is None else key_input
        value_input = key_input if value_input is None else value_input
        num_queries, num_keys = query_input.size(-2), key_input.size(-2)
        _check_length(max(num_queries, num_keys), self.context_length)

        # one projection per role
        query = self.W_query(query_input)  # (..., Tq, d_in) -> (..., Tq, d_out)
        key = self.W_key(key_input)  # (..., Tk, d_key_value_in) -> (..., Tk, H_kv * d)
        value = self.W_value(value_input)  # (..., Tk, d_key_value_in) -> (..., Tk, H_kv * d)

        # its width is split into heads; queries and keys are brought to one size, before that or after it
        if self.query_key_norm == "all":
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = self._split(query), self._split(key), self._split(value)  # -> (..., H, T, d)
        if self.query_key_norm == "head":
            query, key = self.query_norm(query), self.key_norm(key)

        # positions turn queries and keys, and leave values as they are
        if self.rotary_frequencies is not None:
            query, key = self._turn(query), self._turn(key)

        # several query heads in a row read the same key and value head
        if self.num_key_value_heads != self.num_heads:
            group = self.num_heads // self.num_key_value_heads
            key = key.repeat_interleave(group, dim=-3)  # (..., H_kv, Tk, d) -> (..., H, Tk, d)
            value = value.repeat_interleave(group, dim=-3)

        # the causal mask is made for the length and the device in use, and not kept
        if self.causal:
            mask = combine_masks(mask, causal_mask(num_queries, num_keys, device=query.device))

        # every head attends on its own
        heads = scaled_dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            scale=self.scale,
            dropout_p=self.dropout if self.training else 0.0,
            keep_steps=keep_steps,
        )

        # the heads side by side, then mixed
        context = self._merge(heads.output)  # (..., H, Tq, head_dim) -> (..., Tq, d_out)
        output = self.out_proj(context)  # (..., Tq, d_out) -> (..., Tq, out_width)
        return MultiHeadSteps(query, key, value, heads, context, output)

    def _turn(self, x: Tensor) -> Tensor:
        """Turn each vector of queries or keys by its position: (..., H, T, d) -> (..., H, T, d)."""
        return rotate(x, cast(Tensor, self.rotary_frequencies), interleaved=self.rotary_interleaved)

    def _split(self, x: Tensor) -> Tensor:
        """Cut the width into heads, and move the heads in front of the tokens."""
        x = x.reshape(*x.shape[:-1], -1, self.head_dim)  # (..., T, d_out) -> (..., T, H, d)
        return x.transpose(-3, -2)  # (..., T, H, d) -> (..., H, T, d)

    def _merge(self, x: Tensor) -> Tensor:
        """Move the heads back behind the tokens, and join them into one width."""
        x = x.transpose(-3, -2)  # (..., H, T, d) -> (..., T, H, d)
        return x.flatten(-2)  # (..., T, H, d) -> (..., T, d_out)


def _check_length(num_tokens: int, context_length: int | None) -> None:
    """Refuse more tokens than there is room for; cutting them off unasked would change the answer."""
    if context_length is not None and num_tokens > context_length:
        raise ValueError(f"{num_tokens} tokens are more than the context length of {context_length}")
