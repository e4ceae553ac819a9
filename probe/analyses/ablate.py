"""What a head does: switch it off, or give it the other mask, and see what changes further on.

A large weight is not yet an effect: what a head reads may be ignored by everything after it. Here the model
is run twice, once as it is and once with the heads changed, and what it gives in the end is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, get_args, overload

import torch
from torch import Tensor, nn

from attention import scaled_dot_product_attention, softmax
from probe.analyses.asking import analysis
from probe.analyses.labels import (
    LabelChange,
    classifies,
    label_changes,
    label_in_question,
    label_number,
    written,
)
from probe.analyses.over_texts import Averaging, OverTexts, Progress, ask_each
from probe.analyses.predict import Prediction, predicted_rows, prediction_at, prediction_panel
from probe.analyses.result import Origin, columns_of, named, of_text
from probe.display.data import Axis, Column, Numbers, Panel, PanelKind, Sheet, Table, array, heads_panel
from probe.display.nonfinite import descending, nonfinite
from probe.errors import ProbeError
from probe.models import backend
from probe.models.families import ROLES, Site
from probe.models.loading import Model, resolve
from probe.models.visibility import allowed_keys
from probe.running.capture import check_heads
from probe.running.inputs import batch_inputs, listed
from probe.running.tokens import Encoding, Text

How = Literal["zero", "mean", "other mask"]
# Rows of one text are run together up to so many tokens: less than a second's work of the usual models.
_TOKENS_AT_ONCE = 1024
# What becomes of a head, in words.
DOES: dict[How, str] = {
    "zero": "switched off",
    "mean": "set to its mean",
    "other mask": "under the other mask",
}


@dataclass(frozen=True)
class Change:
    """One place where the model predicts a word, before and after.

    Attributes
    ----------
    position : as in ``Prediction``.
    before, after : the likeliest words of each run, with their probabilities.
    favourite : the likeliest word of the run as it is.
    probability_before, probability_after : of that word.
    divergence : Kullback-Leibler divergence of the second run's distribution from the first's, in nats.
    """

    position: int
    before: Prediction
    after: Prediction
    favourite: str
    probability_before: float
    probability_after: float
    divergence: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        candidates = {name: plain[name].to_dict()["candidates"] for name in ("before", "after")}
        return plain | candidates


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(Averaging, what="ablation"):
    """A run with some heads changed beside the run as it is. Made by ``ablate``.

    Attributes
    ----------
    text, tokens, truncated : as in a ``Run``; T tokens.
    heads : the (layer, head) pairs that were changed.
    how : "zero", "mean" or "other mask", see ``ablate``.
    changes : one for each place where the model predicts a word; empty if it has no head for words or the
        text leaves nothing to predict.
    logit_change : largest absolute change of a logit at those places, or of a classifier's label; None if
        there are none.
    hidden_change : (T,), how far each token's last hidden state moved, relative to its length: |after -
        before| / |before|.
    labels : of a sequence classifier, each label before and after; else empty.
    label : the name or number of the label that was asked for, or None.
    shown_label : the number of the label in question: the one that was asked for, else the likeliest of the
        run as it is, else the value that changes most; None for a model without labels.
    """

    also_in_dict = ("effect", "summary")
    averaged_by: ClassVar[tuple[str, ...]] = ()
    ranked_by: ClassVar[str] = "effect"

    text: Text
    tokens: tuple[str, ...]
    truncated: str | None
    heads: tuple[tuple[int, int], ...]
    how: How
    changes: tuple[Change, ...]
    logit_change: float | None
    hidden_change: Tensor
    labels: tuple[LabelChange, ...] = ()
    label: str | int | None = None
    shown_label: int | None = None

    @property
    def effect(self) -> float:
        """One number to rank by: the absolute change of the label in question, else the largest divergence of
        a prediction, else change of a hidden state; NaN where one of them is."""
        if self.change is not None:
            return abs(self.change)
        divergences = [change.divergence for change in self.changes]
        of_all = torch.tensor(divergences, dtype=torch.float64) if divergences else self.hidden_change
        return float(of_all.max())

    @property
    def change(self) -> float | None:
        """Of the label in question, after - before; None for a model without labels."""
        return None if self.shown_label is None else self.labels[self.shown_label].change

    @property
    def question(self) -> str:
        named = ", ".join(f"layer {layer} head {head}" for layer, head in self.heads[:4])
        more = f" and {len(self.heads) - 4} more" if len(self.heads) > 4 else ""
        return f"{named}{more} {DOES[self.how]}"

    @property
    def summary(self) -> str:
        """The outcome in one line."""
        changed = f"{self.model_name} with {self.question}"
        problem = nonfinite(changed, [self.effect])
        if problem:
            return problem
        if self.shown_label is not None:
            one = self.labels[self.shown_label]
            what = f"label {one}"
            first = max(self.labels, key=lambda label: label.after)
            if one.unit == "probability" and first.after > one.after:
                what += f'; the likeliest is then "{first.label}", {written(first.after, one.unit)}'
        elif self.changes:
            worst = max(self.changes, key=lambda change: change.divergence)
            what = (
                f'"{worst.favourite}" goes from {worst.probability_before:.1%} to '
                f"{worst.probability_after:.1%} (divergence {worst.divergence:.3g} nats)"
            )
        else:
            token = int(self.hidden_change.argmax())
            what = (
                f"the last hidden state moves most at {token} {self.tokens[token]}, "
                f"by {float(self.hidden_change[token]):.1%}"
            )
        return f"{changed}: {what}."

    def _argument(self, name: str) -> Any:
        return list(self.heads) if name == "heads" else getattr(self, name)

    def blocks(self) -> Numbers:
        """How far each token moved, and at each place the probabilities of both runs."""
        blocks = {"hidden_change": array(self.hidden_change)}
        if self.logit_change is not None:
            blocks["logit_change"] = array(self.logit_change)
        for index, one in enumerate(self.labels):
            for name in ("before", "after"):
                blocks[f"label_{index}_{one.label}_{name}"] = array(getattr(one, name))
        for change in self.changes:
            at = f"position_{change.position}"
            for name in ("probability_before", "probability_after", "divergence"):
                blocks[f"{at}_{name}"] = array(getattr(change, name))
            for name in ("before", "after"):
                candidates = getattr(change, name).candidates
                blocks |= {
                    f"{at}_{name}_{rank}_{text}": array(share)
                    for rank, (text, share) in enumerate(candidates)
                }
        return blocks

    def averages(self) -> Table:
        """One row: the effect, the changes of logits and hidden states, and of each label."""
        numbers = {
            "effect": self.effect,
            "logit_change": self.logit_change,
            "hidden_change": float(self.hidden_change.mean()),
        }
        labels = (
            Column(f"label_{index}_change", [one.change], f"change of {one.label}")
            for index, one in enumerate(self.labels)
        )
        notes = ("hidden_change: of a token's last hidden state, the mean over tokens.",)
        return Table((*(Column(name, [one]) for name, one in numbers.items()), *labels), notes=notes)

    def table(self) -> Table:
        """Of a classifier a row for each label; else a row for each token: how far its hidden state moved."""
        if self.labels:
            numbers = columns_of(self.labels, ("before", "after", "change"), ".4f")
            return Table((Column("label", [one.label for one in self.labels]), *numbers))
        return Table(
            (
                Column("token", named(self.tokens)),
                Column("hidden change", self.hidden_change.tolist(), digits=".4f"),
            )
        )

    def printed(self) -> tuple[Table, ...]:
        """The labels of a classifier; else nothing beyond the summary."""
        return (self.table(),) if self.labels else ()

    def _sheet(self) -> Sheet:
        """How far each token moved, and the likeliest words of each place in both runs."""
        bars = Panel(
            "Change of each token's last hidden state",
            "hidden state",
            self.hidden_change,
            Axis("token", self.tokens),
            Axis("", ("change",)),
            "bars",
            "relative to its length",
        )
        predicted = [
            replace(prediction_panel(one), title=f"Predicted at position {one.position}, {when}")
            for change in self.changes
            for one, when in ((change.before, "as it is"), (change.after, "changed"))
        ]
        panels = (bars, *self._label_panels(), *predicted)
        return Sheet(f"{self.model_name} ({self.source})", panels, (self.summary,))

    def _label_panels(self) -> tuple[Panel, ...]:
        """The probability of each label in both runs; of values, which have no scale, how far each moved."""
        if not self.labels:
            return ()
        if self.labels[0].unit == "value":
            moved = [abs(one.change) for one in self.labels]
            wanted = [("Change of each value, absolute", "change", moved)]
        else:
            wanted = [
                (f"Probability of each label, {when}", name, [getattr(one, name) for one in self.labels])
                for name, when in (("before", "as it is"), ("after", "changed"))
            ]
        names = tuple(one.label for one in self.labels)
        return tuple(
            Panel(
                title,
                short,
                torch.tensor(numbers, dtype=torch.float64),
                Axis("label", names),
                Axis("", (short,)),
                "bars",
            )
            for title, short, numbers in wanted
        )


@dataclass(frozen=True, eq=False, repr=False)
class Ranking(Averaging, what="ranking"):
    """The heads of a model by their effect on one text, largest first, NaN last: one ablation each."""

    not_in_dict = ("ablations",)
    also_in_dict = ("text", "tokens", "truncated", "how", "label", "heads")
    ranked_by: ClassVar[str] = "effect"
    scales: ClassVar[Mapping[str, PanelKind]] = {"change": "change"}

    ablations: tuple[Ablation, ...]

    @property
    def how(self) -> How:
        """What each head gave instead."""
        return self.ablations[0].how

    @property
    def label(self) -> str | int | None:
        """The label that was asked for, as in an ``Ablation``."""
        return self.ablations[0].label

    @property
    def question(self) -> str:
        of = "" if self.label is None else f", by label {self.label}"
        return f"each head {DOES[self.how]} alone{of}"

    @property
    def text(self) -> Text:
        return self.ablations[0].text

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.ablations[0].tokens

    @property
    def truncated(self) -> str | None:
        return self.ablations[0].truncated

    @property
    def heads(self) -> list[dict[str, Any]]:
        """Each head with its effect, as ``to_dict`` has them."""
        return [
            {
                "layer": layer,
                "head": head,
                "effect": one.effect,
                "summary": one.summary,
                **({"labels": [label.to_dict() for label in one.labels]} if one.labels else {}),
            }
            for one in self.ablations
            for layer, head in one.heads
        ]

    @property
    def summary(self) -> str:
        """The head that matters most, in one line."""
        return f"All heads of {self.model_name}, each changed alone. The first: {self.ablations[0].summary}"

    @property
    def remarks(self) -> tuple[str, ...]:
        whose = f"{self.model_name} with some heads changed"
        problem = nonfinite(whose, [one.effect for one in self.ablations])
        return (problem,) if problem else ()

    def _rows(self, ablations: Sequence[Ablation]) -> Table:
        layers, heads = zip(*(one.heads[0] for one in ablations), strict=True)
        places = Column("layer", layers), Column("head", heads)
        changes = ("change",) if ablations[0].labels else ()
        return Table((*places, *columns_of(ablations, ("effect", "logit_change", *changes), ".4g")))

    def table(self) -> Table:
        """A row for each head, in the order of layers."""
        return self._rows(sorted(self.ablations, key=lambda one: one.heads))

    def printed(self) -> tuple[Table, ...]:
        """The heads as they are ranked, and what each changed."""
        changed = Column("what changed", [one.summary for one in self.ablations])
        return (Table((*self._rows(self.ablations).columns, changed)),)

    def _sheet(self) -> Sheet:
        """The effect of each head: a row for each layer, a column for each head."""
        first = self.ablations[0]
        unit = "divergence in nats" if first.changes else "change of a hidden state"
        if first.shown_label is not None:
            one = first.labels[first.shown_label]
            unit = f'change of the {one.unit} of "{one.label}", absolute'
        effects = {one.heads[0]: one.effect for one in self.ablations}
        panel = heads_panel("Effect of each head, changed alone", effects, unit, up_to_one=False)
        return Sheet(f"{self.model_name} ({self.source}), heads by their effect", (panel,), (self.summary,))


@overload
def ablate(
    model: Model | str,
    text: Text,
    heads: Sequence[tuple[int, int] | int],
    how: How = "zero",
    *,
    label: str | int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Ablation: ...


@overload
def ablate(
    model: Model | str,
    text: list[str] | list[tuple[str, str]] | list[Text],
    heads: Sequence[tuple[int, int] | int],
    how: How = "zero",
    *,
    label: str | int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> OverTexts[Ablation]: ...


@analysis(Ablation)
def ablate(
    model: Model | str,
    text: Text | Sequence[Text],
    heads: Sequence[tuple[int, int] | int],
    how: How = "zero",
    *,
    label: str | int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Ablation | OverTexts[Ablation]:
    """Change some heads of a model, and compare what it gives in the end with what it gives as it is.

    What it gives in the end are the words it predicts and its last hidden states; of a sequence classifier,
    the probability of each of its labels, or its values.

    Parameters
    ----------
    text : a text, or (first, second) for a model that takes sentence pairs; or a list of either, for what is
        changed in each and the means.
    heads : (layer, head) pairs, or the numbers of whole layers, counted from 0.
    how
        "zero": the head's context vectors are replaced by zeros, before the output projection. The same as
        setting the head's columns of the output projection to zero. "mean": by their mean over the text's
        tokens, so that the head says the same at every position. "other mask": the head attends under the
        mask the model was not trained with, as in ``compare_masks``: a window stays.
    label : of a sequence classifier, the label whose change is the effect, by its name or number; by default
        the likeliest of the model as it is.
    truncate : cut a text that is longer than the model's positions; the result then says so.
    progress : of a list, called with the number of texts done and their number.

    Raises
    ------
    ProbeError
        If there is no such model, layer, head, way or label, the text can't be taken, or the model as it is
        computes numbers that are not finite.

    References
    ----------
    Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 2.2, for heads set to zero.
    """
    model = resolve(model)
    chosen = _chosen(model, heads, how, label)

    def ask(model: Model, encoding: Encoding) -> Ablation:
        before = _as_it_is(model, encoding)
        (after,) = _outcomes(model, encoding, [chosen], how)
        return _compared(model, encoding, chosen, how, label, before, after)

    return ask_each(model, text, ask, truncate=truncate, progress=progress)


@overload
def rank_heads(
    model: Model | str,
    text: Text,
    how: How = "zero",
    *,
    label: str | int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Ranking: ...


@overload
def rank_heads(
    model: Model | str,
    text: list[str] | list[tuple[str, str]] | list[Text],
    how: How = "zero",
    *,
    label: str | int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> OverTexts[Ranking]: ...


@analysis(Ranking)
def rank_heads(
    model: Model | str,
    text: Text | Sequence[Text],
    how: How = "zero",
    *,
    label: str | int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Ranking | OverTexts[Ranking]:
    """Every head of a model changed alone, ranked by what it changes.

    ``progress`` is called with the number of heads done and their number in all, those of all texts together.
    The other parameters are those of ``ablate``, and so are the errors.
    """
    model = resolve(model)
    _chosen(model, [0], how, label)
    places = [
        (layer, head) for layer in range(model.num_layers) for head in range(model.heads_per_layer[layer])
    ]
    # Networks that look for the last token of each row need a padding token where there are several.
    alone = classifies(model) and model.hf.config.pad_token_id is None
    if not isinstance(text, (str, tuple)):
        text = listed(text)
    total = len(places) * (len(text) if isinstance(text, list) else 1)
    done = 0

    def ask(model: Model, encoding: Encoding) -> Ranking:
        nonlocal done
        before, ablations = _as_it_is(model, encoding), []
        together = 1 if alone else max(1, _TOKENS_AT_ONCE // len(encoding))
        for start in range(0, len(places), together):
            chosen = [{layer: [head]} for layer, head in places[start : start + together]]
            for one, after in zip(chosen, _outcomes(model, encoding, chosen, how), strict=True):
                ablations.append(_compared(model, encoding, one, how, label, before, after))
                done += 1
                if progress is not None:
                    progress(done, total)
        ranked = sorted(ablations, key=lambda ablation: descending(ablation.effect))
        return Ranking(tuple(ranked), origin=ranked[0].origin)

    return ask_each(model, text, ask, truncate=truncate)


def _chosen(
    model: Model, heads: Sequence[tuple[int, int] | int], how: str, label: str | int | None
) -> dict[int, list[int]]:
    if how not in get_args(How):
        raise ProbeError(
            f"There is no way {how!r} to change a head: give {', '.join(map(repr, get_args(How)))}."
        )
    if len(model.kinds) > 1:
        raise ProbeError(
            f"{model.name} has an encoder and a decoder: its heads can't be switched off here, only their "
            "maps can be looked at."
        )
    if label is not None:
        label_number(model, label)
    return check_heads(model, heads)


@dataclass(frozen=True)
class _Outcome:
    """The end of a run: (T, d_model); and (places, vocabulary) where words are predicted, (num_labels,) of a
    classifier."""

    hidden: Tensor
    logits: Tensor | None


def _as_it_is(model: Model, encoding: Encoding) -> _Outcome:
    """The end of a run with nothing changed."""
    (outcome,) = _outcomes(model, encoding, [{}], "zero")
    problem = nonfinite(model.name, (outcome.hidden, outcome.logits))
    if problem:
        raise ProbeError(problem)
    return outcome


def _outcomes(
    model: Model, encoding: Encoding, changes: Sequence[dict[int, list[int]]], how: How
) -> list[_Outcome]:
    """The ends of runs of one text, a row of one batch each; the heads that are changed in each, by layer."""
    inputs, _ = batch_inputs(model, [encoding] * len(changes))
    rows = predicted_rows(model, encoding) if model.predicts_words else []
    labels = classifies(model)
    hidden: list[Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(backend.running(model.hf, inputs))
        front = model.hf.base_model
        stack.enter_context(front.register_forward_hook(lambda _, __, output: hidden.append(output[0])))
        for layer in sorted({layer for chosen in changes for layer in chosen}):
            site = model.sites[layer]
            heads = torch.zeros(len(changes), site.num_heads, dtype=torch.bool, device=model.device)
            for row, chosen in enumerate(changes):
                heads[row, chosen.get(layer, [])] = True
            # Layers may share their modules (ALBERT's): which one it is, the order of calls tells.
            sharing = [other.output.module is site.output.module for other in model.sites]
            turn = sum(sharing[:layer]), sum(sharing)
            mask = None
            if how == "other mask":
                mask = allowed_keys(
                    len(encoding), causal=not model.causal, window=site.window, device=model.device
                )
            for handle in _Switch(site, heads, how, mask, turn).attach():
                stack.enter_context(handle)
        result = (model.hf if rows or labels else front)(**inputs)
        if not hidden:  # a head for words that calls parts of the network past its front (OPT)
            front(**inputs)
    logits = result.logits[:, rows] if rows else result.logits if labels else None
    logits = None if logits is None else logits.double().cpu()
    of_rows = [None] * len(changes) if logits is None else logits
    return [_Outcome(*pair) for pair in zip(hidden[0].double().cpu(), of_rows, strict=True)]


def _compared(
    model: Model,
    encoding: Encoding,
    chosen: dict[int, list[int]],
    how: How,
    label: str | int | None,
    before: _Outcome,
    after: _Outcome,
) -> Ablation:
    changes: list[Change] = []
    labels: tuple[LabelChange, ...] = ()
    logit_change, shown = None, None
    if before.logits is not None and after.logits is not None:
        logit_change = float((after.logits - before.logits).abs().max())
        if classifies(model):
            labels = label_changes(model, before.logits, after.logits)
            shown = label_in_question(labels) if label is None else label_number(model, label)
        else:
            places = zip(predicted_rows(model, encoding), before.logits, after.logits, strict=True)
            changes = [_change(model, row + int(model.causal), old, new) for row, old, new in places]
    return Ablation(
        **of_text(encoding),
        heads=tuple((layer, head) for layer in sorted(chosen) for head in sorted(chosen[layer])),
        how=how,
        changes=tuple(changes),
        logit_change=logit_change,
        hidden_change=(after.hidden - before.hidden).norm(dim=-1) / before.hidden.norm(dim=-1),
        labels=labels,
        label=label,
        shown_label=shown,
        origin=Origin.of(model),
    )


def _change(model: Model, position: int, old: Tensor, new: Tensor) -> Change:
    before, after = prediction_at(model, position, old), prediction_at(model, position, new)
    was, now = softmax(old), softmax(new)
    favourite = int(was.argmax())
    # Differences of logits, so that a probability too small for its logarithm does no harm.
    log_ratio = (old - old.logsumexp(-1)) - (new - new.logsumexp(-1))
    return Change(
        position=position,
        before=before,
        after=after,
        favourite=before.candidates[0][0],
        probability_before=float(was[favourite]),
        probability_after=float(now[favourite]),
        divergence=float((was * log_ratio).sum()),
    )


class _Switch:
    """Hooks that change some heads of one layer, where their contexts go into the output projection.

    ``heads`` says which in each row of the batch, (B, H), bool; ``mask`` is the layer's other mask, (T, T),
    or None if that hides nothing; ``turn`` which of the layers that share these modules it is, and how many
    there are.
    """

    def __init__(
        self, site: Site, heads: Tensor, how: How, mask: Tensor | None, turn: tuple[int, int]
    ) -> None:
        self.site, self.heads, self.how, self.mask = site, heads, how, mask
        self.turn, self.sharing = turn
        self.calls = 0
        self.projected: dict[nn.Module, Tensor] = {}

    def attach(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        if self.how == "other mask":
            for module in {self.site.source(role) for role in ROLES}:
                yield module.register_forward_hook(self._remember)
        yield self.site.output.module.register_forward_pre_hook(self._change)

    def _remember(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.projected[module] = output

    def _change(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.calls += 1
        if (self.calls - 1) % self.sharing != self.turn:
            return args
        # (B, T, H * head_dim) -> (B, T, H, head_dim)
        contexts = args[0].unflatten(-1, (self.site.num_heads, -1))
        if self.how == "zero":
            others = torch.zeros_like(contexts)
        elif self.how == "mean":
            others = contexts.mean(dim=1, keepdim=True)
        else:
            others = self._under_the_mask(contexts)
        # A copy: what the model computed stays as it is.
        changed = torch.where(self.heads[:, None, :, None], others, contexts)
        return (changed.flatten(-2), *args[1:])

    def _under_the_mask(self, contexts: Tensor) -> Tensor:
        """The contexts with those of every head that is changed in some row under the other mask."""
        some = self.heads.any(0).nonzero().flatten().tolist()
        query, key, value = (
            self.site.heads(role, self.projected[self.site.source(role)])[:, some] for role in ROLES
        )
        steps = scaled_dot_product_attention(
            query, key, value, mask=self.mask, scale=self.site.scale, keep_steps=False
        )
        others = contexts.clone()
        others[:, :, some] = steps.output.transpose(1, 2)
        return others
