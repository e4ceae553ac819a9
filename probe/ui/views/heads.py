"""Heads: all heads of a model at a glance, what kind each is, and which of them link two words."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr
import numpy as np
from torch import Tensor, nn

import probe
from probe import Comparison, FoundHeads, Rollout
from probe.analyses.distances import distances_of
from probe.analyses.find import find_heads_of
from probe.analyses.measures import MEASURES, measures_of
from probe.analyses.rollout import rollout_of
from probe.display.data import Sheet, masked_words
from probe.display.page import PRECISION, compact
from probe.running.words import Words
from probe.ui import limits, widgets
from probe.ui.figure import figure, figure_component, forbidden, grouping, message, token_figure
from probe.ui.offers import Offer, Offered
from probe.ui.screen import Half, Place, Screen
from probe.ui.state import Asked, Param
from probe.ui.store import explain
from probe.ui.views.compare import all_heads
from probe.ui.views.view import Page, View, cut_of, offer

_LEAD = """
<p class="lead">Every head of every layer, small. Point at a cell for its number; a click marks the head, here
and in every other view. Below: what kind of head each is, and which heads link two words.</p>
"""
_DRAW: dict[str, Any] = {
    "api_visibility": "private",
    "show_progress": "hidden",
    "trigger_mode": "always_last",
}


# ---- as data for assets/heads.js


def models(screen: Screen) -> dict[str, Any]:
    """The choice of one of the two models, and the head of it that is marked."""
    names = [half.title for half in screen.halves]
    half = screen.half
    return {"widget": "models", "names": names, "slot": half.slot, "layer": half.layer, "head": half.head}


def picture(place: Place) -> dict[str, Any]:
    """All maps of a model on a text, ten bits a weight: at most 4 MB."""
    half = place.half()
    nothing = {"widget": "heads", "title": half.title, "notices": [half.problem], "stamp": place.stamp()}
    if half.comparison is None:
        return nothing
    comparison, model = half.comparison, half.comparison.model
    _, kept = grouping(comparison.encoding, place.options)
    maps = [
        kept.weights(comparison.from_model(layer, head))
        for layer in range(model.num_layers)
        for head in range(model.num_heads)
    ]
    packed = compact(maps, kept.labels, kept.index)
    notices = [text for text in (comparison.encoding.truncated, kept.notice) if text]
    what = "words" if place.options.words else "tokens"
    if (side := packed["side"]) > 1:
        notices.append(
            f"A cell stands for {side} x {side} {what}: all weights of {len(maps)} heads over {len(kept)} "
            f"{what} would be too much to send. It shows how much of their weight its queries put on its "
            "keys together, on average; Compare shows a head in full."
        )
    return {
        "widget": "heads",
        "title": f"All {len(maps)} heads of {model.name}",
        "subtitle": f"{model.num_layers} layers of {model.num_heads} heads · {len(kept)} {what} · numbers "
        f"within {PRECISION:g} of the model's own",
        "notices": notices,
        "layers": model.num_layers,
        "heads": model.num_heads,
        "stamp": place.stamp(),
        "masked": masked_cells(comparison, kept, side),
        **packed,
    }


def masked_cells(comparison: Comparison, kept: Words, side: int) -> list[str]:
    """For each layer the cells in which no query may attend to any key, as bits in base64, row by row."""
    layers = [
        _bits(forbidden(comparison, [(layer, head) for head in range(count)]), kept, side)
        for layer, count in enumerate(comparison.model.heads_per_layer)
    ]
    return layers if any(layers) else []


def _bits(masked: Tensor | None, kept: Words, side: int) -> str:
    if masked is None:
        return ""
    cells = masked_words(masked, kept)
    # A pooled cell is masked where all cells in it are.
    pooled = nn.functional.max_pool2d((~cells)[None].float(), side, ceil_mode=True)[0] == 0
    return base64.b64encode(np.packbits(pooled.numpy().ravel(), bitorder="little").tobytes()).decode()


def measured(place: Place) -> dict[str, Any]:
    """The measures of every head, as a table."""
    half = place.half()
    if half.comparison is None:
        return no_ranking()
    found = measures_of(half.comparison)
    return ranking(
        f"What each head of {found.model_name} does with this text",
        "Measures of all heads",
        [
            {"title": measure.title, "about": measure.definition, "source": measure.source}
            for measure in MEASURES
        ],
        [
            (head.layer, head.head, [getattr(head, measure.name) for measure in MEASURES])
            for head in found.heads
        ],
        stamp=place.stamp("measures"),
        lines=[
            *([found.notice] if found.notice else []),
            "What a query may not attend to never counts; – stands for nothing to measure.",
        ],
        sort=-1,
    )


def looked_away(place: Place) -> dict[str, Any]:
    """How far each head looks, as a figure."""
    half = place.half()
    if half.comparison is None:
        return message("", "", "")
    found = distances_of(half.comparison)
    sheet = found.sheet()
    assert sheet is not None
    return figure(
        sheet,
        title="How far each head looks",
        subtitle=found.summary,
        stamp=place.stamp("distances"),
        label=f"How far each head of {found.model_name} looks, in tokens. "
        "Rows are layers, columns are heads.",
        offer=distances_offer(half, place.session.truncate),
    )


def distances_offer(half: Half, truncate: bool) -> Offer:
    """How far each head looks, as a file."""
    comparison = half.comparison
    assert comparison is not None
    make = partial(probe.distances, comparison.model, comparison.encoding.text, truncate=truncate)
    return offer(half, probe.HeadDistances, "distances", "distances", make)


def words_of(asked: Asked) -> tuple[str, str, str]:
    """The words that are looked for."""
    return asked.from_word.strip(), asked.to_word.strip(), asked.versus.strip()


def find(comparison: Comparison, words: Sequence[str]) -> FoundHeads:
    """The heads by the weight that links the first word to the second, rather than to the third, if any."""
    from_word, to_word, versus = map(limits.check_text, words)
    return find_heads_of(comparison, from_word, to_word, versus or None)


def found_heads(place: Place) -> dict[str, Any]:
    """What ``find`` finds, as a table; or why there is none."""
    stamp = place.stamp("found")
    half = place.half()
    if half.comparison is None:
        return no_ranking()
    try:
        found = find(half.comparison, words_of(place.asked))
    except Exception as error:
        return no_ranking(explain(error), stamp)
    link = f"{found.from_word.word} → "
    columns = [{"title": f"{link}{found.to_word.word}", "about": "Weight from the first word to the second."}]
    if found.versus is not None:
        columns += [
            {
                "title": f"{link}{found.versus.word}",
                "about": "Weight from the first word to the other target.",
            },
            {"title": "difference", "about": "How much more weight the first target gets."},
        ]
    return ranking(
        "",
        "Heads by the weight that links the words",
        columns,
        [
            (head.layer, head.head, [head.weight, head.versus, head.difference][: len(columns)])
            for head in found.heads
        ],
        stamp=stamp,
        lines=[line for line in (found.summary, found.notice) if line],
        sort=0,
    )


def ranking(
    title: str,
    label: str,
    columns: Sequence[dict[str, Any]],
    rows: Sequence[tuple[int, int, Sequence[float | str | None]]],
    *,
    stamp: str,
    lines: Sequence[str] = (),
    sort: int,
) -> dict[str, Any]:
    """A table of heads that can be sorted by each column.

    Parameters
    ----------
    label : what a screen reader says about the table.
    columns : ``title`` and ``about`` of each, ``source`` where it has one, ``words`` where it holds text.
    rows : layer, head, and a value for each column; None where there is none.
    sort : the column that it is sorted by at first, largest first; -1 for layer and head.
    """
    return {
        "widget": "ranking",
        "title": title,
        "label": label,
        "columns": list(columns),
        "rows": [{"layer": layer, "head": head, "values": list(values)} for layer, head, values in rows],
        "lines": list(lines),
        "stamp": stamp,
        "sort": sort,
    }


def no_ranking(problem: str = "", stamp: str = "") -> dict[str, Any]:
    """No table, and why there is none."""
    return {"widget": "ranking", "problem": problem, "stamp": stamp}


def rolled_out(place: Place, layer: float | None) -> tuple[dict[str, Any], Any]:
    """Attention rollout after a layer, the last one where None, as a figure; and an update of the slider."""
    half = place.half()
    if half.comparison is None:
        return message(half.title, half.problem, place.stamp("rollout")), gr.skip()
    rollout = rollout_of(half.comparison)
    last = len(rollout.maps) - 1
    chosen = last if layer is None else min(max(int(layer), 0), last)
    title = f"Attention rollout of {rollout.model_name}"
    drawn = token_figure(
        Sheet(title, (rollout.panel(chosen),), (Rollout.caveat,)),
        half.comparison.encoding,
        options=place.options,
        query=half.shown_query,
        subtitle=Rollout.caveat,
        stamp=place.stamp("rollout", chosen),
        label=f"{title} after layer {chosen}. Rows are positions after the layer, columns are tokens of the "
        "text.",
        offer=rollout_offer(half, place.session.truncate) if chosen == last else None,
    )
    return drawn, gr.Slider(maximum=last, value=chosen)


def rollout_offer(half: Half, truncate: bool) -> Offer:
    """The rollout, as a file."""
    comparison = half.comparison
    assert comparison is not None
    make = partial(probe.rollout, comparison.model, comparison.encoding.text, truncate=truncate)
    return offer(half, Rollout, "rollout", "rollout", make)


def sought(place: Place, from_word: str, to_word: str, versus: str) -> Place:
    """The same place, with the words that are looked for."""
    return replace(place, asked=Asked(from_word=from_word, to_word=to_word, versus=versus))


class Heads(View):
    """The view's components, and what fills them."""

    id, label = "heads", "Heads"
    params = (
        Param("from_word", "from", "it"),
        Param("to_word", "to", "trophy"),
        Param("versus", "versus", "suitcase"),
    )
    both = False

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.models = widgets.widget(f"{self.id}-models")
            self.maps = widgets.widget(f"{self.id}-maps")
            gr.HTML('<h2 class="hd-heading">Which heads link two words?</h2>', apply_default_css=False)
            with gr.Row(elem_classes="hd-form", elem_id="finder"):
                self.from_word = self._word("From", 0, "from-word")
                self.to_word = self._word("To", 1, "to-word")
                self.versus = self._word("Rather than (may be empty)", 2, "versus")
                self.find = gr.Button("Find", size="sm", scale=0, min_width=90, elem_id="find")
            self.found = widgets.widget(f"{self.id}-found")
            self.measures = widgets.widget(f"{self.id}-measures")
            self.distances = figure_component(f"{self.id}-distances")
            with gr.Accordion("Attention rollout: all layers multiplied up", open=False, elem_id="rollout"):
                self.layer = gr.Slider(
                    0, 5, 5, step=1, label="After layer", buttons=[], elem_id="rollout-layer"
                )
                self.rollout = figure_component(f"{self.id}-rollout")
            # The maps can be megabytes: they are sent for another text or model, not for another head.
            self.place = widgets.watched_state()
            # The same with the words that are looked for.
            self.sought = widgets.watched_state()
        words = self.words = [self.from_word, self.to_word, self.versus]
        drawn = self.place.change(self.draw, self.place, self.maps, concurrency_id=self.id, **_DRAW)
        drawn.then(
            self.detail,
            self.place,
            [self.measures, self.distances, self.rollout, self.layer],
            concurrency_id=self.id,
            **_DRAW,
        )
        self.sought.change(self.seek, self.sought, self.found, concurrency_id=self.id, **_DRAW)
        gr.on(
            [self.find.click, *(word.submit for word in words)],
            self.search,
            [self.place, *words],
            self.found,
            concurrency_id=self.id,
            **_DRAW,
        )
        self.layer.input(self.roll, [self.place, self.layer], self.rollout, concurrency_id=self.id, **_DRAW)

    def _word(self, label: str, param: int, elem_id: str) -> gr.Textbox:
        value = str(self.params[param].default)
        return gr.Textbox(
            value, label=label, lines=1, max_lines=1, max_length=100, min_width=130, elem_id=elem_id
        )

    @property
    def controls(self) -> list[Any]:
        return list(self.words)

    def listen(self, page: Page) -> None:
        page.asks(self.find.click, *(word.submit for word in self.words))
        page.turns(self.models)
        for ranked in (self.maps, self.found, self.measures, self.distances):
            page.marks_heads(ranked)

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        assert half.comparison is not None
        comparison, cut = half.comparison, screen.session.truncate
        model, text = comparison.model, comparison.encoding.text
        measure = partial(probe.measure_heads, model, text, truncate=cut)
        yield offer(half, probe.HeadMeasures, "measures", "measures", measure)
        yield distances_offer(half, cut)
        words = words_of(screen.asked)
        try:
            found = find(comparison, words)
        except probe.ProbeError:
            pass
        else:
            what = f"heads that link {words[0]} and {words[1]}"
            yield offer(half, FoundHeads, what, "found-heads", lambda: found)
        yield rollout_offer(half, cut)
        yield all_heads(screen, half)

    def lines(self, screen: Screen, half: Half) -> list[str]:
        assert half.comparison is not None
        text, cut = half.comparison.encoding.text, cut_of(screen)
        words = words_of(screen.asked)
        lines = [f"print(probe.{name}(model, {text!r}{cut}))" for name in ("measure_heads", "distances")]
        try:
            find(half.comparison, words)
        except probe.ProbeError:
            return lines
        named = ", ".join(repr(word) for word in words if word)
        return [*lines, f"print(probe.find_heads(model, {text!r}, {named}{cut}))"]

    @property
    def outputs(self) -> list[Any]:
        return [self.models, self.place, self.sought]

    def render(self, screen: Screen) -> list[Any]:
        # The maps are of all heads, whatever is looked for among them.
        place = replace(screen.place(Asked()), layer=0, head=0)
        asked = screen.asked
        return [models(screen), place, sought(place, asked.from_word, asked.to_word, asked.versus)]

    def draw(self, place: Place | None) -> dict[str, Any]:
        return gr.skip() if place is None else picture(place)

    def detail(self, place: Place | None) -> list[Any]:
        if place is None:
            return [gr.skip()] * 4
        return [measured(place), looked_away(place), *rolled_out(place, None)]

    def seek(self, place: Place | None) -> dict[str, Any]:
        if place is None:
            return gr.skip()
        found = found_heads(place)
        # The example's words are not in most texts, and nobody has asked for them there.
        unasked = words_of(place.asked) == words_of(Asked()) and "problem" in found
        return no_ranking() if unasked else found

    def search(self, place: Place | None, *words: str) -> dict[str, Any]:
        return gr.skip() if place is None else found_heads(sought(place, *words))

    def roll(self, place: Place | None, layer: float) -> dict[str, Any]:
        return gr.skip() if place is None else rolled_out(place, layer)[0]
