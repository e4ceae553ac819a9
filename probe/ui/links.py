"""A view as an address."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from probe.ui import limits
from probe.ui.screen import Screen
from probe.ui.state import (
    DEFAULT_HEADS,
    DEFAULT_MODELS,
    DEFAULT_TEXT,
    PARAMS,
    Address,
    Asked,
    Focus,
    Options,
    Session,
    position,
)

MAX_LINKED = 500
"""Characters of a text that go into an address; a longer one is left out."""


def read(params: Mapping[str, str], views: tuple[str, ...]) -> Address:
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
    return Address(
        session,
        (_numbers(params.get("ah", ""), DEFAULT_HEADS[0]), _numbers(params.get("bh", ""), DEFAULT_HEADS[1])),
        Focus(
            (position(params.get("aq", "")), position(params.get("bq", ""))),
            1 if params.get("on") == "b" else 0,
        ),
        view if view in views else views[0],
        Options(hide_special=params.get("special") == "hidden", words=params.get("words") == "yes"),
        Asked(
            **{
                param.name: param.read(params[param.address])
                for param in PARAMS.values()
                if param.address in params
            }
        ),
    )


def _numbers(written: str, default: tuple[int, int]) -> tuple[int, int]:
    """Layer and head from "layer.head"."""
    parts = [position(part) for part in written.split(".")]
    if len(parts) == 2 and parts[0] is not None and parts[1] is not None:
        return parts[0], parts[1]
    return default


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
        "on": "b" if screen.focus.slot else "",
        "cut": "yes" if session.truncate else "",
    }
    parts = {key: value for key, value in parts.items() if value}
    for name, value in screen.asked.unusual.items():
        if len(str(value)) <= MAX_LINKED:
            parts[PARAMS[name].address] = PARAMS[name].write(value)
    return "?" + urlencode(parts, errors="replace")


def left_out(screen: Screen) -> str:
    """What of this screen is too long for its address, as a sentence; empty if nothing is."""
    texts = [screen.session.text, screen.session.second, *map(str, screen.asked.values)]
    if all(len(text) <= MAX_LINKED for text in texts):
        return ""
    return f"A text of more than {MAX_LINKED} characters is not part of the link."
