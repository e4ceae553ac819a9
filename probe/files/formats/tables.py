"""CSV and Parquet: a map or a list of numbers as a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from probe.analyses.ablate import Ablation, Ranking
from probe.analyses.checks.report import Report
from probe.analyses.find import FoundHeads
from probe.analyses.masks import MaskComparison
from probe.analyses.measures import HeadMeasures, Rollout
from probe.analyses.predict import Predictions
from probe.analyses.texts import TextComparison
from probe.analyses.trace import Trace
from probe.errors import ProbeError
from probe.files.csv_tables import map_csv, table_csv
from probe.files.formats.arrays import decoded
from probe.files.numbers import Numbers, Place, array, head_columns, text_block
from probe.models.kinds import sides
from probe.running.capture import Run
from probe.running.words import single_tokens

_COUNTED = ("layer", "head", "passed")
_KEYWORD = b"attention-probe"
# More rows than this are suspiciously many.
_MAX_ROWS = 2**27


def csv_body(result: Any, place: Place) -> bytes:
    """The table: a map as a row for each query, anything else with a row for each thing it is about."""
    if isinstance(result, Run):
        ((kind, layer, head),) = result.maps
        source, target = single_tokens(result), single_tokens(result.target or result)
        return map_csv(result.weights(layer, head, kind), *sides(kind, source, target))
    if isinstance(result, Rollout):
        return map_csv(result.maps[-1], single_tokens(result))
    if isinstance(result, (Report, HeadMeasures, FoundHeads, Ranking)):
        columns = {name: _cells(name, block) for name, block in head_columns(result).items()}
        if isinstance(result, Report) and len(result.kinds) > 1:
            columns = {"kind": [one.kind for one in result.heads], **columns}
        return table_csv(list(columns), map(list, zip(*columns.values(), strict=True)))
    if isinstance(result, Trace):
        header = ["key", "dot product", "scaled", "allowed", "exponential", "weight", "model's weight"]
        parts = (
            result.dot_products,
            result.scaled,
            result.allowed.double(),
            result.exponentials,
            result.weights,
            result.model_weights,
        )
        values = torch.stack([part.double() for part in parts], dim=1).tolist()
        return table_csv(
            header, ([name, *row] for name, row in zip(_named(result.tokens), values, strict=True))
        )
    if isinstance(result, TextComparison):
        before, after = _named(result.first.tokens), _named(result.second.tokens)
        pairs = zip(result.pairs, result.moved.tolist(), strict=True)
        return table_csv(
            ["first", "second", "moved"],
            ([before[row], after[column], moved] for (row, column), moved in pairs),
        )
    if isinstance(result, Ablation):
        moved = zip(_named(result.tokens), result.hidden_change.tolist(), strict=True)
        return table_csv(["token", "hidden change"], map(list, moved))
    if isinstance(result, Predictions):
        return table_csv(
            ["position", "rank", "text", "probability"],
            (
                [one.position, rank, text, probability]
                for one in result
                for rank, (text, probability) in enumerate(one.candidates)
            ),
        )
    if isinstance(result, MaskComparison):
        pair = {"causal": result.causal, "bidirectional": result.bidirectional}
        queries = keys = _named(result.tokens)
    else:
        assert place is not None
        kind, layer, head = place
        asked = layer, head, kind
        pair = {"from scratch": result.from_scratch(*asked), "model": result.from_model(*asked)}
        queries, keys = (_named(one.tokens) for one in result.sides(kind))
    first, second = (part.tolist() for part in pair.values())
    return table_csv(
        ["query", "key", *pair],
        (
            [query, key, first[i][j], second[i][j]]
            for i, query in enumerate(queries)
            for j, key in enumerate(keys)
        ),
    )


def _named(tokens: Sequence[str]) -> list[str]:
    return [f"[{position}] {token}" for position, token in enumerate(tokens)]


def _cells(name: str, block: np.ndarray) -> list[Any]:
    """Whole numbers where they count; None where there is no number."""
    if name in _COUNTED:
        return [int(value) for value in block]
    return [None if np.isnan(value) else value for value in block.tolist()]


def csv_numbers(result: Any, place: Place) -> Numbers:
    return _csv_columns(csv_body(result, place))


def pack_csv(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    return body


def unpack_csv(content: bytes, beside: bytes) -> dict[str, Any]:
    return {"manifest": decoded(beside)["manifest"], "numbers": _csv_columns(content)}


def _csv_columns(content: bytes) -> Numbers:
    """The columns below their titles: of numbers, NaN where a cell is empty, or else of text."""
    try:
        rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header, *below = [row for row in rows if row]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    _check_titles(header)
    numbers: Numbers = {}
    for title, *cells in zip(header, *below, strict=True):
        try:
            numbers[title] = np.array([float(cell or "nan") for cell in cells], dtype=np.float64)
        except ValueError:
            numbers |= text_block(title, cells)
    return numbers


def _check_titles(titles: Sequence[str]) -> None:
    """Of two columns with one title only one would be looked at."""
    if len(set(titles)) < len(titles):
        raise ValueError("a title twice")


def _table(result: Any) -> Any:
    """A result as a pyarrow table: of a run a row for each weight, else a row for each head."""
    import pyarrow

    if isinstance(result, Run):
        parts = []
        for (kind, layer, head), weights in sorted(result.maps.items()):
            queries, keys = result.labels(kind)
            query, key = (part.ravel() for part in np.indices(tuple(weights.shape), dtype=np.int32))
            columns = {"kind": _repeated([kind], np.zeros_like(query))} if len(result.heads) > 1 else {}
            columns |= {
                "layer": np.full_like(query, layer),
                "head": np.full_like(query, head),
                "query": query,
                "query_token": _repeated(queries, query),
                "key": key,
                "key_token": _repeated(keys, key),
                "weight": array(weights).ravel(),
            }
            parts.append(pyarrow.table(columns))
        return pyarrow.concat_tables(parts).unify_dictionaries()
    columns = {name: pyarrow.array(_cells(name, block)) for name, block in head_columns(result).items()}
    if isinstance(result, Report) and len(result.kinds) > 1:
        columns = {"kind": pyarrow.array([one.kind for one in result.heads]), **columns}
    return pyarrow.table(
        {name: column for name, column in columns.items() if column.null_count < len(column)}
    )


def _repeated(names: Sequence[str], places: np.ndarray) -> Any:
    """Names by their places, each stored once."""
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(places, list(names))


def _columns(table: Any) -> Numbers:
    """The columns of a pyarrow table, of numbers or of text."""
    import pyarrow

    _check_titles(table.column_names)
    numbers: Numbers = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pyarrow.types.is_dictionary(column.type) or pyarrow.types.is_string(column.type):
            numbers |= text_block(name, column.to_pylist())
        else:
            values = column.cast(pyarrow.float64()).to_numpy()
            numbers[name] = np.asarray(values, dtype=np.float64)
    return numbers


def parquet_numbers(result: Any, place: Place) -> Numbers:
    return _columns(_table(result))


def pack_parquet(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    """The table, with the manifest among the file's key-value metadata."""
    import pyarrow
    from pyarrow import parquet

    table = _table(result).replace_schema_metadata({_KEYWORD: json.dumps(fields).encode()})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def unpack_parquet(content: bytes, beside: bytes) -> dict[str, Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(content))
        if file.metadata.num_rows > _MAX_ROWS:
            raise ProbeError(f"The file has {file.metadata.num_rows:,} rows; at most {_MAX_ROWS:,} are read.")
        table = file.read()
        return {
            "manifest": decoded(table.schema.metadata[_KEYWORD]),
            "numbers": _columns(table),
        }
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(str(error)) from None
