"""One forward pass of a model, and what its attention computed on the way.

Everything that touches the inside of transformers is in this file. The pass runs on the eager backend, which
is the one that computes attention maps at all, and is listened to with ordinary module hooks: nothing is
replaced, and afterwards the network is as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attention import additive_mask, causal_mask, padding_mask
from probe.errors import ProbeError
from probe.families import Site
from probe.models import Model, resolve
from probe.tokens import Encoding, Span, Text, encode


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


def attend(
    model: Model | str,
    text: Text,
    heads: Sequence[tuple[int, int]] | None = None,
    *,
    truncate: bool = False,
) -> Run:
    """Run a model once on a text and keep its attention weights.

    Parameters
    ----------
    model : a loaded model, or a name as for ``load``.
    text : the text, or (first, second) for a model that takes sentence pairs.
    heads : the (layer, head) pairs to keep, counted from 0; all of them by default.
    truncate : cut a text that is longer than the model's positions; the run then says so.

    Raises
    ------
    ProbeError
        If there is no such model, layer or head, or the text can't be taken.

    Examples
    --------
    >>> run = attend("gpt2", "The cat sat on the mat.")
    >>> run.weights(layer=0, head=0)[0, 0]
    tensor(1.)
    """
    model = resolve(model)
    wanted = _check_heads(model, heads)
    encoding = encode_for(model, text, truncate=truncate)
    recording = record(model, [encoding])
    maps = {
        # A clone, because a view would keep the maps of all heads alive.
        (layer, head): recording.layers[layer].weights[0, head].clone().cpu()
        for layer, head in wanted
    }
    return Run(
        model.name,
        model.source,
        text,
        encoding.tokens,
        encoding.spans,
        encoding.special,
        encoding.truncated,
        model.num_layers,
        model.num_heads,
        maps,
    )


def _check_heads(model: Model, heads: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    if heads is None:
        return [(layer, head) for layer in range(model.num_layers) for head in range(model.num_heads)]
    wanted = []
    for pair in heads:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise ProbeError(
                f"heads must be (layer, head) pairs such as [(0, 0), (4, 5)]; {pair!r} is not one."
            )
        model.check_head(*pair)
        wanted.append((pair[0], pair[1]))
    if not wanted:
        raise ProbeError(
            "heads is empty: name at least one (layer, head) pair, or leave it out for all of them."
        )
    return wanted


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
    inputs, attention_mask = _batch(model, encodings)
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
    with model.lock, _as_loaded(model.hf), ExitStack() as hooks, torch.no_grad():
        for listener in listeners:
            for handle in listener.attach():
                hooks.callback(handle.remove)
        try:
            result = network(**inputs)
        except torch.OutOfMemoryError:
            raise ProbeError(
                f"The memory of {model.device} does not suffice for {attention_mask.shape[1]} tokens: "
                'give a shorter text, or load the model with device="cpu".'
            ) from None
    layers = tuple(listener.record(layer) for layer, listener in enumerate(listeners))
    return Recording(model, tuple(encodings), attention_mask, layers, causal, getattr(result, "logits", None))


def _batch(model: Model, encodings: Sequence[Encoding]) -> tuple[dict[str, Any], Tensor]:
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
    if model.causal:
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


@contextmanager
def _as_loaded(hf: Any) -> Iterator[None]:
    """The network in evaluation mode, eager, in full precision and not compiled; afterwards as it was before.

    TF32 and bfloat16 shortcuts of float32 products are switched off meanwhile: they are faster, not other
    mathematics, and would hide an error of 1e-3.
    """
    training = [module for module in hf.modules() if module.training]
    implementation = hf.config._attn_implementation
    precision = torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        if training:
            hf.eval()
            stack.callback(_train, training)
        if implementation != "eager":
            hf.set_attn_implementation("eager")
            stack.callback(hf.set_attn_implementation, implementation)
        if precision != "highest":
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, precision)
        if any(getattr(module, "_compiled_call_impl", None) is not None for module in hf.modules()):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.autocast(hf.device.type, enabled=False))
        yield


def _train(modules: Collection[nn.Module]) -> None:
    for module in modules:
        module.training = True
