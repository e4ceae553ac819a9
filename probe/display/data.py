"""What every face shows, as plain data: tables of columns, and sheets of panels. Nothing here draws.

A terminal, a spreadsheet, a notebook, a picture in a file and the figure on the page all take the same tables
and sheets; a result says what is in them, and knows none of those.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from probe.running.words import Words

# Blocks of numbers by their names.
Numbers = dict[str, np.ndarray]
Cell = float | int | str | bool | None
PanelKind = Literal["weight", "difference", "change", "mask", "bars"]


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a table.

    Attributes
    ----------
    name : what it is called in files.
    cells : one for each row: numbers, or text; None where there is nothing.
    title : what it is called for people; the name by default.
    digits : how a number is written for people, as a format: ".1e", ".4f". In files all digits are kept.
    right : whether its text stands at the right for people, as numbers do.
    """

    name: str
    cells: Sequence[Cell] | np.ndarray
    title: str = ""
    digits: str = ""
    right: bool = False

    @property
    def heading(self) -> str:
        """What stands above it for people."""
        return self.title or self.name

    @property
    def is_text(self) -> bool:
        """Whether it holds words."""
        return isinstance(next((cell for cell in self.cells if cell is not None), None), str)

    def written(self) -> list[str]:
        """The cells as people read them."""
        return [_written(cell, self.digits) for cell in self.cells]


