"""Results in files that say where they come from, and the check whether what such a file says still holds.

Every file carries its manifest (``manifest.py``). CSV and PDF have no place for one: it lies beside them, in
a file of the same name with ``.json`` added.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from xml.sax.saxutils import escape, unescape

import numpy as np
import torch

from probe.capture import Run
from probe.comparison import Comparison
from probe.csv_tables import map_csv, table_csv
from probe.errors import ProbeError
from probe.finding import FoundHeads
from probe.manifest import (
    KINDS,
    Manifest,
    Numbers,
    Result,
    array,
    differences,
    digest,
    manifest_of,
    model_named,
    model_of,
    numbers_of,
    remake,
    versions,
)
from probe.masking import MaskComparison
from probe.measures import HeadMeasures, Rollout
from probe.models import Model, resolve
from probe.report import Report
from probe.texts import TextComparison
from probe.tracing import HeadNumbers, Trace
from probe.words import single_tokens

_PICTURES = ("png", "svg", "pdf")
_BESIDE = ("csv", "pdf")
# Spreadsheet programs write numbers anew, with 15 digits: only how far they are from the right ones counts.
_EDITABLE = ("csv", "xlsx")
# Where a format rounds its numbers, how far two roundings of one number may be apart.
_ROUNDED = {"html": 2e-3}

_KEYWORD = "attention-probe"

# What the readers of the formats raise where a file is damaged.
_DAMAGED = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    EOFError,
    RecursionError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Reproduction:
    """What became of the numbers in a file when they were made again.

    Attributes
    ----------
    holds : whether everything agrees.
    max_difference : the largest difference of a number in the file from the one made again, as a share of the
        largest of its block (of 1, if that is less).
    tolerance : what it may be.
    reasons : a sentence for everything that doesn't agree.
    notes : what is otherwise than it was, and need not matter: versions, the device.
    manifest : the file's.
    """

    path: Path
    holds: bool
    max_difference: float
    tolerance: float
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    manifest: Manifest

    @property
    def verdict(self) -> str:
        """The result in one line."""
        of = f"{self.path.name}: the numbers of {self.manifest.model}"
        if self.holds:
            return f"{of} hold: largest difference {self.max_difference:.1e}, tolerance {self.tolerance:.1e}."
        return f"{of} do NOT hold. {self.reasons[0]}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {
            "path": str(self.path),
            "holds": self.holds,
            "verdict": self.verdict,
            "max_difference": self.max_difference if np.isfinite(self.max_difference) else "inf",
            "tolerance": self.tolerance,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "manifest": self.manifest.to_dict(),
        }

    def __str__(self) -> str:
        more = self.reasons[1:11]
        rest = len(self.reasons) - 1 - len(more)
        return "\n".join([self.verdict, *more, *([f"... and {rest} more."] if rest > 0 else []), *self.notes])


def export(
    result: Result,
    path: str | os.PathLike[str],
    *,
    layer: int | None = None,
    head: int | None = None,
    model: Model | str | None = None,
) -> Path:
    """Write a result to a file, in the format that the file's name ends in, together with its manifest.

    json, npz
        Every number, none of them rounded.
    csv
        A map (of a rollout the last), a report's heads, or the steps of a trace as a table.
    html
        All heads of a run to look at, in one file of at most 4 MB; see ``page.py``.
    xlsx
        The head of a trace as live formulas; see ``to_workbook``.
    png, svg, pdf
        The figure of one head, of two masks or texts, of a rollout, or of a report's errors; its numbers are
        in the file too (for PDF beside it).

    Before anything is written the result is made again from the manifest's fields, which must give the same
    numbers.

    Parameters
    ----------
    layer, head : for one head of a run or comparison that holds several; csv and figures need it.
    model : the model that gave the result, where it can't be loaded by its name: a network that was given as
        an object, or one in another dtype.

    Raises
    ------
    ProbeError
        If there is no such format for such a result, if the manifest doesn't give the same numbers, or if the
        file can't be written.

    Examples
    --------
    >>> export(probe.attend("gpt2", "The cat sat on the mat."), "heads.html")  # doctest: +SKIP
    """
    path = Path(path)
    suffix = _suffix(path)
    if not isinstance(result, tuple(KINDS.values())):
        raise ProbeError(
            f"A {type(result).__name__} can't be exported; can be: "
            f"{', '.join(kind.__name__ for kind in KINDS.values())}."
        )
    _check_format(result, suffix)
    result, layer, head = _narrowed(result, suffix, layer, head)
    source = model_of(result, model)
    manifest = manifest_of(result, source, layer, head)
    _check_remade(result, manifest, source)
    fields = manifest.to_dict()
    numbers = _numbers_in(suffix, result, layer, head)
    content = _content(suffix, result, layer, head)
    if suffix in _PICTURES:
        fields["picture"] = hashlib.sha256(content).hexdigest()
    fields["digest"] = None if suffix in _EDITABLE else digest(fields, numbers)
    _save(path, _with_manifest(suffix, content, result, fields, numbers))
    if suffix in _BESIDE:
        beside = (
            {"manifest": fields} if suffix == "csv" else {"manifest": fields, "numbers": _packed(numbers)}
        )
        _save(_beside(path), _json(beside))
    return path


def reproduce(path: str | os.PathLike[str], *, model: Model | str | None = None) -> Reproduction:
    """Make the numbers in an exported file again, and say whether they still hold.

    The model is run again on the manifest's text, and its tokens, its weights' sha256 and every number are
    compared with the file's. No text of the file is ever executed; but a model that it names and that is not
    here is fetched from the Hub, as safetensors. Where a file records a digest of its
    contents (all formats but csv and xlsx, which spreadsheet programs write anew) the smallest change shows;
    elsewhere a number may be off by ``tolerance``.

    Parameters
    ----------
    model : in place of the one the manifest names.

    Raises
    ------
    ProbeError
        If the file can't be read, holds no manifest, or the model isn't there. Numbers that don't hold are no
        error: see ``Reproduction.holds``.
    """
    path = Path(path)
    fields, stored, picture = _read(path)
    manifest = Manifest.from_dict(fields)
    suffix = _suffix(path)
    reasons = []
    recorded = fields.pop("digest", None)
    if suffix not in _EDITABLE and recorded != digest(fields, stored):
        reasons.append("The file was changed after it was written: its contents don't have their digest.")
    if suffix in _PICTURES and picture != fields.get("picture"):
        reasons.append("The picture was changed after it was written.")
    source = resolve(model) if model is not None else model_named(manifest.model, manifest.dtype)
    if manifest.sha256 and source.sha256 != manifest.sha256:
        reasons.append(f"The weights of {source.name} here are others: sha256 {source.sha256}.")
    result = remake(manifest, source)
    layer, head = _one_head(manifest, result)
    again = manifest_of(result, source, layer, head)
    for name in ("tokens", "mask", "heads"):
        if getattr(again, name) != getattr(manifest, name):
            reasons.append(f"Its {name} are others than those made again.")
    tolerance = max(manifest.agreement, again.agreement, _ROUNDED.get(suffix, 0.0))
    worst, wrong = differences(stored, _numbers_in(suffix, result, layer, head), tolerance)
    reasons += wrong
    reasons += _check_reasons(manifest, again)
    return Reproduction(
        path, not reasons, worst, tolerance, tuple(reasons), tuple(_notes(manifest, again)), manifest
    )


def formats_of(kind: type[Result]) -> tuple[str, ...]:
    """The endings of the files that a kind of result can be exported to."""
    return tuple(name for name, kinds in _FORMATS.items() if issubclass(kind, kinds))


_ALL = tuple(KINDS.values())
_FORMATS: dict[str, tuple[type, ...]] = {
    "csv": _ALL,
    "json": _ALL,
    "npz": _ALL,
    "html": (Run,),
    "xlsx": (Trace,),
    **dict.fromkeys(_PICTURES, (Run, MaskComparison, TextComparison, Comparison, Report, Rollout)),
}


def _suffix(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _check_format(result: Result, suffix: str) -> None:
    possible = [f".{name}" for name in formats_of(type(result))]
    if f".{suffix}" not in possible:
        raise ProbeError(
            f"A {type(result).__name__} can be exported to a file whose name ends in "
            f"{', '.join(possible[:-1])} or {possible[-1]}, not in {f'.{suffix}' if suffix else 'nothing'}."
        )


def _narrowed(
    result: Result, suffix: str, layer: int | None, head: int | None
) -> tuple[Result, int | None, int | None]:
    """The result with the chosen head alone, where one is chosen; layer and head for a comparison."""
    if (layer is None) != (head is None):
        raise ProbeError("Give layer and head together.")
    if not isinstance(result, (Run, Comparison)):
        if layer is not None:
            raise ProbeError("layer and head are for a run or a comparison; this result has its own.")
        return result, None, None
    for_one = suffix == "csv" or suffix in _PICTURES
    if isinstance(result, Comparison):
        if for_one and layer is None:
            raise ProbeError(f"A .{suffix} file holds one head: give layer and head.")
        if layer is not None and head is not None:
            result.model.check_head(layer, head)
        return result, layer, head
    if for_one and len(result.heads) > 1:
        raise ProbeError(
            f"{result.model_name} has several kinds of attention: export its maps to .json, .npz or .html."
        )
    if layer is not None and head is not None:
        kept = {place: weights for place, weights in result.maps.items() if place[1:] == (layer, head)}
        if not kept:
            result.weights(layer, head)  # says what the run has
        result = replace(result, maps=kept)
    if for_one and len(result.maps) > 1:
        raise ProbeError(f"A .{suffix} file holds one head: give layer and head.")
    return result, None, None


def _check_remade(result: Result, manifest: Manifest, source: Model) -> None:
    """Refuse to write fields that would not give these numbers."""
    again = remake(manifest, source)
    _, wrong = differences(numbers_of(result), numbers_of(again), manifest.agreement)
    if wrong:
        raise ProbeError(
            f"{source.name} in {manifest.dtype} doesn't give these numbers again ({wrong[0]})", "model"
        )


def _one_head(manifest: Manifest, result: Result) -> tuple[int | None, int | None]:
    return (manifest.layer, manifest.head) if isinstance(result, Comparison) else (None, None)


def _check_reasons(manifest: Manifest, again: Manifest) -> Iterator[str]:
    """Where ``verify`` no longer says of the model what it said."""
    if manifest.passed != again.passed:
        words = {True: "passed", False: "did not pass", None: "was not checked"}
        yield f"The model {words[manifest.passed]} verification then, and {words[again.passed]} now."
    for name in ("max_abs_error", "tolerance"):
        then, now = getattr(manifest, name), getattr(again, name)
        if (then is None) != (now is None) or (then is not None and not abs(then - now) <= again.agreement):
            yield f"{name}: {then} in the file, {now} made again."


def _notes(manifest: Manifest, again: Manifest) -> Iterator[str]:
    for name, now in versions().items():
        then = manifest.versions.get(name)
        if then != now:
            yield f"Made with {name} {then}, made again with {now}."
    if manifest.device != again.device:
        yield f"Made on {manifest.device}, made again on {again.device}."


# ---- numbers and contents, by format


def _numbers_in(suffix: str, result: Result, layer: int | None, head: int | None) -> Numbers:
    """The numbers that a file of this format holds."""
    if suffix == "csv":
        return _csv_numbers(_content(suffix, result, layer, head))
    if suffix == "xlsx":
        return _workbook_numbers(cast(Trace, result).numbers)
    if suffix == "html":
        from probe.page import page_numbers

        return page_numbers(cast(Run, result))
    return numbers_of(result, layer, head)


def _content(suffix: str, result: Result, layer: int | None, head: int | None) -> bytes:
    """The content of a file of a format that knows nothing of manifests; empty for the others."""
    if suffix == "csv":
        return _csv(result, layer, head)
    if suffix not in _PICTURES:
        return b""
    from probe import figures

    if isinstance(result, Run):
        ((_, layer, head),) = result.maps
        figure = figures.draw_head(result, layer, head)
    elif isinstance(result, MaskComparison):
        figure = figures.draw_masks(result)
    elif isinstance(result, Comparison):
        assert layer is not None and head is not None
        figure = figures.draw_comparison(result, layer, head)
    elif isinstance(result, TextComparison):
        figure = figures.draw_texts(result)
    elif isinstance(result, Rollout):
        figure = figures.draw_rollout(result)
    else:
        figure = figures.draw_errors(cast(Report, result))
    return figures.figure_bytes(figure, suffix)


def _with_manifest(
    suffix: str, content: bytes, result: Result, fields: dict[str, Any], numbers: Numbers
) -> bytes:
    if suffix == "json":
        return _json({"manifest": fields, "numbers": {name: _plain(one) for name, one in numbers.items()}})
    if suffix == "npz":
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {"manifest": np.array(json.dumps(fields)), **numbers}
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()
    if suffix == "html":
        from probe.page import page_html

        return page_html(cast(Run, result), fields)
    if suffix == "xlsx":
        return _workbook(cast(Trace, result), fields)
    if suffix in ("png", "svg"):
        text = json.dumps({"manifest": fields, "numbers": _packed(numbers)})
        return _into_png(content, text) if suffix == "png" else _into_svg(content, text)
    return content


def _read(path: Path) -> tuple[dict[str, Any], Numbers, str | None]:
    """Manifest, numbers, and for a figure the sha256 of what is drawn."""
    suffix = _suffix(path)
    if suffix not in _FORMATS:
        raise ProbeError(
            f"{path.name} is not a file that export writes: its name should end in {', '.join(_FORMATS)}."
        )
    content = _bytes(path)
    picture = None
    try:
        if suffix == "npz":
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                found: Any = {"manifest": json.loads(str(archive["manifest"]))}
                numbers = {name: archive[name].astype(np.float64) for name in archive if name != "manifest"}
        elif suffix == "html":
            from probe.page import read_page

            fields, numbers = read_page(content)
            found = {"manifest": fields}
        elif suffix == "xlsx":
            found, numbers = _read_workbook(content)
        elif suffix == "csv":
            found, numbers = json.loads(_bytes(_beside(path))), _csv_numbers(content)
        elif suffix == "json":
            found = json.loads(content)
            numbers = {name: np.array(one, dtype=np.float64) for name, one in found["numbers"].items()}
        else:
            text = _bytes(_beside(path)) if suffix == "pdf" else None
            if suffix == "png":
                text, content = _out_of_png(content)
            elif suffix == "svg":
                text, content = _out_of_svg(content)
            found = json.loads(text or b"")
            numbers = {name: _unpacked(one) for name, one in found["numbers"].items()}
            picture = hashlib.sha256(content).hexdigest()
        manifest = found["manifest"]
    except _DAMAGED as error:
        if isinstance(error, ProbeError):
            raise
        raise ProbeError(
            f"{path.name} holds no manifest, or is damaged: only what probe.export wrote can be made again."
        ) from None
    if not isinstance(manifest, dict):
        raise ProbeError(f"{path.name} holds no manifest: write it with probe.export.")
    return dict(manifest), numbers, picture


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProbeError(f"{path} can't be read: {error.strerror}.") from None


def _save(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ProbeError(f"{path} can't be written: {error.strerror}.") from None


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def _plain(block: np.ndarray) -> Any:
    """Nested lists; a number that isn't finite becomes its name, as JSON has none for it."""
    if np.isfinite(block).all():
        return block.tolist()
    if block.ndim:
        return [_plain(part) for part in block]
    return str(float(block))


