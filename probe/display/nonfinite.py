"""Results that are no numbers: what to say of them, and where they stand in an order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor


def nonfinite(model_name: str, values: Iterable[Tensor | float | None]) -> str | None:
    """One sentence if any of the numbers is NaN or infinite, else None; a None among them is let pass."""
    if all(value is None or _finite(value) for value in values):
        return None
    return (
        f"{model_name} computes numbers here that are not finite (NaN or infinity), so nothing can be read "
        "from them: its weights hold such numbers, or its own numbers grow too large for its dtype."
    )


def descending(value: float) -> tuple[bool, float]:
    """A key to sort by: the largest number first, and what is not finite last."""
    return (False, -value) if math.isfinite(value) else (True, 0.0)


def _finite(value: Tensor | float) -> bool:
    return bool(value.isfinite().all()) if isinstance(value, Tensor) else math.isfinite(value)
