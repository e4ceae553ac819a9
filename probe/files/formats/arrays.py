"""JSON and NPZ: every number as it is. And numbers as short text, for files that show something else."""

from __future__ import annotations

import base64
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from probe.analyses.result import strictly_plain
from probe.display.data import Numbers
from probe.errors import ProbeError

# Compressed content that claims to be larger than this is suspicious.
_MAX_UNPACKED, _MAX_INFLATED = 2**31, 2**28


def encoded(value: Any) -> bytes:
    """A value as the content of a JSON file."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def decoded(text: bytes | str) -> Any:
    """What a JSON file holds. Of two entries of one name programs see the one or the other: it is damaged."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name twice")
        return found

    return json.loads(text, object_pairs_hook=once)


def pack_json(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    blocks = {name: _plain(block) for name, block in numbers.items()}
    return encoded({"manifest": fields, "numbers": blocks})


def _plain(block: np.ndarray) -> Any:
    values = block.tolist()
    return values if np.isfinite(block).all() else strictly_plain(values)


def unpack_json(content: bytes, beside: bytes) -> dict[str, Any]:
    found = decoded(content)
    if set(found) != {"manifest", "numbers"}:
        raise ValueError("something else")
    numbers = {name: np.array(one, dtype=np.float64) for name, one in found["numbers"].items()}
    return {"manifest": found["manifest"], "numbers": numbers}


def pack_npz(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"manifest": np.array(json.dumps(fields)), **numbers}
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def unpack_npz(content: bytes, beside: bytes) -> dict[str, Any]:
    check_unpacked(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        if len(set(archive.files)) < len(archive.files):
            raise ValueError("a name twice")
        blocks = dict(archive)
    fields = decoded(str(blocks.pop("manifest")))
    if any(block.dtype.kind not in "fi" for block in blocks.values()):
        raise ValueError("no real numbers")
    return {"manifest": fields, "numbers": {name: one.astype(np.float64) for name, one in blocks.items()}}


def check_unpacked(content: bytes) -> None:
    """Refuse a ZIP archive, which NPZ and XLSX are, that says it is suspiciously large."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(part.file_size for part in archive.infolist()) > _MAX_UNPACKED:
            raise ProbeError(f"The file unpacks to more than {_MAX_UNPACKED:,} bytes, the most read here.")


def packed(fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    """A manifest and its numbers as JSON, with the numbers as short strings, for where nobody reads them."""
    blocks = {}
    for name, block in numbers.items():
        little = np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))
        blocks[name] = {
            "shape": list(block.shape),
            "dtype": little.dtype.str,
            "zlib": base64.b64encode(zlib.compress(little.tobytes(), 9)).decode(),
        }
    return json.dumps({"manifest": fields, "numbers": blocks}).encode()


def unpacked(text: bytes, picture: bytes) -> dict[str, Any]:
    """What was ``packed``, with the picture that it lay in or beside."""
    found = decoded(text)
    numbers: Numbers = {}
    for name, one in found["numbers"].items():
        taken = sum(block.nbytes for block in numbers.values())
        numbers[name] = _block(one, max(1, _MAX_INFLATED - taken))
    return {"manifest": found["manifest"], "numbers": numbers, "picture": picture}


def _block(given: Mapping[str, Any], limit: int) -> np.ndarray:
    if given["dtype"] not in ("<f4", "<f8"):
        raise ValueError(f"dtype {given['dtype']}")
    content = inflated(base64.b64decode(given["zlib"], validate=True), limit)
    values: np.ndarray = np.frombuffer(content, dtype=given["dtype"]).reshape(given["shape"])
    return values.astype(np.float64)


def inflated(content: bytes, limit: int = _MAX_INFLATED) -> bytes:
    """Decompressed, as long as it isn't suspiciously large."""
    stream = zlib.decompressobj()
    result = stream.decompress(content, limit)
    if not stream.eof:
        raise ValueError("damaged or too large")
    return result
