"""The places of a forward pass where two networks can be compared, and what each has there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probe.errors import ProbeError
from probe.models.computing import computing
from probe.models.loading import Model
from probe.running.recording import Recording, record
from probe.running.tokens import Encoding

_ATTENTION_NAMES = ("attn", "attention", "self_attn", "self_attention", "att", "sa", "mha", "mixer")


def at(layer: int, what: str) -> str:
    return f"layer {layer}, {what}"


EMBEDDINGS = "input of the first layer"


def order(num_layers: int) -> Iterator[tuple[str, int | None]]:
    """All places, in the order in which they are computed."""
    yield EMBEDDINGS, None
    for layer in range(num_layers):
        for what in ("attention input", "attention weights", "attention output", "output"):
            yield at(layer, what), layer
    yield "logits", None


@dataclass(frozen=True, eq=False)
class Reference:
    """What the model has at each place, by its name; (1, T, ...)."""

    model: Model
    recording: Recording
    found: dict[str, Tensor]
    blocks: list[nn.Module]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]

    @classmethod
    def run(cls, model: Model, encoding: Encoding) -> Reference:
        blocks = _blocks_of(model)
        found: dict[str, Tensor] = {}
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        with ExitStack() as stack:
            _watch_layers(stack, blocks, found)
            for block in blocks:
                hook = block.register_forward_pre_hook(
                    lambda module, args, kwargs: calls.append((args, dict(kwargs))), with_kwargs=True
                )
                stack.callback(hook.remove)
            recording = record(model, [encoding], logits=True)
        for layer, one in enumerate(recording.layers):
            found[at(layer, "attention input")] = one.input
            found[at(layer, "attention weights")] = one.weights
            found[at(layer, "attention output")] = one.output
        if recording.logits is not None:
            found["logits"] = recording.logits
        plain = {name: value.detach().cpu() for name, value in found.items()}
        return cls(model, recording, plain, blocks, calls)


@dataclass(frozen=True, eq=False)
class Own:
    """What the network that is checked has, by the same names, and in what it was computed."""

    found: dict[str, Tensor]
    dtype: torch.dtype
    notes: tuple[str, ...]

    @classmethod
    def run(
        cls, mine: nn.Module, model: Model, encoding: Encoding, layers: str | None, attention: str | None
    ) -> Own:
        ids = torch.tensor([encoding.ids])
        problems = []
        for dtype in (torch.float64, None):
            network = copy.deepcopy(mine).eval()
            network = network if dtype is None else network.to(dtype)
            first = next(network.parameters(), None)
            if first is None:
                raise ProbeError("Your network has no parameters, so it can't have the model's weights.")
            found: dict[str, Tensor] = {}
            with ExitStack() as stack:
                stack.enter_context(computing(first.device, tuple(ids.shape)))
                notes = _watch_own(stack, network, model, layers, attention, found)
                try:
                    output = network(ids.to(first.device))
                except Exception as error:  # whatever a stranger's code raises
                    problems.append(f"{type(error).__name__}: {error}")
                    continue
            logits = _logits(output)
            if logits is not None and not model.predicts_words:
                logits, notes = None, (*notes, f"{model.name} has no head for words: no logits to compare.")
            if logits is not None:
                found["logits"] = logits
            if not found:
                raise ProbeError(
                    "Nothing of your network can be compared: it returned no logits, and its layers were not "
                    'found. Name them: layers="transformer.h", say.'
                )
            plain = {name: value.detach().cpu() for name, value in found.items()}
            return cls(plain, first.dtype, tuple(notes))
        raise ProbeError(
            f"Your network can't be called with token ids of shape (1, {len(encoding)}): {problems[-1]}"
        )


# ---- where things lie


def _blocks_of(model: Model) -> list[nn.Module]:
    """The model's layers: the list whose entries hold the attention of one layer each."""
    sites = model.sites
    for module in model.hf.base_model.modules():
        if not isinstance(module, nn.ModuleList) or len(module) != len(sites):
            continue
        if all(site.attention in set(block.modules()) for block, site in zip(module, sites, strict=True)):
            return list(module)
    raise ProbeError(
        f"The layers of {model.name} share their modules or lie apart: it can't be held against another."
    )


