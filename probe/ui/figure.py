"""Sheets as data for the page, and the component that shows them: heatmaps that share their rows and columns.

A figure holds numbers that the toolkit computed, the labels of its rows and columns, and captions. It is
drawn by ``assets/figure.js``. Rows and columns are told apart by position, never by label, so repeated words
keep their own cells.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
import numpy as np
from torch import Tensor

from probe import Comparison
from probe.display.data import Panel, Sheet
from probe.running.tokens import Encoding
from probe.running.words import Words, group_words, single_tokens
from probe.ui.offers import SHEETS, Offered, Shown
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


def _packed(values: Tensor, dtype: str) -> str:
    """Numbers as base64, so the page gets what was computed, in a third of the space of decimals."""
    return base64.b64encode(np.ascontiguousarray(np.asarray(values), dtype=dtype).tobytes()).decode("ascii")


_ENDS = {"difference": (1e-9, 1e-4)}
"""Of a scale that a panel says nothing of; else from 0 to 1."""


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
    sheet: Sheet,
    *,
    stamp: str,
    label: str,
    title: str = "",
    subtitle: str = "",
    badge: tuple[str, str] | None = None,
    notice: str = "",
    selected: tuple[int, int | None] | None = None,
    strip: dict[str, Any] | None = None,
    remarks: Sequence[str] = (),
    hidden: Tensor | None = None,
    offer: Offered | None = None,
) -> dict[str, Any]:
    """A sheet, whose panels share their rows and columns, as data for the page.

    Parameters
    ----------
    stamp
        Comes back as ``data-painted`` of the drawn figure, so that one can tell which result is on screen.
    label
        What a screen reader says about the figure.
    title
        In place of the sheet's.
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
    offer
        The result that it shows, as a file; without one the sheet itself can be had.
    """
    rows = sheet.panels[0].rows
    columns = next((panel.columns for panel in sheet.panels if panel.kind != "bars"), sheet.panels[0].columns)
    return {
        "title": title or sheet.title,
        "subtitle": subtitle,
        "label": label,
        "stamp": stamp,
        "notice": notice,
        "badge": {"text": badge[0], "kind": badge[1]} if badge else None,
        "row": {"name": rows.name, "labels": list(rows.labels), "index": list(rows.index)},
        "col": {"name": columns.name, "labels": list(columns.labels), "index": list(columns.index)},
        "panels": [_plain(panel) for panel in sheet.panels],
        "selected": None if selected is None else {"row": selected[0], "col": selected[1]},
        "strip": strip,
        "remarks": list(remarks),
        "hidden": None if hidden is None else _packed(hidden, "<f4"),
        "download": {
            "key": offer.key if offer else SHEETS.keep(stamp, replace(sheet, title=title or sheet.title)),
            "formats": list(offer.formats if offer else Shown.formats),
        },
    }


def _plain(panel: Panel) -> dict[str, Any]:
    low, high = panel.ends or _ENDS.get(panel.kind, (0.0, 1.0))
    return {
        "title": panel.title,
        "short": panel.short,
        "kind": panel.kind,
        "note": panel.note,
        "lo": low,
        "hi": high,
        "data": _packed(panel.values, "<f4"),
        "masked": None if panel.masked is None else _packed(panel.masked, "u1"),
    }


def token_figure(
    sheet: Sheet,
    encoding: Encoding,
    *,
    options: Options,
    query: int,
    keys: Encoding | None = None,
    notice: str = "",
    **rest: Any,
) -> dict[str, Any]:
    """A figure of maps over the tokens of one text, or of the queries of one and the keys of another.

    Parameters
    ----------
    sheet
        Its panels are over all tokens; here they are put together to words and rid of special tokens, as
        ``options`` says. Nothing is renormalised: the weight on hidden keys is shown as a number per query,
        taken from the first panel of weights.
    encoding
        What holds the tokens. What was cut of the text is said in the notice.
    query
        Position of the token whose row is marked.
    keys
        What holds the tokens of the keys, where they are of another text than the queries.
    rest
        Passed on to ``figure``.
    """
    whole, kept = grouping(encoding, options)
    read, read_kept = (whole, kept) if keys is None else grouping(keys, options)
    hidden = None
    weights = next((panel.values for panel in sheet.panels if panel.kind == "weight"), None)
    if weights is not None and len(read_kept) < len(read):
        dropped = [group for group in range(len(read)) if group not in set(read_kept.index)]
        hidden = whole.weights(weights, read)[list(kept.index)][:, dropped].sum(-1)
    notices = [encoding.truncated, keys and keys.truncated, notice, kept.notice]
    return figure(
        sheet.grouped(kept, read_kept),
        strip={
            # The spans of a pair count from the start of their own sentence, so there is no one text to mark.
            "text": encoding.text if isinstance(encoding.text, str) and kept.spans else "",
            "spans": [list(span) for span in kept.spans or [(0, 0)] * len(kept)],
            "special": list(kept.special),
            # The keys have a line of their own where they are other tokens than the queries.
            "keys": None if keys is None else {"special": list(read_kept.special)},
        },
        hidden=hidden,
        selected=(group_of(whole, query), None),
        notice=" ".join(dict.fromkeys(one for one in notices if one)),
        **rest,
    )


def grouping(encoding: Encoding, options: Options) -> tuple[Words, Words]:
    """All tokens or words of a text, and those that are shown."""
    whole = group_words(encoding) if options.words else single_tokens(encoding)
    return whole, whole.without_special() if options.hide_special else whole


def group_of(words: Words, position: int) -> int:
    """The token or word that a token position belongs to."""
    return next(
        (i for i, (start, end) in zip(words.index, words.pieces, strict=True) if start <= position < end), 0
    )
