"""The app in Chromium: one server for all tests, a fresh visitor for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install -r requirements-dev.txt")

from playwright.sync_api import Browser, Error, Locator, Page, sync_playwright

if TYPE_CHECKING:
    from probe.ui.views import View

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/browser/" in str(item.path):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def address() -> Generator[str]:
    """Where the app answers."""
    from probe.ui import build, launch_options

    demo = build()
    demo.queue(max_size=64).launch(prevent_thread_lock=True, quiet=True, **launch_options())
    yield demo.local_url
    demo.close()


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
    address: str
    elsewhere: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, view: str = "compare", **query: str) -> None:
        """Open a view and wait until its figures are painted."""
        self.page.goto(f"{self.address}?{urlencode({'view': view, **query})}")
        self.page.locator(f"#tab-{view} [data-painted]").first.wait_for()

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


def _enter(browser: Browser, address: str, width: int = 1440, height: int = 900, **context: Any) -> Visitor:
    page = browser.new_context(viewport={"width": width, "height": height}, **context).new_page()
    page.set_default_timeout(20_000)
    visitor = Visitor(page, address)
    page.on("request", lambda request: _note_request(visitor, request.url))
    page.on("console", lambda message: _note_console(visitor, message.type, message.text))
    page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
    page.on("dialog", lambda dialog: visitor.complaints.append(f"dialog: {dialog.message}"))
    return visitor


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Callable[..., Visitor]]:
    """Makes visitors. Nothing they do may reach another host or leave an error in the console."""
    visitors: list[Visitor] = []

    def enter(**options: Any) -> Visitor:
        visitors.append(_enter(browser, address, **options))
        return visitors[-1]

    yield enter
    for visitor in visitors:
        visitor.page.context.close()
        visitor.found_nothing()


@pytest.fixture(scope="module")
def _opened(browser: Browser, address: str) -> Iterator[Callable[..., Visitor]]:
    """Opens each view that is asked for once, and keeps it for the tests of a file."""
    visitors: dict[tuple[str, ...], Visitor] = {}

    def opened(view: str, **query: str) -> Visitor:
        key = view, *map("=".join, sorted(query.items()))
        if key not in visitors:
            visitor = _enter(browser, address)
            try:
                visitor.open(view, **query)
            except Error:
                visitor.page.context.close()
                raise
            visitors[key] = visitor
        return visitors[key]

    yield opened
    for visitor in visitors.values():
        visitor.page.context.close()
        visitor.found_nothing()


@pytest.fixture
def look(_opened: Callable[..., Visitor]) -> Iterator[Callable[..., Visitor]]:
    """An open view for a test that only looks at it: a load takes seconds, and others look at it as well."""
    visitors: list[Visitor] = []

    def look(view: str = "compare", **query: str) -> Visitor:
        visitors.append(_opened(view, **query))
        visitors[-1].page.mouse.move(0, 0)
        return visitors[-1]

    yield look
    for visitor in visitors:
        visitor.page.evaluate("0")  # what has happened is told during calls only
        visitor.found_nothing()


def _note_request(visitor: Visitor, url: str) -> None:
    if not url.startswith((visitor.address, "data:", "blob:")):
        visitor.elsewhere.append(url)


def _note_console(visitor: Visitor, kind: str, text: str) -> None:
    if kind == "error":
        visitor.complaints.append(text)


@pytest.fixture
def visitor(visit: Callable[..., Visitor]) -> Visitor:
    return visit()
