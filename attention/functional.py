"""Scaled dot-product attention, with nothing hidden.

The whole idea in one line (Vaswani et al. 2017, "Attention Is All You Need", equation 1):

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

Read on from :func:`scaled_dot_product_attention`: it is that line, step by step, and every attention in this
package is a call to it. The softmax is written out too, so that no step is left to a library.

In every matrix of scores or weights, rows are queries and columns are keys: ``weights[..., i, j]`` is how
much query ``i`` takes from the value of key ``j``. So each row sums to 1; a column doesn't.
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
    scores : (..., num_queries, num_keys), dot products of queries and keys, at least float32; None if steps
        aren't kept.
    scaled : (..., num_queries, num_keys), the scores times the scale; None if steps aren't kept.
    masked : (..., num_queries, num_keys), the scaled scores, after softcap and bias if given, with -inf
        wherever the mask forbids; None if steps aren't kept.
    weights : (..., num_queries, num_keys), softmax of the masked scores along the keys, after dropout if
        there was any: exactly what the values were multiplied with.
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
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    keep_steps: bool = True,
) -> AttentionSteps:
    """Mix the values, for each query by its own recipe: softmax(Q K^T * scale + M) V.

    Parameters
    ----------
    query : (..., num_queries, head_dim)
    key : (..., num_keys, head_dim)
    value : (..., num_keys, value_dim); value_dim may differ from head_dim.
        The leading dimensions (batch, heads, any or none) must broadcast.
    mask : bool, broadcastable to (..., num_queries, num_keys), True = may attend. A query that may attend to
        nothing gets weights and an output of zeros, and sends back a gradient of zeros.
    scale : what the scores are multiplied with; ``1 / sqrt(head_dim)`` if not given.
    dropout_p : probability that a weight is dropped, see :func:`dropout`. Not 0 means now: a module passes 0
        outside training.
    bias : floating, broadcastable to (..., num_queries, num_keys), added to the scaled scores: a liking for
        some distances, say (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1).
    softcap : squashes the scaled scores to ``softcap * tanh(scaled / softcap)``, before the bias; none goes
        beyond it (Gemma Team 2024, "Gemma 2", section 2).
    sinks : broadcastable to the leading dimensions, one more score for each softmax, with no value behind it:
        a query can leave weight unused, and its row sums to less than 1 (Xiao et al. 2024, "Efficient
        Streaming Language Models with Attention Sinks", section 3).
    keep_steps : with False, scores, scaled and masked come back as None, and one matrix becomes each of them
        and the weights in turn, where no bias, softcap, half precision or gradient asks for another. Weights
        and output are the same numbers.

    Returns
    -------
    AttentionSteps : scores, scaled, masked, weights, output, in the dtype of the inputs. With float16 and
        bfloat16, scores, scaled and masked are float32: float16 ends at 65,504, a score need not.

    Raises
    ------
    ValueError : if shapes don't fit, naming them, or if ``dropout_p`` isn't between 0 and 1.
    TypeError : if query, key and value aren't of one floating dtype, ``mask`` isn't bool, or ``bias`` isn't
        floating.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation 1 and figure 2 (left).
    """
    _check(query, key, value, mask, bias, sinks)
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1))

    # similarity of every query with every key
    scores = _dot_products(query, key)  # (..., Tq, d) @ (..., d, Tk) -> (..., Tq, Tk)

    # scores grow with head_dim; unscaled, they would push the softmax towards a step, where gradients vanish
    scaled = scores * scale if keep_steps else scores.mul_(scale)

    # some models keep scores within bounds, or like some pairs better than others from the start
    masked = scaled
    if softcap is not None:
        masked = softcap * torch.tanh(masked / softcap)
    if bias is not None:
        masked = masked + bias

    # forbidden pairs get -inf, because exp(-inf) is exactly 0
    if mask is not None:
        masked = masked.masked_fill(~mask, -math.inf) if keep_steps else masked.masked_fill_(~mask, -math.inf)

    # each row becomes shares of a whole
    if sinks is None:
        weights = softmax(masked, dim=-1, overwrite=not keep_steps)
    else:
        weights = _softmax_with_sinks(masked, sinks)
    weights = weights.to(value.dtype)
    if dropout_p != 0.0:
        weights = dropout(weights, dropout_p)

    # each query's recipe, applied to the values
    output = weights @ value  # (..., Tq, Tk) @ (..., Tk, dv) -> (..., Tq, dv)

    if not keep_steps:
        return AttentionSteps(None, None, None, weights, output)
    return AttentionSteps(scores, scaled, masked, weights, output)


def _dot_products(query: Tensor, key: Tensor) -> Tensor:
    """Every query times every key, in float32 at least, also where autocast would have less."""
    wide = torch.promote_types(torch.promote_types(query.dtype, key.dtype), torch.float32)
    device = query.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return query.to(wide) @ key.to(wide).transpose(-2, -1)
    return query.to(wide) @ key.to(wide).transpose(-2, -1)


def softmax(scores: Tensor, dim: int = -1, *, overwrite: bool = False) -> Tensor:
    """Turn scores into shares that are never negative and sum to 1: exponentiate, then divide by the sum.

    The largest score along ``dim`` is subtracted first. That cancels in the division, and keeps every
    exponent at or below zero, so that nothing overflows however large the scores are.

    Parameters
    ----------
    scores : any shape, floating. float16 and bfloat16 are computed in float32 and rounded once, at the end.
    dim : the dimension along which the shares sum to 1.
    overwrite : the scores aren't needed any more, and their memory may be used.

    Returns
    -------
    Same shape and dtype as ``scores``. A score of -inf gets a share of exactly 0. Where every score along
    ``dim`` is -inf there is nothing to share out: the shares are zeros, with a gradient of zeros, where
    ``torch.softmax`` gives NaN for both. A score of NaN or +inf makes its row NaN, as in torch.

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
        return scores.clone()  # no keys, no shares
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))

    # a constant of its row, so no gradient flows through it; 0 where all is -inf, as -inf - -inf would be NaN
    largest = wide.detach().amax(dim, keepdim=True)
    largest = largest.masked_fill(largest == -math.inf, 0.0)

    shifted = wide.sub_(largest) if overwrite else wide - largest
    exponentials = shifted.exp_()  # each in [0, 1]
    return _normalise(exponentials, dim).to(scores.dtype)


