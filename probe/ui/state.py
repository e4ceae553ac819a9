"""What a visitor is looking at, and the results that are kept for it.

A visitor's own state is a ``Session``: the sentence and the names of the two models, a few hundred bytes that
Gradio keeps for that visitor alone. The results are a function of text and model only; they are kept in one
store for all visitors, bounded in memory, and computed again when they have been dropped.
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch

import probe
from probe.analyses.masks import rerun_masked
from probe.errors import Surface
from probe.models.hub import download
from probe.models.loading import available, is_here
from probe.running.recording import Recording
from probe.running.tokens import Text
from probe.ui import limits

DEFAULT_TEXT = "The trophy doesn't fit in the suitcase because it is too big."
DEFAULT_QUERY = "it"
DEFAULT_MODELS = ("bert", "gpt2")
DEFAULT_HEADS = ((3, 1), (3, 5))
"""Two heads that show something: one finds what a pronoun stands for, one looks at the token before."""
KEPT_BYTES = 512 * 2**20
"""Memory for kept results; at least the newest one is kept, whatever its size."""
KEPT_MODELS = 4
KEPT_REFUSALS = 32
KEPT_MASKED = 4
"""Runs under the other mask that are kept: two models, for two visitors at a time."""
UNEXPECTED = "Something went wrong on the server, and was logged. Try another text."


@dataclass(frozen=True)
class Session:
    """What one visitor ran last.

    Attributes
    ----------
    text, second : the sentence, and the second one ("" for none).
    models : the names of the two models.
    truncate : cut a text that is longer than a model takes.
    """

    text: str = DEFAULT_TEXT
    second: str = ""
    models: tuple[str, str] = DEFAULT_MODELS
    truncate: bool = False


@dataclass(frozen=True)
class Focus:
    """What one visitor has pointed out.

    Attributes
    ----------
    queries : for each model the position of the chosen query token; None for the page's own choice.
    slot : the model whose numbers are followed step by step.
    key : position of the chosen key token, or None.
    """

    queries: tuple[int | None, int | None] = (None, None)
    slot: int = 0
    key: int | None = None

    def chose(self, slot: int, query: int, key: int | None = None) -> Focus:
        """The same with another query for one model."""
        queries = (query, self.queries[1]) if slot == 0 else (self.queries[0], query)
        return Focus(queries, slot, key)


@dataclass(frozen=True)
class Options:
    """How the maps are shown.

    Attributes
    ----------
    hide_special : leave out special tokens.
    words : put the tokens of a word together.
    average : "head", or the mean over all heads of the "layer", or of "all" layers.
    whole_model : the other mask in every layer, not in this one only.
    """

    hide_special: bool = False
    words: bool = False
    average: str = "head"
    whole_model: bool = False

    @property
    def of_tokens(self) -> Options:
        """The part that every map over tokens goes by."""
        return Options(hide_special=self.hide_special, words=self.words)


@dataclass(frozen=True)
class Asked:
    """What single views are asked beside that, as it stands in their own controls.

    Attributes
    ----------
    first, second : the texts of "Two sentences".
    from_word, to_word, versus : what the finder of "Heads" looks for.
    how, heads : what heads give instead in "Effect", and which ones; "" for the chosen one.
    drawing : bertviz's "head" or "model" view.
    pair_model, source, target : of "Source and target"; no model at first.
    kind, pair_layer, pair_head, pair_drawing : which of its heads is shown there, and bertviz's view of it.
    """

    first: str = "This coffee is great."
    second: str = "My laptop just died, great."
    from_word: str = "it"
    to_word: str = "trophy"
    versus: str = "suitcase"
    how: str = "zero"
    heads: str = ""
    drawing: str = "head"
    pair_model: str = ""
    source: str = "translate English to German: The house is wonderful."
    target: str = "Das Haus ist wunderbar."
    kind: str = "cross"
    pair_layer: int = 0
    pair_head: int = 0
    pair_drawing: str = "head"

    @classmethod
    def of(cls, values: Sequence[object]) -> Asked:
        """From what the page sends for each field, whatever that is."""
        usual = [field.default for field in fields(cls)]
        return cls(*(_like(one, value) for one, value in zip(usual, values, strict=True)))


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

    @property
    def title(self) -> str:
        """The model's full name; of one that can't be had, the name that was asked for."""
        return full_name(self.name) if self.comparison is None else self.comparison.model.name

    @property
    def shown_query(self) -> int:
        """The query that is marked: the visitor's choice, else the last token with a letter or digit."""
        if self.query is not None or self.comparison is None:
            return self.query or 0
        encoding = self.comparison.encoding
        if encoding.text == DEFAULT_TEXT and DEFAULT_QUERY in encoding.tokens:
            return encoding.tokens.index(DEFAULT_QUERY)
        words = [
            i
            for i, (token, special) in enumerate(zip(encoding.tokens, encoding.special, strict=True))
            if not special and any(char.isalnum() for char in token)
        ]
        return words[-1] if words else len(encoding) - 1