def _packed(numbers: Numbers) -> dict[str, Any]:
    """Blocks of numbers as short strings, for where nobody reads them."""
    packed = {}
    for name, block in numbers.items():
        little = np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))
        packed[name] = {
            "shape": list(block.shape),
            "dtype": little.dtype.str,
            "zlib": base64.b64encode(zlib.compress(little.tobytes(), 9)).decode(),
        }
    return packed


def _unpacked(block: Mapping[str, Any]) -> np.ndarray:
    if block["dtype"] not in ("<f4", "<f8"):
        raise ValueError(f"dtype {block['dtype']}")
    content = _inflated(base64.b64decode(block["zlib"], validate=True))
    values: np.ndarray = np.frombuffer(content, dtype=block["dtype"]).reshape(block["shape"])
    return values.astype(np.float64)


def _inflated(content: bytes, limit: int = 2**28) -> bytes:
    """Decompressed, as long as it isn't suspiciously large."""
    stream = zlib.decompressobj()
    result = stream.decompress(content, limit)
    if not stream.eof:
        raise ValueError("damaged or too large")
    return result


# ---- CSV


def _csv(result: Result, layer: int | None, head: int | None) -> bytes:
    if isinstance(result, Run):
        ((_, layer, head),) = result.maps
        return map_csv(result.weights(layer, head), single_tokens(result))
    if isinstance(result, Trace):
        columns = ["dot product", "scaled", "allowed", "exponential", "weight", "model's weight"]
        parts = (
            result.dot_products,
            result.scaled,
            result.allowed.double(),
            result.exponentials,
            result.weights,
            result.model_weights,
        )
        names = [f"[{position}] {token}" for position, token in enumerate(result.tokens)]
        values = torch.stack([part.double() for part in parts], dim=1).tolist()
        return table_csv(["key", *columns], ([name, *row] for name, row in zip(names, values, strict=True)))
    if isinstance(result, Report):
        columns = ["layer", "head", "max_abs_error", "mean_abs_error", "tolerance", "passed"]
        heads = ([getattr(check, name) for name in columns] for check in result.heads)
        return table_csv(columns, ([*row[:-1], int(row[-1])] for row in heads))
    if isinstance(result, Rollout):
        return map_csv(result.maps[-1], single_tokens(result))
    if isinstance(result, (HeadMeasures, FoundHeads)):
        blocks = numbers_of(result)
        values = np.stack(list(blocks.values()), axis=1).tolist()
        return table_csv(
            list(blocks), ([int(layer), int(head), *map(_or_empty, row)] for layer, head, *row in values)
        )
    if isinstance(result, TextComparison):
        before, after = result.first.tokens, result.second.tokens
        return table_csv(
            ["first", "second", "moved"],
            (
                [f"[{row}] {before[row]}", f"[{column}] {after[column]}", moved]
                for (row, column), moved in zip(result.pairs, result.moved.tolist(), strict=True)
            ),
        )
    if isinstance(result, MaskComparison):
        pair, tokens = {"causal": result.causal, "bidirectional": result.bidirectional}, result.tokens
    else:
        assert layer is not None and head is not None
        pair = {
            "from scratch": result.from_scratch(layer, head),
            "model": result.from_model(layer, head),
        }
        tokens = result.encoding.tokens
    names = [f"[{position}] {token}" for position, token in enumerate(tokens)]
    first, second = (part.tolist() for part in pair.values())
    return table_csv(
        ["query", "key", *pair],
        (
            [query, key, first[i][j], second[i][j]]
            for i, query in enumerate(names)
            for j, key in enumerate(names)
        ),
    )


