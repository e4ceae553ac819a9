"""How far each head looks, on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, overload

import torch
from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.attend import watched
from probe.analyses.compare import Comparison
from probe.analyses.over_texts import Averaging, OverTexts, Progress, ask_each
from probe.analyses.result import Origin, columns_of, of_text
from probe.display.data import Sheet, Table, heads_panel
from probe.display.nonfinite import nonfinite
from probe.models.loading import Model
from probe.running.tokens import Encoding, Text


@dataclass(frozen=True)
class HeadDistance:
    """How far one head looks on one text, in tokens.

    Attributes
    ----------
    layer, head : counted from 0.
    distance : the mean distance of a key from its query, each pair counted by its weight; None where the
        weights are no numbers.
    uniform : what it would be if each query looked at all keys it may see alike.
    """

    layer: int
    head: int
    distance: float | None
    uniform: float


@dataclass(frozen=True, repr=False)
class HeadDistances(Averaging, what="distances"):
    """How far each head of a model looks on one text. Made by ``distances``; printing it shows a table.

    Attributes
    ----------
    text, tokens, truncated : as in a ``Run``.
    heads : in the order of layers.
    notice : a sentence where weights are no numbers, so that there is nothing to measure; else None.
    """

    also_in_dict = ("summary",)
    ranked_by: ClassVar[str] = "distance"

    text: Text
    tokens: tuple[str, ...]
    truncated: str | None
    heads: tuple[HeadDistance, ...]
    notice: str | None

    @property
    def ranked(self) -> tuple[HeadDistance, ...]:
        """The heads, the one that looks farthest first; those without a distance at the end."""
        return tuple(sorted(self.heads, key=lambda one: -1.0 if one.distance is None else -one.distance))

    @property
    def problem(self) -> str | None:
        return self.notice

    @property
    def question(self) -> str:
        return "how far each head looks"

    @property
    def summary(self) -> str:
        """The two ends, in one line."""
        if self.problem:
            return self.problem
        farthest, nearest = self.ranked[0], self.ranked[-1]
        return (
            f"{self.model_name} ({self.source}), {len(self.tokens)} tokens: layer {farthest.layer}, head "
            f"{farthest.head} looks farthest, {farthest.distance:.2f} tokens on average, and layer "
            f"{nearest.layer}, head {nearest.head} nearest, {nearest.distance:.2f}."
        )

    def table(self) -> Table:
        """A row for each head, in the order of layers."""
        return Table(columns_of(self.heads, ("layer", "head", "distance", "uniform")))

    def printed(self) -> tuple[Table, ...]:
        """The heads, the one that looks farthest first."""
        places = columns_of(self.ranked, ("layer", "head"))
        columns = (*places, *columns_of(self.ranked, ("distance", "uniform"), ".3f"))
        note = (
            "distance: mean distance of a key from its query in tokens, each pair counted by its weight "
            "(Vig and Belinkov 2019). uniform: the same if each query looked at all its keys alike."
        )
        return (Table(columns, notes=(note,)),)

    def _sheet(self) -> Sheet:
        """A row for each layer, a column for each head."""
        panel = heads_panel(
            "distance",
            {(one.layer, one.head): one.distance for one in self.heads},
            "in tokens, each pair of query and key counted by its weight",
            up_to_one=False,
        )
        return Sheet(f"{self.model_name} ({self.source}), {self.question}", (panel,), (self.summary,))


@overload
def distances(
    model: Model | str, text: Text, *, truncate: bool = False, progress: Progress | None = None
) -> HeadDistances: ...


@overload
def distances(
    model: Model | str,
    text: list[str] | list[tuple[str, str]] | list[Text],
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> OverTexts[HeadDistances]: ...


@analysis(HeadDistances, command="distances")
def distances(
    model: Model | str,
    text: Text | Sequence[Text],
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> HeadDistances | OverTexts[HeadDistances]:
    """Run a model once on a text and say how far each of its heads looks. No map is kept.

    The distance of a head is the sum of its weights times how many tokens each key is away from its query,
    divided by the sum of its weights.

    Parameters
    ----------
    text : a text, or (first, second) for a model that takes sentence pairs; or a list of either, for what is
        found on each and the means.
    truncate : cut a text that is longer than the model's positions; the result then says so.
    progress : of a list, called with the number of texts done and their number.

    Raises
    ------
    ProbeError
        If there is no such model or the text can't be taken.

    References
    ----------
    Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model", on
    attention distance. Queries that see themselves alone count there, and here, with a distance of 0;
    ``measure_heads`` leaves them out.

    Examples
    --------
    >>> distances("gpt2", "The cat sat on the mat.").heads[0].distance  # doctest: +SKIP
    """
    return ask_each(
        model,
        text,
        lambda model, encoding: _distances(*watched(model, encoding, _of_layer)),
        truncate=truncate,
        progress=progress,
    )


def distances_of(comparison: Comparison) -> HeadDistances:
    """``distances`` for a run that has been made already."""
    return _distances(*comparison.watched(_of_layer))


def weighted_distance(weights: Tensor) -> Tensor:
    """(..., T, T) [query, key] -> (...): the distance of a key from its query, each pair by its weight."""
    weights = weights.cpu().double()
    position = torch.arange(weights.shape[-1], dtype=torch.float64)
    far = (position[:, None] - position).abs()
    return (weights * far).sum((-2, -1)) / weights.sum((-2, -1))


def _of_layer(_: Encoding, layer: int, weights: Tensor, allowed: Tensor | None) -> list[HeadDistance]:
    """A layer's heads, from their maps and masks: (H, T, T)."""
    alike = torch.ones_like(weights[0]) if allowed is None else allowed.double()
    uniform = weighted_distance(alike / alike.sum(-1, keepdim=True).clamp_min(1.0))
    found, otherwise = weighted_distance(weights).tolist(), uniform.expand(len(weights)).tolist()
    return [
        HeadDistance(layer, head, distance if torch.isfinite(weights[head]).all() else None, even)
        for head, (distance, even) in enumerate(zip(found, otherwise, strict=True))
    ]


def _distances(origin: Origin, encoding: Encoding, layers: list[list[HeadDistance]]) -> HeadDistances:
    heads = tuple(one for layer in layers for one in layer)
    known = [one.distance for one in heads]
    notice = nonfinite(origin.model, [float("nan")]) if None in known else None
    return HeadDistances(**of_text(encoding), heads=heads, notice=notice, origin=origin)
