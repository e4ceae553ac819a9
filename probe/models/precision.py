"""Full precision, whatever the program around has set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def precise(device: torch.device) -> Iterator[None]:
    """Compute in the dtype of the tensors, to its last place; afterwards everything is set as before.

    Autocast, and the TF32 and bfloat16 shortcuts of float32 products, are faster, not other mathematics; an
    error of 1e-3 would not stand out among theirs.
    """
    precision = torch.get_float32_matmul_precision()
    if precision == "highest" and not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
