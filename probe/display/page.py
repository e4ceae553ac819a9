"""All heads of a run in one HTML file that asks for nothing: no network, no other file, no server.

A weight is kept in ten bits, as the square root of it on a scale of 1022 steps, so that small weights are as
telling as large ones: half a step of the root is at most 1 / 1022 of the weight itself, so what the page
shows under the pointer is within 0.001 of what was computed. Maps that are zero above the diagonal are kept
as their lower triangle. A run that would need more than ``MAX_CELLS`` cells is pooled: a cell then stands for
a square of tokens, and the page says so.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from probe.display.data import MapSet, text_block
from probe.errors import ProbeError
from probe.running.tokens import Text

# 144 heads over 128 tokens: 3.93 MB in base64, whatever the weights are, so that a file has at most 4 MB.
MAX_CELLS = 144 * 128 * 128
# A shown weight is at most this far from the computed one.
PRECISION = 1e-3

_STEPS = 1022
_NOT_A_NUMBER = 1023
_ASSETS = Path(__file__).parent / "assets"
_START = '<script type="application/json" id="data">'
_DATA = re.compile(f"{re.escape(_START)}(.*?)</script>", re.DOTALL)


class Mapped(Protocol):
    """What a page is made of: attention maps, and what there is to say of them."""

    @property
    def model_name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def text(self) -> Text: ...
    @property
    def tokens(self) -> tuple[str, ...]: ...
    @property
    def cuts(self) -> tuple[str, ...]: ...
    def map_sets(self) -> tuple[MapSet, ...]: ...


@dataclass(frozen=True)
class _Kind:
    """The maps of one kind of attention: what is kept of them, and what rows and columns are called."""

    kind: str
    triangle: bool
    rows: list[str]
    columns: list[str]
    places: list[tuple[int, int]]
    codes: list[np.ndarray]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)


def page_html(run: Mapped, manifest: Mapping[str, Any] | None = None) -> bytes:
    """A run as the content of an HTML file, with the manifest in it if there is one.

    It is at most 4 MB for ordinary texts: up to 128 tokens with 12 x 12 heads of a BERT, 181 of a GPT-2, each
    weight shows by itself; beyond that, or with more heads, squares of tokens are pooled until it fits. A run
    of fewer heads is pooled less: ``attend(model, text, [layer])``.
    """
    sets = run.map_sets()
    side, count = _pooled_side(sets), sum(len(one.weights) for one in sets)
    data = {
        "manifest": None,
        "model": run.model_name,
        "source": run.source,
        "text": run.text,
        "tokens": len(run.tokens),
        "remarks": _remarks(run, count, side),
        "scales": {"light": _colours("YlGnBu"), "dark": _colours("YlGnBu_r")},
        "kinds": [
            {
                "kind": kind.kind,
                "triangle": kind.triangle,
                "rows": kind.rows,
                "columns": kind.columns,
                "places": kind.places,
                "maps": [base64.b64encode(_packed(codes)).decode() for codes in kind.codes],
            }
            for kind in _kinds(sets, side)
        ],
    }
    content = _dumped(data)
    style, *scripts = ((_ASSETS / name).read_text("utf-8") for name in ("page.css", "shared.js", "page.js"))
    script = "".join(scripts)
    title = escape(f"{run.model_name}: all heads" if count > 1 else f"{run.model_name}: one head")
    # The policy lets nothing but these two run or load, even if something in the data should slip through.
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="page"><noscript>This page draws its maps with JavaScript, which is switched off.</noscript></main>
{_START}{content}</script>
<script>{script}</script>
</body>
</html>
"""
    return with_manifest(page.encode(), manifest)


def with_manifest(page: bytes, manifest: Mapping[str, Any] | None) -> bytes:
    """A page that has no manifest, with one."""
    return page.replace(_beginning(None), _beginning(manifest), 1)


def without_manifest(page: bytes, manifest: Mapping[str, Any]) -> bytes:
    """What of a page there is to see: all but its manifest."""
    return page.replace(_beginning(manifest), _beginning(None), 1)


def _beginning(manifest: Mapping[str, Any] | None) -> bytes:
    """The data of a page up to the end of the manifest."""
    return f'{_START}{{"manifest": {_dumped(manifest)}, '.encode()


def _dumped(value: Any) -> str:
    # Inside a script element only "<" can end it.
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")


