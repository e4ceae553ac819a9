"""Results in files that say where they come from, and the check whether what such a file says still holds.

Every file carries its manifest (``manifest.py``). CSV and PDF have no place for one: it lies beside them, in
a file of the same name with ``.json`` added.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probe.analyses.compare import Comparison
from probe.errors import ProbeError
from probe.files.disk import content_of, save
from probe.files.formats import FORMATS, Format, formats_of
from probe.files.manifest import AGREEMENT, Manifest, manifest_of, model_named, model_of, remake, versions
from probe.files.numbers import KINDS, Numbers, Place, Result, differences, digest, numbers_of
from probe.models.kinds import which_kind
from probe.models.loading import Model, resolve
from probe.running.capture import Run


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
            "max_difference": self.max_difference if np.isfinite(self.max_difference) else "inf",
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


def export(
    result: Result,
    path: str | os.PathLike[str],
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: str | None = None,
    model: Model | str | None = None,
) -> Path:
    """Write a result to a file, in the format that the file's name ends in, together with its manifest.

    json, npz
        Every number, none of them rounded.
    csv
        A map (of a rollout the last), a report's heads, or the steps of a trace as a table.
    parquet
        A row for each weight of a run, or for each head of a report, of measures, of found heads or of a
        ranking, with the manifest in the file's metadata. Needs pyarrow.
    html
        All heads of a run to look at, in one file of at most 4 MB; see ``page.py``.
    xlsx
        The head of a trace as live formulas; see ``to_workbook``.
    png, svg, pdf
        The figure of one head, of two masks or texts, of a rollout, or of a report's errors; its numbers are
        in the file too (for PDF beside it).

    Before anything is written the result is made again from the manifest's fields, which must give the same
    numbers.

    Parameters
    ----------
    layer, head, kind : for one head of a run or comparison that holds several; csv and figures need it. The
        kind is for models with an encoder and a decoder: "encoder", "decoder" or "cross".
    model : the model that gave the result, where it can't be loaded by its name: a network that was given as
        an object, or one in another dtype.

    Raises
    ------
    ProbeError
        If there is no such format for such a result, if the manifest doesn't give the same numbers, or if the
        file can't be written.

    Examples
    --------
    >>> export(probe.attend("gpt2", "The cat sat on the mat."), "heads.html")  # doctest: +SKIP
    """
    path = Path(path)
    format = _format_for(result, path)
    result, place = _narrowed(result, path, format, layer, head, kind)
    source = model_of(result, model)
    manifest = manifest_of(result, source, place)
    _check_remade(result, manifest, source)
    fields = manifest.to_dict()
    # Those of a file that programs write anew are read from what it shows.
    numbers = {} if format.editable else format.numbers(result, place)
    body = format.body(result, place)
    if format.picture:
        fields["picture"] = hashlib.sha256(body).hexdigest()
    fields["digest"] = None if format.editable else digest(fields, numbers)
    save(path, format.pack(body, result, fields, numbers))
    if format.beside is not None:
        save(_beside(path), format.beside(fields, numbers))
    return path


def reproduce(path: str | os.PathLike[str], *, model: Model | str | None = None) -> Reproduction:
    """Make the numbers in an exported file again, and say whether they still hold.

    The model is run again on the manifest's text, and its tokens, its weights' sha256 and every number are
    compared with the file's. No text of the file is ever executed; but a model that it names and that is not
    here is fetched from the Hub, as safetensors. Where a file records a digest of its
    contents (all formats but csv and xlsx, which spreadsheet programs write anew) the smallest change shows,
    also to what a picture or page shows; elsewhere a number may be off by ``tolerance``. A digest is no
    signature: who changes a file can make it anew. But numbers, and the text and labels of pages, tables and
    workbooks, must be those made again whatever the file says of itself. Of a workbook the formulas, titles
    and number formats are looked at, not colours, widths, comments or pictures.

    Parameters
    ----------
    model : in place of the one the manifest names.

    Raises
    ------
    ProbeError
        If the file can't be read, holds no manifest, or the model isn't there. Numbers that don't hold are no
        error: see ``Reproduction.holds``.
    """
    path = Path(path)
    format, fields, stored, picture = _read(path)
    try:
        manifest = Manifest.from_dict(fields)
        source = resolve(model) if model is not None else model_named(manifest.model, manifest.dtype)
        result = remake(manifest, source)
        place = _place_of(manifest, result)
        again = manifest_of(result, source, place)
        numbers = format.numbers(result, place)
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
        path,
        not reasons,
        not wrong,
        worst,
        tolerance,
        float32,
        tuple(reasons),
        tuple(notes),
        manifest,
    )


def _suffix(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _format_for(result: Any, path: Path) -> Format:
    """The format that the name of a file asks for, if there is such a one for the result."""
    if not isinstance(result, tuple(KINDS.values())):
        raise ProbeError(
            f"What is of type {type(result).__name__} can't be exported; what can is a "
            f"{', '.join(kind.__name__ for kind in KINDS.values())}."
        )
    suffix = _suffix(path)
    format = FORMATS.get(suffix)
    if format is None or not isinstance(result, format.kinds):
        possible = [f".{name}" for name in formats_of(type(result))]
        choices = f"{', '.join(possible[:-1])} or {possible[-1]}"
        if not suffix:
            raise ProbeError(
                f'The end of a file\'s name says in which format it is written, and "{path}" has none: add '
                f"{choices}."
            )
        raise ProbeError(f"A {type(result).__name__} can be written as {choices}, not as .{suffix}.")
    if not format.available:
        raise _missing(path)
    return format


def _narrowed(
    result: Result, path: Path, format: Format, layer: int | None, head: int | None, kind: str | None
) -> tuple[Result, Place]:
    """The result with the chosen head alone, where one is chosen; kind, layer and head for a comparison."""
    if (layer is None) != (head is None) or (kind is not None and layer is None):
        raise ProbeError("Give layer and head together, and kind with them.")
    if not isinstance(result, (Run, Comparison)):
        if layer is not None:
            raise ProbeError("layer and head are for a run or a comparison; this result has its own.")
        return result, None
    place: Place = None
    if layer is not None and head is not None:
        if isinstance(result, Comparison):
            place = which_kind(result.model.name, result.model.kinds, kind), layer, head
            result.check(layer, head, place[0])
        else:
            place = which_kind(result.model_name, result.heads, kind), layer, head
            result.weights(layer, head, place[0])  # says what the run has
            result = replace(result, maps={place: result.maps[place]})
    many = place is None if isinstance(result, Comparison) else len(result.maps) > 1
    if format.one_head and many:
        raise ProbeError(f"A .{_suffix(path)} file holds one head.", "place")
    return result, place if isinstance(result, Comparison) else None


def _check_remade(result: Result, manifest: Manifest, source: Model) -> None:
    """Refuse to write fields that would not give these numbers."""
    again = remake(manifest, source)
    _, wrong = differences(numbers_of(result), numbers_of(again), manifest.agreement)
    if wrong:
        raise ProbeError(
            f"{source.name} in {manifest.dtype} doesn't give these numbers again ({wrong[0]})", "model"
        )


def _place_of(manifest: Manifest, result: Result) -> Place:
    """Which head of a comparison the file holds; None for all."""
    kind, layer, head = manifest.kind, manifest.layer, manifest.head
    if not isinstance(result, Comparison) or kind is None or layer is None or head is None:
        return None
    result.check(layer, head, kind)
    return kind, layer, head


def _dtypes(manifest: Manifest) -> str:
    """The dtypes other than float32 that a result was made or kept in."""
    return " and ".join(sorted({one for one in (manifest.dtype, manifest.kept) if one} - {"float32"}))


def _other_subject(manifest: Manifest, again: Manifest) -> Iterator[str]:
    """Where the numbers are not of the model and tokens that the file names."""
    if manifest.sha256 is None and again.sha256 is not None:
        yield f"The file has no sha256 of the weights it is of; those of {again.model} here: {again.sha256}."
    elif manifest.sha256 != again.sha256:
        yield f"The weights of {again.model} here are others than the file says: sha256 {again.sha256}."
    for name in ("tokens", "heads"):
        if getattr(again, name) != getattr(manifest, name):
            yield f"Its {name} are others than those made again."


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
    format = FORMATS.get(_suffix(path))
    if format is None:
        raise ProbeError(
            f"{path.name} is not a file that export writes: the names of those end in "
            f"{', '.join(f'.{name}' for name in FORMATS)}."
        )
    if not format.available:
        raise _missing(path)
    beside = b""
    if format.beside is not None:
        if not _beside(path).is_file():
            raise ProbeError(
                f"What {path.name} was made from lies beside it in {_beside(path).name}, which is not there: "
                "keep the two files together."
            )
        beside = content_of(_beside(path))
    return format, *format.read(path.name, content, beside)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _missing(path: Path) -> ProbeError:
    needed = FORMATS[_suffix(path)].needs
    return ProbeError(f".{_suffix(path)} files need the library {needed}, which is not installed.", "library")