def _or_empty(value: float) -> float | None:
    return None if np.isnan(value) else value


def _csv_numbers(content: bytes) -> Numbers:
    """The numbers of each row, by the row's number and its text cells."""
    numbers = {}
    rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
    try:
        for index, row in enumerate(rows):
            words, values = [], []
            for cell in row:
                try:
                    values.append(float(cell))
                except ValueError:
                    words.append(cell)
            numbers[" ".join([f"row {index}", *words])] = np.array(values)
    except csv.Error as error:
        raise ValueError(str(error)) from None
    return numbers


# ---- XLSX

_BLOCKS = ("inputs", "W_query", "W_key", "W_value", "scale", "weights", "model_weights")
_SOME_HAVE = ("position", "frequency", "window")
_MASKS = {"causal": 1.0, "bidirectional": 0.0}
_CELL_CHARACTERS = 30_000  # a spreadsheet cell takes 32,767


def _workbook(result: Trace, fields: dict[str, Any]) -> bytes:
    """The workbook with the manifest on its first sheet, in as many cells as it needs."""
    from probe.workbook import to_workbook

    text = json.dumps(fields)
    cells = [text[start : start + _CELL_CHARACTERS] for start in range(0, len(text), _CELL_CHARACTERS)]
    rows = tuple((f"manifest {index + 1} of {len(cells)}", cell) for index, cell in enumerate(cells))
    numbers = replace(result.numbers, provenance=(*result.numbers.provenance, *rows))
    with tempfile.TemporaryDirectory() as folder:
        return to_workbook(numbers, Path(folder) / "book.xlsx").read_bytes()


