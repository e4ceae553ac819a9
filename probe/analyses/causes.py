"""What one change of a model gives what another network has: why two of them part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from probe.running.places import EMBEDDINGS, Reference, at, first_tensor


def cause_of(name: str, layer: int | None, mine: Tensor, right: Reference, within: float) -> str | None:
    """The one change of the model that gives a network's tensor at a place, if one and only one is found.

    Parameters
    ----------
    name, layer : the place, as in ``places.order``.
    within : how far the two may be apart.
    """
    found = []
    for said, other in _changes(name, layer, right):
        if other.shape[-1] < mine.shape[-1]:
            continue
        other = other[:, -mine.shape[1] :] if name == "logits" else other
        if other.shape == mine.shape and float((mine.double() - other).abs().max()) <= within:
            found.append(said)
    return f"{found[0]} makes both agree there." if len(found) == 1 else None


def _changes(name: str, layer: int | None, right: Reference) -> Iterator[tuple[str, Tensor]]:
    """Single changes that could explain a place, each as a sentence's beginning and what it would give."""
    hf: Any = right.model.hf
    if name == EMBEDDINGS:
        yield from _embeddings(hf, right)
    elif name == "logits":
        last = right.found[at(right.model.num_layers - 1, "output")]
        yield "Leaving out the norm before the head for words", hf.get_output_embeddings()(last)
    elif layer is not None:
        into = right.found[at(layer - 1, "output") if layer else EMBEDDINGS]
        if name.endswith("attention input"):
            yield "Leaving out the norm before the attention", into
        elif name.endswith("attention output"):
            yield from _attentions(layer, right)
        elif name.endswith(", output"):
            yield from _blocks(layer, right)


def _embeddings(hf: Any, right: Reference) -> Iterator[tuple[str, Tensor]]:
    exact = right.found[EMBEDDINGS]
    ids = torch.tensor([right.recording.encodings[0].ids])
    words, length, width = hf.get_input_embeddings()(ids).detach(), ids.shape[1], exact.shape[-1]
    for table in hf.base_model.modules():
        if not isinstance(table, nn.Embedding) or table.num_embeddings <= length:
            continue
        positions = table.weight.detach()[:length]
        if positions.shape[-1] == width and torch.allclose(words + positions, exact):
            yield "Leaving out the positions", words
            yield "Counting positions from 1", words + table.weight.detach()[1 : length + 1]
            yield (
                "Multiplying the words' embeddings with the root of their width",
                words * width**0.5 + positions,
            )
            yield "Giving every token the first position", words + positions[:1]


def _attentions(layer: int, right: Reference) -> Iterator[tuple[str, Tensor]]:
    site, record = right.model.sites[layer], right.recording.layers[layer]
    weight, bias = site.output.weight(), site.output.bias()
    yield "Leaving out the output projection", record.context
    yield (
        "An output projection that is not transposed",
        record.context @ weight + (0.0 if bias is None else bias),
    )
    if bias is not None:
        yield "Leaving out the output projection's bias", record.context @ weight.T


def _blocks(layer: int, right: Reference) -> Iterator[tuple[str, Tensor]]:
    """A layer with another activation, or another number under the root of its norms."""
    block, (args, kwargs) = right.blocks[layer], right.calls[layer]

    def again() -> Tensor:
        output = first_tensor(block(*args, **kwargs))
        assert output is not None
        return output.detach().cpu()

    exact = right.found[at(layer, "output")]
    for parent in list(block.modules()):
        for name, child in list(parent.named_children()):
            if not _is_activation(child):
                continue
            for said, other in _ACTIVATIONS.items():
                setattr(parent, name, other)
                changed = again()
                setattr(parent, name, child)
                if not torch.allclose(changed, exact):
                    yield f"{said} for the activation", changed
    norms = [(one, one.eps) for one in block.modules() if isinstance(getattr(one, "eps", None), float)]
    for eps in (1e-5, 1e-6, 1e-12):
        for norm, _ in norms:
            norm.eps = eps  # type: ignore[assignment]
        if any(eps != own for _, own in norms):
            yield f"An eps of {eps:.0e} in the norms", again()
        for norm, own in norms:
            norm.eps = own


_ACTIVATIONS: dict[str, nn.Module] = {
    "The exact GELU": nn.GELU(),
    "The GELU by tanh": nn.GELU(approximate="tanh"),
    "The ReLU": nn.ReLU(),
    "The SiLU": nn.SiLU(),
}


def _is_activation(module: nn.Module) -> bool:
    known = tuple(type(one) for one in _ACTIVATIONS.values())
    return isinstance(module, known) or type(module).__module__ == "transformers.activations"
