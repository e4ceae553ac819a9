"""Source and target: models with an encoder and a decoder, whose attention is of three kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
import torch

import probe
from probe import Comparison, Report, Run
from probe.analyses.result import Result
from probe.ui import limits, widgets
from probe.ui.figure import badge, figure_component, grouping, message, token_figure
from probe.ui.header import verdict_lines
from probe.ui.offers import Offer, Offered, slug
from probe.ui.screen import Place, Screen
from probe.ui.state import Asked, Param, Session, within
from probe.ui.store import STORE, explain
from probe.ui.views import bertviz, verify
from probe.ui.views.view import Page, View

KINDS = ("encoder", "decoder", "cross")
EXAMPLE = "google-t5/t5-small"
_KNOWN = (EXAMPLE, "Helsinki-NLP/opus-mt-en-de", "facebook/bart-base")
"""Models that the list offers; any other with an encoder and a decoder can be typed."""

_LEAD = """
<p class="lead">A translator reads one text, the source, and writes another, the target. Its encoder lets the
source look at itself, its decoder lets each token of the target look at those before it, and in between, in
its cross-attention, the target looks at the source. The model here is one of its own, beside the two
above.</p>
"""
_EMPTY = (
    f"No model is loaded. Name one with an encoder and a decoder: {', '.join(_KNOWN)}, another of the "
    "Hub, or a local folder with a T5, BART or Marian. Then give a source, and what the model is to make of "
    "it. The example above does all three."
)
_NO_DRAWING: dict[str, Any] = {"kind": "head", "halves": []}
_CHOICES = [
    ("encoder: source on source", "encoder"),
    ("decoder: target on target", "decoder"),
    ("cross: target on source", "cross"),
]


def possible() -> bool:
    """Whether a model of this kind may be loaded: none of those that a Space runs is one."""
    return not limits.on_space()


# ---- what is drawn


def place_of(screen: Screen) -> Place:
    """What the view is to draw."""
    asked = screen.asked.only(*(param.name for param in SourceTarget.params))
    session = Session(truncate=screen.session.truncate)
    return Place(SourceTarget.id, session, 0, options=screen.options, asked=asked)


def settled(place: Place, model: probe.Model) -> Place:
    """The same with kind, layer and head within the model's range."""
    asked = place.asked
    kind = asked.kind if asked.kind in model.kinds else model.kinds[-1]
    heads = model.heads_of(kind)
    layer = within(asked.pair_layer, len(heads))
    head = within(asked.pair_head, heads[layer])
    return replace(place, asked=asked.changed(kind=kind, pair_layer=layer, pair_head=head))


def compared(place: Place) -> Comparison:
    """The kept comparison of the model on its two texts.

    Raises
    ------
    ProbeError
        If the model or a text can't be taken.
    """
    asked = place.asked
    return STORE.comparison(asked.pair_model, asked.source, place.session.truncate, asked.target)


def run(place: Place) -> Run:
    """A run that gives all weights.

    Raises
    ------
    ProbeError
        If the model or a text can't be taken.
    """
    asked = place.asked
    model = STORE.model(asked.pair_model, asked.source, asked.target)
    return probe.attend(model, asked.source, target=asked.target, truncate=place.session.truncate)


def picture(place: Place, comparison: Comparison) -> dict[str, Any]:
    """The three maps of the chosen head, as a figure."""
    asked, model = place.asked, comparison.model
    head = asked.pair_layer, asked.pair_head, asked.kind
    queries, keys = comparison.sides(asked.kind)
    check, sheet = comparison.check(*head), comparison.only(*head).sheet()
    assert sheet is not None
    return token_figure(
        sheet,
        queries,
        title=model.name,
        options=place.options,
        query=_marked(queries.special),
        keys=None if queries is keys else keys,
        subtitle=f"{check.place} · {_counted(comparison)} · {model.source}",
        badge=badge(check.passed, check.max_abs_error),
        stamp=place.stamp(),
        label=f"Attention weights of {model.name}, {check.place}: from scratch, the model's own and their "
        "difference. Rows are queries, columns are keys.",
        offer=head_offer(place, model),
    )


