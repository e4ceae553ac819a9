"""A view as an address, and as lines of Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

import probe
from probe.ui import learn, limits, source_target
from probe.ui.bertviz_view import KINDS
from probe.ui.compare import AVERAGES
from probe.ui.effect import HOW, chosen_heads, how_of
from probe.ui.heads import find, words_of
from probe.ui.state import (
    DEFAULT_HEADS,
    DEFAULT_MODELS,
    DEFAULT_TEXT,
    Asked,
    Half,
    Options,
    Screen,
    Session,
)

_ONE = ("steps", "heads", "sentences", "effect")
"""The views of one of the two models."""
MAX_LINKED = 500
"""Characters of a text that go into an address; a longer one is left out."""
_ASKED = {
    "first": "one",
    "second": "other",
    "from_word": "from",
    "to_word": "to",
    "versus": "versus",
    "how": "instead",
    "heads": "heads",
    "drawing": "bertviz",
    "pair_model": "pair",
    "source": "source",
    "target": "target",
    "kind": "kind",
    "pair_layer": "layer",
    "pair_head": "head",
    "pair_drawing": "drawn",
}
"""What the fields of ``Asked`` are called in an address; those that are as usual aren't in it."""


@dataclass(frozen=True)
class Place:
    """What an address asks for."""

    session: Session
    heads: tuple[tuple[int, int], tuple[int, int]]
    queries: tuple[int | None, int | None]
    view: str
    options: Options
    slot: int
    asked: Asked


def read(params: Mapping[str, str], views: tuple[str, ...]) -> Place:
    """What an address asks for; a part that is missing or makes no sense is the default."""
    text = params.get("text", "")
    second = params.get("second", "")
    names = tuple(params.get(key) or default for key, default in zip(("a", "b"), DEFAULT_MODELS, strict=True))
    session = Session(
        text if 0 < len(text) <= limits.MAX_CHARACTERS else DEFAULT_TEXT,
        second if len(second) <= limits.MAX_CHARACTERS else "",
        (names[0][: limits.MAX_NAME], names[1][: limits.MAX_NAME]),
        params.get("cut") == "yes",
    )
    view = params.get("view", "")
    return Place(
        session,
        (_numbers(params.get("ah", ""), DEFAULT_HEADS[0]), _numbers(params.get("bh", ""), DEFAULT_HEADS[1])),
        (_position(params.get("aq", "")), _position(params.get("bq", ""))),
        view if view in views else views[0],
        Options(
            hide_special=params.get("special") == "hidden",
            words=params.get("words") == "yes",
            average=params.get("average", "") if params.get("average") in AVERAGES else "head",
            whole_model=params.get("mask") == "everywhere",
        ),
        1 if params.get("on") == "b" else 0,
        _asked(params),
    )


def _asked(params: Mapping[str, str]) -> Asked:
    given = {field: params[name] for field, name in _ASKED.items() if name in params}
    choices: dict[str, tuple[str, ...]] = {
        "how": tuple(HOW),
        "drawing": tuple(KINDS),
        "kind": source_target.KINDS,
        "pair_drawing": tuple(KINDS),
    }
    fitting: dict[str, Any] = {
        field: value
        for field, value in given.items()
        if len(value) <= limits.MAX_CHARACTERS and (field not in choices or value in choices[field])
    }
    for field in ("pair_layer", "pair_head"):
        fitting[field] = _position(fitting.get(field, "")) or 0
    return Asked(**fitting)


def _numbers(written: str, default: tuple[int, int]) -> tuple[int, int]:
    """Layer and head from "layer.head"."""
    parts = written.split(".")
    if len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        return int(parts[0]), int(parts[1])
    return default


def _position(written: str) -> int | None:
    return int(written) if written.isascii() and written.isdigit() and len(written) < 5 else None


