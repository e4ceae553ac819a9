"""Sheets as figures for files: PNG, SVG and PDF, for print and for slides.

Drawn with matplotlib's ``Figure`` objects alone, so nothing is shared between two figures and no window
opens. Rows and columns are told apart by position, never by label: repeated words keep their own. No text is
read as mathematics, and a character that no installed font can draw is written as its code point, with a line
that says which font is missing.
"""

from __future__ import annotations

import io
import math
import textwrap
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from probe.display import colors
from probe.display.data import Axis, Panel, Sheet
from probe.errors import ProbeError

FORMATS = ("png", "svg", "pdf")
_DPI = 160

# Matplotlib keeps caches of fonts and text sizes that it doesn't guard: figures take turns.
_turn = threading.RLock()

# The page's own colours in its light theme: light to dark by lightness alone, so that they survive a
# black-and-white print and any kind of colour vision.
_FLAT = colors.FLAT["light"]
_WRONG, _BAR_COLOUR = "#c1121f", "#0b5d7a"
_MASKED: dict[str, Any] = {
    "facecolor": _FLAT["masked"],
    "edgecolor": _FLAT["hatch"],
    "hatch": "////",
    "linewidth": 0.0,
}


@cache
def _colormap(kind: str) -> Colormap:
    if kind == "mask":
        return ListedColormap([_FLAT["forbidden"], _FLAT["allowed"]])
    if kind == "change":
        lost, gained = (scale["light"].colours for scale in (colors.LOST, colors.GAINED))
        table = [*reversed(lost), *gained]
    else:
        table = list((colors.WEIGHT if kind == "weight" else colors.DIFFERENCE)["light"].colours)
    return ListedColormap(np.array(table) / 255)


@contextmanager
def _style() -> Iterator[None]:
    """matplotlib's own style, whatever a notebook has set, and letters that can be searched and edited.

    Those of an SVG stay text; those of a PDF are TrueType, because journals refuse Type 3.
    """
    with matplotlib.rc_context():
        matplotlib.style.use("default")
        matplotlib.rcParams.update({"svg.fonttype": "none", "pdf.fonttype": 42})
        yield


def draw(sheet: Sheet) -> Figure:
    """A sheet as a figure: its panels in lines, legend and captions below them.

    Values keep their places whatever they are called; a NaN is a cross.

    Raises
    ------
    ProbeError
        If it has no panel.
    """
    if not sheet.panels:
        raise ProbeError("There is nothing to draw.")
    with _turn, _style():
        texts = [sheet.title, *sheet.captions]
        for panel in sheet.panels:
            texts += [panel.title, panel.note, *panel.rows.labels, *panel.columns.labels]
        lettering = _Lettering(texts)
        panels = [_Drawn.of(panel) for panel in sheet.panels]
        return _Layout(lettering, sheet.title, panels, [*sheet.captions, *lettering.remarks()]).figure


def figure_bytes(figure: Figure, format: str = "png") -> bytes:
    """A figure as the content of a file.

    Raises
    ------
    ProbeError
        If the format isn't png, svg or pdf.
    """
    if format not in FORMATS:
        raise ProbeError(f"A figure can be saved as {', '.join(FORMATS)}, not as {format!r}.")
    buffer = io.BytesIO()
    with _turn, _style():
        figure.savefig(buffer, format=format, metadata={"Title": figure.get_label()})
    return buffer.getvalue()


