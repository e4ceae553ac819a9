"""Effect: heads switched off or under the other mask, and what the model gives in the end."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import gradio as gr
import torch

import probe
from probe import Ablation, Comparison, Ranking
from probe.analyses.ablate import How
from probe.display.data import Axis, Panel, Sheet
from probe.running.capture import check_heads
from probe.ui import limits, turns, widgets
from probe.ui.figure import figure_component, forbidden, message, token_figure
from probe.ui.offers import Offered
from probe.ui.screen import Half, Place, Screen
from probe.ui.state import Asked, Param
from probe.ui.store import STORE, explain
from probe.ui.views.compare import candidates
from probe.ui.views.heads import models, no_ranking, ranking
from probe.ui.views.view import Page, View, cut_of, offer

HOW: dict[How, str] = {
    "zero": "switched off: zeros",
    "mean": "its mean over the tokens",
    "other mask": "the mask it was not trained with",
}
MAX_PLACES = 4
MAX_LABELS = 8
"""Predictions that are written out; a text may have more mask tokens."""

_LEAD = """
<p class="lead">A large weight is not yet an effect: what a head reads may be ignored by everything after it.
Here the model is run twice, as it is and with heads changed before their output projection, and what comes
out is compared.</p>
"""


class _Stopped(Exception):
    """Nobody waits for the ranking any more."""


def read_heads(written: str) -> list[tuple[int, int] | int]:
    """Heads and whole layers from "3.1, 4.5, 2".

    Raises
    ------
    ProbeError
        If a part of it is neither.
    """
    heads: list[tuple[int, int] | int] = []
    for part in written.replace(",", " ").split():
        numbers = part.split(".")
        if len(numbers) > 2 or not all(n.isascii() and n.isdigit() and len(n) < 5 for n in numbers):
            raise probe.ProbeError(
                f'"{part[:30]}" is neither a head, "3.1" for head 1 of layer 3, nor the number of a layer.'
            )
        heads.append((int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else int(numbers[0]))
    return heads


def chosen_heads(half: Half, asked: Asked) -> list[tuple[int, int] | int]:
    """The heads that are changed: those that were written, else the one of the sliders.

    Raises
    ------
    ProbeError
        If the model has no such heads.
    """
    assert half.comparison is not None
    heads = read_heads(limits.check_text(asked.heads)) or [(half.layer, half.head)]
    check_heads(half.comparison.model, heads)
    return heads


def describe(place: Place) -> dict[str, Any]:
    """The heads' map and what changes without them, as a figure."""
    stamp, half = place.stamp(), place.half()
    if half.comparison is None:
        return message(half.title, half.problem, stamp)
    comparison = half.comparison
    try:
        heads = chosen_heads(half, place.asked)
        result = probe.ablate(
            comparison.model,
            comparison.encoding.text,
            heads,
            how_of(place.asked),
            truncate=place.session.truncate,
        )
    except Exception as error:
        return message(comparison.model.name, explain(error), stamp)
    maps = torch.stack([comparison.from_model(layer, head) for layer, head in result.heads])
    several = len(result.heads) > 1
    tokens, sheet = comparison.encoding.tokens, result.sheet()
    assert sheet is not None
    axes = Axis("query", tokens), Axis("key", tokens)
    weights = Panel(
        f"Mean weights of the {len(result.heads)} heads" if several else "The head's weights",
        "weight",
        maps.mean(0),
        *axes,
        note="as it is, before anything is changed",
        masked=forbidden(comparison, result.heads),
    )
    moved = replace(sheet.panels[0], rows=axes[0])
    return token_figure(
        Sheet("", (weights, moved), sheet.captions),
        comparison.encoding,
        title=comparison.model.name,
        options=place.options,
        query=half.shown_query,
        subtitle=result.summary,
        remarks=[weight_is_not_effect(comparison, result), *outcome(comparison, result)],
        stamp=stamp,
        label=f"Weights of the changed heads of {comparison.model.name}, and how far each token's last "
        "hidden state moves without them.",
    )


def how_of(asked: Asked) -> How:
    """What heads give instead; zeros, if the page sends something that there isn't."""
    return next((known for known in get_args(How) if known == asked.how), "zero")


def weight_is_not_effect(comparison: Comparison, result: Ablation) -> str:
    """One sentence that puts the largest weight beside the effect."""
    # The first token of a causal model sees only itself, so its weight of 1 says nothing.
    start = int(comparison.model.causal and len(result.tokens) > 1)
    maps = torch.stack([comparison.from_model(*place)[start:] for place in result.heads]).amax(0)
    query, key = divmod(int(maps.argmax()), len(result.tokens))
    whose = "this head" if len(result.heads) == 1 else "these heads"
    effect = "changing it" if len(result.heads) == 1 else "changing them"
    if result.changes:
        effect += f" moves the prediction by {result.effect:.3g} nats"
    elif result.shown_label is not None:
        one = result.labels[result.shown_label]
        effect += f' moves the {one.unit} of "{one.label}" by {result.effect:.3g}'
    else:
        effect += f" moves no token's last hidden state by more than {result.effect:.1%} of its length"
    return (
        f"Weight is not effect: the largest weight of {whose} is {float(maps.max()):.3f} "
        f"({result.tokens[query + start]} → {result.tokens[key]}), and {effect}."
    )


