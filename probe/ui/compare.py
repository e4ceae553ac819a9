"""Compare: each model's head computed from scratch, the model's own, and the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr
import torch
from torch import Tensor

import probe
from probe import Prediction
from probe.ui.figure import badge, both_and_difference, figure_component, forbidden, message, token_figure
from probe.ui.state import Half, Screen

ID, LABEL = "compare", "Compare"
_LEAD = """
<p class="lead">A row shows how one token, the query, shares out its attention over the keys; a row sums to 1.
Choose a token to see where it looks, point at a cell to read its number, click it to follow that number step
by step.</p>
"""
AVERAGES = {"head": "this head", "layer": "mean over the heads of this layer", "all": "mean over all heads"}


def describe(screen: Screen, half: Half) -> dict[str, Any]:
    """The three maps of one model's head, or of the mean over heads, as a figure."""
    if half.comparison is None:
        return message(half.title, half.problem, screen.stamp(half))
    comparison, average = half.comparison, screen.options.average
    encoding, model = comparison.encoding, comparison.model
    heads = averaged(half, average)
    ours, theirs = (_mean(read, heads) for read in (comparison.from_scratch, comparison.from_model))
    masked = forbidden(comparison, heads)
    where = {
        "head": f"layer {half.layer}, head {half.head}",
        "layer": f"layer {half.layer}, mean over its {len(heads)} heads",
        "all": f"mean over all {len(heads)} heads",
    }[average]
    checks = [check for check in comparison.report.heads if (check.layer, check.head) in heads]
    agrees = all(check.passed for check in checks)
    worst = max(check.max_abs_error for check in checks)
    return token_figure(
        model.name,
        encoding,
        both_and_difference(comparison.report, ours, theirs, masked),
        options=screen.options,
        query=half.shown_query,
        subtitle=" · ".join([where, f"{len(encoding)} tokens", model.source]),
        badge=badge(agrees, worst),
        notice=notice(screen, half),
        remarks=predictions(comparison),
        stamp=screen.stamp(half),
        label=f"Attention weights of {model.name}, {where}: from scratch, the model's own and their "
        "difference. Rows are queries, columns are keys.",
    )


def notice(screen: Screen, half: Half) -> str:
    """What the reader must know about this half."""
    assert half.comparison is not None
    model = half.comparison.model
    left_out = bool(screen.session.second.strip()) and not model.has_pairs
    return f"{model.name} takes one sentence: the second is left out." if left_out else ""


def averaged(half: Half, average: str) -> set[tuple[int, int]]:
    """The heads whose mean is shown: one head, the heads of its layer, or all."""
    assert half.comparison is not None
    model = half.comparison.model
    layers = range(model.num_layers) if average == "all" else (half.layer,)
    heads = (half.head,) if average == "head" else range(model.num_heads)
    return {(layer, head) for layer in layers for head in heads}


def _mean(read: Callable[[int, int], Tensor], heads: set[tuple[int, int]]) -> Tensor:
    return torch.stack([read(layer, head) for layer, head in sorted(heads)]).mean(0)


def predictions(comparison: probe.Comparison) -> list[str]:
    """What the model would say next, or behind each mask token; one sentence each."""
    sentences = []
    for prediction in comparison.predictions:
        place = "next token" if comparison.model.causal else f"token {prediction.position}"
        sentences.append(f"Predicted {place}: {candidates(prediction)}")
    return sentences


def candidates(prediction: Prediction) -> str:
    """The likeliest words and their shares; in quotes, as a comma is a word too."""
    return ", ".join(f'"{word.strip() or word}" {share:.1%}' for word, share in prediction.candidates)


class Compare:
    """The view's components, and what fills them."""

    id = ID

    def __init__(self) -> None:
        with gr.Tab(LABEL, id=ID, elem_id=f"tab-{ID}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.average = gr.Radio(
                [(text, key) for key, text in AVERAGES.items()],
                value="head",
                label="Show",
                show_label=False,
                container=False,
                elem_id="average",
                elem_classes="choice",
            )
            self.figures = [figure_component(f"{ID}-{slot}") for slot in "ab"]

    @property
    def outputs(self) -> list[gr.HTML]:
        return list(self.figures)

    def render(self, screen: Screen) -> list[Any]:
        return [describe(screen, half) for half in screen.halves]