@dataclass(frozen=True)
class _Drawn:
    """A panel as numpy arrays: ``values``, ``masked`` and ``crossed`` are (rows, columns)."""

    panel: Panel
    values: np.ndarray
    masked: np.ndarray | None
    crossed: np.ndarray

    @classmethod
    def of(cls, panel: Panel) -> _Drawn:
        values = panel.values.detach().cpu().double().numpy()
        values = values[:, None] if panel.kind == "bars" else values
        masked = None if panel.masked is None else panel.masked.cpu().numpy()
        crossed = np.isnan(values) if panel.crossed is None else panel.crossed.cpu().numpy()
        return cls(panel, values, masked, crossed)

    @property
    def kind(self) -> str:
        return self.panel.kind

    @property
    def rows(self) -> Axis:
        return self.panel.rows

    @property
    def columns(self) -> Axis:
        """Bars have no columns, but a length."""
        return Axis("", ()) if self.kind == "bars" else self.panel.columns

    @property
    def hidden(self) -> np.ndarray:
        """Where the mask forbids and nothing is."""
        none: np.ndarray = np.zeros(self.values.shape, dtype=bool)
        return none if self.masked is None else self.masked & (self.values == 0)

    @property
    def zero(self) -> np.ndarray:
        """Where a difference is exactly 0 and the mask has no part in it."""
        zero: np.ndarray = (self.values == 0) & (self.kind == "difference")
        return zero if self.masked is None else zero & ~self.masked


# Composing: all lengths in inches. Positions are computed, so that one drawing is enough.
_MAP_SIDE = (2.0, 9.0)
_MAP_SIDE_OF_SEVERAL = (2.0, 6.0)
_CELL = 0.26
_GAP, _BAR, _BAR_LABELS, _BARS = 0.12, 0.12, 0.5, 2.0
_SMALL, _NOTE, _NORMAL, _LARGE = 5.0, 7.0, 8.5, 10.5


