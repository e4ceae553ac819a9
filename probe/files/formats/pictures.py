"""PNG, SVG and PDF: the figure, and the manifest and numbers inside it, or beside it for PDF."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape, unescape

from probe.analyses.compare import Comparison
from probe.analyses.masks import MaskComparison
from probe.analyses.measures import Rollout
from probe.analyses.texts import TextComparison
from probe.files.formats.arrays import inflated, packed, unpacked
from probe.files.numbers import Numbers, Place
from probe.running.capture import Run

_KEYWORD = "attention-probe"
_PNG = b"\x89PNG\r\n\x1a\n"
# An iTXt chunk: keyword, compressed by method 0, no language, no translated keyword (PNG, section 11.3.3).
_CHUNK = b"iTXt" + _KEYWORD.encode() + b"\0\1\0\0\0"
_SVG_START, _SVG_END = f'<metadata id="{_KEYWORD}">'.encode(), b"</metadata>\n"


def drawer(suffix: str) -> Callable[[Any, Place], bytes]:
    """A function that draws a result, or one head of it, in a format."""

    def draw(result: Any, place: Place) -> bytes:
        from probe.display import picture as figures

        if isinstance(result, Run):
            ((kind, layer, head),) = result.maps
            named = kind if len(result.heads) > 1 else None
            figure = figures.draw_head(result, layer, head, kind=named)
        elif isinstance(result, MaskComparison):
            figure = figures.draw_masks(result)
        elif isinstance(result, Comparison):
            assert place is not None
            kind, layer, head = place
            figure = figures.draw_comparison(result, layer, head, kind=kind)
        elif isinstance(result, TextComparison):
            figure = figures.draw_texts(result)
        elif isinstance(result, Rollout):
            figure = figures.draw_rollout(result)
        else:
            figure = figures.draw_errors(result)
        return figures.figure_bytes(figure, suffix)

    return draw


def pack_png(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    """With a chunk of its own before the last one."""
    chunk = _CHUNK + zlib.compress(packed(fields, numbers), 9)
    end = body.rindex(b"IEND") - 4
    framed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return body[:end] + framed + body[end:]


def unpack_png(content: bytes, beside: bytes) -> dict[str, Any]:
    if not content.startswith(_PNG):
        raise ValueError("not a PNG file")
    start = len(_PNG)
    while start < len(content):
        (length,) = struct.unpack(">I", content[start : start + 4])
        end = start + 12 + length
        chunk = content[start + 4 : end - 4]
        if chunk.startswith(_CHUNK):
            return unpacked(inflated(chunk[len(_CHUNK) :]), content[:start] + content[end:])
        start = end
    raise ValueError("no manifest")


def pack_svg(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    end = body.rindex(b"</svg>")
    text = escape(packed(fields, numbers).decode()).encode()
    return body[:end] + _SVG_START + text + _SVG_END + body[end:]


def unpack_svg(content: bytes, beside: bytes) -> dict[str, Any]:
    start = content.index(_SVG_START)
    end = content.index(_SVG_END, start)
    text = unescape(content[start + len(_SVG_START) : end].decode())
    return unpacked(text.encode(), content[:start] + content[end + len(_SVG_END) :])


def pack_pdf(body: bytes, result: Any, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    return body


def unpack_pdf(content: bytes, beside: bytes) -> dict[str, Any]:
    return unpacked(beside, content)