def head_offer(place: Place, model: probe.Model) -> Offer:
    """The chosen head's comparison, as a file."""
    asked = place.asked
    head = asked.pair_layer, asked.pair_head, asked.kind
    what = f"{asked.kind} layer {asked.pair_layer}, head {asked.pair_head}"
    file = f"{asked.kind}-layer-{asked.pair_layer}-head-{asked.pair_head}-comparison"
    name = f"{slug(model.name)}-{file}"
    return Offer(
        f"pair {file}",
        f"{model.name}, {what}",
        Comparison,
        name,
        lambda: compared(place).only(*head),
        model,
    )


def offers_at(place: Place) -> Iterator[Offered]:
    """Of the model with an encoder and a decoder, once it is loaded."""
    model = STORE.loaded(place.asked.pair_model.strip())
    if model is None or not model.has_target:
        return
    yield head_offer(settled(place, model), model)
    makers: dict[type[Result], tuple[str, Callable[[], Result]]] = {
        Report: ("errors of all heads", lambda: compared(place).report),
        Comparison: ("maps of all heads, twice", lambda: compared(place)),
        Run: ("all heads", lambda: run(place)),
    }
    for kind, (what, make) in makers.items():
        file = f"{slug(model.name)}-{kind.__name__.lower()}"
        label, one = f"{model.name}, {what}", kind is Report
        yield Offer(f"pair {what}", label, kind, file, make, model, one)


def _marked(special: Sequence[bool]) -> int:
    """The query that is marked: the first that stands for text."""
    return next((position for position, is_special in enumerate(special) if not is_special), 0)


def _counted(comparison: Comparison) -> str:
    target = comparison.target
    written = "" if target is None else f", {len(target)} of the target"
    return f"{len(comparison.encoding)} tokens of the source{written}"


def errors(place: Place, comparison: Comparison) -> list[dict[str, Any]]:
    """The errors of all heads of the chosen kind: as a picture, and as a table with the whole report."""
    report, asked = of_kind(comparison.report, place.asked.kind), place.asked
    chosen = asked.pair_layer, asked.pair_head
    drawn = verify.picture({1: report}, place.stamp("errors"), chosen, "; choose a cell to see that head")
    title = f"All {len(report.heads)} heads of the {asked.kind} attention"
    return [{**drawn, "title": title}, verify.listing({1: report}, title, comparison.report.to_json())]


def of_kind(report: Report, kind: str) -> Report:
    """The part of a report that is about one kind of attention."""
    heads = tuple(head for head in report.heads if head.kind == kind)
    return replace(report, heads=heads, layers=(), passed=all(head.passed for head in heads))


def drawing(place: Place, comparison: Comparison) -> dict[str, Any]:
    """bertviz's drawing of the chosen kind, as data for its frame."""
    asked, model = place.asked, comparison.model
    kind = asked.pair_drawing
    heads = model.heads_of(asked.kind)
    (_, rows), (_, columns) = (grouping(side, place.options) for side in comparison.sides(asked.kind))
    size = max(len(rows), len(columns))
    chosen = bertviz.plan(kind, len(heads), max(heads), size, asked.pair_layer, 0)
    which = "all layers" if len(chosen.layers) == len(heads) else f"layer {chosen.layers[0]}"
    card = {
        "slot": 0,
        "title": f"{model.name}, {asked.kind} attention",
        "subtitle": f"{len(rows)} queries · {len(columns)} keys · {which} · {max(heads)} heads",
        "notice": "",
        "drawing": None,
        "stamp": place.stamp("bertviz"),
        "kind": kind,
        "label": f"bertviz {kind} view of the {asked.kind} attention of {model.name}, {which}",
    }
    if chosen.end - chosen.start < size:
        card["notice"] = (
            f"Over {size:,} tokens bertviz would draw too much; the pictures above show all of it."
        )
        return {"kind": kind, "halves": [card]}
    if len(chosen.layers) < len(heads):
        card["notice"] = f"Only layer {chosen.layers[0]} is drawn: all layers would be too much at once."
    maps = torch.stack(
        [
            torch.stack(
                [
                    rows.weights(comparison.from_model(layer, head, asked.kind), columns)
                    for head in range(heads[layer])
                ]
            )
            for layer in chosen.layers
        ]
    )
    keys = list(columns.labels) if asked.kind == "cross" else None
    try:
        card["drawing"] = bertviz.drawing(
            kind, maps, chosen.layers, asked.pair_layer, list(rows.labels), keys=keys
        )
    except Exception as error:
        card["notice"] = explain(error)
    return {"kind": kind, "halves": [card]}


