"""One forward pass of a model, and what its attention computed on the way.

There are two ways. ``attend`` runs the model on the backend it is on, and computes the maps that were asked
for, and no others, from the queries and keys that pass (``backend.py``). ``record`` runs it on the eager
backend, the only one that computes all maps itself, and keeps everything a check needs; it listens with
ordinary module hooks. Neither replaces anything, and afterwards the network is as it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn

from attention import additive_mask, causal_mask, padding_mask
from probe import backend
from probe.errors import ProbeError
from probe.families import Site
from probe.models import Model, resolve
from probe.tokens import Encoding, Span, Text, encode

# Texts are run together until their padded maps would hold this many numbers (256 MB in float32).
_NUMBERS_AT_ONCE = 64 * 2**20


@dataclass(frozen=True)
class LayerRecord:
    """What one layer's attention took in and gave out, for a batch of B texts padded to T positions.

    Attributes
    ----------
    input : (B, T, d_model), what the layer's attention was given.
    query, key, value : (B, H, T, head_dim), the model's own projections.
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
    text : the text, or pair of texts.
    tokens : what each of the T tokens is called.
    spans : (start, end) of each token in its text, in code points; None if the tokenizer keeps none.
    special : True for special tokens.
    truncated : a sentence saying what was cut, or None.
    """

    model_name: str
    source: str
    text: Text
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    truncated: str | None
    num_layers: int
    num_heads: int
    maps: dict[tuple[int, int], Tensor]

    def weights(self, layer: int, head: int) -> Tensor:
        """One head's attention weights: (T, T) on the CPU, row = query, column = key; each row sums to 1.

        Raises
        ------
        ProbeError
            If this run did not keep that head.
        """
        try:
            return self.maps[layer, head]
        except KeyError:
            kept = (
                f"layers 0 to {self.num_layers - 1}, heads 0 to {self.num_heads - 1}"
                if len(self.maps) == self.num_layers * self.num_heads
                else ", ".join(f"({one}, {other})" for one, other in sorted(self.maps))
            )
            raise ProbeError(
                f"Layer {layer!r}, head {head!r} is not in this run of {self.model_name}, which has {kept}."
            ) from None

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
            "weights": [
                {"layer": layer, "head": head, "weights": weights.tolist()}
                for (layer, head), weights in sorted(self.maps.items())
            ],
        }


@overload
def attend(
    model: Model | str,
    text_or_texts: Text,
    heads: Sequence[tuple[int, int] | int] | None = None,
    *,
    truncate: bool = False,
    dtype: torch.dtype | None = None,
) -> Run: ...


@overload
def attend(
    model: Model | str,
    text_or_texts: list[str] | list[tuple[str, str]] | list[Text],
    heads: Sequence[tuple[int, int] | int] | None = None,
    *,
    truncate: bool = False,
    dtype: torch.dtype | None = None,
) -> list[Run]: ...


def attend(
    model: Model | str,
    text_or_texts: Text | Sequence[Text],
    heads: Sequence[tuple[int, int] | int] | None = None,
    *,
    truncate: bool = False,
    dtype: torch.dtype | None = None,
) -> Run | list[Run]:
    """Run a model once on its own backend, and keep the attention weights that are asked for.

    The weights are computed with ``attention`` from the queries and keys of the run, for the chosen heads
    alone; the model itself computes what it always does. The run ends after the last layer that is wanted.
    Texts of different length are run together; each is returned without padding.

    Parameters
    ----------
    model : a loaded model, or a name as for ``load``.
    text_or_texts : a text, or (first, second) for a model that takes sentence pairs; or a list of either.
    heads : what to keep: (layer, head) pairs, or the numbers of whole layers, counted from 0. All heads by
        default.
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
    wanted = check_heads(model, heads)
    encodings = encode_all(model, text_or_texts, truncate=truncate)
    kept = len([pair for layer in wanted.values() for pair in layer])
    maps: list[dict[tuple[int, int], Tensor]] = [{} for _ in encodings]
    for batch in batches(encodings, kept):
        _capture(
            model, [encodings[index] for index in batch], wanted, [maps[index] for index in batch], dtype
        )
    runs = [
        Run(
            model.name,
            model.source,
            encoding.text,
            encoding.tokens,
            encoding.spans,
            encoding.special,
            encoding.truncated,
            model.num_layers,
            model.num_heads,
            found,
        )
        for encoding, found in zip(encodings, maps, strict=True)
    ]
    return runs[0] if isinstance(text_or_texts, (str, tuple)) else runs


class _Enough(Exception):
    """The last wanted layer has been seen: the rest of the forward pass isn't needed."""


