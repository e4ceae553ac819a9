"""Scaled dot-product attention, with nothing hidden.

The whole idea in one line (Vaswani et al. 2017, "Attention Is All You Need", equation 1):

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

Read on from :func:`scaled_dot_product_attention`: it is that line, step by step, and every attention in this package
is a call to it. The softmax is written out, so that no step is left to a library.

In every matrix of scores or weights here, rows are queries and columns are keys: ``weights[..., i, j]`` is how much
query ``i`` takes from the value of key ``j``. So each row sums to 1; a column doesn't.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .masks import causal_mask, require_bool


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """Every step of one attention, in the order they are computed.

    Attributes
    ----------
    scores : (..., num_queries, num_keys) dot products of queries and keys, or None if steps weren't kept.
    scaled : the scores times the scale, or None.
    masked : the scaled scores with -inf wherever the mask forbids, or None.
    weights : (..., num_queries, num_keys) softmax of the masked scores along the keys, after dropout if there was
        any: exactly what the values were multiplied with.
    output : (..., num_queries, value_dim), ``weights @ value``.
    """

    scores: Tensor | None
    scaled: Tensor | None
    masked: Tensor | None
    weights: Tensor
    output: Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    *,
    keep_steps: bool = True,
) -> AttentionSteps:
    """Mix the values, each query by its own recipe: softmax(Q K^T * scale + M) V.

    Parameters
    ----------
    query : (..., num_queries, head_dim)
    key : (..., num_keys, head_dim)
    value : (..., num_keys, value_dim); value_dim may differ from head_dim.
        The leading dimensions (batch, heads, or none) are any that broadcast.
    mask : bool, broadcastable to (..., num_queries, num_keys), True = may attend. A query that may attend to nothing
        gets weights and an output of zeros, and sends back a gradient of zeros.
    scale : what the scores are multiplied with; ``1 / sqrt(head_dim)`` if not given.
    dropout_p : probability that a weight is dropped, see :func:`dropout`. It is applied whenever it isn't 0: a module
        passes 0 outside training.
    keep_steps : with False, scores, scaled and masked are None and are not kept in memory: one matrix is reused for
        the three. Weights and output are the same numbers.

    Returns
    -------
    AttentionSteps : scores, scaled, masked, weights, output.

    Raises
    ------
    ValueError : if shapes don't fit, naming them, or if ``dropout_p`` isn't between 0 and 1.
    TypeError : if ``mask`` isn't bool.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation 1 and figure 2 (left).
    """
    _check_shapes(query, key, value, mask)
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1))

    # similarity of every query with every key
    scores = query @ key.transpose(-2, -1)  # (..., Tq, d) @ (..., d, Tk) -> (..., Tq, Tk)

    # without scaling, scores grow with head_dim and push the softmax towards a step, where gradients vanish
    scaled = scores * scale if keep_steps else scores.mul_(scale)

    # forbidden pairs get -inf, and exp(-inf) is exactly 0
    masked = scaled
    if mask is not None:
        masked = scaled.masked_fill(~mask, -math.inf) if keep_steps else scaled.masked_fill_(~mask, -math.inf)

    # each row becomes shares of a whole
    weights = softmax(masked, dim=-1)
    if dropout_p != 0.0:
        weights = dropout(weights, dropout_p)

    output = weights @ value  # (..., Tq, Tk) @ (..., Tk, dv) -> (..., Tq, dv)

    if not keep_steps:
        return AttentionSteps(None, None, None, weights, output)
    return AttentionSteps(scores, scaled, masked, weights, output)


def softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """Turn scores into positive shares that sum to 1: exponentiate, then divide by the sum.

    The largest score of each row is subtracted first. It cancels in the division and keeps every exponent at or below
    zero, so that nothing overflows, whatever the size of the scores.

    Parameters
    ----------
    scores : any shape, a floating dtype. float16 and bfloat16 are computed in float32 and rounded once, at the end.
    dim : the dimension along which the shares sum to 1.

    Returns
    -------
    Same shape and dtype as ``scores``. A score of -inf gets a share of exactly 0. Where all scores along ``dim`` are
    -inf there is nothing to share: the result is zeros with a gradient of zeros, never NaN (torch's own gives NaN).

    Raises
    ------
    TypeError : if ``scores`` isn't floating.

    References
    ----------
    Goodfellow et al. 2016, "Deep Learning", section 4.1, for the subtracted maximum.

    Examples
    --------
    >>> softmax(torch.tensor([1e4, 1e4, -torch.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    if not scores.is_floating_point():
        raise TypeError(f"softmax takes floating-point scores; got {scores.dtype}")
    if scores.size(dim) == 0:
        return scores.clone()  # no keys, no shares; there is no largest score to subtract
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))

    # a constant per row: no gradient flows through it; where all is -inf, subtract 0, for -inf - -inf is NaN
    largest = wide.detach().amax(dim, keepdim=True)
    largest = largest.masked_fill(largest == -math.inf, 0.0)

    exponentials = (wide - largest).exp_()  # in (0, 1]; in place, on a fresh matrix of our own
    return _normalise(exponentials, dim).to(scores.dtype)


def naive_softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """The softmax as it is defined, and why nobody computes it so: a demonstration, used nowhere else.

    exp overflows to inf above 88.7 in float32 (709.7 in float64), and inf / inf is NaN; with all scores below -104
    (-745) every exponential is 0, and 0 / 0 is NaN. :func:`softmax` has neither fault.

    Parameters, Returns : as :func:`softmax`, while the numbers are small.

    Examples
    --------
    >>> naive_softmax(torch.tensor([100.0, 0.0])).tolist()
    [nan, 0.0]
    """
    exponentials = torch.exp(scores)
    return exponentials / exponentials.sum(dim, keepdim=True)


def renormalised_causal(weights: Tensor) -> Tensor:
    """The other route to a causal matrix: take finished weights, zero the future, make each row sum to 1 again.

    Nothing leaks from the future: its scores are in the denominator of every kept weight alike, and cancel. Masking
    the scores with -inf before the softmax gives the same matrix in one pass, and is what this package does, for one
    more reason: where a future key had almost all of the weight, what is left has lost digits, or is 0 altogether.

    Parameters
    ----------
    weights : (..., num_queries, num_keys), rows sum to 1, computed without a mask.

    Returns
    -------
    (..., num_queries, num_keys), rows sum to 1, zero above the diagonal of :func:`~attention.causal_mask`. A row with
    nothing left is zeros.
    """
    allowed = causal_mask(weights.size(-2), weights.size(-1), device=weights.device)
    return _normalise(weights.masked_fill(~allowed, 0.0), dim=-1)


def dropout(weights: Tensor, p: float) -> Tensor:
    """Zero each weight with probability p, and scale the survivors by 1 / (1 - p).

    The scaling keeps every entry's expected value, so that nothing has to change when dropout is off. Two things that
    look like faults are not: a row of dropped weights no longer sums to 1, and now and then a whole row is lost.

    Parameters
    ----------
    weights : any shape, floating.
    p : probability of being dropped, 0 to 1; with 1 all are dropped.

    Returns
    -------
    Same shape and dtype as ``weights``.

    Raises
    ------
    ValueError : if ``p`` isn't between 0 and 1.

    References
    ----------
    Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", section 4; section 10
    has the form used here, where the survivors are scaled up in training.
    """
    check_dropout(p)
    survives = torch.empty_like(weights, dtype=torch.bool).bernoulli_(1.0 - p)
    return weights * survives * (1.0 / (1.0 - p) if p < 1.0 else 0.0)


def check_dropout(p: float) -> None:
    """ValueError unless ``p`` is a probability."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout is a probability between 0 and 1; got {p}")


def _normalise(parts: Tensor, dim: int) -> Tensor:
    """Divide by the sum along ``dim``; where there is nothing to divide, leave the zeros."""
    total = parts.sum(dim, keepdim=True)
    return parts / total.masked_fill(total == 0.0, 1.0)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Refuse what doesn't fit before computing anything, naming the shapes."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(f"query, key and value need at least two dimensions, (positions, width); got {shapes}")
    if query.size(-1) != key.size(-1):
        raise ValueError(f"queries are {query.size(-1)} wide and keys {key.size(-1)}; they must agree: {shapes}")
    if query.size(-1) == 0:
        raise ValueError(f"queries and keys have no width: {shapes}")
    if key.size(-2) != value.size(-2):
        raise ValueError(f"there are {key.size(-2)} keys and {value.size(-2)} values; each key needs one: {shapes}")
    try:
        torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    except RuntimeError as error:
        raise ValueError(f"the leading dimensions don't broadcast: {shapes}") from error

    if mask is not None:
        require_bool(mask)
        expected = torch.Size((*leading, query.size(-2), key.size(-2)))
        try:
            fits = torch.broadcast_shapes(mask.shape, expected) == expected
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(f"a mask of shape {tuple(mask.shape)} doesn't broadcast to scores of shape {tuple(expected)}")
