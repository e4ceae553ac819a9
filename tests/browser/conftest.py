"""The app in Chromium: one server for all tests, and pages that are opened once and led from view to view."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install -r requirements-dev.txt")

from playwright.sync_api import (
    Browser,
    BrowserContext,
    Error,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

if TYPE_CHECKING:
    import gradio as gr

    from probe.ui.views import View

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PATIENCE = 20_000  # milliseconds
expect.set_options(timeout=_PATIENCE)
_VISITS = count()
# Folded and at its top, as a page is that was just opened.
_GO = """(address) => {
    document.querySelectorAll("details[open]").forEach((details) => { details.open = false; });
    scrollTo(0, 0);
    history.pushState(null, "", address);
    dispatchEvent(new PopStateEvent("popstate"));
}"""
_NEXT_FRAME = "new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/browser/" in str(item.path):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def app() -> Generator[gr.Blocks]:
    """The app, running."""
    from probe.ui import build, launch_options

    demo = build()
    demo.queue(max_size=64).launch(prevent_thread_lock=True, quiet=True, **launch_options())
    yield demo
    demo.close()


@pytest.fixture(scope="session")
def address(app: gr.Blocks) -> str:
    """Where the app answers."""
    assert app.local_url
    return app.local_url


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield started
        started.close()


@cache
def views() -> dict[str, View]:
    """The views by their names, with their controls, outside of any running app."""
    import gradio as gr

    from probe.ui.views import VIEWS

    with gr.Blocks():
        return {view.id: view() for view in VIEWS}


@dataclass
class Visitor:
    """One person with the page open."""

    page: Page
    app: gr.Blocks
    elsewhere: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    session: str = ""  # as Gradio calls the page
    sent: set[Request] = field(default_factory=set)  # questions that have not reached the server
    shows: dict[str, str] | None = None  # what it was opened with, while nobody has changed anything since

    def open(self, view: str = "compare", **query: str) -> None:
        """Open a view and wait until its figures are painted."""
        self.go({"view": view, **query})
        self.page.locator(f"#tab-{view} [data-painted]").first.wait_for()

    def go(self, query: dict[str, str]) -> None:
        """Go to an address; on an open page as Back and Forward do, because a load takes seconds."""
        self.shows = None
        if not self.page.url.startswith(self.address):
            self.page.goto(f"{self.address}?{urlencode(query)}")
            return
        address = f"?{urlencode({**query, 'visit': next(_VISITS)})}"
        self.page.evaluate(_GO, address)
        self.page.locator(f"#share [data-at='{address}']").wait_for(state="attached")
        self.settle()

    def settle(self) -> None:
        """Wait until the page has all its answers: views that draw by themselves ask once more."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            quiet = self.quiet
            self.page.evaluate(_NEXT_FRAME)
            if quiet and self.quiet:
                return
            self.page.wait_for_timeout(10)
        raise AssertionError("the page is never done")

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way to the page."""
        return not self.sent and not self.app._queue.pending_event_ids_session.get(self.session)

    @property
    def address(self) -> str:
        assert self.app.local_url
        return self.app.local_url

    def follow(self, url: str) -> None:
        """Go to an address that was copied from another page."""
        self.go(dict(parse_qsl(urlsplit(url).query, keep_blank_values=True)))

    def is_sound(self) -> bool:
        """Whether the next one may have the page."""
        try:
            self.page.mouse.move(0, 0)
            self.settle()
        except (AssertionError, Error):
            return False
        return not self.complaints and not self.elsewhere

    def found_nothing(self) -> None:
        """Nothing went to another host, and the console holds no error, since this was asked last."""
        found = [*self.elsewhere], [*self.complaints]
        self.elsewhere.clear()
        self.complaints.clear()
        assert found == ([], [])

    def figure(self, name: str) -> Figure:
        return Figure(self.page.locator(f"#{name}"))

    def wait_for_new(self, name: str, action: Callable[[], Any]) -> None:
        """Do something, and wait until another result than the present one is painted."""
        painted = self.page.locator(f"#{name} [data-painted]")
        before = painted.get_attribute("data-painted")
        action()
        self.page.wait_for_function(
            "([name, before]) => { const drawn = document.querySelector(`#${name} [data-painted]`);"
            " return drawn && drawn.dataset.painted !== before; }",
            arg=[name, before],
        )

    def run(self, sentence: str, name: str = "compare-a") -> None:
        """Type a sentence, press Enter, wait for the new figure."""
        box = self.page.locator("#sentence textarea")
        box.fill(sentence)
        self.wait_for_new(name, lambda: box.press("Enter"))


class Figure:
    """A figure on the page, read as a person reads it: by pointing at cells."""

    def __init__(self, root: Locator) -> None:
        self.root = root

    @property
    def tokens(self) -> list[str]:
        """The tokens in the strip, without their positions."""
        return self.root.locator(".af-chip > span").all_text_contents()

    def point(self, row: int, column: int, panel: int = 0) -> dict[str, str]:
        """Point at a cell of a panel; what is read out, name by name."""
        canvas = self.root.locator("canvas.af-over").nth(panel)
        canvas.hover(position=self.place(row, column, panel))
        numbers = self.root.locator(".af-readout .af-number").all_text_contents()
        return {
            "where": self.root.locator(".af-readout .af-where").text_content() or "",
            **dict(map(_split, numbers)),
        }

    def place(self, row: int, column: int, panel: int = 0) -> dict[str, float]:
        """The middle of a cell, in pixels from the corner of its canvas."""
        data = self.root.locator("canvas.af-over").nth(panel).evaluate("canvas => ({...canvas.dataset})")
        cell = float(data["cell"])
        return {
            "x": float(data["left"]) + cell * (column + 0.5),
            "y": float(data["top"]) + cell * (row + 0.5),
        }

    def colour(self, row: int, column: int, panel: int = 0) -> tuple[int, int, int]:
        """The colour that is drawn in a cell."""
        place = self.place(row, column, panel)
        pixel = (
            self.root.locator("canvas.af-base")
            .nth(panel)
            .evaluate(
                "(canvas, at) => { const density = canvas.width / canvas.clientWidth;"
                " return Array.from(canvas.getContext('2d').getImageData("
                "Math.round((at.x + 2) * density), Math.round((at.y + 2) * density), 1, 1).data); }",
                place,
            )
        )
        return pixel[0], pixel[1], pixel[2]


def _split(text: str) -> tuple[str, str]:
    """The name and the number of "under causal 0.123456"."""
    found = re.fullmatch(r"(.*?) ([+−]?[0-9].*|exactly 0|may attend|may not attend)", text)
    assert found, text
    return found[1], found[2]


def _enter(context: BrowserContext, app: gr.Blocks) -> Visitor:
    page = context.new_page()
    page.set_default_timeout(_PATIENCE)
    visitor = Visitor(page, app)
    page.on("request", lambda request: _note_request(visitor, request))
    page.on("requestfinished", lambda request: visitor.sent.discard(request))
    page.on("requestfailed", lambda request: visitor.sent.discard(request))
    page.on("console", lambda message: _note_console(visitor, message.type, message.text))
    page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
    page.on("dialog", lambda dialog: visitor.complaints.append(f"dialog: {dialog.message}"))
    return visitor


@pytest.fixture(scope="session")
def _usual(browser: Browser) -> BrowserContext:
    """Where pages are opened that ask for nothing else: its cache keeps Gradio's scripts."""
    return browser.new_context()


