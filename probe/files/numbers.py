"""The kinds of results that can be exported, their numbers in named blocks, and how two sets differ."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from probe.analyses.ablate import Ablation, Ranking
from probe.analyses.checks.report import Report
from probe.analyses.compare import Comparison
from probe.analyses.find import FoundHeads
from probe.analyses.masks import MaskComparison
from probe.analyses.measures import MEASURES, HeadMeasures, Rollout
from probe.analyses.predict import Prediction, Predictions
from probe.analyses.rerun import FromScratchRun
from probe.analyses.texts import TextComparison
from probe.analyses.trace import Trace
from probe.running.capture import Run

Result = (
    Run
    | Trace
    | MaskComparison
    | TextComparison
    | Comparison
    | Report
    | HeadMeasures
    | Rollout
    | FoundHeads
    | Ablation
    | Ranking
    | Predictions
    | FromScratchRun
)
# Blocks of numbers by their names.
Numbers = dict[str, np.ndarray]
# (kind, layer, head), where a file holds one head of a comparison of all.
Place = tuple[str, int, int] | None

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
    "ablation": Ablation,
    "ranking": Ranking,
    "predictions": Predictions,
    "from scratch": FromScratchRun,
}


def numbers_of(result: Result, place: Place = None) -> Numbers:
    """All numbers of a result, in named blocks; of one head of a comparison, if it is named."""
    return dict(_numbers(result, place))


def _numbers(result: Result, place: Place) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(result, Run):
        for (kind, layer, head), weights in sorted(result.maps.items()):
            prefix = "" if len(result.heads) == 1 else f"{kind}_"
            yield f"{prefix}layer_{layer}_head_{head}", array(weights)
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
            if place is None or (one.kind, one.layer, one.head) == place:
                prefix = "" if len(result.report.kinds) == 1 else f"{one.kind}_"
                name = f"{prefix}layer_{one.layer}_head_{one.head}"
                yield f"from_scratch_{name}", array(result.from_scratch(one.layer, one.head, one.kind))
                yield f"model_{name}", array(result.from_model(one.layer, one.head, one.kind))
    elif isinstance(result, TextComparison):
        yield "first", array(result.first.weights)
        yield "second", array(result.second.weights)
        yield "moved", array(result.moved)
    elif isinstance(result, Rollout):
        for index, weights in enumerate(result.maps):
            yield f"layer_{index}", array(weights)
    elif isinstance(result, FromScratchRun):
        yield "from_scratch", array(result.from_scratch)
        yield "model", array(result.model)
    elif isinstance(result, Predictions):
        for prediction in result:
            yield from _candidates(f"position_{prediction.position}", prediction)
    elif isinstance(result, Ablation):
        yield "hidden_change", array(result.hidden_change)
        if result.logit_change is not None:
            yield "logit_change", array(result.logit_change)
        for change in result.changes:
            at = f"position_{change.position}"
            for name in ("probability_before", "probability_after", "divergence"):
                yield f"{at}_{name}", array(getattr(change, name))
            yield from _candidates(f"{at}_before", change.before)
            yield from _candidates(f"{at}_after", change.after)
    else:
        yield from head_columns(result).items()
        if isinstance(result, Report):
            yield "output_error", np.array([one.output_error for one in result.layers], dtype=np.float64)


def head_columns(result: Report | HeadMeasures | FoundHeads | Ranking) -> Numbers:
    """A number for each head in each column, the heads in the order of layers; NaN where there is none."""
    heads: list[Any]
    if isinstance(result, Ranking):
        names = ["layer", "head", "effect", "logit_change"]
        heads = sorted((*one.heads[0], one.effect, one.logit_change) for one in result.ablations)
        rows = heads
    else:
        if isinstance(result, Report):
            names = ["max_abs_error", "mean_abs_error", "tolerance", "context_error", "row_sum_error"]
            names += ["query_error", "key_error", "value_error", "forbidden_weight", "loops_error", "passed"]
            heads = list(result.heads)
        else:
            measured = isinstance(result, HeadMeasures)
            names = [one.name for one in MEASURES] if measured else ["weight", "versus", "difference"]
            # An order by nearly equal weights may change.
            heads = sorted(result.heads, key=lambda one: (one.layer, one.head))
        names = ["layer", "head", *names]
        rows = [[getattr(one, name) for name in names] for one in heads]
    return {name: np.array([row[i] for row in rows], dtype=np.float64) for i, name in enumerate(names)}


def _candidates(name: str, prediction: Prediction) -> Iterator[tuple[str, np.ndarray]]:
    for rank, (text, probability) in enumerate(prediction.candidates):
        yield f"{name}_{rank}_{text}", array(probability)


def array(values: torch.Tensor | float) -> np.ndarray:
    """Numbers, none of them rounded: float64 stays, everything smaller becomes float32."""
    if isinstance(values, float):
        return np.array(values)
    wide = torch.float64 if values.dtype == torch.float64 else torch.float32
    block: np.ndarray = values.detach().cpu().to(wide).numpy()
    return block


def text_block(title: str, words: Iterable[object]) -> Numbers:
    """Text that must stay as it is, as a block without numbers: the SHA-256 of it is in the name."""
    spelled = json.dumps([*map(str, words)]).encode()
    return {f"{title} (text {hashlib.sha256(spelled).hexdigest()[:16]})": np.zeros(0)}


_TEXT = re.compile(r"(.*) \(text [0-9a-f]{16}\)", re.DOTALL)


def digest(manifest: Mapping[str, Any], numbers: Numbers) -> str:
    """SHA-256 of a manifest and its numbers: it changes with any of them, and with nothing else."""
    total = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(numbers):
        block = np.ascontiguousarray(numbers[name], dtype="<f8")
        block = np.where(np.isnan(block), np.nan, block)  # one NaN of the many that there are
        total.update(f"\n{name} {block.shape}\n".encode(errors="surrogatepass"))
        total.update(block.tobytes())
    return total.hexdigest()


def differences(stored: Numbers, again: Numbers, agreement: float) -> tuple[float, list[str]]:
    """The largest difference of two sets of numbers, and a sentence for each block that doesn't hold.

    A difference is measured as a share of the largest number of its block, or of 1 if that is less. NaN
    equals NaN and nothing else.
    """
    worst, reasons = 0.0, _other_texts(stored, again)
    for name in [*again, *(name for name in stored if name not in again)]:
        if _TEXT.fullmatch(name):
            continue
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


def _other_texts(stored: Numbers, again: Numbers) -> list[str]:
    """A sentence for each text block that the two don't have alike."""
    changed = (found[1] for name in [*again, *stored] if (found := _TEXT.fullmatch(name)))
    alike = {found[1] for name in again if name in stored and (found := _TEXT.fullmatch(name))}
    titles = [title for title in dict.fromkeys(changed) if title not in alike]
    return [f"{title}: the text in the file is not the one made again." for title in titles]


def _shape(numbers: Numbers, name: str) -> str:
    if name not in numbers:
        return "nothing"
    return " x ".join(map(str, numbers[name].shape)) or "one number"