def page_numbers(run: Mapped) -> dict[str, np.ndarray]:
    """What the page of a run holds: text, labels and numbers, these pooled and rounded as there."""
    numbers = text_block("text", [run.text])
    sets = run.map_sets()
    for kind in _kinds(sets, _pooled_side(sets)):
        numbers |= _labelled(kind.kind, kind.rows, kind.columns)
        for (layer, head), codes in zip(kind.places, kind.codes, strict=True):
            weights = _weights(_spread(codes, kind.shape, kind.triangle))
            numbers[f"{kind.kind}_layer_{layer}_head_{head}"] = weights
    return numbers


def _labelled(kind: str, rows: Sequence[object], columns: Sequence[object]) -> dict[str, np.ndarray]:
    return text_block(f"{kind}_rows", rows) | text_block(f"{kind}_columns", columns)


def read_page(content: bytes) -> tuple[Any, dict[str, np.ndarray]]:
    """Manifest and numbers of a page, the latter as ``page_numbers`` has them.

    Raises
    ------
    ProbeError
        If it isn't a page of this project, or it is damaged.
    """
    found = _DATA.search(content.decode("utf-8", errors="replace"))
    if found is None:
        raise ProbeError("This HTML file holds no maps of this project.")
    try:
        data = json.loads(found[1])
        text = data["text"]
        numbers = text_block("text", [tuple(text) if isinstance(text, list) else text])
        for kind in data["kinds"]:
            numbers |= _labelled(kind["kind"], kind["rows"], kind["columns"])
            shape = len(kind["rows"]), len(kind["columns"])
            if kind["triangle"] and shape[0] != shape[1]:
                raise ValueError("a triangle has as many rows as columns")
            count = _stored(shape, bool(kind["triangle"]))
            for (layer, head), packed in zip(kind["places"], kind["maps"], strict=True):
                codes = _unpacked(base64.b64decode(packed, validate=True), count)
                name = f"{kind['kind']}_layer_{layer}_head_{head}"
                numbers[name] = _weights(_spread(codes, shape, bool(kind["triangle"])))
        return data["manifest"], numbers
    except Exception:  # what a hostile file makes of it is beyond a list
        raise ProbeError("The data in this HTML file is damaged: export it again.") from None


def _kinds(sets: Sequence[MapSet], side: int) -> list[_Kind]:
    kinds = []
    for one in sets:
        places, maps = list(one.weights), list(one.weights.values())
        triangle = _is_triangle(maps)
        codes = _codes(maps, side, triangle)
        labels = _labels(one.queries, side), _labels(one.keys, side)
        kinds.append(_Kind(one.kind, triangle, *labels, places, codes))
    return kinds


def compact(maps: Sequence[Tensor], labels: Sequence[str], index: Sequence[int]) -> dict[str, Any]:
    """Maps of one size as a page keeps them, pooled where they would need more than ``MAX_CELLS`` cells.

    Parameters
    ----------
    maps : (T, T) each, [query, key].
    labels, index : what each row and column is called, and the position that it stands for.

    Returns
    -------
    side : how many tokens a cell stands for in each direction.
    triangle : whether only the lower triangles are kept.
    labels : of the rows and columns, with their positions.
    maps : one base64 string each.
    """
    triangle = _is_triangle(maps)
    side = _side([(len(maps), tuple(maps[0].shape), triangle)])
    return {
        "side": side,
        "triangle": triangle,
        "labels": _labels(labels, side, index),
        "maps": [base64.b64encode(_packed(codes)).decode() for codes in _codes(maps, side, triangle)],
    }


def _codes(maps: Sequence[Tensor], side: int, triangle: bool) -> list[np.ndarray]:
    codes = []
    for weights in maps:
        code = _coded(_pooled(weights.float(), side))
        codes.append(code[np.tril_indices(len(code))] if triangle else code.ravel())
    return codes


def _is_triangle(maps: Sequence[Tensor]) -> bool:
    """Whether no query has weight on a later key, in any of the maps."""
    square = maps[0].shape[0] == maps[0].shape[1]
    return square and all(not bool(weights.triu(1).any()) for weights in maps)


def _pooled_side(sets: Sequence[MapSet]) -> int:
    """How many tokens a cell must stand for in each direction: 1 where every weight can be kept."""
    of_sets = [list(one.weights.values()) for one in sets]
    return _side([(len(maps), tuple(maps[0].shape), _is_triangle(maps)) for maps in of_sets])


