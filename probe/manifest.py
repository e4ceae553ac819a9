"""What a result was made from, in fields: enough to make it again in another process, and to say if it holds.

A manifest is data. Making a result again reads its fields, checks them, and calls this package; the Python
that a manifest shows to its reader is never run.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

from probe.capture import Run, attend
from probe.comparison import Comparison, compare
from probe.errors import ProbeError
from probe.finding import FoundHeads, find_heads
from probe.masking import MaskComparison, compare_masks
from probe.measures import MEASURES, HeadMeasures, Rollout, measure_heads, rollout
from probe.models import DTYPES, Model, load, resolve
from probe.report import Report
from probe.texts import TextComparison, compare_texts
from probe.tokens import Text
from probe.tracing import Trace, trace
from probe.verification import verify

Result = (
    Run | Trace | MaskComparison | TextComparison | Comparison | Report | HeadMeasures | Rollout | FoundHeads
)
Numbers = dict[str, np.ndarray]

KINDS: dict[str, type[Result]] = {
    "run": Run,
    "trace": Trace,
    "masks": MaskComparison,
    "texts": TextComparison,
    "comparison": Comparison,
    "report": Report,
    "measures": HeadMeasures,
    "rollout": Rollout,
    "found": FoundHeads,
}

# How far numbers may be from those of another machine, as a share of the largest of their block (of 1, if
# that is less): rounding in another order, grown through a dozen layers.
AGREEMENT = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}

_FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """Where a result comes from.

    Attributes
    ----------
    what : what it is; a key of ``KINDS``.
    model, source, revision, sha256, tokenizer : whose attention it is; as in ``Model``.
    texts : the text; both of a comparison of texts, all of a report.
    truncate : whether a text that is too long was to be cut.
    target : the decoder's text, for a model with an encoder and a decoder.
    heads : the (kind, layer, head) that a run kept; None for all.
    layer, head, query, whole_model, words : what was asked for, where it was.
    tokens : the tokens of the text, or of both; None for a report.
    mask : "causal" or "bidirectional", what the model was trained with; None where that isn't known.
    dtype, device, backend, versions : what it was computed with.
    max_abs_error, tolerance, passed : what ``verify`` says of the model on the texts; None for a model that
        can't be taken apart.
    agreement : how far the numbers of another machine may be away; see ``AGREEMENT``.
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
    target: str | None
    heads: tuple[tuple[str, int, int], ...] | None
    layer: int | None
    head: int | None
    query: int | None
    whole_model: bool
    words: tuple[str, ...] | None
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
        wrong = [name for name, fits in _FITS.items() if name in given and not fits(given[name])]
        if missing or wrong:
            what = f"has no {missing[0]}" if missing else f"has {wrong[0]} = {given[wrong[0]]!r:.60}"
            raise ProbeError(f"The manifest {what}: the file is damaged, export it again.")
        values = {field.name: given[field.name] for field in fields(cls)}
        values["texts"] = tuple(tuple(one) if isinstance(one, list) else one for one in values["texts"])
        for name in ("heads", "tokens", "words"):
            if values[name] is not None:
                values[name] = tuple(tuple(one) if name == "heads" else one for one in values[name])
        return cls(**values)


def _is_text(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)
    return isinstance(value, str) or pair


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _is_place(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and all(one is not None and _is_count(one) for one in value[1:])
    )


def _is_list(value: Any, fits: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(fits, value))


# What the fields that a result is made again from, or compared by, must be.
_FITS: dict[str, Any] = {
    "what": lambda value: value in KINDS,
    "model": lambda value: isinstance(value, str),
    "sha256": lambda value: value is None or isinstance(value, str),
    "texts": lambda value: _is_list(value, _is_text),
    "truncate": lambda value: isinstance(value, bool),
    "target": lambda value: value is None or isinstance(value, str),
    "heads": lambda value: value is None or _is_list(value, _is_place),
    "layer": _is_count,
    "head": _is_count,
    "query": _is_count,
    "whole_model": lambda value: isinstance(value, bool),
    "words": lambda value: value is None or _is_list(value, lambda one: isinstance(one, str)),
    "tokens": lambda value: value is None or _is_list(value, lambda one: isinstance(one, str)),
    "dtype": lambda value: value in AGREEMENT,
    "device": lambda value: isinstance(value, str),
    "versions": lambda value: isinstance(value, dict),
    "max_abs_error": lambda value: value is None or _is_number(value),
    "tolerance": lambda value: value is None or _is_number(value),
    "passed": lambda value: value is None or isinstance(value, bool),
    "agreement": lambda value: value in AGREEMENT.values(),
}


