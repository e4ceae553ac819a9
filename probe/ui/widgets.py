"""The small components beside the figures, drawn by ``assets/page.js`` from plain data."""

from __future__ import annotations

import math
from typing import Any

import gradio as gr

_MOUNT = """
const begin = () => window.attentionWidget(element, props, trigger, watch);
if (window.attentionWidget) begin();
else document.addEventListener("attention-page-ready", begin, {once: true});
/* events: 'select' */
"""


def watched_state() -> gr.State:
    """A state, None at first, whose changes something listens to.

    Gradio keeps a state's value on the server and sends null for it. In a browser that holds nothing yet, the
    first null counts as a change: every view would be asked to draw whenever the page is opened.
    """
    state = gr.State(None)
    config = state.get_config
    # None would be left out of what is sent; NaN arrives as null.
    state.get_config = lambda: {**config(), "value": math.nan}  # type: ignore[method-assign]
    return state


def widget(elem_id: str, value: dict[str, Any] | None = None) -> gr.HTML:
    """A component whose value is what one of this module's functions returns; None shows nothing."""
    return gr.HTML(value, html_template="", js_on_load=_MOUNT, apply_default_css=False, elem_id=elem_id)


def verdict(lines: list[tuple[str, str]], stamp: str) -> dict[str, Any]:
    """The verdict lines as (kind, text), kind being "good", "bad" or "none"; no lines show nothing."""
    return {
        "widget": "verdict",
        "stamp": stamp,
        "lines": [{"kind": kind, "text": text} for kind, text in lines],
    }


def progress(text: str, stamp: str) -> dict[str, Any]:
    """One line on how far something is, or what became of it."""
    return {"widget": "progress", "text": text, "stamp": stamp}


def table(
    title: str,
    columns: list[str],
    rows: list[tuple[bool, list[str | int]]],
    text: str,
    report: str,
    file: str,
) -> dict[str, Any]:
    """A table of (failed, cells), the same as text to copy, and a JSON report to save under a file name."""
    return {
        "widget": "table",
        "title": title,
        "columns": columns,
        "rows": [{"failed": failed, "cells": cells} for failed, cells in rows],
        "text": text,
        "report": report,
        "file": file,
    }


def no_table() -> dict[str, Any]:
    """Nothing to list."""
    return {"widget": "table"}


def code(lines: str) -> dict[str, Any]:
    """Lines of Python that repeat a check; "" for none."""
    return {"widget": "code", "title": "This check in Python", "code": lines}


def once(name: str) -> dict[str, Any]:
    """Nothing to see: the first of this name is answered by a select event."""
    return {"widget": "once", "name": name}


def share(query: str, lines: str, left_out: str, at: str | None = None) -> dict[str, Any]:
    """The address of this view, what is not in it, and the lines of Python that reproduce the view.

    ``at`` is the address that Back or Forward has gone to, where this is the answer to that.
    """
    return {
        "widget": "share",
        "title": "This view in Python",
        "query": query,
        "code": lines,
        "left_out": left_out,
        "at": at,
    }