def python_at(place: Place) -> str:
    """Lines that compute, with the toolkit, what the view shows."""
    model = STORE.loaded(place.asked.pair_model.strip())
    if model is None:
        return ""
    asked = settled(place, model).asked
    cut = ", truncate=True" if place.session.truncate else ""
    head = f"{asked.pair_layer}, {asked.pair_head}, {asked.kind!r}"
    return "\n".join(
        [
            "import probe",
            "",
            f"model = probe.load({asked.pair_model.strip()!r})",
            f"comparison = probe.compare(model, {asked.source!r}, {asked.target!r}{cut})",
            "print(comparison.report.verdict)",
            f"print([side.tokens for side in comparison.sides({asked.kind!r})])",
            *(f"print(comparison.{map}({head}))" for map in ("from_scratch", "from_model", "difference")),
            "",
        ]
    )


# ---- the view


class SourceTarget(View):
    """The view's components, and what fills them."""

    id, label = "source-target", "Source and target"
    params = (
        Param("pair_model", "pair", ""),
        Param("source", "source", "translate English to German: The house is wonderful."),
        Param("target", "target", "Das Haus ist wunderbar."),
        Param("kind", "kind", "cross", KINDS),
        Param("pair_layer", "layer", 0),
        Param("pair_head", "head", 0),
        Param("pair_drawing", "drawn", "head", tuple(bertviz.KINDS)),
    )

    def __init__(self) -> None:
        usual = Asked()
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}", visible=possible()) as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            with gr.Column(elem_classes="controls"):
                with gr.Row(equal_height=False, elem_classes="pair-row"):
                    self.model = gr.Dropdown(
                        list(_KNOWN),
                        value=None,
                        label="Model with an encoder and a decoder: a Hub id, or a local folder",
                        allow_custom_value=True,
                        min_width=260,
                        scale=5,
                        elem_id="pair-model",
                    )
                    self.example = gr.Button(
                        f"Example: {EXAMPLE}", size="sm", scale=1, min_width=200, elem_id="pair-example"
                    )
                with gr.Row(elem_classes="pair-row"):
                    self.texts = [
                        gr.Textbox(
                            text,
                            label=label,
                            lines=1,
                            max_lines=4,
                            min_width=260,
                            elem_id=f"pair-{label.lower()}",
                        )
                        for label, text in (("Source", usual.source), ("Target", usual.target))
                    ]
                    self.start = gr.Button("Run", size="sm", scale=0, min_width=96, elem_id="pair-start")
                with gr.Row(elem_classes="pair-row"):
                    self.kind = gr.Radio(
                        _CHOICES,
                        value=usual.kind,
                        label="Kind of attention",
                        show_label=False,
                        container=False,
                        min_width=300,
                        scale=4,
                        elem_id="pair-kind",
                        elem_classes="choice",
                    )
                    self.layer, self.head = self._slider("Layer"), self._slider("Head")
                self.verdict = widgets.widget(f"{self.id}-verdict")
                self.give_up = gr.Button("Give up loading", size="sm", visible=False, elem_id="pair-give-up")
            self.maps = figure_component(self.id)
            with gr.Column(visible="hidden") as self.rest:
                with gr.Row():
                    with gr.Column(min_width=320):
                        self.errors = figure_component(f"{self.id}-errors")
                    with gr.Column(min_width=320):
                        self.table = widgets.widget(f"{self.id}-table")
                gr.HTML('<h2 class="hd-heading">The same in bertviz</h2>', apply_default_css=False)
                self.drawing = gr.Radio(
                    [(text, key) for key, text in bertviz.KINDS.items()],
                    value=usual.pair_drawing,
                    label="View",
                    show_label=False,
                    container=False,
                    elem_id="pair-drawing",
                    elem_classes="choice",
                )
                self.frames = bertviz.frames(f"{self.id}-frames")
            self.place = widgets.watched_state()
        self.drawn = self.place.change(
            self.draw,
            self.place,
            [self.verdict, self.layer, self.head, self.maps, self.rest, self.errors, self.table, self.frames],
            api_visibility="private",
            concurrency_id="run",
            show_progress="hidden",
            trigger_mode="always_last",
        )

    @property
    def controls(self) -> list[Any]:
        return [self.model, *self.texts, self.kind, self.layer, self.head, self.drawing]

    def listen(self, page: Page) -> None:
        page.asks(
            self.start.click,
            *(text.submit for text in self.texts),
            *(control.input for control in (self.kind, self.layer, self.head, self.drawing)),
        )
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        filled_in = self.example.click(self.filled_in, None, [self.model, *self.texts], **quiet)
        told = [self.verdict, self.give_up]
        loading = page.loads([self.model.input, filled_in.then], [self.model], told)
        left = self.give_up.click(None, cancels=loading, api_visibility="private")
        left.then(self.given_up, self.place, [self.model, *told], **quiet)
        page.told(self.drawn.then)
        page.chooses(self.errors, [self.layer, self.head])

    def offers(self, screen: Screen) -> Iterator[Offered]:
        return offers_at(place_of(screen))

    def python(self, screen: Screen) -> str:
        return python_at(place_of(screen))

    @staticmethod
    def _slider(label: str) -> gr.Slider:
        return gr.Slider(
            0, 11, 0, step=1, label=label, buttons=[], min_width=120, scale=1, elem_id=f"pair-{label.lower()}"
        )

    @property
    def outputs(self) -> list[Any]:
        return [self.place]

    def render(self, screen: Screen) -> list[Any]:
        return [place_of(screen)]

    def draw(self, place: Place | None) -> list[Any]:
        """Everything below the controls; the model is run where its result isn't kept."""
        if place is None:
            return [gr.skip()] * 8
        if not place.asked.pair_model.strip():
            return self._nothing(message("No model yet", _EMPTY, place.stamp()))
        try:
            comparison = compared(place)
            return self._result(settled(place, comparison.model), comparison)
        except Exception as error:
            name = place.asked.pair_model[: limits.MAX_NAME]
            return self._nothing(message(name, explain(error), place.stamp()))

    @staticmethod
    def _result(place: Place, comparison: Comparison) -> list[Any]:
        asked = place.asked
        heads = comparison.model.heads_of(asked.kind)
        return [
            widgets.verdict(verdict_lines(comparison), place.stamp("verdict")),
            gr.Slider(maximum=len(heads) - 1, value=asked.pair_layer),
            gr.Slider(maximum=heads[asked.pair_layer] - 1, value=asked.pair_head),
            picture(place, comparison),
            gr.Column(visible=True),
            *errors(place, comparison),
            drawing(place, comparison),
        ]

    @staticmethod
    def _nothing(said: dict[str, Any]) -> list[Any]:
        """No result, and why there is none."""
        hidden = gr.Column(visible="hidden")
        return [
            widgets.verdict([], ""),
            gr.skip(),
            gr.skip(),
            said,
            hidden,
            message("", "", ""),
            widgets.no_table(),
            _NO_DRAWING,
        ]

    def given_up(self, place: Place | None) -> list[Any]:
        """Waiting for a model has taken too long: go back to the one that was shown, if any."""
        shown = place.asked.pair_model if place else ""
        return [shown, widgets.verdict([("none", "Given up.")], "given up"), gr.Button(visible=False)]

    @staticmethod
    def filled_in() -> list[str]:
        """The example: a model, a source and a target."""
        return [EXAMPLE, Asked().source, Asked().target]
