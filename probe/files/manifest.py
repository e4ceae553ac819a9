"""What a result was made from: enough to make it again in another process, and to say if it holds.

A manifest is data: the name of a kind of result, and the arguments of the analysis that gives it, which are
checked against the signature of that analysis. The Python that a manifest shows to its reader is never run.
"""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from probe.analyses.asking import asked, call_text
from probe.analyses.result import RESULTS, Place, Result
from probe.analyses.verify import verify
from probe.errors import ProbeError
from probe.models import backend
from probe.models.loading import DTYPES, Model, load, resolve
from probe.running.tokens import Text

# How far numbers may be from those of another machine, as a share of the largest of their block (of 1, if
# that is less): rounding in another order, grown through a dozen layers.
AGREEMENT = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}

_FORMAT = 4


@dataclass(frozen=True)
class Manifest:
    """Where a result comes from.

    Attributes
    ----------
    what : what it is; a key of ``RESULTS``.
    arguments : of the analysis that gives it, beside the model; those that are as usual are left out.
    only : the (kind, layer, head) that was kept of a comparison; None for all.
    model, source, revision, sha256, tokenizer : whose attention it is; as in ``Model``.
    tokens : the tokens of the text, or of both; None where there are many texts.
    mask : "causal" or "bidirectional", what the model was trained with; None where that isn't known.
    dtype, device, backend, versions : what it was computed with.
    shown : how a picture shows it: "words" instead of tokens, special tokens hidden ("hide_special").
    max_abs_error, tolerance, passed : what ``verify`` says of the model on the texts; None for a model that
        can't be checked, and for an error that is not finite.
    agreement : how far the numbers of another machine may be away, see ``AGREEMENT``; said for the reader:
        making them again works it out anew.
    python : lines that make the result again, for people.
    """

    what: str
    arguments: dict[str, Any]
    only: Place | None
    model: str
    source: str
    revision: str | None
    sha256: str | None
    tokenizer: str
    tokens: tuple[str, ...] | None
    mask: str | None
    dtype: str
    device: str
    backend: str
    versions: dict[str, str]
    shown: tuple[str, ...]
    max_abs_error: float | None
    tolerance: float | None
    passed: bool | None
    agreement: float
    python: str

    @property
    def kind(self) -> type[Result]:
        """The kind of result it is of."""
        return RESULTS[self.what]

    @property
    def texts(self) -> tuple[Text, ...]:
        """The texts among its arguments."""
        texts: list[Text] = []
        for name in ("text", "text_or_texts", "first", "second"):
            given = self.arguments.get(name, [])
            texts += given if isinstance(given, list) else [given]
        return tuple(texts)

    @property
    def kept(self) -> str:
        """The dtype that its numbers were kept in."""
        return _name(self.arguments.get("dtype", _dtype(self.dtype)))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        plain = asdict(replace(self, arguments={}))
        plain["arguments"] = {name: _encoded(value) for name, value in self.arguments.items()}
        return {"format": _FORMAT, **json.loads(json.dumps(plain))}

    @classmethod
    def from_dict(cls, given: Any) -> Manifest:
        """A manifest that was read from a file, of this format or of the one before.

        Raises
        ------
        ProbeError
            If a field is missing or is not what it should be, or an argument is not one of the analysis.
        """
        if not isinstance(given, dict):
            raise ProbeError("The manifest is no set of fields: the file is damaged.")
        old = given.get("format") == 3
        if old:
            given = _from_format_3(given)
        if given.get("format") != _FORMAT:
            raise ProbeError(_unread(given))
        for name in (field.name for field in fields(cls)):
            if name not in given:
                raise ProbeError(f"The manifest has no {name}: the file is damaged, export it again.")
        values = {}
        for name, value in given.items():
            try:
                values[name] = _field(name, value)
            except ValueError:
                raise ProbeError(
                    f"The manifest has {name} = {value!r:.60}: the file is damaged, export it again."
                ) from None
        values = {field.name: values[field.name] for field in fields(cls)}
        _check_amount(values["arguments"])
        values["arguments"] = _arguments(RESULTS[values["what"]].analysis, values["arguments"])
        manifest = cls(**values)
        return replace(manifest, python=_python(manifest)) if old else manifest


# What one file may ask for: entries of a list, and characters in all.
_MAX_ENTRIES, _MAX_CHARACTERS = 20_000, 10_000_000


def _check_amount(arguments: Mapping[str, Any]) -> None:
    """Refuse a manifest that asks for much more than anybody exports, before any of it is looked at."""
    for name, value in arguments.items():
        if isinstance(value, list) and len(value) > _MAX_ENTRIES:
            raise ProbeError(
                f"The manifest has {len(value):,} entries of {name}; at most {_MAX_ENTRIES:,} are made again."
            )
    characters = sum(len(text) for text in _strings(arguments))
    if characters > _MAX_CHARACTERS:
        raise ProbeError(
            f"The texts of the manifest have {characters:,} characters; at most {_MAX_CHARACTERS:,} are read."
        )


