"""One forward pass of a model on its own backend, and the attention weights that were asked for.

They are computed from the queries and keys that pass (``backend.py``), for the wanted heads and no others;
where nothing can be listened to, they are those that the network returns. Nothing is replaced, and afterwards
the network is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor

from attention import causal_mask
from probe.errors import ProbeError
from probe.models import backend
from probe.models.kinds import sides, which_kind
from probe.models.loading import Model, resolve
from probe.running.inputs import (
    batch_inputs,
    batches,
    cuts,
    encode_all,
    encode_targets,
    encode_tensors,
    tensors_for,
    unfit_explained,
)
from probe.running.tokens import Encoding, Span, Text


@dataclass(frozen=True)
class Run:
    """The attention weights of one run of a model on one text. Made by ``attend``.

    Attributes
    ----------
    model_name, source : which model, and where its weights came from.
    text : the text, or pair of texts; for an image or a recording the name and shape of its tensor.
    tokens : what each of the T tokens is called (or patches of an image, frames of a recording).
    spans : (start, end) of each token in its text, in code points; None if there are none.
    special : True for special tokens.
    truncated : a sentence saying what was cut, or None.
    heads : how many heads each layer has, for each kind of attention.
    maps : the weights that were kept, by kind, layer and head.
    target : what the decoder was given, its start token first; None for a model without one.
    """

    model_name: str
    source: str
    text: Text
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    truncated: str | None
    heads: dict[str, tuple[int, ...]]
    maps: dict[tuple[str, int, int], Tensor] = field(repr=False)
    target: Encoding | None = None

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

    def labels(self, kind: str | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the queries and the keys of a kind of attention are called."""
        kind = which_kind(self.model_name, self.heads, kind)
        return sides(kind, self.tokens, self.target.tokens if self.target else ())

    def _kept(self) -> str:
        if len(self.heads) == 1 and len(self.maps) == sum(map(sum, self.heads.values())):
            (heads,) = self.heads.values()
            return f"layers 0 to {len(heads) - 1}, heads 0 to {max(heads) - 1}"
        names = [
            f"({kind}, {layer}, {head})" if len(self.heads) > 1 else f"({layer}, {head})"
            for kind, layer, head in sorted(self.maps)
        ]
        return ", ".join(names if len(names) < 20 else [*names[:19], "..."])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {
            "model": self.model_name,
            "source": self.source,
            "text": self.text,
            "tokens": list(self.tokens),
            "spans": None if self.spans is None else [list(span) for span in self.spans],
            "special": list(self.special),
            "truncated": self.truncated,
            **({} if self.target is None else {"target": list(self.target.tokens)}),
            "weights": [
                {
                    **({} if len(self.heads) == 1 else {"kind": kind}),
                    "layer": layer,
                    "head": head,
                    "weights": weights.tolist(),
                }
                for (kind, layer, head), weights in sorted(self.maps.items())
            ],
        }

    def _repr_html_(self) -> str:
        """For notebooks."""
        from probe.display.notebook import run_html

        return run_html(self)


# What can be named in ``heads``: a layer, a head of it; a kind of attention, a head of a layer of a kind.
Heads = Sequence[int | tuple[int, int] | str | tuple[str, int, int]]


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
    text_or_texts : a text, or (first, second) for a model that takes sentence pairs; or a list of either. For
        a model of images or sound, what its processor returns for one of them, as tensors: say
        {"pixel_values": (1, 3, height, width)}.
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
    wanted = _wanted_of(model, heads)
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
        sizes = [_sizes(encodings[index], targets[index] if targets else None) for index in batch]
        _capture(model, inputs, wanted, sizes, [maps[index] for index in batch], dtype)
    heads_of = {kind: model.heads_of(kind) for kind in model.kinds}
    runs = [
        Run(
            model.name,
            model.source,
            encoding.text,
            encoding.tokens,
            encoding.spans,
            encoding.special,
            cuts(encoding, targets[index] if targets else None),
            heads_of,
            maps[index],
            targets[index] if targets else None,
        )
        for index, encoding in enumerate(encodings)
    ]
    return runs[0] if isinstance(text_or_texts, (str, tuple)) else runs


Wanted = dict[tuple[str, int], list[int]]
Maps = dict[tuple[str, int, int], Tensor]


class _Enough(Exception):
    """The last wanted layer has been seen: the rest of the forward pass isn't needed."""


Sizes = dict[str, tuple[int, int]]  # of the maps of each kind: queries and keys


def _sizes(source: Encoding, target: Encoding | None) -> Sizes:
    keys = len(source)
    if target is None:
        return {"self": (keys, keys)}
    queries = len(target)
    return {"encoder": (keys, keys), "decoder": (queries, queries), "cross": (queries, keys)}


def _capture(
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


def _attend_tensors(
    model: Model, inputs: Mapping[str, Tensor], wanted: Wanted, dtype: torch.dtype | None
) -> Run:
    """``attend`` for what a processor makes of an image or a recording."""
    given = tensors_for(model, inputs)
    maps: Maps = {}
    with unfit_explained(model):
        sizes = _capture(model, given, wanted, None, [maps], dtype)
    source, target = encode_tensors(model, given, sizes["encoder" if model.has_target else "self"][0])
    return Run(
        model.name,
        model.source,
        source.text,
        source.tokens,
        source.spans,
        source.special,
        None,
        {kind: model.heads_of(kind) for kind in model.kinds},
        maps,
        target,
    )


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


def _wanted_of(model: Model, heads: Heads | None) -> Wanted:
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
    return {layer: chosen for (_, layer), chosen in _wanted_of(model, heads).items()}
