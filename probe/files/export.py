"""Results in files that say where they come from.

Every file carries its manifest (``manifest.py``). CSV and PDF have no place for one: it lies beside them, in
a file of the same name with ``.json`` added.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from probe.analyses.result import RESULTS, Result
from probe.display.data import Sheet
from probe.errors import ProbeError
from probe.files.disk import expanded, save
from probe.files.formats import FORMATS, Format, formats_of
from probe.files.manifest import Manifest, manifest_of, model_of, remake
from probe.files.numbers import differences, digest
from probe.models.loading import Model
from probe.running.inputs import encode_for
from probe.running.words import Words, group_words, single_tokens

_PICTURES = [f".{name}" for name, format in FORMATS.items() if format.draw is not None]


def export(
    result: Result,
    path: str | os.PathLike[str],
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: str | None = None,
    model: Model | str | None = None,
    words: bool = False,
    hide_special: bool = False,
) -> Path:
    """Write a result to a file, in the format that the file's name ends in, together with its manifest.

    json, npz
        Every number, none of them rounded.
    csv
        Its table: of one map, or the last of a rollout, a row for each query; see ``Result.table``.
    parquet
        Its table (a row for each weight of a run), with the manifest in the file's metadata. Needs pyarrow.
    html
        All heads of a run to look at, in one file of at most 4 MB; see ``page.py``.
    xlsx
        The head of a trace as live formulas; see ``to_workbook``.
    png, svg, pdf
        Its picture, where it has one: of one head of several give which; its numbers are in the file too (for
        PDF beside it).

    Before anything is written the result is made again from the manifest's fields, which must give the same
    numbers.

    Parameters
    ----------
    layer, head, kind : for one head of a run or comparison that holds several; csv and figures need it. The
        kind is for models with an encoder and a decoder: "encoder", "decoder" or "cross".
    words, hide_special : for pictures over the tokens of a text: words instead of tokens, and without special
        tokens. The numbers in the file stay those over all tokens.
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
    path = expanded(path)
    format = _format_for(result, path)
    result = _narrowed(result, path, format, layer, head, kind)
    source = model_of(result, model)
    options = {"words": words, "hide_special": hide_special}
    manifest = manifest_of(result, source, [name for name, wanted in options.items() if wanted])
    if manifest.shown and format.draw is None:
        raise ProbeError(f"words and hide_special are for pictures: {', '.join(_PICTURES)}.")
    _check_remade(result, manifest, source)
    fields = manifest.to_dict()
    # Those of a file that programs write anew are read from what it shows.
    numbers = {} if format.editable else format.numbers(result)
    body = format.body(result) if format.draw is None else format.draw(_shown(result, source, **options))
    if format.picture:
        fields["picture"] = hashlib.sha256(format.shown(body)).hexdigest()
    fields["digest"] = None if format.editable else digest(fields, numbers)
    save(path, format.pack(body, result, fields, numbers))
    if format.beside is not None:
        save(beside(path), format.beside(fields, numbers))
    return path


def _shown(result: Result, model: Model, *, words: bool, hide_special: bool) -> Sheet:
    """The sheet of a result, with panels over the tokens of a text over words or without special tokens."""
    sheet = result.sheet()
    assert sheet is not None
    if not (words or hide_special):
        return sheet
    groups: dict[tuple[str, ...], Words] = {}
    for text in result.all_texts:
        encoding = encode_for(model, text, truncate=True)
        group = group_words(encoding) if words else single_tokens(encoding)
        groups[encoding.tokens] = group.without_special() if hide_special else group
    return sheet.regrouped(groups)


def suffix_of(path: Path) -> str:
    """The ending of a file's name, in small letters."""
    return path.suffix.lower().removeprefix(".")


def _format_for(result: Result, path: Path) -> Format:
    """The format that the name of a file asks for, if there is such a one for the result."""
    if not isinstance(result, Result):
        raise ProbeError(
            f"What is of type {type(result).__name__} can't be exported; what can is a "
            f"{', '.join(kind.__name__ for kind in RESULTS.values())}."
        )
    suffix = suffix_of(path)
    format = FORMATS.get(suffix)
    if format is None or not format.fits(type(result)):
        possible = [f".{name}" for name in formats_of(type(result))]
        choices = f"{', '.join(possible[:-1])} or {possible[-1]}"
        if not suffix:
            raise ProbeError(
                f'The end of a file\'s name says in which format it is written, and "{path}" has none: add '
                f"{choices}."
            )
        raise ProbeError(f"A {type(result).__name__} can be written as {choices}, not as .{suffix}.")
    if not format.available:
        raise missing(path)
    return format


def _narrowed(
    result: Result, path: Path, format: Format, layer: int | None, head: int | None, kind: str | None
) -> Result:
    """The result with the chosen head alone, where one is chosen."""
    if (layer is None) != (head is None) or (kind is not None and layer is None):
        raise ProbeError("Give layer and head together, and kind with them.")
    if layer is not None and head is not None:
        result = result.only(layer, head, kind)
    if format.one_head and result.holds_many:
        raise ProbeError(f"A .{suffix_of(path)} file holds one head.", "place")
    return result


def _check_remade(result: Result, manifest: Manifest, source: Model) -> None:
    """Refuse to write fields that would not give these numbers."""
    again = remake(manifest, source)
    _, wrong = differences(result.blocks(), again.blocks(), manifest.agreement)
    then, now = result.origin, again.origin
    wrong += [
        f"{name}: {getattr(then, name)}, and {getattr(now, name)} made again"
        for name in ("dtype", "sha256")
        if getattr(then, name) != getattr(now, name)
    ]
    if wrong:
        raise ProbeError(
            f"{source.name} in {manifest.dtype} doesn't give these numbers again ({wrong[0]})", "model"
        )


def beside(path: Path) -> Path:
    """Where the manifest of a file lies that has no place for it."""
    return path.with_name(f"{path.name}.json")


def missing(path: Path) -> ProbeError:
    """What to raise where the library for a format is not installed."""
    needed = FORMATS[suffix_of(path)].needs
    return ProbeError(
        f".{suffix_of(path)} files need the library {needed}, which is not installed.", "library"
    )
