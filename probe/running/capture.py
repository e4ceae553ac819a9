"""One forward pass of a model on its own backend, and the attention weights that were asked for.

They are computed from the queries and keys that pass (``backend.py``), for the wanted heads and no others;
where nothing can be listened to, they are those that the network returns. Nothing is replaced, and afterwards
the network is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention import causal_mask
from probe.errors import ProbeError
from probe.models import backend
from probe.models.loading import Model
from probe.running.inputs import batch_inputs
from probe.running.tokens import Encoding

# What can be named in ``heads``: a layer, a head of it; a kind of attention, a head of a layer of a kind.
Heads = Sequence[int | tuple[int, int] | str | tuple[str, int, int]]


Wanted = dict[tuple[str, int], list[int]]
Maps = dict[tuple[str, int, int], Tensor]


class _Enough(Exception):
    """The last wanted layer has been seen: the rest of the forward pass isn't needed."""


Sizes = dict[str, tuple[int, int]]  # of the maps of each kind: queries and keys


def map_sizes(source: Encoding, target: Encoding | None) -> Sizes:
    keys = len(source)
    if target is None:
        return {"self": (keys, keys)}
    queries = len(target)
    return {"encoder": (keys, keys), "decoder": (queries, queries), "cross": (queries, keys)}


def capture(
    model: Model,
    inputs: dict[str, Any],
    wanted: Wanted,
    sizes: Sequence[Sizes] | None,
    maps: Sequence[Maps],
    dtype: torch.dtype | None,
) -> Sizes:
    """Run a batch and put each item's maps, cut to its sizes, into its dictionary; return the whole sizes.

    Without ``sizes`` (nothing is padded, and how long it is only the network knows) the maps are kept whole.
    """
    seen = 0
    found: Sizes = {}
    last = max(index for index, one in enumerate(model.attentions) if (one.kind, one.layer) in wanted)

    def keep(shape: tuple[int, ...], weights_of: Callable[[list[int]], Tensor]) -> None:
        """Called with each attention's (B, H, Tq, Tk) and what gives some of its maps."""
        nonlocal seen
        here = model.attentions[seen]
        if sizes is None:
            expected = found.get(here.kind, (shape[2], shape[3]))
        else:
            every = [one[here.kind] for one in sizes]
            expected = (max(queries for queries, _ in every), max(keys for _, keys in every))
        if shape != (len(maps), here.num_heads, *expected):
            raise ProbeError(
                f"The {here.kind} attention of layer {here.layer} is over {shape[2]} x {shape[3]} positions "
                f"where {expected[0]} x {expected[1]} were expected: such maps are not supported."
            )
        found[here.kind] = expected
        heads = wanted.get((here.kind, here.layer), [])
        together = max(1, backend.AT_ONCE // (shape[0] * shape[2] * shape[3]))
        for start in range(0, len(heads), together):
            some = heads[start : start + together]
            weights = weights_of(some)  # (B, heads, Tq, Tk)
            for row, kept in enumerate(maps):
                queries, keys = expected if sizes is None else sizes[row][here.kind]
                for index, head in enumerate(some):
                    kept[here.kind, here.layer, head] = _alone(weights[row, index, :queries, :keys], dtype)
        seen += 1
        if seen > last:
            raise _Enough

    with backend.running(model.hf, inputs):
        try:
            if backend.uses_interface(model.hf):
                with backend.listening(model.hf, lambda call: keep(call.shape, call.weights)):
                    model.hf.base_model(**inputs)
            else:
                for weights in backend.own_maps(model.hf, inputs):
                    keep(tuple(weights.shape), partial(_heads_of, weights))
        except _Enough:
            return found
    raise ProbeError(
        f"The run ended after {seen} of {last + 1} attention layers: the network has been altered. Load it "
        "again with probe.load."
    )


def _alone(weights: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A map on the CPU that doesn't keep others alive, as a view of a larger tensor would."""
    whole = weights.untyped_storage().nbytes() == weights.numel() * weights.element_size()
    return weights.to("cpu", dtype or weights.dtype, copy=not whole)


def _heads_of(weights: Tensor, heads: list[int]) -> Tensor:
    return weights[:, heads]


def watch(model: Model, encoding: Encoding, see: Callable[[int, Tensor, Tensor | None], None]) -> None:
    """Run a model once on one text and show every layer's maps in passing, so that none has to be kept.

    ``see`` is called with the layer, its weights (H, T, T) on the model's device, and which keys each query
    may attend to: (H, T, T), bool, or None for all.

    Raises
    ------
    ProbeError
        If the model has several kinds of attention, its device's memory doesn't suffice, or the network has
        been altered so that its attention can't be seen.
    """
    if len(model.kinds) > 1 or not model.takes_text:
        raise ProbeError(
            f"{model.name} is no model of one text with one kind of attention, so its heads can't be put in "
            "one table: look at its maps with attend."
        )
    seen = 0

    def show(weights: Tensor, allowed: Tensor | None) -> None:
        nonlocal seen
        see(seen, weights[0], None if allowed is None else allowed.expand_as(weights)[0])
        seen += 1

    inputs, _ = batch_inputs(model, [encoding])
    with backend.running(model.hf, inputs):
        if backend.uses_interface(model.hf):
            with backend.listening(
                model.hf, lambda call: show(call.weights(range(call.shape[1])), call.mask)
            ):
                model.hf.base_model(**inputs)
        else:
            for weights in backend.own_maps(model.hf, inputs):
                show(weights, _apparent_mask(weights))
    if seen != model.num_layers:
        raise ProbeError(
            f"The run showed {seen} attention layers instead of {model.num_layers}: the network has been "
            "altered. Load it again with probe.load."
        )


def _apparent_mask(weights: Tensor) -> Tensor | None:
    """The mask of a model whose own code keeps it to itself: causal if no query looks ahead in any head."""
    length = weights.shape[-1]
    mask = causal_mask(length, device=weights.device)
    return None if weights.masked_fill(mask, 0.0).any() else mask


def wanted_of(model: Model, heads: Heads | None) -> Wanted:
    """The heads to keep, by kind and layer."""
    if heads is None:
        heads = model.kinds
    if not isinstance(heads, Sequence) or not heads:
        raise ProbeError(
            "heads is a list of at least one (layer, head) pair or number of a layer; leave it out for all."
        )
    wanted: Wanted = {}
    for item in heads:
        for kind, layer, chosen in _parse(model, item):
            kept = wanted.setdefault((kind, layer), [])
            kept += [head for head in chosen if head not in kept]
    return wanted


def _parse(model: Model, item: Any) -> Iterator[tuple[str, int, list[int]]]:
    """One entry of ``heads`` as kind, layer and heads."""
    only = model.kinds[0] if len(model.kinds) == 1 else None
    match item:
        case str() if item in model.kinds:
            for layer, count in enumerate(model.heads_of(item)):
                yield item, layer, list(range(count))
        case int() if only and not isinstance(item, bool):
            model.check_head(item)
            yield only, item, list(range(model.heads_per_layer[item]))
        case (layer, head) if only:
            model.check_head(layer, head)
            yield only, layer, [head]
        case (str() as kind, layer, head):
            model.check_head(layer, head, kind)
            yield kind, layer, [head]
        case _:
            wanted = (
                "(layer, head) pairs such as [(0, 0), (4, 5)], or numbers of layers"
                if only
                else f"(kind, layer, head) triples, or kinds: {', '.join(model.kinds)}"
            )
            raise ProbeError(f"heads must be {wanted}; {item!r} is neither.")


def check_heads(model: Model, heads: Sequence[tuple[int, int] | int] | None) -> dict[int, list[int]]:
    """(layer, head) pairs and layers as heads by layer, for a model with one kind of attention."""
    return {layer: chosen for (_, layer), chosen in wanted_of(model, heads).items()}
