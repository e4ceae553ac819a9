"""Attention by nested loops: the independent reference.

Slow, and meant to be. One query at a time, one key at a time, numbers of Python (float64), ``math.exp``: nothing here
is shared with :mod:`attention.functional`, so that when the two agree, they agree for a reason.
"""

from __future__ import annotations

import math
from operator import mul

import torch
from torch import Tensor


def attention_by_loops(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T * scale + M) V, an outer loop over queries and an inner loop over keys.

    The cost is num_queries * num_keys * (head_dim + value_dim) steps of plain Python. Any rows of the query can be
    passed alone, with the same rows of the mask: queries don't depend on each other.

    Parameters
    ----------
    query : (..., num_queries, head_dim)
    key : (..., num_keys, head_dim)
    value : (..., num_keys, value_dim)
        The leading dimensions are the same for all three, and may be none.
    mask : bool, broadcastable to (..., num_queries, num_keys), True = may attend. A query that may attend to nothing
        gets zeros.
    scale : what the scores are multiplied with; ``1 / sqrt(head_dim)`` if not given.

    Returns
    -------
    weights : (..., num_queries, num_keys) float64, on the CPU.
    output : (..., num_queries, value_dim) float64, on the CPU.

    Raises
    ------
    ValueError : if the leading dimensions differ.

    References
    ----------
    Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate", section 3.1,
    equations 6 (shares of scores) and 5 (the weighted sum), with the scores of Vaswani et al. 2017, equation 1.
    """
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        raise ValueError(f"the loops take the same leading dimensions for all three; got {shapes}")

    scores_shape = (*query.shape[:-1], key.size(-2))  # (..., Tq, Tk)
    output_shape = (*query.shape[:-1], value.size(-1))  # (..., Tq, dv)
    allowed = torch.ones(scores_shape, dtype=torch.bool) if mask is None else mask.expand(scores_shape)
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1))

    # leading dimensions become one: a list of matrices, each a list of rows
    matrices = zip(_matrices(query), _matrices(key), _matrices(value), _matrices(allowed), strict=True)
    weights, output = [], []
    for queries, keys, values, allowed_rows in matrices:
        columns = list(zip(*values, strict=True))  # value_dim lists, each num_keys long
        for query_row, allowed_row in zip(queries, allowed_rows, strict=True):
            row = _shares([scale * sum(map(mul, query_row, key_row)) for key_row in keys], allowed_row)
            weights.append(row)
            output.append([sum(map(mul, row, column)) for column in columns])

    return (
        torch.tensor(weights, dtype=torch.float64).reshape(scores_shape),
        torch.tensor(output, dtype=torch.float64).reshape(output_shape),
    )


def _shares(scores: list[float], allowed: list[float]) -> list[float]:
    """Exponentiate and divide by the sum, over the allowed scores only; the others get 0."""
    largest = max((score for score, may in zip(scores, allowed, strict=True) if may), default=0.0)
    exponentials = [math.exp(score - largest) if may else 0.0 for score, may in zip(scores, allowed, strict=True)]
    total = sum(exponentials) or 1.0  # nothing allowed: zeros stay zeros
    return [exponential / total for exponential in exponentials]


def _matrices(tensor: Tensor) -> list[list[list[float]]]:
    """(..., rows, columns) -> a list of matrices in Python numbers."""
    rows: list[list[list[float]]] = tensor.detach().cpu().double().reshape(-1, *tensor.shape[-2:]).tolist()
    return rows
