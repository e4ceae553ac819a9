"""The formats of exported files: what each can hold, and how it is written and read.

A format knows nothing of models. It is given a result, the fields of its manifest and its numbers, and gives
them back from a file.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from probe.analyses.ablate import Ranking
from probe.analyses.checks.report import Report
from probe.analyses.compare import Comparison
from probe.analyses.find import FoundHeads
from probe.analyses.masks import MaskComparison
from probe.analyses.measures import HeadMeasures, Rollout
from probe.analyses.rerun import FromScratchRun
from probe.analyses.texts import TextComparison
from probe.analyses.trace import Trace
from probe.errors import ProbeError
from probe.files.formats import arrays, pages, pictures, tables, workbooks
from probe.files.numbers import KINDS, Numbers, Place, Result, numbers_of
from probe.running.capture import Run


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Attributes
    ----------
    kinds : the results that it can hold.
    pack : from what is shown, the result, the manifest's fields and the numbers to the file's content.
    unpack : from a file's content, and that of the file beside it, to {"manifest": fields, "numbers": blocks,
        "picture": what is shown}; the last in pictures and pages alone.
    numbers : the numbers of a result, or of one head of it, that a file holds.
    body : what of it is there for people: a picture, a table.
    one_head : whether it holds a single head of a run or comparison.
    beside : what lies beside it, in a file of the same name with .json added, where it has no place for it.
    picture : whether it is one, or a page: its body must stay as it is.
    editable : whether programs write its numbers anew, so that only how far they are off counts.
    rounded : how far two roundings of one number may be apart, where it rounds.
    needs : the library that must be installed for it.
    """

    kinds: tuple[type[Result], ...]
    pack: Callable[[bytes, Any, Mapping[str, Any], Numbers], bytes]
    unpack: Callable[[bytes, bytes], dict[str, Any]]
    numbers: Callable[[Any, Place], Numbers] = numbers_of
    body: Callable[[Any, Place], bytes] = lambda result, place: b""
    one_head: bool = False
    beside: Callable[[Mapping[str, Any], Numbers], bytes] | None = None
    picture: bool = False
    editable: bool = False
    rounded: float = 0.0
    needs: str | None = None

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


def _picture(suffix: str, pack: Any, unpack: Any) -> Format:
    kinds = (Run, MaskComparison, TextComparison, Comparison, Report, Rollout)
    beside = arrays.packed if suffix == "pdf" else None
    drawn = pictures.drawer(suffix)
    return Format(kinds, pack, unpack, body=drawn, one_head=True, beside=beside, picture=True)


_ALL = tuple(KINDS.values())
FORMATS: dict[str, Format] = {
    "csv": Format(
        tuple(kind for kind in _ALL if kind is not FromScratchRun),
        tables.pack_csv,
        tables.unpack_csv,
        tables.csv_numbers,
        tables.csv_body,
        one_head=True,
        beside=lambda fields, numbers: arrays.encoded({"manifest": fields}),
        editable=True,
    ),
    "parquet": Format(
        (Run, Report, HeadMeasures, FoundHeads, Ranking),
        tables.pack_parquet,
        tables.unpack_parquet,
        tables.parquet_numbers,
        needs="pyarrow",
    ),
    "json": Format(_ALL, arrays.pack_json, arrays.unpack_json),
    "npz": Format(_ALL, arrays.pack_npz, arrays.unpack_npz),
    "html": Format(
        (Run,),
        pages.pack,
        pages.unpack,
        pages.numbers,
        body=pages.body,
        picture=True,
        rounded=pages.ROUNDED,
    ),
    "xlsx": Format((Trace,), workbooks.pack, workbooks.unpack, workbooks.numbers, editable=True),
    "png": _picture("png", pictures.pack_png, pictures.unpack_png),
    "svg": _picture("svg", pictures.pack_svg, pictures.unpack_svg),
    "pdf": _picture("pdf", pictures.pack_pdf, pictures.unpack_pdf),
}


def formats_of(kind: type[Any]) -> tuple[str, ...]:
    """The endings of the files that a kind of result can be exported to, with what is installed here."""
    return tuple(name for name, one in FORMATS.items() if issubclass(kind, one.kinds) and one.available)
