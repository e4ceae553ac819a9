"""One run of a model beside the from-scratch computation of every head, for looking at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.attend import Found, OfLayer
from probe.analyses.checks import query_key
from probe.analyses.checks.report import HeadCheck, Report, nan_is_worst
from probe.analyses.checks.weights import Tally, allowed_mask, recompute
from probe.analyses.masks import MaskComparison, masks_of
from probe.analyses.predict import Prediction, predictions_of
from probe.analyses.result import Origin, Place, Result, named, pair_table
from probe.analyses.trace import Trace, trace_of
from probe.display.data import Axis, Cell, Column, MapSet, Numbers, Panel, Sheet, Table, array
from probe.display.nonfinite import nonfinite
from probe.models import backend
from probe.models.kinds import sides, which_kind
from probe.models.loading import Model, resolve
from probe.running.inputs import cuts, encode_for, encode_targets, encode_tensors, tensors_for
from probe.running.recording import Recording, held, record
from probe.running.tokens import Encoding, Text


@dataclass(frozen=True, eq=False)
class Maps:
    """All heads of one attention on one text, on the model's device.

    Attributes
    ----------
    from_scratch, from_model : (H, Tq, Tk), the weights as ``attention`` computes them and as the model did.
    allowed : (H, Tq, Tk), bool, which keys each query may attend to; None for all.
    """

    from_scratch: Tensor
    from_model: Tensor
    allowed: Tensor | None


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result, what="comparison"):
    """All heads of one run on one text, twice. Made by ``compare``; asking it anything runs no model.

    Where a head is asked for, ``kind`` is for models with an encoder and a decoder: "encoder", "decoder" or
    "cross". Their maps are (T, T), (S, S) and (S, T), for T tokens of the source and S of the target.

    Attributes
    ----------
    model : the model that was run.
    report : what ``verify`` says of the same run.
    encoding, target : the tokens of the text, and of what the decoder was given if there is one.
    predictions : the likeliest words, where the head for words was run and the text leaves something to
        predict.
    maps : by kind of attention and layer.
    place : kind, layer and head of the only head that it shows; None for all.
    """

    not_in_dict = ("model", "maps", "encoding", "place", "_recording")
    also_in_dict = ("text", "tokens", "truncated")

    model: Model
    report: Report
    encoding: Encoding
    target: Encoding | None
    predictions: tuple[Prediction, ...]
    maps: Mapping[tuple[str, int], Maps] = field(repr=False)
    _recording: Recording | None = field(repr=False)
    place: Place | None = None

    @property
    def recording(self) -> Recording:
        """All that went into the heads.

        Raises
        ------
        ProbeError
            If where the model's weights lie isn't known, so that it was checked from query and key.
        """
        if self._recording is None:
            raise self.model.not_taken_apart()
        return self._recording

    def from_scratch(self, layer: int, head: int, kind: str | None = None) -> Tensor:
        """The head's weights as ``attention`` computes them: (T, T) on the CPU, [query, key].

        Raises
        ------
        ProbeError
            If there is no such layer, head or kind, or several kinds and none was named.
        """
        return self._maps(layer, head, kind).from_scratch[head].cpu()

    def from_model(self, layer: int, head: int, kind: str | None = None) -> Tensor:
        """The head's weights as the model computed them: (T, T) on the CPU. Raises as ``from_scratch``."""
        return self._maps(layer, head, kind).from_model[head].cpu()

    def difference(self, layer: int, head: int, kind: str | None = None) -> Tensor:
        """Absolute difference of the two: (T, T). Raises as ``from_scratch``."""
        return (self.from_scratch(layer, head, kind) - self.from_model(layer, head, kind)).abs()

    def check(self, layer: int, head: int, kind: str | None = None) -> HeadCheck:
        """What the report says of the head. Raises as ``from_scratch``."""
        self._maps(layer, head, kind)
        place = (kind or self.model.kinds[0], layer, head)
        return next(one for one in self.report.heads if (one.kind, one.layer, one.head) == place)

    def allowed(self, layer: int, head: int, kind: str | None = None) -> Tensor | None:
        """Which keys each query may attend to, (T, T), bool; None for all. Raises as ``from_scratch``."""
        maps = self._maps(layer, head, kind)
        return None if maps.allowed is None else maps.allowed[head].cpu()

    def sides(self, kind: str | None = None) -> tuple[Encoding, Encoding]:
        """Whose tokens the queries and the keys of a kind of attention are."""
        kind = which_kind(self.model.name, self.model.kinds, kind)
        return sides(kind, self.encoding, self.target or self.encoding)

    def layers(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """The run as ``capture.watch`` shows it: layer, (H, T, T) weights, and which keys may be attended to.

        Raises
        ------
        ProbeError
            If the model has several kinds of attention.
        """
        kind = which_kind(self.model.name, self.model.kinds, None)
        for layer in range(self.model.num_layers):
            maps = self.maps[kind, layer]
            yield layer, maps.from_model, maps.allowed

    def watched(self, of_layer: OfLayer[Found]) -> tuple[Origin, Encoding, list[Found]]:
        """What ``attend.watched`` gives of the same run. Raises as ``layers``."""
        return self.origin, self.encoding, [of_layer(self.encoding, *seen) for seen in self.layers()]

    def compare_masks(self, layer: int, head: int, *, other: Recording | None = None) -> MaskComparison:
        """The head under the causal and the bidirectional mask; ``other`` as for ``masking.masks_of``."""
        return masks_of(self.recording, layer, head, other=other)

    def trace(self, layer: int, head: int, query: int) -> Trace:
        """One row of one head, number by number."""
        return trace_of(self.recording, layer, head, query)

    @property
    def nbytes(self) -> int:
        """Memory that its tensors take."""
        return held([*self.maps.values(), *(self._recording.layers if self._recording else ())])

    def _maps(self, layer: int, head: int, kind: str | None) -> Maps:
        kind = which_kind(self.model.name, self.model.kinds, kind)
        self.model.check_head(layer, head, kind)
        return self.maps[kind, layer]

    # ---- as a result

    @property
    def own_report(self) -> Report:
        return self.report

    @property
    def text(self) -> Text:
        """The text."""
        return self.encoding.text

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the text."""
        return self.encoding.tokens

    @property
    def truncated(self) -> str | None:
        """What was cut of the text or the target, or None."""
        return cuts(self.encoding, self.target)

    @property
    def holds_many(self) -> bool:
        return self.place is None

    def only(self, layer: int, head: int, kind: str | None = None) -> Comparison:
        check = self.check(layer, head, kind)
        return replace(self, place=(check.kind, layer, head))

    @property
    def _shown(self) -> list[HeadCheck]:
        """The checks of the heads that it shows."""
        every = self.report.heads
        return [one for one in every if self.place in (None, (one.kind, one.layer, one.head))]

    def _argument(self, name: str) -> Any:
        if name == "target":
            return None if self.target is None else self.target.text
        return getattr(self, name)

    @property
    def summary(self) -> str:
        """The verdict; of one head alone, how far its two maps are apart."""
        if self.place is None:
            return self.report.verdict
        (check,) = self._shown
        where = f"{self.model_name}, {check.place}"
        problem = nonfinite(where, [check.max_abs_error])
        return problem or (
            f"{where}: largest difference of a token's weight {check.max_abs_error:.1e}, tolerance "
            f"{check.tolerance:.1e}: {'the two agree' if check.passed else 'the two do NOT agree'}."
        )

    def blocks(self) -> Numbers:
        """Both maps of each head."""
        several = len(self.report.kinds) > 1
        blocks: Numbers = {}
        for one in self._shown:
            asked = one.layer, one.head, one.kind
            name = f"{f'{one.kind}_' if several else ''}layer_{one.layer}_head_{one.head}"
            blocks[f"from_scratch_{name}"] = array(self.from_scratch(*asked))
            blocks[f"model_{name}"] = array(self.from_model(*asked))
        return blocks

    def table(self) -> Table:
        """A row for each pair of query and key of each head."""
        places = ("kind", "layer", "head") if len(self.report.kinds) > 1 else ("layer", "head")
        cells: dict[str, list[Cell]] = {}
        for one in self._shown:
            asked = one.layer, one.head, one.kind
            sides = (named(side.tokens) for side in self.sides(one.kind))
            pairs = pair_table(*sides, from_scratch=self.from_scratch(*asked), model=self.from_model(*asked))
            for name in places if self.place is None else ():
                cells.setdefault(name, []).extend([getattr(one, name)] * len(pairs))
            for column in pairs.columns:
                cells.setdefault(column.name, []).extend(column.cells)
        return Table(tuple(Column(name, of) for name, of in cells.items()))

    def printed(self) -> tuple[Table, ...]:
        """The heads that agree least."""
        worst = sorted(self._shown, key=lambda one: (one.passed, -nan_is_worst(one.max_abs_error)))
        least = replace(self.report, heads=tuple(worst[:10]), layers=())
        title = "The heads that agree least:" if len(worst) > 10 else ""
        return tuple(replace(table, title=title) for table in least.printed())

    def map_sets(self) -> tuple[MapSet, ...]:
        sets = []
        for kind in self.report.kinds:
            weights = {
                (one.layer, one.head): self.from_model(one.layer, one.head, kind)
                for one in self._shown
                if one.kind == kind
            }
            if weights:
                queries, keys = self.sides(kind)
                sets.append(MapSet(kind, queries.tokens, keys.tokens, weights, "the model's own maps"))
        return tuple(sets)

    def _sheet(self) -> Sheet | None:
        if self.place is None:
            return None
        kind, layer, head = self.place
        asked = layer, head, kind
        allowed, maps = self.allowed(*asked), (self.from_scratch(*asked), self.from_model(*asked))
        queries, keys = self.sides(kind)
        axes = Axis("query", queries.tokens), Axis("key", keys.tokens)
        panels = twice_panels(self.report, *maps, axes, None if allowed is None else ~allowed)
        title = f"{self.model_name} ({self.source}), {self.check(*asked).place}"
        return Sheet(title, panels, (self.summary,))

    def _overview(self) -> Sheet | None:
        return self._sheet() or self.report._sheet()


def twice_panels(
    report: Report, ours: Tensor, theirs: Tensor, axes: tuple[Axis, Axis], masked: Tensor | None
) -> tuple[Panel, Panel, Panel]:
    """The panels of a map from scratch, the model's own, and how far they are apart."""
    here = f"computed here {report.check}, step by step"
    there = "what the model computed in its forward pass"
    apart, ends = (ours - theirs).abs(), report.difference_ends
    scale = "logarithmic scale"
    return (
        Panel("From scratch", "from scratch", ours, *axes, note=here, masked=masked),
        Panel("The model's own", "model", theirs, *axes, note=there, masked=masked),
        Panel("Absolute difference", "difference", apart, *axes, "difference", scale, masked, ends),
    )


@analysis(Comparison, command="compare")
def compare(
    model: Model | str,
    text: Text | Mapping[str, Tensor],
    target: str | None = None,
    *,
    truncate: bool = False,
) -> Comparison:
    """Run a model once on a text and compute every head again from scratch, as ``verify`` does.

    Parameters
    ----------
    text : a text or a pair of texts; for a model of images or sound what its processor returns for one.
    target : for a model with an encoder and a decoder, what it is to produce.

    Raises
    ------
    ProbeError
        As ``verify``.

    Examples
    --------
    >>> comparison = compare("gpt2", "The cat sat on the mat.")
    >>> bool(comparison.difference(layer=4, head=5).max() < 1e-5)
    True
    """
    model = resolve(model)
    if not model.has_sites:
        query_key.check_possible(model)
    if isinstance(text, Mapping):
        return _from_query_and_key(model, tensors_for(model, text))
    encoding = encode_for(model, text, truncate=truncate)
    targets = encode_targets(model, text, target, truncate=truncate)
    if not model.has_sites:
        return _from_query_and_key(model, encoding, *targets)
    return comparison_of(record(model, [encoding], logits=True))


def comparison_of(recording: Recording) -> Comparison:
    """``compare`` for a run of a single text that has been recorded already."""
    model, (encoding,) = recording.model, recording.encodings
    tally, maps = Tally(model, [encoding]), {}
    for again in recompute(recording):
        tally.add(recording, again, [0])
        mask = allowed_mask(recording, again.site.window)
        ours, theirs = again.steps.heads.weights[0], recording.layers[again.layer].weights[0]
        maps["self", again.layer] = Maps(ours, theirs, None if mask is None else mask[0].expand_as(theirs))
    predictions = predictions_of(recording)
    # The scores of the whole vocabulary at every position would be most of what a comparison keeps.
    slim = replace(recording, logits=None)
    report = tally.report()
    return Comparison(model, report, encoding, None, predictions, maps, slim, origin=report.origin)


def _from_query_and_key(
    model: Model, given: Encoding | Mapping[str, Tensor], target: Encoding | None = None
) -> Comparison:
    maps: dict[tuple[str, int], Maps] = {}

    def keep(here: backend.Attention, call: backend.Call, ours: Tensor, theirs: Tensor) -> None:
        allowed = None if call.mask is None else call.mask.expand_as(theirs)[0]
        maps[here.kind, here.layer] = Maps(ours[0], theirs[0], allowed)

    if isinstance(given, Encoding):
        report, encoding = query_key.check_texts(model, [given], [target] if target else [], keep), given
    else:
        report = query_key.check_tensors(model, dict(given), keep)
        encoding, target = encode_tensors(model, given, maps[model.kinds[0], 0].from_model.shape[-1])
    return Comparison(model, report, encoding, target, (), maps, None, origin=report.origin)