def _capture(
    model: Model,
    encodings: Sequence[Encoding],
    wanted: dict[int, list[int]],
    maps: Sequence[dict[tuple[int, int], Tensor]],
    dtype: torch.dtype | None,
) -> None:
    """Run a batch and put each text's maps, without padding, into its dictionary."""
    layer = -1

    def see(call: backend.Call) -> None:
        nonlocal layer
        layer += 1
        if layer in wanted:
            weights = call.weights(wanted[layer])  # (B, heads, T, T)
            for row, (encoding, found) in enumerate(zip(encodings, maps, strict=True)):
                size = len(encoding)
                for index, head in enumerate(wanted[layer]):
                    # A clone, because a view would keep the maps of all texts and heads of the layer alive.
                    one = weights[row, index, :size, :size].to(dtype or weights.dtype, copy=True)
                    found[layer, head] = one.cpu()
        if layer == last:
            raise _Enough

    last = max(wanted)
    inputs, _ = batch_inputs(model, encodings)
    with model.lock, backend.undisturbed(model.hf), torch.no_grad(), backend.listening(model.hf, see):
        try:
            with _memory_explained(model, inputs):
                model.hf.base_model(**inputs)
        except _Enough:
            return
    raise ProbeError(
        f"The run ended after {layer + 1} attention layers, before layer {last}: the network has been "
        "altered. Load it again with probe.load."
    )


def watch(model: Model, encoding: Encoding, see: Callable[[int, Tensor, Tensor | None], None]) -> None:
    """Run a model once on one text and show every layer's maps in passing, so that none has to be kept.

    ``see`` is called with the layer, its weights (H, T, T) on the model's device, and which keys each query
    may attend to: (H, T, T), bool, or None for all.

    Raises
    ------
    ProbeError
        If the device's memory doesn't suffice, or the network has been altered so that its attention can't be
        seen.
    """
    seen = 0

    def show(call: backend.Call) -> None:
        nonlocal seen
        weights = call.weights(range(call.num_heads))[0]  # (1, H, T, T) -> (H, T, T)
        see(seen, weights, None if call.mask is None else call.mask.expand(1, *weights.shape)[0])
        seen += 1

    inputs, _ = batch_inputs(model, [encoding])
    with ExitStack() as stack:
        stack.enter_context(model.lock)
        stack.enter_context(backend.undisturbed(model.hf))
        stack.enter_context(torch.no_grad())
        stack.enter_context(backend.listening(model.hf, show))
        stack.enter_context(_memory_explained(model, inputs))
        model.hf.base_model(**inputs)
    if seen != model.num_layers:
        raise ProbeError(
            f"The run showed {seen} attention layers instead of {model.num_layers}: the network has been "
            "altered. Load it again with probe.load."
        )


