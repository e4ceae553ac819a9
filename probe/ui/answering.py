"""Answering: what every question goes through, be it the page's or a program's, and by whichever route.

A question is looked at before it is taken, waits for its turn, and is answered; what goes wrong is told in a
sentence.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr
from gradio.block_function import BlockFunction

import probe
from probe.ui import limits, turns
from probe.ui.store import explain

MAX_AT_ONCE = 24
"""Questions of one visitor that are under way or wait."""
MAX_AT_ADDRESS = 96
"""Questions from one address that are under way or wait."""
MAX_SENT = 1_200_000
"""Numbers, and characters of texts, in one question; Gradio keeps all of it for the visitor."""
MAX_DEPTH = 8

_UNFIT = (
    "What was sent is not what is asked for here. Open the page again; what programs can ask is under "
    '"Use via API" at its foot.'
)


class _Told(dict[str, Any]):
    """What an event says of itself, where a handler looks for what is not said."""

    def __missing__(self, key: str) -> Any:
        raise probe.ProbeError(_UNFIT)


class Answering(gr.Blocks):
    """Blocks whose every function is called in turn, and whose every error is a sentence."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._under_way: Counter[str] = Counter()
        # One visitor's questions of a kind are answered one after the other, so that the last one stays.
        self._lanes: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def queue(self, *args: Any, **options: Any) -> Answering:
        # Turns are taken below, by visitor; Gradio would have them taken by question.
        super().queue(*args, **{"default_concurrency_limit": None, **options})
        return self

    async def process_api(  # type: ignore[override]  # Gradio calls it by names
        self,
        block_fn: BlockFunction | int,
        inputs: list[Any],
        *,
        request: Any = None,
        session_hash: str | None = None,
        event_id: str | None = None,
        event_data: Any = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Answer one question, or give the next piece of an answer."""
        function = self.fns[block_fn] if isinstance(block_fn, int) else block_fn
        stopped = threading.Event()
        visitor = session_hash or event_id or ""
        gone = functools.partial(self._gone, stopped, event_id)
        question = turns.Question(_address(request), visitor, gone)
        lane = self._lanes.setdefault((visitor, str(function.concurrency_id)), asyncio.Lock())
        try:
            _check_size(inputs)
            with self._counted(question), turns.asking(question):
                async with lane:
                    answer: dict[str, Any] = await super().process_api(
                        function,
                        inputs,
                        request=request,
                        session_hash=session_hash,
                        event_id=event_id,
                        event_data=_checked_event(event_data),
                        **options,
                    )
                    return answer
        except asyncio.CancelledError:
            stopped.set()
            raise
        except turns.Left:
            raise gr.Error("Nobody waits for this any more.", print_exception=False) from None
        except gr.Error:
            raise
        except Exception as error:
            raise gr.Error(explain(error), print_exception=False) from None

    def _gone(self, stopped: threading.Event, event_id: str | None) -> bool:
        """Whether nobody waits for an answer any more."""
        if stopped.is_set():
            return True
        event = None if event_id is None else self._queue.event_ids_to_events.get(event_id)
        return event is not None and not event.alive

    @contextmanager
    def _counted(self, question: turns.Question) -> Iterator[None]:
        """Refuse a question of someone who has too many under way."""
        visitor, address = f"visitor {question.visitor}", f"address {question.address}"
        if self._under_way[visitor] >= MAX_AT_ONCE:
            raise probe.ProbeError(
                f"You have {MAX_AT_ONCE} questions under way here: wait for one of their answers first."
            )
        if self._under_way[address] >= MAX_AT_ADDRESS:
            raise probe.ProbeError("There are too many questions under way: ask again in a minute.")
        self._under_way.update((visitor, address))
        try:
            yield
        finally:
            self._under_way.subtract((visitor, address))
            self._under_way = +self._under_way

    async def preprocess_data(self, block_fn: BlockFunction, inputs: list[Any], *args: Any) -> list[Any]:
        """The values of a question, if they are what the components of the page hold."""
        function = self.fns[block_fn] if isinstance(block_fn, int) else block_fn
        try:
            for block, value in zip(function.inputs, inputs, strict=False):
                _check_value(block, value)
            values: list[Any] = await super().preprocess_data(block_fn, inputs, *args)
        except (gr.Error, probe.ProbeError):
            raise
        except Exception:  # whatever a component says of a value that isn't one of its own
            raise probe.ProbeError(_UNFIT) from None
        return values

    async def call_function(self, block_fn: BlockFunction | int, *args: Any, **options: Any) -> Any:
        """Call a function when it is its turn."""
        function = copy.copy(self.fns[block_fn] if isinstance(block_fn, int) else block_fn)
        function.fn = _in_turn(function.fn)
        return await super().call_function(function, *args, **options)


def _in_turn(function: Any) -> Any:
    """A function that waits for its turn; one that gives several answers, for each of them."""
    if function is None or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return function
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def answers(*args: Any, **named: Any) -> Iterator[Any]:
            rest = function(*args, **named)
            try:
                while True:
                    with turns.turn():
                        try:
                            answer = next(rest)
                        except StopIteration:
                            return
                    yield answer
            finally:
                rest.close()

        return answers

    @functools.wraps(function)
    def answer(*args: Any, **named: Any) -> Any:
        with turns.turn():
            return function(*args, **named)

    return answer


def _address(request: Any) -> str:
    """Where a question comes from; on a Space as the proxy in front of it says."""
    request = request[0] if isinstance(request, list) and request else request
    headers, client = getattr(request, "headers", None), getattr(request, "client", None)
    forwarded = str(headers.get("x-forwarded-for", "")) if limits.on_space() and headers else ""
    return forwarded.split(",")[-1].strip() or str(getattr(client, "host", ""))


def _check_size(inputs: object) -> None:
    """Refuse what is larger or deeper than anything the page sends, before any of it is looked at closely."""
    size = 0
    pending: list[tuple[object, int]] = [(inputs, 0)]
    while pending:
        value, depth = pending.pop()
        size += len(value) if isinstance(value, str) else 1
        if size > MAX_SENT:
            raise probe.ProbeError(
                f"More than {MAX_SENT:,} characters were sent at once; a text may have at most "
                f"{limits.MAX_CHARACTERS:,}, and there may be at most {limits.MAX_TEXTS}. Give less."
            )
        if isinstance(value, dict | list):
            if depth >= MAX_DEPTH:
                raise probe.ProbeError(_UNFIT)
            parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            pending += [(part, depth + 1) for part in parts]


def _checked_event(event: Any) -> Any:
    """An event, if what it says of itself is a plain value, which is not looked at, or a few by name."""
    if event is None:
        return None
    plain = str, bool, int, float, type(None)
    told = {} if isinstance(event._data, plain) else event._data
    if not isinstance(told, dict) or not all(isinstance(value, plain) for value in told.values()):
        raise probe.ProbeError(_UNFIT)
    event._data = _Told(told)
    return event


def _check_value(block: Any, value: Any) -> None:
    """Refuse a value that the component of the page doesn't hold.

    Gradio fetches a file by the address that is given for it, in whatever component it is given.
    """
    if block.stateful or value is None:
        return
    if isinstance(block, gr.UploadButton):
        path = value.get("path") if isinstance(value, dict) else None
        fits = isinstance(path, str) and "://" not in path
    elif isinstance(block, gr.Slider):
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    elif isinstance(block, gr.Checkbox):
        fits = isinstance(value, bool)
    elif isinstance(block, gr.Radio):
        fits = isinstance(value, str | bool)
    elif isinstance(block, gr.Textbox | gr.Dropdown):
        fits = isinstance(value, str)
    else:
        fits = not _names_file(value)
    if not fits:
        raise probe.ProbeError(_UNFIT)


def _names_file(value: object) -> bool:
    """Whether a file is named anywhere in a value, in Gradio's way."""
    if isinstance(value, dict):
        return "path" in value or any(map(_names_file, value.values()))
    return isinstance(value, list) and any(map(_names_file, value))
