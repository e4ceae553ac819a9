"""CSV and Parquet: the table of a result."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.analyses.result import Result, column_array
from probe.display.data import Numbers, Table, text_block
from probe.errors import ProbeError
from probe.files.csv_tables import csv_bytes
from probe.files.formats.arrays import decoded

_KEYWORD = b"attention-probe"
# More cells than this are suspiciously many; all heads of BERT on 512 tokens have 190 million.
_MAX_CELLS = 2**28


def csv_body(result: Result) -> bytes:
    return csv_bytes(result.csv_table())


def csv_numbers(result: Result) -> Numbers:
    return _csv_columns(csv_body(result))


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


def _arrow(table: Table) -> Any:
    """A table as one of pyarrow; columns without a single entry are left out."""
    import pyarrow

    columns: dict[str, Any] = {}
    for one in table.columns:
        if one.is_text:
            columns[one.name] = pyarrow.array(list(one.cells)).dictionary_encode()
        elif isinstance(one.cells, np.ndarray):
            columns[one.name] = pyarrow.array(one.cells)
        elif all(isinstance(cell, int) for cell in one.cells):
            columns[one.name] = pyarrow.array([int(cell or 0) for cell in one.cells])
        else:
            columns[one.name] = pyarrow.array(column_array(one.cells), from_pandas=True)
    return pyarrow.table(
        {
            name: column
            for name, column in columns.items()
            if not len(column) or column.null_count < len(column)
        }
    )


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


def parquet_numbers(result: Result) -> Numbers:
    return _columns(_arrow(result.table()))


def pack_parquet(body: bytes, result: Result, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    """The table, with the manifest among the file's key-value metadata."""
    import pyarrow
    from pyarrow import parquet

    table = _arrow(result.table()).replace_schema_metadata({_KEYWORD: json.dumps(fields).encode()})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def unpack_parquet(content: bytes, beside: bytes) -> dict[str, Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(content))
        cells = file.metadata.num_rows * file.metadata.num_columns
        if cells > _MAX_CELLS:
            raise ProbeError(f"The file says that it has {cells:,} cells; at most {_MAX_CELLS:,} are read.")
        table = file.read()
        return {
            "manifest": decoded(table.schema.metadata[_KEYWORD]),
            "numbers": _columns(table),
        }
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(str(error)) from None
