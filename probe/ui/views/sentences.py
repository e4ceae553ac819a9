"""Two sentences: the same head on both, side by side, and what the words around them change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr
import torch

import probe
from probe import Comparison, TextComparison
from probe.analyses.texts import compare_texts_of
from probe.display.data import Panel, Sheet
from probe.ui import widgets
from probe.ui.figure import figure, figure_component, forbidden, message, token_figure
from probe.ui.offers import Offered
from probe.ui.screen import Half, Place, Screen
from probe.ui.state import Asked, Param
from probe.ui.store import STORE, explain, full_name
from probe.ui.views.heads import models
from probe.ui.views.view import Page, View, cut_of, offer

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
    alone = [token for i, token in enumerate(shown.tokens) if i not in shared]
    return token_figure(
        Sheet("", (_masked(result, (0, 1)[side], comparison, place),)),
        comparison.encoding,
        title=("First sentence", "Second sentence")[side],
        options=place.options,
        query=query,
        subtitle=f"{result.model_name}, layer {place.layer}, head {place.head} · {len(shown.tokens)} tokens",
        remarks=[f"Only in this sentence: {' '.join(alone)}"] if alone else ["All its tokens are in both."],
        stamp=f"{stamp} {side}",
        label=f"Layer {place.layer}, head {place.head} of {result.model_name} on the "
        f"{('first', 'second')[side]} sentence. Rows are queries, columns are keys.",
    )


def _masked(result: TextComparison, panel: int, comparison: Comparison, place: Place) -> Panel:
    """A panel of the result's sheet, with what the mask forbids on that text."""
    sheet = result.sheet()
    assert sheet is not None
    return replace(sheet.panels[panel], masked=forbidden(comparison, [(place.layer, place.head)]))


def _aligned(
    place: Place, result: TextComparison, comparisons: tuple[Comparison, Comparison], stamp: str
) -> dict[str, Any]:
    title, sheet = "The tokens in both", result.sheet()
    assert sheet is not None
    if not result.pairs:
        return message(title, result.summary, stamp)
    kept = [torch.tensor([pair[side] for pair in result.pairs]) for side in (0, 1)]
    change, elsewhere = sheet.panels[2:]
    sides = []
    for side, name in enumerate(("first", "second")):
        whole = _masked(result, side, comparisons[side], place)
        masked = None if whole.masked is None else whole.masked[kept[side]][:, kept[side]]
        values = whole.values[kept[side]][:, kept[side]]
        side_by_side = replace(whole, values=values, masked=masked, rows=change.rows, columns=change.columns)
        sides.append(replace(side_by_side, title=f"In the {name} sentence"))
    return figure(
        Sheet(title, (*sides, change, elsewhere), sheet.captions),
        subtitle=result.summary,
        stamp=stamp,
        label=f"Layer {place.layer}, head {place.head} of {result.model_name} on the tokens that both "
        "sentences have: weights in each, their change, and the weight that goes elsewhere.",
    )


class Sentences(View):
    """The view's components, and what fills them."""

    id, label = "sentences", "Two sentences"
    params = (
        Param("first", "one", "This coffee is great."),
        Param("second", "other", "My laptop just died, great."),
    )
    both = False

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.models = widgets.widget(f"{self.id}-models")
            with gr.Row(elem_classes="hd-form", elem_id="pair"):
                self.texts = [
                    gr.Textbox(
                        str(param.default),
                        label=label,
                        lines=1,
                        max_lines=4,
                        min_width=260,
                        elem_id=f"pair-{letter}",
                    )
                    for param, label, letter in zip(
                        self.params, ("First sentence", "Second sentence"), "ab", strict=True
                    )
                ]
                self.start = gr.Button("Compare", size="sm", scale=0, min_width=100, elem_id="pair-run")
            with gr.Row():
                with gr.Column(min_width=320):
                    first = figure_component(f"{self.id}-a")
                with gr.Column(min_width=320):
                    second = figure_component(f"{self.id}-b")
            self.figures = [first, second, figure_component(f"{self.id}-both")]
            self.place = widgets.watched_state()
        self.place.change(
            self.draw,
            self.place,
            self.figures,
            api_visibility="private",
            concurrency_id="run",
            show_progress="hidden",
            trigger_mode="always_last",
        )

    @property
    def controls(self) -> list[Any]:
        return list(self.texts)

    def listen(self, page: Page) -> None:
        page.asks(self.start.click, *(text.submit for text in self.texts))
        page.turns(self.models)

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        pair = place_of(screen)
        what, named = f"layer {half.layer}, head {half.head}", f"layer-{half.layer}-head-{half.head}"
        yield offer(half, TextComparison, what, f"{named}-two-sentences", lambda: compared(pair)[0])

    def lines(self, screen: Screen, half: Half) -> list[str]:
        asked, place = screen.asked, f"{half.layer}, {half.head}{cut_of(screen)}"
        return [f"print(probe.compare_texts(model, {asked.first!r}, {asked.second!r}, {place}))"]

    @property
    def outputs(self) -> list[Any]:
        return [self.models, self.place]

    def render(self, screen: Screen) -> list[Any]:
        return [models(screen), place_of(screen)]

    def draw(self, place: Place | None) -> list[Any]:
        return [gr.skip()] * 3 if place is None else describe(place)