class _Layout:
    """Lays out one figure: lines of panels, as many in a line as are read together."""

    def __init__(
        self, lettering: _Lettering, title: str, panels: Sequence[_Drawn], captions: Sequence[str]
    ) -> None:
        self.lettering = lettering
        self.figure = Figure(figsize=(1, 1), dpi=_DPI)
        self.figure.set_label(lettering.plain(title))
        self.canvas = FigureCanvasAgg(self.figure)
        self.panels = panels
        across = {4: 2}.get(len(panels), min(3, len(panels)))
        every = range(len(panels))
        self.lines = [list(every[start : start + across]) for start in every[::across]]
        low, high = _MAP_SIDE if len(panels) == 1 else _MAP_SIDE_OF_SEVERAL
        longest = max(max(panel.values.shape) for panel in panels)
        self.cell = min(max(longest * _CELL, low), high) / longest
        self.size = min(_NORMAL, 0.8 * self.cell * 72)
        self.step = 1
        captions = list(captions)
        if self.size < _SMALL:
            self.step, self.size = math.ceil(_SMALL / self.size), _SMALL
            captions.append(f"For lack of space only every {_ordinal(self.step)} row and column is labelled.")
        axes = [axis for panel in panels for axis in (panel.rows, panel.columns)]
        labels = {label for axis in axes for label in axis.labels}
        self.short = {label: lettering.short(label) for label in labels}
        if any(lettering.plain(label) != short for label, short in self.short.items()):
            captions.append("Long labels are cut.")
        self.place(title, captions)

    def place(self, title: str, captions: Sequence[str]) -> None:
        line = 1.45 / 72  # inches a line, times its font size
        lefts: dict[int, float] = {}
        widest = 0.0
        for indices in self.lines:
            x = 0.0
            for index in indices:
                x += self.row_space(index) + _GAP
                lefts[index] = x
                x += self.across(index) + _GAP
                if self.has_bar(index):
                    x += _BAR + _BAR_LABELS
            widest = max(widest, x + _GAP)
        width = max(widest, self.measure(self.lettering.plain(title), _LARGE)[0] + 2 * _GAP, 4.0)
        width = min(width, max(widest, 8.0))
        head = self.wrapped(title, width, _LARGE)
        notes = [part for caption in captions for part in self.wrapped(caption, width, _NOTE)]
        entries = self.legend_entries()
        rooms = [(one.panel, self.across(index) + 2 * _GAP) for index, one in enumerate(self.panels)]
        names = [self.wrapped(panel.title, room, _NORMAL) for panel, room in rooms]
        abouts = [self.wrapped(panel.note, room, _NOTE) for panel, room in rooms]
        notes_height = line * _NOTE * len(notes) + (_GAP if notes else 0.0)
        base = _GAP + notes_height + (0.22 if entries else 0.0)
        # From the lowest line of panels up: where its maps end, and where the next begins.
        bottoms: dict[int, float] = {}
        for indices in reversed(self.lines):
            base += max(self.label_space(self.panels[i].columns) for i in indices) + line * _NORMAL + _GAP
            tallest = max(self.down(index) for index in indices)
            for index in indices:
                bottoms[index] = base + tallest - self.down(index)
            above = max(line * (_NORMAL * len(names[i]) + _NOTE * len(abouts[i])) for i in indices)
            base += tallest + _GAP + above + _GAP
        height = base + line * _LARGE * len(head)
        self.figure.set_size_inches(width, height)
        # Every cell gets at least one pixel, however long the text.
        self.figure.set_dpi(max(_DPI, math.ceil(1 / self.cell)))

        self.write(_GAP, height - _GAP, head, _LARGE, va="top")
        self.write(_GAP, _GAP, notes, _NOTE, va="bottom", color="#444444")
        if entries:
            self.figure.legend(
                handles=entries,
                loc="lower left",
                bbox_to_anchor=(_GAP / width, (_GAP + notes_height) / height),
                ncols=len(entries),
                frameon=False,
                prop=FontProperties(family=self.lettering.families, size=_NOTE),
                borderpad=0.0,
                borderaxespad=0.0,
            )
        for index in range(len(self.panels)):
            left, bottom = lefts[index], bottoms[index]
            box = left / width, bottom / height, self.across(index) / width, self.down(index) / height
            if self.panels[index].kind == "bars":
                self.bars(index, box)
            else:
                self.heatmap(index, box)
            top = bottom + self.down(index) + _GAP / 2
            self.write(left, top, abouts[index], _NOTE, va="bottom", color="#444444")
            above = top + line * _NOTE * len(abouts[index])
            self.write(left, above, names[index], _NORMAL, va="bottom")

    def across(self, index: int) -> float:
        """Width of a panel in inches, without its labels and its scale."""
        panel = self.panels[index]
        return _BARS if panel.kind == "bars" else self.cell * panel.values.shape[1]

    def down(self, index: int) -> float:
        return self.cell * self.panels[index].values.shape[0]

    def row_space(self, index: int) -> float:
        """Space left of a panel for its row labels; one with the same rows as the one before it has none."""
        begins = any(index == indices[0] for indices in self.lines)
        if not begins and self.panels[index].rows == self.panels[index - 1].rows:
            return 0.0
        return self.label_space(self.panels[index].rows) + 1.45 / 72 * _NORMAL

    def label_space(self, axis: Axis) -> float:
        widths = [self.measure(self.short[label], self.size)[0] for label in set(axis.labels[:: self.step])]
        return max(widths, default=0.0) + 0.1

    def has_bar(self, index: int) -> bool:
        """Whether a colour scale stands right of a map: beside the last in a line of those that share it."""
        panel = self.panels[index]
        if panel.kind in ("bars", "mask"):
            return False
        ends = any(index == indices[-1] for indices in self.lines)
        if ends or panel.kind == "difference":
            return True
        following = self.panels[index + 1]
        return (following.kind, following.panel.ends) != (panel.kind, panel.panel.ends)

    def measure(self, text: str, size: float) -> tuple[float, float]:
        """Width and height of one line of text."""
        families = self.lettering.families
        artist = self.figure.text(0, 0, text, fontsize=size, fontfamily=families, parse_math=False)
        box = artist.get_window_extent(self.canvas.get_renderer())
        artist.remove()
        return box.width / self.figure.dpi, box.height / self.figure.dpi

    def wrapped(self, text: str, width: float, size: float) -> list[str]:
        plain = self.lettering.plain(text)
        if not plain:
            return []
        natural = self.measure(plain, size)[0]
        room = width - 2 * _GAP
        if natural <= room:
            return [plain]
        # A little less than what would fit on average, as letters differ in width.
        return textwrap.wrap(plain, max(8, int(0.92 * len(plain) * room / natural)))

    def write(
        self, x: float, y: float, lines: Sequence[str], size: float, *, va: str, color: str = "black"
    ) -> None:
        width, height = self.figure.get_size_inches()
        self.figure.text(
            x / width, y / height, "\n".join(lines), fontsize=size, fontfamily=self.lettering.families,
            va=va, ha="left", color=color, linespacing=1.2, parse_math=False,
        )  # fmt: skip

    def heatmap(self, index: int, box: tuple[float, float, float, float]) -> None:
        drawn = self.panels[index]
        axes = self.figure.add_axes(box)
        axes.grid(False)
        if drawn.masked is not None:
            axes.patch.set(**_MASKED)
        cmap, norm = _scale(drawn)
        plain: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto", "origin": "upper"}
        if drawn.kind == "difference":
            flat = np.ma.masked_array(drawn.values, ~drawn.zero)
            axes.imshow(flat, cmap=ListedColormap([_FLAT["zero"]]), **plain)
        hidden = np.isnan(drawn.values) | drawn.hidden | drawn.zero
        shown = np.ma.masked_array(drawn.values, hidden)
        image = axes.imshow(shown, cmap=cmap, norm=norm, **plain)
        self.cross(axes, drawn)
        self.ticks(axes, drawn, with_rows=self.row_space(index) > 0)
        if self.has_bar(index):
            self.bar(image, drawn, box, norm)

    def bars(self, index: int, box: tuple[float, float, float, float]) -> None:
        drawn = self.panels[index]
        axes = self.figure.add_axes(box)
        axes.grid(False)
        lengths = np.nan_to_num(drawn.values[:, 0], nan=0.0, posinf=0.0, neginf=0.0)
        rows = np.arange(len(lengths))
        axes.barh(rows, lengths, height=0.8, color=_BAR_COLOUR)
        longest = max(1.0, float(lengths.max(initial=0.0)))
        axes.set_xlim(0.0, longest * 1.45)  # room for the numbers
        axes.set_ylim(len(rows) - 0.5, -0.5)
        for row in rows[:: self.step]:
            value = drawn.values[row, 0]
            axes.text(
                lengths[row] + 0.02 * longest, row, "not a number" if np.isnan(value) else f"{value:.4f}",
                va="center", fontsize=min(self.size, _NOTE), fontfamily=self.lettering.families,
            )  # fmt: skip
        self.ticks(axes, drawn, with_rows=self.row_space(index) > 0)

    def cross(self, axes: Any, drawn: _Drawn) -> None:
        if drawn.crossed.any():
            rows, columns = np.nonzero(drawn.crossed)
            side = 0.5 * self.cell * 72
            axes.scatter(columns, rows, s=side**2, marker="x", color=_WRONG, linewidths=max(0.5, side / 8))

    def ticks(self, axes: Any, panel: _Drawn, *, with_rows: bool) -> None:
        font = {"fontsize": self.size, "fontfamily": self.lettering.families, "parse_math": False}
        title = {"fontsize": _NORMAL, "fontfamily": self.lettering.families, "parse_math": False}
        columns = range(0, len(panel.columns.labels), self.step)
        axes.set_xticks(columns, [self.short[panel.columns.labels[i]] for i in columns], rotation=90, **font)
        axes.set_xlabel(panel.columns.name, **title)
        rows = range(0, len(panel.rows.labels), self.step)
        axes.set_yticks(rows, [self.short[panel.rows.labels[i]] for i in rows] if with_rows else [], **font)
        if with_rows:
            axes.set_ylabel(panel.rows.name, **title)
        axes.tick_params(length=2, width=0.5, pad=1.5)
        for spine in axes.spines.values():
            spine.set_linewidth(0.5)

    def bar(self, image: Any, panel: _Drawn, box: tuple[float, float, float, float], norm: Normalize) -> None:
        left, bottom, width, height = box
        inch = 1 / self.figure.get_size_inches()[0]
        axes = self.figure.add_axes((left + width + _GAP * inch, bottom, _BAR * inch, height))
        bar = self.figure.colorbar(image, cax=axes)
        if panel.kind == "weight":
            low, high = panel.panel.ends or (0.0, 1.0)
            marks = [(mark, f"{mark:.3g}") for mark in np.linspace(low, high, 5).tolist()]
        elif panel.kind == "change":
            marks = [(-1.0, "−1"), (0.0, "0"), (1.0, "+1")]
        else:
            first, last = (round(math.log10(end)) for end in (norm.vmin or 1.0, norm.vmax or 1.0))
            marks = [(10.0**power, f"1e{power}") for power in range(first, last + 1)]
        bar.set_ticks([mark for mark, _ in marks], labels=[name for _, name in marks])
        axes.minorticks_off()
        axes.tick_params(length=2, width=0.5, labelsize=_NOTE, pad=1.5)

    def legend_entries(self) -> list[Artist]:
        entries: list[Artist] = []
        edge: dict[str, Any] = {"edgecolor": "#888888", "linewidth": 0.4}
        if any(drawn.kind == "mask" for drawn in self.panels):
            entries.append(Patch(facecolor=_FLAT["allowed"], **edge, label="may attend"))
            entries.append(Patch(facecolor=_FLAT["forbidden"], **edge, label="may not"))
        if any(drawn.hidden.any() for drawn in self.panels):
            entries.append(Patch(**_MASKED | {"linewidth": 0.4}, label="forbidden by the mask"))
        if any(drawn.zero.any() for drawn in self.panels):
            entries.append(Patch(facecolor=_FLAT["zero"], **edge, label="exactly 0"))
        crossed = (drawn for drawn in self.panels if drawn.crossed.any())
        meanings = dict.fromkeys(drawn.panel.crossed_means for drawn in crossed)
        if meanings:
            cross: dict[str, Any] = {"marker": "x", "color": _WRONG, "linestyle": "none", "markersize": 5}
            entries.append(Line2D([], [], **cross, label=" or ".join(meanings)))
        return entries


