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

from probe.capture import Run
from probe.comparison import Comparison
from probe.disk import content_of, save
from probe.errors import ProbeError
from probe.formats import FORMATS, Format, encoded, formats_of
from probe.formats.arrays import packed
from probe.manifest import Manifest, manifest_of, model_named, model_of, remake, versions
from probe.models import Model, resolve
from probe.results import KINDS, Place, Result, differences, digest, numbers_of


@dataclass(frozen=True)
class Reproduction:
    """What became of the numbers in a file when they were made again.

    Attributes
    ----------
    holds : whether everything agrees.
    max_difference : the largest difference of a number in the file from the one made again, as a share of the
        largest of its block (of 1, if that is less).
    tolerance : what it may be.
    reasons : a sentence for everything that doesn't agree.
    notes : what is otherwise than it was, and need not matter: versions, the device.
    manifest : the file's.
    """

    path: Path
    holds: bool
    max_difference: float
    tolerance: float
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    manifest: Manifest

    @property
    def verdict(self) -> str:
        """The result in one line."""
        of = f"{self.path.name}: the numbers of {self.manifest.model}"
        if self.holds:
            return f"{of} hold: largest difference {self.max_difference:.1e}, tolerance {self.tolerance:.1e}."
        return f"{of} do NOT hold. {self.reasons[0]}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {
            "path": str(self.path),
            "holds": self.holds,
            "verdict": self.verdict,
            "max_difference": self.max_difference if np.isfinite(self.max_difference) else "inf",
            "tolerance": self.tolerance,
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
    model: Model | str | None = None,
) -> Path:
    """Write a result to a file, in the format that the file's name ends in, together with its manifest.

    json, npz
        Every number, none of them rounded.
    csv
        A map (of a rollout the last), a report's heads, or the steps of a trace as a table.
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
    layer, head : for one head of a run or comparison that holds several; csv and figures need it.
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
    suffix = _suffix(path)
    if not isinstance(result, tuple(KINDS.values())):
        raise ProbeError(
            f"A {type(result).__name__} can't be exported; can be: "
            f"{', '.join(kind.__name__ for kind in KINDS.values())}."
        )
    _check_format(result, suffix)
    result, layer, head = _narrowed(result, suffix, layer, head)
    source = model_of(result, model)
    manifest = manifest_of(result, source, layer, head)
    _check_remade(result, manifest, source)
    fields = manifest.to_dict()
    numbers = _numbers_in(suffix, result, layer, head)
    content = _content(suffix, result, layer, head)
    if suffix in _PICTURES:
        fields["picture"] = hashlib.sha256(content).hexdigest()
    fields["digest"] = None if suffix in _EDITABLE else digest(fields, numbers)
    _save(path, _with_manifest(suffix, content, result, fields, numbers))
    if suffix in _BESIDE:
        beside = (
            {"manifest": fields} if suffix == "csv" else {"manifest": fields, "numbers": _packed(numbers)}
        )
        _save(_beside(path), _json(beside))
    return path


def reproduce(path: str | os.PathLike[str], *, model: Model | str | None = None) -> Reproduction:
    """Make the numbers in an exported file again, and say whether they still hold.

    The model is run again on the manifest's text, and its tokens, its weights' sha256 and every number are
    compared with the file's. No text of the file is ever executed; but a model that it names and that is not
    here is fetched from the Hub, as safetensors. Where a file records a digest of its
    contents (all formats but csv and xlsx, which spreadsheet programs write anew) the smallest change shows;
    elsewhere a number may be off by ``tolerance``.

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
    fields, stored, picture = _read(path)
    manifest = Manifest.from_dict(fields)
    suffix = _suffix(path)
    reasons = []
    recorded = fields.pop("digest", None)
    if suffix not in _EDITABLE and recorded != digest(fields, stored):
        reasons.append("The file was changed after it was written: its contents don't have their digest.")
    if suffix in _PICTURES and picture != fields.get("picture"):
        reasons.append("The picture was changed after it was written.")
    source = resolve(model) if model is not None else model_named(manifest.model, manifest.dtype)
    if manifest.sha256 and source.sha256 != manifest.sha256:
        reasons.append(f"The weights of {source.name} here are others: sha256 {source.sha256}.")
    result = remake(manifest, source)
    layer, head = _one_head(manifest, result)
    again = manifest_of(result, source, layer, head)
    for name in ("tokens", "mask", "heads"):
        if getattr(again, name) != getattr(manifest, name):
            reasons.append(f"Its {name} are others than those made again.")
    tolerance = max(manifest.agreement, again.agreement, _ROUNDED.get(suffix, 0.0))
    worst, wrong = differences(stored, _numbers_in(suffix, result, layer, head), tolerance)
    reasons += wrong
    reasons += _check_reasons(manifest, again)
    return Reproduction(
        path, not reasons, worst, tolerance, tuple(reasons), tuple(_notes(manifest, again)), manifest
    )


