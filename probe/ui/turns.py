"""Turns: what visitors ask is worked on one at a time, a piece of each: nobody waits for all of another's.

Whoever has had the least is next: among addresses first, then among the visitors of an address, then in the
order of arrival. Work is put aside only at its pauses (``probe.models.pauses``), where it holds no lock, and
ends there when nobody waits for it any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial

from probe.models.pauses import pausing
from probe.ui import limits

LOOK_UP = 0.2
"""Seconds after which whoever waits for a turn looks whether the answer is still wanted."""
REMEMBERED = 10.0
"""Seconds of work by which a visitor who was away may lag behind others; more is forgotten."""
KNOWN = 1000
"""Visitors whose work is remembered."""

_Level = tuple[str, ...]


class Left(BaseException):
    """Nobody waits for the answer any more; not an ``Exception``, which would be told."""


@dataclass(eq=False)
class Question:
    """One thing that a visitor has asked.

    Attributes
    ----------
    address, visitor : where it comes from, and which page or program there.
    gone : whether nobody waits for the answer any more.
    roomy : whether it has the one place for work that needs much memory.
    """

    address: str
    visitor: str
    gone: Callable[[], bool] = lambda: False
    roomy: bool = field(default=False, init=False)

    @property
    def levels(self) -> tuple[_Level, _Level]:
        return (self.address,), (self.address, self.visitor)


_asked: ContextVar[Question | None] = ContextVar("attention_probe_question", default=None)


class Turns:
    """One place for work, given to one question at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._holder: Question | None = None
        self._began = 0.0
        self._waiting: list[Question] = []  # in the order of arrival
        self._used: dict[_Level, float] = {}

    def holds(self, question: Question) -> bool:
        """Whether a question has the turn."""
        return self._holder is question

    def take(self, question: Question) -> None:
        """Wait for a turn.

        Raises
        ------
        Left
            If nobody waits for the answer any more.
        """
        with self._changed:
            self._enter(question)
            self._waiting.append(question)
            try:
                while self._holder is not None or self._next() is not question:
                    if question.gone():
                        raise Left
                    self._changed.wait(LOOK_UP)
                self._holder, self._began = question, self._clock()
            finally:
                self._waiting.remove(question)
                self._changed.notify_all()

    def give(self, question: Question) -> None:
        """Give a turn back, if the question has it."""
        with self._changed:
            if self._holder is question:
                self._charge(question)
                self._holder = None
                self._changed.notify_all()

    def pause(self, question: Question, free: bool = True) -> None:
        """Let others come in between, if they can (``free``) and one of them is to be next.

        Raises
        ------
        Left
            If nobody waits for the answer any more.
        """
        if question.gone():
            raise Left
        if not free:
            return
        with self._changed:
            self._charge(question)
            if not self._waiting or self._order(question) < self._order(self._next()):
                return
        self.give(question)
        self.take(question)

    def _charge(self, question: Question) -> None:
        now = self._clock()
        for level in question.levels:
            self._used[level] = self._used.get(level, 0.0) + now - self._began
        self._began = now

    def _order(self, question: Question) -> tuple[float, ...]:
        return tuple(self._used.get(level, 0.0) for level in question.levels)

    def _next(self) -> Question:
        return min(self._waiting, key=self._order)  # the first of several

    def _enter(self, question: Question) -> None:
        """Someone who comes or comes back is even with whoever here has had the least, or a little behind."""
        active = [*self._waiting, *([self._holder] if self._holder else [])]
        levels = {level for one in active for level in one.levels}
        if len(self._used) > KNOWN:
            self._used = {level: used for level, used in self._used.items() if level in levels}
        for level in question.levels:
            others = [self._used.get(other, 0.0) for other in levels if other[:-1] == level[:-1]]
            if level not in levels and others:
                least = min(others)
                self._used[level] = min(max(self._used.get(level, 0.0), least), least + REMEMBERED)


TURNS = Turns()
ROOM = Turns()
"""The place for work that needs much memory: it is put aside for what needs little, not for its like."""


@contextmanager
def asking(question: Question) -> Iterator[None]:
    """What is done in the block, also by threads that are given its context, is done for this question."""
    token = _asked.set(question)
    try:
        yield
    finally:
        _asked.reset(token)


def apart(work: Callable[[], None]) -> Callable[[], None]:
    """Work for a thread of its own, which takes turns for the question that is being answered here."""
    question = _asked.get()

    def for_it() -> None:
        if question is None:
            work()
            return
        with asking(replace(question)):
            work()

    return for_it


@contextmanager
def turn() -> Iterator[None]:
    """Wait for a turn for the question that is being answered, and have it in the block."""
    question = _asked.get()
    if question is None:
        yield
        return
    TURNS.take(question)
    try:
        with pausing(partial(TURNS.pause, question)):
            yield
    finally:
        TURNS.give(question)
        if question.roomy:
            question.roomy = False
            limits.return_memory()
            ROOM.give(question)


@contextmanager
def away() -> Iterator[None]:
    """Let others have the turn while the block waits for something else than the processor."""
    question = _asked.get()
    if question is None or not TURNS.holds(question):
        yield
        return
    TURNS.give(question)
    try:
        yield
    finally:
        TURNS.take(question)


def much() -> None:
    """What comes needs much memory: wait until nobody else does such work."""
    question = _asked.get()
    if question is not None and not question.roomy:
        with away():
            ROOM.take(question)
            question.roomy = True