def _scale(drawn: _Drawn) -> tuple[Colormap, Normalize]:
    """Colours, and what they stand for."""
    colours = _colormap(drawn.kind)
    if drawn.kind == "weight":
        return colours, Normalize(*(drawn.panel.ends or (0.0, 1.0)))
    if drawn.kind != "difference":
        return colours, Normalize(-1.0 if drawn.kind == "change" else 0.0, 1.0)
    if drawn.panel.ends is not None:
        return colours, LogNorm(*drawn.panel.ends, clip=True)
    # Whole powers of ten around all differences but zero.
    found = drawn.values[np.isfinite(drawn.values) & (drawn.values > 0)]
    if not found.size:
        return colours, LogNorm(1e-9, 1e-6)
    low, high = math.floor(math.log10(found.min())), math.ceil(math.log10(found.max()))
    return colours, LogNorm(10.0 ** max(low, high - 9), 10.0 ** max(high, low + 1))


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


# Fonts in the order of preference; after them any other that is installed.
_PREFERRED = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Emoji",
    "Noto Sans Symbols",
    "Noto Sans Symbols 2",
    "Noto Sans Symbols2",
    "Symbola",
)
# These hold a box for every character, or letters at the wrong places.
_UNFIT = ("Last Resort", "LastResort", ".Last", "STIX", "cm", "Noto Color Emoji", "Apple Color Emoji")
_LONGEST = 18
_JOINERS = {"\u200c", "\u200d", "\ufe0e", "\ufe0f"}