def _strings(value: Any) -> Iterator[str]:
    """All texts in something nested."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _strings(one)


def _unread(given: Mapping[str, Any]) -> str:
    versions = given.get("versions")
    wrote = versions.get("attention-probe") if isinstance(versions, dict) else None
    by = f", written by attention-probe {wrote}" if isinstance(wrote, str) else ""
    return (
        f"The manifest is of format {given.get('format')!r:.20}{by}; read here are formats 3 and {_FORMAT}. "
        "Take the version that wrote it, or export the result again."
    )


def _from_format_3(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of this format, from those of the one before, which listed what any analysis may be asked.

    Whether they make sense is looked at afterwards.
    """
    try:
        what, texts, targets = given["what"], given["texts"], given["targets"]
        arguments = {name: given[name] for name in ("layer", "head", "query", "how", "k")}
        arguments["target"] = targets[0] if targets and what != "report" else targets
        arguments["truncate"] = given["truncate"] or None
        arguments["whole_model"] = given["whole_model"] or None
        arguments["dtype"] = given["kept"] if given["kept"] != given["dtype"] else None
        listed = [{"pair": one} if isinstance(one, list) else one for one in texts]
        one_kind = {kind for kind, _, _ in given["heads"] or ()} <= {"self"} or what == "ablation"
        arguments["heads"] = given["heads"] and [place[1:] if one_kind else place for place in given["heads"]]
        names = {"run": ("text_or_texts",), "texts": ("first", "second")}.get(what, ("text",))
        arguments |= {"text_or_texts": listed} if what == "report" else dict(zip(names, listed, strict=True))
        arguments |= dict(zip(("from_word", "to_word", "versus"), given["words"] or (), strict=False))
        place = [given["kind"], given["layer"], given["head"]]
        only = place if what == "comparison" and None not in place else None
        if what == "comparison":
            arguments["layer"] = arguments["head"] = None
        new = {one.name for one in fields(Manifest)}
        kept = {name: value for name, value in given.items() if name in new}
        return kept | {
            "format": _FORMAT,
            "arguments": {name: value for name, value in arguments.items() if value is not None},
            "only": only,
            "shown": [],
        }
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise ProbeError("The manifest lacks a field of format 3: the file is damaged.") from None


# ---- arguments as JSON, and back


def _encoded(value: Any) -> Any:
    """An argument as JSON; a pair of texts is told from a list of two."""
    if isinstance(value, torch.dtype):
        return _name(value)
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(one, str) for one in value):
        return {"pair": list(value)}
    return [_encoded(one) for one in value] if isinstance(value, (list, tuple)) else value


def _arguments(analysis: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that were read from a file, checked against the signature of an analysis.

    Raises
    ------
    ProbeError
        If one is not a parameter of it, is not of its type, or one that it needs is missing.
    """
    hints, parameters = get_type_hints(analysis), asked(analysis)
    arguments = {}
    for name, value in given.items():
        try:
            if name not in parameters:
                raise ValueError
            arguments[name] = _decoded(hints[name], value)
        except ValueError:
            raise ProbeError(
                f"The manifest asks {analysis.__name__} with {name[:40]} = {value!r:.60}, which it doesn't "
                "take: the file is damaged."
            ) from None
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise ProbeError(f"The manifest of a {analysis.__name__} needs {name}: the file is damaged.")
    return arguments


def _decoded(hint: Any, value: Any) -> Any:
    """A value of JSON as the type that a parameter or a field says; ValueError if it is none."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for one in inner:
            try:
                return _decoded(one, value)
            except ValueError:
                continue
        raise ValueError
    if hint == tuple[str, str]:
        if not isinstance(value, dict) or set(value) != {"pair"}:
            raise ValueError
        value = value["pair"]
    if origin is dict and isinstance(value, dict):
        return {name: _decoded(inner[1], item) for name, item in value.items()}
    if origin in (list, tuple, _SEQUENCE) and isinstance(value, list):
        if origin is not tuple:
            return [_decoded(inner[0], item) for item in value]
        each = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_decoded(one, item) for one, item in zip(each, value, strict=True))
    if (origin is Literal and isinstance(value, str) and value in inner) or (
        hint in _PLAIN and _PLAIN[hint](value)
    ):
        return _dtype(value) if hint is torch.dtype else value
    raise ValueError


