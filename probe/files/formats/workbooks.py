"""XLSX: the head of a trace as live formulas, whose results are the numbers that must hold."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention import scaled_dot_product_attention
from probe.display.data import Numbers, array, text_block
from probe.display.workbook import workbook_bytes
from probe.errors import ProbeError
from probe.files.formats.arrays import check_unpacked, decoded
from probe.models.families import ROLES
from probe.running.head_numbers import HeadNumbers

_ABOUT = "About"
_SWITCH = "mask_in_use"
_MASKS = {"causal": 1.0, "bidirectional": 0.0}
# Below this a number stands for minus infinity.
_FORBIDDEN = -1e22
_CELL_CHARACTERS = 30_000  # a spreadsheet cell takes 32,767
# More than this is no workbook of a head: one of 8,192 inputs has 5 million cells.
_MAX_CELLS = 2**23
# Bytes of what is read whole (names, texts, styles), of which a workbook of a head has few; and of the sheets
# and everything else.
_MOST = {"xl/workbook.xml": 2**18, "xl/sharedStrings.xml": 2**22, "xl/styles.xml": 2**21}
_MAX_UNPACKED = 2**30
# What the first sheet says that may be otherwise elsewhere, for the same head.
_ELSEWHERE = ("source", "revision", "device", "torch", "transformers")
_EXPONENT = re.compile(r"(E[+-]?)0*(\d)")


def pack(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    """The workbook with the manifest on its first sheet, in as many cells as it needs."""
    text = json.dumps(fields)
    cells = [text[start : start + _CELL_CHARACTERS] for start in range(0, len(text), _CELL_CHARACTERS)]
    rows = tuple((f"manifest {index + 1} of {len(cells)}", cell) for index, cell in enumerate(cells))
    of: HeadNumbers = result.workbook()
    return workbook_bytes(replace(of, provenance=(*of.provenance, *rows)))


def numbers(result: Any) -> Numbers:
    """What the named blocks of a workbook hold, by ``attention``; under the mask the model was trained with.

    Where the mask forbids it is minus infinity. All formulas and titles, and how many digits cells show, are
    those of a workbook made anew; colours, widths, comments and pictures are looked at nowhere.
    """
    of: HeadNumbers = result.workbook()
    assert of.inputs is not None and of.model_weights is not None
    blocks: dict[str, Tensor] = {"inputs": of.inputs}
    for role in ROLES:
        weight, bias = getattr(of, f"{role}_weight"), getattr(of, f"{role}_bias")
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        blocks[f"W_{role}"] = torch.cat([weight, bias[:, None]], dim=1)
        blocks[role] = of.vectors(role)
        norm, sizes = of.norm(role), of.sizes(role)
        turned = of.frequencies is not None and role != "value"
        if turned or norm is not None:
            blocks[f"projected_{role}"] = of.projected(role)
        if norm is not None and sizes is not None:
            blocks |= {f"{role}_size": sizes[:, None], f"{role}_gain": norm.gain[None]}
            if norm.of_all_heads is None:
                blocks["epsilon"] = torch.tensor([[norm.eps]], dtype=torch.float64)
            if turned:
                blocks[f"normalised_{role}"] = of.normalised(role)
    if of.frequencies is not None and of.angles is not None:
        blocks |= {"position": torch.arange(len(of.tokens))[:, None], "frequency": of.frequencies[None]}
        blocks |= {"angle": of.angles, "cosine": of.angles.cos(), "sine": of.angles.sin()}
    if of.window is not None:
        blocks["window"] = torch.tensor([[of.window]])
    steps = scaled_dot_product_attention(
        blocks["query"], blocks["key"], blocks["value"], mask=of.allowed, scale=of.scale
    )
    assert steps.scores is not None and steps.scaled is not None and steps.masked is not None
    maximum = steps.masked.amax(1, keepdim=True)
    exponentials = (steps.masked - maximum).exp()
    blocks |= {
        "scores": steps.scores,
        "scaled": steps.scaled,
        "mask": steps.masked.where(steps.masked.isinf(), torch.zeros_like(steps.masked)),
        "masked": steps.masked,
        "row_maximum": maximum,
        "exponentials": exponentials,
        "row_sum": exponentials.sum(1, keepdim=True),
        "weights": steps.weights,
        "context": steps.output,
        "model_weights": of.model_weights,
        "difference": steps.weights - of.model_weights.double(),
    }
    switch = {_SWITCH: np.array(float(of.causal)), "scale": np.array([[of.scale]])}
    written = _written(workbook_bytes(of), result.model_name)
    return {name: array(block) for name, block in blocks.items()} | switch | written


def unpack(content: bytes, beside: bytes) -> dict[str, Any]:
    """Manifest, the values stored in the named blocks, and what is written; see ``numbers``.

    A formula that was never computed gives NaN.
    """
    values, areas = _cells(content, data_only=True)
    about = values[_ABOUT]
    labels = sorted(row for (row, column) in about if column == 1 and _is_manifest(about[row, 1].value))
    fields = decoded("".join(str(about[row, 2].value) for row in labels))
    blocks = {}
    for name, (sheet, (left, top, right, bottom)) in areas.items():
        found = [
            [_value(values[sheet].get((row, column))) for column in range(left, right + 1)]
            for row in range(top, bottom + 1)
        ]
        if name == _SWITCH:
            switch = values[sheet].get((top, left))
            blocks[name] = np.array(_MASKS.get(str(switch.value), math.nan) if switch else math.nan)
        else:
            blocks[name] = np.array(found)
    return {"manifest": fields, "numbers": blocks | _written(content, str(fields["model"]))}


def _is_manifest(label: Any) -> bool:
    return str(label).startswith("manifest ")


def _value(cell: Any) -> float:
    value = None if cell is None else cell.value
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return math.nan
    return float(value) if value > _FORBIDDEN else -math.inf


def _written(content: bytes, model: str) -> Numbers:
    """What is written on each sheet but for the numbers of the named blocks: formulas, titles, digits shown.

    A model may have another name where it is made again. Spreadsheet programs spell an exponent as they like.
    """
    sheets, areas = _cells(content, data_only=False)
    numbers: Numbers = {}
    for sheet, cells in sheets.items():
        within = [area for of, area in areas.values() if of == sheet]
        lines = []
        for (row, column), cell in sorted(cells.items()):
            label = str(cells[row, 1].value) if sheet == _ABOUT and (row, 1) in cells else ""
            if _is_manifest(label) or (column == 2 and label in _ELSEWHERE):
                continue
            given = any(
                left <= column <= right and top <= row <= bottom for left, top, right, bottom in within
            )
            text = str(getattr(cell.value, "text", cell.value))  # an array formula is an object
            if cell.data_type == "f":
                text = _EXPONENT.sub(r"\1\2", text)
            elif given:
                text = "a number"
            elif sheet == _ABOUT:
                text = text.replace(model, "")
            lines.append((row, column, text, cell.number_format))
        numbers |= text_block(f"{sheet}, formulas and titles", lines)
    return numbers


_Cells = dict[str, dict[tuple[int, int], Any]]
_Areas = dict[str, tuple[str, tuple[int, int, int, int]]]


def _cells(content: bytes, *, data_only: bool) -> tuple[_Cells, _Areas]:
    """The cells of each sheet that hold something, by row and column from 1, and where the named blocks are.

    Whatever a file claims to hold, no more than ``_MAX_CELLS`` are looked at. openpyxl's mode for reading
    alone makes none for merged cells and links, which may be said to span the whole sheet.
    """
    import openpyxl
    from openpyxl.utils import range_boundaries

    check_unpacked(content, _MOST, _MAX_UNPACKED)
    book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=data_only)
    count, cells = 0, _Cells()
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # what the file says they are
        cells[sheet.title] = {}
        for row in sheet.iter_rows():
            count += 1 + len(row)
            if count > _MAX_CELLS:
                raise _too_many()
            cells[sheet.title] |= {
                (cell.row, cell.column): cell for cell in row if cell.value is not None and cell.value != ""
            }
    areas = {}
    for name, defined in book.defined_names.items():
        ((title, area),) = defined.destinations
        left, top, right, bottom = range_boundaries(area.replace("$", ""))
        count += (1 + right - left) * (1 + bottom - top)
        if count > 2 * _MAX_CELLS:
            raise _too_many()
        areas[name] = (title, (left, top, right, bottom))
    return cells, areas


def _too_many() -> ProbeError:
    return ProbeError(f"The workbook spans more than {_MAX_CELLS:,} cells, the most read here.")
