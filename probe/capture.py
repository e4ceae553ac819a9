"""One forward pass of a model, and what its attention computed on the way.

There are two ways. ``attend`` runs the model on the backend it is on, and computes the maps that were asked
for, and no others, from the queries and keys that pass (``backend.py``). ``record`` runs it on the eager
backend, the only one that computes all maps itself, and keeps everything a check needs; it listens with
ordinary module hooks. Neither replaces anything, and afterwards the network is as it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from attention import additive_mask, causal_mask, combine_masks, padding_mask
from probe import backend
from probe.errors import ProbeError
from probe.families import Site
from probe.kinds import sides, which_kind
from probe.models import Model, resolve
from probe.tokens import Encoding, Span, Text, encode, visible
from probe.visibility import allowed_keys

# Texts are run together until their padded maps would hold this many numbers (256 MB in float32).
_NUMBERS_AT_ONCE = 64 * 2**20


@dataclass(frozen=True)
class LayerRecord:
    """What one layer's attention took in and gave out, for a batch of B texts padded to T positions.

    Attributes
    ----------
    input : (B, T, d_model), what the layer's attention was given.
    query, key, value : (B, H, T, head_dim), the model's own projections, as they take part in its attention:
        turned by rotary positions, and a copy for each head that shares them.
    weights : (B, H, T, T), the model's own attention weights, [query, key].
    context : (B, T, H * head_dim), the heads' outputs side by side, before the output projection.
    output : (B, T, d_model), after the output projection, before the residual connection.
    """

    input: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    context: Tensor
    output: Tensor


@dataclass(frozen=True)
class Recording:
    """One run of a model on one or more texts: ``layers[layer]`` is a ``LayerRecord``.

    ``attention_mask`` is (B, T), True at real tokens. Texts are padded on the right, so position t of a text
    is position t of its row.
    """

    model: Model
    encodings: tuple[Encoding, ...]
    attention_mask: Tensor
    layers: tuple[LayerRecord, ...]
    causal: bool
    logits: Tensor | None = None


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
        from probe.notebook import run_html

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

    with backend.undisturbed(model.hf), torch.no_grad(), memory_explained(model, inputs):
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


def tensors_for(model: Model, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a processor returned for one image or recording, on the model's device and in its dtype.

    Raises
    ------
    ProbeError
        If the model takes text, or lacks a tensor.
    """
    if model.takes_text:
        raise ProbeError(f"{model.name} takes text: give the text itself, not tensors.")
    for key in (model.hf.main_input_name, *(["decoder_input_ids"] if model.has_target else [])):
        value = inputs.get(key)
        if not isinstance(value, Tensor) or not value.dim() or len(value) != 1:
            raise ProbeError(f'Give {model.name} "{key}" as a tensor of one item: its first dimension is 1.')
    with unfit_explained(model):
        return {
            key: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for key, value in inputs.items()
        }


@contextmanager
def unfit_explained(model: Model) -> Iterator[None]:
    """A ProbeError in place of what a network says of tensors that it can't be run on."""
    try:
        yield
    except ProbeError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ProbeError(
            f"{model.name} can't be run on these tensors ({reason}): give what its processor returns."
        ) from None


def encode_tensors(
    model: Model, inputs: Mapping[str, Tensor], count: int
) -> tuple[Encoding, Encoding | None]:
    """Names for the ``count`` positions that a network makes of tensors, and for its target's tokens."""
    name = model.hf.main_input_name
    tokens = _positions(model, inputs[name], count)
    source = Encoding(
        text=f"{name} {tuple(inputs[name].shape)}",
        ids=(0,) * count,
        tokens=tokens,
        spans=None,
        special=tuple(token.startswith("[") for token in tokens),
        words=None,
        segments=(0,) * count,
        segment_ids_used=False,
    )
    target = _target_of_ids(model, inputs["decoder_input_ids"][0].tolist()) if model.has_target else None
    return source, target


