"""JSON and NPZ: every number as it is. And numbers as short text, for files that show something else."""

from __future__ import annotations

import base64
import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from probe.analyses.result import strictly_plain
from probe.display.data import Numbers
from probe.errors import ProbeError

# Compressed content that claims to be larger than this is suspicious: numbers (of all heads of a text of 512
# tokens in the largest of usual models there are 100 million), and bytes of anything else.
_MAX_NUMBERS, _MAX_INFLATED, _MAX_MANIFEST = 2**27, 2**28, 2**26


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
    _check_arrays(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        blocks = dict(archive)
    fields = decoded(str(blocks.pop("manifest")))
    return {"manifest": fields, "numbers": {name: one.astype(np.float64) for name, one in blocks.items()}}


def _check_arrays(content: bytes) -> None:
    """Refuse arrays that say that they are something else than ``export`` writes, or too many."""
    count = 0
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if len(set(archive.namelist())) < len(archive.namelist()):
            raise ValueError("a name twice")
        for part in archive.infolist():
            with archive.open(part) as file:
                shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
            size = math.prod(shape)
            if part.filename == "manifest.npy":
                if dtype.kind != "U" or shape or dtype.itemsize > _MAX_MANIFEST:
                    raise ValueError("no manifest")
                continue
            if dtype.kind != "f" or dtype.itemsize not in (4, 8) or part.file_size > size * 8 + 2**16:
                raise ValueError("no numbers as export writes them")
            count += size
    if count > _MAX_NUMBERS:
        raise ProbeError(f"The file says that it has {count:,} numbers; at most {_MAX_NUMBERS:,} are read.")


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_unpacked(content: bytes, most: Mapping[str, int], rest: int) -> None:
    """Refuse a ZIP archive whose parts say that they are suspiciously large.

    Parameters
    ----------
    most : bytes of some of the parts, by the beginning of their names.
    rest : bytes of all the others together.
    """
    left = dict(most)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for part in archive.infolist():
            name = next((name for name in left if part.filename.startswith(name)), None)
            if name is None:
                rest -= part.file_size
            else:
                left[name] -= part.file_size
    if rest < 0 or min(left.values(), default=0) < 0:
        raise ProbeError("The file unpacks to more than is read of one: it is none that export wrote.")


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