_TAKEN_APART = ("masks", "steps", "effect")
"""The views that need to know where a model's weights lie."""


@dataclass(frozen=True)
class Screen:
    """Everything a view needs to show itself."""

    session: Session
    halves: tuple[Half, Half]
    focus: Focus = Focus()
    options: Options = Options()
    view: str = "compare"
    asked: Asked = Asked()

    def stamp(self, half: Half) -> str:
        """Tells this result from every other one; comes back from the page once it is painted."""
        return f"{self.view} {half.layer}.{half.head} {digest(self.session, half.name, self.options)}"

    def shows(self, half: Half) -> bool:
        """Whether the view in sight has something of this model to show."""
        if half.comparison is None:
            return False
        return self.view not in _TAKEN_APART or half.comparison.model.has_sites

    def place(self, asked: Asked) -> Place:
        """What a view that draws by itself is to draw; ``asked`` of its own controls, the rest as usual."""
        half = self.halves[self.focus.slot]
        return Place(self.view, self.session, half.slot, half.layer, half.head, self.options.of_tokens, asked)


@dataclass(frozen=True)
class Place:
    """What a view draws by itself, in a few bytes that Gradio can keep for each visitor.

    It is drawn again when this changes, so what makes no difference to a view is left as usual.

    Attributes
    ----------
    view : the view's name.
    session : what was run.
    slot, layer, head : the model that is looked at, and its head.
    options : how tokens are shown.
    asked : what the view's own controls ask.
    """

    view: str
    session: Session
    slot: int
    layer: int = 0
    head: int = 0
    options: Options = Options()
    asked: Asked = Asked()

    def half(self) -> Half:
        """The model's kept result."""
        return look(self.session, self.slot, self.layer, self.head, None)

    def stamp(self, *more: object) -> str:
        """Tells what is drawn here from everything else; ``more`` tells several pictures apart."""
        return f"{self.view} {self.layer}.{self.head} {digest(self, more)}"


def digest(*what: object) -> str:
    """A short name for values."""
    return hashlib.sha256(repr(what).encode("utf-8", "replace")).hexdigest()[:12]


@dataclass(eq=False)
class _Load:
    """A model on its way, how many wait for it, and whether they have given up."""

    model: Future[probe.Model] = field(default_factory=Future)
    wanted_by: int = 0
    given_up: threading.Event = field(default_factory=threading.Event)


_Key = tuple[str, Text, bool, str | None]


