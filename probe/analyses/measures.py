"""What kind of head is it? Numbers that describe one attention map.

All are mask-aware: a cell that a query may not attend to never counts, and a query that has only one key to
attend to is left out, because its weight of 1 says nothing about the head. None stands for nothing to
measure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, overload

import torch
from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.attend import watched
from probe.analyses.compare import Comparison
from probe.analyses.over_texts import Averaging, OverTexts, Progress, ask_each
from probe.analyses.result import Origin, columns_of, of_text
from probe.display.data import PanelKind, Sheet, Table, heads_panel
from probe.display.nonfinite import nonfinite
from probe.errors import ProbeError
from probe.models.loading import Model
from probe.running.tokens import Encoding, Text


@dataclass(frozen=True)
class Measure:
    """One measure in words: ``name`` is its field in ``HeadMeasure``, ``title`` the head of its column."""

    name: str
    title: str
    definition: str
    source: str


MEASURES = (
    Measure(
        "entropy",
        "entropy",
        "How evenly a query spreads its weight: 0 is all on one key, 1 the same on every key it may see.",
        "Clark et al. 2019, section 3.3, who give it in nats; here it is divided by its maximum",
    ),
    Measure(
        "distance",
        "distance",
        "How many tokens away the keys are, on average, each counted by its weight.",
        "Vig and Belinkov 2019, on attention distance",
    ),
    Measure("on_self", "self", "Weight on the query's own token.", "Clark et al. 2019, section 3.1"),
    Measure("on_previous", "previous", "Weight on the token before.", "Clark et al. 2019, section 3.1"),
    Measure("on_next", "next", "Weight on the token after.", "Clark et al. 2019, section 3.1"),
    Measure(
        "on_first",
        "first",
        "Weight of all later tokens on the first token of the text.",
        "Vig and Belinkov 2019, on null attention; Xiao et al. 2024 call it the attention sink",
    ),
    Measure("on_special", "special", "Weight on special tokens.", "Clark et al. 2019, section 3.2"),
    Measure(
        "induction",
        "induction",
        "Weight on the tokens that came right after earlier occurrences of the query's token.",
        "Olsson et al. 2022, who call it prefix matching",
    ),
)


def relative_entropy(weights: Tensor, allowed: Tensor | None = None) -> float | None:
    """Mean over queries of ``-sum(w ln w) / ln n``, n being the number of keys the query may attend to.

    Parameters
    ----------
    weights : (T, T) [query, key].
    allowed : (T, T), bool, True = may attend; None for everything.

    Returns
    -------
    From 0 (each query on one key) to 1 (uniform over its keys); None if no query has two keys.

    References
    ----------
    Clark, Khandelwal, Levy and Manning 2019, "What Does BERT Look At?", section 3.3 and figure 4, for the
    entropy; divided by its maximum here, so that early queries of a causal model count like late ones.
    """
    weights, allowed = _prepared(weights, allowed)
    rows = _choice(allowed)
    entropy = torch.special.entr(weights).sum(-1)[rows]
    return _mean(entropy / allowed.sum(-1)[rows].double().log())


def mean_distance(weights: Tensor, allowed: Tensor | None = None) -> float | None:
    """Mean over queries of ``sum(w |query - key|)``, in tokens.

    Parameters
    ----------
    weights, allowed : as for ``relative_entropy``.

    References
    ----------
    Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model", on
    attention distance.
    """
    weights, allowed = _prepared(weights, allowed)
    position = torch.arange(len(weights), dtype=torch.float64)
    return _mean((weights * (position[:, None] - position).abs()).sum(-1)[_choice(allowed)])


def weight_at(weights: Tensor, offset: int, allowed: Tensor | None = None) -> float | None:
    """Mean weight of queries on the key ``offset`` tokens after them: 0 themselves, -1 the one before.

    Parameters
    ----------
    weights, allowed : as for ``relative_entropy``.

    Returns
    -------
    The mean over the queries that have such a key, may attend to it and have another choice; None if none
    has.

    References
    ----------
    Clark et al. 2019, section 3.1; Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.1,
    call heads positional that put their largest weight there.
    """
    weights, allowed = _prepared(weights, allowed)
    rows = (_choice(allowed) & _shifted(allowed, offset)).nonzero().squeeze(1)
    return _mean(weights[rows, rows + offset])


def weight_on_first(weights: Tensor, allowed: Tensor | None = None) -> float | None:
    """Mean weight on position 0, over the queries after it.

    Parameters
    ----------
    weights, allowed : as for ``relative_entropy``.

    References
    ----------
    Vig and Belinkov 2019, on null attention in GPT-2; Xiao et al. 2024, "Efficient Streaming Language Models
    with Attention Sinks", section 3.1.
    """
    weights, allowed = _prepared(weights, allowed)
    rows = _choice(allowed) & allowed[:, 0]
    rows[0] = False
    return _mean(weights[rows, 0])


def weight_on_special(
    weights: Tensor, special: Sequence[bool], allowed: Tensor | None = None
) -> float | None:
    """Mean over queries of the weight on all special tokens together.

    Parameters
    ----------
    weights, allowed : as for ``relative_entropy``.
    special : T flags.

    Returns
    -------
    The mean over the queries that may attend to a special token; None if there is none.

    References
    ----------
    Clark et al. 2019, section 3.2, on [SEP].
    """
    weights, allowed = _prepared(weights, allowed)
    keys = torch.tensor(special, dtype=torch.bool)
    rows = _choice(allowed) & allowed[:, keys].any(-1)
    return _mean(weights[rows][:, keys].sum(-1))


def induction_score(
    weights: Tensor, ids: Sequence[int], allowed: Tensor | None = None, special: Sequence[bool] | None = None
) -> float | None:
    """Mean weight on the tokens right after earlier occurrences of the query's token.

    In "a b c a", the last token's weight on "b": a head that puts it there can repeat what followed last
    time. A key counts if it lies before the query, and the token before the key is the query's token.

    Parameters
    ----------
    weights, allowed : as for ``relative_entropy``.
    ids : T token ids; occurrences are those of the same id.
    special : T flags; special tokens are no queries here, for [SEP] repeats in every pair of sentences.

    Returns
    -------
    The mean over the queries that have such a key; None if no token is repeated with another between.

    References
    ----------
    Olsson et al. 2022, "In-context Learning and Induction Heads", the prefix matching score among the head
    activation evaluators. They measure it on repeated random tokens; on ordinary text it is only a hint.
    """
    weights, allowed = _prepared(weights, allowed)
    token = torch.tensor(ids)
    # after[q, k]: key k lies before query q, and the token before k is the token at q.
    after = torch.zeros_like(allowed)
    after[:, 1:] = token[:, None] == token[None, :-1]
    after = after.tril(-1) & allowed
    if special is not None:
        after[torch.tensor(special, dtype=torch.bool)] = False
    rows = after.any(-1) & _choice(allowed)
    return _mean((weights * after).sum(-1)[rows])


def _prepared(weights: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both on the CPU, the weights in float64 and 0 where a query may not attend."""
    if weights.dim() != 2 or weights.shape[0] != weights.shape[1]:
        raise ProbeError(f"One head's map is (T, T) [query, key]; this is {tuple(weights.shape)}.")
    weights = weights.detach().cpu().double()
    if allowed is None:
        return weights, torch.ones_like(weights, dtype=torch.bool)
    allowed = allowed.cpu()
    return weights.masked_fill(~allowed, 0.0), allowed