@contextmanager
def _memory_explained(model: Model, inputs: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise ProbeError(
            f"The memory of {model.device} does not suffice for {inputs['input_ids'].shape[1]} tokens: "
            'give a shorter text, or load the model with device="cpu".'
        ) from None


def check_heads(model: Model, heads: Sequence[tuple[int, int] | int] | None) -> dict[int, list[int]]:
    """The heads to keep, by layer."""
    if heads is None:
        heads = range(model.num_layers)
    wanted: dict[int, list[int]] = {}
    for item in heads:
        if isinstance(item, int) and not isinstance(item, bool):
            model.check_head(item)
            wanted[item] = list(range(model.heads_per_layer[item]))
        elif isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 2:
            layer, head = item
            model.check_head(layer, head)
            if head not in wanted.setdefault(layer, []):
                wanted[layer].append(head)
        else:
            raise ProbeError(
                "heads must be (layer, head) pairs such as [(0, 0), (4, 5)], or numbers of layers; "
                f"{item!r} is neither."
            )
    if not wanted:
        raise ProbeError(
            "heads is empty: name at least one (layer, head) pair, or leave it out for all of them."
        )
    return wanted


def batches(encodings: Sequence[Encoding], heads: int) -> Iterator[list[int]]:
    """Indices of texts to run together: of similar length, as many as memory allows for so many heads."""
    order = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * heads * len(encodings[index]) ** 2 > _NUMBERS_AT_ONCE:
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
        given = "an empty list" if text_or_texts == [] else f"a {type(text_or_texts).__name__}"
        raise ProbeError(f"Give a text or a list of texts; this is {given}.")
    encodings = []
    for index, text in enumerate(text_or_texts):
        try:
            encodings.append(encode_for(model, text, truncate=truncate))
        except ProbeError as error:
            which = f"Text {index} of {len(text_or_texts)}: " if len(text_or_texts) > 1 else ""
            raise ProbeError(f"{which}{error}") from None
    return encodings


def encode_for(model: Model, text: Text, *, truncate: bool = False) -> Encoding:
    """Tokenise a text, or a pair, for a model; see ``tokens.encode`` for the errors."""
    if isinstance(text, tuple) and not model.has_pairs:
        raise ProbeError(f"{model.name} takes one text, not a sentence pair: give a single string.")
    embeddings: Any = model.hf.get_input_embeddings()
    with model.lock:  # a tokenizer keeps its truncation settings on itself
        return encode(model.tokenizer, text, model.max_tokens, embeddings.num_embeddings, truncate=truncate)


def record(
    model: Model, encodings: Sequence[Encoding], *, causal: bool | None = None, logits: bool = False
) -> Recording:
    """Run the model once on a batch of texts and keep what every layer's attention took in and gave out.

    Parameters
    ----------
    causal : whether queries are kept from later tokens, in every layer; by default as the model was trained.
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
        # transformers takes a 4-D mask as it is, in place of the one it would make.
        allowed = padding_mask(attention_mask)
        if causal:
            allowed = allowed & causal_mask(attention_mask.shape[1], device=model.device)
        length = attention_mask.shape[1]
        inputs["attention_mask"] = additive_mask(allowed, model.dtype).expand(-1, 1, length, length)
    network = model.hf if logits and model.predicts_words else model.hf.base_model
    listeners = [_Listener(site) for site in model.sites]
    with ExitStack() as stack:
        stack.enter_context(model.lock)
        stack.enter_context(backend.undisturbed(model.hf))
        stack.enter_context(backend.eager(model.hf))
        stack.enter_context(torch.no_grad())
        for listener in listeners:
            for handle in listener.attach():
                stack.callback(handle.remove)
        with _memory_explained(model, inputs):
            result = network(**inputs)
    layers = tuple(listener.record(layer) for layer, listener in enumerate(listeners))
    return Recording(model, tuple(encodings), attention_mask, layers, causal, getattr(result, "logits", None))


def batch_inputs(model: Model, encodings: Sequence[Encoding]) -> tuple[dict[str, Any], Tensor]:
    """Model inputs (B, T), padded on the right, and the mask of real tokens."""
    lengths = [len(encoding) for encoding in encodings]
    longest = max(lengths)
    # Padding is masked out, so any id of the vocabulary will do where a tokenizer has none for it (GPT-2).
    padding = model.tokenizer.pad_token_id if model.tokenizer.pad_token_id is not None else 0

    def rows(values: Sequence[Sequence[int]], fill: int) -> Tensor:
        return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in values], device=model.device)

    mask = torch.arange(longest, device=model.device) < torch.tensor(lengths, device=model.device)[:, None]
    inputs: dict[str, Any] = {
        "input_ids": rows([encoding.ids for encoding in encodings], padding),
        "attention_mask": mask.long(),
    }
    if encodings[0].segment_ids_used:
        inputs["token_type_ids"] = rows([encoding.segments for encoding in encodings], 0)
    if "use_cache" in inspect.signature(model.hf.base_model.forward).parameters:
        inputs["use_cache"] = False
    return inputs, mask


class _Listener:
    """Hooks that change and copy nothing: they keep references to what one layer's attention works on."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.seen: dict[str, Any] = {}
        self.projected: dict[nn.Module, Tensor] = {}

    def attach(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        site = self.site
        yield site.attention.register_forward_pre_hook(self._attention_input, with_kwargs=True)
        yield site.attention.register_forward_hook(self._attention_output)
        for module in {site.query.module, site.key.module, site.value.module}:
            yield module.register_forward_hook(self._projection_output)
        yield site.output.module.register_forward_hook(self._merged)

    def _attention_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen["input"] = args[0] if args else kwargs["hidden_states"]

    def _attention_output(self, module: nn.Module, args: Any, output: Any) -> None:
        self.seen["weights"] = output[1]

    def _projection_output(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.projected[module] = output

    def _merged(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.seen["context"], self.seen["output"] = args[0], output

    def record(self, layer: int) -> LayerRecord:
        if len(self.seen) < 4 or self.seen["weights"] is None or not self.projected:
            raise ProbeError(
                f"Layer {layer} of the model ran without showing its attention: it has been altered "
                "(other modules put in place of its own, say). Load it again with probe.load."
            )
        site = self.site

        def heads(projection: Any) -> Tensor:
            columns: Tensor = projection.columns(self.projected[projection.module])
            # (B, T, H * head_dim) -> (B, T, H, head_dim) -> (B, H, T, head_dim)
            return columns.unflatten(-1, (site.num_heads, -1)).transpose(1, 2)

        return LayerRecord(query=heads(site.query), key=heads(site.key), value=heads(site.value), **self.seen)
