"""Figures as plain data, and the component that shows them: heatmaps that share their rows and columns.

A figure holds numbers that the toolkit computed, the labels of its rows and columns, and captions. It is
drawn by ``assets/figure.js``. Rows and columns are told apart by position, never by label, so repeated words
keep their own cells.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
import numpy as np
from torch import Tensor

from probe import MaskComparison, Report
from probe.tokens import Encoding

_MOUNT = """
const begin = () => window.attentionFigure(element, props, trigger, watch);
if (window.attentionFigure) begin();
else document.addEventListener("attention-ready", begin, {once: true});
/* events: 'select' */
"""


def figure_component(elem_id: str) -> gr.HTML:
    """A component for one figure; its value is what ``figure`` or ``message`` returns.

    Its event ``select`` carries ``row`` and ``col``, the positions of the chosen cell; ``col`` is None where
    a whole row was chosen.
    """
    return gr.HTML(None, html_template="", js_on_load=_MOUNT, apply_default_css=False, elem_id=elem_id)


@dataclass(frozen=True)
class Panel:
    """One heatmap of a figure.

    Attributes
    ----------
    title, short : what it is called above the map and before its number.
    values : (rows, columns); for kind "bars" (rows,).
    kind : "weight" (0 to 1), "difference" (logarithmic), "change" (-1 to 1), "mask"
        or "bars".
    note : a few words under the title.
    masked : (rows, columns), True where the mask forbids attending; such a cell is hatched if its weight is
        exactly 0.
    ends : of the logarithmic scale.
    """

    title: str
    short: str
    values: Tensor | np.ndarray
    kind: str = "weight"
    note: str = ""
    masked: Tensor | np.ndarray | None = None
    ends: tuple[float, float] = (1e-9, 1e-4)


@dataclass(frozen=True)
class Axis:
    """The rows or the columns: what they are, their labels, and the position that each one stands for."""

    name: str
    labels: Sequence[str]
    index: Sequence[int]


def _packed(values: Tensor | np.ndarray, dtype: str) -> str:
    """Numbers as base64, so the page gets what was computed, in a third of the space of decimals."""
    return base64.b64encode(np.ascontiguousarray(np.asarray(values), dtype=dtype).tobytes()).decode("ascii")


def difference_range(report: Report) -> tuple[float, float]:
    """Ends of the logarithmic scale for a report: five decades, the tolerance in the last but one."""
    top = math.ceil(math.log10(report.tolerance)) + 1
    return 10.0 ** (top - 5), 10.0**top


def message(title: str, text: str, stamp: str) -> dict[str, Any]:
    """A figure that has nothing to draw, and says why."""
    return {"title": title, "notice": text, "stamp": stamp, "panels": []}


def figure(
    title: str,
    rows: Axis,
    columns: Axis,
    panels: Sequence[Panel],
    *,
    stamp: str,
    label: str,
    subtitle: str = "",
    badge: tuple[str, str] | None = None,
    notice: str = "",
    selected: tuple[int, int | None] | None = None,
    strip: dict[str, Any] | None = None,
    hidden: Tensor | np.ndarray | None = None,
) -> dict[str, Any]:
    """A figure as data.

    Parameters
    ----------
    stamp
        Comes back as ``data-painted`` of the drawn figure, so that one can tell which result is on screen.
    label
        What a screen reader says about the figure.
    badge
        Text and kind ("good", "bad", "plain") of the mark beside the title.
    selected
        Positions of the chosen row and column (None: the whole row).
    strip
        ``text``, ``spans`` and ``special`` of the tokens, to show them above the maps.
    hidden
        (rows,), the weight each query gives to keys that are not shown.
    """
    return {
        "title": title,
        "subtitle": subtitle,
        "label": label,
        "stamp": stamp,
        "notice": notice,
        "badge": {"text": badge[0], "kind": badge[1]} if badge else None,
        "row": {"name": rows.name, "labels": list(rows.labels), "index": list(rows.index)},
        "col": {"name": columns.name, "labels": list(columns.labels), "index": list(columns.index)},
        "panels": [
            {
                "title": panel.title,
                "short": panel.short,
                "kind": panel.kind,
                "note": panel.note,
                "lo": panel.ends[0],
                "hi": panel.ends[1],
                "data": _packed(panel.values, "<f4"),
                "masked": None if panel.masked is None else _packed(panel.masked, "u1"),
            }
            for panel in panels
        ],
        "selected": None if selected is None else {"row": selected[0], "col": selected[1]},
        "strip": strip,
        "hidden": None if hidden is None else _packed(hidden, "<f4"),
    }


def token_figure(
    title: str,
    result: Encoding | MaskComparison,
    panels: Sequence[Panel],
    *,
    hide_special: bool = False,
    with_strip: bool = True,
    **rest: Any,
) -> dict[str, Any]:
    """A figure of maps over the tokens of one text.

    Parameters
    ----------
    result
        What holds the tokens, and which of them are special.
    hide_special
        Leave out the rows and columns of special tokens. Nothing is renormalised: the weight on hidden keys
        is shown as a number per query, taken from the first panel of weights.
    rest
        Passed on to ``figure``.
    """
    keep = np.array([not (hide_special and special) for special in result.special], dtype=bool)
    if not keep.any():
        keep[:] = True
    shown = np.flatnonzero(keep)
    hidden = None
    weights = next((np.asarray(panel.values) for panel in panels if panel.kind == "weight"), None)
    if weights is not None and not keep.all():
        hidden = weights[np.ix_(keep, ~keep)].sum(axis=1)
    square = np.ix_(keep, keep)
    cut = [
        replace(
            panel,
            values=np.asarray(panel.values)[keep if panel.kind == "bars" else square],
            masked=None if panel.masked is None else np.asarray(panel.masked)[square],
        )
        for panel in panels
    ]
    labels = [result.tokens[i] for i in shown]
    index = [int(i) for i in shown]
    strip = None
    if with_strip:
        spans = result.spans or [(0, 0)] * len(result.tokens)
        strip = {
            # The spans of a pair count from the start of their own sentence, so there is no one text to mark.
            "text": result.text if isinstance(result.text, str) and result.spans else "",
            "spans": [list(spans[i]) for i in shown],
            "special": [bool(result.special[i]) for i in shown],
        }
    return figure(
        title,
        Axis("query", labels, index),
        Axis("key", labels, index),
        cut,
        strip=strip,
        hidden=hidden,
        **rest,
    )
