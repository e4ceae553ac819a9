"""HTML: all heads of a result to look at. What draws is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.analyses.result import Result
from probe.display.data import Numbers

# A page rounds to ``page.PRECISION``, so two roundings of one number are at most twice that apart.
ROUNDED = 2e-3


def body(result: Any) -> bytes:
    from probe.display.page import page_html

    return page_html(result)


def pack(body: bytes, result: Result, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    from probe.display.page import with_manifest

    return with_manifest(body, fields)


def unpack(content: bytes, beside: bytes) -> dict[str, Any]:
    from probe.display.page import read_page, without_manifest

    fields, numbers = read_page(content)
    return {"manifest": fields, "numbers": numbers, "picture": without_manifest(content, fields)}


def numbers(result: Any) -> Numbers:
    from probe.display.page import page_numbers

    return page_numbers(result)
