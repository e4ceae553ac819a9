"""What a result was made from, in fields: enough to make it again in another process, and to say if it holds.

A manifest is data. Making a result again reads its fields, checks them, and calls this package; the Python
that a manifest shows to its reader is never run.
"""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
import transformers

from probe.analyses.ablate import Ablation, Ranking, ablate, rank_heads
from probe.analyses.checks.report import Report, device_name
from probe.analyses.compare import Comparison, compare
from probe.analyses.find import FoundHeads, find_heads
from probe.analyses.masks import MaskComparison, compare_masks
from probe.analyses.measures import measure_heads, rollout
from probe.analyses.predict import Predictions, predict
from probe.analyses.rerun import FromScratchRun, run_from_scratch
from probe.analyses.texts import TextComparison, compare_texts
from probe.analyses.trace import Trace, trace
from probe.analyses.verify import verify
from probe.errors import ProbeError
from probe.files.numbers import KINDS, Place, Result
from probe.models import backend
from probe.models.loading import DTYPES, Model, load, resolve
from probe.running.capture import Run, attend
from probe.running.tokens import Text
from probe.version import __version__

# How far numbers may be from those of another machine, as a share of the largest of their block (of 1, if
# that is less): rounding in another order, grown through a dozen layers.
AGREEMENT = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}

_FORMAT = 3


@dataclass(frozen=True)
class Manifest:
    """Where a result comes from.

    Attributes
    ----------
    what : what it is; a key of ``KINDS``.
    model, source, revision, sha256, tokenizer : whose attention it is; as in ``Model``.
    texts : the text; both of a comparison of texts, all of a report.
    truncate : whether a text that is too long was to be cut.
    targets : the decoder's text, for a model with an encoder and a decoder; of a report one for each text.
    heads : the (kind, layer, head) that a run kept, or that were changed; None for all.
    layer, head, query, whole_model, words, how, k : what was asked for, where it was.
    kind : of the one head kept of a comparison: "self", "encoder", "decoder" or "cross".
    kept : the dtype that a run's weights were kept in.
    tokens : the tokens of the text, or of both; None for a report.
    mask : "causal" or "bidirectional", what the model was trained with; None where that isn't known.
    dtype, device, backend, versions : what it was computed with.
    max_abs_error, tolerance, passed : what ``verify`` says of the model on the texts; None for a model that
        can't be checked, and for an error that is not finite.
    agreement : how far the numbers of another machine may be away, see ``AGREEMENT``; said for the reader:
        making them again works it out anew.
    python : lines that make the result again, for people.
    """

    what: str
    model: str
    source: str
    revision: str | None
    sha256: str | None
    tokenizer: str
    texts: tuple[Text, ...]
    truncate: bool
    targets: tuple[str, ...] | None
    heads: tuple[tuple[str, int, int], ...] | None
    kind: str | None
    layer: int | None
    head: int | None
    query: int | None
    whole_model: bool
    words: tuple[str, ...] | None
    how: str | None
    k: int | None
    kept: str | None
    tokens: tuple[str, ...] | None
    mask: str | None
    dtype: str
    device: str
    backend: str
    versions: dict[str, str]
    max_abs_error: float | None
    tolerance: float | None
    passed: bool | None
    agreement: float
    python: str

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {"format": _FORMAT, **json.loads(json.dumps(asdict(self)))}

    @classmethod
    def from_dict(cls, given: Any) -> Manifest:
        """A manifest that was read from a file.

        Raises
        ------
        ProbeError
            If a field is missing or is not what it should be.
        """
        if not isinstance(given, dict) or given.get("format") != _FORMAT:
            raise ProbeError(f"The manifest is not of format {_FORMAT}, the one that is read here.")
        missing = [field.name for field in fields(cls) if field.name not in given]
        wrong = [name for name in given if name not in _FITS or not _FITS[name](given[name])]
        if missing or wrong:
            what = f"has no {missing[0]}" if missing else f"has {wrong[0]} = {given[wrong[0]]!r:.60}"
            raise ProbeError(f"The manifest {what}: the file is damaged, export it again.")
        values = {field.name: given[field.name] for field in fields(cls)}
        values["texts"] = tuple(tuple(one) if isinstance(one, list) else one for one in values["texts"])
        for name in ("heads", "targets", "tokens", "words"):
            if values[name] is not None:
                values[name] = tuple(tuple(one) if name == "heads" else one for one in values[name])
        return cls(**values)


