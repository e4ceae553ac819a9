"""What a head does: switch it off, or give it the other mask, and see what changes further on.

A large weight is not yet an effect: what a head reads may be ignored by everything after it. Here the model
is run twice, once as it is and once with the heads changed, and what it gives in the end is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from attention import scaled_dot_product_attention, softmax
from probe.analyses.asking import analysis
from probe.analyses.predict import Prediction, predicted_rows, prediction_at, prediction_panel
from probe.analyses.result import Origin, Result, columns_of, named, of_text
from probe.display.data import Axis, Column, Numbers, Panel, Sheet, Table, array, heads_panel
from probe.display.nonfinite import descending, nonfinite
from probe.errors import ProbeError
from probe.models import backend
from probe.models.families import ROLES, Role, Site
from probe.models.loading import Model, resolve
from probe.models.visibility import allowed_keys
from probe.running.capture import check_heads
from probe.running.inputs import batch_inputs, encode_for
from probe.running.tokens import Encoding, Text

How = Literal["zero", "mean", "other mask"]


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
class Ablation(Result, what="ablation"):
    """A run with some heads changed beside the run as it is. Made by ``ablate``.

    Attributes
    ----------
    text, tokens, truncated : as in a ``Run``; T tokens.
    heads : the (layer, head) pairs that were changed.
    how : "zero", "mean" or "other mask", see ``ablate``.
    changes : one for each place where the model predicts a word; empty if it has no head for words or the
        text leaves nothing to predict.
    logit_change : largest absolute change of a logit at those places; None if there are none.
    hidden_change : (T,), how far each token's last hidden state moved, relative to its length: |after -
        before| / |before|.
    """

    also_in_dict = ("effect", "summary")

    text: Text
    tokens: tuple[str, ...]
    truncated: str | None
    heads: tuple[tuple[int, int], ...]
    how: How
    changes: tuple[Change, ...]
    logit_change: float | None
    hidden_change: Tensor

    @property
    def effect(self) -> float:
        """One number to rank by: the largest divergence of a prediction, else change of a hidden state; NaN
        where one of them is."""
        divergences = [change.divergence for change in self.changes]
        of_all = torch.tensor(divergences, dtype=torch.float64) if divergences else self.hidden_change
        return float(of_all.max())

    @property
    def summary(self) -> str:
        """The outcome in one line."""
        named = ", ".join(f"layer {layer} head {head}" for layer, head in self.heads[:4])
        more = f" and {len(self.heads) - 4} more" if len(self.heads) > 4 else ""
        does = {"zero": "switched off", "mean": "set to its mean", "other mask": "under the other mask"}[
            self.how
        ]
        problem = nonfinite(f"{self.model_name} with {named}{more} {does}", [self.effect])
        if problem:
            return problem
        if self.changes:
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
        return f"{self.model_name} with {named}{more} {does}: {what}."

    def _argument(self, name: str) -> Any:
        return list(self.heads) if name == "heads" else getattr(self, name)

    def blocks(self) -> Numbers:
        """How far each token moved, and at each place the probabilities of both runs."""
        blocks = {"hidden_change": array(self.hidden_change)}
        if self.logit_change is not None:
            blocks["logit_change"] = array(self.logit_change)
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

    def table(self) -> Table:
        """A row for each token: how far its last hidden state moved."""
        return Table(
            (
                Column("token", named(self.tokens)),
                Column("hidden change", self.hidden_change.tolist(), digits=".4f"),
            )
        )

    def printed(self) -> tuple[Table, ...]:
        """Nothing beyond the summary."""
        return ()

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
        return Sheet(f"{self.model_name} ({self.source})", (bars, *predicted), (self.summary,))


@dataclass(frozen=True, eq=False, repr=False)
class Ranking(Result, what="ranking"):
    """The heads of a model by their effect on one text, largest first, NaN last: one ablation each."""

    not_in_dict = ("ablations",)
    also_in_dict = ("text", "tokens", "truncated", "how", "heads")

    ablations: tuple[Ablation, ...]

    @property
    def how(self) -> How:
        """What each head gave instead."""
        return self.ablations[0].how

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
            {"layer": layer, "head": head, "effect": one.effect, "summary": one.summary}
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
        return Table((*places, *columns_of(ablations, ("effect", "logit_change"), ".4g")))

    def table(self) -> Table:
        """A row for each head, in the order of layers."""
        return self._rows(sorted(self.ablations, key=lambda one: one.heads))

    def printed(self) -> tuple[Table, ...]:
        """The heads as they are ranked, and what each changed."""
        changed = Column("what changed", [one.summary for one in self.ablations])
        return (Table((*self._rows(self.ablations).columns, changed)),)

    def _sheet(self) -> Sheet:
        """The effect of each head: a row for each layer, a column for each head."""
        unit = "divergence in nats" if self.ablations[0].changes else "change of a hidden state"
        effects = {one.heads[0]: one.effect for one in self.ablations}
        panel = heads_panel("Effect of each head, changed alone", effects, unit, up_to_one=False)
        return Sheet(f"{self.model_name} ({self.source}), heads by their effect", (panel,), (self.summary,))


@analysis(Ablation)
def ablate(
    model: Model | str,
    text: Text,
    heads: Sequence[tuple[int, int] | int],
    how: How = "zero",
    *,
    truncate: bool = False,
) -> Ablation:
    """Change some heads of a model, and compare what it gives in the end with what it gives as it is.

    Parameters
    ----------
    heads : (layer, head) pairs, or the numbers of whole layers, counted from 0.
    how
        "zero": the head's context vectors are replaced by zeros, before the output projection. The same as
        setting the head's columns of the output projection to zero. "mean": by their mean over the text's
        tokens, so that the head says the same at every position. "other mask": the head attends under the
        mask the model was not trained with, as in ``compare_masks``: a window stays.

    Raises
    ------
    ProbeError
        If there is no such model, layer, head or way, the text can't be taken, or the model as it is computes
        numbers that are not finite.

    References
    ----------
    Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 2.2, for heads set to zero.
    """
    model = resolve(model)
    chosen = _chosen(model, heads, how)
    encoding = encode_for(model, text, truncate=truncate)
    before = _as_it_is(model, encoding)
    return _compared(model, encoding, chosen, how, before)


@analysis(Ranking)
def rank_heads(
    model: Model | str,
    text: Text,
    how: How = "zero",
    *,
    truncate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Ranking:
    """Every head of a model changed alone, ranked by what it changes.

    ``progress`` is called with the number of heads done and their number in all. Raises as ``ablate``.
    """
    model = resolve(model)
    _chosen(model, [0], how)
    encoding = encode_for(model, text, truncate=truncate)
    before = _as_it_is(model, encoding)
    places = [
        (layer, head) for layer in range(model.num_layers) for head in range(model.heads_per_layer[layer])
    ]
    ablations = []
    for done, place in enumerate(places, start=1):
        ablations.append(_compared(model, encoding, {place[0]: [place[1]]}, how, before))
        if progress is not None:
            progress(done, len(places))
    ranked = sorted(ablations, key=lambda ablation: descending(ablation.effect))
    return Ranking(tuple(ranked), origin=ranked[0].origin)


def _chosen(model: Model, heads: Sequence[tuple[int, int] | int], how: str) -> dict[int, list[int]]:
    if how not in get_args(How):
        raise ProbeError(
            f"There is no way {how!r} to change a head: give {', '.join(map(repr, get_args(How)))}."
        )
    if len(model.kinds) > 1:
        raise ProbeError(
            f"{model.name} has an encoder and a decoder: its heads can't be switched off here, only their "
            "maps can be looked at."
        )
    return check_heads(model, heads)


@dataclass(frozen=True)
class _Outcome:
    """The end of a run: (T, d_model), and (places, vocabulary) where words are predicted."""

    hidden: Tensor
    logits: Tensor | None


def _as_it_is(model: Model, encoding: Encoding) -> _Outcome:
    """The end of a run with nothing changed."""
    outcome = _outcome(model, encoding, {}, "zero")
    problem = nonfinite(model.name, (outcome.hidden, outcome.logits))
    if problem:
        raise ProbeError(problem)
    return outcome


def _outcome(model: Model, encoding: Encoding, chosen: dict[int, list[int]], how: How) -> _Outcome:
    inputs, _ = batch_inputs(model, [encoding])
    rows = predicted_rows(model, encoding) if model.predicts_words else []
    hidden: list[Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(backend.running(model.hf, inputs))
        front = model.hf.base_model
        stack.enter_context(front.register_forward_hook(lambda _, __, output: hidden.append(output[0][0])))
        for layer, heads in chosen.items():
            site = model.sites[layer]
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
        result = (model.hf if rows else front)(**inputs)
        if not hidden:  # a head for words that calls parts of the network past its front (OPT)
            front(**inputs)
    logits = result.logits[0, rows].double().cpu() if rows else None
    return _Outcome(hidden[0].double().cpu(), logits)


def _compared(
    model: Model, encoding: Encoding, chosen: dict[int, list[int]], how: How, before: _Outcome
) -> Ablation:
    after = _outcome(model, encoding, chosen, how)
    changes: list[Change] = []
    logit_change = None
    if before.logits is not None and after.logits is not None:
        logit_change = float((after.logits - before.logits).abs().max())
        places = zip(predicted_rows(model, encoding), before.logits, after.logits, strict=True)
        changes = [_change(model, row + int(model.causal), old, new) for row, old, new in places]
    return Ablation(
        **of_text(encoding),
        heads=tuple((layer, head) for layer in sorted(chosen) for head in sorted(chosen[layer])),
        how=how,
        changes=tuple(changes),
        logit_change=logit_change,
        hidden_change=(after.hidden - before.hidden).norm(dim=-1) / before.hidden.norm(dim=-1),
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

    ``mask`` is the layer's other mask, (T, T), or None if that hides nothing; ``turn`` which of the layers
    that share these modules it is, and how many there are.
    """

    def __init__(
        self, site: Site, heads: list[int], how: How, mask: Tensor | None, turn: tuple[int, int]
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
        # (B, T, H * head_dim) -> (B, T, H, head_dim), a copy: what the model computed stays as it is
        contexts = args[0].unflatten(-1, (self.site.num_heads, -1)).clone()
        if self.how == "zero":
            contexts[:, :, self.heads] = 0.0
        elif self.how == "mean":
            contexts[:, :, self.heads] = contexts[:, :, self.heads].mean(dim=1, keepdim=True)
        else:
            query, key, value = (self._vectors(role) for role in ROLES)
            steps = scaled_dot_product_attention(
                query, key, value, mask=self.mask, scale=self.site.scale, keep_steps=False
            )
            contexts[:, :, self.heads] = steps.output.transpose(1, 2)
        return (contexts.flatten(-2), *args[1:])

    def _vectors(self, role: Role) -> Tensor:
        """What takes part in the attention of the chosen heads: (B, len(heads), T, head_dim)."""
        return self.site.heads(role, self.projected[self.site.source(role)])[:, self.heads]
