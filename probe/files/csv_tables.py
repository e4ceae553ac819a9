"""Tables as CSV files that spreadsheets and programs read alike.

UTF-8 with a byte order mark, as Excel wants it, lines ended as RFC 4180 says. Tokens are written as
``[position] token``: a cell that begins with a bracket is never taken for a formula, a date or a fraction.
Numbers have all their digits.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from probe.display.data import Axis, Cell, Panel, Sheet, Table
from probe.running.tokens import visible


def csv_bytes(table: Table) -> bytes:
    """A table as the content of a CSV file, with all digits of its numbers.

    ``float(cell)`` is the number to the last bit; one that isn't finite is written as nan or inf.
    """
    rows = zip(*(column.cells for column in table.columns), strict=True)
    return table_csv([column.name for column in table.columns], map(_plain_cells, rows))


def sheet_csv(sheet: Sheet) -> bytes:
    """The numbers of a sheet as the content of a CSV file: a row for each cell of its panels.

    Panels over the same rows and columns stand side by side; others below them. No two columns have one name.
    Axes without a name, as bars have one, have empty cells; no columns, if no panel's axis there has a name.
    """
    rows: list[list[Cell]] = []
    titles = _titles(sheet.panels)
    names = _name(panel.rows for panel in sheet.panels), _name(panel.columns for panel in sheet.panels)
    by_axes: dict[tuple[Axis, Axis], list[int]] = {}
    for place, panel in enumerate(sheet.panels):
        by_axes.setdefault((panel.rows, panel.columns), []).append(place)
    for (queries, keys), places in by_axes.items():
        for i, (query, name) in enumerate(zip(queries.index, queries.labels, strict=True)):
            for j, (key, other) in enumerate(zip(keys.index, keys.labels, strict=True)):
                cells: list[Cell] = [None] * len(titles)
                for place in places:
                    values = sheet.panels[place].values
                    cells[place] = float(values[i] if values.dim() == 1 else values[i, j])
                place_of_row = [query, name] if queries.name else [None, None]
                place_of_column = [key, other] if keys.name else [None, None]
                rows.append(
                    [*(place_of_row if names[0] else []), *(place_of_column if names[1] else []), *cells]
                )
    header = [title for name in names if name for title in (name, f"{name} label")]
    return table_csv([*header, *titles], rows)


def _name(axes: Iterable[Axis]) -> str:
    """What rows or columns of several panels are called: "token or word"; "" where none has a name."""
    names = dict.fromkeys(axis.name for axis in axes if axis.name)
    # A "query in both" is a query too.
    return " or ".join(name for name in names if not any(name.startswith(f"{one} ") for one in names))


def _titles(panels: Sequence[Panel]) -> list[str]:
    """What each panel's numbers are called: by their short name, where that is one panel's alone."""
    short = Counter(panel.short for panel in panels)
    titles = [panel.short if short[panel.short] == 1 else panel.title for panel in panels]
    return [
        title if titles.count(title) == 1 else f"{title}, panel {place}"
        for place, title in enumerate(titles, start=1)
    ]


def _plain_cells(row: Sequence[Any]) -> list[Cell]:
    """Numbers of numpy as Python's; NaN in a column of measures is nothing."""
    return [cell.item() if isinstance(cell, np.generic) else cell for cell in row]


def table_csv(header: Sequence[str], rows: Iterable[Sequence[str | float | int | bool | None]]) -> bytes:
    """Any table as the content of a CSV file.

    Text cells hold no line breaks and never start a formula; None becomes an empty cell; numbers keep all
    their digits.

    Raises
    ------
    ValueError
        If a row is not as long as the header.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for row in (header, *rows):
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells under a header of {len(header)}: {list(row)!r}")
        writer.writerow([_cell(value) for value in row])
    # A file's name may hold bytes that are no text: they are spelled out.
    return buffer.getvalue().encode("utf-8-sig", errors="backslashreplace")


def _cell(value: str | float | int | bool | None) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value)
    # Line breaks and other control characters become visible ones, as on screen.
    text = "".join(visible(one) if unicodedata.category(one) in {"Cc", "Zl", "Zp"} else one for one in value)
    # Spreadsheets compute what begins with one of these; the full-width forms count too, in some of them.
    return f"'{text}" if text[:1] in set("=+-@＝＋－＠") else text
