"""What a view of the page is: its controls, its part of the address, its downloads, its lines of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

import gradio as gr

from probe.analyses.result import Result
from probe.ui.offers import Offer, Offered, slug
from probe.ui.screen import Half, Screen
from probe.ui.state import PARAMS, Param


class Page(Protocol):
    """What the page does for its views: each binds an event of theirs to something that all views share."""

    def asks(self, *events: Any) -> None:
        """Something else is asked: the view in sight is filled anew."""

    def opens_steps(self, figure: gr.HTML, slot: int) -> None:
        """A cell of a figure is opened in the steps, a row of it is marked."""

    def turns(self, component: gr.HTML) -> None:
        """Another model or query is chosen."""

    def marks_heads(self, component: gr.HTML) -> None:
        """A head is marked, or opened in the first view."""

    def opens_heads(self, figure: gr.HTML, slot: int) -> None:
        """A cell of a layer x head picture is opened in the first view."""

    def loads(self, begins: list[Callable[..., Any]], names: list[Any], said: list[Any]) -> list[Any]:
        """A model is loaded, and what it says meanwhile; then the view is filled anew."""

    def told(self, event: Callable[..., Any]) -> None:
        """A view that draws by itself has its result: what there is to take along is told anew."""

    def chooses(self, component: gr.HTML, controls: list[Any]) -> None:
        """A cell (row, column) becomes the values of two controls of the view."""

    @property
    def session(self) -> gr.State:
        """What the visitor ran last."""


class View:
    """A view of the page. A subclass adds a tab in ``__init__`` and is listed in ``views/__init__.py``.

    Attributes
    ----------
    id, label : its name in addresses, and on its tab.
    params : what it asks in controls of its own; ``controls`` are these, in the same order.
    both : whether it is about both models, or about the one that is looked at.
    takes_apart : whether it needs to know where a model's weights lie.
    opens_cells : whether it is the view in which a chosen cell of another one is opened.
    """

    id: ClassVar[str]
    label: ClassVar[str]
    params: ClassVar[tuple[Param, ...]] = ()
    both: ClassVar[bool] = True
    takes_apart: ClassVar[bool] = False
    opens_cells: ClassVar[bool] = False

    tab: gr.Tab

    def __init_subclass__(cls) -> None:
        PARAMS.update({param.name: param for param in cls.params})

    @property
    def controls(self) -> list[Any]:
        """The components that ask for ``params``."""
        return []

    @property
    def outputs(self) -> list[Any]:
        """The components that ``render`` gives values for."""
        raise NotImplementedError

    def render(self, screen: Screen) -> list[Any]:
        """A value for each of ``outputs``."""
        raise NotImplementedError

    def listen(self, page: Page) -> None:
        """Bind the events of its components."""

    def halves(self, screen: Screen) -> list[Half]:
        """The models that it is about, as far as it has something of them to show."""
        halves = screen.halves if self.both else (screen.half,)
        return [half for half in halves if self.shows(half)]

    def shows(self, half: Half) -> bool:
        """Whether it has something of a model to show."""
        if half.comparison is None:
            return False
        return not self.takes_apart or half.comparison.model.has_sites

    def offers(self, screen: Screen) -> Iterator[Offered]:
        """What there is to take along as files."""
        return (offer for half in self.halves(screen) for offer in self.offers_of(screen, half))

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        """The same of one model."""
        yield from ()

    def python(self, screen: Screen) -> str:
        """Lines that compute, with the toolkit, what the view shows; "" if it shows nothing of a model."""
        lines = ["import probe", ""]
        for half in self.halves(screen):
            lines += [f"model = probe.load({half.name!r})", *self.lines(screen, half), ""]
        return "\n".join(lines)

    def lines(self, screen: Screen, half: Half) -> list[str]:
        """The same for one model, which is called ``model``."""
        return []


def offer(
    half: Half, kind: type[Result], what: str, file: str, make: Callable[[], Result], *, one: bool = True
) -> Offer:
    """A result of one of the two models, as a file; see ``Offer``."""
    assert half.comparison is not None
    model = half.comparison.model
    name = f"{slug(model.name)}-{file}"
    return Offer(f"{half.slot} {file}", f"{model.name}, {what}", kind, name, make, model, one)


def cut_of(screen: Screen) -> str:
    """What lines of Python say where texts that are too long are to be cut."""
    return ", truncate=True" if screen.session.truncate else ""
