"""One question asked of several texts: each answer, and the mean of what can be averaged, with its spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from probe.analyses.result import Result
from probe.display.data import Axis, Column, Numbers, Panel, PanelKind, Sheet, Table, heads_panel
from probe.display.nonfinite import descending
from probe.errors import ProbeError
from probe.models.loading import Model, resolve
from probe.running.inputs import encode_all
from probe.running.tokens import Encoding, Text

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Averaging(Result, what=""):
    """A result with numbers that can be averaged over texts; a subclass says which."""

    # The columns of ``averages`` that say what a row is of, the one that rows are ranked by, and how those
    # are drawn that have a scale of their own: a "weight" from 0 to 1, a "change" from -1 to 1.
    averaged_by: ClassVar[tuple[str, ...]] = ("layer", "head")
    ranked_by: ClassVar[str | None] = None
    scales: ClassVar[Mapping[str, PanelKind]] = {}

    @property
    def question(self) -> str:
        """What was asked of the text, in a few words."""
        raise NotImplementedError

    @property
    def problem(self) -> str | None:
        """A sentence where its numbers are none, if its remarks don't say so; else None."""
        return None

    def averages(self) -> Table:
        """The numbers that mean the same in every text, with the same rows for every text."""
        return self.table()


Each = TypeVar("Each", bound=Averaging)


@dataclass(frozen=True)
class Mean:
    """A number over several texts.

    Attributes
    ----------
    mean : of the texts that have it; None if none has.
    spread : its standard deviation over them, with n - 1; None for fewer than two.
    count : how many texts have it.
    """

    mean: float | None
    spread: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        """The mean of numbers, None where a text has none; NaN where one of them is NaN.

        >>> Mean.of([1.0, None, 2.0, 6.0])
        Mean(mean=3.0, spread=2.6457513110645907, count=3)
        """
        numbers = np.array([value for value in values if value is not None], dtype=np.float64)
        with np.errstate(invalid="ignore"):  # of infinities
            mean = float(numbers.mean()) if numbers.size else None
            spread = float(numbers.std(ddof=1)) if numbers.size > 1 else None
        return cls(mean, spread, numbers.size)

    def __str__(self) -> str:
        if self.mean is None:
            return ""
        if not math.isfinite(self.mean):
            return "not a number" if math.isnan(self.mean) else "infinite"
        return f"{self.mean:.4g}" if self.spread is None else f"{self.mean:.4g} ± {self.spread:.2g}"


@dataclass(frozen=True)
class Row:
    """Means that belong together: those of one head, say. ``row["entropy"].mean`` is one of them.

    Attributes
    ----------
    place : what it is of: {"layer": 3, "head": 5}.
    means : by the names of the numbers.
    """

    place: Mapping[str, int]
    means: Mapping[str, Mean]

    def __getitem__(self, name: str) -> Mean:
        return self.means[name]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {**self.place, **{name: asdict(mean) for name, mean in self.means.items()}}