def _is_number(value: Any) -> bool:
    """A finite one; JSON may hold whole numbers of any length, and Python's reader takes NaN."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


_SEQUENCE = get_origin(Sequence[int])
_PLAIN: dict[Any, Callable[[Any], bool]] = {
    Any: lambda value: True,
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31,
    float: _is_number,
    str: lambda value: isinstance(value, str),
    torch.dtype: lambda value: isinstance(value, str) and value in AGREEMENT,
    type(None): lambda value: value is None,
}
# What a file may say beside the fields of the manifest.
_MORE = {"format": Any, "picture": str | None, "digest": str | None}
_ONE_OF: dict[str, Mapping[str, Any]] = {"what": RESULTS, "dtype": AGREEMENT}


def _field(name: str, value: Any) -> Any:
    """A field of a manifest from one of a file; ValueError if it can't be that."""
    hints = get_type_hints(Manifest) | _MORE
    if name not in hints:
        raise ValueError
    field = _decoded(hints[name], value)
    if field not in _ONE_OF.get(name, [field]) or (name == "tokens" and field == ()):
        raise ValueError
    return field


# ---- from a result, and to one


def manifest_of(result: Result, model: Model, shown: Sequence[str] = ()) -> Manifest:
    """The manifest of a result that ``model`` gave; ``shown`` as in ``Manifest``."""
    if not model.takes_text:
        raise ProbeError(
            f"{model.name} takes no text, and what it was given would not be in the file: a result of it "
            "can't be exported. Save run.maps yourself."
        )
    origin, known = result.origin, model.has_sites
    bare = Manifest(
        what=result.kind.result_name,
        arguments=result.arguments,
        only=getattr(result, "place", None),
        **asdict(origin),
        tokenizer=f"{type(model.tokenizer).__name__}, {len(model.tokenizer)} entries",
        tokens=result.all_tokens,
        mask=("causal" if model.causal else "bidirectional") if known else None,
        shown=tuple(shown),
        max_abs_error=None,
        tolerance=None,
        passed=None,
        agreement=0.0,
        python="",
    )
    agreement = AGREEMENT[bare.dtype]
    if bare.kept != bare.dtype:
        agreement += torch.finfo(_dtype(bare.kept)).eps  # nearly equal numbers may be rounded apart
    return replace(bare, agreement=agreement, python=_python(bare), **_check(result, model, bare))


def _check(result: Result, model: Model, manifest: Manifest) -> dict[str, Any]:
    """What ``verify`` says of the model on the texts of a result."""
    report = result.own_report
    if report is None:
        if not model.has_sites and not backend.uses_interface(model.hf):
            return {"max_abs_error": None, "tolerance": None, "passed": None}
        target, truncate = manifest.arguments.get("target"), bool(result.cuts)
        targets = None if target is None else [target]
        report = verify(model, list(manifest.texts), targets, truncate=truncate)
    errors = {"max_abs_error": report.max_abs_error, "tolerance": report.tolerance}
    return {
        "passed": report.passed,
        **{name: value if math.isfinite(value) else None for name, value in errors.items()},
    }


def model_of(result: Result, given: Model | str | None) -> Model:
    """The model that a result is said to come from: the one given, or the one it names."""
    if given is not None:
        return resolve(given)
    held = getattr(result, "model", None)
    if isinstance(held, Model):
        return held
    try:
        return model_named(result.origin.model, result.origin.dtype)
    except ProbeError as error:
        raise ProbeError(
            f"The model of these numbers can't be loaded by its name: {error.problem}", "model"
        ) from None


def model_named(name: str, dtype: str) -> Model:
    """A model by name; in float32 the one that may be loaded already."""
    wanted = _dtype(dtype)
    return resolve(name) if wanted == torch.float32 else load(name, dtype=wanted)


def _dtype(name: str) -> torch.dtype:
    (dtype,) = (known for known in DTYPES if _name(known) == name)
    return dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def remake(manifest: Manifest, model: Model) -> Result:
    """Make the result again, from the fields.

    Raises
    ------
    ProbeError
        If the model has no such layer, head or position, or doesn't take the texts.
    """
    result = manifest.kind.analysis(model, **manifest.arguments)
    if manifest.only is not None:
        kind, layer, head = manifest.only
        result = result.only(layer, head, kind)
    if isinstance(result, list):  # of texts, where one is meant
        raise ProbeError("The manifest asks for several results at once: the file is damaged.")
    return result


def _python(manifest: Manifest) -> str:
    """Lines that make the result again."""
    dtype = f", dtype=torch.{manifest.dtype}" if manifest.dtype != "float32" else ""
    call = call_text(manifest.kind.analysis, manifest.arguments)
    if manifest.only is not None:
        kind, layer, head = manifest.only
        call += f".only({layer}, {head}{'' if kind == 'self' else f', {kind!r}'})"
    needs_torch = dtype or "dtype" in manifest.arguments
    return "\n".join(
        [
            *(["import torch"] if needs_torch else []),
            "import probe",
            f"model = probe.load({manifest.model!r}{dtype})",
            f"result = {call}",
        ]
    )
