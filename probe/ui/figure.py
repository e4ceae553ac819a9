"""Figures as plain data, and the component that shows them: heatmaps that share their rows and columns.

A figure holds numbers that the toolkit computed, the labels of its rows and columns, and captions. It is
drawn by ``assets/figure.js``. Rows and columns are told apart by position, never by label, so repeated words
keep their own cells.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
import numpy as np
from torch import Tensor

from probe import Comparison, MaskComparison, Report
from probe.running.tokens import Encoding
from probe.running.words import Words, group_words, single_tokens
from probe.ui.state import Options

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
    values: Tensor
    kind: str = "weight"
    note: str = ""
    masked: Tensor | None = None
    ends: tuple[float, float] = (1e-9, 1e-4)


@dataclass(frozen=True)
class Axis:
    """The rows or the columns: what they are, their labels, and the position that each one stands for."""

    name: str
    labels: Sequence[str]
    index: Sequence[int]


def _packed(values: Tensor, dtype: str) -> str:
    """Numbers as base64, so the page gets what was computed, in a third of the space of decimals."""
    return base64.b64encode(np.ascontiguousarray(np.asarray(values), dtype=dtype).tobytes()).decode("ascii")


def difference_range(report: Report) -> tuple[float, float]:
    """Ends of the logarithmic scale for a report: five decades, the tolerance in the last but one."""
    # Of a model whose numbers are NaN no tolerance is known.
    top = math.ceil(math.log10(report.tolerance)) + 1 if math.isfinite(report.tolerance) else -4
    return 10.0 ** (top - 5), 10.0**top


def both_and_difference(report: Report, ours: Tensor, theirs: Tensor, masked: Tensor | None) -> list[Panel]:
    """The panels of a map from scratch, the model's own, and how far they are apart."""
    return [
        Panel(
            "From scratch",
            "from scratch",
            ours,
            masked=masked,
            note=f"computed here {report.check}, step by step",
        ),
        Panel(
            "The model's own",
            "model",
            theirs,
            masked=masked,
            note="what the model computed in its forward pass",
        ),
        Panel(
            "Absolute difference",
            "difference",
            (ours - theirs).abs(),
            "difference",
            ends=difference_range(report),
            note="logarithmic scale",
        ),
    ]


def badge(agrees: bool, worst: float) -> tuple[str, str]:
    """Whether such maps agree, and how far they are apart at most."""
    return f"{'agrees' if agrees else 'differs'}: at most {worst:.1e}", "good" if agrees else "bad"


def forbidden(
    comparison: Comparison, heads: Iterable[tuple[int, int]], kind: str | None = None
) -> Tensor | None:
    """(T, T), True where a query of none of these heads may attend; None where every cell is allowed."""
    anywhere = None
    for layer, head in heads:
        allowed = comparison.allowed(layer, head, kind)
        if allowed is None:
            return None
        anywhere = allowed if anywhere is None else anywhere | allowed
    return None if anywhere is None else ~anywhere


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
    remarks: Sequence[str] = (),
    hidden: Tensor | None = None,
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
        ``text``, ``spans`` and ``special`` of the tokens, to show them above the maps; ``keys`` likewise
        where the columns are other tokens than the rows.
    remarks
        Sentences under the strip.
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
        "remarks": list(remarks),
        "hidden": None if hidden is None else _packed(hidden, "<f4"),
    }


def token_figure(
    title: str,
    result: Encoding | MaskComparison,
    panels: Sequence[Panel],
    *,
    options: Options,
    query: int,
    keys: Encoding | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """A figure of maps over the tokens of one text, or of the queries of one and the keys of another.

    Parameters
    ----------
    result
        What holds the tokens. What was cut of the text is said in the notice.
    panels
        Maps over all tokens; here they are put together to words and rid of special tokens, as ``options``
        says. Nothing is renormalised: the weight on hidden keys is shown as a number per query, taken from
        the first panel of weights.
    query
        Position of the token whose row is marked.
    keys
        What holds the tokens of the keys, where they are of another text than the queries.
    rest
        Passed on to ``figure``.
    """
    whole, kept = grouping(result, options)
    read, read_kept = (whole, kept) if keys is None else grouping(keys, options)
    hidden = None
    weights = next((panel.values for panel in panels if panel.kind == "weight"), None)
    if weights is not None and len(read_kept) < len(read):
        dropped = [group for group in range(len(read)) if group not in set(read_kept.index)]
        hidden = whole.weights(weights, read)[list(kept.index)][:, dropped].sum(-1)
    notices = [result.truncated, keys and keys.truncated, rest.pop("notice", ""), kept.notice]
    return figure(
        title,
        Axis("query", kept.labels, kept.index),
        Axis("key", read_kept.labels, read_kept.index),
        [_grouped(panel, kept, read_kept) for panel in panels],
        strip={
            # The spans of a pair count from the start of their own sentence, so there is no one text to mark.
            "text": result.text if isinstance(result.text, str) and kept.spans else "",
            "spans": [list(span) for span in kept.spans or [(0, 0)] * len(kept)],
            "special": list(kept.special),
            # The keys have a line of their own where they are other tokens than the queries.
            "keys": None if keys is None else {"special": list(read_kept.special)},
        },
        hidden=hidden,
        selected=(group_of(whole, query), None),
        notice=" ".join(dict.fromkeys(notice for notice in notices if notice)),
        **rest,
    )


def grouping(result: Encoding | MaskComparison, options: Options) -> tuple[Words, Words]:
    """All tokens or words of a text, and those that are shown."""
    whole = group_words(result) if options.words and isinstance(result, Encoding) else single_tokens(result)
    return whole, whole.without_special() if options.hide_special else whole


def group_of(words: Words, position: int) -> int:
    """The token or word that a token position belongs to."""
    return next(
        (i for i, (start, end) in zip(words.index, words.pieces, strict=True) if start <= position < end), 0
    )


def _grouped(panel: Panel, words: Words, keys: Words) -> Panel:
    if panel.kind == "bars":
        return replace(panel, values=words.means(panel.values))
    if panel.kind == "mask":
        return replace(panel, values=words.weights(panel.values.double(), keys) > 0)
    masked = None if panel.masked is None else word_mask(panel.masked, words, keys)
    return replace(panel, values=words.weights(panel.values, keys), masked=masked)


def word_mask(masked: Tensor, words: Words, keys: Words | None = None) -> Tensor:
    """A mask over tokens, True where attending is forbidden, as one over words: masked are those of which
    no piece may be attended to by any piece."""
    return words.weights((~masked).double(), keys) == 0
