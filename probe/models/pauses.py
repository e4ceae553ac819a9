"""Places in long work where it may end, or something else may come in between.

Before each run, and between layers. Nothing happens there unless whoever asked for the work has set what is
to happen; that may raise, and so end the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Between = Callable[[bool], None]
"""Called at a pause, with whether something else may be done now that takes the lock of all runs."""

_between: ContextVar[Between | None] = ContextVar("attention_probe_between", default=None)
_free: ContextVar[bool] = ContextVar("attention_probe_free", default=True)


def pause() -> None:
    """Let the work end here, or something else come in between."""
    between = _between.get()
    if between is not None:
        between(_free.get())


def watched() -> bool:
    """Whether something happens at pauses."""
    return _between.get() is not None


@contextmanager
def pausing(between: Between) -> Iterator[None]:
    """Call ``between`` at every pause of what this thread does in the block."""
    token = _between.set(between)
    try:
        yield
    finally:
        _between.reset(token)


@contextmanager
def locked() -> Iterator[None]:
    """The lock of all runs is held in the block."""
    token = _free.set(False)
    try:
        yield
    finally:
        _free.reset(token)