class _Lettering:
    """The fonts that a figure's texts need, and how to write what no installed font can draw."""

    def __init__(self, texts: Iterable[str]) -> None:
        characters = sorted(set("".join(texts)))
        order = _order(characters)
        found = {character: _family(character, order) for character in characters if character.isprintable()}
        used = [family for family in found.values() if family]
        # The last is for an SVG that is looked at where these are not installed.
        self.families = list(dict.fromkeys(["DejaVu Sans", *used, "sans-serif"]))
        self.missing = [character for character, family in found.items() if family is None]
        self.codes = {character: f" U+{ord(character):04X} " for character in self.missing}
        for character in set(characters) - set(found):
            self.codes[character] = (
                "" if character in _JOINERS and not _SHAPES else f" U+{ord(character):04X} "
            )
        self.unshaped = not _SHAPES and any(map(_needs_shaping, characters))

    def plain(self, text: str) -> str:
        """``text`` with code points in place of what can't be drawn."""
        if not any(character in self.codes for character in text):
            return text
        return " ".join("".join(self.codes.get(character, character) for character in text).split())

    def short(self, text: str) -> str:
        """``plain``, cut to the length of a label."""
        text = self.plain(text)
        if len(text) <= _LONGEST:
            return text
        end = _LONGEST - 1
        while end > 1 and unicodedata.category(text[end]) in {"Mn", "Mc", "Me"}:
            end -= 1
        return text[:end] + "…"

    def remarks(self) -> list[str]:
        remarks = []
        if self.missing:
            named = ", ".join(
                f"U+{ord(character):04X} ({unicodedata.name(character, 'unnamed').lower()})"
                for character in self.missing[:3]
            )
            more = f" and {len(self.missing) - 3} more" if len(self.missing) > 3 else ""
            fonts = " or ".join(dict.fromkeys(map(_font_for, self.missing)))
            remarks.append(
                f"No font installed here can draw {named}{more}: written as code points. "
                f"To see them, install {fonts} and make the figure again."
            )
        if self.unshaped:
            remarks.append(
                f"Matplotlib {matplotlib.__version__} draws right-to-left and joined scripts letter by "
                "letter from left to right; 3.11 and later draw them properly."
            )
        return remarks


