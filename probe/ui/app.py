"""Builds the page: the header, the views, and what happens when something is changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from probe.ui import endpoints, links, widgets
from probe.ui.compare import Compare
from probe.ui.header import EXAMPLES, Header, verdict
from probe.ui.masks import Masks
from probe.ui.state import Screen, Session, look
from probe.ui.verify import Verify

Queries = tuple[int | None, int | None]

# Runs of a model take turns; looking at another layer or head of a kept result does not wait for them.
_RUN: dict[str, Any] = {"api_visibility": "private", "concurrency_id": "run", "concurrency_limit": 1}
_LOOK: dict[str, Any] = {
    "api_visibility": "private",
    "concurrency_id": "look",
    "concurrency_limit": 8,
    "show_progress": "hidden",
    "trigger_mode": "always_last",
}


class Page:
    """The components and the functions behind their events."""

    def __init__(self) -> None:
        self.session = gr.State(Session())
        self.queries = gr.State((None, None))
        self.view = gr.State("compare")
        self.header = Header()
        with gr.Tabs(elem_id="views") as self.tabs:
            self.views = (Compare(), Masks(), Verify())
        self.share = widgets.widget("share")
        self.ids = tuple(view.id for view in self.views)
        first, second = self.header.halves
        self.heads = [first.layer, first.head, second.layer, second.head]
        self.place = [*self.heads, self.header.hide_special, self.view]
        self.names = [first.model, second.model]
        self.shown = [out for view in self.views for out in view.outputs] + [self.share]

    # ---- from inputs to a screen, from a screen to outputs

    def screen(
        self, session: Session, queries: Queries, heads: tuple[float, ...], hide: bool, view: str
    ) -> Screen:
        halves = [look(session, slot, heads[2 * slot], heads[2 * slot + 1], queries[slot]) for slot in (0, 1)]
        return Screen(session, (halves[0], halves[1]), bool(hide), view if view in self.ids else self.ids[0])

    def filled(self, screen: Screen) -> list[Any]:
        """Values for ``self.shown``: only the view in sight is filled, the others when they are opened."""
        values: list[Any] = []
        for view in self.views:
            values += view.render(screen) if view.id == screen.view else [gr.skip()] * len(view.outputs)
        return [*values, self.shared(screen)]

    def shared(self, screen: Screen) -> dict[str, Any]:
        """The value of ``self.share``."""
        return widgets.share(links.query(screen), links.python(screen))

    def everything(self, screen: Screen) -> list[Any]:
        """Values for the ranges of the sliders, the verdict and ``self.shown``."""
        ranges = [
            update
            for controls, half in zip(self.header.halves, screen.halves, strict=True)
            for update in controls.ranges(half)
        ]
        return [*ranges, verdict(screen), *self.filled(screen)]

    # ---- events

    def open(self, request: gr.Request) -> list[Any]:
        """The page was opened: show what its address asks for."""
        place = links.read(dict(request.query_params), self.ids)
        heads = tuple(float(number) for pair in place.heads for number in pair)
        screen = self.screen(place.session, place.queries, heads, place.hide_special, place.view)
        session = place.session
        return [
            session,
            place.queries,
            screen.view,
            gr.Tabs(selected=screen.view),
            session.text,
            session.second,
            *session.models,
            screen.hide_special,
            *self.everything(screen),
        ]

    def run(self, sentence: str, second: str, first_model: str, second_model: str, *place: Any) -> list[Any]:
        """A new sentence or another model: run both models."""
        *heads, hide, view = place
        session = Session(sentence or "", second or "", (first_model or "", second_model or ""))
        screen = self.screen(session, (None, None), tuple(heads), hide, view)
        return [session, (None, None), *self.everything(screen)]

    def move(self, session: Session, queries: Queries, *place: Any) -> list[Any]:
        """Another layer, head, view or way of showing: no model is run."""
        *heads, hide, view = place
        return self.filled(self.screen(session, queries, tuple(heads), hide, view))

    def pick(self, slot: int) -> Callable[..., list[Any]]:
        """What happens when a token or a cell is chosen; the figure itself has marked it already."""

        def pick(session: Session, queries: Queries, event: gr.EventData, *place: Any) -> list[Any]:
            row = event._data.get("row")
            chosen = int(row) if isinstance(row, int | float) else None
            queries = (chosen, queries[1]) if slot == 0 else (queries[0], chosen)
            *heads, hide, view = place
            return [queries, self.shared(self.screen(session, queries, tuple(heads), hide, view))]

        return pick

    def choose_head(self, slot: int) -> Callable[..., list[Any]]:
        """What happens when a cell of a layer x head picture is chosen: the first view shows that head."""

        def choose_head(
            session: Session, queries: Queries, hide: bool, event: gr.EventData, *heads: float
        ) -> list[Any]:
            places = list(heads)
            places[2 * slot : 2 * slot + 2] = event._data["row"], event._data["col"]
            screen = self.screen(session, queries, tuple(places), hide, self.ids[0])
            return [*places, screen.view, gr.Tabs(selected=screen.view), *self.filled(screen)]

        return choose_head

    def example(self, text: str, *rest: Any) -> list[Any]:
        """One of the example sentences was chosen."""
        return [text, *self.run(text, *rest)]

    def turn(self, view: str, *inputs: Any) -> list[Any]:
        """Another view was opened."""
        return [view, *self.move(*inputs, view)]

    def listen(self, demo: gr.Blocks) -> None:
        """Bind the functions to the components."""
        header = self.header
        state = [self.session, self.queries]
        ran = [*self.heads, header.verdict, *self.shown]
        page = [self.view, self.tabs, header.sentence, header.second, *self.names, header.hide_special]
        busy: dict[str, Any] = {"show_progress": "minimal", "show_progress_on": [header.verdict]}
        demo.load(self.open, None, [*state, *page, *ran], show_progress="hidden", **_RUN)
        gr.on(
            [
                header.sentence.submit,
                header.second.submit,
                header.run.click,
                *(name.input for name in self.names),
            ],
            self.run,
            [header.sentence, header.second, *self.names, *self.place],
            [*state, *ran],
            **busy,
            **_RUN,
        )
        for button, (_, text) in zip(header.examples, EXAMPLES, strict=True):
            button.click(
                partial(self.example, text),
                [header.second, *self.names, *self.place],
                [header.sentence, *state, *ran],
                **busy,
                **_RUN,
            )
        gr.on(
            [*(slider.input for slider in self.heads), header.hide_special.input],
            self.move,
            [*state, *self.place],
            self.shown,
            **_LOOK,
        )
        for view in self.views:
            view.tab.select(
                partial(self.turn, view.id), [*state, *self.place[:-1]], [self.view, *self.shown], **_LOOK
            )
            for slot, figure in enumerate(view.figures):
                if isinstance(view, Verify):
                    figure.select(
                        self.choose_head(slot),
                        [*state, header.hide_special, *self.heads],
                        [*self.heads, self.view, self.tabs, *self.shown],
                        **_LOOK,
                    )
                else:
                    figure.select(self.pick(slot), [*state, *self.place], [self.queries, self.share], **_LOOK)


def build() -> gr.Blocks:
    """The app, ready to be queued and launched."""
    with gr.Blocks(title="Attention, checked head by head", analytics_enabled=False, fill_width=True) as demo:
        Page().listen(demo)
        endpoints.add()
    return demo