def outcome(comparison: Comparison, result: Ablation) -> list[str]:
    """What the model predicts as it is, and with the heads changed."""
    if result.labels:
        more = len(result.labels) - MAX_LABELS
        rest = [f"And {more} more labels."] if more > 0 else []
        return [*(f"Label {one}." for one in result.labels[:MAX_LABELS]), *rest]
    if not result.changes:
        return (
            []
            if comparison.model.predicts_words
            else [f"{comparison.model.name} has no head for words, so its last hidden states are compared."]
        )
    lines = []
    for change in result.changes[:MAX_PLACES]:
        where = "next token" if comparison.model.causal else f"token {change.position}"
        lines += [
            f"Predicted {where}, as it is: {candidates(change.before)}",
            f"Predicted {where}, changed: {candidates(change.after)}",
        ]
    if len(result.changes) > MAX_PLACES:
        lines.append(f"And {len(result.changes) - MAX_PLACES} more places.")
    return [*lines, f"Largest change of a logit there: {result.logit_change:.3g}"]


def listing(result: Ranking, unit: str, stamp: str) -> dict[str, Any]:
    """The heads by their effect, as a table."""
    rows: list[tuple[int, int, Sequence[float | str | None]]] = []
    for ablation in result.ablations:
        ((layer, head),) = ablation.heads
        after = ablation.changes[0].after.candidates[0][0].strip() if ablation.changes else None
        values: list[float | str | None] = [ablation.effect]
        if ablation.changes:
            values += [ablation.logit_change, after]
        rows.append((layer, head, values))
    columns: list[dict[str, Any]] = [{"title": f"effect, {unit}", "about": "What the ranking goes by."}]
    if result.ablations[0].changes:
        columns += [
            {"title": "logit change", "about": "Largest change of a logit."},
            {"title": "then predicted", "about": "The likeliest word afterwards.", "words": True},
        ]
    return ranking(
        f"All heads of {result.ablations[0].model_name}, each changed alone",
        "Heads by their effect",
        columns,
        rows,
        stamp=stamp,
        sort=0,
    )


