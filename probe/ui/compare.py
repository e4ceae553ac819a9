"""Compare: each model's head computed from scratch, the model's own, and the difference."""

from __future__ import annotations

from typing import Any

import gradio as gr
from torch import Tensor

import probe
from attention import causal_mask
from probe.tokens import Encoding
from probe.ui.figure import Panel, difference_range, figure_component, message, token_figure
from probe.ui.state import DEFAULT_QUERY, DEFAULT_TEXT, Half, Screen

ID, LABEL = "compare", "Compare"


def future(comparison: probe.Comparison) -> Tensor | None:
    """True where a causal model's mask forbids attending; None for a model that sees both ways."""
    return ~causal_mask(len(comparison.encoding)) if comparison.model.causal else None


def chosen_query(half: Half, encoding: Encoding) -> int:
    """The query that is marked: the visitor's choice, else the last token with a letter or digit in it."""
    if half.query is not None:
        return half.query
    if encoding.text == DEFAULT_TEXT and DEFAULT_QUERY in encoding.tokens:
        return encoding.tokens.index(DEFAULT_QUERY)
    words = [
        i
        for i, (token, special) in enumerate(zip(encoding.tokens, encoding.special, strict=True))
        if not special and any(char.isalnum() for char in token)
    ]
    return words[-1] if words else len(encoding) - 1


def describe(screen: Screen, half: Half) -> dict[str, Any]:
    """The three maps of one model's head as a figure."""
    if half.comparison is None:
        return message(half.name, half.problem, screen.stamp(half))
    comparison = half.comparison
    check = next(c for c in comparison.report.heads if (c.layer, c.head) == (half.layer, half.head))
    masked = future(comparison)
    verdict = f"largest difference {check.max_abs_error:.1e}"
    notes = [
        f"layer {half.layer}, head {half.head}",
        f"{len(comparison.encoding)} tokens",
        comparison.model.source,
    ]
    return token_figure(
        comparison.model.name,
        comparison.encoding,
        [
            Panel(
                "From scratch",
                "from scratch",
                comparison.from_scratch(half.layer, half.head),
                masked=masked,
                note="softmax of query · key, computed here from the model's weights",
            ),
            Panel(
                "The model's own",
                "model",
                comparison.from_model(half.layer, half.head),
                masked=masked,
                note="what the model computed in its forward pass",
            ),
            Panel(
                "Absolute difference",
                "difference",
                comparison.difference(half.layer, half.head),
                "difference",
                note="logarithmic scale",
                ends=difference_range(comparison.report),
            ),
        ],
        hide_special=screen.hide_special,
        subtitle=" · ".join(notes),
        badge=(f"agrees: {verdict}", "good") if check.passed else (f"differs: {verdict}", "bad"),
        notice=comparison.encoding.truncated or "",
        selected=(chosen_query(half, comparison.encoding), None),
        stamp=screen.stamp(half),
        label=f"Attention weights of {comparison.model.name}, layer {half.layer}, head {half.head}: from "
        "scratch, the model's own and their difference. Rows are queries, columns are keys.",
    )


class Compare:
    """The view's components, and what fills them."""

    id = ID

    def __init__(self) -> None:
        with gr.Tab(LABEL, id=ID, elem_id=f"tab-{ID}") as self.tab:
            self.figures = [figure_component(f"{ID}-{slot}") for slot in "ab"]

    @property
    def outputs(self) -> list[gr.HTML]:
        return list(self.figures)

    def render(self, screen: Screen) -> list[Any]:
        return [describe(screen, half) for half in screen.halves]
