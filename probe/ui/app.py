"""Builds the page: the header, the views, and what happens when something is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import gradio as gr

import probe
from probe.models.hub import arrived
from probe.ui import downloads, endpoints, limits, links, widgets
from probe.ui.bertviz_view import Bertviz
from probe.ui.compare import AVERAGES, Compare
from probe.ui.effect import Effect
from probe.ui.figure import grouping
from probe.ui.header import EXAMPLES, Header, verdict
from probe.ui.heads import Heads
from probe.ui.learn import Learn
from probe.ui.masks import Masks
from probe.ui.sentences import Sentences
from probe.ui.source_target import SourceTarget
from probe.ui.state import STORE, Asked, Focus, Options, Screen, Session, look
from probe.ui.steps import Steps
from probe.ui.verify import Verify, read_file, stopped

# Runs of a model take turns; looking at another layer or head of a kept result does not wait for them. Looks
# take turns too, so that answers come in the order of the questions and the newest one stays on the page.
_RUN: dict[str, Any] = {"api_visibility": "private", "concurrency_id": "run", "concurrency_limit": 1}
# What is asked while an answer is on its way is answered next, and what was asked last stays on the page.
_LAST: dict[str, Any] = {"trigger_mode": "always_last"}
_LOOK: dict[str, Any] = {
    "api_visibility": "private",
    "concurrency_id": "look",
    "concurrency_limit": 1,
    "show_progress": "hidden",
    **_LAST,
}

# Which view is in sight, once the page has drawn it. Gradio also says that the first view is selected when
# the page appears, and on a slow machine does so after the view that the address asks for has been opened.
_IN_SIGHT = """async () => {
    await new Promise((resolve) => setTimeout(resolve));
    return document.querySelector('#views [role=tab][aria-selected=true]').dataset.tabId;
}"""


class Page:
    """The components and the functions behind their events."""

    def __init__(self) -> None:
        self.session = gr.State(Session())
        self.focus = gr.State(Focus())
        # Both live in the browser: which view is in sight, and which one the last answer filled. The latter
        # is empty until ``open`` has answered: what the page sends before that are the first values of its
        # controls, not those that the address asks for.
        self.view = gr.Textbox("compare", visible=False)
        self.filled_view = gr.Textbox("", visible=False)
        self.header = Header()
        with gr.Tabs(elem_id="views", overflow_behavior="wrap") as self.tabs:
            self.compare, self.masks, self.steps, self.verify = Compare(), Masks(), Steps(), Verify()
            self.all_heads, self.sentences, self.effect = Heads(), Sentences(), Effect()
            self.bertviz, self.pair, learn = Bertviz(), SourceTarget(), Learn()
        first = self.compare, self.masks, self.steps, self.verify
        self.asking = self.sentences, self.all_heads, self.effect, self.bertviz, self.pair
        self.views: tuple[Any, ...] = (
            *first,
            self.all_heads,
            self.sentences,
            self.effect,
            self.bertviz,
            self.pair,
            learn,
        )
        self.ids = tuple(view.id for view in self.views if view.tab.visible)
        self.downloads = widgets.widget("downloads")
        self.download = widgets.widget("download"), widgets.widget("download-progress")
        self.share = widgets.widget("share")
        halves = self.header.halves
        self.heads = [slider for half in halves for slider in (half.layer, half.head)]
        self.options: list[Any] = [
            self.header.hide_special,
            self.header.words,
            self.compare.average,
            self.masks.whole_model,
        ]
        # In the order of the fields of ``Asked``.
        self.asked: list[Any] = [
            *self.sentences.texts,
            *self.all_heads.words,
            self.effect.how,
            self.effect.heads,
            self.bertviz.kind,
            *self.pair.controls,
        ]
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

    # ---- from inputs to a screen, from a screen to outputs

    def screen(self, session: Session, focus: Focus, view: str, *rest: Any) -> Screen:
        """The screen that the values of ``self.looked`` describe."""
        heads, (hide, words, average, whole), asked = rest[:4], rest[4:8], rest[8:]
        halves = [
            look(session, slot, heads[2 * slot], heads[2 * slot + 1], focus.queries[slot]) for slot in (0, 1)
        ]
        options = Options(bool(hide), bool(words), average if average in AVERAGES else "head", bool(whole))
        return Screen(
            session,
            (halves[0], halves[1]),
            focus,
            options,
            view if view in self.ids else self.ids[0],
            Asked.of(asked),
        )

    def as_drawn(self, *kept: Any) -> Screen:
        """The screen as it was filled last, from the values of ``self.kept``."""
        *place, asked = kept
        return self.screen(*place, *astuple(asked))

    def filled(self, screen: Screen) -> list[Any]:
        """Values for ``self.shown``: only the view in sight is filled, the others when they are opened."""
        values: list[Any] = []
        for view in self.views:
            values += view.render(screen) if view.id == screen.view else [gr.skip()] * len(view.outputs)
        return [*values, downloads.listing(screen), self.shared(screen), screen.asked, screen.view]

    def shared(self, screen: Screen) -> dict[str, Any]:
        """The value of ``self.share``."""
        return widgets.share(links.query(screen), links.python(screen), links.left_out(screen))

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
        place = links.read(dict(request.query_params), self.ids)
        options, asked = place.options, astuple(place.asked)
        screen = self.screen(
            place.session,
            Focus(place.queries, place.slot),
            place.view,
            *(number for pair in place.heads for number in pair),
            options.hide_special,
            options.words,
            options.average,
            options.whole_model,
            *asked,
        )
        return [
            screen.session,
            screen.focus,
            screen.view,
            gr.Tabs(selected=screen.view),
            screen.session.text,
            screen.session.second,
            *screen.session.models,
            screen.session.truncate,
            options.hide_special,
            options.words,
            options.average,
            options.whole_model,
            *asked,
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
            screen = replace(screen, view=self.steps.id)
            return [focus, screen.view, gr.Tabs(selected=screen.view), *self.filled(screen)]

        return pick

    def step(self, event: gr.EventData, session: Session, focus: Focus, *place: Any) -> list[Any]:
        """Another model or query was chosen in the steps."""
        if event._data.get("slot") in (0, 1):
            focus = Focus(focus.queries, event._data["slot"])
        elif isinstance(event._data.get("query"), int):
            focus = focus.chose(focus.slot, event._data["query"])
        return [focus, *self.filled(self.screen(session, focus, *place))]

    def choose_pair_head(self, event: gr.EventData, *looked: Any) -> list[Any]:
        """A cell of the layer x head picture of "Source and target" was chosen."""
        values, chosen = list(looked), (event._data["row"], event._data["col"])
        for slider, value in zip((self.pair.layer, self.pair.head), chosen, strict=True):
            values[self.looked.index(slider)] = value
        return [*chosen, *self.filled(self.screen(*values))]

    def tell(self, *kept: Any) -> list[Any]:
        """What there is to take along, once a view that draws by itself has its result."""
        screen = self.as_drawn(*kept)
        return [downloads.listing(screen), self.shared(screen)]

    def choose_head(self, slot: int) -> Callable[..., list[Any]]:
        """What happens when a cell of a layer x head picture is chosen: the first view shows that head."""

        def choose_head(
            event: gr.EventData, session: Session, focus: Focus, view: str, *place: Any
        ) -> list[Any]:
            heads = list(place[:4])
            heads[2 * slot : 2 * slot + 2] = event._data["row"], event._data["col"]
            screen = self.screen(session, focus, self.compare.id, *heads, *place[4:])
            return [*heads, screen.view, gr.Tabs(selected=screen.view), *self.filled(screen)]

        return choose_head

    def mark_head(
        self, event: gr.EventData, session: Session, focus: Focus, view: str, *place: Any
    ) -> list[Any]:
        """A head was marked in a view of all heads: the sliders go there, ``open`` opens the first view."""
        heads = list(place[:4])
        heads[2 * focus.slot : 2 * focus.slot + 2] = event._data["row"], event._data["col"]
        view = self.compare.id if event._data.get("open") else view
        screen = self.screen(session, focus, view, *heads, *place[4:])
        return [*heads, screen.view, gr.Tabs(selected=screen.view), *self.filled(screen)]

    def save(self, event: gr.EventData, *kept: Any) -> Iterator[list[Any]]:
        """A file was asked for."""
        asked = event._data.get("key"), event._data.get("format")
        yield from map(list, downloads.answer(self.as_drawn(*kept), *asked))

    def listen(self, demo: gr.Blocks) -> None:
        """Bind the functions to the components."""
        header, state = self.header, [self.session, self.focus]
        typed = [*self.typed, self.focus, *self.looked[2:]]
        ran = [*self.heads, header.verdict, *self.shown]
        opened = [*state, self.view, self.tabs, *self.typed, *self.options, *self.asked, *ran]
        busy: dict[str, Any] = {"show_progress": "minimal", "show_progress_on": [header.verdict]}
        demo.load(self.open, None, opened, show_progress="hidden", **_RUN)
        look_again = [self.filled_view, *self.looked]
        ran_again = gr.on(
            [
                header.sentence.submit,
                header.second.submit,
                header.run.click,
                header.truncate.input,
            ],
            self.run,
            typed,
            [*state, *ran],
            **busy,
            **_RUN,
            **_LAST,
        )
        models = [half.model for half in header.halves]
        loads: dict[str, Any] = {
            "show_progress": "hidden",
            "api_visibility": "private",
            "concurrency_id": "load",
            "concurrency_limit": 4,
            "trigger_mode": "multiple",  # after giving up, the page takes the first for unfinished
        }
        loading = gr.on(
            [model.input for model in models], self.load, models, [header.verdict, header.give_up], **loads
        )
        loaded = loading.success(self.run, typed, [*state, *ran], **busy, **_RUN, **_LAST)
        loaded.then(self.turn, look_again, self.shown, **_LOOK)
        # First cancel, then say so: what was on its way would otherwise come last and stay.
        given_up = header.give_up.click(None, cancels=[loading], api_visibility="private")
        given_up.then(self.give_up, self.looked, [*models, header.verdict, header.give_up], **_LOOK)
        pair = self.pair
        filled_in = pair.example.click(
            pair.filled_in, None, [pair.model, *pair.texts], api_visibility="private", show_progress="hidden"
        )
        told = [pair.verdict, pair.give_up]
        pair_loads = [
            begin(self.load, pair.model, told, **loads) for begin in (pair.model.input, filled_in.then)
        ]
        for pair_load in pair_loads:
            pair_load.success(self.move, look_again, self.shown, **_LOOK)
        left = pair.give_up.click(None, cancels=pair_loads, api_visibility="private")
        left.then(pair.given_up, pair.place, [pair.model, *told], **_LOOK)
        pair.drawn.then(self.tell, self.kept, [self.downloads, self.share], **_LOOK)
        pair.errors.select(self.choose_pair_head, self.looked, [pair.layer, pair.head, *self.shown], **_LOOK)
        # Whoever opened another view in the meantime sees the new sentence there.
        ran_again.then(self.turn, look_again, self.shown, **_LOOK)
        for button, (_, text) in zip(header.examples, EXAMPLES, strict=True):
            chosen = button.click(
                partial(self.example, text),
                typed[1:],
                [header.sentence, *state, *ran],
                **busy,
                **_RUN,
                **_LAST,
            )
            chosen.then(self.turn, look_again, self.shown, **_LOOK)
        gr.on(
            [
                *(control.input for control in (*self.heads, *self.options)),
                *(ask for view in self.asking for ask in view.asks),
            ],
            self.move,
            look_again,
            self.shown,
            **_LOOK,
        )
        for view in self.views:
            # The name of the view is set in the browser at once, so that a run started now is shown there.
            selected = view.tab.select(None, None, self.view, js=_IN_SIGHT)
            selected.then(self.turn, look_again, self.shown, **_LOOK)
        for slot in (0, 1):
            for figure in (self.compare.figures[slot], self.masks.figures[slot]):
                figure.select(
                    self.pick(slot), self.kept, [self.focus, self.view, self.tabs, *self.shown], **_LOOK
                )
            self.verify.figures[slot].select(
                self.choose_head(slot),
                self.looked,
                [*self.heads, self.view, self.tabs, *self.shown],
                **_LOOK,
            )
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
        verify = self.verify
        verify.upload.upload(read_file, verify.upload, verify.texts, api_visibility="private")
        checking = verify.start.click(
            verify.check,
            [self.session, verify.texts, verify.dtype],
            verify.batch_outputs,
            show_progress="hidden",
            api_visibility="private",
            concurrency_id="check",
            concurrency_limit=1,
            trigger_mode="multiple",
        )
        stop = verify.stop.click(None, cancels=[checking], api_visibility="private")
        stop.then(stopped, None, verify.progress, **_LOOK)
        choosers = self.all_heads.models, self.sentences.models, self.effect.models
        for chooser in (self.steps.trace, *choosers):
            chooser.select(self.step, self.looked, [self.focus, *self.shown], **_LOOK)
        all_heads = self.all_heads.maps, self.all_heads.found, self.all_heads.measures
        for ranked in (*all_heads, self.effect.ranking):
            marking = [*self.heads, self.view, self.tabs, *self.shown]
            ranked.select(self.mark_head, self.looked, marking, **_LOOK)


def _position(pieces: tuple[tuple[int, int], ...], group: Any) -> int | None:
    """The first token of a token or word by its number, or None."""
    return pieces[group][0] if isinstance(group, int) and 0 <= group < len(pieces) else None


def build() -> gr.Blocks:
    """The app, ready to be queued and launched."""
    with gr.Blocks(title="Attention, checked head by head", analytics_enabled=False, fill_width=True) as demo:
        Page().listen(demo)
        endpoints.add()
    return demo
