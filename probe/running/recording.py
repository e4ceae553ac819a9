"""One run on the eager backend, and everything that each layer's attention took in and gave out.

Eager is the only backend that computes all maps itself. Ordinary module hooks listen; nothing is replaced,
and afterwards the network is as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from attention import additive_mask, combine_masks, padding_mask
from probe.errors import ProbeError
from probe.models import backend
from probe.models.families import ROLES, Site
from probe.models.loading import Model
from probe.models.visibility import allowed_keys
from probe.running.inputs import batch_inputs
from probe.running.tokens import Encoding


@dataclass(frozen=True)
class LayerRecord:
    """What one layer's attention took in and gave out, for a batch of B texts padded to T positions.

    Attributes
    ----------
    input : (B, T, d_model), what the layer's attention was given.
    query, key, value : (B, H, T, head_dim), the model's own projections, as they take part in its attention:
        normalised, turned by rotary positions, and a copy for each head that shares them.
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

    @property
    def nbytes(self) -> int:
        """Memory that its tensors take."""
        return held(self.layers)


def held(parts: Iterable[Any]) -> int:
    """Bytes of the tensors that dataclasses have as fields; what several share counts once."""
    tensors = (getattr(part, one.name) for part in parts for one in fields(part))
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


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
        stack.enter_context(backend.running(model.hf, inputs))
        stack.enter_context(backend.eager(model.hf))
        for listener in listeners.values():
            for handle in listener.attach():
                stack.callback(handle.remove)
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


class _Listener:
    """Hooks that change and copy nothing: they keep references to what an attention module works on."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.calls: list[dict[Any, Any]] = []
        self.recorded = 0

    def attach(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        site = self.site
        yield site.attention.register_forward_pre_hook(self._called, with_kwargs=True)
        for module in {site.attention, site.output.module, *(site.source(role) for role in ROLES)}:
            yield module.register_forward_hook(self._returned)

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append({"input": args[0] if args else kwargs["hidden_states"]})

    def _returned(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.calls:
            self.calls[-1][module] = args, output

    def record(self, layer: int) -> LayerRecord:
        """What the next call was that has not been recorded yet."""
        site = self.site
        try:
            seen = self.calls[self.recorded]
            self.recorded += 1
            query, key, value = (site.heads(role, seen[site.source(role)][1]) for role in ROLES)
            weights = seen[site.attention][1][1]
            (context, *_), output = seen[site.output.module]
        except (IndexError, KeyError):
            weights = None
        if weights is None:
            raise ProbeError(
                f"Layer {layer} of the model ran without showing its attention: it has been altered "
                "(other modules put in place of its own, say). Load it again with probe.load."
            )
        return LayerRecord(seen["input"], query, key, value, weights, context, output)