def _softmax_with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Softmax over the keys and one score more, whose share nobody gets: (..., Tq, Tk) -> (..., Tq, Tk)."""
    sink = sinks.to(scores.dtype)[..., None, None].expand(*scores.shape[:-1], 1)  # (...) -> (..., Tq, 1)
    return softmax(torch.cat([scores, sink], dim=-1), dim=-1, overwrite=True)[..., :-1]


def naive_softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """The softmax as it is defined, to show why nobody computes it so. Used nowhere else.

    exp overflows to inf above 88.7 in float32 (709.7 in float64), and inf / inf is NaN. With all scores below
    -104 (-746) every exponential is 0, and 0 / 0 is NaN. :func:`softmax` has neither fault.

    Parameters
    ----------
    scores : any shape, floating.
    dim : the dimension along which the shares sum to 1.

    Returns
    -------
    Same shape as ``scores``; right while every score is small.

    References
    ----------
    Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate", equation 6.

    Examples
    --------
    >>> naive_softmax(torch.tensor([100.0, 0.0])).tolist()
    [nan, 0.0]
    """
    exponentials = torch.exp(scores)
    return exponentials / exponentials.sum(dim, keepdim=True)


def renormalised_causal(weights: Tensor) -> Tensor:
    """The other route to a causal matrix: zero the future in finished weights, then rescale the rows.

    Nothing leaks from the future. Its scores are in the denominator of all kept weights alike, and cancel:
    this is the softmax over the kept scores. Masking with -inf before the softmax gives the same matrix in
    one pass, and is what this package does. It is also the safer route: where a future key had almost all of
    the weight, what is left here has lost digits, or has underflowed to 0.

    Parameters
    ----------
    weights : (..., num_queries, num_keys), computed without a mask.

    Returns
    -------
    (..., num_queries, num_keys): 0 wherever :func:`~attention.causal_mask` forbids, rows that sum to 1. A row
    with nothing left is zeros.
    """
    allowed = causal_mask(weights.size(-2), weights.size(-1), device=weights.device)
    return _normalise(weights.masked_fill(~allowed, 0.0), dim=-1)


def dropout(weights: Tensor, p: float) -> Tensor:
    """Zero each weight with probability p, and multiply the survivors by 1 / (1 - p).

    The factor keeps every entry's expected value, so that nothing has to change when dropout is off. Two
    things look like faults and aren't: a row no longer sums to 1, and now and then a whole row is lost.

    Parameters
    ----------
    weights : any shape, floating.
    p : probability of being dropped, from 0 to 1; with 1 all are.

    Returns
    -------
    Same shape and dtype as ``weights``.

    Raises
    ------
    ValueError : if ``p`` isn't between 0 and 1.

    References
    ----------
    Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", section 4,
    and section 10 for scaling the survivors up in training instead of the weights down afterwards. Their p
    is the probability of being kept.
    """
    check_probability(p)
    survives = torch.empty_like(weights, dtype=torch.bool).bernoulli_(1.0 - p)
    return weights * survives * (1.0 / (1.0 - p) if p < 1.0 else 0.0)


def check_probability(p: float) -> None:
    """ValueError unless ``p``, a dropout rate, is a probability."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout is a probability, between 0 and 1; got {p}")


