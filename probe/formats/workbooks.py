"""XLSX: the head of a trace as live formulas, whose results are the numbers that must hold."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention import scaled_dot_product_attention
from probe.results import Numbers, Place, array
from probe.tracing import Role, Trace

_ABOUT = "About"
_SWITCH = "mask_in_use"
_MASKS = {"causal": 1.0, "bidirectional": 0.0}
# Below this a number stands for minus infinity.
_FORBIDDEN = -1e22
_CELL_CHARACTERS = 30_000  # a spreadsheet cell takes 32,767


def pack(body: bytes, result: Trace, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    """The workbook with the manifest on its first sheet, in as many cells as it needs."""
    from probe.workbook import workbook_bytes

    text = json.dumps(fields)
    cells = [text[start : start + _CELL_CHARACTERS] for start in range(0, len(text), _CELL_CHARACTERS)]
    rows = tuple((f"manifest {index + 1} of {len(cells)}", cell) for index, cell in enumerate(cells))
    return workbook_bytes(replace(result.numbers, provenance=(*result.numbers.provenance, *rows)))


def numbers(result: Trace, place: Place) -> Numbers:
    """What the named blocks of a workbook hold, by ``attention``; under the mask the model was trained with.

    Where the mask forbids there is no number: NaN.
    """
    of = result.numbers
    assert of.inputs is not None and of.model_weights is not None
    blocks: dict[str, Tensor] = {"inputs": of.inputs}
    roles: tuple[Role, ...] = ("query", "key", "value")
    for role in roles:
        weight, bias = getattr(of, f"{role}_weight"), getattr(of, f"{role}_bias")
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        blocks[f"W_{role}"] = torch.cat([weight, bias[:, None]], dim=1)
        blocks[role] = of.vectors(role)
    if of.frequencies is not None and of.angles is not None:
        blocks |= {f"projected_{role}": of.projected(role) for role in roles[:2]}
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
        "mask": torch.where(steps.masked.isinf(), torch.nan, 0.0),
        "masked": steps.masked.masked_fill(steps.masked.isinf(), torch.nan),
        "row_maximum": maximum,
        "exponentials": exponentials,
        "row_sum": exponentials.sum(1, keepdim=True),
        "weights": steps.weights,
        "context": steps.output,
        "model_weights": of.model_weights,
        "difference": steps.weights - of.model_weights.double(),
    }
    switch = {_SWITCH: np.array(float(of.causal)), "scale": np.array([[of.scale]])}
    return {name: array(block) for name, block in blocks.items()} | switch


def unpack(content: bytes, beside: bytes) -> dict[str, Any]:
    """Manifest and the values stored in the named blocks; a formula that was never computed gives NaN."""
    import openpyxl

    try:
        book = openpyxl.load_workbook(io.BytesIO(content), data_only=True)
    except Exception as error:  # openpyxl raises all sorts for damaged files
        raise ValueError(str(error)) from None
    rows = [(str(row[0]), str(row[1])) for row in book[_ABOUT].iter_rows(max_col=2, values_only=True)]
    text = "".join(value for name, value in rows if name.startswith("manifest "))
    blocks = {}
    for name, defined in book.defined_names.items():
        ((sheet, area),) = defined.destinations
        cells = book[sheet][area.replace("$", "")]
        rows_of_cells = cells if isinstance(cells, tuple) else ((cells,),)
        if name == _SWITCH:
            blocks[name] = np.array(_MASKS.get(rows_of_cells[0][0].value, float("nan")))
        else:
            blocks[name] = np.array([[_value(cell.value) for cell in row] for row in rows_of_cells])
    return {"manifest": json.loads(text), "numbers": blocks}


def _value(cell: Any) -> float:
    is_number = isinstance(cell, (int, float)) and not isinstance(cell, bool)
    return float(cell) if is_number and cell > _FORBIDDEN else float("nan")
