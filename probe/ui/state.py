"""What a visitor is looking at, and the results that are kept for it.

A visitor's own state is a ``Session``: the sentence and the names of the two models, a few hundred bytes that
Gradio keeps for that visitor alone. The results are a function of text and model only; they are kept in one
store for all visitors, bounded in memory, and computed again when they have been dropped.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import traceback
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

import torch

import probe
from probe.tokens import Text
from probe.ui import limits

DEFAULT_TEXT = "The trophy doesn't fit in the suitcase because it is too big."
DEFAULT_QUERY = "it"
DEFAULT_MODELS = ("bert", "gpt2")
DEFAULT_HEADS = ((3, 1), (4, 5))
"""Heads of the bundled models that show something: one finds what a pronoun stands for, one the token before."""
KEPT_BYTES = 512 * 2**20
"""Memory for kept results; at least the newest one is kept, whatever its size."""
KEPT_MODELS = 4
UNEXPECTED = "Something went wrong on the server, and was logged. Try another text or model."


@dataclass(frozen=True)
class Session:
    """What one visitor ran last: the text, the second sentence ("" for none), and the two models' names."""

    text: str = DEFAULT_TEXT
    second: str = ""
    models: tuple[str, str] = DEFAULT_MODELS


@dataclass(frozen=True)
class Half:
    """One of the two models on the page.

    Attributes
    ----------
    slot : 0 for the first, 1 for the second.
    name : the name that was asked for.
    layer, head : within the model's range.
    query : position of the chosen query token; None for the page's own choice.
    comparison : the result, or None if there is none; then ``problem`` is one sentence that says why.
    """

    slot: int
    name: str
    layer: int
    head: int
    query: int | None
    comparison: probe.Comparison | None
    problem: str = ""


@dataclass(frozen=True)
class Screen:
    """Everything a view needs to show itself."""

    session: Session
    halves: tuple[Half, Half]
    hide_special: bool = False
    view: str = "compare"

    def stamp(self, half: Half) -> str:
        """Tells this result from every other one; comes back from the page once it is painted."""
        digest = hashlib.sha256(
            repr((self.session, half.name, self.hide_special)).encode("utf-8", "replace")
        ).hexdigest()[:12]
        return f"{self.view} {half.layer}.{half.head} {digest}"


class Store:
    """Models and comparisons, each computed once and kept as long as there is room."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._comparisons: OrderedDict[tuple[str, Text], tuple[probe.Comparison, int]] = OrderedDict()
        self._models: OrderedDict[str, probe.Model] = OrderedDict()
        # Held while a model is loaded or run: two runs at once would be slower than one after the other.
        self._work = threading.RLock()
        self._books = threading.Lock()

    def model(self, name: str) -> probe.Model:
        """The loaded model; raises ``probe.ProbeError`` if it can't be had."""
        with self._books:
            if name in self._models:
                self._models.move_to_end(name)
                return self._models[name]
        with self._work:
            if name not in self._models:
                model = probe.load(name)
                with self._books:
                    self._models[name] = model
                    while len(self._models) > KEPT_MODELS:
                        self._models.popitem(last=False)
            return self._models[name]

    def comparison(self, name: str, text: Text) -> probe.Comparison:
        """The comparison of one model on one text, from memory or from one run of the model."""
        key = (name, text)
        with self._books:
            if key in self._comparisons:
                self._comparisons.move_to_end(key)
                return self._comparisons[key][0]
        with self._work:
            with self._books:
                if key in self._comparisons:
                    return self._comparisons[key][0]
            comparison = probe.compare(self.model(name), text)
            with self._books:
                self._comparisons[key] = (comparison, _size(comparison))
                while len(self._comparisons) > 1 and self.held_bytes > self._kept_bytes:
                    self._comparisons.popitem(last=False)
            return comparison

    @property
    def held_bytes(self) -> int:
        """Memory that the kept comparisons take, about."""
        return sum(size for _, size in self._comparisons.values())


def _size(comparison: probe.Comparison) -> int:
    """Bytes in the tensors of a comparison."""
    recording = comparison.recording
    kept: list[Any] = [recording.logits, *comparison.recomputed]
    for layer in recording.layers:
        kept += [getattr(layer, field.name) for field in fields(layer)]
    return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor))


STORE = Store()


def explain(error: Exception) -> str:
    """One sentence: the error's own if it was written for people, else a general one, and a log entry."""
    if isinstance(error, probe.ProbeError):
        return str(error)
    traceback.print_exception(error, file=sys.stderr)
    return UNEXPECTED


def look(session: Session, slot: int, layer: float | None, head: float | None, query: int | None) -> Half:
    """One half of the page; a model that refuses gives a half with its sentence instead of a result."""
    name = session.models[slot]
    try:
        name = limits.check_model(name)
        limits.check_text(session.text)
        limits.check_text(session.second)
        model = STORE.model(name)
        pair = bool(session.second.strip()) and model.has_pairs
        text = (session.text, session.second) if pair else session.text
        comparison = STORE.comparison(name, text)
        return Half(
            slot,
            name,
            _within(layer, model.num_layers),
            _within(head, model.num_heads),
            query if query is not None and 0 <= query < len(comparison.encoding) else None,
            comparison,
        )
    except Exception as error:
        return Half(
            slot, str(name)[: limits.MAX_NAME], int(layer or 0), int(head or 0), None, None, explain(error)
        )


def _within(value: float | None, count: int) -> int:
    return min(max(int(value or 0), 0), count - 1)