_SHAPES = tuple(map(int, matplotlib.__version__.split(".")[:2])) >= (3, 11)


def _needs_shaping(character: str) -> bool:
    return unicodedata.bidirectional(character) in {"R", "AL"} or unicodedata.category(character) == "Mc"


def _order(characters: Iterable[str]) -> tuple[str, ...]:
    """Font families to try; the shapes of Chinese characters differ with the language they are used in."""
    scripts = {unicodedata.name(character, "").split(" ")[0] for character in characters}
    chinese, japanese, korean = "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR"
    first = japanese if scripts & {"HIRAGANA", "KATAKANA"} else korean if "HANGUL" in scripts else chinese
    return ("DejaVu Sans", "Noto Sans", first, *_PREFERRED)


@cache
def _family(character: str, order: tuple[str, ...]) -> str | None:
    """The first font family that has a shape for a character."""
    fonts: dict[str, Any] = {}
    for entry in fontManager.ttflist:
        if not entry.name.startswith(_UNFIT) and (entry.name not in fonts or entry.weight == 400):
            fonts[entry.name] = entry
    wanted = [name for name in dict.fromkeys(order) if name in fonts]
    others = sorted(set(fonts) - set(wanted))
    return next((name for name in [*wanted, *others] if _has(fonts[name], character)), None)


def _has(font: Any, character: str) -> bool:
    properties = FontProperties(
        family=[font.name], style=font.style, weight=font.weight, stretch=font.stretch
    )
    try:
        path = fontManager.findfont(properties, fallback_to_default=False)
        return bool(get_font(path).get_char_index(ord(character)))
    except (OSError, RuntimeError, ValueError):  # a font file that matplotlib can't read
        return False


def _font_for(character: str) -> str:
    """A font family that is known to have the character."""
    script = unicodedata.name(character, "").split(" ")[0]
    if script in {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}:
        return "Noto Sans CJK"
    if ord(character) >= 0x1F000:
        return "Noto Emoji"
    if unicodedata.category(character)[0] in "LMN" and script:
        return f"Noto Sans {script.title()}"
    return "Noto Sans Symbols 2"
