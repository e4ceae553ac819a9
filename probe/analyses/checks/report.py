"""What a check found, head by head, and how several batches become one report.

There are two checks. "From the weights" computes a head a second time from the layer's input, with a copy of
its weights (``weights.py``). "From query and key" computes it from the queries and keys that the model
itself made (``query_key.py``), where it isn't known where its weights lie. Both fill in the same report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from probe.analyses.result import Origin, Result, columns_of
from probe.display.data import Column, Numbers, Panel, Sheet, Table, heads_panel
from probe.display.nonfinite import nonfinite
from probe.models.kinds import sides
from probe.models.loading import Model
from probe.running.inputs import cuts
from probe.running.tokens import Encoding, Text

FROM_WEIGHTS, FROM_QUERY_AND_KEY = "from the weights", "from query and key"


@dataclass(frozen=True)
class Cell:
    """One entry of one attention map: where it is, what its tokens are called, and what both sides say."""

    text: int
    query: int
    key: int
    query_token: str
    key_token: str
    from_scratch: float
    model: float

    @property
    def place(self) -> str:
        """Where it is, in words: query and key."""
        return f"{self.query} {self.query_token}, {self.key} {self.key_token}"


@dataclass(frozen=True)
class Exceeded:
    """An error that is beyond its bound, of the batch of texts where it is farthest beyond.

    Attributes
    ----------
    name : as in ``HeadCheck.failed``.
    error, bound : absolute; for "weights" these are max_abs_error and tolerance.
    """

    name: str
    error: float
    bound: float

    @property
    def by(self) -> float:
        """How many times its bound it is; NaN, and anything where nothing is allowed, is the most."""
        return self.error / self.bound if self.bound > 0 and not math.isnan(self.error) else math.inf

    def __str__(self) -> str:
        error = "not a number" if math.isnan(self.error) else f"{self.error:.1e}"
        return f"{self.name} {error} (bound {self.bound:.1e})"


@dataclass(frozen=True)
class HeadCheck:
    """One head, over all texts. Errors are absolute differences between the model and the computation from
    scratch; each is the largest of any text.

    Attributes
    ----------
    layer, head : counted from 0.
    max_abs_error, mean_abs_error : of the attention weights; the mean is over the cells a query may attend
        to.
    tolerance : what max_abs_error may be, see ``weights.Bounds`` and ``query_key``. Texts that were run
        in several batches have several: this is that of a batch whose weights are off, or else of the batch
        with the largest error.
    worst : the cell with the largest error; in a head that has failed that of a batch in which it did.
    query_error, key_error, value_error : of the projected vectors, largest entry; None in a check from query
        and key.
    context_error : of the head's output before the output projection, largest entry.
    forbidden_weight : the largest weight the model put on a key that the query may not attend to (a later
        token of a causal model, padding of a shorter text); None where nothing is forbidden. It must be
        exactly 0.
    row_sum_error : how far the model's rows are from the sum they must have: 1, or less in a model with
        sinks.
    loops_error : largest difference of the model's weights from ``attention_by_loops`` in float64, on a few
        rows; None for heads outside the sample.
    failed : which of these are not within their bounds: "weights" (max_abs_error), "query", "key", "value",
        "context", "forbidden weight", "row sums", "loops".
    exceeded : the same with their errors and bounds.
    passed : whether none has failed.
    kind : of attention: "self"; in a model with an encoder and a decoder "encoder", "decoder" or "cross".
    """

    layer: int
    head: int
    max_abs_error: float
    mean_abs_error: float
    tolerance: float
    worst: Cell
    query_error: float | None
    key_error: float | None
    value_error: float | None
    context_error: float
    forbidden_weight: float | None
    row_sum_error: float
    loops_error: float | None
    failed: tuple[str, ...]
    passed: bool
    kind: str = "self"
    exceeded: tuple[Exceeded, ...] = ()

    @property
    def place(self) -> str:
        """Which head it is, in words."""
        return f"{_layer(self)}, head {self.head}"


@dataclass(frozen=True)
class LayerCheck:
    """One layer's attention output, after the output projection and before the residual connection.

    ``tolerance`` is that of the batch in which it failed, or else of the one with the largest error.
    """

    layer: int
    output_error: float
    tolerance: float
    passed: bool
    kind: str = "self"

    @property
    def place(self) -> str:
        """Which layer it is, in words."""
        return _layer(self)


@dataclass(frozen=True, repr=False)
class Report(Result, what="report"):
    """What ``verify`` found, head by head. Printing it shows a table.

    Attributes
    ----------
    check : which check it was: "from the weights" or "from query and key".
    max_abs_error : the largest error of any attention weight.
    tolerance : the largest tolerance of any head.
    heads : of each kind of attention, in the order of layers.
    layers : of the outputs of whole layers; none in a check from query and key, which ends before them.
    texts, tokens, num_tokens : what was given. For an image or a recording the name and shape of its tensor.
    targets, target_tokens : what the decoder was given, its start token first; none without a decoder.
    leftover : a sentence on weights of the file that the network leaves out, if there are such.
    truncated : for each text a sentence saying what was cut of it or its target, or None.
    matmul_precision : of float32 products.
    """

    also_in_dict = ("verdict",)

    check: str
    passed: bool
    max_abs_error: float
    tolerance: float
    heads: tuple[HeadCheck, ...]
    layers: tuple[LayerCheck, ...]
    texts: tuple[Text, ...]
    tokens: tuple[tuple[str, ...], ...]
    num_tokens: tuple[int, ...]
    targets: tuple[Text, ...]
    target_tokens: tuple[tuple[str, ...], ...]
    truncated: tuple[str | None, ...]
    matmul_precision: str
    leftover: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The full name of the model."""
        return self.origin.model

    @property
    def revision(self) -> str | None:
        """The commit on the Hub, where there is one."""
        return self.origin.revision

    @property
    def sha256(self) -> str | None:
        """SHA-256 of the weights."""
        return self.origin.sha256

    @property
    def device(self) -> str:
        """What it was computed on."""
        return self.origin.device

    @property
    def dtype(self) -> str:
        """What it was computed in."""
        return self.origin.dtype

    @property
    def backend(self) -> str:
        """Whose attention ran."""
        return self.origin.backend

    @property
    def versions(self) -> Mapping[str, str]:
        """Of what it was computed with."""
        return self.origin.versions

    @property
    def cuts(self) -> tuple[str, ...]:
        if len(self.truncated) == 1:
            return tuple(cut for cut in self.truncated if cut)
        return tuple(f"Text {index}: {cut}" for index, cut in enumerate(self.truncated) if cut)

    @property
    def own_report(self) -> Report:
        return self

    @property
    def all_texts(self) -> tuple[Text, ...]:
        return self.texts

    @property
    def all_tokens(self) -> None:
        return None

    def _argument(self, name: str) -> Any:
        return list(self.texts) if name == "text_or_texts" else [*map(str, self.targets)] or None

    @property
    def summary(self) -> str:
        """The verdict."""
        return self.verdict

    @property
    def remarks(self) -> tuple[str, ...]:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        how = f"{self.device}, {self.dtype}, {self.backend}"
        return (f"{self.given}; {self.source}; {how}; {versions}",)

    def blocks(self) -> Numbers:
        """A block for each column of the heads, and the errors of whole layers."""
        errors = np.array([one.output_error for one in self.layers], dtype=np.float64)
        return {**super().blocks(), "output_error": errors}

    def table(self) -> Table:
        """A row for each head."""
        kinds = ("kind",) if len(self.kinds) > 1 else ()
        return Table(columns_of(self.heads, (*kinds, *_COLUMNS)))

    def printed(self) -> tuple[Table, ...]:
        """A line a head, and one a layer."""
        small = {"max_abs_error": "max error", "mean_abs_error": "mean error", "tolerance": "tolerance"}
        heads = [
            *columns_of(self.heads, (*(["kind"] if len(self.kinds) > 1 else []), "layer", "head")),
            *columns_of(self.heads, small, ".1e"),
            Column("worst", [one.worst.place for one in self.heads], "worst at query, key"),
            Column("forbidden", [_forbidden(one) for one in self.heads]),
            *columns_of(self.heads, {"loops_error": "loops"}, ".1e"),
            Column("", [_mark(one) for one in self.heads]),
            Column(
                "exceeded", [", ".join(map(str, one.exceeded)) for one in self.heads], "not within bounds"
            ),
        ]
        if self.heads and all(one.passed for one in self.heads):
            heads.pop()  # a column without anything in it
        layers = [
            *columns_of(self.layers, ("layer",)),
            *columns_of(self.layers, {"output_error": "output error", "tolerance": "tolerance"}, ".1e"),
            Column("", [_mark(one) for one in self.layers]),
        ]
        tables = Table(tuple(heads)), Table(tuple(layers))
        return tables if self.layers else tables[:1]

    def _sheet(self) -> Sheet:
        """The largest error of every head on a logarithmic scale; those that failed are crossed."""
        panels = tuple(self._errors(kind) for kind in self.kinds)
        return Sheet(f"{self.model} ({self.source})", panels, (self.verdict,))

    def _errors(self, kind: str) -> Panel:
        checks = [check for check in self.heads if check.kind == kind]
        panel = heads_panel(
            f"{'' if kind == 'self' else f'{kind}: '}largest difference of an attention weight",
            {(check.layer, check.head): check.max_abs_error for check in checks},
            f"each has a tolerance of its own, at most {self.tolerance:.1e}",
            kind="difference",
            crossed={(check.layer, check.head): not check.passed for check in checks},
            crossed_means="did not pass",
        )
        return replace(panel, short="largest difference", ends=self.difference_ends)

    @property
    def difference_ends(self) -> tuple[float, float]:
        """Ends of a logarithmic scale for differences: five decades, the tolerance in the last but one."""
        # Of a model whose numbers are NaN no tolerance is known.
        top = math.ceil(math.log10(self.tolerance)) + 1 if math.isfinite(self.tolerance) else -4
        return 10.0 ** (top - 5), 10.0**top

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of attention that were checked: "self", or "encoder", "decoder" and "cross"."""
        return tuple(dict.fromkeys(head.kind for head in self.heads))

    @property
    def given(self) -> str:
        """How much was given, in words."""
        texts = "1 text" if len(self.texts) == 1 else f"{len(self.texts)} texts"
        decoded = sum(map(len, self.target_tokens))
        of_targets = f" and {decoded} of the target{'s'[: len(self.targets) > 1]}" if self.targets else ""
        return f"{texts}, {sum(self.num_tokens)} tokens{of_targets}"

    @property
    def failures(self) -> list[HeadCheck | LayerCheck]:
        """The heads and layers that did not pass."""
        checks: list[HeadCheck | LayerCheck] = [*self.heads, *self.layers]
        return [check for check in checks if not check.passed]

    @property
    def verdict(self) -> str:
        """The result in one line."""
        return " ".join((self._result, f"Checked {self.check}.", *self.leftover))

    @property
    def _result(self) -> str:
        failed = [head for head in self.heads if not head.passed]
        if self.passed:
            worst = max(self.heads, key=lambda head: nan_is_worst(head.max_abs_error))
            return (
                f"All {len(self.heads)} heads of {self.model} agree: largest difference "
                f"{worst.max_abs_error:.1e} ({worst.place}), tolerance {worst.tolerance:.1e}."
            )
        named = ", ".join(self._failed_layers())
        # What a head's values are off by shows in no weight, and a sound weight may be the worst one.
        off = [(one.worst.model, one.query_error, one.key_error, one.value_error) for one in failed]
        outputs = [one.output_error for one in self.layers]
        sentence = nonfinite(self.model, (*chain(*off), *outputs))
        problem = f" {sentence}" if sentence else ""
        if not failed:
            output = max((layer for layer in self.layers if not layer.passed), key=_severity)
            return (
                f"All {len(self.heads)} heads of {self.model} agree, but the attention's output does "
                f"NOT, in {named}: largest difference {output.output_error:.1e} ({output.place}), "
                f"tolerance {output.tolerance:.1e}."
            ) + problem
        what = ", ".join(map(str, farthest(one for head in failed for one in head.exceeded)))
        farthest_off = max(failed, key=lambda head: max((one.by for one in head.exceeded), default=0.0))
        return (
            f"{len(failed)} of {len(self.heads)} heads of {self.model} do NOT agree, in {named}: "
            f"{farthest_off.place} is farthest off. Not within bounds: {what}."
        ) + problem

    def _failed_layers(self) -> list[str]:
        """For each kind of attention the layers that have failed: "layers 0, 2"."""
        named = []
        for kind in self.kinds:
            layers = sorted({check.layer for check in self.failures if check.kind == kind})
            if layers:
                numbers = ", ".join(map(str, layers[:8])) + (", ..." if len(layers) > 8 else "")
                name = "" if kind == "self" else f"{kind} "
                named.append(f"{name}layer{'s' if len(layers) > 1 else ''} {numbers}")
        return named


_COLUMNS = (
    *("layer", "head", "max_abs_error", "mean_abs_error", "tolerance", "context_error", "row_sum_error"),
    *("query_error", "key_error", "value_error", "forbidden_weight", "loops_error", "passed"),
)


def _forbidden(check: HeadCheck) -> str:
    weight = check.forbidden_weight
    return "" if weight is None else f"{weight:.1e}" if weight else "0"


def _mark(check: HeadCheck | LayerCheck) -> str:
    return "ok" if check.passed else "FAILED"


class Findings:
    """Collects what every batch shows about every head, and makes the report of it."""

    def __init__(
        self, model: Model, check: str, encodings: Sequence[Encoding], targets: Sequence[Encoding] = ()
    ) -> None:
        self.model, self.check = model, check
        self.encodings, self.targets = tuple(encodings), tuple(targets)
        self.heads: dict[tuple[str, int, int], HeadCheck] = {}
        self.cells: dict[tuple[str, int, int], int] = {}
        self.layers: dict[tuple[str, int], LayerCheck] = {}

    def judge(
        self,
        place: tuple[str, int, int],
        found: Mapping[str, Any],
        spot: tuple[int, int, int],
        cells: int,
        limits: Mapping[str, float],
        loops: float | None,
    ) -> None:
        """Put in what a batch shows of one head, from how far the two computations are apart.

        Parameters
        ----------
        place : kind, layer and head.
        found : what ``compare_maps`` finds, and "context", a number a head each; "query", "key" and "value"
            where they are compared; "forbidden" None where nothing is.
        spot : (text, query, key) of the largest difference of a weight.
        cells : how many cells of the map count.
        limits : what each error may be, by its name in ``HeadCheck.failed``.
        loops : the error of the loops, if this head is in the sample.
        """
        kind, layer, head = place

        def of(name: str) -> Any:
            return None if found.get(name) is None else found[name][head]

        errors = {
            **{name: of(name) for name in ("weights", "query", "key", "value", "context")},
            "row sums": of("row_sum"),
            "loops": loops,
            "forbidden weight": of("forbidden"),
        }
        limits = {**limits, "forbidden weight": 0.0}
        # Written so that a NaN fails.
        exceeded = tuple(
            Exceeded(name, error, limits[name])
            for name, error in errors.items()
            if error is not None and not error <= limits[name]
        )
        text, query, key = spot
        rows, columns = sides(kind, self.encodings, self.targets)
        check = HeadCheck(
            layer=layer,
            head=head,
            max_abs_error=errors["weights"],
            mean_abs_error=of("total") / cells,
            tolerance=limits["weights"],
            worst=Cell(
                text=text,
                query=query,
                key=key,
                query_token=rows[text].tokens[query],
                # A model that looks at padding can be worst there.
                key_token=columns[text].tokens[key] if key < len(columns[text]) else "padding",
                from_scratch=of("ours"),
                model=of("theirs"),
            ),
            query_error=errors["query"],
            key_error=errors["key"],
            value_error=errors["value"],
            context_error=errors["context"],
            forbidden_weight=errors["forbidden weight"],
            row_sum_error=errors["row sums"],
            loops_error=loops,
            failed=tuple(one.name for one in exceeded),
            passed=not exceeded,
            kind=kind,
            exceeded=exceeded,
        )
        self.add_head(check, cells)

    def add_head(self, check: HeadCheck, cells: int) -> None:
        """Put in what a batch shows of a head: the worst of each error, the mean over all cells."""
        place = check.kind, check.layer, check.head
        known = self.heads.get(place)
        if known is None:
            self.heads[place], self.cells[place] = check, cells
            return
        total = self.cells[place] + cells
        off = max(known, check, key=lambda one: ("weights" in one.failed, nan_is_worst(one.max_abs_error)))
        errors = ("max_abs", "query", "key", "value", "context", "row_sum", "loops")
        names = (*(f"{name}_error" for name in errors), "forbidden_weight")
        exceeded = farthest(chain(known.exceeded, check.exceeded))
        self.heads[place] = replace(
            max(known, check, key=_severity),
            **{name: largest(getattr(known, name), getattr(check, name)) for name in names},
            tolerance=off.tolerance,
            mean_abs_error=(known.mean_abs_error * self.cells[place] + check.mean_abs_error * cells) / total,
            failed=tuple(one.name for one in exceeded),
            exceeded=exceeded,
        )
        self.cells[place] = total

    def add_layer(self, check: LayerCheck) -> None:
        """Put in what a batch shows of a layer's output."""
        place = check.kind, check.layer
        known = self.layers.get(place, check)
        self.layers[place] = replace(
            max(known, check, key=_severity), output_error=largest(known.output_error, check.output_error)
        )

    def report(self) -> Report:
        def in_order(place: tuple[Any, ...]) -> tuple[int, ...]:
            kind, *numbers = place
            return self.model.kinds.index(kind), *numbers

        heads = tuple(self.heads[place] for place in sorted(self.heads, key=in_order))
        layers = tuple(self.layers[place] for place in sorted(self.layers, key=in_order))
        pairs = zip(self.encodings, self.targets or [None] * len(self.encodings), strict=True)
        return Report(
            check=self.check,
            passed=all(head.passed for head in heads) and all(layer.passed for layer in layers),
            max_abs_error=largest(*(head.max_abs_error for head in heads)),
            tolerance=largest(*(head.tolerance for head in heads)),
            heads=heads,
            layers=layers,
            texts=tuple(encoding.text for encoding in self.encodings),
            tokens=tuple(encoding.tokens for encoding in self.encodings),
            num_tokens=tuple(len(encoding) for encoding in self.encodings),
            targets=tuple(target.text for target in self.targets),
            target_tokens=tuple(target.tokens for target in self.targets),
            truncated=tuple(cuts(encoding, target) for encoding, target in pairs),
            matmul_precision="highest",
            leftover=self.model.leftover_warning,
            origin=Origin.of(self.model, "eager"),
        )


def _layer(check: HeadCheck | LayerCheck) -> str:
    return f"{'' if check.kind == 'self' else f'{check.kind} '}layer {check.layer}"


def _severity(check: HeadCheck | LayerCheck) -> tuple[bool, float]:
    """Failed before passed, then by the error; NaN is the worst."""
    error = check.max_abs_error if isinstance(check, HeadCheck) else check.output_error
    return not check.passed, nan_is_worst(error)


def farthest(exceeded: Iterable[Exceeded]) -> tuple[Exceeded, ...]:
    """Of each name the one that is farthest beyond its bound, in the order in which they come."""
    worst: dict[str, Exceeded] = {}
    for one in exceeded:
        if one.name not in worst or one.by > worst[one.name].by:
            worst[one.name] = one
    return tuple(worst.values())


def nan_is_worst(value: float) -> float:
    """A number to order errors by."""
    return math.inf if math.isnan(value) else value


def largest(*values: Any) -> Any:
    """The largest number; NaN if there is one, None if there are only Nones."""
    numbers = [value for value in values if value is not None]
    return max(numbers, key=nan_is_worst) if numbers else None
