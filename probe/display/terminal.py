"""Results as text for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as Line
from torch import Tensor

from probe.display.data import Table


def text(lines: Iterable[str], tables: Sequence[Table]) -> str:
    """Sentences, a line each, and tables below them."""
    parts = ["\n".join(lines) + "\n"]
    for table in tables:
        parts.append("\n" + (f"{table.title}\n\n" if table.title else "") + rendered(table))
    return "".join(parts).rstrip("\n")


def rendered(table: Table) -> str:
    """A table as plain text, as wide as it needs to be, with its notes below it."""
    grid = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in table.columns:
        # As a Text, for a name in brackets would be taken for markup.
        grid.add_column(
            Line(column.heading),
            justify="left" if column.is_text and not column.right else "right",
            no_wrap=True,
        )
    for row in zip(*(column.written() for column in table.columns), strict=True):
        grid.add_row(*map(Line, row))
    output = io.StringIO()
    Console(file=output, width=100_000, color_system=None, legacy_windows=False).print(grid)
    written = "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"
    return written + ("\n" + "\n".join(table.notes) + "\n" if table.notes else "")


def digits(value: float | Tensor) -> str:
    """A number with seven significant digits."""
    return f"{float(value):#.7g}"
