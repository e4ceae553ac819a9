"""What is kept for all visitors: models and comparisons, each made once and dropped when room is needed.

Results are a function of text and model only: they are made again when they have been dropped.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

import probe
from probe.analyses.masks import rerun_masked
from probe.errors import Surface
from probe.models.hub import download
from probe.models.names import available, is_here, stands_for
from probe.running.recording import Recording
from probe.running.tokens import Text
from probe.ui import limits, turns

KEPT_BYTES = 128 * 2**20
"""Memory for kept results; at least the newest one is kept, whatever its size."""
KEPT_MODELS = 4
KEPT_REFUSALS = 32
UNEXPECTED = "Something went wrong on the server, and was logged. Try another text."


@dataclass(eq=False)
class _Load:
    """A model on its way, how many wait for it, and whether they have given up."""

    model: Future[probe.Model] = field(default_factory=Future)
    wanted_by: int = 0
    given_up: threading.Event = field(default_factory=threading.Event)


_Result = TypeVar("_Result", probe.Comparison, Recording)


class Store:
    """Models and comparisons, each computed once and kept as long as there is room."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._results: OrderedDict[Hashable, probe.Comparison | Recording] = OrderedDict()
        self._loads: dict[tuple[str, torch.dtype], _Load] = {}
        self._refusals: OrderedDict[str, Exception] = OrderedDict()
        self._models: OrderedDict[tuple[str, torch.dtype], probe.Model] = OrderedDict()
        self._books = threading.Lock()

    def model(
        self,
        name: object,
        *texts: object,
        dtype: torch.dtype = torch.float32,
        each_head: bool = False,
    ) -> probe.Model:
        """The model, from memory or from this machine.

        This is where the limits of the page hold, for every view, file and endpoint.

        Parameters
        ----------
        texts : everything written that the model is to be asked about.
        each_head : whether it is to be run once for each of its heads.

        Raises
        ------
        ProbeError
            If it can't be had, or is not on this machine: only ``loading`` downloads. If its name, a text or
            the work with all texts is beyond the limits.
        """
        name = limits.check_model(name)
        checked = [limits.check_text(text) for text in texts]
        model = self._kept((name, dtype))
        if model is None:
            if not self.at_hand(name):
                raise self._refusal(name)
            with self.loading(name, dtype) as load, turns.away():
                model = load.result()
        if limits.check_work(model, checked, each_head=each_head) > limits.MUCH_WORK:
            turns.much()
        return model

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
            model = self._kept(key)
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
            if dtype == torch.float32 or not limits.on_space():  # a Space has no room for models twice
                self._models[key] = model
            while len(self._models) > KEPT_MODELS:
                self._models.popitem(last=False)
        load.model.set_result(model)

    def at_hand(self, name: str) -> bool:
        """Whether a model can be had without the network: bundled, a folder, or in the Hub cache."""
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
        return self._kept((name, torch.float32))

    def _kept(self, key: tuple[str, torch.dtype]) -> probe.Model | None:
        """The model in memory, unless its name has come to stand for another since it was loaded."""
        now = stands_for(key[0])
        with self._books:
            model = self._models.get(key)
            if model is None or model.identity != now:
                return None
            self._models.move_to_end(key)
            return model

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
        key = (model.identity, text, truncate, target)
        return self._result(key, lambda: probe.compare(model, text, target, truncate=truncate))

    def masked(self, name: str, text: Text, truncate: bool = False) -> Recording:
        """The run of a kept comparison's text under the mask that the model was not trained with."""
        recording = self.comparison(name, text, truncate).recording
        key = (recording.model.identity, text, truncate, "masked")
        return self._result(key, lambda: rerun_masked(recording))

    def _result(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """A kept result, or one that is made now; those that nobody has asked for longest make room."""
        with self._books:
            kept = self._results.get(key)
            if kept is not None:
                self._results.move_to_end(key)
                return kept  # type: ignore[return-value]
        result = make()
        with self._books:
            self._results[key] = result
            while len(self._results) > 1 and self.held_bytes > self._kept_bytes:
                self._results.popitem(last=False)
        return result

    @property
    def held_bytes(self) -> int:
        """Memory that the kept results take, about."""
        return sum(result.nbytes for result in self._results.values())


STORE = Store()


def explain(error: Exception, surface: Surface = "page") -> str:
    """One sentence: the error's own if it was written for people, else a general one, and a log entry."""
    if isinstance(error, probe.ProbeError):
        return error.told(surface)
    traceback.print_exception(error, file=sys.stderr)
    return UNEXPECTED


def full_name(name: str) -> str:
    """What a short name stands for here; any other name as it is."""
    return next((row["model"] for row in available() if row["name"] == name), name)
