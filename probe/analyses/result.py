"""What every result has in common: its origin, how it was asked for, and a face wherever it is shown.

A result is described in its own class and nowhere else: its numbers, its table, its sheet of panels, what it
says in a sentence. The faces are written here, once, for all of them: printed text, HTML for notebooks,
strict JSON, a DataFrame, and with every one of them what was cut of the text.
"""

from __future__ import annotations

import inspect
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import transformers
from torch import Tensor

from probe.analyses.asking import asked
from probe.display import terminal
from probe.display.data import Cell, Column, MapSet, Numbers, Sheet, Table
from probe.errors import ProbeError
from probe.models.loading import Model
from probe.running.head_numbers import HeadNumbers
from probe.running.tokens import Encoding, Text
from probe.version import __version__

if TYPE_CHECKING:
    import pandas

Place = tuple[str, int, int]  # kind, layer, head

# Every kind of result by the name that files and the command line know it by.
RESULTS: dict[str, type[Result]] = {}


@cache
def versions() -> dict[str, str]:
    """Of this package and of what it computes with."""
    return {
        "attention-probe": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def device_name(device: torch.device) -> str:
    """The device, with its name if it is a GPU."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


@dataclass(frozen=True)
class Origin:
    """The network that gave a result, and how it was run.

    Attributes
    ----------
    model, source, revision, sha256 : as in ``Model``.
    dtype, device : what it computed in, and on.
    backend : whose attention it ran, "eager" or "sdpa".
    versions : of this package and of what it computes with.
    """

    model: str
    source: str
    revision: str | None
    sha256: str | None
    dtype: str
    device: str
    backend: str
    versions: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, model: Model, backend: str | None = None) -> Origin:
        """Of a run of ``model``; on its own backend unless another is named."""
        return cls(
            model=model.name,
            source=model.source,
            revision=model.revision,
            sha256=model.sha256,
            dtype=str(model.dtype).removeprefix("torch."),
            device=device_name(model.device),
            backend=backend or str(model.hf.config._attn_implementation),
            versions=versions(),
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result:
    """What an analysis found, with its origin. A subclass names itself: ``class Run(Result, what="run")``.

    A subclass holds what it found as fields and says what is in its faces. To be asked for again, it has an
    attribute for each argument of its analysis, or says them in ``_argument``.

    Attributes
    ----------
    origin : the network that gave it, and how it was run.
    """

    origin: Origin

    # The name that files know it by, the function that gives it, and the command that asks for it.
    result_name: ClassVar[str]
    analysis: ClassVar[Callable[..., Any]]
    command: ClassVar[str]
    # What ``to_dict`` has beside the fields, and what it leaves out of them.
    also_in_dict: ClassVar[tuple[str, ...]] = ()
    not_in_dict: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, what: str) -> None:
        super().__init_subclass__()
        if what:  # "" for what several kinds have in common
            cls.result_name = what
            RESULTS[what] = cls

    # ---- what it was made from

    @property
    def kind(self) -> type[Result]:
        """The kind of result that its analysis gives for a text."""
        return type(self)

    @property
    def model_name(self) -> str:
        """The full name of the model."""
        return self.origin.model

    @property
    def source(self) -> str:
        """Where the model's weights were taken from, in words."""
        return self.origin.source

    @property
    def cuts(self) -> tuple[str, ...]:
        """What was cut of the text, a sentence each; empty if nothing was."""
        cut: str | None = getattr(self, "truncated", None)
        return (cut,) if cut else ()

    @property
    def all_texts(self) -> tuple[Text, ...]:
        """The text, or all of them."""
        return (self.text,)  # type: ignore[attr-defined]

    @property
    def all_tokens(self) -> tuple[str, ...] | None:
        """The tokens of the text, or of all texts one after the other; None if there are too many to name."""
        return tuple(self.tokens)  # type: ignore[attr-defined]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, beside the model, of the call of ``analysis`` that gives this; defaults left out."""
        given = {}
        for name, parameter in asked(self.analysis).items():
            value = bool(self.cuts) if name == "truncate" else self._argument(name)
            if parameter.default is inspect.Parameter.empty or value != parameter.default:
                given[name] = value
        return given

    def _argument(self, name: str) -> Any:
        return getattr(self, name)

    @property
    def own_report(self) -> Any:
        """What ``verify`` says of the run that it is of, where it holds that; else None."""
        return None

    @classmethod
    def has(cls, face: str) -> bool:
        """Whether this kind of result has a "_sheet", "map_sets" or "workbook" of its own."""
        return getattr(cls, face) is not getattr(Result, face)

    @property
    def holds_many(self) -> bool:
        """Whether it holds several heads, of which one can be looked at alone."""
        return False

    def only(self, layer: int, head: int, kind: str | None = None) -> Result:
        """The same with one head alone; ``kind`` is for models with an encoder and a decoder.

        Raises
        ------
        ProbeError
            If it has no such head, or none that can be chosen.
        """
        raise ProbeError("layer and head are for a run or a comparison; this result has its own.")

    # ---- what it says

    @property
    def summary(self) -> str:
        """The result in one line."""
        raise NotImplementedError

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that belong beside the summary wherever it is shown: notices, caveats."""
        return ()

    def blocks(self) -> Numbers:
        """Every number that must hold when the result is made again, in named blocks."""
        columns = [one for one in self.table().columns if not one.is_text]
        return {one.name: column_array(one.cells) for one in columns}

    def table(self) -> Table:
        """Its numbers as a table with all their digits."""
        raise NotImplementedError

    def csv_table(self) -> Table:
        """The table of a CSV file: one map as a grid, where it is of one map."""
        return self.table()

    def printed(self) -> tuple[Table, ...]:
        """The tables that people are shown."""
        return (self.table(),)

    def workbook(self) -> HeadNumbers | None:
        """What a workbook that computes a head again is made of, if it holds one."""
        return None

    def map_sets(self) -> tuple[MapSet, ...]:
        """Its attention maps, if it holds some of several heads."""
        return ()

    def _sheet(self) -> Sheet | None:
        return None

    # ---- its faces

    def sheet(self) -> Sheet | None:
        """Its picture as panels, with all that must be said beside it; None if it has none as it is."""
        sheet = self._sheet()
        if sheet is None:
            return None
        said = (*self.remarks, *self.cuts)
        captions = (*sheet.captions, *(line for line in said if line not in sheet.captions))
        return Sheet(sheet.title, sheet.panels, captions)

    def told(self, rows: int | None = None) -> str:
        """The result as text for a terminal; of each table the first ``rows``, by default all."""
        lines = [self.summary, *self.remarks, *self.cuts]
        tables = [table if rows is None else table.head(rows) for table in self.printed()]
        return terminal.text(lines, tables)

    def __str__(self) -> str:
        return self.told()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from probe.display import notebook

        return notebook.html(
            [self.summary, *self.remarks, *self.cuts],
            texts=self.all_texts,
            map_sets=self.map_sets(),
            sheet=self._overview(),
            tables=self.printed(),
        )

    def _overview(self) -> Sheet | None:
        """The picture that a notebook shows."""
        return self._sheet()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists; a number that isn't finite is its name: "nan"."""
        plain: dict[str, Any] = {one.name: getattr(self.origin, one.name) for one in fields(Origin)}
        left_out = {"origin", *self.not_in_dict}
        names = [one.name for one in fields(self) if one.name not in left_out]
        plain |= {name: getattr(self, name) for name in (*names, *self.also_in_dict)}
        strict: dict[str, Any] = strictly_plain(plain)
        return strict

    def to_json(self) -> str:
        """``to_dict`` as strict JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=2)

    def to_frame(self) -> pandas.DataFrame:
        """Its table as a pandas DataFrame.

        Raises
        ------
        ProbeError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ProbeError("A DataFrame needs the library pandas: pip install pandas.") from None
        return pandas.DataFrame({one.name: list(one.cells) for one in self.table().columns})


# ---- plain values


def column_array(cells: Sequence[Cell] | np.ndarray) -> np.ndarray:
    """A column of numbers; NaN where there is none."""
    return np.array([math.nan if cell is None else cell for cell in cells], dtype=np.float64)


def of_text(encoding: Encoding, *names: str) -> dict[str, Any]:
    """What most results take over from the tokens of their text: these fields, and those of ``names``."""
    return {name: getattr(encoding, name) for name in ("text", "tokens", "truncated", *names)}


def named(tokens: Sequence[str]) -> list[str]:
    """Tokens with their positions, as files write them: "[3] cat"."""
    return [f"[{position}] {token}" for position, token in enumerate(tokens)]


def pair_table(queries: Sequence[str], keys: Sequence[str], **maps: Tensor) -> Table:
    """A row for each pair of query and key, a column for each of the (Tq, Tk) maps."""
    return Table(
        (
            Column("query", [query for query in queries for _ in keys]),
            Column("key", [key for _ in queries for key in keys]),
            *(Column(name.replace("_", " "), one.flatten().tolist()) for name, one in maps.items()),
        )
    )


def strictly_plain(value: Any) -> Any:
    """Plain numbers, strings, lists and dicts for strict JSON; a number that isn't finite is its name."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Tensor):
        plain = value.tolist()
        sound = not value.is_floating_point() or bool(value.isfinite().all())
        return plain if sound else strictly_plain(plain)
    if isinstance(value, Mapping):
        return {str(key): strictly_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [strictly_plain(item) for item in value]
    if isinstance(value, Encoding):
        return list(value.tokens)
    if hasattr(value, "to_dict"):
        return strictly_plain(value.to_dict())
    if is_dataclass(value):
        return {one.name: strictly_plain(getattr(value, one.name)) for one in fields(value)}
    return str(value).removeprefix("torch.")


def columns_of(
    rows: Sequence[Any], names: Sequence[str] | Mapping[str, str], digits: str = ""
) -> tuple[Column, ...]:
    """Columns of the attributes ``names`` of each row, with titles where they are given, for people."""
    titles = names if isinstance(names, Mapping) else {}
    return tuple(
        Column(name, [_cell(getattr(row, name)) for row in rows], titles.get(name, ""), digits)
        for name in names
    )


def _cell(value: Any) -> Cell:
    return int(value) if isinstance(value, bool) else value
