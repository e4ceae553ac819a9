"""One forward pass of a model on its own backend, and the attention weights that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.patches import PatchWeights
from probe.analyses.result import Origin, Place, Result, strictly_plain
from probe.display.data import Axis, Column, MapSet, Numbers, Panel, Sheet, Table, array, grid
from probe.display.nonfinite import nonfinite
from probe.errors import ProbeError
from probe.models import backend
from probe.models.kinds import sides, which_kind
from probe.models.loading import Model, resolve
from probe.running.capture import Heads, Maps, Wanted, capture, map_sizes, wanted_of, watch
from probe.running.inputs import (
    batch_inputs,
    batches,
    cuts,
    encode_all,
    encode_targets,
    encode_tensors,
    patch_grid,
    tensors_for,
    unfit_explained,
)
from probe.running.tokens import Encoding, Span, Text
from probe.running.words import single_tokens

Found = TypeVar("Found")
# Is given the text's tokens, and a layer with its weights and its mask as ``watch`` shows them.
OfLayer = Callable[[Encoding, int, Tensor, Tensor | None], Found]


@dataclass(frozen=True, eq=False, repr=False)
class Run(Result, what="run"):
    """The attention weights of one run of a model on one text. Made by ``attend``.

    Attributes
    ----------
    text : the text, or pair of texts; for an image or a recording the name and shape of its tensor.
    tokens : what each of the T tokens is called (or patches of an image, frames of a recording).
    spans : (start, end) of each token in its text, in code points; None if there are none.
    special : True for special tokens.
    truncated : a sentence saying what was cut, or None.
    heads : how many heads each layer has, for each kind of attention.
    maps : the weights that were kept, by kind, layer and head.
    target : what the decoder was given, its start token first; None for a model without one.
    grid : how many rows and columns of patches a picture was taken apart into; None for anything else.
    """

    not_in_dict = ("grid",)

    text: Text
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    truncated: str | None
    heads: dict[str, tuple[int, ...]]
    maps: dict[Place, Tensor] = field(repr=False)
    target: Encoding | None = None
    grid: tuple[int, int] | None = None

    def weights(self, layer: int, head: int, kind: str | None = None) -> Tensor:
        """One head's attention weights: (T, T) on the CPU, row = query, column = key; each row sums to 1.

        ``kind`` is for models with an encoder and a decoder: "encoder" is (T, T), "decoder" (S, S), "cross"
        (S, T), for T tokens of the source and S of the target. A row of a model with sinks sums to less.

        Raises
        ------
        ProbeError
            If this run did not keep that head.
        """
        kind = which_kind(self.model_name, self.heads, kind)
        try:
            return self.maps[kind, layer, head]
        except KeyError:
            which = f"The {kind} attention of layer" if len(self.heads) > 1 else "Layer"
            raise ProbeError(
                f"{which} {layer!r}, head {head!r} is not in this run of {self.model_name}, which has "
                f"{self._kept()}."
            ) from None

    def patches(self, layer: int, head: int, query: int = 0, kind: str | None = None) -> PatchWeights:
        """One query's weights over the patches of a picture, as rows and columns; [CLS] and its like apart.

        Parameters
        ----------
        query : the position that looks; by default the first, which is [CLS] where there is one.

        Raises
        ------
        ProbeError
            If this run did not keep that head or has no such query, or its keys are no patches of a picture.

        Examples
        --------
        >>> run.patches(layer=11, head=0).weights.shape  # doctest: +SKIP
        torch.Size([14, 14])
        """
        weights, sides = self.weights(layer, head, kind), self.labels(kind)
        grid = None if which_kind(self.model_name, self.heads, kind) == "decoder" else self.grid
        title = f"{self.model_name}, layer {layer}, head {head}"
        return PatchWeights.of(title, weights, sides, grid, query)

    def labels(self, kind: str | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the queries and the keys of a kind of attention are called."""
        kind = which_kind(self.model_name, self.heads, kind)
        return sides(kind, self.tokens, self.target.tokens if self.target else ())

    def _kept(self) -> str:
        if len(self.heads) == 1 and self._keeps_all:
            (heads,) = self.heads.values()
            return f"layers 0 to {len(heads) - 1}, heads 0 to {max(heads) - 1}"
        names = [
            f"({kind}, {layer}, {head})" if len(self.heads) > 1 else f"({layer}, {head})"
            for kind, layer, head in sorted(self.maps)
        ]
        return ", ".join(names if len(names) < 20 else [*names[:19], "..."])

    @property
    def _keeps_all(self) -> bool:
        return len(self.maps) == sum(map(sum, self.heads.values()))

    @property
    def holds_many(self) -> bool:
        return len(self.maps) > 1

    def only(self, layer: int, head: int, kind: str | None = None) -> Run:
        kind = which_kind(self.model_name, self.heads, kind)
        return replace(self, maps={(kind, layer, head): self.weights(layer, head, kind)})

    def _argument(self, name: str) -> Any:
        if name == "text_or_texts":
            return self.text
        if name == "target":
            return None if self.target is None else self.target.text
        if name == "dtype":
            kept = next(iter(self.maps.values())).dtype
            return None if str(kept) == f"torch.{self.origin.dtype}" else kept
        if self._keeps_all:
            return None
        places = sorted(self.maps)
        return places if len(self.heads) > 1 else [(layer, head) for _, layer, head in places]

    @property
    def summary(self) -> str:
        """The run in one line."""
        whose = f"{self.model_name} ({self.source})"
        problem = nonfinite(self.model_name, self.maps.values())
        if self.holds_many:
            line = f"{whose}, {len(self.tokens)} tokens: {len(self.maps)} maps, {self._kept()}."
            return f"{line} {problem}" if problem else line
        ((kind, layer, head),) = self.maps
        of = f"{kind} attention, " if len(self.heads) > 1 else ""
        # The share of a model's sinks stands in no column.
        weights = self.maps[kind, layer, head]
        has_sinks = bool((weights.float().sum(-1) < 0.99).any())
        sums = "what a row lacks to 1 is its sink's" if has_sinks else "each row sums to 1"
        return f"{whose}, {of}layer {layer}, head {head}; {problem or sums}"

    def blocks(self) -> Numbers:
        """The maps, a block each."""
        several = len(self.heads) > 1
        return {
            f"{f'{kind}_' if several else ''}layer_{layer}_head_{head}": array(weights)
            for (kind, layer, head), weights in sorted(self.maps.items())
        }

    def table(self) -> Table:
        """A row for each weight."""
        parts: dict[str, list[Any]] = {}
        for (kind, layer, head), weights in sorted(self.maps.items()):
            queries, keys = (np.array(side, dtype=object) for side in self.labels(kind))
            query, key = (part.ravel() for part in np.indices(tuple(weights.shape)))
            columns = {
                **({"kind": np.full(len(query), kind, dtype=object)} if len(self.heads) > 1 else {}),
                "layer": np.full_like(query, layer),
                "head": np.full_like(query, head),
                "query": query,
                "query_token": queries[query],
                "key": key,
                "key_token": keys[key],
                "weight": array(weights).ravel(),
            }
            for name, column in columns.items():
                parts.setdefault(name, []).append(column)
        return Table(tuple(Column(name, np.concatenate(of)) for name, of in parts.items()))

    def csv_table(self) -> Table:
        ((kind, layer, head),) = self.maps
        source, target = single_tokens(self), single_tokens(self.target or self)
        return grid(self.weights(layer, head, kind), *sides(kind, source, target))

    def printed(self) -> tuple[Table, ...]:
        return () if self.holds_many else (self.csv_table(),)

    def map_sets(self) -> tuple[MapSet, ...]:
        sets = []
        for kind in self.heads:
            weights = {place[1:]: one for place, one in sorted(self.maps.items()) if place[0] == kind}
            if weights:
                sets.append(MapSet(kind, *self.labels(kind), weights))
        return tuple(sets)

    def _sheet(self) -> Sheet | None:
        if self.holds_many:
            return None
        ((kind, layer, head),) = self.maps
        queries, keys = self.labels(kind)
        weights, of = self.maps[kind, layer, head], f", {kind} attention" if len(self.heads) > 1 else ""
        panel = Panel("", "weight", weights, Axis("query", queries), Axis("key", keys))
        title = f"{self.model_name} ({self.source}), layer {layer}, head {head}{of}"
        return Sheet(title, (panel,))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists; a number that isn't finite is its name: "nan"."""
        plain = super().to_dict()
        several = len(self.heads) > 1
        plain["weights"] = [
            {**({"kind": kind} if several else {}), "layer": layer, "head": head, "weights": weights}
            for (kind, layer, head), weights in sorted(self.maps.items())
        ]
        return {name: strictly_plain(value) for name, value in plain.items() if name != "maps"}


