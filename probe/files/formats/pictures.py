"""PNG, SVG and PDF: the picture, and the manifest and numbers inside it, or beside it for PDF."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape, unescape

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from probe.analyses.result import Result
from probe.display.data import Numbers, Sheet
from probe.files.formats.arrays import inflated, packed, unpacked

_KEYWORD = "attention-probe"
# What format 3 of the manifest wrote: compressed, between chunks of another library's making.
_FORMAT_3 = b"iTXt" + _KEYWORD.encode() + b"\0\1\0\0\0"
_SVG_START, _SVG_END = f'<metadata id="{_KEYWORD}">'.encode(), b"</metadata>\n"


def draw(suffix: str, sheet: Sheet) -> bytes:
    """A sheet, drawn in a format; what draws is imported when it is needed."""
    from probe.display import picture

    return picture.figure_bytes(picture.draw(sheet), suffix)


def pack_png(body: bytes, result: Result, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    """The picture with one text chunk more (PNG, section 11.3.3)."""
    text, buffer = PngInfo(), io.BytesIO()
    with Image.open(io.BytesIO(body)) as image:
        for name, value in image.info.items():
            if isinstance(name, str) and isinstance(value, str):
                text.add_text(name, value)
        text.add_itxt(_KEYWORD, packed(fields, numbers).decode())
        image.save(buffer, "PNG", pnginfo=text, dpi=image.info["dpi"])
    return buffer.getvalue()


def unpack_png(content: bytes, beside: bytes) -> dict[str, Any]:
    found = content.find(_FORMAT_3)
    if found >= 0:
        start = found - 4
        end = found + 8 + int.from_bytes(content[start:found], "big")
        text = inflated(content[found + len(_FORMAT_3) : end - 4])
        return unpacked(text, content[:start] + content[end:])
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        text = str(image.info[_KEYWORD]).encode()
    return unpacked(text, png_shown(content))


def png_shown(content: bytes) -> bytes:
    """What a picture shows: its size, and the colour of every pixel."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        return repr((image.size, image.mode)).encode() + image.tobytes()


def pack_svg(body: bytes, result: Result, fields: Mapping[str, Any], numbers: Numbers) -> bytes:
    end = body.rindex(b"</svg>")
    text = escape(packed(fields, numbers).decode()).encode()
    return body[:end] + _SVG_START + text + _SVG_END + body[end:]


def unpack_svg(content: bytes, beside: bytes) -> dict[str, Any]:
    start = content.index(_SVG_START)
    end = content.index(_SVG_END, start)
    text = unescape(content[start + len(_SVG_START) : end].decode())
    return unpacked(text.encode(), content[:start] + content[end + len(_SVG_END) :])


def unpack_pdf(content: bytes, beside: bytes) -> dict[str, Any]:
    return unpacked(beside, content)
