"""Whether what an exported file says still holds: its numbers made again, and compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.analyses.result import strictly_plain, versions
from probe.display.data import Numbers
from probe.errors import ProbeError
from probe.files.disk import content_of, expanded
from probe.files.export import beside, missing, suffix_of
from probe.files.formats import FORMATS, Format
from probe.files.manifest import AGREEMENT, Manifest, manifest_of, model_named, remake
from probe.files.numbers import differences, digest
from probe.models.loading import Model, resolve
from probe.models.names import BUNDLED, is_here


@dataclass(frozen=True)
class Reproduction:
    """What became of the numbers in a file when they were made again.

    Attributes
    ----------
    holds : whether everything agrees.
    numbers_hold : whether the numbers do, and the tokens and weights they belong to. If so and ``holds`` is
        False, something else in the file was changed.
    max_difference : the largest difference of a number in the file from the one made again, as a share of the
        largest of its block (of 1, if that is less).
    tolerance : what it may be; from the dtype that the file names, which the numbers were made again in. What
        it says of the tolerance itself, ``manifest.agreement``, counts for nothing.
    tolerance_float32 : what it might be at most in float32. A difference between the two is one that the
        file's dtype alone allows: the verdict and ``only_in`` say so.
    reasons : a sentence for everything that doesn't agree.
    notes : what is otherwise than it was, and need not matter: versions, the device.
    manifest : the file's.
    """

    path: Path
    holds: bool
    numbers_hold: bool
    max_difference: float
    tolerance: float
    tolerance_float32: float
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    manifest: Manifest

    @property
    def verdict(self) -> str:
        """The result in one line."""
        # A coarser dtype has a coarser tolerance, which a reader should know of.
        dtype = _dtypes(self.manifest)
        of = f"{self.path.name}: the numbers of {self.manifest.model}"
        in_dtype = f" in {dtype}" if dtype else ""
        if not self.numbers_hold:
            return f"{of}{in_dtype} do NOT hold. {self.reasons[0]}"
        hold = f"{of}{in_dtype} hold" if self.only_in is None else f"{of} hold in {self.only_in} only"
        within = f"largest difference {self.max_difference:.1e}, tolerance {self.tolerance:.1e}"
        if self.only_in is not None:
            within += f", where float32 has {self.tolerance_float32:.1e}"
        if self.holds:
            return f"{hold}: {within}."
        return f"{hold} ({within}), but something else does NOT. {self.reasons[0]}"

    @property
    def only_in(self) -> str | None:
        """The dtype in whose tolerance alone the numbers hold; None where they hold in that of float32."""
        only = self.numbers_hold and self.max_difference > self.tolerance_float32
        return _dtypes(self.manifest) if only else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {
            "path": str(self.path),
            "holds": self.holds,
            "numbers_hold": self.numbers_hold,
            "verdict": self.verdict,
            "max_difference": strictly_plain(self.max_difference),
            "tolerance": self.tolerance,
            "tolerance_float32": self.tolerance_float32,
            "only_in": self.only_in,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "manifest": self.manifest.to_dict(),
        }

    def __str__(self) -> str:
        more = self.reasons[1:11]
        rest = len(self.reasons) - 1 - len(more)
        return "\n".join([self.verdict, *more, *([f"... and {rest} more."] if rest > 0 else []), *self.notes])


def reproduce(
    path: str | os.PathLike[str], *, model: Model | str | None = None, load: bool = False
) -> Reproduction:
    """Make the numbers in an exported file again, and say whether they still hold.

    The model is run again on the manifest's text, and its tokens, its weights' sha256 and every number are
    compared with the file's. No text of the file is ever executed, and a model that it names is loaded, or
    fetched from the Hub, only if it is one of the bundled two, or ``load`` says so. Where a file records a
    digest of its contents (all formats but csv and xlsx, which spreadsheet programs write anew) the smallest
    change shows, also to what a picture or page shows; elsewhere a number may be off by ``tolerance``. A
    digest is no signature: who changes a file can make it anew. But numbers, and the text and labels of
    pages, tables and workbooks, must be those made again whatever the file says of itself. Of a workbook the
    formulas, titles and number formats are looked at, not colours, widths, comments or pictures.

    Parameters
    ----------
    model : in place of the one the manifest names.
    load : load the model that the manifest names, whichever it is; without, only a bundled one is.

    Raises
    ------
    ProbeError
        If the file can't be read, is no regular file, is larger than any that ``export`` writes, holds no
        manifest, or names a model that isn't there or that may not be loaded. Numbers that don't hold are no
        error: see ``Reproduction.holds``.
    """
    path = expanded(path)
    format, fields, stored, picture = _read(path)
    try:
        manifest = Manifest.from_dict(fields)
        if model is None and not load:
            _check_loaded(manifest.model)
        source = resolve(model) if model is not None else model_named(manifest.model, manifest.dtype)
        result = remake(manifest, source)
        again = manifest_of(result, source, manifest.shown)
        numbers = format.numbers(result)
    except ProbeError as error:
        raise error.about(path.name) from None
    tolerance = max(again.agreement, format.rounded)
    worst, wrong = differences(stored, numbers, tolerance)
    wrong = [*_other_subject(manifest, again), *wrong]
    recorded = fields.pop("digest", None)
    reasons = [*wrong, *_other_words(manifest, again)]
    float32, notes = max(AGREEMENT["float32"], format.rounded), [*_notes(manifest, again)]
    if not wrong and worst > float32:
        notes.append(
            f"The numbers hold only because the file says {_dtypes(manifest)}, which may be off by "
            f"{tolerance:.1e}; in float32 it would be {float32:.1e}."
        )
    if format.picture and hashlib.sha256(picture or b"").hexdigest() != fields.get("picture"):
        reasons.append("What the file shows was changed after it was written.")
    if not format.editable and recorded != digest(fields, stored):
        reasons.append("The file was changed after it was written: its contents don't have their digest.")
    return Reproduction(
        path, not reasons, not wrong, worst, tolerance, float32, tuple(reasons), tuple(notes), manifest
    )


def _check_loaded(name: str) -> None:
    """Refuse to load a model because a file names it, unless it is one of those that come along."""
    if name in BUNDLED:
        return
    how = "loaded from this machine" if is_here(name) else "downloaded from the Hub and loaded"
    raise ProbeError(f'The file names the model "{name}", which would be {how}.', "load")


def _dtypes(manifest: Manifest) -> str:
    """The dtypes other than float32 that a result was made or kept in."""
    return " and ".join(sorted({manifest.dtype, manifest.kept} - {"float32"}))


def _other_subject(manifest: Manifest, again: Manifest) -> Iterator[str]:
    """Where the numbers are not of the model and tokens that the file names."""
    if manifest.sha256 is None and again.sha256 is not None:
        yield f"The file has no sha256 of the weights it is of; those of {again.model} here: {again.sha256}."
    elif manifest.sha256 != again.sha256:
        yield f"The weights of {again.model} here are others than the file says: sha256 {again.sha256}."
    if again.tokens != manifest.tokens:
        yield "Its tokens are others than those made again."


def _other_words(manifest: Manifest, again: Manifest) -> Iterator[str]:
    """Where the file says something of the model that isn't so, or isn't any more."""
    if manifest.mask != again.mask:
        yield f"mask: {manifest.mask} in the file, {again.mask} made again."
    if manifest.passed != again.passed:
        words = {True: "passed", False: "did not pass", None: "was not checked"}
        yield f"The model {words[manifest.passed]} verification then, and {words[again.passed]} now."
    # A sound error is any within the tolerance, which itself follows from the sizes of weights and inputs.
    bounds = {"max_abs_error": again.tolerance, "tolerance": (again.tolerance or 0.0) / 1000}
    for name, bound in bounds.items():
        then, now = getattr(manifest, name), getattr(again, name)
        if then != now and (then is None or now is None or not abs(then - now) <= (bound or 0.0)):
            yield f"{name}: {then} in the file, {now} made again."


# What may be otherwise without a change of the numbers: where the weights lie, on what they are run.
_ABOUT = ("source", "revision", "tokenizer", "backend", "device", "agreement", "python")


def _notes(manifest: Manifest, again: Manifest) -> Iterator[str]:
    for name, now in versions().items():
        then = manifest.versions.get(name)
        if then != now:
            yield f"Made with {name} {then}, made again with {now}."
    for name in _ABOUT:
        then, now = getattr(manifest, name), getattr(again, name)
        if then != now:
            yield f"{name}: {then!r:.300} in the file, {now!r:.300} made again."


def _read(path: Path) -> tuple[Format, dict[str, Any], Numbers, bytes | None]:
    """The format, the manifest, the numbers, and for a figure what is drawn."""
    content = content_of(path)
    format = FORMATS.get(suffix_of(path))
    if format is None:
        raise ProbeError(
            f"{path.name} is not a file that export writes: the names of those end in "
            f"{', '.join(f'.{name}' for name in FORMATS)}."
        )
    if not format.available:
        raise missing(path)
    manifest = b""
    if format.beside is not None:
        if not beside(path).is_file():
            raise ProbeError(
                f"What {path.name} was made from lies beside it in {beside(path).name}, which is not there: "
                "keep the two files together."
            )
        manifest = content_of(beside(path))
    return format, *format.read(path.name, content, manifest)