def _is_text(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)
    return isinstance(value, str) or pair


def _is_number(value: Any) -> bool:
    """A finite one; JSON may hold whole numbers of any length, and Python's reader takes NaN."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_place(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and all(map(_is_count, value[1:]))
    )


def _is_list(value: Any, fits: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(fits, value))


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


def _is_words(value: Any) -> bool:
    return _is_list(value, _is_str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _one_of(names: Collection[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


# What each field must be, and what a file says beside the fields of the manifest.
_FITS: dict[str, Callable[[Any], bool]] = {
    "format": lambda value: value == _FORMAT,
    "what": _one_of(KINDS),
    "model": _is_str,
    "source": _is_str,
    "revision": _or_none(_is_str),
    "sha256": _or_none(_is_str),
    "tokenizer": _is_str,
    "texts": lambda value: _is_list(value, _is_text),
    "truncate": _is_bool,
    "targets": _or_none(_is_words),
    "heads": _or_none(lambda value: _is_list(value, _is_place)),
    "kind": _or_none(_is_str),
    "layer": _or_none(_is_count),
    "head": _or_none(_is_count),
    "query": _or_none(_is_count),
    "whole_model": _is_bool,
    "words": _or_none(_is_words),
    "how": _or_none(_is_str),
    "k": _or_none(_is_count),
    "kept": _or_none(_one_of(AGREEMENT)),
    "tokens": _or_none(_is_words),
    "mask": _or_none(_is_str),
    "dtype": _one_of(AGREEMENT),
    "device": _is_str,
    "backend": _is_str,
    "versions": lambda value: isinstance(value, dict) and all(map(_is_str, value.values())),
    "max_abs_error": _or_none(_is_number),
    "tolerance": _or_none(_is_number),
    "passed": _or_none(_is_bool),
    "agreement": _is_number,
    "python": _is_str,
    "picture": _or_none(_is_str),
    "digest": _or_none(_is_str),
}


# What is made of a run on the eager backend; the rest listens to the model's own.
_RECORDED = (Trace, MaskComparison, Comparison, Report)


def manifest_of(result: Result, model: Model, place: Place = None) -> Manifest:
    """The manifest of a result that ``model`` gave; ``place`` is the one head kept of a comparison."""
    if not model.takes_text:
        raise ProbeError(
            f"{model.name} takes no text, and what it was given would not be in the file: a result of it "
            "can't be exported. Save run.maps yourself."
        )
    kind, layer, head = place or (None, None, None)
    if isinstance(result, (Trace, MaskComparison, TextComparison)):
        layer, head = result.layer, result.head
    known = model.has_sites
    bare = Manifest(
        what=next(name for name, kind in KINDS.items() if isinstance(result, kind)),
        model=model.name,
        source=model.source,
        revision=model.revision,
        sha256=model.sha256,
        tokenizer=f"{type(model.tokenizer).__name__}, {len(model.tokenizer)} entries",
        texts=_texts(result),
        truncate=any(cut is not None for cut in _cuts(result)),
        targets=_targets(result),
        heads=_heads(result, model),
        kind=kind,
        layer=layer,
        head=head,
        query=result.query if isinstance(result, Trace) else None,
        whole_model=isinstance(result, MaskComparison) and result.whole_model,
        words=_words(result),
        how=_first(result).how if isinstance(result, (Ablation, Ranking)) else None,
        k=result.k if isinstance(result, Predictions) else None,
        kept=_name(next(iter(result.maps.values())).dtype) if isinstance(result, Run) else None,
        tokens=_tokens(result),
        mask=("causal" if model.causal else "bidirectional") if known else None,
        dtype=_name(model.dtype),
        device=device_name(model.device),
        backend="eager" if isinstance(result, _RECORDED) else str(model.hf.config._attn_implementation),
        versions=versions(),
        max_abs_error=None,
        tolerance=None,
        passed=None,
        agreement=0.0,
        python="",
    )
    agreement = AGREEMENT[bare.dtype]
    if bare.kept not in (None, bare.dtype):
        agreement += torch.finfo(_dtype(bare.kept)).eps  # nearly equal numbers may be rounded apart
    return replace(bare, agreement=agreement, python=_python(bare), **check(result, model, bare))


def check(result: Result, model: Model, manifest: Manifest) -> dict[str, Any]:
    """What ``verify`` says of the model on the texts of a result."""
    if isinstance(result, Report):
        report = result
    elif isinstance(result, Comparison):
        report = result.report
    elif not model.has_sites and not backend.uses_interface(model.hf):
        return {"max_abs_error": None, "tolerance": None, "passed": None}
    else:
        report = verify(model, list(manifest.texts), _listed(manifest.targets), truncate=manifest.truncate)
    errors = {"max_abs_error": report.max_abs_error, "tolerance": report.tolerance}
    return {
        "passed": report.passed,
        **{name: value if math.isfinite(value) else None for name, value in errors.items()},
    }


def model_of(result: Result, given: Model | str | None) -> Model:
    """The model that a result is said to come from: the one given, or the one it names."""
    if given is not None:
        return resolve(given)
    if isinstance(result, Comparison):
        return result.model
    dtype, name = "float32", result.model if isinstance(result, Report) else _first(result).model_name
    if isinstance(result, Report):
        dtype = result.dtype
    elif isinstance(result, Trace):
        dtype = dict(result.numbers.provenance).get("dtype", dtype)
    elif _is_double(result):
        dtype = "float64"
    try:
        return model_named(name, dtype)
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
    text, truncate = manifest.texts[0], manifest.truncate
    target = None if manifest.targets is None else manifest.targets[0]
    if manifest.what == "report":
        return verify(model, list(manifest.texts), _listed(manifest.targets), truncate=truncate)
    if manifest.what == "from scratch":
        return run_from_scratch(model, text, target=target, truncate=truncate)
    if manifest.what == "predictions":
        return predict(model, text, _needed(manifest, "k", int), truncate=truncate)
    if manifest.what == "ranking":
        return rank_heads(model, text, _needed(manifest, "how", str), truncate=truncate)
    if manifest.what == "ablation":
        changed = [(layer, head) for _, layer, head in _needed(manifest, "heads", tuple)]
        return ablate(model, text, changed, _needed(manifest, "how", str), truncate=truncate)
    if manifest.what == "comparison":
        return compare(model, text, target, truncate=truncate)
    if manifest.what == "run":
        heads = None if manifest.heads is None else _asked(manifest.heads, model)
        # The runs of one text and of a list differ in type; a pair is one text.
        kept = _dtype(_needed(manifest, "kept", str))
        return attend(model, text, heads, target=target, truncate=truncate, dtype=kept)
    if manifest.what == "measures":
        return measure_heads(model, text, truncate=truncate)
    if manifest.what == "rollout":
        return rollout(model, text, truncate=truncate)
    if manifest.what == "found":
        words = manifest.words or ()
        if len(words) not in (2, 3):
            raise ProbeError("The manifest of found heads needs two or three words: the file is damaged.")
        return find_heads(model, text, *words, truncate=truncate)
    layer, head = _needed(manifest, "layer", int), _needed(manifest, "head", int)
    if manifest.what == "texts":
        return compare_texts(model, text, manifest.texts[-1], layer, head, truncate=truncate)
    if manifest.what == "masks":
        return compare_masks(model, text, layer, head, whole_model=manifest.whole_model, truncate=truncate)
    return trace(model, text, layer, head, _needed(manifest, "query", int), truncate=truncate)


def _asked(heads: tuple[tuple[str, int, int], ...], model: Model) -> list[Any]:
    """(kind, layer, head) as ``attend`` takes them."""
    return list(heads) if len(model.kinds) > 1 else [(layer, head) for _, layer, head in heads]


def _listed(targets: tuple[str, ...] | None) -> list[str] | None:
    return None if targets is None else list(targets)


def _needed(manifest: Manifest, name: str, kind: type) -> Any:
    value = getattr(manifest, name)
    if not isinstance(value, kind):
        raise ProbeError(
            f"The manifest of a result of kind {manifest.what!r} needs {name}: the file is damaged."
        )
    return value


def versions() -> dict[str, str]:
    """Of this package and of what it computes with."""
    return {
        "attention-probe": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _texts(result: Result) -> tuple[Text, ...]:
    if isinstance(result, Report):
        return result.texts
    return tuple(one.text for one in _parts(result))


def _tokens(result: Result) -> tuple[str, ...] | None:
    if isinstance(result, Report):
        return None
    return tuple(token for one in _parts(result) for token in one.tokens)


def _cuts(result: Result) -> tuple[str | None, ...]:
    return result.truncated if isinstance(result, Report) else tuple(one.truncated for one in _parts(result))


def _first(result: Any) -> Any:
    """What of a result knows its model; of a ranking each of its ablations does."""
    return result.ablations[0] if isinstance(result, Ranking) else result


def _parts(result: Any) -> tuple[Any, ...]:
    """What of a result knows its text, tokens and whether it was cut: two for a comparison of texts."""
    if isinstance(result, TextComparison):
        return result.first, result.second
    return (result.encoding,) if isinstance(result, Comparison) else (_first(result),)


def _targets(result: Result) -> tuple[str, ...] | None:
    if isinstance(result, Report):
        return tuple(map(str, result.targets)) or None
    if isinstance(result, FromScratchRun):
        return None if result.target is None else (result.target,)
    decoded = result.target if isinstance(result, (Run, Comparison)) else None
    return None if decoded is None else (str(decoded.text),)


def _words(result: Result) -> tuple[str, ...] | None:
    if not isinstance(result, FoundHeads):
        return None
    return tuple(one.word for one in (result.from_word, result.to_word, result.versus) if one)


def _heads(result: Result, model: Model) -> tuple[tuple[str, int, int], ...] | None:
    if isinstance(result, Ablation):
        return tuple((model.kinds[0], layer, head) for layer, head in result.heads)
    if not isinstance(result, Run) or len(result.maps) == sum(map(sum, result.heads.values())):
        return None
    return tuple(sorted(result.maps))


def _is_double(result: Result) -> bool:
    """Whether a result's tensors say that its model was one in float64."""
    if isinstance(result, Run):
        some = next(iter(result.maps.values()))
    elif isinstance(result, TextComparison):
        some = result.first.weights
    elif isinstance(result, MaskComparison):
        some = result.causal
    elif isinstance(result, FromScratchRun):
        some = result.model
    else:
        return False
    return some.dtype == torch.float64


