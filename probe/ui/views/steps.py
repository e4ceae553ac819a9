"""Steps: one row of one head in real numbers, from the layer's input to the head's share of the output."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from probe import Trace
from probe.ui import widgets
from probe.ui.offers import Offered
from probe.ui.screen import Half, Screen
from probe.ui.store import explain
from probe.ui.views.view import Page, View, cut_of, offer

_LEAD = """
<p class="lead">How one query comes to its row of weights. Every number has seven significant digits, so that
each line can be checked with a pocket calculator from the lines before it.</p>
"""


def describe(screen: Screen) -> dict[str, Any]:
    """The chosen query of the chosen model, as data for ``assets/steps.js``."""
    half = screen.half
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


class Steps(View):
    """The view's components, and what fills them."""

    id, label = "steps", "Steps"
    both = False
    takes_apart = True
    opens_cells = True

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.trace = widgets.widget("steps-trace")

    @property
    def outputs(self) -> list[Any]:
        return [self.trace]

    def render(self, screen: Screen) -> list[Any]:
        return [describe(screen)]

    def listen(self, page: Page) -> None:
        page.turns(self.trace)

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        assert half.comparison is not None
        place = half.layer, half.head, half.shown_query
        yield offer(
            half,
            Trace,
            f"layer {half.layer}, head {half.head}, query {half.shown_query}",
            f"layer-{half.layer}-head-{half.head}-query-{half.shown_query}-steps",
            partial(half.comparison.trace, *place),
        )

    def lines(self, screen: Screen, half: Half) -> list[str]:
        assert half.comparison is not None
        text, place = half.comparison.encoding.text, f"{half.layer}, {half.head}, query={half.shown_query}"
        return [f"print(probe.trace(model, {text!r}, {place}{cut_of(screen)}))"]
