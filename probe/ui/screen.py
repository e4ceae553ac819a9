"""A screen: what one visitor sees of the kept results, and all that a view needs to show itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import probe
from probe.running.tokens import Text
from probe.ui import limits
from probe.ui.state import (
    DEFAULT_QUERY,
    DEFAULT_TEXT,
    LARGEST,
    Asked,
    Focus,
    Options,
    Session,
    digest,
    within,
)
from probe.ui.store import STORE, explain, full_name


@dataclass(frozen=True)
class Half:
    """One of the two models on the page.

    Attributes
    ----------
    slot : 0 for the first, 1 for the second.
    name : the name that was asked for.
    layer, head : within the model's range.
    query : position of the chosen query token; None for the page's own choice.
    comparison : the result, or None if there is none; then ``problem`` is one sentence that says why.
    """

    slot: int
    name: str
    layer: int
    head: int
    query: int | None
    comparison: probe.Comparison | None
    problem: str = ""

    @property
    def title(self) -> str:
        """The model's full name; of one that can't be had, the name that was asked for."""
        return full_name(self.name) if self.comparison is None else self.comparison.model.name

    @property
    def shown_query(self) -> int:
        """The query that is marked: the visitor's choice, else the last token with a letter or digit."""
        if self.query is not None or self.comparison is None:
            return self.query or 0
        encoding = self.comparison.encoding
        if encoding.text == DEFAULT_TEXT and DEFAULT_QUERY in encoding.tokens:
            return encoding.tokens.index(DEFAULT_QUERY)
        words = [
            i
            for i, (token, special) in enumerate(zip(encoding.tokens, encoding.special, strict=True))
            if not special and any(char.isalnum() for char in token)
        ]
        return words[-1] if words else len(encoding) - 1


@dataclass(frozen=True)
class Screen:
    """Everything a view needs to show itself."""

    session: Session
    halves: tuple[Half, Half]
    focus: Focus = field(default_factory=Focus)
    options: Options = field(default_factory=Options)
    view: str = "compare"
    asked: Asked = field(default_factory=Asked)

    @property
    def half(self) -> Half:
        """The model that is looked at where only one is."""
        return self.halves[self.focus.slot]

    def stamp(self, half: Half) -> str:
        """Tells this result from every other one; comes back from the page once it is painted."""
        shown = digest(self.session, half.name, self.options, self.asked)
        return f"{self.view} {half.layer}.{half.head} {shown}"

    def place(self, asked: Asked) -> Place:
        """What a view that draws by itself is to draw; ``asked`` of its own controls, the rest as usual."""
        half = self.half
        return Place(self.view, self.session, half.slot, half.layer, half.head, self.options, asked)


@dataclass(frozen=True)
class Place:
    """What a view draws by itself, in a few bytes that Gradio can keep for each visitor.

    It is drawn again when this changes, so what makes no difference to a view is left as usual.

    Attributes
    ----------
    view : the view's name.
    session : what was run.
    slot, layer, head : the model that is looked at, and its head.
    options : how tokens are shown.
    asked : what the view's own controls ask.
    """

    view: str
    session: Session
    slot: int
    layer: int = 0
    head: int = 0
    options: Options = field(default_factory=Options)
    asked: Asked = field(default_factory=Asked)

    def half(self) -> Half:
        """The model's kept result."""
        return look(self.session, self.slot, self.layer, self.head, None)

    def stamp(self, *more: object) -> str:
        """Tells what is drawn here from everything else; ``more`` tells several pictures apart."""
        return f"{self.view} {self.layer}.{self.head} {digest(self, more)}"


def look(session: Session, slot: int, layer: float | None, head: float | None, query: int | None) -> Half:
    """One half of the page; a model that refuses gives a half with its sentence instead of a result."""
    name = str(session.models[slot])
    try:
        model = STORE.model(name, session.text, session.second)
        name = name.strip()
        comparison = STORE.comparison(name, _text_for(session, model), session.truncate)
        return Half(
            slot,
            name,
            within(layer, model.num_layers),
            within(head, model.num_heads),
            query if query is not None and 0 <= query < len(comparison.encoding) else None,
            comparison,
        )
    except Exception as error:
        place = within(layer, LARGEST), within(head, LARGEST)
        return Half(slot, name[: limits.MAX_NAME], *place, None, None, explain(error))


def _text_for(session: Session, model: probe.Model) -> Text:
    """The sentence, or the pair where there is a second one and the model takes pairs."""
    return (session.text, session.second) if session.second.strip() and model.has_pairs else session.text