def _watch_layers(stack: ExitStack, blocks: list[nn.Module], found: dict[str, Tensor]) -> None:
    """Keep what goes into the first of the layers and what comes out of each."""

    def begins(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tensor = first_tensor((args, kwargs))
        if tensor is not None:
            found.setdefault(EMBEDDINGS, tensor.detach().clone())

    def ends(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            tensor = first_tensor(output)
            if tensor is not None:
                found[name] = tensor.detach().clone()

        return keep

    stack.callback(blocks[0].register_forward_pre_hook(begins, with_kwargs=True).remove)
    for layer, block in enumerate(blocks):
        stack.callback(block.register_forward_hook(ends(at(layer, "output"))).remove)


def _watch_own(
    stack: ExitStack,
    network: nn.Module,
    model: Model,
    layers: str | None,
    attention: str | None,
    found: dict[str, Tensor],
) -> tuple[str, ...]:
    """Listen to the layers of a network, and to the attention in them; returns what could not be found."""
    blocks = _own_blocks(network, model.num_layers, layers)
    if blocks is None:
        return (
            f"No list of {model.num_layers} layers was found in your network, so only the logits were "
            'compared: name it, as in layers="transformer.h".',
        )
    _watch_layers(stack, blocks, found)
    inside = [_own_attention(block, attention) for block in blocks]
    if None in inside:
        return (
            "The attention in your layers was not found, so only the layers were compared: name it, as in "
            'attention="attn".',
        )
    for layer, module in enumerate(inside):
        assert module is not None
        stack.callback(module.register_forward_hook(_keep_attention(layer, found), with_kwargs=True).remove)
    return ()


def _keep_attention(layer: int, found: dict[str, Tensor]) -> Callable[..., None]:
    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        given = first_tensor((args, kwargs))
        if given is not None:
            found[at(layer, "attention input")] = given.detach().clone()
        made = first_tensor(output)
        if made is not None:
            found[at(layer, "attention output")] = made.detach().clone()
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if isinstance(weights, Tensor) and weights.dim() == 4:
            found[at(layer, "attention weights")] = weights.detach().clone()

    return keep


def _own_blocks(network: nn.Module, count: int, name: str | None) -> list[nn.Module] | None:
    if name is not None:
        try:
            found: Any = network.get_submodule(name)
        except AttributeError:
            raise ProbeError(f'Your network has no module "{name}".') from None
        if not isinstance(found, nn.ModuleList | nn.Sequential) or len(found) != count:
            raise ProbeError(
                f'"{name}" is no list of {count} layers, which the model has, but {type(found).__name__}'
                + (f" of {len(found)}." if isinstance(found, nn.ModuleList | nn.Sequential) else ".")
            )
        return list(found)
    lists = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) == count
    }
    # A layer may hold a list of as many heads: only the outermost are layers.
    outer = [name for name in lists if not any(name.startswith(f"{one}.") for one in lists if one != name)]
    if len(outer) > 1:
        raise ProbeError(
            f"Your network has several lists of {count} modules ({', '.join(outer)}): say which are its "
            f'layers, as in layers="{outer[0]}".'
        )
    return list(lists[outer[0]]) if outer else None


def _own_attention(block: nn.Module, name: str | None) -> nn.Module | None:
    if name is not None:
        try:
            return block.get_submodule(name)
        except AttributeError:
            raise ProbeError(f'A layer of your network has no module "{name}".') from None
    return next((one for name, one in block.named_children() if name.lower() in _ATTENTION_NAMES), None)


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of floating point in something nested."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    )
    return next((one for one in map(first_tensor, inner) if one is not None), None)


def _logits(output: Any) -> Tensor | None:
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else first_tensor(output)