def _workbook_numbers(numbers: HeadNumbers) -> Numbers:
    """What the named blocks of a workbook hold; the weights under the mask the model was trained with."""
    assert numbers.inputs is not None and numbers.model_weights is not None
    blocks = {"inputs": numbers.inputs}
    for role in ("query", "key", "value"):
        weight, bias = getattr(numbers, f"{role}_weight"), getattr(numbers, f"{role}_bias")
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        blocks[f"W_{role}"] = torch.cat([weight, bias[:, None]], dim=1)
    if numbers.frequencies is not None:
        positions = torch.arange(len(numbers.inputs))[:, None]
        blocks |= {"position": positions, "frequency": numbers.frequencies[None]}
    if numbers.window is not None:
        blocks["window"] = torch.tensor([[numbers.window]])
    blocks |= {"weights": numbers.weights, "model_weights": numbers.model_weights}
    switch = {"mask_in_use": np.array(float(numbers.causal)), "scale": np.array([[numbers.scale]])}
    return {name: array(block) for name, block in blocks.items()} | switch


def _read_workbook(content: bytes) -> tuple[dict[str, Any], Numbers]:
    """Manifest and the values stored in the named blocks; a formula that was never computed gives NaN."""
    import openpyxl

    try:
        book = openpyxl.load_workbook(io.BytesIO(content), data_only=True)
    except Exception as error:  # openpyxl raises all sorts for damaged files
        raise ValueError(str(error)) from None
    rows = [(str(row[0]), str(row[1])) for row in book["About"].iter_rows(max_col=2, values_only=True)]
    text = "".join(value for name, value in rows if name.startswith("manifest "))
    numbers = {}

    def cells_of(name: str) -> Any:
        ((sheet, area),) = book.defined_names[name].destinations
        cells = book[sheet][area.replace("$", "")]
        return cells if isinstance(cells, tuple) else ((cells,),)

    numbers["mask_in_use"] = np.array(_MASKS.get(cells_of("mask_in_use")[0][0].value, float("nan")))
    for name in (*_BLOCKS, *(name for name in _SOME_HAVE if name in book.defined_names)):
        cells = cells_of(name)
        numbers[name] = np.array([[_value(cell.value) for cell in row] for row in cells])
    return {"manifest": json.loads(text)}, numbers


