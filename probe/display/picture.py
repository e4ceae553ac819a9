"""Result objects as figures for files: PNG, SVG and PDF, for print and for slides.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from probe.errors import ProbeError
from probe.running.words import Words, single_tokens

if TYPE_CHECKING:
    from probe.analyses.checks.report import Report
    from probe.analyses.compare import Comparison
    from probe.analyses.masks import Direction, MaskComparison
    from probe.analyses.measures import Rollout
    from probe.analyses.texts import TextComparison
    from probe.running.capture import Run

FORMATS = ("png", "svg", "pdf")
_DPI = 160

# Matplotlib keeps caches of fonts and text sizes that it doesn't guard: figures take turns.
_turn = threading.RLock()

# Light to dark by lightness alone, so both survive a black-and-white print and any kind of colour vision. The
# differences begin a quarter up their scale: whatever isn't zero is darker than the mark for zero.
_WEIGHT = colormaps["YlGnBu"]
_DIFFERENCE = ListedColormap(colormaps["YlOrRd"](np.linspace(0.25, 1.0, 256)))
_ZERO, _WRONG = "#dfe6ea", "#c1121f"
_MASKED: dict[str, Any] = {"facecolor": "#efedea", "edgecolor": "#cbc7c0", "hatch": "////", "linewidth": 0.0}


def draw_head(
    run: Run, layer: int, head: int, shown: Words | None = None, *, kind: str | None = None
) -> Figure:
    """One head's attention weights: a row for each query, a column for each key, colours from 0 to 1.

    Parameters
    ----------
    shown : words instead of tokens, or without special tokens; see ``group_words``.
    kind : which attention of a model with an encoder and a decoder; see ``Run.weights``.

    Raises
    ------
    ProbeError
        If the run did not keep that head, or ``shown`` belongs to another text.
    """
    source, target = single_tokens(run), single_tokens(run.target or run)
    queries, keys = {"decoder": (target, target), "cross": (target, source)}.get(kind or "", (source, source))
    if shown is not None:
        queries = keys = shown
    weights = run.weights(layer, head, kind)
    panel = _weights("", queries.weights(weights, keys), queries, keys=keys)
    title = f"{_title(run, layer, head)}{f', {kind} attention' if kind else ''}"
    return _compose(title, [panel], _remarks(run, queries, weights))


def draw_comparison(
    comparison: Comparison,
    layer: int,
    head: int,
    shown: Words | None = None,
    *,
    keys: Words | None = None,
    kind: str | None = None,
) -> Figure:
    """One head three times: from scratch, as the model computed it, and the absolute difference.

    The difference has a logarithmic scale; cells where both agree to the last bit have a colour of their own.

    Parameters
    ----------
    shown, keys : how the queries and the keys are put together; by default each token stands for itself.
    kind : of attention, for models with an encoder and a decoder.

    Raises
    ------
    ProbeError
        If there is no such layer, head or kind, or ``shown`` or ``keys`` belongs to another text.
    """
    queried, read = comparison.sides(kind)
    shown = shown or single_tokens(queried)
    keys = keys or (shown if read is queried else single_tokens(read))
    whole = comparison.from_model(layer, head, kind)
    ours, theirs = shown.weights(comparison.from_scratch(layer, head, kind), keys), shown.weights(whole, keys)
    allowed = comparison.allowed(layer, head, kind)
    masked = None if allowed is None else _masked(shown, allowed, keys)
    check = comparison.check(layer, head, kind)
    verdict = (
        f"Largest difference of a token's weight {check.max_abs_error:.1e}, tolerance {check.tolerance:.1e}: "
        f"{'the two agree' if check.passed else 'the two do NOT agree'}."
    )
    return _compose(
        f"{comparison.model.name} ({comparison.model.source}), {check.place}",
        [
            _weights("from scratch", ours, shown, masked, keys),
            _weights("the model's own", theirs, shown, masked, keys),
            _difference("absolute difference", (ours - theirs).abs(), shown, masked, keys),
        ],
        [verdict, *_remarks(queried, shown, whole, keys)],
    )


def draw_masks(masks: MaskComparison, shown: Words | None = None) -> Figure:
    """The same trained head under the causal and the bidirectional mask.

    Raises
    ------
    ProbeError
        If ``shown`` belongs to another text.
    """
    shown = shown or single_tokens(masks)
    kinds: tuple[Direction, Direction] = ("causal", "bidirectional")
    maps = {"causal": masks.causal, "bidirectional": masks.bidirectional}
    trained = masks.causal if masks.trained_with == "causal" else masks.bidirectional
    return _compose(
        _title(masks, masks.layer, masks.head),
        [
            _weights(
                masks.labels[kind], shown.weights(maps[kind]), shown, _masked(shown, masks.allowed(kind))
            )
            for kind in kinds
        ],
        [masks.summary, *_remarks(masks, shown, trained)],
    )


def draw_texts(texts: TextComparison) -> Figure:
    """The same head on two texts, and the absolute difference between the tokens that both have."""
    first, second = (single_tokens(one) for one in (texts.first, texts.second))
    panels = [
        _weights("the first text", texts.first.weights, first),
        _weights("the second text", texts.second.weights, second),
    ]
    if texts.pairs:
        shared = tuple(texts.first.tokens[position] for position, _ in texts.pairs)
        axes = _Axis("query", shared), _Axis("key", shared)
        panels.append(_Panel("absolute difference", _numbers(texts.difference.abs()), "difference", *axes))
    return _compose(_title(texts, texts.layer, texts.head), panels, [texts.summary])


def draw_rollout(rollout: Rollout, layer: int | None = None, shown: Words | None = None) -> Figure:
    """Attention rollout up to a layer (the last by default), with what must be said of it.

    Raises
    ------
    ProbeError
        If there is no such layer, or ``shown`` belongs to another text.
    """
    layer = len(rollout.maps) - 1 if layer is None else layer
    shown = shown or single_tokens(rollout)
    axes = _Axis("position", shown.labels), _Axis("input token", shown.labels)
    panel = _Panel("", _numbers(shown.weights(rollout.weights(layer))), "weight", *axes)
    title = f"{rollout.model_name} ({rollout.source}), attention rollout up to layer {layer}"
    return _compose(title, [panel], [*_remarks(rollout, shown, rollout.weights(layer)), rollout.caveat])


def draw_errors(report: Report) -> Figure:
    """The largest error of every head, layer by head, on a logarithmic scale; failed heads are crossed.

    One map for each kind of attention.
    """
    panels = [_errors(report, kind) for kind in report.kinds]
    return _compose(f"{report.model} ({report.source})", panels, [report.verdict])


def _errors(report: Report, kind: str) -> _Panel:
    checks = [check for check in report.heads if check.kind == kind]
    layers, heads = (1 + max(getattr(check, name) for check in checks) for name in ("layer", "head"))
    errors = np.full((layers, heads), np.nan)
    failed = np.zeros(errors.shape, dtype=bool)
    for check in checks:
        errors[check.layer, check.head] = check.max_abs_error
        failed[check.layer, check.head] = not check.passed
    return _Panel(
        f"{'' if kind == 'self' else f'{kind}: '}largest difference of an attention weight",
        errors,
        "difference",
        _Axis("layer", tuple(map(str, range(layers)))),
        _Axis("head", tuple(map(str, range(heads)))),
        crossed=failed,
        crossed_means="did not pass",
    )


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
    with _turn:
        figure.savefig(buffer, format=format, metadata={"Title": figure.get_label()})
    return buffer.getvalue()


@dataclass(frozen=True)
class _Axis:
    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class _Panel:
    """One heatmap; ``values``, ``masked`` and ``crossed`` are (rows, columns). Crossed by default: NaN."""

    title: str
    values: np.ndarray
    kind: Literal["weight", "difference"]
    rows: _Axis
    columns: _Axis
    masked: np.ndarray | None = None
    crossed: np.ndarray | None = None
    crossed_means: str = "not a number"

    @property
    def crosses(self) -> np.ndarray:
        return np.isnan(self.values) if self.crossed is None else self.crossed


def _weights(
    title: str, values: Tensor, shown: Words, masked: np.ndarray | None = None, keys: Words | None = None
) -> _Panel:
    return _Panel(title, _numbers(values), "weight", *_axes(shown, keys or shown), masked)


def _difference(
    title: str, values: Tensor, shown: Words, masked: np.ndarray | None = None, keys: Words | None = None
) -> _Panel:
    return _Panel(title, _numbers(values), "difference", *_axes(shown, keys or shown), masked)


def _axes(queries: Words, keys: Words) -> tuple[_Axis, _Axis]:
    return _Axis("query", queries.labels), _Axis("key", keys.labels)


def _numbers(values: Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()


def _masked(shown: Words, allowed: Tensor, keys: Words | None = None) -> np.ndarray:
    """(W, W), True where a (T, T) mask hides the whole key word from the whole query word."""
    return (shown.weights(allowed.cpu().float(), keys) == 0).numpy()


def _title(result: Run | MaskComparison | TextComparison, layer: int, head: int) -> str:
    return f"{result.model_name} ({result.source}), layer {layer}, head {head}"


def _remarks(result: Any, shown: Words, weights: Tensor, keys: Words | None = None) -> list[str]:
    """What a reader must know about the text and about what is shown of its (T, T) weights."""
    keys = keys or shown
    remarks = [remark for remark in (result.truncated, shown.notice) if remark]
    if any(end - start > 1 for start, end in (*shown.pieces, *keys.pieces)):
        remarks.append(
            "Words instead of tokens: summed over a key word's pieces, averaged over a query word's."
        )
    if any(sum(end - start for start, end in one.pieces) < one.num_tokens for one in (shown, keys)):
        hidden = float((shown.means(weights.sum(-1)) - shown.weights(weights, keys).sum(-1)).mean())
        remarks.append(
            f"Special tokens are left out. They have {hidden:.1%} of a query's weight on average; nothing is "
            "renormalised, so rows sum to less than 1."
        )
    return remarks


# Composing: all lengths in inches. Positions are computed, so that one drawing is enough.
_MAP_SIDE = (2.0, 9.0)
_MAP_SIDE_OF_SEVERAL = (2.0, 6.0)
_CELL = 0.26
_GAP, _BAR, _BAR_LABELS = 0.12, 0.12, 0.5
_SMALL, _NORMAL, _LARGE = 5.0, 8.5, 10.5


def _compose(title: str, panels: Sequence[_Panel], captions: Sequence[str]) -> Figure:
    """Heatmaps side by side under one title, with legend and captions below."""
    with _turn:
        texts = [title, *captions]
        for panel in panels:
            texts += [panel.title, *panel.rows.labels, *panel.columns.labels]
        lettering = _Lettering(texts)
        return _Sheet(lettering, title, panels, [*captions, *lettering.remarks()]).figure


class _Sheet:
    """Lays out one figure."""

    def __init__(
        self, lettering: _Lettering, title: str, panels: Sequence[_Panel], captions: Sequence[str]
    ) -> None:
        self.lettering = lettering
        self.figure = Figure(figsize=(1, 1), dpi=_DPI)
        self.figure.set_label(lettering.plain(title))
        self.canvas = FigureCanvasAgg(self.figure)
        self.panels = panels
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
        lefts, x = [], 0.0
        for index, panel in enumerate(self.panels):
            x += self.row_space(index) + _GAP
            lefts.append(x)
            x += self.cell * panel.values.shape[1] + _GAP
            if self.has_bar(index):
                x += _BAR + _BAR_LABELS
        width = max(x + _GAP, self.measure(self.lettering.plain(title), _LARGE)[0] + 2 * _GAP, 4.0)
        width = min(width, max(x + _GAP, 8.0))
        head = self.wrapped(title, width, _LARGE)
        notes = [part for caption in captions for part in self.wrapped(caption, width, 7.0)]
        entries = self.legend_entries()
        panel_titles = [
            self.wrapped(panel.title, self.cell * panel.values.shape[1] + 2 * _GAP, _NORMAL)
            for panel in self.panels
        ]
        column_space = max(self.label_space(panel.columns) for panel in self.panels) + line * _NORMAL + _GAP
        notes_height = line * 7.0 * len(notes) + (_GAP if notes else 0.0)
        legend_height = 0.22 if entries else 0.0
        base = _GAP + notes_height + legend_height + column_space
        tallest = max(self.cell * panel.values.shape[0] for panel in self.panels)
        titles_height = line * _NORMAL * max(map(len, panel_titles))
        height = base + tallest + _GAP + titles_height + line * _LARGE * len(head) + _GAP
        self.figure.set_size_inches(width, height)
        # Every cell gets at least one pixel, however long the text.
        self.figure.set_dpi(max(_DPI, math.ceil(1 / self.cell)))

        self.write(_GAP, height - _GAP, head, _LARGE, va="top")
        self.write(_GAP, _GAP, notes, 7.0, va="bottom", color="#444444")
        if entries:
            self.figure.legend(
                handles=entries,
                loc="lower left",
                bbox_to_anchor=(_GAP / width, (_GAP + notes_height) / height),
                ncols=len(entries),
                frameon=False,
                prop=FontProperties(family=self.lettering.families, size=7.0),
                borderpad=0.0,
                borderaxespad=0.0,
            )
        top = base + tallest
        for index, (panel, left, lines) in enumerate(zip(self.panels, lefts, panel_titles, strict=True)):
            across, down = self.cell * panel.values.shape[1], self.cell * panel.values.shape[0]
            self.heatmap(index, (left / width, (top - down) / height, across / width, down / height))
            self.write(left, top + _GAP / 2, lines, _NORMAL, va="bottom")

    def row_space(self, index: int) -> float:
        """Space left of a map for its row labels; a map with the same rows as the one before it has none."""
        if index and self.panels[index].rows == self.panels[index - 1].rows:
            return 0.0
        return self.label_space(self.panels[index].rows) + 1.45 / 72 * _NORMAL

    def label_space(self, axis: _Axis) -> float:
        widths = [self.measure(self.short[label], self.size)[0] for label in set(axis.labels[:: self.step])]
        return max(widths, default=0.0) + 0.1

    def has_bar(self, index: int) -> bool:
        """Whether a colour scale stands right of a map: beside the last of those that share it."""
        following = self.panels[index + 1 :]
        kind = self.panels[index].kind
        return kind == "difference" or not (following and following[0].kind == kind)

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
        panel = self.panels[index]
        axes = self.figure.add_axes(box)
        if panel.masked is not None:
            axes.patch.set(**_MASKED)
        cmap, norm = _scale(panel)
        hidden = np.isnan(panel.values)
        if panel.masked is not None:
            hidden = hidden | (panel.masked & (panel.values == 0))
        if panel.kind == "difference":
            zero = _plain_zero(panel)
            flat = np.ma.masked_array(panel.values, ~zero)
            axes.imshow(flat, cmap=ListedColormap([_ZERO]), interpolation="nearest", aspect="auto")
            hidden = hidden | zero
        shown = np.ma.masked_array(panel.values, hidden)
        image = axes.imshow(shown, cmap=cmap, norm=norm, interpolation="nearest", aspect="auto")
        if panel.crosses.any():
            rows, columns = np.nonzero(panel.crosses)
            side = 0.5 * self.cell * 72
            axes.scatter(columns, rows, s=side**2, marker="x", color=_WRONG, linewidths=max(0.5, side / 8))
        self.ticks(axes, panel, with_rows=self.row_space(index) > 0)
        if self.has_bar(index):
            self.bar(image, panel, box, norm)

    def ticks(self, axes: Any, panel: _Panel, *, with_rows: bool) -> None:
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

    def bar(self, image: Any, panel: _Panel, box: tuple[float, float, float, float], norm: Normalize) -> None:
        left, bottom, width, height = box
        inch = 1 / self.figure.get_size_inches()[0]
        axes = self.figure.add_axes((left + width + _GAP * inch, bottom, _BAR * inch, height))
        bar = self.figure.colorbar(image, cax=axes)
        if panel.kind == "weight":
            marks = [(mark, f"{mark:g}") for mark in (0.0, 0.25, 0.5, 0.75, 1.0)]
        else:
            first, last = (round(math.log10(end)) for end in (norm.vmin or 1.0, norm.vmax or 1.0))
            marks = [(10.0**power, f"1e{power}") for power in range(first, last + 1)]
        bar.set_ticks([mark for mark, _ in marks], labels=[name for _, name in marks])
        axes.minorticks_off()
        axes.tick_params(length=2, width=0.5, labelsize=7.0, pad=1.5)

    def legend_entries(self) -> list[Artist]:
        entries: list[Artist] = []
        edge: dict[str, Any] = {"edgecolor": "#888888", "linewidth": 0.4}
        if any(
            panel.masked is not None and (panel.masked & (panel.values == 0)).any() for panel in self.panels
        ):
            entries.append(Patch(**_MASKED | {"linewidth": 0.4}, label="forbidden by the mask"))
        if any(panel.kind == "difference" and _plain_zero(panel).any() for panel in self.panels):
            entries.append(Patch(facecolor=_ZERO, **edge, label="exactly 0"))
        meanings = dict.fromkeys(panel.crossed_means for panel in self.panels if panel.crosses.any())
        if meanings:
            cross: dict[str, Any] = {"marker": "x", "color": _WRONG, "linestyle": "none", "markersize": 5}
            entries.append(Line2D([], [], **cross, label=" or ".join(meanings)))
        return entries


def _plain_zero(panel: _Panel) -> np.ndarray:
    """Where a difference is exactly 0 and the mask has no part in it."""
    zero: np.ndarray = panel.values == 0
    return zero if panel.masked is None else zero & ~panel.masked


def _scale(panel: _Panel) -> tuple[Colormap, Normalize]:
    """Colours, and what they stand for: 0 to 1, or whole powers of ten around all differences but zero."""
    if panel.kind == "weight":
        return _WEIGHT, Normalize(0.0, 1.0)
    found = panel.values[np.isfinite(panel.values) & (panel.values > 0)]
    if not found.size:
        return _DIFFERENCE, LogNorm(1e-9, 1e-6)
    low, high = math.floor(math.log10(found.min())), math.ceil(math.log10(found.max()))
    return _DIFFERENCE, LogNorm(10.0 ** max(low, high - 9), 10.0 ** max(high, low + 1))


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
        self.families = list(dict.fromkeys(["DejaVu Sans", *(family for family in found.values() if family)]))
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