@overload
def attend(
    model: Model | str,
    text_or_texts: Text | Mapping[str, Tensor],
    heads: Heads | None = None,
    *,
    target: str | None = None,
    truncate: bool = False,
    dtype: torch.dtype | None = None,
) -> Run: ...


@overload
def attend(
    model: Model | str,
    text_or_texts: list[str] | list[tuple[str, str]] | list[Text],
    heads: Heads | None = None,
    *,
    target: list[str] | None = None,
    truncate: bool = False,
    dtype: torch.dtype | None = None,
) -> list[Run]: ...


@analysis(Run)
def attend(
    model: Model | str,
    text_or_texts: Text | Sequence[Text] | Mapping[str, Tensor],
    heads: Heads | None = None,
    *,
    target: str | Sequence[str] | None = None,
    truncate: bool = False,
    dtype: torch.dtype | None = None,
) -> Run | list[Run]:
    """Run a model once on its own backend, and keep the attention weights that are asked for.

    The weights are computed with ``attention`` from the queries and keys of the run, for the chosen heads
    alone; the model itself computes what it always does. The run ends after the last layer that is wanted.
    Texts of different length are run together; each is returned without padding.

    A model with attention code of its own (BLOOM, MPNet, DeBERTa ...) can't be listened to: a copy of it is
    run on the eager backend, and the weights are those that it returns.

    Parameters
    ----------
    model : a loaded model, or a name as for ``load``.
    text_or_texts : a text, or (first, second) for a model that takes sentence pairs; or a list of either, or
        a column of a table. For a model of images or sound, what its processor returns for one of them, as
        tensors: say {"pixel_values": (1, 3, height, width)}, with flags of its forward pass.
    heads : what to keep: (layer, head) pairs, or the numbers of whole layers, counted from 0. For a model
        with an encoder and a decoder (kind, layer, head) triples, or kinds. All heads by default.
    target : the text that a model with an encoder and a decoder is to produce, or one for each text. The
        decoder is given its start token and then this text, as in training.
    truncate : cut a text that is longer than the model's positions; the run then says so.
    dtype : to keep the weights in, float16 to halve their memory, say; the model's by default.

    Returns
    -------
    A ``Run``; for a list of texts a list of them.

    Raises
    ------
    ProbeError
        If there is no such model, layer or head, or a text can't be taken.

    Examples
    --------
    >>> run = attend("gpt2", "The cat sat on the mat.")
    >>> run.weights(layer=0, head=0)[0, 0]
    tensor(1.)
    """
    model = resolve(model)
    wanted = wanted_of(model, heads)
    if isinstance(text_or_texts, Mapping):
        return _attend_tensors(model, text_or_texts, wanted, dtype)
    encodings = encode_all(model, text_or_texts, truncate=truncate)
    targets = encode_targets(model, text_or_texts, target, truncate=truncate)
    maps: list[Maps] = [{} for _ in encodings]
    for batch in batches(model, encodings, sum(map(len, wanted.values()))):
        inputs, _ = batch_inputs(
            model,
            [encodings[index] for index in batch],
            [targets[index] for index in batch] if targets else (),
        )
        sizes = [map_sizes(encodings[index], targets[index] if targets else None) for index in batch]
        capture(model, inputs, wanted, sizes, [maps[index] for index in batch], dtype)
    runs = [
        _run(model, encoding, targets[index] if targets else None, maps[index])
        for index, encoding in enumerate(encodings)
    ]
    return runs[0] if isinstance(text_or_texts, (str, tuple)) else runs


