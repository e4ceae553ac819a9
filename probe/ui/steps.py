"""Steps: one row of one head in real numbers, from the layer's input to the head's share of the output."""

from __future__ import annotations

from typing import Any

import gradio as gr

from probe.ui import widgets
from probe.ui.state import Screen, explain

ID, LABEL = "steps", "Steps"

_LEAD = """
<p class="lead">How one query comes to its row of weights. Every number has seven significant digits, so that
each line can be checked with a pocket calculator from the lines before it.</p>
"""


def describe(screen: Screen) -> dict[str, Any]:
    """The chosen query of the chosen model, as data for ``assets/steps.js``."""
    half = screen.halves[screen.focus.slot]
    names = [other.title for other in screen.halves]
    base = {"widget": "steps", "stamp": screen.stamp(half), "names": names, "slot": half.slot}
    if half.comparison is None:
        return {**base, "problem": half.problem}
    try:
        trace = half.comparison.trace(half.layer, half.head, half.shown_query)
    except Exception as error:
        return {**base, "problem": explain(error)}
    key = screen.focus.key
    allowed = [i for i, may in enumerate(trace.allowed.tolist()) if may]
    if key is None or key not in allowed:
        key = max(allowed, key=lambda i: float(trace.weights[i]))
    return {
        **base,
        "key": key,
        "trace": trace.to_dict(),
        "mask": trace.mask,
        "shared": trace.shared,
        "text": str(trace),
        "file": f"steps-{half.layer}-{half.head}-{trace.query}.json",
    }


class Steps:
    """The view's components, and what fills them."""

    id = ID

    def __init__(self) -> None:
        with gr.Tab(LABEL, id=ID, elem_id=f"tab-{ID}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.trace = widgets.widget("steps-trace")

    @property
    def outputs(self) -> list[gr.HTML]:
        return [self.trace]

    def render(self, screen: Screen) -> list[Any]:
        return [describe(screen)]