def _positions(model: Model, tensor: Tensor, count: int) -> tuple[str, ...]:
    """What the positions are called that a network has made of an image or a recording."""
    if model.hf.main_input_name != "pixel_values":
        return tuple(f"frame {index}" for index in range(count))
    config: Any = getattr(model.hf.config, "encoder", model.hf.config)
    sides = config.patch_size if isinstance(config.patch_size, Sequence) else (config.patch_size,) * 2
    rows, columns = (length // side for length, side in zip(tensor.shape[-2:], sides, strict=True))
    extra = count - rows * columns  # a class token and its like stand before the patches
    if extra < 0:
        return tuple(f"position {index}" for index in range(count))
    names = [f"[{index}]" if index else "[CLS]" for index in range(extra)]
    return (*names, *(f"row {row}, column {column}" for row in range(rows) for column in range(columns)))


def _target_of_ids(model: Model, ids: list[int]) -> Encoding:
    """Token ids that were given as such."""
    tokenizer: Any = model.tokenizer
    if tokenizer is None:
        tokens, special = [f"token {index}" for index in ids], [False] * len(ids)
    else:
        tokens = [visible(tokenizer.decode([index])) for index in ids]
        special = [index in tokenizer.all_special_ids for index in ids]
    return Encoding(
        text=" ".join(tokens),
        ids=tuple(ids),
        tokens=tuple(tokens),
        spans=None,
        special=tuple(special),
        words=None,
        segments=(0,) * len(ids),
        segment_ids_used=False,
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
    with backend.undisturbed(model.hf), torch.no_grad(), memory_explained(model, inputs):
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


@contextmanager
def memory_explained(model: Model, inputs: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise ProbeError(
            f"The memory of {model.device} does not suffice for an input of shape "
            f"{tuple(inputs[model.hf.main_input_name].shape)}: give a shorter one.",
            "cpu",
        ) from None


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


def batches(model: Model, encodings: Sequence[Encoding], heads: int) -> Iterator[list[int]]:
    """Indices of texts to run together: of similar length, as many as memory allows for so many heads."""
    order = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
    batch: list[int] = []
    for index in order:
        numbers = (len(batch) + 1) * heads * len(encodings[index]) ** 2
        if batch and (numbers > _NUMBERS_AT_ONCE or not model.pads_safely):
            yield batch
            batch = []
        batch.append(index)
    yield batch


def encode_all(
    model: Model, text_or_texts: Text | Sequence[Text], *, truncate: bool = False
) -> list[Encoding]:
    """Tokenise one text or a list of them; an error names the text it is about."""
    if isinstance(text_or_texts, (str, tuple)):
        return [encode_for(model, text_or_texts, truncate=truncate)]
    if not isinstance(text_or_texts, Sequence) or not text_or_texts:
        given = "an empty list" if text_or_texts == [] else f"of type {type(text_or_texts).__name__}"
        raise ProbeError(f"Give a text or a list of texts; this is {given}.")
    encodings = []
    for index, text in enumerate(text_or_texts):
        try:
            encodings.append(encode_for(model, text, truncate=truncate))
        except ProbeError as error:
            which = f"Text {index} of {len(text_or_texts)}" if len(text_or_texts) > 1 else ""
            raise (error.about(which) if which else error) from None
    return encodings


def encode_for(model: Model, text: Text, *, truncate: bool = False) -> Encoding:
    """Tokenise a text, or a pair, for a model; see ``tokens.encode`` for the errors."""
    if isinstance(text, tuple) and not model.has_pairs:
        raise ProbeError(f"{model.name} takes one text, not a sentence pair: give a single string.")
    if not model.takes_text:
        raise ProbeError(
            f"{model.name} takes no text: give what its processor returns, "
            f'{{"{model.hf.main_input_name}": ...}}.'
        )
    embeddings: Any = model.hf.get_input_embeddings()
    with model.lock:  # a tokenizer keeps its truncation settings on itself
        return encode(model.tokenizer, text, model.max_tokens, embeddings.num_embeddings, truncate=truncate)


def encode_targets(
    model: Model,
    sources: Text | Sequence[Text],
    targets: str | Sequence[str] | None,
    *,
    truncate: bool = False,
) -> list[Encoding]:
    """What the decoder is given for each source; empty for a model without one.

    Raises
    ------
    ProbeError
        If the model has a decoder and there isn't one target for each source, or none and there is one.
    """
    if not model.has_target:
        if targets is not None:
            raise ProbeError(f"{model.name} has no decoder beside an encoder: it takes no target.")
        return []
    if targets is None:
        raise ProbeError(f"{model.name} has an encoder and a decoder.", "target")
    alone = isinstance(sources, (str, tuple))
    fits = isinstance(targets, str) if alone else isinstance(targets, list | tuple)
    if not fits or (not alone and len(targets) != len(sources)):
        raise ProbeError("Give one target for each text.")
    return [
        _encode_target(model, target, truncate=truncate)
        for target in ([targets] if isinstance(targets, str) else targets)
    ]


def cuts(source: Encoding, target: Encoding | None) -> str | None:
    """What was cut of a text, and of the decoder's text; None if nothing was."""
    of_target = target and target.truncated and f"The target: {target.truncated}"
    return " ".join(cut for cut in (source.truncated, of_target) if cut) or None


def _encode_target(model: Model, text: str, *, truncate: bool) -> Encoding:
    """A text shifted by one: the start token, and then the text without the token that ends it.

    At each position the decoder is to produce the token of the next (Vaswani et al. 2017, section 3.1).
    """
    settings = (model.hf.config, getattr(model.hf, "generation_config", None))
    starts = [getattr(one, "decoder_start_token_id", None) for one in settings]
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise ProbeError(
            f"{model.name} doesn't say which token its decoder starts with: set decoder_start_token_id in "
            "its configuration."
        )
    decoder: Any = model.hf.get_decoder()
    size = decoder.get_input_embeddings().num_embeddings
    limit = model.max_target_tokens

    def encoded(limit: int | None) -> Encoding:
        return encode(model.tokenizer, text, limit, size, truncate=truncate, as_target=True)

    with model.lock:
        given = encoded(limit)
        if limit is not None and len(given) == limit and not given.special[-1]:
            given = encoded(limit - 1)  # no token at the end makes room for the start token
    end = len(given) - 1 if given.special[-1] else len(given)
    return replace(
        given,
        ids=(start, *given.ids[:end]),
        tokens=(visible(str(model.tokenizer.convert_ids_to_tokens(start))), *given.tokens[:end]),
        spans=None if given.spans is None else ((0, 0), *given.spans[:end]),
        special=(True, *given.special[:end]),
        words=None if given.words is None else (None, *given.words[:end]),
        segments=(0, *given.segments[:end]),
    )


def record(
    model: Model, encodings: Sequence[Encoding], *, causal: bool | None = None, logits: bool = False
) -> Recording:
    """Run the model once on a batch of texts and keep what every layer's attention took in and gave out.

    Parameters
    ----------
    causal : whether queries are kept from later tokens, in every layer; by default as the model was trained.
        A layer's window stays, and reaches both ways where queries aren't kept from later tokens.
    logits : whether to run the model's head for words too, if it has one.

    Raises
    ------
    ProbeError
        If the device's memory doesn't suffice, or the network has been altered so that its attention can't be
        seen.
    """
    inputs, attention_mask = batch_inputs(model, encodings)
    if causal is None:
        causal = model.causal
    elif causal != model.causal:
        inputs["attention_mask"] = _given_masks(model, attention_mask, causal)
    network = model.hf if logits and model.predicts_words else model.hf.base_model
    # Layers that share their modules (ALBERT's) share a listener, and are told apart by the order of calls.
    listeners = {site.attention: _Listener(site) for site in model.sites}
    with ExitStack() as stack:
        stack.enter_context(model.lock)
        stack.enter_context(backend.undisturbed(model.hf))
        stack.enter_context(backend.eager(model.hf))
        stack.enter_context(torch.no_grad())
        for listener in listeners.values():
            for handle in listener.attach():
                stack.callback(handle.remove)
        with memory_explained(model, inputs):
            result = network(**inputs)
    layers = tuple(listeners[site.attention].record(layer) for layer, site in enumerate(model.sites))
    return Recording(model, tuple(encodings), attention_mask, layers, causal, getattr(result, "logits", None))


def _given_masks(model: Model, attention_mask: Tensor, causal: bool) -> Tensor | dict[str, Tensor]:
    """What a network takes in place of the masks it would make: (B, 1, T, T), 0 and -inf.

    transformers hands a 4-D mask on as it is. Where some layers have a window and others none, it takes one
    for each kind of layer, by the names in the configuration (Qwen2's).
    """
    length = attention_mask.shape[1]

    def given(window: int | None) -> Tensor:
        allowed = allowed_keys(length, causal=causal, window=window, device=attention_mask.device)
        combined = combine_masks(allowed, padding_mask(attention_mask))
        assert combined is not None
        return additive_mask(combined, model.dtype).expand(-1, 1, length, length)

    windows = [site.window for site in model.sites]
    if len(set(windows)) == 1:
        return given(windows[0])
    kinds: list[str] = model.hf.config.layer_types
    return {kind: given(window) for kind, window in zip(kinds, windows, strict=True)}


def batch_inputs(
    model: Model, encodings: Sequence[Encoding], targets: Sequence[Encoding] = ()
) -> tuple[dict[str, Any], Tensor]:
    """Model inputs (B, T), and (B, S) for targets, padded on the right, and the mask of real tokens."""
    inputs, mask = _padded(model, encodings)
    if encodings[0].segment_ids_used:
        segments = [[*one.segments, *[0] * (mask.shape[1] - len(one))] for one in encodings]
        inputs["token_type_ids"] = torch.tensor(segments, device=model.device)
    if targets:
        inputs |= {f"decoder_{name}": value for name, value in _padded(model, targets)[0].items()}
    if "use_cache" in inspect.signature(model.hf.base_model.forward).parameters:
        inputs["use_cache"] = False
    return inputs, mask


def _padded(model: Model, encodings: Sequence[Encoding]) -> tuple[dict[str, Any], Tensor]:
    longest = max(map(len, encodings))
    # Padding is masked out, so any id of the vocabulary will do where a tokenizer has none for it (GPT-2).
    padding = model.tokenizer.pad_token_id if model.tokenizer.pad_token_id is not None else 0
    ids = [[*one.ids, *[padding] * (longest - len(one))] for one in encodings]
    lengths = torch.tensor([len(one) for one in encodings], device=model.device)
    mask = torch.arange(longest, device=model.device) < lengths[:, None]
    return {"input_ids": torch.tensor(ids, device=model.device), "attention_mask": mask.long()}, mask


class _Listener:
    """Hooks that change and copy nothing: they keep references to what an attention module works on."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.calls: list[dict[Any, Any]] = []
        self.recorded = 0

    def attach(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        site = self.site
        yield site.attention.register_forward_pre_hook(self._attention_input, with_kwargs=True)
        yield site.attention.register_forward_hook(self._attention_output)
        for module in {site.query.module, site.key.module, site.value.module}:
            yield module.register_forward_hook(self._projection_output)
        yield site.output.module.register_forward_hook(self._merged)

    def _attention_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append({"input": args[0] if args else kwargs["hidden_states"]})

    def _attention_output(self, module: nn.Module, args: Any, output: Any) -> None:
        self.calls[-1]["weights"] = output[1]

    def _projection_output(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self.calls:
            self.calls[-1][module] = output

    def _merged(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if self.calls:
            self.calls[-1]["context"], self.calls[-1]["output"] = args[0], output

    def record(self, layer: int) -> LayerRecord:
        """What the next call was that has not been recorded yet."""
        site = self.site
        try:
            seen = self.calls[self.recorded]
            self.recorded += 1
            query, key, value = (
                site.heads(role, seen[getattr(site, role).module]) for role in ("query", "key", "value")
            )
            named = {name: seen[name] for name in ("input", "weights", "context", "output")}
        except (IndexError, KeyError):
            named = {"weights": None}
        if named["weights"] is None:
            raise ProbeError(
                f"Layer {layer} of the model ran without showing its attention: it has been altered "
                "(other modules put in place of its own, say). Load it again with probe.load."
            )
        return LayerRecord(query=query, key=key, value=value, **named)