def _side(shapes: Sequence[tuple[int, tuple[int, ...], bool]]) -> int:
    """``_pooled_side`` for so many maps, each of a shape, triangular or not."""

    def cells(side: int) -> int:
        return sum(
            count * _stored((math.ceil(rows / side), math.ceil(columns / side)), triangle)
            for count, (rows, columns), triangle in shapes
        )

    side = 1
    while cells(side) > MAX_CELLS:
        side += 1
    return side


def _stored(shape: tuple[int, int], triangle: bool) -> int:
    rows, columns = shape
    return rows * (rows + 1) // 2 if triangle else rows * columns


def _pooled(weights: Tensor, side: int) -> Tensor:
    """(Q, K) as (Q / side, K / side): the sum over the keys of a square, the mean over its queries.

    So a cell says how much of their weight its queries put on its keys, and rows still sum to 1.
    """
    if side == 1:
        return weights
    by_key = torch.stack([part.sum(1) for part in weights.split(side, dim=1)], dim=1)
    return torch.stack([part.mean(0) for part in by_key.split(side, dim=0)])


def coarse(weights: Tensor, side: int) -> Tensor:
    """(Q, K) weights pooled to at most ``side`` rows and columns, for a small picture."""
    return _pooled(weights.float(), math.ceil(max(weights.shape) / side))


def _labels(tokens: Sequence[str], side: int, index: Sequence[int] | None = None) -> list[str]:
    """ "3 cat", or "4–7 sat on the mat" for four tokens in one."""
    index = range(len(tokens)) if index is None else index
    labels = []
    for start in range(0, len(tokens), side):
        part, places = tokens[start : start + side], index[start : start + side]
        place = str(places[0]) if len(part) == 1 else f"{places[0]}–{places[-1]}"
        labels.append(f"{place} {' '.join(part)}")
    return labels


def _coded(weights: Tensor) -> np.ndarray:
    """Weights as ten-bit codes: their square roots in steps of 1 / 1022; 1023 for what is no number."""
    values = weights.double().numpy()
    roots = np.sqrt(np.clip(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0), 0.0, 1.0))
    codes: np.ndarray = np.where(np.isfinite(values), np.rint(roots * _STEPS), _NOT_A_NUMBER)
    return codes.astype(np.uint16)


def _weights(codes: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.where(codes == _NOT_A_NUMBER, np.nan, (codes / _STEPS) ** 2)
    return values


def _packed(codes: np.ndarray) -> bytes:
    """Ten bits a code, the lowest first."""
    bits = np.unpackbits(codes.astype("<u2").view(np.uint8).reshape(-1, 2), axis=1, bitorder="little")
    return np.packbits(bits[:, :10].ravel(), bitorder="little").tobytes()


def _unpacked(content: bytes, count: int) -> np.ndarray:
    if len(content) != math.ceil(count * 10 / 8):
        raise ValueError(f"{len(content)} bytes for {count} codes")
    bits = np.unpackbits(np.frombuffer(content, np.uint8), count=count * 10, bitorder="little")
    values: np.ndarray = bits.reshape(count, 10) @ (1 << np.arange(10))
    return values.astype(np.uint16)


def _spread(codes: np.ndarray, shape: tuple[int, int], triangle: bool) -> np.ndarray:
    """Codes in their place, 0 above the diagonal of a triangle."""
    if not triangle:
        return codes.reshape(shape)
    square = np.zeros(shape, dtype=np.uint16)
    square[np.tril_indices(shape[0])] = codes
    return square


def _remarks(run: Mapped, count: int, side: int) -> list[str]:
    """What a reader must know about what is shown."""
    remarks = [*run.cuts]
    if side > 1:
        remarks.append(
            f"Pooled: a cell stands for {side} x {side} tokens, as all weights of {count} heads over "
            f"{len(run.tokens)} tokens would not fit into 4 MB. It shows how much of their weight its "
            "queries put on its keys together, on average. For single weights, export a run of fewer heads "
            "or a shorter text."
        )
    remarks.append(f"Numbers are within {PRECISION:g} of the computed ones.")
    return remarks


def _colours(name: str) -> str:
    """256 colours in order of lightness, as one string of six hexadecimal digits each."""
    from matplotlib import colormaps

    table = (colormaps[name](np.linspace(0.0, 1.0, 256))[:, :3] * 255).round().astype(int)
    return "".join(f"{red:02x}{green:02x}{blue:02x}" for red, green, blue in table.tolist())


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
