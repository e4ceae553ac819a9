"""What an example shows, as HTML from plain numbers: matrices, sentences and a chart. All text is escaped."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from torch import Tensor

Values = Tensor | Sequence[Sequence[float]]
_MINUS = "−"


def marked(html: str) -> str:
    """Everything an example shows; ``data-painted`` tells one result from another."""
    return f'<div class="ln" data-painted="{hashlib.sha256(html.encode()).hexdigest()[:12]}">{html}</div>'


def number(value: float, digits: int = 4) -> str:
    """A number as it is written on the page."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    written = f"{value:,.{digits}f}"
    if float(written.replace(",", "")) == 0:
        written = written.removeprefix("-")
    return written.replace("-", _MINUS)


def percent(share: float, digits: int = 0) -> str:
    """A share of 1 in per cent."""
    return "not a number" if math.isnan(share) else f"{number(100 * share, digits)}%"


def tiny(value: float) -> str:
    """A difference: exactly 0, or a power of ten."""
    return "exactly 0" if value == 0 else f"{value:.1e}".replace("-", _MINUS)


def matrix(
    title: str,
    values: Values,
    rows: Sequence[str],
    columns: Sequence[str] = (),
    *,
    digits: int = 4,
    percentages: bool = False,
    note: str = "",
) -> str:
    """Numbers in rows and columns, each with its label."""
    write = percent if percentages else number
    cells = [[write(float(cell), 0 if percentages else digits) for cell in row] for row in values]
    return table(title, columns, list(zip(rows, cells, strict=True)), note=note)


def table(
    title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], *, note: str = ""
) -> str:
    """Rows of a label and cells of text."""
    head = ""
    if columns:
        cells = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
        head = f"<thead><tr><td></td>{cells}</tr></thead>"
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        for label, cells in rows
    )
    under = f'<p class="ln-note">{escape(note)}</p>' if note else ""
    return (
        f'<div class="ln-table" role="region" tabindex="0" aria-label="{escape(title)}"><table>'
        f"<caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>{under}</div>"
    )


def side_by_side(*blocks: str) -> str:
    """Blocks in a row, as far as there is room."""
    return f'<div class="ln-row">{"".join(blocks)}</div>'


def says(text: str, kind: str = "plain") -> str:
    """A sentence about what the numbers show; kind "plain", "good" or "bad"."""
    return f'<p class="ln-says ln-{kind}">{escape(text)}</p>'


def heading(text: str) -> str:
    """What the blocks after it have in common."""
    return f'<h3 class="ln-heading">{escape(text)}</h3>'


@dataclass(frozen=True)
class Line:
    """One line of a chart: its name, its heights, and whether it is the one to follow."""

    name: str
    heights: Sequence[float]
    main: bool = False


def chart(title: str, ticks: Sequence[str], lines: Sequence[Line], top: float, marks: Sequence[float]) -> str:
    """Lines over equally spaced ticks, from 0 to ``top``; every point says its number."""
    width, height, left, bottom = 440, 200, 40, 28
    right, upper = 22, 10

    def x(i: int) -> float:
        return left + i * (width - left - right) / (len(ticks) - 1)

    def y(value: float) -> float:
        return height - bottom - value / top * (height - bottom - upper)

    parts = []
    for mark in marks:
        parts.append(
            f'<line class="ln-grid" x1="{left}" x2="{width - right}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>'
            f'<text x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>'
        )
    for i, tick in enumerate(ticks):
        parts.append(f'<text x="{x(i):.1f}" y="{height - 10}" text-anchor="middle">{escape(tick)}</text>')
    for line in lines:
        points = [(x(i), y(value)) for i, value in enumerate(line.heights)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        kind = "ln-main" if line.main else "ln-other"
        parts.append(f'<polyline class="{kind}" points="{path}"/>')
        for (a, b), tick, value in zip(points, ticks, line.heights, strict=True):
            parts.append(
                f'<circle class="{kind}" cx="{a:.1f}" cy="{b:.1f}" r="4">'
                f"<title>{escape(line.name)}, width {escape(tick)}: {number(value)}</title></circle>"
            )
    legend = "".join(
        f'<span class="{"ln-main" if line.main else "ln-other"}"><i></i>{escape(line.name)}</span>'
        for line in lines
    )
    return (
        f'<figure class="ln-chart"><figcaption>{escape(title)}<span class="ln-legend">{legend}</span>'
        f'</figcaption><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></figure>"
    )