class Effect(View):
    """The view's components, and what fills them."""

    id, label = "effect", "Effect"
    params = (Param("how", "instead", "zero", tuple(HOW)), Param("heads", "heads", ""))
    both = False
    takes_apart = True

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.models = widgets.widget(f"{self.id}-models")
            with gr.Row(elem_classes="hd-form", elem_id="effect-form"):
                self.how = gr.Radio(
                    [(text, key) for key, text in HOW.items()],
                    value=self.params[0].default,
                    label="What the heads give instead",
                    container=False,
                    scale=3,
                    elem_id="effect-how",
                    elem_classes="choice",
                )
                self.heads = gr.Textbox(
                    "",
                    label="Heads (empty: the one chosen above)",
                    placeholder="3.1, 4.5, or 2 for a whole layer",
                    lines=1,
                    max_lines=1,
                    max_length=500,
                    min_width=240,
                    scale=2,
                    elem_id="effect-heads",
                )
                self.change = gr.Button("Change", size="sm", scale=0, min_width=100, elem_id="effect-run")
            self.figure = figure_component(f"{self.id}-figure")
            gr.HTML('<h2 class="hd-heading">Which heads matter most here?</h2>', apply_default_css=False)
            with gr.Row(elem_classes="hd-form"):
                self.rank = gr.Button("Rank all heads", size="sm", scale=0, min_width=140, elem_id="rank")
                self.stop = gr.Button(
                    "Stop", size="sm", scale=0, min_width=80, visible=False, elem_id="rank-stop"
                )
            self.progress = widgets.widget(f"{self.id}-progress")
            self.ranking = widgets.widget(f"{self.id}-ranking")
            self.place = widgets.watched_state()
            self.subject = widgets.watched_state()
        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        self.place.change(
            self.draw,
            self.place,
            self.figure,
            concurrency_id="run",
            trigger_mode="always_last",
            **private,
        )
        shown = [self.progress, self.ranking, self.rank, self.stop]
        ranked = self.rank.click(
            self.ranked,
            self.subject,
            shown,
            concurrency_id="check",
            trigger_mode="multiple",  # after stopping, the page takes the first for unfinished
            **private,
        )
        # First cancel, then say so: what was on its way would otherwise come last and stay.
        stop = self.stop.click(None, cancels=[ranked], **private)
        stop.then(
            lambda: [widgets.progress("Stopped.", "stopped"), gr.skip(), *_buttons(False)],
            None,
            shown,
            **private,
        )
        # A ranking of another text, model or change says nothing about this one.
        stale = self.subject.change(None, cancels=[ranked], **private)
        stale.then(lambda: [widgets.progress("", ""), no_ranking(), *_buttons(False)], None, shown, **private)

    @property
    def controls(self) -> list[Any]:
        return [self.how, self.heads]

    def listen(self, page: Page) -> None:
        page.asks(self.change.click, self.heads.submit, self.how.input)
        page.turns(self.models)
        page.marks_heads(self.ranking)

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        assert half.comparison is not None
        how = how_of(screen.asked)
        try:
            changed = chosen_heads(half, screen.asked)
        except probe.ProbeError:
            return
        written = screen.asked.heads.strip() or f"{half.layer}.{half.head}"
        model, text = half.comparison.model, half.comparison.encoding.text
        make = partial(probe.ablate, model, text, changed, how, truncate=screen.session.truncate)
        named = re.sub(r"[^0-9.]+", "-", written)[:60]
        file = f"heads-{named}-{how.replace(' ', '-')}"
        yield offer(half, Ablation, f"heads {written}: {HOW[how]}", file, make)

    def lines(self, screen: Screen, half: Half) -> list[str]:
        assert half.comparison is not None
        text, how, cut = half.comparison.encoding.text, how_of(screen.asked), cut_of(screen)
        rank = f"print(probe.rank_heads(model, {text!r}, {how!r}{cut}))"
        try:
            heads = chosen_heads(half, screen.asked)
        except probe.ProbeError:
            return [rank]
        return [f"print(probe.ablate(model, {text!r}, {heads}, {how!r}{cut}))", rank]

    @property
    def outputs(self) -> list[Any]:
        return [self.models, self.place, self.subject]

    def render(self, screen: Screen) -> list[Any]:
        asked = Asked(how=how_of(screen.asked), heads=screen.asked.heads)
        place = screen.place(asked)
        # A ranking is of all heads, however tokens are shown.
        subject = Place(self.id, place.session, place.slot, asked=Asked(how=asked.how))
        return [models(screen), place, subject]

    def draw(self, place: Place | None) -> dict[str, Any]:
        return gr.skip() if place is None else describe(place)

    def ranked(self, subject: Place | None) -> Iterator[list[Any]]:
        """Change every head alone; says how far it is, and ends when nobody listens any more."""
        if subject is None:
            return
        half, how = subject.half(), how_of(subject.asked)
        if half.comparison is None:
            yield [widgets.progress(half.problem, "refused"), no_ranking(), *_buttons(False)]
            return
        text = half.comparison.encoding.text
        try:
            model = STORE.model(half.name, *([text] if isinstance(text, str) else text), each_head=True)
        except probe.ProbeError as error:
            yield [widgets.progress(explain(error), "refused"), no_ranking(), *_buttons(False)]
            return
        news: queue.SimpleQueue[tuple[int, int] | Ranking | Exception | turns.Left] = queue.SimpleQueue()
        stop = threading.Event()

        def progress(done: int, total: int) -> None:
            if stop.is_set():
                raise _Stopped
            news.put((done, total))

        def work() -> None:
            try:
                cut = subject.session.truncate
                with turns.turn():
                    news.put(probe.rank_heads(model, text, how, truncate=cut, progress=progress))
            except (Exception, turns.Left) as error:
                news.put(error)

        threading.Thread(target=turns.apart(work), name="ranking", daemon=True).start()
        try:
            yield [widgets.progress("Starting …", "started"), no_ranking(), *_buttons(True)]
            while True:
                with turns.away():
                    said = news.get()
                while isinstance(said, tuple) and not news.empty():
                    said = news.get()
                if isinstance(said, turns.Left):
                    return
                if isinstance(said, Exception):
                    yield [widgets.progress(explain(said), "refused"), no_ranking(), *_buttons(False)]
                    return
                if isinstance(said, Ranking):
                    first = said.ablations[0]
                    of_labels = first.labels[0].unit if first.labels else "relative"
                    unit = "nats" if first.changes else of_labels
                    table = listing(said, unit, subject.stamp("ranking"))
                    yield [widgets.progress(f"Done ({HOW[how]}).", "done"), table, *_buttons(False)]
                    return
                line = widgets.progress(f"{said[0]} of {said[1]} heads …", f"at {said[0]}")
                yield [line, gr.skip(), gr.skip(), gr.skip()]
        finally:
            stop.set()


def _buttons(running: bool) -> list[gr.Button]:
    """The buttons that start and stop a ranking."""
    return [gr.Button(interactive=not running), gr.Button(visible=running)]