@dataclass(frozen=True, eq=False, repr=False)
class OverTexts(Result, Generic[Each], what=""):
    """What an analysis found on each of several texts, and the means over them.

    Given by ``measure_heads``, ``distances``, ``rollout``, ``find_heads``, ``ablate`` and ``rank_heads`` for
    a list of texts; the results themselves can be indexed and iterated over. Averaged is what means the same
    in every text: the numbers of a head or of a layer. A map is not, for the cells of two texts are of other
    tokens.

    Attributes
    ----------
    results : one for each text, in order.
    rows : the means, those of a search or a ranking with the largest first, NaN last.

    Examples
    --------
    >>> over = probe.measure_heads("gpt2", ["The cat sat.", "A dog ran away."])  # doctest: +SKIP
    >>> over.at(layer=3, head=5)["entropy"].mean, over[0].heads[0].entropy  # doctest: +SKIP
    """

    also_in_dict = ("summary",)

    results: tuple[Each, ...]
    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Each:
        return self.results[index]

    def __iter__(self) -> Iterator[Each]:
        return iter(self.results)

    def at(self, **place: int) -> Row:
        """The means of one place: ``at(layer=3, head=5)``; of one that holds a single row ``at()``.

        Raises
        ------
        ProbeError
            If there is no such place.
        """
        for row in self.rows:
            if row.place == place:
                return row
        names = " and ".join(self.results[0].averaged_by) or "nothing"
        raise ProbeError(f"There is no {place} in these means, whose rows are named by {names}.")

    def ranked(self, name: str, *, ascending: bool = False) -> tuple[Row, ...]:
        """The rows by the mean of one number, by its name or title, largest first; those without it last.

        Raises
        ------
        ProbeError
            If there is no such number.
        """
        columns = self._columns
        found = next((one.name for one in columns if name in (one.name, one.heading)), None)
        if found is None:
            raise ProbeError(
                f"There is no measure {name!r}; there are {', '.join(one.heading for one in columns)}."
            )
        with_it = [row for row in self.rows if row[found].mean is not None]
        without = [row for row in self.rows if row[found].mean is None]
        sign = -1.0 if ascending else 1.0
        return (*sorted(with_it, key=lambda row: descending(sign * (row[found].mean or 0.0))), *without)

    # ---- as a result

    @property
    def kind(self) -> type[Result]:
        return type(self.results[0])

    @property
    def all_texts(self) -> tuple[Text, ...]:
        return tuple(text for one in self.results for text in one.all_texts)

    @property
    def all_tokens(self) -> tuple[str, ...]:
        return tuple(token for one in self.results for token in one.all_tokens or ())

    @property
    def cuts(self) -> tuple[str, ...]:
        return self._by_text([one.cuts for one in self.results])

    @property
    def arguments(self) -> dict[str, Any]:
        truncate = {"truncate": True} if self.cuts else {}
        return self.results[0].arguments | {"text": list(self.all_texts)} | truncate

    @property
    def summary(self) -> str:
        """How much was asked, and the first of a ranking, in one line."""
        line = f"{self._title}, {len(self.all_tokens)} tokens; means over texts"
        ranked_by = self.results[0].ranked_by
        if ranked_by is None:
            return f"{line}."
        first = self.rows[0]
        where = "".join(f"{name} {number}, " for name, number in first.place.items())
        return f"{line}. {'The first: ' if where else ''}{where}{ranked_by} {first[ranked_by]}."

    @property
    def _title(self) -> str:
        texts = "1 text" if len(self) == 1 else f"{len(self)} texts"
        return f"{self.model_name} ({self.source}), {self.results[0].question}, {texts}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said of every text once, the rest with its text."""
        problems = [(one.problem,) if one.problem else () for one in self.results]
        pairs = zip(problems, self.results, strict=True)
        return self._by_text([(*problem, *one.remarks) for problem, one in pairs])

    def _by_text(self, said: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """The sentences of each text, with its number where they are not those of all."""
        of_all = [line for line in said[0] if all(line in lines for lines in said) and len(said) > 1]
        alone = [
            f"{_which(index, len(said))}: {line}" if len(said) > 1 else line
            for index, lines in enumerate(said)
            for line in lines
            if line not in of_all
        ]
        return (*of_all, *alone)

    @property
    def _columns(self) -> list[Column]:
        """The columns of numbers that are averaged, as the results have them."""
        by = self.results[0].averaged_by
        return [one for one in self.results[0].averages().columns if one.name not in by]

    def _places(self, rows: Sequence[Row]) -> list[Column]:
        return [Column(name, [row.place[name] for row in rows]) for name in self.results[0].averaged_by]

    def blocks(self) -> Numbers:
        """The means, and every number of each text."""
        of_texts = {
            f"text_{index}_{name}": block
            for index, one in enumerate(self.results)
            for name, block in one.blocks().items()
        }
        return super().blocks() | of_texts

    def table(self) -> Table:
        """A row for each place, in order: the mean, the spread and the count of each number."""
        rows = sorted(self.rows, key=lambda row: tuple(row.place.values()))
        means = [
            Column(f"{one.name}_{part}", [getattr(row[one.name], part) for row in rows])
            for one in self._columns
            for part in ("mean", "spread", "count")
        ]
        return Table((*self._places(rows), *means))

    def printed(self) -> tuple[Table, ...]:
        """The rows as they are ordered here: "mean ± spread", and the count where it isn't that of texts."""
        columns = []
        for one in self._columns:
            means = [row[one.name] for row in self.rows]
            if not any(mean.count for mean in means):
                continue
            cells = [f"{mean}{f' ({mean.count})' if 0 < mean.count < len(self) else ''}" for mean in means]
            columns.append(Column(one.name, cells, one.title, right=True))
        spread = (
            "mean ± standard deviation over texts (with n - 1); in brackets how many texts have a number, "
            "where not all have."
        )
        notes = spread, *self.results[0].averages().notes
        return (Table((*self._places(self.rows), *columns), notes=notes),)

    def _sheet(self) -> Sheet:
        """For each number the means and the spreads; where there is one row, the number of each text."""
        by = self.results[0].averaged_by
        panels: list[Panel] = []
        for column in self._columns:
            name, heading = column.name, column.heading
            if not by:
                each = [_rows(one)[()][name] for one in self.results]
                panels += _bars(heading, each, "text", "on each text")
                continue
            means = [row[name].mean for row in self.rows]
            spreads = [row[name].spread for row in self.rows]
            of_mean, of_spread = "mean over texts", "standard deviation over texts"
            if by == ("layer", "head"):
                places = [(row.place["layer"], row.place["head"]) for row in self.rows]
                scale = self.results[0].scales.get(name)
                numbers = dict(zip(places, means, strict=True))
                kind, ends = scale or "weight", scale is not None
                panels.append(heads_panel(f"{heading}, mean", numbers, of_mean, kind=kind, up_to_one=ends))
                if any(spread is not None for spread in spreads):
                    numbers = dict(zip(places, spreads, strict=True))
                    panels.append(heads_panel(f"{heading}, spread", numbers, of_spread, up_to_one=False))
            else:
                panels += _bars(f"{heading}, mean", means, by[0], of_mean)
                panels += _bars(f"{heading}, spread", spreads, by[0], of_spread)
        return Sheet(self._title, tuple(panels), (self.summary,))


def _bars(title: str, values: Sequence[float | None], rows: str, note: str) -> list[Panel]:
    """Bars, which begin at 0: none where a number is missing or negative, which is for the table."""
    if any(value is None or value < 0 for value in values):
        return []
    numbers = torch.tensor(values, dtype=torch.float64)
    axes = Axis.numbered(rows, len(values)), Axis("", (title,))
    return [Panel(title, title, numbers, *axes, "bars", note)]


_Numbers = dict[str, float | None]


def _rows(result: Averaging) -> dict[tuple[int, ...], _Numbers]:
    """The numbers of one text that are averaged, by what they are of."""
    columns: dict[str, Sequence[Any]] = {one.name: list(one.cells) for one in result.averages().columns}
    places = [columns.pop(name) for name in result.averaged_by]
    return {
        tuple(one[row] for one in places): {name: cells[row] for name, cells in columns.items()}
        for row in range(len(result.averages()))
    }


def over_texts(results: Sequence[Each]) -> OverTexts[Each]:
    """The means of results of one kind, of the same model, for one text each."""
    first, tables = results[0], [_rows(one) for one in results]
    rows = [
        Row(
            dict(zip(first.averaged_by, place, strict=True)),
            {name: Mean.of([table[place][name] for table in tables]) for name in numbers},
        )
        for place, numbers in tables[0].items()
    ]
    over = OverTexts(tuple(results), tuple(rows), origin=first.origin)
    if first.ranked_by is None:
        return over
    return OverTexts(over.results, over.ranked(first.ranked_by), origin=first.origin)


def ask_each(
    model: Model | str,
    text: Text | Sequence[Text],
    ask: Callable[[Model, Encoding], Each],
    *,
    truncate: bool,
    progress: Progress | None = None,
) -> Each | OverTexts[Each]:
    """What ``ask`` finds on a text; of a list of texts the same on each, and the means.

    All texts are looked at before the first is run. ``progress`` is called with the number of texts done and
    their number.

    Raises
    ------
    ProbeError
        As ``ask``, or if a text can't be taken; of several it names the one it is about.
    """
    model = resolve(model)
    encodings = encode_all(model, text, truncate=truncate)
    if isinstance(text, (str, tuple)):
        return ask(model, encodings[0])
    results, total = [], len(encodings)
    for index, encoding in enumerate(encodings):
        try:
            results.append(ask(model, encoding))
        except ProbeError as error:
            raise (error.about(_which(index, total)) if total > 1 else error) from None
        if progress is not None:
            progress(index + 1, total)
    return over_texts(results)


def _which(index: int, count: int) -> str:
    """A text of several in words, counted from 0."""
    return f"Text {index} of {count}"