_CALLS = {
    "run": "attend",
    "trace": "trace",
    "masks": "compare_masks",
    "texts": "compare_texts",
    "comparison": "compare",
    "report": "verify",
    "measures": "measure_heads",
    "rollout": "rollout",
    "found": "find_heads",
    "ablation": "ablate",
    "ranking": "rank_heads",
    "predictions": "predict",
    "from scratch": "run_from_scratch",
}


def _python(manifest: Manifest) -> str:
    """Lines that make the result again."""
    texts = list(manifest.texts)
    given = texts if manifest.what == "texts" else [texts[0] if len(texts) == 1 else texts]
    arguments = ["model", *map(repr, given), *map(repr, manifest.words or ())]
    if manifest.heads is not None:
        plain = manifest.what == "ablation" or {kind for kind, _, _ in manifest.heads} == {"self"}
        arguments.append(repr([place[1:] if plain else place for place in manifest.heads]))
    if manifest.what in ("trace", "masks", "texts"):
        arguments += [f"layer={manifest.layer}", f"head={manifest.head}"]
    named = {name: getattr(manifest, name) for name in ("query", "how", "k")}
    if manifest.targets is not None:
        named["target"] = manifest.targets[0] if len(manifest.targets) == 1 else list(manifest.targets)
    named |= {name: True for name in ("whole_model", "truncate") if getattr(manifest, name)}
    arguments += [f"{name}={value!r}" for name, value in named.items() if value is not None]
    if manifest.kept not in (None, manifest.dtype):
        arguments.append(f"dtype=torch.{manifest.kept}")
    torch_line = ["import torch"] if {manifest.dtype, manifest.kept} - {"float32", None} else []
    dtype = f", dtype=torch.{manifest.dtype}" if manifest.dtype != "float32" else ""
    return "\n".join(
        [
            *torch_line,
            "import probe",
            f"model = probe.load({manifest.model!r}{dtype})",
            f"result = probe.{_CALLS[manifest.what]}({', '.join(arguments)})",
        ]
    )