# What is made of a run on the eager backend; the rest listens to the model's own.
_RECORDED = (Trace, MaskComparison, Comparison, Report)


def manifest_of(result: Result, model: Model, layer: int | None = None, head: int | None = None) -> Manifest:
    """The manifest of a result that ``model`` gave; ``layer`` and ``head`` for one head of a comparison."""
    if not model.takes_text:
        raise ProbeError(
            f"{model.name} takes no text, and what it was given would not be in the file: a result of it "
            "can't be exported. Save run.maps yourself."
        )
    if isinstance(result, (Trace, MaskComparison, TextComparison)):
        layer, head = result.layer, result.head
    target = result.target if isinstance(result, Run) else None
    known = model.family is not None
    bare = Manifest(
        what=next(name for name, kind in KINDS.items() if isinstance(result, kind)),
        model=model.name,
        source=model.source,
        revision=model.revision,
        sha256=model.sha256,
        tokenizer=f"{type(model.tokenizer).__name__}, {len(model.tokenizer)} entries",
        texts=_texts(result),
        truncate=any(cut is not None for cut in _cuts(result)),
        target=None if target is None else str(target.text),
        heads=_heads(result),
        layer=layer,
        head=head,
        query=result.query if isinstance(result, Trace) else None,
        whole_model=isinstance(result, MaskComparison) and result.whole_model,
        words=_words(result),
        tokens=_tokens(result),
        mask=("causal" if model.causal else "bidirectional") if known else None,
        dtype=str(model.dtype).removeprefix("torch."),
        device=_device(model),
        backend="eager" if isinstance(result, _RECORDED) else str(model.hf.config._attn_implementation),
        versions=versions(),
        max_abs_error=None,
        tolerance=None,
        passed=None,
        agreement=AGREEMENT[_coarsest(result, model)],
        python="",
    )
    return replace(bare, python=_python(bare), **check(result, model, bare))


def check(result: Result, model: Model, manifest: Manifest) -> dict[str, Any]:
    """What ``verify`` says of the model on the texts of a result."""
    if isinstance(result, Report):
        report = result
    elif isinstance(result, Comparison):
        report = result.report
    elif model.family is None:
        return {"max_abs_error": None, "tolerance": None, "passed": None}
    else:
        report = verify(model, list(manifest.texts), truncate=manifest.truncate)
    return {
        "max_abs_error": report.max_abs_error,
        "tolerance": report.tolerance,
        "passed": report.passed,
    }


def model_of(result: Result, given: Model | str | None) -> Model:
    """The model that a result is said to come from: the one given, or the one it names."""
    if given is not None:
        return resolve(given)
    if isinstance(result, Comparison):
        return result.model
    dtype, name = "float32", result.model if isinstance(result, Report) else result.model_name
    if isinstance(result, Report):
        dtype = result.dtype
    elif isinstance(result, Trace):
        dtype = dict(result.numbers.provenance).get("dtype", dtype)
    elif isinstance(result, (Run, MaskComparison, TextComparison)) and _map_dtype(result) == torch.float64:
        dtype = "float64"
    try:
        return model_named(name, dtype)
    except ProbeError as error:
        raise ProbeError(
            f"The model of these numbers can't be loaded by its name: {error.problem}", "model"
        ) from None


def model_named(name: str, dtype: str) -> Model:
    """A model by name; in float32 the one that may be loaded already."""
    (wanted,) = (known for known in DTYPES if str(known) == f"torch.{dtype}")
    return resolve(name) if wanted == torch.float32 else load(name, dtype=wanted)


