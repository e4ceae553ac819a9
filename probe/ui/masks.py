"""Masks: the same trained head under the causal and under the bidirectional mask."""

from __future__ import annotations

from typing import Any

import gradio as gr

from probe import MaskComparison
from probe.ui.figure import Panel, figure_component, message, token_figure
from probe.ui.state import STORE, Half, Screen, explain

ID, LABEL = "masks", "Masks"

_LEAD = """
<p class="lead">A causal mask lets a query see only itself and earlier tokens; without it every query sees
the whole sentence. Here one trained head is shown under both: what changes is what the mask takes
away, or gives.</p>
"""


def compared(screen: Screen, half: Half) -> MaskComparison:
    """The head under both masks, from runs that are kept."""
    assert half.comparison is not None
    kept = half.name, half.comparison.encoding.text, screen.session.truncate
    other = STORE.masked(*kept) if screen.options.whole_model else None
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
    order = ("causal", "bidirectional") if result.trained_with == "causal" else ("bidirectional", "causal")
    maps = {"causal": result.causal, "bidirectional": result.bidirectional}
    masks = {"causal": result.allowed("causal"), "bidirectional": result.allowed("bidirectional")}
    sees = _sees(result.window)
    first, second = order
    return token_figure(
        comparison.model.name,
        comparison.encoding,
        [
            *(
                Panel(f"The {kind} mask", f"{kind} mask", masks[kind], "mask", note=sees[kind])
                for kind in order
            ),
            Panel(
                "Weight that moved, per query",
                "moved",
                result.moved,
                "bars",
                note=f"from the {first} to the {second} mask",
            ),
            *(
                Panel(
                    f"The head under the {kind} mask",
                    f"under {kind}",
                    maps[kind],
                    note=result.labels[kind],
                    masked=~masks[kind],
                )
                for kind in order
            ),
            Panel(
                "Weight that moved, per cell",
                "change",
                maps[second] - maps[first],
                "change",
                note=f"under {second} minus under {first}",
            ),
        ],
        options=screen.options,
        query=half.shown_query,
        subtitle=result.summary,
        stamp=screen.stamp(half),
        label=f"Layer {half.layer}, head {half.head} of {comparison.model.name} under both masks. "
        "Rows are queries, columns are keys.",
    )


def _sees(window: int | None) -> dict[str, str]:
    """What each mask lets a query see, in words."""
    if window is None:
        return {
            "causal": "a query sees itself and what came before",
            "bidirectional": "a query sees every token",
        }
    return {
        "causal": f"this layer has a window: a query sees the last {window} tokens, itself included",
        "bidirectional": f"this layer has a window: a query sees itself and {window - 1} tokens on each side",
    }


class Masks:
    """The view's components, and what fills them."""

    id = ID

    def __init__(self) -> None:
        with gr.Tab(LABEL, id=ID, elem_id=f"tab-{ID}") as self.tab:
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
            self.figures = [figure_component(f"{ID}-{slot}") for slot in "ab"]

    @property
    def outputs(self) -> list[gr.HTML]:
        return list(self.figures)

    def render(self, screen: Screen) -> list[Any]:
        return [describe(screen, half) for half in screen.halves]
