"""Two sentences: the same head on both, side by side, and what the words around them change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr
import torch

import probe
from probe import Comparison, TextComparison
from probe.analyses.texts import TextMap, compare_texts_of
from probe.ui import widgets
from probe.ui.figure import Axis, Panel, figure, figure_component, forbidden, message, token_figure
from probe.ui.heads import models
from probe.ui.state import STORE, Asked, Place, Screen, explain, full_name

ID, LABEL = "sentences", "Two sentences"

_LEAD = """
<p class="lead">The same head on two sentences, each run by itself. Where tokens agree they are lined up:
what is different there comes from the words around them.</p>
"""
_NOTHING = message("", "", "")


def describe(place: Place) -> list[dict[str, Any]]:
    """Three figures: the head on each text, and on the tokens that both have."""
    stamp, name = place.stamp(), place.session.models[place.slot]
    try:
        result, first, second = compared(place)
    except Exception as error:
        return [message(full_name(name), explain(error), stamp), _NOTHING, _NOTHING]
    most = result.pairs[int(result.moved.argmax())] if result.pairs else (0, 0)
    sides = [
        _side(place, result, comparison, side, most[side], stamp)
        for side, comparison in enumerate((first, second))
    ]
    return [*sides, _aligned(place, result, (first, second), stamp)]


def place_of(screen: Screen) -> Place:
    """What the view is to draw. Its sentences are its own."""
    place = screen.place(Asked(first=screen.asked.first, second=screen.asked.second))
    return replace(place, session=replace(place.session, text="", second=""))


def compared(place: Place) -> tuple[TextComparison, Comparison, Comparison]:
    """The head on both texts, and the kept comparison of each.

    Raises
    ------
    ProbeError
        If the model or a text can't be taken.
    """
    name, cut = place.session.models[place.slot], place.session.truncate
    STORE.model(name)  # what is wrong with it is not about a sentence
    first = _comparison(name, "first", place.asked.first, cut)
    second = _comparison(name, "second", place.asked.second, cut)
    return compare_texts_of(first, second, place.layer, place.head), first, second


def _comparison(name: str, which: str, text: str, truncate: bool) -> Comparison:
    """The kept comparison of one of the texts; an error says which."""
    try:
        return STORE.comparison(name, text, truncate)
    except probe.ProbeError as error:
        raise error.about(f"The {which} sentence") from None


def _side(
    place: Place, result: TextComparison, comparison: Comparison, side: int, query: int, stamp: str
) -> dict[str, Any]:
    shown = (result.first, result.second)[side]
    shared = {pair[side] for pair in result.pairs}
    masked = forbidden(comparison, [(place.layer, place.head)])
    alone = [token for i, token in enumerate(shown.tokens) if i not in shared]
    return token_figure(
        ("First sentence", "Second sentence")[side],
        comparison.encoding,
        [Panel("The model's own weights", "weight", shown.weights, masked=masked)],
        options=place.options,
        query=query,
        subtitle=f"{result.model_name}, layer {place.layer}, head {place.head} · {len(shown.tokens)} tokens",
        remarks=[f"Only in this sentence: {' '.join(alone)}"] if alone else ["All its tokens are in both."],
        stamp=stamp,
        label=f"Layer {place.layer}, head {place.head} of {result.model_name} on the "
        f"{('first', 'second')[side]} sentence. Rows are queries, columns are keys.",
    )


def _aligned(
    place: Place, result: TextComparison, comparisons: tuple[Comparison, Comparison], stamp: str
) -> dict[str, Any]:
    title = "The tokens in both"
    if not result.pairs:
        return message(title, result.summary, stamp)
    rows, columns = (torch.tensor([pair[side] for pair in result.pairs]) for side in (0, 1))
    labels = [result.first.tokens[position] for position in rows.tolist()]

    def side(title: str, short: str, shown: TextMap, comparison: Comparison, kept: torch.Tensor) -> Panel:
        masked = forbidden(comparison, [(place.layer, place.head)])
        masked = None if masked is None else masked[kept][:, kept]
        return Panel(title, short, shown.weights[kept][:, kept], masked=masked)

    return figure(
        title,
        Axis("query in both", labels, rows.tolist()),
        Axis("key in both", labels, rows.tolist()),
        [
            side("In the first sentence", "first", result.first, comparisons[0], rows),
            side("In the second sentence", "second", result.second, comparisons[1], columns),
            Panel("Change", "change", result.difference, "change", note="second minus first"),
            Panel(
                "Weight that goes elsewhere",
                "elsewhere",
                result.moved,
                "bars",
                note="of each query's weight; a key that only one sentence has counts in full",
            ),
        ],
        subtitle=result.summary,
        stamp=stamp,
        label=f"Layer {place.layer}, head {place.head} of {result.model_name} on the tokens that both "
        "sentences have: weights in each, their change, and the weight that goes elsewhere.",
    )


class Sentences:
    """The view's components, and what fills them."""

    id = ID

    def __init__(self) -> None:
        with gr.Tab(LABEL, id=ID, elem_id=f"tab-{ID}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.models = widgets.widget(f"{ID}-models")
            with gr.Row(elem_classes="hd-form", elem_id="pair"):
                self.texts = [
                    gr.Textbox(
                        text,
                        label=label,
                        lines=1,
                        max_lines=4,
                        min_width=260,
                        elem_id=f"pair-{letter}",
                    )
                    for text, label, letter in zip(
                        (Asked.first, Asked.second), ("First sentence", "Second sentence"), "ab", strict=True
                    )
                ]
                start = gr.Button("Compare", size="sm", scale=0, min_width=100, elem_id="pair-run")
            with gr.Row():
                with gr.Column(min_width=320):
                    first = figure_component(f"{ID}-a")
                with gr.Column(min_width=320):
                    second = figure_component(f"{ID}-b")
            self.figures = [first, second, figure_component(f"{ID}-both")]
            self.place = widgets.watched_state()
        self.asks = [start.click, *(text.submit for text in self.texts)]
        self.place.change(
            self.draw,
            self.place,
            self.figures,
            api_visibility="private",
            concurrency_id="run",
            concurrency_limit=1,
            show_progress="hidden",
            trigger_mode="always_last",
        )

    @property
    def outputs(self) -> list[Any]:
        return [self.models, self.place]

    def render(self, screen: Screen) -> list[Any]:
        return [models(screen), place_of(screen)]

    def draw(self, place: Place | None) -> list[Any]:
        return [gr.skip()] * 3 if place is None else describe(place)
