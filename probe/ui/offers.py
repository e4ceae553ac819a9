"""What a view has to offer as files, and the sheets that are shown and are of no result."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import probe
from attention.examples import MaskedScores, ProjectedSentence
from probe.analyses.result import Result
from probe.display.data import Sheet
from probe.files.formats import FORMATS, formats_of

KEPT_SHEETS = 64
"""Sheets of no result that are kept for saving: a few kilobytes each."""


@dataclass(frozen=True)
class Offer:
    """A result that can be had as a file.

    Attributes
    ----------
    key : tells it from the others of the same screen.
    label : what it is called.
    kind : of the result.
    name : of the file, without its ending.
    make : gives the result; called when it is asked for.
    model : whose result it is.
    one : whether it is of one head, or of none; else of all, of which only what stays small is offered.
    """

    key: str
    label: str
    kind: type[Result]
    name: str
    make: Callable[[], Result]
    model: probe.Model
    one: bool = True

    @property
    def formats(self) -> tuple[str, ...]:
        """The endings that are offered; of all heads only the page, which stays small."""
        if self.one:
            return formats_of(self.kind)
        return (
            ("html",)
            if self.kind is probe.Run
            else tuple(name for name in formats_of(self.kind) if not FORMATS[name].one_head)
        )


@dataclass(frozen=True)
class WorkedExample:
    """An example of the course as a workbook that computes: of no model, so nothing is made again."""

    key: str
    label: str
    name: str
    example: ProjectedSentence | MaskedScores
    formats = ("xlsx",)


@dataclass(frozen=True)
class Shown:
    """A figure that is of no result, as it is on the page: a mean over heads, a map of the course."""

    key: str
    label: str
    name: str
    sheet: Sheet
    formats = ("png", "svg", "pdf", "csv")


Offered = Offer | WorkedExample | Shown


def slug(text: str) -> str:
    """A text as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-")[-60:]


class Sheets:
    """The sheets of no result that were shown last, by what tells them apart on the page."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Sheet] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, stamp: str, sheet: Sheet) -> str:
        """Keep a sheet; returns the key of its offer."""
        with self._lock:
            self._kept[stamp] = sheet
            self._kept.move_to_end(stamp)
            while len(self._kept) > KEPT_SHEETS:
                self._kept.popitem(last=False)
        return f"sheet {stamp}"

    def offer(self, key: str) -> Shown | None:
        """What can be had of a sheet, if it is still kept."""
        with self._lock:
            sheet = self._kept.get(key.removeprefix("sheet "))
        return None if sheet is None else Shown(key, sheet.title, slug(sheet.title), sheet)


SHEETS = Sheets()
