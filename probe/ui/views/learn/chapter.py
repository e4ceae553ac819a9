"""What a chapter of the course is: a text, what to try, what can be changed, and what comes out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probe.display.data import Axis, Panel, Sheet
from probe.ui.figure import figure


@dataclass(frozen=True)
class Field:
    """An input: a line or lines of text, a slider (``low``, ``high``, ``step``), or one of ``choices``."""

    name: str
    label: str
    value: Any
    lines: int = 1
    range: tuple[float, float, float] | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """What an example shows: HTML made of ``blocks``, and a heatmap where the chapter has one."""

    html: str
    map: dict[str, Any] | None = None


@dataclass(frozen=True)
class Chapter:
    """One step of the ladder.

    Attributes
    ----------
    id, title : of the chapter, a word and a few words.
    text : Markdown with formulas.
    tries : what to change, and what to look at.
    fields : what can be changed.
    show : the values of the fields in, what is shown out; raises ``ProbeError`` with one sentence for the
        reader if a value can't be used.
    has_map : whether ``Shown.map`` is there.
    """

    id: str
    title: str
    text: str
    tries: tuple[str, ...]
    fields: tuple[Field, ...]
    show: Callable[..., Shown]
    has_map: bool = False


def heatmap(
    title: str,
    maps: Sequence[tuple[str, Tensor]],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    masked: Tensor | None = None,
    row: int | None = None,
) -> dict[str, Any]:
    """Maps of weights over the same queries and keys, as the page draws them everywhere."""
    numbers = hashlib.sha256(b"".join(weights.double().numpy().tobytes() for _, weights in maps))
    axes = Axis("query", tuple(queries)), Axis("key", tuple(keys))
    panels = tuple(Panel(name, name, weights, *axes, masked=masked) for name, weights in maps)
    return figure(
        Sheet(title, panels),
        stamp=f"{title} {numbers.hexdigest()[:12]}",
        label=f"{title}. Rows are queries, columns are keys.",
        selected=None if row is None else (row, None),
    )