class Store:
    """Models and comparisons, each computed once and kept as long as there is room."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        # By model, text, whether to cut it, and what a decoder is to produce.
        self._comparisons: OrderedDict[_Key, tuple[probe.Comparison, int]] = OrderedDict()
        self._masked: OrderedDict[tuple[str, Text, bool], Recording] = OrderedDict()
        self._loads: dict[tuple[str, torch.dtype], _Load] = {}
        self._refusals: OrderedDict[str, Exception] = OrderedDict()
        self._models: OrderedDict[tuple[str, torch.dtype], probe.Model] = OrderedDict()
        # Held while a model is run: two runs at once would be slower than one after the other.
        self._work = threading.RLock()
        self._books = threading.Lock()

    def model(self, name: object, *texts: object, dtype: torch.dtype = torch.float32) -> probe.Model:
        """The model, from memory or from this machine.

        This is where the limits of the page hold, for every view, file and endpoint.

        Parameters
        ----------
        texts : everything written that the model is to be asked about.

        Raises
        ------
        ProbeError
            If it can't be had, or is not on this machine: only ``loading`` downloads. If its name or a text
            is beyond the limits.
        """
        name = limits.check_model(name)
        for text in texts:
            limits.check_text(text)
        key = (name, dtype)
        with self._books:
            if key in self._models:
                self._models.move_to_end(key)
                return self._models[key]
        if not self.at_hand(name):
            raise self._refusal(name)
        with self.loading(name, dtype) as load:
            return load.result()

    @contextmanager
    def loading(self, name: str, dtype: torch.dtype = torch.float32) -> Iterator[Future[probe.Model]]:
        """A model that is being loaded in the background, and downloaded before if need be.

        Whoever leaves the block no longer wants it. When the last one has left, a download that is under way
        ends.
        """
        key = (name, dtype)
        with self._books:
            load = self._loads.get(key)
            if load is None:
                load = self._loads[key] = _Load()
                threading.Thread(target=self._load, args=(key, load), daemon=True).start()
            load.wanted_by += 1
        try:
            yield load.model
        finally:
            with self._books:
                load.wanted_by -= 1
                if not load.wanted_by:
                    load.given_up.set()
                    self._loads.pop(key, None)

    def _load(self, key: tuple[str, torch.dtype], load: _Load) -> None:
        name, dtype = key
        try:
            if not self.at_hand(name):
                download(name, load.given_up)
            with self._books:
                model = self._models.get(key)
            if model is None:
                model = probe.load(name, dtype=dtype, device=limits.device())
        except Exception as error:
            with self._books:
                # A load that was given up says nothing about the model.
                if not load.given_up.is_set():
                    self._refusals[name] = error
                while len(self._refusals) > KEPT_REFUSALS:
                    self._refusals.popitem(last=False)
            load.model.set_exception(error)
            return
        with self._books:
            self._models[key] = model
            while len(self._models) > KEPT_MODELS:
                self._models.popitem(last=False)
        load.model.set_result(model)

    def at_hand(self, name: str) -> bool:
        """Whether a model can be had without the network: loaded, bundled, a folder, or in the Hub cache."""
        with self._books:
            if any(loaded == name for loaded, _ in self._models):
                return True
        return is_here(name)

    def _refusal(self, name: str) -> Exception:
        """Why a model that is not at hand can't be shown."""
        with self._books:
            known = self._refusals.get(name)
        return known or probe.ProbeError(
            f'"{name}" is not on this machine yet: choose it in the list of models to download it.'
        )

    def loaded(self, name: str) -> probe.Model | None:
        """The model if it is in memory already."""
        with self._books:
            return self._models.get((name, torch.float32))

    def comparison(
        self, name: str, text: Text, truncate: bool = False, target: str | None = None
    ) -> probe.Comparison:
        """The comparison of one model on one text, from memory or from one run of the model.

        Raises
        ------
        ProbeError
            As for ``model``, or if the model can't take the text.
        """
        sides = text if isinstance(text, tuple) else (text,)
        model = self.model(name, *sides, *(() if target is None else (target,)))
        key = (name.strip(), text, truncate, target)
        with self._books:
            if key in self._comparisons:
                self._comparisons.move_to_end(key)
                return self._comparisons[key][0]
        with self._work:
            with self._books:
                if key in self._comparisons:
                    return self._comparisons[key][0]
            comparison = probe.compare(model, text, target, truncate=truncate)
            with self._books:
                self._comparisons[key] = (comparison, comparison.nbytes)
                while len(self._comparisons) > 1 and self.held_bytes > self._kept_bytes:
                    self._comparisons.popitem(last=False)
            return comparison

    def masked(self, name: str, text: Text, truncate: bool = False) -> Recording:
        """The run of a kept comparison's text under the mask that the model was not trained with."""
        key = (name, text, truncate)
        with self._work:
            if key not in self._masked:
                self._masked[key] = rerun_masked(self.comparison(*key).recording)
                while len(self._masked) > KEPT_MASKED:
                    self._masked.popitem(last=False)
            return self._masked[key]

    @property
    def held_bytes(self) -> int:
        """Memory that the kept comparisons take, about."""
        return sum(size for _, size in self._comparisons.values())


STORE = Store()


def explain(error: Exception, surface: Surface = "page") -> str:
    """One sentence: the error's own if it was written for people, else a general one, and a log entry."""
    if isinstance(error, probe.ProbeError):
        return error.told(surface)
    traceback.print_exception(error, file=sys.stderr)
    return UNEXPECTED


def look(session: Session, slot: int, layer: float | None, head: float | None, query: int | None) -> Half:
    """One half of the page; a model that refuses gives a half with its sentence instead of a result."""
    name = str(session.models[slot])
    try:
        model = STORE.model(name, session.text, session.second)
        name = name.strip()
        comparison = STORE.comparison(name, _text_for(session, model), session.truncate)
        return Half(
            slot,
            name,
            within(layer, model.num_layers),
            within(head, model.num_heads),
            query if query is not None and 0 <= query < len(comparison.encoding) else None,
            comparison,
        )
    except Exception as error:
        place = within(layer, _LARGEST), within(head, _LARGEST)
        return Half(slot, name[: limits.MAX_NAME], *place, None, None, explain(error))


def full_name(name: str) -> str:
    """What a short name stands for here; any other name as it is."""
    return next((row["model"] for row in available() if row["name"] == name), name)


def _text_for(session: Session, model: probe.Model) -> Text:
    """The sentence, or the pair where there is a second one and the model takes pairs."""
    return (session.text, session.second) if session.second.strip() and model.has_pairs else session.text


def _like(usual: Any, value: object) -> Any:
    """A value of the same type: a text that is none becomes an empty one, and a number stays in range."""
    if isinstance(usual, str):
        return value if isinstance(value, str) else ""
    return within(value, _LARGEST)


_LARGEST = 1000  # layers or heads, where no model says how many there are


def within(value: object, count: int) -> int:
    """A whole number from 0 to below ``count``, whatever the page sends."""
    wanted = int(value) if isinstance(value, int | float) and math.isfinite(value) else 0
    return min(max(wanted, 0), count - 1)


def warm_up() -> None:
    """Load the default models and compute the first view, so that the first visitor need not wait for it."""
    for slot, (layer, head) in enumerate(DEFAULT_HEADS):
        look(Session(), slot, layer, head, None)