def remake(manifest: Manifest, model: Model) -> Result:
    """Make the result again, from the fields.

    Raises
    ------
    ProbeError
        If the model has no such layer, head or position, or doesn't take the texts.
    """
    text, truncate = manifest.texts[0], manifest.truncate
    if manifest.what == "report":
        return verify(model, list(manifest.texts), truncate=truncate)
    if manifest.what == "comparison":
        return compare(model, text, truncate=truncate)
    if manifest.what == "run":
        heads = None if manifest.heads is None else _asked(manifest.heads, model)
        # The runs of one text and of a list differ in type; a pair is one text.
        return attend(model, text, heads, target=manifest.target, truncate=truncate)
    if manifest.what == "measures":
        return measure_heads(model, text, truncate=truncate)
    if manifest.what == "rollout":
        return rollout(model, text, truncate=truncate)
    if manifest.what == "found":
        words = manifest.words or ()
        if len(words) not in (2, 3):
            raise ProbeError("The manifest of found heads needs two or three words: the file is damaged.")
        return find_heads(model, text, *words, truncate=truncate)
    layer, head = _needed(manifest, "layer"), _needed(manifest, "head")
    if manifest.what == "texts":
        return compare_texts(model, text, manifest.texts[-1], layer, head, truncate=truncate)
    if manifest.what == "masks":
        return compare_masks(model, text, layer, head, whole_model=manifest.whole_model, truncate=truncate)
    return trace(model, text, layer, head, _needed(manifest, "query"), truncate=truncate)


def _asked(heads: tuple[tuple[str, int, int], ...], model: Model) -> list[Any]:
    """(kind, layer, head) as ``attend`` takes them."""
    return list(heads) if len(model.kinds) > 1 else [(layer, head) for _, layer, head in heads]


def _needed(manifest: Manifest, name: str) -> int:
    value = getattr(manifest, name)
    if not isinstance(value, int):
        raise ProbeError(f"The manifest of a {manifest.what} needs its {name}: the file is damaged.")
    return value


def numbers_of(result: Result, layer: int | None = None, head: int | None = None) -> Numbers:
    """All numbers of a result, in named blocks; of one head of a comparison, if it is named."""
    return dict(_numbers(result, layer, head))


def _numbers(result: Result, layer: int | None, head: int | None) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(result, Run):
        for (kind, of_layer, of_head), weights in sorted(result.maps.items()):
            prefix = "" if len(result.heads) == 1 else f"{kind}_"
            yield f"{prefix}layer_{of_layer}_head_{of_head}", array(weights)
    elif isinstance(result, MaskComparison):
        for name in ("causal", "bidirectional", "moved"):
            yield name, array(getattr(result, name))
    elif isinstance(result, Trace):
        # Masked scores are the scaled ones where they are allowed; minus infinity is no number in JSON.
        for field in fields(result):
            value = getattr(result, field.name)
            if field.name != "masked" and isinstance(value, (float, torch.Tensor)):
                yield field.name, array(value)
    elif isinstance(result, Comparison):
        for one in result.report.heads:
            if layer is None or (one.layer, one.head) == (layer, head):
                place = f"layer_{one.layer}_head_{one.head}"
                yield f"from_scratch_{place}", array(result.from_scratch(one.layer, one.head))
                yield f"model_{place}", array(result.from_model(one.layer, one.head))
    elif isinstance(result, TextComparison):
        yield "first", array(result.first.weights)
        yield "second", array(result.second.weights)
        yield "moved", array(result.moved)
    elif isinstance(result, Rollout):
        for index, weights in enumerate(result.maps):
            yield f"layer_{index}", array(weights)
    elif isinstance(result, (HeadMeasures, FoundHeads)):
        columns = (
            [measure.name for measure in MEASURES]
            if isinstance(result, HeadMeasures)
            else ["weight", "versus", "difference"]
        )
        # By layer and head, as an order by nearly equal weights may change; NaN where there is no number.
        heads = sorted(result.heads, key=lambda one: (one.layer, one.head))
        for name in ("layer", "head", *columns):
            yield name, np.array([getattr(one, name) for one in heads], dtype=np.float64)
    else:
        for name in ("layer", "head", "max_abs_error", "mean_abs_error", "tolerance", "context_error"):
            yield name, np.array([getattr(one, name) for one in result.heads], dtype=np.float64)
        yield "output_error", np.array([one.output_error for one in result.layers], dtype=np.float64)


def array(values: torch.Tensor | float) -> np.ndarray:
    """Numbers, none of them rounded: float64 stays, everything smaller becomes float32."""
    if isinstance(values, float):
        return np.array(values)
    wide = torch.float64 if values.dtype == torch.float64 else torch.float32
    block: np.ndarray = values.detach().cpu().to(wide).numpy()
    return block


def digest(manifest: Mapping[str, Any], numbers: Numbers) -> str:
    """SHA-256 of a manifest and its numbers: it changes with any of them, and with nothing else."""
    total = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(numbers):
        block = np.ascontiguousarray(numbers[name], dtype="<f8")
        total.update(f"\n{name} {block.shape}\n".encode())
        total.update(block.tobytes())
    return total.hexdigest()


