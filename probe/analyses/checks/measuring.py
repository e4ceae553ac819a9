"""How far two computations of the same attention are apart, head by head.

What belongs to padded positions is left out as queries: every implementation makes something else of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Places = tuple[tuple[int, int, int], ...]  # (text, query, key), one a head


def real_only(values: Tensor, real: Tensor | None) -> Tensor:
    """0 in place of what belongs to padding: (..., B, anything, T, n); ``real`` is (B, T), None if all is."""
    return values if real is None else values.masked_fill(~real[:, None, :, None], 0.0)


def difference(ours: Tensor, theirs: Tensor, real: Tensor | None) -> Tensor:
    """Absolute difference, 0 for padding."""
    return real_only((ours - theirs).abs_(), real)


def largest_entry(values: Tensor) -> Tensor:
    """(B, H, T, n) -> (H,)."""
    return values.amax(dim=(0, 2, 3))


def largest_norm(vectors: Tensor) -> Tensor:
    """(..., B, H, T, n) -> (..., H)."""
    # In half precision the square of a number can be too large for its dtype.
    wide = torch.promote_types(vectors.dtype, torch.float32)
    return vectors.norm(dim=-1, dtype=wide).amax(dim=(-3, -1))


def compare_maps(
    ours: Tensor, theirs: Tensor, real: Tensor | None, *, forbidden: Tensor | None, sums: Tensor | None = None
) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]:
    """What two computations of the same maps differ by.

    Parameters
    ----------
    ours, theirs : (B, H, Tq, Tk), the weights.
    real : (B, Tq), which queries are no padding; None if all.
    forbidden : (B, 1, Tq, Tk), where a real query must not look; None if nowhere.
    sums : (B, H, Tq, 1), what rows must sum to; 1 by default.

    Returns
    -------
    Numbers, (H,) each: "weights" and "forbidden", the largest difference and forbidden weight; "row", the
    largest sum of differences over a row, and "total", their sum over all rows; "row_sum", how far a row's
    sum is off; "ours" and "theirs", the two weights where the difference is largest. And where that is, as
    indices of the maps, (H,) each.
    """
    num_heads, length = ours.shape[1], ours.shape[2]
    every_head = torch.arange(num_heads, device=ours.device)
    weights = difference(ours, theirs, real)
    of_rows = weights.amax(-1).transpose(0, 1).flatten(1)  # (B, H, Tq, Tk) -> (H, B * Tq)
    worst_of_head, worst_row = of_rows.max(dim=1)
    texts, queries = worst_row // length, worst_row % length
    keys = weights[texts, every_head, queries].argmax(-1)  # (H, Tk) -> (H,)
    worst = texts, every_head, queries, keys

    rows = weights.sum(-1, keepdim=True)
    their_sums = theirs.sum(-1, keepdim=True)
    numbers = {
        "weights": worst_of_head,
        "row": largest_entry(rows),
        "total": rows.sum(dim=(0, 2, 3)),
        "row_sum": largest_entry(
            difference(their_sums, torch.ones_like(their_sums) if sums is None else sums, real)
        ),
        "ours": ours[worst],
        "theirs": theirs[worst],
    }
    if forbidden is not None:
        # A product, being much faster than masked_fill; where a weight is NaN the head fails either way.
        numbers["forbidden"] = largest_entry(theirs * forbidden)
    return numbers, worst


def forbidden_keys(allowed: Tensor | None, real: Tensor | None) -> Tensor | None:
    """Where a real query must not look: (B, 1, Tq, Tk), from where any may; None if it may look anywhere."""
    if allowed is None:
        return None
    return ~allowed if real is None else ~(allowed | ~real[:, None, :, None])


def count_cells(allowed: Tensor | None, real: Tensor, num_keys: int) -> int:
    """How many cells of a map, (B, 1, Tq, Tk), count: real queries with the keys they may attend to."""
    if allowed is None:
        return int(real.sum()) * num_keys
    return int((allowed[:, 0] & real[:, :, None]).sum())


def places(worst: tuple[Tensor, Tensor, Tensor, Tensor]) -> Places:
    """Indices of maps as (text, query, key) for each head."""
    texts, _, queries, keys = (index.tolist() for index in worst)
    return tuple(zip(texts, queries, keys, strict=True))


def fetched(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors of one shape as Python numbers, (H,) as tuples; all are fetched from the device at once."""
    values = torch.stack(list(tensors.values())).tolist()
    plain = [tuple(value) if isinstance(value, list) else value for value in values]
    return dict(zip(tensors, plain, strict=True))
