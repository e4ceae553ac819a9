"""Compute in full precision, without gradients, and with plain words where memory is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from probe.errors import ProbeError


@contextmanager
def computing(device: torch.device, shape: tuple[int, ...]) -> Iterator[None]:
    """Compute something of an input of this shape, precisely and without gradients.

    Raises
    ------
    ProbeError
        If the device's memory doesn't suffice.
    """
    what = f"an input of shape {shape}: give a shorter one"
    with memory_explained(device, what), precise(device), torch.no_grad():
        yield


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


@contextmanager
def memory_explained(device: torch.device, what: str) -> Iterator[None]:
    """A ProbeError in place of what torch says when memory is full."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # CUDA has a class for it, the CPU and MPS only words.
        full = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not full and not any(words in str(error) for words in ("DefaultCPUAllocator", "out of memory")):
            raise
        raise ProbeError(
            f"The memory of {device} does not suffice for {what}.", None if device.type == "cpu" else "cpu"
        ) from None
