"""Attention by nested loops: the independent reference.

Slow, and meant to be. One query at a time, one key at a time, Python's own numbers (float64), ``math.exp``.
Nothing is shared with :mod:`attention.functional`, so that when the two agree, they agree for a reason.
"""

from __future__ import annotations

import math
from operator import mul

import torch
from torch import Tensor


def attention_by_loops(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T * scale + M) V, by an outer loop over queries and an inner loop over keys.

    It takes about num_queries * num_keys * (head_dim + value_dim) steps of plain Python. Queries don't
    depend on each other: a few rows of the query can be passed alone, with the same rows of the mask.

    Parameters
    ----------
    query : (..., num_queries, head_dim)
    key : (..., num_keys, head_dim)
    value : (..., num_keys, value_dim)
        The leading dimensions are the same for all three, and may be none.
    mask : bool, broadcastable to (..., num_queries, num_keys), True = may attend. A query that may attend to
        nothing gets zeros.
    scale : what the scores are multiplied with; ``1 / sqrt(head_dim)`` if not given.

    Returns
    -------
    weights : (..., num_queries, num_keys), float64, on the CPU.
    output : (..., num_queries, value_dim), float64, on the CPU.

    Raises
    ------
    ValueError : if leading dimensions, widths of query and key, or numbers of keys and values differ.

    References
    ----------
    Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate", section
    3.1, equations 6 (shares of the scores) and 5 (weighted sum), with the scores of Vaswani et al. 2017,
    equation 1.
    """
    same_leading = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    if not same_leading or query.size(-1) != key.size(-1) or key.size(-2) != value.size(-2):
        shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        raise ValueError(f"query, key and value don't fit together: {shapes}")
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1))

    weights_shape = (*query.shape[:-1], key.size(-2))  # (..., Tq, Tk)
    output_shape = (*query.shape[:-1], value.size(-1))  # (..., Tq, dv)
    allowed = torch.ones(weights_shape) if mask is None else mask.expand(weights_shape)

    weights: list[list[float]] = []  # one row per query, of all matrices in turn
    output: list[list[float]] = []
    matrices = zip(_matrices(query), _matrices(key), _matrices(value), _matrices(allowed), strict=True)
    for queries, keys, values, allowed_rows in matrices:
        columns = list(zip(*values, strict=True))  # Tk rows of dv -> dv columns of Tk
        for query_row, allowed_row in zip(queries, allowed_rows, strict=True):
            scores = [
                scale * sum(map(mul, query_row, key_row)) if may_attend else -math.inf
                for key_row, may_attend in zip(keys, allowed_row, strict=True)
            ]
            shares = _shares(scores)
            weights.append(shares)
            output.append([sum(map(mul, shares, column)) for column in columns])

    return (
        torch.tensor(weights, dtype=torch.float64).reshape(weights_shape),
        torch.tensor(output, dtype=torch.float64).reshape(output_shape),
    )


def _shares(scores: list[float]) -> list[float]:
    """Exponentiate each score, counted from the largest, and divide by the sum; all -inf gives zeros."""
    largest = max(scores)
    if largest == -math.inf:
        return [0.0] * len(scores)
    exponentials = [math.exp(score - largest) for score in scores]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


def _matrices(tensor: Tensor) -> list[list[list[float]]]:
    """(..., rows, columns) -> a list of matrices, each a list of rows of Python numbers."""
    matrices: list[list[list[float]]]
    matrices = tensor.detach().cpu().double().reshape(-1, *tensor.shape[-2:]).tolist()
    return matrices
