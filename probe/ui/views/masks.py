"""Masks: the same trained head under the causal and under the bidirectional mask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from probe import MaskComparison
from probe.ui.figure import figure_component, message, token_figure
from probe.ui.offers import Offer, Offered
from probe.ui.screen import Half, Screen
from probe.ui.state import Param
from probe.ui.store import STORE, explain
from probe.ui.views.view import Page, View, cut_of, offer

_LEAD = """
<p class="lead">A causal mask lets a query see only itself and earlier tokens; without it every query sees
the whole sentence. Here one trained head is shown under both: what changes is what the mask takes
away, or gives.</p>
"""


def compared(screen: Screen, half: Half) -> MaskComparison:
    """The head under both masks, from runs that are kept."""
    assert half.comparison is not None
    kept = half.name, half.comparison.encoding.text, screen.session.truncate
    other = STORE.masked(*kept) if screen.asked.whole_model else None
    return half.comparison.compare_masks(half.layer, half.head, other=other)


def describe(screen: Screen, half: Half) -> dict[str, Any]:
    """Both masks and the head under each, as a figure."""
    if half.comparison is None:
        return message(half.title, half.problem, screen.stamp(half))
    comparison = half.comparison
    try:
        result = compared(screen, half)
    except Exception as error:
        return message(comparison.model.name, explain(error), screen.stamp(half))
    sheet = result.sheet()
    assert sheet is not None
    return token_figure(
        sheet,
        comparison.encoding,
        options=screen.options,
        query=half.shown_query,
        title=comparison.model.name,
        subtitle=result.summary,
        stamp=screen.stamp(half),
        label=f"Layer {half.layer}, head {half.head} of {comparison.model.name} under both masks. "
        "Rows are queries, columns are keys.",
        offer=offer_of(screen, half),
    )


def offer_of(screen: Screen, half: Half) -> Offer:
    """The head under both masks, as a file."""
    where = "-in-every-layer" if screen.asked.whole_model else ""
    return offer(
        half,
        MaskComparison,
        f"layer {half.layer}, head {half.head}",
        f"layer-{half.layer}-head-{half.head}-masks{where}",
        partial(compared, screen, half),
    )


class Masks(View):
    """The view's components, and what fills them."""

    id, label = "masks", "Masks"
    params = (Param("whole_model", "mask", False, ticked="everywhere"),)
    takes_apart = True

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.whole_model = gr.Radio(
                [
                    ("the other mask in this layer only, with the same queries and keys", False),
                    ("the other mask in every layer: a second run of the whole model", True),
                ],
                value=False,
                label="Where the mask is changed",
                show_label=False,
                container=False,
                elem_id="whole-model",
                elem_classes="choice",
            )
            self.figures = [figure_component(f"{self.id}-{slot}") for slot in "ab"]

    @property
    def controls(self) -> list[Any]:
        return [self.whole_model]

    @property
    def outputs(self) -> list[Any]:
        return list(self.figures)

    def render(self, screen: Screen) -> list[Any]:
        return [describe(screen, half) for half in screen.halves]

    def listen(self, page: Page) -> None:
        page.asks(self.whole_model.input)
        for slot, figure in enumerate(self.figures):
            page.opens_steps(figure, slot)

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        yield offer_of(screen, half)

    def lines(self, screen: Screen, half: Half) -> list[str]:
        assert half.comparison is not None
        whole = ", whole_model=True" if screen.asked.whole_model else ""
        asked = f"{half.comparison.encoding.text!r}, {half.layer}, {half.head}{whole}{cut_of(screen)}"
        return [f"print(probe.compare_masks(model, {asked}))"]