def _value(cell: Any) -> float:
    return float(cell) if isinstance(cell, (int, float)) and not isinstance(cell, bool) else float("nan")


# ---- PNG and SVG

_PNG = b"\x89PNG\r\n\x1a\n"
_SVG_START, _SVG_END = f'<metadata id="{_KEYWORD}">'.encode(), b"</metadata>\n"


def _into_png(content: bytes, text: str) -> bytes:
    """With the text in a chunk of its own: iTXt, compressed, before the last (PNG, section 11.3.3)."""
    body = _KEYWORD.encode() + b"\0\1\0\0\0" + zlib.compress(text.encode(), 9)
    chunk = b"iTXt" + body
    end = content.rindex(b"IEND") - 4
    framed = struct.pack(">I", len(body)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return content[:end] + framed + content[end:]


def _out_of_png(content: bytes) -> tuple[bytes, bytes]:
    """The text, and the file without its chunk."""
    if not content.startswith(_PNG):
        raise ValueError("not a PNG file")
    start = len(_PNG)
    prefix = b"iTXt" + _KEYWORD.encode() + b"\0\1\0\0\0"
    while start < len(content):
        (length,) = struct.unpack(">I", content[start : start + 4])
        end = start + 12 + length
        if content[start + 4 : end - 4].startswith(prefix):
            body = content[start + 4 + len(prefix) : end - 4]
            return _inflated(body), content[:start] + content[end:]
        start = end
    raise ValueError("no manifest")


def _into_svg(content: bytes, text: str) -> bytes:
    end = content.rindex(b"</svg>")
    return content[:end] + _SVG_START + escape(text).encode() + _SVG_END + content[end:]


def _out_of_svg(content: bytes) -> tuple[bytes, bytes]:
    start = content.index(_SVG_START)
    end = content.index(_SVG_END, start)
    text = unescape(content[start + len(_SVG_START) : end].decode())
    return text.encode(), content[:start] + content[end + len(_SVG_END) :]
