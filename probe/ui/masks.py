"""Masks: the same trained head under the causal and under the bidirectional mask."""

from __future__ import annotations

from typing import Any

import gradio as gr
import torch

from attention import causal_mask
from probe.ui.compare import chosen_query
from probe.ui.figure import Panel, figure_component, message, token_figure
from probe.ui.state import Half, Screen, explain

ID, LABEL = "masks", "Masks"


def describe(screen: Screen, half: Half) -> dict[str, Any]:
    """Both masks and the head under each, as a figure."""
    if half.comparison is None:
        return message(half.name, half.problem, screen.stamp(half))
    try:
        result = half.comparison.compare_masks(half.layer, half.head)
    except Exception as error:
        return message(half.comparison.model.name, explain(error), screen.stamp(half))
    allowed = causal_mask(len(result.tokens))
    first, second = (
        ("causal", "bidirectional") if result.trained_with == "causal" else ("bidirectional", "causal")
    )
    maps = {"causal": result.causal, "bidirectional": result.bidirectional}
    masks = {"causal": allowed, "bidirectional": torch.ones_like(allowed)}

    def mask(kind: str) -> Panel:
        note = (
            "each query sees itself and what came before"
            if kind == "causal"
            else "each query sees every token"
        )
        return Panel(f"The {kind} mask", f"{kind} mask", masks[kind], "mask", note=note)

    def head(kind: str) -> Panel:
        return Panel(
            f"The head under the {kind} mask",
            f"under {kind}",
            maps[kind],
            note=result.labels[kind],
            masked=~masks[kind],
        )

    return token_figure(
        half.comparison.model.name,
        result,
        [
            mask(first),
            mask(second),
            Panel(
                "Weight that moved, per query",
                "moved",
                result.moved,
                "bars",
                note=f"from the {first} to the {second} mask",
            ),
            head(first),
            head(second),
            Panel(
                "Weight that moved, per cell",
                "change",
                maps[second] - maps[first],
                "change",
                note=f"under {second} minus under {first}",
            ),
        ],
        hide_special=screen.hide_special,
        subtitle=result.summary,
        selected=(chosen_query(half, half.comparison.encoding), None),
        stamp=screen.stamp(half),
        label=f"Layer {half.layer}, head {half.head} of {half.comparison.model.name} under both masks. "
        "Rows are queries, columns are keys.",
    )


class Masks:
    """The view's components, and what fills them."""

    id = ID

    def __init__(self) -> None:
        with gr.Tab(LABEL, id=ID, elem_id=f"tab-{ID}") as self.tab:
            gr.HTML(
                '<p class="lead">A causal mask lets a query see only itself and earlier tokens; without it '
                "every query sees the whole sentence. Here one trained head is shown under both. Only the "
                "mask differs: queries and keys are the same, so what changes is what the mask takes away, or "
                "gives.</p>",
                apply_default_css=False,
            )
            self.figures = [figure_component(f"{ID}-{slot}") for slot in "ab"]

    @property
    def outputs(self) -> list[gr.HTML]:
        return list(self.figures)

    def render(self, screen: Screen) -> list[Any]:
        return [describe(screen, half) for half in screen.halves]
