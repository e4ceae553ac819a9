"""Compare: each model's head computed from scratch, the model's own, and the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gradio as gr
import torch
from torch import Tensor

import probe
from probe import Prediction
from probe.analyses.compare import twice_panels
from probe.display.data import Axis, Sheet
from probe.ui.figure import badge, figure_component, forbidden, message, token_figure
from probe.ui.offers import Offer, Offered
from probe.ui.screen import Half, Screen
from probe.ui.state import Param
from probe.ui.views.view import Page, View, cut_of, offer

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
    comparison, average = half.comparison, screen.asked.average
    encoding, model = comparison.encoding, comparison.model
    heads = averaged(half, average)
    where = {
        "head": f"layer {half.layer}, head {half.head}",
        "layer": f"layer {half.layer}, mean over its {len(heads)} heads",
        "all": f"mean over all {len(heads)} heads",
    }[average]
    checks = [check for check in comparison.report.heads if (check.layer, check.head) in heads]
    return token_figure(
        shown(comparison, heads, where),
        encoding,
        options=screen.options,
        query=half.shown_query,
        title=model.name,
        subtitle=" · ".join([where, f"{len(encoding)} tokens", model.source]),
        badge=badge(all(check.passed for check in checks), max(check.max_abs_error for check in checks)),
        notice=notice(screen, half),
        remarks=predictions(comparison),
        stamp=screen.stamp(half),
        label=f"Attention weights of {model.name}, {where}: from scratch, the model's own and their "
        "difference. Rows are queries, columns are keys.",
        offer=offer_of(half) if average == "head" else None,
    )


def shown(comparison: probe.Comparison, heads: set[tuple[int, int]], where: str) -> Sheet:
    """The sheet of one head, or of the mean over several."""
    if len(heads) == 1:
        sheet = comparison.only(*next(iter(heads))).sheet()
        assert sheet is not None
        return sheet
    ours, theirs = (_mean(read, heads) for read in (comparison.from_scratch, comparison.from_model))
    tokens = comparison.encoding.tokens
    axes, masked = (Axis("query", tokens), Axis("key", tokens)), forbidden(comparison, heads)
    panels = twice_panels(comparison.report, ours, theirs, axes, masked)
    return Sheet(f"{comparison.model_name}, {where}", panels)


def offer_of(half: Half) -> Offer:
    """The head's comparison, as a file."""
    comparison, layer, head = half.comparison, half.layer, half.head
    assert comparison is not None
    return offer(
        half,
        probe.Comparison,
        f"layer {layer}, head {head}",
        f"layer-{layer}-head-{head}-comparison",
        lambda: comparison.only(layer, head),
    )


def all_heads(screen: Screen, half: Half) -> Offer:
    """All heads of a model on the page that shows them."""
    assert half.comparison is not None
    model, text = half.comparison.model, half.comparison.encoding.text
    attend = partial(probe.attend, model, text, truncate=screen.session.truncate)
    what = f"all {model.num_layers * model.num_heads} heads"
    return offer(half, probe.Run, what, "all-heads", attend, one=False)


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


class Compare(View):
    """The view's components, and what fills them."""

    id, label = "compare", "Compare"
    params = (Param("average", "average", "head", tuple(AVERAGES)),)

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
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
            self.figures = [figure_component(f"{self.id}-{slot}") for slot in "ab"]

    @property
    def controls(self) -> list[Any]:
        return [self.average]

    @property
    def outputs(self) -> list[Any]:
        return list(self.figures)

    def render(self, screen: Screen) -> list[Any]:
        return [describe(screen, half) for half in screen.halves]

    def listen(self, page: Page) -> None:
        page.asks(self.average.input)
        for slot, figure in enumerate(self.figures):
            page.opens_steps(figure, slot)

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        if screen.asked.average == "head":
            yield offer_of(half)
        yield all_heads(screen, half)

    def lines(self, screen: Screen, half: Half) -> list[str]:
        average = screen.asked.average
        compare, *maps = comparison_lines(screen, half)
        if average == "head":
            return [compare, *maps]
        layers = "range(model.num_layers)" if average == "all" else f"[{half.layer}]"
        means = ("from_scratch", "from_model")
        return [
            compare,
            maps[0],
            f"heads = [(layer, head) for layer in {layers} for head in range(model.num_heads)]",
            *(f"print(sum(comparison.{map}(*place) for place in heads) / len(heads))" for map in means),
        ]


def comparison_lines(screen: Screen, half: Half) -> list[str]:
    """Lines that compute one head three times: from scratch, as the model did, and the difference."""
    assert half.comparison is not None
    maps = ("from_scratch", "from_model", "difference")
    return [
        f"comparison = probe.compare(model, {half.comparison.encoding.text!r}{cut_of(screen)})",
        "print(comparison.report.verdict)",
        *(f"print(comparison.{map}({half.layer}, {half.head}))" for map in maps),
    ]
