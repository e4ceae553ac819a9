"""Attention rollout: the maps of all layers multiplied up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, overload

import torch
from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.attend import attend, watched
from probe.analyses.compare import Comparison
from probe.analyses.distances import weighted_distance
from probe.analyses.over_texts import Averaging, OverTexts, Progress, ask_each
from probe.analyses.patches import PatchWeights
from probe.analyses.result import Origin, of_text
from probe.display.data import Axis, Column, Numbers, Panel, Sheet, Table, array, grid
from probe.display.nonfinite import nonfinite
from probe.errors import ProbeError
from probe.models.loading import Model, resolve
from probe.running.tokens import Encoding, Span, Text
from probe.running.words import single_tokens


def roll_out(layers: Iterable[Tensor]) -> list[Tensor]:
    """Multiply the maps of successive layers up to what each position may have drawn from each input token.

    ``R_l = (0.5 A_l + 0.5 I) R_(l-1)``, ``R_(-1) = I``: A_l is the mean over the layer's heads, and the
    identity stands for the residual connection.

    Parameters
    ----------
    layers : (H, T, T) [query, key] for each layer, from the first on.

    Returns
    -------
    (T, T) for each layer, in float64 on the CPU: row = position after that layer, column = input token. Rows
    sum to 1.

    References
    ----------
    Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3, attention rollout.
    """
    return _multiplied(map(_mixed, layers))


def _multiplied(mixed: Iterable[Tensor]) -> list[Tensor]:
    return list(accumulate(mixed, lambda before, layer: layer @ before))


def _mixed(weights: Tensor) -> Tensor:
    """(H, T, T) -> (T, T): the mean over the heads, half and half with the identity."""
    mean = weights.detach().cpu().mean(0, dtype=torch.float64)
    return 0.5 * mean + 0.5 * torch.eye(len(mean), dtype=torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Rollout(Averaging, what="rollout"):
    """Attention rollout of one run on one text; ``maps[layer]`` is (T, T), [position, input token].

    ``caveat`` belongs beside every picture of it. ``grid`` is as in a ``Run``.
    """

    also_in_dict = ("caveat", "layers")
    not_in_dict = ("maps", "grid")
    averaged_by: ClassVar[tuple[str, ...]] = ("layer",)

    text: Text
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    truncated: str | None
    maps: tuple[Tensor, ...]
    grid: tuple[int, int] | None = None

    caveat: ClassVar[str] = (
        "Rollout follows attention weights alone: it takes all heads for equal and the residual connection "
        "for half of every layer, and leaves out values, feed-forward layers and norms. It shows where "
        "information could have come from, not what the model used."
    )

    def weights(self, layer: int) -> Tensor:
        """(T, T) after a layer, counted from 0; each row sums to 1.

        Raises
        ------
        ProbeError
            If there is no such layer.
        """
        if not isinstance(layer, int) or isinstance(layer, bool) or not 0 <= layer < len(self.maps):
            raise ProbeError(
                f"There is no layer {layer!r} in this rollout of {self.model_name}: it has layers 0 to "
                f"{len(self.maps) - 1}."
            )
        return self.maps[layer]

    def patches(self, layer: int, query: int = 0) -> PatchWeights:
        """What a position may have drawn from each patch of a picture, as rows and columns; see
        ``Run.patches``.

        Raises
        ------
        ProbeError
            If there is no such layer or position, or it is of no picture.
        """
        title = f"{self.model_name}, attention rollout up to layer {layer}"
        return PatchWeights.of(title, self.weights(layer), (self.tokens, self.tokens), self.grid, query)

    @property
    def layers(self) -> tuple[Tensor, ...]:
        """The maps, as ``to_dict`` calls them."""
        return self.maps

    @property
    def summary(self) -> str:
        """What it is of, in one line."""
        return f"{self.model_name} ({self.source}), {self.question}"

    @property
    def question(self) -> str:
        return f"attention rollout over {len(self.maps)} layers"

    @property
    def remarks(self) -> tuple[str, ...]:
        problem = nonfinite(self.model_name, self.maps)
        return (*([problem] if problem else []), self.caveat)

    def blocks(self) -> Numbers:
        """The map after each layer."""
        return {f"layer_{layer}": array(weights) for layer, weights in enumerate(self.maps)}

    def table(self) -> Table:
        """The map after the last layer, as a grid."""
        return grid(self.maps[-1], single_tokens(self))

    def averages(self) -> Table:
        """For each layer where the shares of the map after it lie, on average over its positions."""
        special = torch.tensor(self.special)
        columns: dict[str, list[float | None]] = {
            "on_self": [float(one.diagonal().mean()) for one in self.maps],
            "on_first": [float(one[1:, 0].mean()) if len(one) > 1 else None for one in self.maps],
            "on_special": [float(one[:, special].sum(-1).mean()) for one in self.maps],
            "distance": [float(weighted_distance(one)) for one in self.maps],
        }
        layer = Column("layer", range(len(self.maps)))
        notes = (
            "on_self: share of a position's own token; on_first: of the first token, for the others; "
            "on_special: of all special tokens; distance: how many tokens away, by share.",
        )
        return Table((layer, *(Column(name, cells) for name, cells in columns.items())), notes=notes)

    def printed(self) -> tuple[Table, ...]:
        """For each position after the last layer the three input tokens with the largest shares."""
        most = [row.topk(min(3, len(row))) for row in self.maps[-1]]
        drawn = [
            ", ".join(
                f"{key} {self.tokens[key]} ({share:.3f})"
                for share, key in zip(top.values.tolist(), top.indices.tolist(), strict=True)
            )
            for top in most
        ]
        columns = (
            Column("position", range(len(self.tokens))),
            Column("token", self.tokens),
            Column("may have drawn most on", drawn),
        )
        return (Table(columns),)

    def panel(self, layer: int) -> Panel:
        """The map after a layer. Raises as ``weights``."""
        return Panel(
            f"After layer {layer}",
            "rollout",
            self.weights(layer),
            Axis("position", self.tokens),
            Axis("input token", self.tokens),
            note="row: a position after that layer; column: a token of the text",
        )

    def _sheet(self) -> Sheet:
        """The map after the last layer."""
        last = len(self.maps) - 1
        title = f"{self.model_name} ({self.source}), attention rollout up to layer {last}"
        return Sheet(title, (self.panel(last),))


@overload
def rollout(
    model: Model | str,
    text: Text | Mapping[str, Tensor],
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Rollout: ...


@overload
def rollout(
    model: Model | str,
    text: list[str] | list[tuple[str, str]] | list[Text],
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> OverTexts[Rollout]: ...


@analysis(Rollout, command="rollout")
def rollout(
    model: Model | str,
    text: Text | Sequence[Text] | Mapping[str, Tensor],
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Rollout | OverTexts[Rollout]:
    """Run a model once on a text and roll its attention out; see ``roll_out``.

    Parameters
    ----------
    text : a text, or (first, second) for a model that takes sentence pairs; or a list of either. Maps of
        several texts are kept text by text; averaged is, after each layer, the share of a position's own
        token, of the first, of special ones, and the distance. For a model of images or sound, what its
        processor returns for one of them, as for ``attend``: rolled out is the attention of the encoder.
    truncate : cut a text that is longer than the model's positions; the result then says so.
    progress : of a list, called with the number of texts done and their number.

    Raises
    ------
    ProbeError
        If there is no such model or the text can't be taken.
    """
    if isinstance(text, Mapping):
        return _of_tensors(resolve(model), text)
    return ask_each(
        model,
        text,
        lambda model, encoding: _rollout(*watched(model, encoding, _of_layer)),
        truncate=truncate,
        progress=progress,
    )


def rollout_of(comparison: Comparison) -> Rollout:
    """``rollout`` for a run that has been made already."""
    return _rollout(*comparison.watched(_of_layer))


def _of_tensors(model: Model, inputs: Mapping[str, Tensor]) -> Rollout:
    kind = model.kinds[0]
    run = attend(model, inputs, [kind])
    layers = (
        torch.stack([run.maps[kind, layer, head] for head in range(heads)])
        for layer, heads in enumerate(run.heads[kind])
    )
    return Rollout(
        text=run.text,
        tokens=run.tokens,
        spans=None,
        special=run.special,
        truncated=None,
        maps=tuple(roll_out(layers)),
        grid=run.grid,
        origin=run.origin,
    )


def _of_layer(_: Encoding, __: int, weights: Tensor, ___: Tensor | None) -> Tensor:
    return _mixed(weights)


def _rollout(origin: Origin, encoding: Encoding, mixed: Iterable[Tensor]) -> Rollout:
    maps = tuple(_multiplied(mixed))
    return Rollout(**of_text(encoding, "spans", "special"), maps=maps, origin=origin)
