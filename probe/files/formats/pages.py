"""HTML: all heads of a result to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.analyses.result import Result
from probe.display.data import Numbers
from probe.display.page import PRECISION, read_page, with_manifest, without_manifest

# So much a page rounds, so two roundings of one number are at most twice that apart.
ROUNDED = 2 * PRECISION


def pack(body: bytes, result: Result, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    return with_manifest(body, fields)


def unpack(content: bytes, beside: bytes) -> dict[str, Any]:
    fields, numbers = read_page(content)
    return {"manifest": fields, "numbers": numbers, "picture": without_manifest(content, fields)}