def _attend_tensors(
    model: Model, inputs: Mapping[str, Tensor], wanted: Wanted, dtype: torch.dtype | None
) -> Run:
    """``attend`` for what a processor makes of an image or a recording."""
    given = tensors_for(model, inputs)
    maps: Maps = {}
    with unfit_explained(model):
        sizes = capture(model, given, wanted, None, [maps], dtype)
    count = sizes["encoder" if model.has_target else "self"][0]
    source, target = encode_tensors(model, given, count)
    grid = patch_grid(model, given[model.hf.main_input_name], count)
    return replace(_run(model, source, target, maps), grid=grid)


def _run(model: Model, source: Encoding, target: Encoding | None, maps: Maps) -> Run:
    return Run(
        source.text,
        source.tokens,
        source.spans,
        source.special,
        cuts(source, target),
        {kind: model.heads_of(kind) for kind in model.kinds},
        maps,
        target,
        origin=watched_origin(model),
    )


def watched(
    model: Model, encoding: Encoding, of_layer: OfLayer[Found]
) -> tuple[Origin, Encoding, list[Found]]:
    """Run a model once on a text and keep of each layer what ``of_layer`` makes of it, no map."""
    found: list[Found] = []
    watch(model, encoding, lambda *seen: found.append(of_layer(encoding, *seen)))
    return watched_origin(model), encoding, found


def watched_origin(model: Model) -> Origin:
    """Of a run whose attention was watched on the model's own backend."""
    # Code of its own is run as a copy, on eager: nothing can be listened to on another backend.
    return Origin.of(model, None if backend.uses_interface(model.hf) else "eager")
