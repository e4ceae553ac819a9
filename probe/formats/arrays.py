"""JSON and NPZ: every number as it is. And numbers as short text, for files that show something else."""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from probe.report import finite
from probe.results import Numbers


def encoded(value: Any) -> bytes:
    """A value as the content of a JSON file."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def pack_json(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    blocks = {name: _plain(block) for name, block in numbers.items()}
    return encoded({"manifest": fields, "numbers": blocks})


def _plain(block: np.ndarray) -> Any:
    values = block.tolist()
    return values if np.isfinite(block).all() else finite(values)


def unpack_json(content: bytes, beside: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(content)
    return found | {
        "numbers": {name: np.array(one, dtype=np.float64) for name, one in found["numbers"].items()}
    }


def pack_npz(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"manifest": np.array(json.dumps(fields)), **numbers}
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def unpack_npz(content: bytes, beside: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        numbers = {name: archive[name].astype(np.float64) for name in archive if name != "manifest"}
        return {"manifest": json.loads(str(archive["manifest"])), "numbers": numbers}


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
    found: dict[str, Any] = json.loads(text)
    numbers = {name: _block(one) for name, one in found["numbers"].items()}
    return {"manifest": found["manifest"], "numbers": numbers, "picture": picture}


def _block(given: Mapping[str, Any]) -> np.ndarray:
    if given["dtype"] not in ("<f4", "<f8"):
        raise ValueError(f"dtype {given['dtype']}")
    content = inflated(base64.b64decode(given["zlib"], validate=True))
    values: np.ndarray = np.frombuffer(content, dtype=given["dtype"]).reshape(given["shape"])
    return values.astype(np.float64)


def inflated(content: bytes, limit: int = 2**28) -> bytes:
    """Decompressed, as long as it isn't suspiciously large."""
    stream = zlib.decompressobj()
    result = stream.decompress(content, limit)
    if not stream.eof:
        raise ValueError("damaged or too large")
    return result