def query(screen: Screen) -> str:
    """The address of this screen, from the question mark on."""
    session = screen.session
    first, second = screen.halves
    parts = {
        "text": session.text if len(session.text) <= MAX_LINKED else "",
        "second": session.second if len(session.second) <= MAX_LINKED else "",
        "a": session.models[0],
        "ah": f"{first.layer}.{first.head}",
        "b": session.models[1],
        "bh": f"{second.layer}.{second.head}",
        "aq": "" if first.query is None else str(first.query),
        "bq": "" if second.query is None else str(second.query),
        "view": screen.view,
        "special": "hidden" if screen.options.hide_special else "",
        "words": "yes" if screen.options.words else "",
        "average": screen.options.average if screen.options.average != "head" else "",
        "mask": "everywhere" if screen.options.whole_model else "",
        "on": "b" if screen.focus.slot else "",
        "cut": "yes" if session.truncate else "",
    }
    parts = {key: value for key, value in parts.items() if value}
    usual = asdict(Asked())
    for field, value in asdict(screen.asked).items():
        if value != usual[field] and len(str(value)) <= MAX_LINKED:
            parts[_ASKED[field]] = str(value)
    return "?" + urlencode(parts, errors="replace")


def left_out(screen: Screen) -> str:
    """What of this screen is too long for its address, as a sentence; empty if nothing is."""
    session, asked = screen.session, screen.asked
    texts = [session.text, session.second, *(str(value) for value in asdict(asked).values())]
    if all(len(text) <= MAX_LINKED for text in texts):
        return ""
    return f"A text of more than {MAX_LINKED} characters is not part of the link."


def python(screen: Screen) -> str:
    """Lines that compute, with the toolkit, what this screen shows."""
    if screen.view == source_target.ID:
        return source_target.python(screen.place(screen.asked))
    if screen.view == learn.ID:
        return ""  # its examples are its own, and of no model
    lines = ["import probe", ""]
    halves = [screen.halves[screen.focus.slot]] if screen.view in _ONE else screen.halves
    for half in halves:
        if screen.shows(half):
            lines += [f"model = probe.load({half.name!r})", *_lines(screen, half), ""]
    return "\n".join(lines)


def _lines(screen: Screen, half: Half) -> list[str]:
    assert half.comparison is not None
    text, place = half.comparison.encoding.text, f"{half.layer}, {half.head}"
    asked, cut = screen.asked, ", truncate=True" if screen.session.truncate else ""
    if screen.view == "masks":
        whole = ", whole_model=True" if screen.options.whole_model else ""
        return [f"print(probe.compare_masks(model, {text!r}, {place}{whole}{cut}))"]
    if screen.view == "verify":
        return [f"print(probe.verify(model, {text!r}{cut}))"]
    if screen.view == "steps":
        return [f"print(probe.trace(model, {text!r}, {place}, query={half.shown_query}{cut}))"]
    if screen.view == "heads":
        return [f"print(probe.measure_heads(model, {text!r}{cut}))", *_finding(half.comparison, asked, cut)]
    if screen.view == "sentences":
        return [f"print(probe.compare_texts(model, {asked.first!r}, {asked.second!r}, {place}{cut}))"]
    if screen.view == "effect":
        how = how_of(asked)
        return [*_changing(half, asked, cut), f"print(probe.rank_heads(model, {text!r}, {how!r}{cut}))"]
    compare = [f"comparison = probe.compare(model, {text!r}{cut})", "print(comparison.report.verdict)"]
    maps = ("from_scratch", "from_model", "difference")
    if screen.options.average == "head":
        return compare + [f"print(comparison.{map}({place}))" for map in maps]
    layers = "range(model.num_layers)" if screen.options.average == "all" else f"[{half.layer}]"
    return [
        *compare,
        f"heads = [(layer, head) for layer in {layers} for head in range(model.num_heads)]",
        *(f"print(sum(comparison.{map}(*place) for place in heads) / len(heads))" for map in maps[:2]),
    ]


def _finding(comparison: probe.Comparison, asked: Asked, cut: str) -> list[str]:
    """What finds the heads that link two words; nothing where the text doesn't have them."""
    words = words_of(asked)
    try:
        find(comparison, words)
    except probe.ProbeError:
        return []
    named = ", ".join(repr(word) for word in words if word)
    return [f"print(probe.find_heads(model, {comparison.encoding.text!r}, {named}{cut}))"]


def _changing(half: Half, asked: Asked, cut: str) -> list[str]:
    """What changes the chosen heads; nothing where there are no such heads."""
    assert half.comparison is not None
    try:
        heads = chosen_heads(half, asked)
    except probe.ProbeError:
        return []
    text = half.comparison.encoding.text
    return [f"print(probe.ablate(model, {text!r}, {heads}, {how_of(asked)!r}{cut}))"]
