"""Compare what is written with what was computed: the words exactly, the numbers within their error.

Two computations of the same thing differ in their last places, from one processor to another and from one run
to the next, and a difference however small can turn a printed digit. So a printed number is right if it is
within half a unit of its last place of the number that was computed here, plus the rounding of a computation.
"""

from __future__ import annotations

import math
import re
from typing import Any

ROUNDING = 2e-6
"""What two float32 computations of a weight may differ by, and of larger numbers in proportion: 16 eps."""
ROUNDING_FLOAT64 = 4e-15
"""The same for float64."""

_NUMBER = re.compile(r"exactly 0|[+−-]?(?:\d+(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+−-]?\d+)?%?")


def value_of(text: str) -> float:
    """A number as it is written for people: with a minus sign of its own, thousands, in percent."""
    return _read(text)[0]


def says(text: str, value: float, rounding: float = ROUNDING) -> bool:
    """Whether a text is this number, as far as it is written out.

    >>> says("0.622258", 0.6222586), says("0.622258", 0.622252)
    (True, False)
    """
    written, unit = _read(text)
    return written == value or _near(written, value, unit / 2, rounding)


def alike(text: str | None, expected: str, rounding: float = ROUNDING) -> bool:
    """Whether two texts have the same words, and numbers that can be of the same computation.

    Whole numbers are counts, and the same; runs of spaces count as one. In which head rounding is largest is
    chance, and left out.

    >>> alike("36 heads, at most 0.622258", "36 heads, at most 0.622259")
    True
    >>> alike("35 heads, at most 0.622259", "36 heads, at most 0.622259")
    False
    """
    expected = _without_place(expected).strip()
    found = _pattern(expected).fullmatch(_without_place(text).strip())
    return found is not None and _same(found, expected, rounding)


def tells(text: str | None, expected: str, rounding: float = ROUNDING) -> bool:
    """Whether a text has the other one in it, as ``alike`` says."""
    expected = _without_place(expected)
    found = _pattern(expected).finditer(_without_place(text))
    return any(_same(one, expected, rounding) for one in found)


def close(first: Any, second: Any, rounding: float = ROUNDING) -> bool:
    """Whether two values of JSON are of the same computation: all the same but for the places of floats.

    A report's "worst" is where rounding is largest, which is chance.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        same = list(first) == list(second)
        return same and all(key == "worst" or close(first[key], second[key], rounding) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        same = len(first) == len(second)
        return same and all(close(one, other, rounding) for one, other in zip(first, second, strict=True))
    if isinstance(first, float) and isinstance(second, float):
        return first == second or _near(first, second, 0.0, rounding)
    if isinstance(first, str) and isinstance(second, str):
        return first == second or alike(first, second, rounding)
    return type(first) is type(second) and bool(first == second)


def _near(first: float, second: float, units: float, rounding: float) -> bool:
    allowed = units + rounding * max(1.0, abs(first), abs(second))
    return math.isfinite(first) and abs(first - second) <= allowed


def _read(text: str) -> tuple[float, float]:
    """A written number, and one unit of its last place."""
    if text == "exactly 0":
        return 0.0, 0.0
    assert _NUMBER.fullmatch(text), f"{text!r} is no number"
    percent = text.endswith("%")
    plain = text.rstrip("%").replace("−", "-").replace(",", "")
    mantissa, _, exponent = plain.partition("e")
    places = len(mantissa.partition(".")[2])
    scale = 0.01 if percent else 1.0
    return scale * float(plain), scale * float(f"1e{int(exponent or 0) - places}")


def _without_place(text: str | None) -> str:
    return re.sub(r"(largest difference \S+) \([^)]*\)", r"\1", text or "")


def _pattern(expected: str) -> re.Pattern[str]:
    """The words of a text, with room for its numbers."""
    parts, end = [], 0
    for found in _NUMBER.finditer(expected):
        parts += [_words(expected[end : found.start()]), f"({_NUMBER.pattern})"]
        end = found.end()
    return re.compile("".join([*parts, _words(expected[end:])]))


def _words(text: str) -> str:
    return r"\s+".join(map(re.escape, re.split(r"\s+", text)))


def _same(found: re.Match[str], expected: str, rounding: float) -> bool:
    for here, there in zip(found.groups(), _NUMBER.findall(expected), strict=True):
        (one, unit), (other, other_unit) = _read(here), _read(there)
        counts = re.fullmatch(r"[+−-]?[\d,]+", here) and re.fullmatch(r"[+−-]?[\d,]+", there)
        if one != other and (counts or not _near(one, other, (unit + other_unit) / 2, rounding)):
            return False
    return True