@pytest.fixture(scope="session")
def _idle() -> list[Visitor]:
    """Open pages that nobody uses."""
    return []


@pytest.fixture
def visit(
    browser: Browser,
    app: gr.Blocks,
    _usual: BrowserContext,
    _idle: list[Visitor],
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Visitor]]:
    """Makes visitors. Nothing they do may reach another host or leave an error in the console.

    They share pages, one after the other: opening leads a page to an address, and all that the address holds
    is as it says. A test that changes anything else, or is about a page's first moments, asks for a page of
    its ``own``.
    """
    borrowed: list[Visitor] = []
    owned: list[Visitor] = []
    failed = request.session.testsfailed

    def enter(*, own: bool = False, width: int = 1440, height: int = 900, **context: Any) -> Visitor:
        if context:
            visitor = _enter(browser.new_context(**context), app)
        else:
            visitor = _idle.pop() if _idle and not own else _enter(_usual, app)
        (owned if own or context else borrowed).append(visitor)
        visitor.page.set_viewport_size({"width": width, "height": height})
        return visitor

    yield enter
    for visitor in borrowed:
        if request.session.testsfailed == failed and visitor.is_sound():
            _idle.append(visitor)
        else:
            visitor.page.close()
    for visitor in owned:
        visitor.page.close()
        if visitor.page.context is not _usual:
            visitor.page.context.close()
    for visitor in (*borrowed, *owned):
        visitor.found_nothing()


@pytest.fixture
def look(visit: Callable[..., Visitor]) -> Iterator[Callable[..., Visitor]]:
    """An open view for a test that only looks at it: the next one that looks at it finds it as it is."""
    looked: list[tuple[Visitor, dict[str, str]]] = []

    def look(view: str = "compare", **query: str) -> Visitor:
        visitor = visit()
        if visitor.shows != {"view": view, **query}:
            visitor.open(view, **query)
        looked.append((visitor, {"view": view, **query}))
        return visitor

    yield look
    for visitor, shows in looked:
        visitor.shows = shows


def _note_request(visitor: Visitor, request: Request) -> None:
    if not request.url.startswith((visitor.address, "data:", "blob:")):
        visitor.elsewhere.append(request.url)
    if "/queue/join" in request.url:
        visitor.sent.add(request)
        visitor.session = request.post_data_json["session_hash"]


def _note_console(visitor: Visitor, kind: str, text: str) -> None:
    if kind == "error":
        visitor.complaints.append(text)


@pytest.fixture
def visitor(visit: Callable[..., Visitor], request: pytest.FixtureRequest) -> Iterator[Visitor]:
    visitor = visit(own=request.node.get_closest_marker("own_page") is not None)
    yield visitor
    visitor.shows = None