def _normalise(parts: Tensor, dim: int) -> Tensor:
    """Divide by the sum along ``dim``; where all parts are 0 they stay 0. The parts may be overwritten."""
    total = parts.sum(dim, keepdim=True)
    total = total.masked_fill(total == 0.0, 1.0)
    return parts / total if parts.requires_grad else parts.div_(total)


def _check(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, sinks: Tensor | None
) -> None:
    """Refuse what doesn't fit before anything is computed, naming the shapes."""
    dtypes = {query.dtype, key.dtype, value.dtype}
    # under autocast torch brings them to one dtype itself
    alike = len(dtypes) == 1 or torch.is_autocast_enabled(query.device.type)
    if not alike or not all(dtype.is_floating_point for dtype in dtypes):
        got = f"{query.dtype}, {key.dtype}, {value.dtype}"
        raise TypeError(f"query, key and value must be of one floating dtype; got {got}")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(f"query, key and value must be (..., positions, width); got {shapes}")
    if query.size(-1) != key.size(-1) or query.size(-1) == 0:
        raise ValueError(f"query and key must be equally wide, and at least 1 wide; got {shapes}")
    if key.size(-2) != value.size(-2):
        raise ValueError(f"there must be one value for each key; got {shapes}")
    leading = _broadcast(query.shape[:-2], key.shape[:-2])
    if leading is None or _broadcast(leading, value.shape[:-2]) is None:
        raise ValueError(f"the leading dimensions of query, key and value must broadcast; got {shapes}")

    if mask is not None:
        require_bool(mask)
    if bias is not None and not bias.is_floating_point():
        raise TypeError(f"a bias is added to the scores and must be floating; got {bias.dtype}")
    scores_shape = torch.Size((*leading, query.size(-2), key.size(-2)))
    goals = (("mask", mask, scores_shape), ("bias", bias, scores_shape), ("sinks", sinks, leading))
    for name, tensor, goal in goals:
        if tensor is not None and _broadcast(tensor.shape, goal) != goal:
            raise ValueError(f"{name} {tuple(tensor.shape)} doesn't broadcast to {tuple(goal)}; {shapes}")


def _broadcast(first: torch.Size, second: torch.Size) -> torch.Size | None:
    """The shape that two shapes broadcast to; None if they don't."""
    try:
        return torch.broadcast_shapes(first, second)  # type: ignore[no-untyped-call,no-any-return]
    except RuntimeError:
        return None
