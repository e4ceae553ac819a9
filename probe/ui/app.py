"""Builds the page: the header, the views, and what happens when something is changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

import probe
from probe.models.hub import arrived
from probe.ui import downloads, endpoints, limits, links, turns, widgets
from probe.ui.answering import Answering
from probe.ui.figure import grouping
from probe.ui.header import EXAMPLES, Header, verdict
from probe.ui.screen import Screen, look
from probe.ui.state import PARAMS, Asked, Focus, Options, Session
from probe.ui.store import STORE
from probe.ui.views import VIEWS
from probe.ui.views.view import View

# What a visitor asks of one kind is answered in the order of the questions, so that the newest answer stays
# on the page. A look at another layer or head of a kept result does not wait for that visitor's runs.
_RUN: dict[str, Any] = {"api_visibility": "private", "concurrency_id": "run"}
# What is asked while an answer is on its way is answered next, and what was asked last stays on the page.
_LAST: dict[str, Any] = {"trigger_mode": "always_last"}
_LOOK: dict[str, Any] = {
    "api_visibility": "private",
    "concurrency_id": "look",
    "show_progress": "hidden",
    **_LAST,
}

_LOAD: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "concurrency_id": "load",
    "trigger_mode": "multiple",  # after giving up, the page takes the first for unfinished
}

# Which view is in sight, once the page has drawn it. Gradio also says that the first view is selected when
# the page appears, and on a slow machine does so after the view that the address asks for has been opened.
_IN_SIGHT = """async () => {
    await new Promise((resolve) => setTimeout(resolve));
    return document.querySelector('#views [role=tab][aria-selected=true]').dataset.tabId;
}"""


class Page:
    """The components, and the functions behind their events."""

    def __init__(self) -> None:
        self.session = gr.State(Session())
        self.focus = gr.State(Focus())
        # Both live in the browser: which view is in sight, and which one the last answer filled. The latter
        # is empty until ``open`` has answered: what the page sends before that are the first values of its
        # controls, not those that the address asks for.
        self.view = gr.Textbox(VIEWS[0].id, visible=False)
        self.filled_view = gr.Textbox("", visible=False)
        self.header = Header()
        with gr.Tabs(elem_id="views", overflow_behavior="wrap") as self.tabs:
            self.views = [view() for view in VIEWS]
        self.ids = tuple(view.id for view in self.views if view.tab.visible)
        self.of_cells = next(view.id for view in self.views if view.opens_cells)
        self.downloads = widgets.widget("downloads")
        self.download = widgets.widget("download"), widgets.widget("download-progress")
        self.share = widgets.widget("share")
        halves = self.header.halves
        self.heads = [slider for half in halves for slider in (half.layer, half.head)]
        self.options: list[Any] = [self.header.hide_special, self.header.words]
        by_name = {
            param.name: control
            for view in self.views
            for param, control in zip(view.params, view.controls, strict=True)
        }
        self.asked = [by_name[name] for name in PARAMS]
        self.typed = [
            self.header.sentence,
            self.header.second,
            *(half.model for half in halves),
            self.header.truncate,
        ]
        # What the view in sight was asked when it was filled last: in a box may stand what nobody has sent.
        self.drawn = gr.State(Asked())
        place = [self.session, self.focus, self.view, *self.heads, *self.options]
        self.looked = [*place, *self.asked]
        self.kept = [*place, self.drawn]
        self.shown = [
            *(output for view in self.views for output in view.outputs),
            self.downloads,
            self.share,
            self.drawn,
            self.filled_view,
        ]
        self.marking = [*self.heads, self.view, self.tabs, *self.shown]
        self.ran = [*self.heads, self.header.verdict, *self.shown]
        state = [self.session, self.focus]
        self.opened = [*state, self.view, self.tabs, *self.typed, *self.options, *self.asked, *self.ran]

    # ---- from inputs to a screen, from a screen to outputs

    def screen(self, session: Session, focus: Focus, view: str, *rest: Any) -> Screen:
        """The screen that the values of ``self.looked`` describe."""
        return self.screen_of(session, focus, view, rest[:4], rest[4:6], Asked.of(rest[6:]))

    def as_drawn(self, *kept: Any) -> Screen:
        """The screen as it was filled last, from the values of ``self.kept``."""
        session, focus, view, *rest, asked = kept
        return self.screen_of(session, focus, view, rest[:4], rest[4:], asked)

    def screen_of(
        self,
        session: Session,
        focus: Focus,
        view: str,
        heads: Sequence[Any],
        options: Sequence[Any],
        asked: Asked,
    ) -> Screen:
        halves = [
            look(session, slot, heads[2 * slot], heads[2 * slot + 1], focus.queries[slot]) for slot in (0, 1)
        ]
        hide, words = options
        view = view if view in self.ids else self.ids[0]
        return Screen(session, (halves[0], halves[1]), focus, Options(bool(hide), bool(words)), view, asked)

    def in_sight(self, screen: Screen) -> View:
        """The view in sight."""
        return next(view for view in self.views if view.id == screen.view)

    def filled(self, screen: Screen) -> list[Any]:
        """Values for ``self.shown``: only the view in sight is filled, the others when they are opened."""
        values: list[Any] = []
        for view in self.views:
            values += view.render(screen) if view.id == screen.view else [gr.skip()] * len(view.outputs)
        return [*values, self.listed(screen), self.shared(screen), screen.asked, screen.view]

    def listed(self, screen: Screen) -> dict[str, Any]:
        """The value of ``self.downloads``."""
        return downloads.listing(list(self.in_sight(screen).offers(screen)))

    def shared(self, screen: Screen) -> dict[str, Any]:
        """The value of ``self.share``."""
        lines = self.in_sight(screen).python(screen)
        return widgets.share(links.query(screen), lines, links.left_out(screen))

    def everything(self, screen: Screen) -> list[Any]:
        """Values for the sliders, with their ranges, the verdict and ``self.shown``."""
        ranges = [
            update
            for controls, half in zip(self.header.halves, screen.halves, strict=True)
            for update in controls.ranges(half)
        ]
        return [*ranges, verdict(screen), *self.filled(screen)]

    # ---- events

    def open(self, request: gr.Request) -> list[Any]:
        """The page was opened: show what its address asks for."""
        return self.at(dict(request.query_params))

    def go(self, event: gr.EventData) -> list[Any]:
        """Back or Forward has gone to an address: show what it asks for."""
        address = str(event._data.get("address", ""))
        values = self.at(dict(parse_qsl(address.removeprefix("?"), keep_blank_values=True)))
        values[self.opened.index(self.share)]["at"] = address
        return values

    def at(self, params: dict[str, str]) -> list[Any]:
        """Values for everything, from an address."""
        asks = links.read(params, self.ids)
        options = asks.options.hide_special, asks.options.words
        heads = [number for pair in asks.heads for number in pair]
        screen = self.screen_of(asks.session, asks.focus, asks.view, heads, options, asks.asked)
        return [
            screen.session,
            screen.focus,
            screen.view,
            gr.Tabs(selected=screen.view),
            screen.session.text,
            screen.session.second,
            *screen.session.models,
            screen.session.truncate,
            *options,
            *asks.asked.values,
            *self.everything(screen),
        ]

    def run(
        self,
        sentence: str,
        second: str,
        first_model: str,
        second_model: str,
        truncate: bool,
        focus: Focus,
        view: str,
        *place: Any,
    ) -> list[Any]:
        """A new sentence or another model: run both models. Positions chosen in the last text are gone."""
        models = first_model or "", second_model or ""
        session = Session(sentence or "", second or "", models, bool(truncate))
        screen = self.screen(session, Focus(slot=focus.slot), view, *place)
        return [session, screen.focus, *self.everything(screen)]

    def load(self, *names: str) -> Iterator[list[Any]]:
        """Another model was chosen: load it, and say how far it is, before it is run."""
        line: Any = gr.skip()
        for name in names:
            try:
                name = limits.check_model(name)
            except probe.ProbeError:
                continue  # the run says so, in the model's own place
            # Giving up closes this generator, and so leaves the block.
            with STORE.loading(name) as load:
                while not load.done():
                    done = f": {arrived(name) / 1e6:,.1f} MB so far" if not STORE.at_hand(name) else ""
                    saying = widgets.verdict([("none", f"Loading {name}{done} …")], "loading")
                    yield [saying, gr.Button(visible=True)]
                    line = widgets.verdict([], "")  # once that is over
                    with turns.away():
                        wait([load], timeout=0.5)
        yield [line, gr.Button(visible=False)]

    def give_up(self, session: Session, *looked: Any) -> list[Any]:
        """Waiting for a model has taken too long: go back to those that were shown."""
        return [*session.models, verdict(self.screen(session, *looked)), gr.Button(visible=False)]

    def example(self, text: str, *rest: Any) -> list[Any]:
        """One of the example sentences was chosen."""
        return [text, *self.run(text, *rest)]

    def move(self, filled_view: str, *looked: Any) -> list[Any]:
        """Another layer, head or way of showing: no model is run."""
        return self.filled(self.screen(*looked)) if filled_view else self.nothing()

    def turn(self, filled_view: str, *looked: Any) -> list[Any]:
        """A view came into sight: fill it, unless the last answer has.

        Gradio also says so of the first view when the page appears, and of a view that was opened from here.
        """
        view = looked[self.looked.index(self.view)]
        return self.nothing() if filled_view in ("", view) else self.filled(self.screen(*looked))

    def nothing(self) -> list[Any]:
        """Leaves ``self.shown`` as it is."""
        return [gr.skip()] * len(self.shown)

    def pick(self, slot: int) -> Callable[..., list[Any]]:
        """What happens when a token or a cell is chosen: a cell is opened in the steps."""

        def pick(event: gr.EventData, *kept: Any) -> list[Any]:
            screen = self.as_drawn(*kept)
            comparison = screen.halves[slot].comparison
            if comparison is None:
                return [gr.skip(), gr.skip(), gr.skip(), *self.nothing()]
            whole, _ = grouping(comparison.encoding, screen.options)
            query, key = (_position(whole.pieces, event._data.get(name)) for name in ("row", "col"))
            if query is None:
                return [gr.skip(), gr.skip(), gr.skip(), *self.nothing()]
            focus = screen.focus.chose(slot, query, key)
            halves = list(screen.halves)
            halves[slot] = replace(halves[slot], query=query)
            screen = replace(screen, focus=focus, halves=(halves[0], halves[1]))
            if key is None:
                shown = self.nothing()
                shown[self.shown.index(self.share)] = self.shared(screen)
                return [focus, gr.skip(), gr.skip(), *shown]
            screen = replace(screen, view=self.of_cells)
            return [focus, screen.view, gr.Tabs(selected=screen.view), *self.filled(screen)]

        return pick

    def step(self, event: gr.EventData, session: Session, focus: Focus, *place: Any) -> list[Any]:
        """Another model or query was chosen in the steps."""
        if event._data.get("slot") in (0, 1):
            focus = Focus(focus.queries, event._data["slot"])
        elif isinstance(event._data.get("query"), int):
            focus = focus.chose(focus.slot, event._data["query"])
        return [focus, *self.filled(self.screen(session, focus, *place))]

    def chosen(self, controls: Sequence[Any]) -> Callable[..., list[Any]]:
        """What happens when a cell becomes the values of two controls of a view."""

        def chosen(event: gr.EventData, *looked: Any) -> list[Any]:
            values, cell = list(looked), (event._data["row"], event._data["col"])
            for control, value in zip(controls, cell, strict=True):
                values[self.looked.index(control)] = value
            return [*cell, *self.filled(self.screen(*values))]

        return chosen

    def tell(self, *kept: Any) -> list[Any]:
        """What there is to take along, once a view that draws by itself has its result."""
        screen = self.as_drawn(*kept)
        return [self.listed(screen), self.shared(screen)]

    def choose_head(self, slot: int) -> Callable[..., list[Any]]:
        """What happens when a cell of a layer x head picture is chosen: the first view shows that head."""

        def choose_head(
            event: gr.EventData, session: Session, focus: Focus, view: str, *place: Any
        ) -> list[Any]:
            heads = list(place[:4])
            heads[2 * slot : 2 * slot + 2] = event._data["row"], event._data["col"]
            screen = self.screen(session, focus, VIEWS[0].id, *heads, *place[4:])
            return [*heads, screen.view, gr.Tabs(selected=screen.view), *self.filled(screen)]

        return choose_head

    def mark_head(
        self, event: gr.EventData, session: Session, focus: Focus, view: str, *place: Any
    ) -> list[Any]:
        """A head was marked in a view of all heads: the sliders go there, ``open`` opens the first view."""
        heads = list(place[:4])
        heads[2 * focus.slot : 2 * focus.slot + 2] = event._data["row"], event._data["col"]
        view = VIEWS[0].id if event._data.get("open") else view
        screen = self.screen(session, focus, view, *heads, *place[4:])
        return [*heads, screen.view, gr.Tabs(selected=screen.view), *self.filled(screen)]

    def save(self, event: gr.EventData, *kept: Any) -> Iterator[list[Any]]:
        """A file was asked for."""
        screen = self.as_drawn(*kept)
        offers, asked = list(self.in_sight(screen).offers(screen)), event._data
        answers = downloads.answer(offers, screen.options, asked.get("key"), asked.get("format"))
        yield from map(list, answers)

    # ---- what the page does for its views; see ``View``

    def asks(self, *events: Any) -> None:
        gr.on([*events], self.move, [self.filled_view, *self.looked], self.shown, **_LOOK)

    def opens_steps(self, figure: gr.HTML, slot: int) -> None:
        figure.select(self.pick(slot), self.kept, [self.focus, self.view, self.tabs, *self.shown], **_LOOK)

    def turns(self, component: gr.HTML) -> None:
        component.select(self.step, self.looked, [self.focus, *self.shown], **_LOOK)

    def marks_heads(self, component: gr.HTML) -> None:
        component.select(self.mark_head, self.looked, self.marking, **_LOOK)

    def opens_heads(self, figure: gr.HTML, slot: int) -> None:
        figure.select(self.choose_head(slot), self.looked, self.marking, **_LOOK)

    def chooses(self, component: gr.HTML, controls: list[Any]) -> None:
        component.select(self.chosen(controls), self.looked, [*controls, *self.shown], **_LOOK)

    def told(self, event: Callable[..., Any]) -> None:
        event(self.tell, self.kept, [self.downloads, self.share], **_LOOK)

    def loads(self, begins: list[Callable[..., Any]], names: list[Any], said: list[Any]) -> list[Any]:
        loading = [begin(self.load, names, said, **_LOAD) for begin in begins]
        for one in loading:
            one.success(self.move, [self.filled_view, *self.looked], self.shown, **_LOOK)
        return loading

    # ---- its own events

    def listen(self, demo: gr.Blocks) -> None:
        """Bind the functions to the components."""
        header, state = self.header, [self.session, self.focus]
        typed = [*self.typed, self.focus, *self.looked[2:]]
        busy: dict[str, Any] = {"show_progress": "minimal", "show_progress_on": [header.verdict]}
        again = [self.filled_view, *self.looked]
        demo.load(self.open, None, self.opened, show_progress="hidden", **_RUN)
        self.share.select(self.go, None, self.opened, show_progress="hidden", **_RUN, **_LAST)

        def run_on(
            begin: Callable[..., Any], function: Callable[..., Any], inputs: list[Any], *more: Any
        ) -> None:
            ran = begin(function, inputs, [*more, *state, *self.ran], **busy, **_RUN, **_LAST)
            # Whoever opened another view in the meantime sees the new sentence there.
            ran.then(self.turn, again, self.shown, **_LOOK)

        asks_anew = [header.sentence.submit, header.second.submit, header.run.click, header.truncate.input]
        run_on(partial(gr.on, asks_anew), self.run, typed)
        for button, (_, text) in zip(header.examples, EXAMPLES, strict=True):
            run_on(button.click, partial(self.example, text), typed[1:], header.sentence)
        models = [half.model for half in header.halves]
        told = [header.verdict, header.give_up]
        loading = gr.on([model.input for model in models], self.load, models, told, **_LOAD)
        run_on(loading.success, self.run, typed)
        # First cancel, then say so: what was on its way would otherwise come last and stay.
        given_up = header.give_up.click(None, cancels=[loading], api_visibility="private")
        given_up.then(self.give_up, self.looked, [*models, *told], **_LOOK)
        self.asks(*(control.input for control in (*self.heads, *self.options)))
        for view in self.views:
            # The name of the view is set in the browser at once, so that a run started now is shown there.
            selected = view.tab.select(None, None, self.view, js=_IN_SIGHT)
            selected.then(self.turn, again, self.shown, **_LOOK)
            view.listen(self)
        saved = self.downloads.select(
            self.save,
            self.kept,
            [*self.download],
            show_progress="hidden",
            trigger_mode="multiple",  # a second file may be asked for while the first is written
            **_RUN,
        )
        # Gradio keeps what it has sent to a visitor; not a file that the visitor has.
        saved.then(lambda: None, None, self.download[0], api_visibility="private", show_progress="hidden")


def _position(pieces: tuple[tuple[int, int], ...], group: Any) -> int | None:
    """The first token of a token or word by its number, or None."""
    return pieces[group][0] if isinstance(group, int) and 0 <= group < len(pieces) else None


def build() -> gr.Blocks:
    """The app, ready to be queued and launched."""
    # After every answer Gradio would make a table of all answers so far, for a page of statistics.
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000")
    title = "Attention, checked head by head"
    with Answering(title=title, analytics_enabled=False, fill_width=True) as demo:
        Page().listen(demo)
        endpoints.add()
    return demo