def _written(cell: Cell, digits: str) -> str:
    if cell is None:
        return ""
    if isinstance(cell, (str, bool)):
        return str(cell)
    if math.isnan(cell):
        return "not a number"
    return format(cell, digits)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length, a title above them for people ("" for none), and what must be known of them."""

    columns: tuple[Column, ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.columns[0].cells) if self.columns else 0

    def head(self, rows: int) -> Table:
        """Its first rows."""
        return replace(self, columns=tuple(replace(one, cells=one.cells[:rows]) for one in self.columns))


@dataclass(frozen=True)
class Axis:
    """The rows or the columns of a panel.

    Attributes
    ----------
    name : what they are: "query", "layer".
    labels : what each is called. They may repeat: rows are told apart by position.
    index : the number of each; counted from 0 if not given.
    """

    name: str
    labels: tuple[str, ...]
    index: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.index:
            object.__setattr__(self, "index", tuple(range(len(self.labels))))

    @classmethod
    def of(cls, name: str, words: Words) -> Axis:
        """Tokens or words as rows or columns."""
        return cls(name, words.labels, words.index)

    @classmethod
    def numbered(cls, name: str, count: int) -> Axis:
        """Layers or heads, say."""
        return cls(name, tuple(map(str, range(count))))


@dataclass(frozen=True, eq=False)
class Panel:
    """One heatmap, or one column of bars.

    Attributes
    ----------
    title : what stands above it.
    short : what stands before a number of it.
    values : (rows, columns); (rows,) for bars.
    rows, columns : what they are called.
    kind : "weight" (0 to 1), "difference" (a logarithmic scale; exactly 0 has a colour of its own), "change"
        (-1 to 1), "mask" (may attend or not) or "bars" (0 to 1, or to the largest if that is more).
    note : a few words more about it.
    masked : (rows, columns), bool, True where the mask forbids attending; hatched where the weight is
        exactly 0. None for nowhere.
    ends : of the scale: of weights 0 and 1 if not given, of differences powers of ten around the values.
    crossed : (rows, columns), bool, cells with a cross, by default those that are no numbers; and what a
        cross means.
    """

    title: str
    short: str
    values: Tensor
    rows: Axis
    columns: Axis
    kind: PanelKind = "weight"
    note: str = ""
    masked: Tensor | None = None
    ends: tuple[float, float] | None = None
    crossed: Tensor | None = None
    crossed_means: str = "not a number"

    def grouped(self, queries: Words, keys: Words) -> Panel:
        """The same over words, or without special tokens, where it is over the tokens they are made of."""
        rows, columns = Axis.of(self.rows.name, queries), Axis.of(self.columns.name, keys)
        if self.kind == "bars":
            return replace(self, values=queries.means(self.values), rows=rows)
        if self.kind == "mask":
            values = queries.weights(self.values.double(), keys) > 0
            return replace(self, values=values, rows=rows, columns=columns)
        masked = None if self.masked is None else masked_words(self.masked, queries, keys)
        values = queries.weights(self.values, keys)
        return replace(self, values=values, masked=masked, rows=rows, columns=columns)


def heads_panel(
    title: str,
    values: Mapping[tuple[int, int], float | None],
    note: str = "",
    *,
    kind: PanelKind = "weight",
    up_to_one: bool = True,
    crossed: Mapping[tuple[int, int], bool] | None = None,
    crossed_means: str = "nothing to measure",
) -> Panel:
    """A number for each head: a row for each layer, a column for each head.

    Parameters
    ----------
    values : by layer and head; None where there is nothing to measure, which is crossed.
    up_to_one : whether the scale is from 0 to 1; else it reaches to the largest number.
    crossed, crossed_means : other cells to cross, and why.
    """
    layers, heads = (1 + max(place[side] for place in values) for side in (0, 1))
    numbers = torch.full((layers, heads), math.nan, dtype=torch.float64)
    marks = torch.zeros(layers, heads, dtype=torch.bool)
    for place, value in values.items():
        numbers[place] = math.nan if value is None else value
        marks[place] = numbers[place].isnan() if crossed is None else crossed[place]
    largest = float(numbers.nan_to_num(0.0, 0.0, 0.0).amax())
    return Panel(
        title,
        title,
        numbers,
        Axis.numbered("layer", layers),
        Axis.numbered("head", heads),
        kind,
        note,
        ends=None if up_to_one or kind == "difference" else (0.0, largest or 1.0),
        crossed=marks,
        crossed_means=crossed_means,
    )


def masked_words(masked: Tensor, queries: Words, keys: Words | None = None) -> Tensor:
    """A mask over tokens, True where attending is forbidden, as one over words.

    Masked are the pairs of words of which no piece may be attended to by any piece.
    """
    return queries.weights((~masked).double(), keys) == 0


@dataclass(frozen=True, eq=False)
class Sheet:
    """Panels that belong together, and what must be said of them.

    Attributes
    ----------
    title : what it is of: the model, the head.
    panels : in the order they are read.
    captions : sentences that belong beside every picture of it: the result in words, what was cut, caveats.
    """

    title: str
    panels: tuple[Panel, ...]
    captions: tuple[str, ...] = ()

    def grouped(self, queries: Words, keys: Words | None = None) -> Sheet:
        """The same over words or without special tokens; what that means for the numbers joins the captions.

        Raises
        ------
        ProbeError
            If a panel isn't over the tokens that the words are made of.
        """
        keys = keys or queries
        panels = tuple(panel.grouped(queries, keys) for panel in self.panels)
        weights = next((panel.values for panel in self.panels if panel.kind == "weight"), None)
        return replace(
            self, panels=panels, captions=(*self.captions, *grouping_remarks(queries, keys, weights))
        )

    def regrouped(self, groups: Mapping[tuple[str, ...], Words]) -> Sheet:
        """The same with those panels over words that are over the tokens of a text, by those tokens."""
        panels, remarks = [], dict.fromkeys(self.captions)
        for panel in self.panels:
            queries, keys = groups.get(panel.rows.labels), groups.get(panel.columns.labels)
            if queries is not None and (keys is not None or panel.kind == "bars"):
                weights = panel.values if panel.kind == "weight" else None
                remarks |= dict.fromkeys(grouping_remarks(queries, keys or queries, weights))
                panel = panel.grouped(queries, keys or queries)
            panels.append(panel)
        return replace(self, panels=tuple(panels), captions=tuple(remarks))


def grouping_remarks(queries: Words, keys: Words, weights: Tensor | None) -> list[str]:
    """What a reader must know of numbers over words, or without special tokens, from (T, T) weights."""
    remarks = [queries.notice] if queries.notice else []
    if any(end - start > 1 for start, end in (*queries.pieces, *keys.pieces)):
        remarks.append(
            "Words instead of tokens: summed over a key word's pieces, averaged over a query word's."
        )
    if weights is not None and any(
        sum(end - start for start, end in one.pieces) < one.num_tokens for one in (queries, keys)
    ):
        hidden = float((queries.means(weights.sum(-1)) - queries.weights(weights, keys).sum(-1)).mean())
        remarks.append(
            f"Special tokens are left out. They have {hidden:.1%} of a query's weight on average; nothing is "
            "renormalised, so rows sum to less than 1."
        )
    return remarks


@dataclass(frozen=True, eq=False)
class MapSet:
    """Attention maps of one kind of attention over the same queries and keys.

    Attributes
    ----------
    kind : "self"; in a network with an encoder and a decoder "encoder", "decoder" or "cross".
    queries, keys : what the rows and columns are called.
    weights : by layer and head, (num_queries, num_keys) each, on the CPU.
    whose : in words, where several may be meant: "the model's own maps"; else "".
    """

    kind: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: dict[tuple[int, int], Tensor]
    whose: str = ""


CORNER = "query \\ key"


def grid(weights: Tensor, queries: Words, keys: Words | None = None) -> Table:
    """One map as a table: a row for each query, a column for each key, called ``[position] token``.

    Parameters
    ----------
    weights : (T, T) [query, key], over the tokens that ``queries`` and ``keys`` are made of.

    Raises
    ------
    ProbeError
        If the map isn't one of that text.
    """
    keys = keys or queries
    values = queries.weights(weights, keys)
    names = [f"[{index}] {label}" for index, label in zip(queries.index, queries.labels, strict=True)]
    columns = [Column(CORNER, names)]
    for place, (index, label) in enumerate(zip(keys.index, keys.labels, strict=True)):
        columns.append(Column(f"[{index}] {label}", values[:, place].tolist(), f"{index} {label}", ".3f"))
    return Table(tuple(columns))


def array(values: Tensor | float) -> np.ndarray:
    """Numbers, none of them rounded: float64 stays, everything smaller becomes float32."""
    if isinstance(values, float):
        return np.array(values)
    wide = torch.float64 if values.dtype == torch.float64 else torch.float32
    block: np.ndarray = values.detach().cpu().to(wide).numpy()
    return block


def text_block(title: str, words: Iterable[object]) -> Numbers:
    """Text that must stay as it is, as a block without numbers: the SHA-256 of it is in the name."""
    spelled = json.dumps([*map(str, words)]).encode()
    return {f"{title} (text {hashlib.sha256(spelled).hexdigest()[:16]})": np.zeros(0)}