def formats_of(kind: type[Result]) -> tuple[str, ...]:
    """The endings of the files that a kind of result can be exported to."""
    return tuple(name for name, kinds in _FORMATS.items() if issubclass(kind, kinds))


def _suffix(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _format_for(result: Any, path: Path) -> Format:
    """The format that the name of a file asks for, if there is such a one for the result."""
    if not isinstance(result, tuple(KINDS.values())):
        raise ProbeError(
            f"A {type(result).__name__} can't be exported; can be: "
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
        raise ProbeError(f".{suffix} files need the library {format.needs}, which is not installed.", "library")
    return format


def _narrowed(
    result: Result, suffix: str, layer: int | None, head: int | None
) -> tuple[Result, int | None, int | None]:
    """The result with the chosen head alone, where one is chosen; layer and head for a comparison."""
    if (layer is None) != (head is None):
        raise ProbeError("Give layer and head together.")
    if not isinstance(result, (Run, Comparison)):
        if layer is not None:
            raise ProbeError("layer and head are for a run or a comparison; this result has its own.")
        return result, None, None
    for_one = suffix == "csv" or suffix in _PICTURES
    if isinstance(result, Comparison):
        if for_one and layer is None:
            raise ProbeError(f"A .{suffix} file holds one head: give layer and head.")
        if layer is not None and head is not None:
            result.model.check_head(layer, head)
        return result, layer, head
    if for_one and len(result.heads) > 1:
        raise ProbeError(
            f"{result.model_name} has several kinds of attention: export its maps to .json, .npz or .html."
        )
    if layer is not None and head is not None:
        kept = {place: weights for place, weights in result.maps.items() if place[1:] == (layer, head)}
        if not kept:
            result.weights(layer, head)  # says what the run has
        result = replace(result, maps=kept)
    if for_one and len(result.maps) > 1:
        raise ProbeError(f"A .{suffix} file holds one head: give layer and head.")
    return result, None, None


def _check_remade(result: Result, manifest: Manifest, source: Model) -> None:
    """Refuse to write fields that would not give these numbers."""
    again = remake(manifest, source)
    _, wrong = differences(numbers_of(result), numbers_of(again), manifest.agreement)
    if wrong:
        raise ProbeError(
            f"{source.name} in {manifest.dtype} doesn't give these numbers again ({wrong[0]})", "model"
        )


def _one_head(manifest: Manifest, result: Result) -> tuple[int | None, int | None]:
    return (manifest.layer, manifest.head) if isinstance(result, Comparison) else (None, None)


def _check_reasons(manifest: Manifest, again: Manifest) -> Iterator[str]:
    """Where ``verify`` no longer says of the model what it said."""
    if manifest.passed != again.passed:
        words = {True: "passed", False: "did not pass", None: "was not checked"}
        yield f"The model {words[manifest.passed]} verification then, and {words[again.passed]} now."
    for name in ("max_abs_error", "tolerance"):
        then, now = getattr(manifest, name), getattr(again, name)
        if (then is None) != (now is None) or (then is not None and not abs(then - now) <= again.agreement):
            yield f"{name}: {then} in the file, {now} made again."


def _notes(manifest: Manifest, again: Manifest) -> Iterator[str]:
    for name, now in versions().items():
        then = manifest.versions.get(name)
        if then != now:
            yield f"Made with {name} {then}, made again with {now}."
    if manifest.device != again.device:
        yield f"Made on {manifest.device}, made again on {again.device}."
