"""The formats of exported files: what each can hold, and how it is written and read.

A format knows nothing of models. It is given a result, the fields of its manifest and its numbers, and gives
them back from a file.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from probe.analyses.result import Result
from probe.display.data import Numbers, Sheet
from probe.display.page import page_html, page_numbers
from probe.errors import ProbeError
from probe.files.formats import arrays, pages, pictures, tables, workbooks


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes
    ----------
    face : what of a result it shows, which a kind of result must have: a "table", a "_sheet", "map_sets" or
        a "workbook"; all have blocks of numbers and a table.
    unpack : from a file's content, and that of the file beside it, to {"manifest": fields, "numbers": blocks,
        "picture": what is shown}; the last in pictures and pages alone.
    pack : from what is shown, the result, the manifest's fields and the numbers to the file's content; by
        default it is what is shown alone.
    numbers : the numbers of a result that a file holds.
    body : what of it is there for people: a picture, a table.
    draw : likewise from a sheet, for pictures.
    shown : of a body, what must stay as it is.
    one_head : whether it holds a single head of a result of several.
    beside : what lies beside it, in a file of the same name with .json added, where it has no place for it.
    picture : whether it is one, or a page: its body must stay as it is.
    editable : whether programs write its numbers anew, so that only how far they are off counts.
    rounded : how far two roundings of one number may be apart, where it rounds.
    needs : the library that must be installed for it.
    """

    face: str
    unpack: Callable[[bytes, bytes], dict[str, Any]]
    pack: Callable[[bytes, Any, Mapping[str, Any], Numbers], bytes] = lambda body, *_: body
    numbers: Callable[[Any], Numbers] = lambda result: result.blocks()
    body: Callable[[Any], bytes] = lambda result: b""
    draw: Callable[[Sheet], bytes] | None = None
    shown: Callable[[bytes], bytes] = lambda body: body
    one_head: bool = False
    beside: Callable[[Mapping[str, Any], Numbers], bytes] | None = None
    picture: bool = False
    editable: bool = False
    rounded: float = 0.0
    needs: str | None = None

    def fits(self, kind: type[Any]) -> bool:
        """Whether it can hold a kind of result."""
        return self.face in ("blocks", "table") or kind.has(self.face)

    @property
    def available(self) -> bool:
        return self.needs is None or importlib.util.find_spec(self.needs) is not None

    def read(self, name: str, content: bytes, beside: bytes) -> tuple[dict[str, Any], Numbers, bytes | None]:
        """Fields of the manifest, numbers, and what a picture or page shows.

        Raises
        ------
        ProbeError
            If the file is damaged, or not one that ``export`` wrote.
        """
        try:
            found = self.unpack(content, beside)
            fields, numbers = found["manifest"], found["numbers"]
        except ProbeError:
            raise
        except Exception:  # the libraries that unpack raise all sorts for damaged and hostile files
            raise ProbeError(
                f"{name} holds no manifest, or is damaged: only files that export wrote can be made again."
            ) from None
        if not isinstance(fields, dict):
            raise ProbeError(f"{name} holds no manifest: write it with export.")
        return dict(fields), numbers, found.get("picture")


def _picture(suffix: str, unpack: Any, **more: Any) -> Format:
    draw = partial(pictures.draw, suffix)
    return Format("_sheet", unpack, draw=draw, one_head=True, picture=True, **more)


FORMATS: dict[str, Format] = {
    "csv": Format(
        "table",
        tables.unpack_csv,
        numbers=tables.csv_numbers,
        body=tables.csv_body,
        one_head=True,
        beside=lambda fields, numbers: arrays.encoded({"manifest": fields}),
        editable=True,
    ),
    "parquet": Format(
        "table", tables.unpack_parquet, tables.pack_parquet, tables.parquet_numbers, needs="pyarrow"
    ),
    "json": Format("blocks", arrays.unpack_json, arrays.pack_json),
    "npz": Format("blocks", arrays.unpack_npz, arrays.pack_npz),
    "html": Format(
        "map_sets",
        pages.unpack,
        pages.pack,
        page_numbers,
        page_html,
        picture=True,
        rounded=pages.ROUNDED,
    ),
    "xlsx": Format("workbook", workbooks.unpack, workbooks.pack, workbooks.numbers, editable=True),
    "png": _picture("png", pictures.unpack_png, pack=pictures.pack_png, shown=pictures.png_shown),
    "svg": _picture("svg", pictures.unpack_svg, pack=pictures.pack_svg),
    "pdf": _picture("pdf", pictures.unpack_pdf, beside=arrays.packed),
}


def formats_of(kind: type[Result]) -> tuple[str, ...]:
    """The endings of the files that a kind of result can be exported to, with what is installed here."""
    return tuple(name for name, one in FORMATS.items() if one.fits(kind) and one.available)


def possible(result: Result) -> tuple[str, ...]:
    """The same for a result as it is: one of several heads is no single map."""
    every = formats_of(type(result))
    return tuple(name for name in every if not (result.holds_many and FORMATS[name].one_head))