def differences(stored: Numbers, again: Numbers, agreement: float) -> tuple[float, list[str]]:
    """The largest difference of two sets of numbers, and a sentence for each block that doesn't hold.

    A difference is measured as a share of the largest number of its block, or of 1 if that is less. NaN
    equals NaN and nothing else.
    """
    worst, reasons = 0.0, []
    for name in [*again, *(name for name in stored if name not in again)]:
        if name not in stored or name not in again or stored[name].shape != again[name].shape:
            reasons.append(f"{name}: {_shape(stored, name)} in the file, {_shape(again, name)} made again.")
            continue
        ours, theirs = again[name].astype(np.float64), stored[name].astype(np.float64)
        if not ours.size:
            continue
        finite = np.abs(ours[np.isfinite(ours)])
        size = max(1.0, float(finite.max(initial=0.0)))
        with np.errstate(invalid="ignore"):
            share = np.abs(ours - theirs) / size
        share = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, share)
        share = np.where(np.isnan(share), np.inf, share)
        place = np.unravel_index(int(share.argmax()), share.shape)
        found = float(share[place])
        worst = max(worst, found)
        if found > agreement:
            where = f" at {', '.join(map(str, map(int, place)))}" if place else ""
            reasons.append(f"{name}{where}: {theirs[place]:.9g} in the file, {ours[place]:.9g} made again.")
    return worst, reasons


def _shape(numbers: Numbers, name: str) -> str:
    return " x ".join(map(str, numbers[name].shape)) if name in numbers else "nothing"


@cache
def _own_version() -> str:
    import probe

    return probe.__version__


def versions() -> dict[str, str]:
    """Of this package and of what it computes with."""
    return {
        "attention-probe": _own_version(),
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


def _parts(result: Any) -> tuple[Any, ...]:
    """What of a result knows its text, tokens and whether it was cut: two for a comparison of texts."""
    if isinstance(result, TextComparison):
        return result.first, result.second
    return (result.encoding,) if isinstance(result, Comparison) else (result,)


def _words(result: Result) -> tuple[str, ...] | None:
    if not isinstance(result, FoundHeads):
        return None
    return tuple(one.word for one in (result.from_word, result.to_word, result.versus) if one)


def _heads(result: Result) -> tuple[tuple[str, int, int], ...] | None:
    if not isinstance(result, Run) or len(result.maps) == sum(map(sum, result.heads.values())):
        return None
    return tuple(sorted(result.maps))


def _map_dtype(result: Run | MaskComparison | TextComparison) -> torch.dtype:
    if isinstance(result, TextComparison):
        return result.first.weights.dtype
    some = result.causal if isinstance(result, MaskComparison) else next(iter(result.maps.values()))
    return some.dtype


def _coarsest(result: Result, model: Model) -> str:
    """The dtype of the model, or the one that a run's weights were kept in, if that is a smaller one."""
    dtypes = [model.dtype, *([_map_dtype(result)] if isinstance(result, Run) else [])]
    return max((str(one).removeprefix("torch.") for one in dtypes), key=lambda name: AGREEMENT[name])


def _device(model: Model) -> str:
    device = model.device
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


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
}


def _python(manifest: Manifest) -> str:
    """Lines that make the result again."""
    texts = list(manifest.texts)
    given = texts if manifest.what == "texts" else [texts[0] if len(texts) == 1 else texts]
    arguments = ["model", *map(repr, given), *map(repr, manifest.words or ())]
    if manifest.what == "run" and manifest.heads is not None:
        plain = {kind for kind, _, _ in manifest.heads} == {"self"}
        arguments.append(repr([place[1:] if plain else place for place in manifest.heads]))
    if manifest.what in ("trace", "masks", "texts"):
        arguments += [f"layer={manifest.layer}", f"head={manifest.head}"]
    if manifest.query is not None:
        arguments.append(f"query={manifest.query}")
    if manifest.whole_model:
        arguments.append("whole_model=True")
    if manifest.target is not None:
        arguments.append(f"target={manifest.target!r}")
    if manifest.truncate:
        arguments.append("truncate=True")
    torch_line = ["import torch"] if manifest.dtype != "float32" else []
    dtype = f", dtype=torch.{manifest.dtype}" if torch_line else ""
    return "\n".join(
        [
            *torch_line,
            "import probe",
            f"model = probe.load({manifest.model!r}{dtype})",
            f"result = probe.{_CALLS[manifest.what]}({', '.join(arguments)})",
        ]
    )
