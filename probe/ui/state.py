"""What a visitor is looking at: a few hundred bytes that Gradio keeps for that visitor alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.ui import limits

DEFAULT_TEXT = "The trophy doesn't fit in the suitcase because it is too big."
DEFAULT_QUERY = "it"
DEFAULT_MODELS = ("bert", "gpt2")
DEFAULT_HEADS = ((3, 1), (3, 5))
"""Two heads that show something: one finds what a pronoun stands for, one looks at the token before."""
LARGEST = 1000
"""Layers or heads, where no model says how many there are."""


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
    """

    hide_special: bool = False
    words: bool = False


@dataclass(frozen=True)
class Param:
    """Something that a view asks in a control of its own, and that its address says.

    Attributes
    ----------
    name : what it is called in ``Asked``; no two views may use one.
    address : what it is called in an address.
    default : what the control holds at first: a text, a number from 0, or whether something is ticked.
    choices : what a text may be; anything if there are none.
    ticked : what an address says where it is ticked.
    """

    name: str
    address: str
    default: str | int | bool
    choices: tuple[str, ...] = ()
    ticked: str = ""

    def fitting(self, value: object) -> str | int | bool:
        """A value of the right type and range, whatever the page sends."""
        if isinstance(self.default, bool):
            return bool(value)
        if isinstance(self.default, int):
            return within(value, LARGEST)
        if not isinstance(value, str) or (self.choices and value not in self.choices):
            return self.default if self.choices else ""
        return value

    def read(self, written: str) -> str | int | bool:
        """A value from an address; what makes no sense is the default."""
        if isinstance(self.default, bool):
            return written == self.ticked
        if isinstance(self.default, int):
            number = position(written)
            return self.default if number is None else number
        fits = len(written) <= limits.MAX_CHARACTERS and (not self.choices or written in self.choices)
        return written if fits else self.default

    def write(self, value: object) -> str:
        """A value as an address says it."""
        return self.ticked if value is True else str(value)


# Every one by its name, filled in by the views.
PARAMS: dict[str, Param] = {}


class Asked:
    """What single views are asked beside the rest, by the names of their ``Param``; the rest is as usual.

    >>> Asked(how="mean").how
    'mean'
    """

    def __init__(self, **values: Any) -> None:
        unknown = set(values) - set(PARAMS)
        if unknown:
            raise TypeError(f"no view asks for {', '.join(sorted(unknown))}")
        self._values = {name: value for name, value in values.items() if value != PARAMS[name].default}

    @classmethod
    def of(cls, values: Iterable[object]) -> Asked:
        """From what the page sends for each ``Param`` in order, whatever that is."""
        return cls(
            **{one.name: one.fitting(value) for one, value in zip(PARAMS.values(), values, strict=True)}
        )

    def __getattr__(self, name: str) -> Any:
        if name not in PARAMS:
            raise AttributeError(name)
        return self._values.get(name, PARAMS[name].default)

    def changed(self, **values: Any) -> Asked:
        """The same with other values."""
        return Asked(**{**self._values, **values})

    def only(self, *names: str) -> Asked:
        """These alone, and the rest as usual."""
        return Asked(**{name: value for name, value in self._values.items() if name in names})

    @property
    def values(self) -> list[Any]:
        """A value for each ``Param`` in order."""
        return [getattr(self, name) for name in PARAMS]

    @property
    def unusual(self) -> Mapping[str, Any]:
        """Those that are not as usual."""
        return self._values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Asked) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values.items())))

    def __repr__(self) -> str:
        return f"Asked({', '.join(f'{name}={value!r}' for name, value in sorted(self._values.items()))})"


@dataclass(frozen=True)
class Address:
    """What an address asks for."""

    session: Session
    heads: tuple[tuple[int, int], tuple[int, int]]
    focus: Focus
    view: str
    options: Options
    asked: Asked = field(default_factory=Asked)


def digest(*what: object) -> str:
    """A short name for values."""
    return hashlib.sha256(repr(what).encode("utf-8", "replace")).hexdigest()[:12]


def within(value: object, count: int) -> int:
    """A whole number from 0 to below ``count``, whatever the page sends."""
    wanted = int(value) if isinstance(value, int | float) and math.isfinite(value) else 0
    return min(max(wanted, 0), count - 1)


def position(written: str) -> int | None:
    """A whole number of at most four digits, or None."""
    return int(written) if written.isascii() and written.isdigit() and len(written) < 5 else None
