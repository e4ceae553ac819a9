"""A view as an address, and as lines of Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from probe.ui import limits
from probe.ui.state import DEFAULT_HEADS, DEFAULT_MODELS, DEFAULT_TEXT, Screen, Session

MAX_LINKED = 500
"""Characters of a text that go into an address; a longer one is left out."""


@dataclass(frozen=True)
class Place:
    """What an address asks for."""

    session: Session
    heads: tuple[tuple[int, int], tuple[int, int]]
    queries: tuple[int | None, int | None]
    view: str
    hide_special: bool


def read(params: Mapping[str, str], views: tuple[str, ...]) -> Place:
    """What an address asks for; a part that is missing or makes no sense is the default."""
    text = params.get("text", "")
    second = params.get("second", "")
    names = tuple(params.get(key) or default for key, default in zip(("a", "b"), DEFAULT_MODELS, strict=True))
    session = Session(
        text if 0 < len(text) <= limits.MAX_CHARACTERS else DEFAULT_TEXT,
        second if len(second) <= limits.MAX_CHARACTERS else "",
        (names[0][: limits.MAX_NAME], names[1][: limits.MAX_NAME]),
    )
    view = params.get("view", "")
    return Place(
        session,
        (_numbers(params.get("ah", ""), DEFAULT_HEADS[0]), _numbers(params.get("bh", ""), DEFAULT_HEADS[1])),
        (_position(params.get("aq", "")), _position(params.get("bq", ""))),
        view if view in views else views[0],
        params.get("special") == "hidden",
    )


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
        "special": "hidden" if screen.hide_special else "",
    }
    return "?" + urlencode({key: value for key, value in parts.items() if value}, errors="replace")


def python(screen: Screen) -> str:
    """Lines that compute, with the toolkit, what this screen shows."""
    lines = ["import probe", ""]
    for half in screen.halves:
        if half.comparison is None:
            continue
        text = half.comparison.encoding.text
        lines.append(f"model = probe.load({half.name!r})")
        if screen.view == "masks":
            lines += [
                f"masks = probe.compare_masks(model, {text!r}, layer={half.layer}, head={half.head})",
                "print(masks.trained_with, masks.causal, masks.bidirectional, masks.moved)",
            ]
        elif screen.view == "verify":
            lines += [f"print(probe.verify(model, {text!r}))"]
        else:
            lines += [
                f"comparison = probe.compare(model, {text!r})",
                f"print(comparison.from_scratch({half.layer}, {half.head}))",
                f"print(comparison.from_model({half.layer}, {half.head}))",
                f"print(comparison.difference({half.layer}, {half.head}))",
            ]
        lines.append("")
    return "\n".join(lines)
