"""Maps as CSV files that spreadsheets and programs read alike.

UTF-8 with a byte order mark, as Excel wants it, lines ended as RFC 4180 says. The first row names the keys
and the first column the queries, as ``[position] token``: a cell that begins with a bracket is never taken
for a formula, a date or a fraction. All other cells are numbers with all their digits.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence

from torch import Tensor

from probe.running.tokens import visible
from probe.running.words import Words

CORNER = "query \\ key"


def map_csv(weights: Tensor, shown: Words, keys: Words | None = None) -> bytes:
    """One map as the content of a CSV file: a row for each query, a column for each key.

    Parameters
    ----------
    weights : (T, T) [query, key] over the tokens, weights or differences.
    shown : tokens or words: ``single_tokens(run)``, ``group_words(encoding)``.
    keys : those of the keys, where they are of another text than the queries (cross-attention).

    Raises
    ------
    ProbeError
        If the map isn't one of that text.

    Notes
    -----
    ``float(cell)`` is the weight to the last bit. A number that isn't finite is written as nan or inf.
    """
    rows = zip(_names(shown), shown.weights(weights, keys).tolist(), strict=True)
    return table_csv([CORNER, *_names(keys or shown)], ([name, *row] for name, row in rows))


def _names(shown: Words) -> list[str]:
    return [f"[{index}] {label}" for index, label in zip(shown.index, shown.labels, strict=True)]


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