def _choice(allowed: Tensor) -> Tensor:
    """(T,), True for queries that may attend to two keys or more."""
    return allowed.sum(-1) > 1


def _shifted(allowed: Tensor, offset: int) -> Tensor:
    """(T,), whether each query has a key at this offset and may attend to it."""
    possible = torch.zeros(len(allowed), dtype=torch.bool)
    diagonal = allowed.diagonal(offset)
    start = max(0, -offset)
    possible[start : start + len(diagonal)] = diagonal
    return possible


def _mean(values: Tensor) -> float | None:
    """None for no values, and for weights that are no numbers: which ones, ``verify`` says."""
    mean = float(values.mean()) if values.numel() else math.nan
    return mean if math.isfinite(mean) else None


@dataclass(frozen=True)
class HeadMeasure:
    """The measures of one head on one text; what each is stands in ``MEASURES``. None: nothing to measure."""

    layer: int
    head: int
    entropy: float | None
    distance: float | None
    on_self: float | None
    on_previous: float | None
    on_next: float | None
    on_first: float | None
    on_special: float | None
    induction: float | None


@dataclass(frozen=True, repr=False)
class HeadMeasures(Averaging, what="measures"):
    """All heads of a model, measured on one text. Printing it shows a table.

    They say what a head does with this text, not what it does in general. ``notice`` is a sentence where
    weights are no numbers, so that there is nothing to measure; else None.
    """

    also_in_dict = ("measures",)
    scales: ClassVar[Mapping[str, PanelKind]] = {
        one.name: "weight" for one in MEASURES if one.name != "distance"
    }

    text: Text
    tokens: tuple[str, ...]
    truncated: str | None
    heads: tuple[HeadMeasure, ...]
    notice: str | None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What each measure is."""
        return MEASURES

    def ranked(self, name: str, *, ascending: bool = False) -> tuple[HeadMeasure, ...]:
        """The heads by one measure, by its name or title, largest first; those without it at the end.

        Raises
        ------
        ProbeError
            If there is no such measure.
        """
        found = next((measure.name for measure in MEASURES if name in (measure.name, measure.title)), None)
        if found is None:
            titles = ", ".join(measure.title for measure in MEASURES)
            raise ProbeError(f"There is no measure {name!r}; there are {titles}.")
        with_it = [head for head in self.heads if getattr(head, found) is not None]
        without = [head for head in self.heads if getattr(head, found) is None]
        ordered = sorted(with_it, key=lambda head: getattr(head, found), reverse=not ascending)
        return (*ordered, *without)

    @property
    def summary(self) -> str:
        """What was measured, in one line."""
        return f"{self.model_name} ({self.source}), {len(self.tokens)} tokens; {self.question}"

    @property
    def question(self) -> str:
        return "means over queries"

    @property
    def remarks(self) -> tuple[str, ...]:
        return (self.notice,) if self.notice else ()

    def table(self) -> Table:
        """A row for each head, in the order of layers."""
        names = ("layer", "head", *(measure.name for measure in MEASURES))
        return Table(columns_of(sorted(self.heads, key=lambda one: (one.layer, one.head)), names))

    def averages(self) -> Table:
        """The heads as they are ordered here, and what the columns mean."""
        places = columns_of(self.heads, ("layer", "head"))
        columns = (*places, *columns_of(self.heads, {one.name: one.title for one in MEASURES}, ".3f"))
        meanings = tuple(f"{one.title}: {one.definition} {one.source}." for one in MEASURES)
        return Table(columns, notes=meanings)

    def printed(self) -> tuple[Table, ...]:
        return (self.averages(),)

    def _sheet(self) -> Sheet:
        """A panel for each measure: a row for each layer, a column for each head."""
        panels = tuple(
            heads_panel(
                one.title,
                {(head.layer, head.head): getattr(head, one.name) for head in self.heads},
                one.definition,
                up_to_one=one.name != "distance",
            )
            for one in MEASURES
        )
        return Sheet(f"{self.model_name} ({self.source}), all heads", panels)


@overload
def measure_heads(
    model: Model | str, text: Text, *, truncate: bool = False, progress: Progress | None = None
) -> HeadMeasures: ...


@overload
def measure_heads(
    model: Model | str,
    text: list[str] | list[tuple[str, str]] | list[Text],
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> OverTexts[HeadMeasures]: ...


@analysis(HeadMeasures)
def measure_heads(
    model: Model | str,
    text: Text | Sequence[Text],
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> HeadMeasures | OverTexts[HeadMeasures]:
    """Run a model once on a text and measure every head. No map is kept.

    Parameters
    ----------
    text : a text, or (first, second) for a model that takes sentence pairs; or a list of either, for each
        text's measures and their means.
    truncate : cut a text that is longer than the model's positions; the result then says so.
    progress : of a list, called with the number of texts done and their number.

    Raises
    ------
    ProbeError
        If there is no such model or the text can't be taken.

    Examples
    --------
    >>> measures = measure_heads("gpt2", "The cat sat on the mat. The cat sat on the mat.")
    >>> measures.ranked("induction")[0]  # doctest: +SKIP
    """
    return ask_each(
        model,
        text,
        lambda model, encoding: _measures(*watched(model, encoding, _measured)),
        truncate=truncate,
        progress=progress,
    )


def measures_of(comparison: Comparison) -> HeadMeasures:
    """``measure_heads`` for a run that has been made already."""
    return _measures(*comparison.watched(_measured))


_Measured = tuple[list[HeadMeasure], bool]
"""The heads of a layer, and whether all their weights are finite."""


def _measured(encoding: Encoding, layer: int, weights: Tensor, allowed: Tensor | None) -> _Measured:
    heads = []
    for head, one in enumerate(weights.cpu()):
        keys = None if allowed is None else allowed[head].cpu()
        measure = HeadMeasure(
            layer=layer,
            head=head,
            entropy=relative_entropy(one, keys),
            distance=mean_distance(one, keys),
            on_self=weight_at(one, 0, keys),
            on_previous=weight_at(one, -1, keys),
            on_next=weight_at(one, 1, keys),
            on_first=weight_on_first(one, keys),
            on_special=weight_on_special(one, encoding.special, keys),
            induction=induction_score(one, encoding.ids, keys, encoding.special),
        )
        heads.append(measure)
    return heads, bool(weights.isfinite().all())


def _measures(origin: Origin, encoding: Encoding, layers: Sequence[_Measured]) -> HeadMeasures:
    return HeadMeasures(
        **of_text(encoding),
        heads=tuple(head for heads, _ in layers for head in heads),
        notice=nonfinite(origin.model, [0.0 if finite else math.nan for _, finite in layers]),
        origin=origin,
    )
