"""The colour scales of every picture, on the page, in files and in notebooks, computed rather than copied.

Lightness is linear in the value. Each scale runs through OKLCH stops (Ottosson 2020, "A perceptual color
space for image processing") whose lightness rises or falls by equal steps. So the order and the size of the
values also show to a reader who sees no hue at all, and in a print in black and white.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

STEPS = 256
"""Number of colours in one scale."""


@dataclass(frozen=True)
class Scale:
    """A sequential scale for one theme: its first and last lightness, and (position, chroma, hue) stops."""

    first_lightness: float
    last_lightness: float
    stops: tuple[tuple[float, float, float], ...]

    def lightness(self, position: float) -> float:
        """OKLab lightness at a position in 0..1; linear by design."""
        return self.first_lightness + position * (self.last_lightness - self.first_lightness)

    def rgb(self, position: float) -> tuple[int, int, int]:
        """The sRGB colour (0..255 each) at a position in 0..1."""
        positions, chromas, hues = zip(*self.stops, strict=True)
        chroma, hue = (float(np.interp(position, positions, of)) for of in (chromas, hues))
        return oklch_to_rgb(self.lightness(position), chroma, hue)

    @cached_property
    def colours(self) -> tuple[tuple[int, int, int], ...]:
        """All colours of the scale in order, (red, green, blue) from 0 to 255."""
        return tuple(self.rgb(i / (STEPS - 1)) for i in range(STEPS))

    def hex_table(self) -> str:
        """The same as one string, six hexadecimal digits each."""
        return "".join("{:02x}{:02x}{:02x}".format(*colour) for colour in self.colours)


def oklch_to_rgb(lightness: float, chroma: float, hue: float) -> tuple[int, int, int]:
    """OKLCH (hue in degrees) to 8-bit sRGB; the chroma is lowered where sRGB has no such colour."""
    while True:
        channels = _linear_rgb(lightness, chroma, hue)
        if chroma <= 0 or all(-1e-4 <= channel <= 1 + 1e-4 for channel in channels):
            red, green, blue = (_gamma(min(max(channel, 0.0), 1.0)) for channel in channels)
            return red, green, blue
        chroma = max(0.0, chroma - 0.002)


def _linear_rgb(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    a = chroma * math.cos(math.radians(hue))
    b = chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def _gamma(channel: float) -> int:
    encoded = 12.92 * channel if channel <= 0.0031308 else 1.055 * channel ** (1 / 2.4) - 0.055
    return round(255 * encoded)


WEIGHT = {
    "light": Scale(0.985, 0.27, ((0.0, 0.006, 170), (0.22, 0.085, 188), (0.6, 0.13, 238), (1.0, 0.13, 282))),
    "dark": Scale(0.24, 0.95, ((0.0, 0.015, 282), (0.35, 0.13, 258), (0.7, 0.13, 200), (1.0, 0.12, 130))),
}
"""Attention weights, 0 to 1: paper to deep indigo on a light page, and the other way on a dark one."""

DIFFERENCE = {
    "light": Scale(0.97, 0.33, ((0.0, 0.03, 95), (0.35, 0.13, 75), (0.7, 0.17, 42), (1.0, 0.14, 22))),
    "dark": Scale(0.30, 0.95, ((0.0, 0.06, 22), (0.35, 0.15, 38), (0.7, 0.15, 70), (1.0, 0.10, 100))),
}
"""Absolute differences on a logarithmic scale: warm, never taken for the scale of the weights."""

LOST = {
    "light": Scale(0.985, 0.36, ((0.0, 0.0, 70), (0.3, 0.09, 65), (0.7, 0.15, 50), (1.0, 0.12, 40))),
    "dark": Scale(0.24, 0.90, ((0.0, 0.0, 70), (0.4, 0.11, 55), (0.75, 0.15, 65), (1.0, 0.10, 85))),
}
GAINED = {
    "light": Scale(0.985, 0.36, ((0.0, 0.0, 250), (0.3, 0.08, 250), (0.7, 0.15, 258), (1.0, 0.15, 265))),
    "dark": Scale(0.24, 0.90, ((0.0, 0.0, 250), (0.4, 0.12, 258), (0.75, 0.13, 248), (1.0, 0.08, 235))),
}
"""Weight lost (orange) and gained (blue), from no change to a change of 1; equal changes are equally dark."""

FLAT = {
    "light": {
        "zero": "#d5dde2",
        "masked": "#f1f1ee",
        "hatch": "#c3c6c4",
        "allowed": "#2f6f7e",
        "forbidden": "#e9e9e5",
    },
    "dark": {
        "zero": "#3a444b",
        "masked": "#1a1f24",
        "hatch": "#3b434a",
        "allowed": "#6fc3cf",
        "forbidden": "#262c32",
    },
}
"""Single colours: a difference of exactly zero, a cell that the mask forbids, and the two sides of a mask."""


def palette() -> dict[str, dict[str, object]]:
    """Everything the page's script needs to colour a figure, by theme."""
    return {
        theme: {
            "weight": WEIGHT[theme].hex_table(),
            "difference": DIFFERENCE[theme].hex_table(),
            "lost": LOST[theme].hex_table(),
            "gained": GAINED[theme].hex_table(),
            **FLAT[theme],
        }
        for theme in ("light", "dark")
    }
