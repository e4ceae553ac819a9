"""All that one head's attention is computed from, in float64: inputs, weights, mask, positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from attention import rotary_angles, rotate, softmax
from probe.models.families import Projection, Site
from probe.models.visibility import allowed_keys
from probe.running.recording import Recording
from probe.running.tokens import visible

Role = Literal["query", "key", "value"]


@dataclass(frozen=True, eq=False)
class HeadNumbers:
    """All that one head's attention is computed from, in float64, for all T tokens.

    Attributes
    ----------
    title : what it is, in words.
    tokens : what each token is called.
    causal : the mask the head was trained with.
    scale : what the scores are multiplied with.
    window : how many of the last tokens a query sees, itself included; None for all of them.
    key_head : which key and value head it reads, and how many heads do: (key head, heads); None if it has one
        of its own.
    frequencies : (head_dim / 2,), how far each pair of numbers of a query or key turns from one position to
        the next, in radians; None without rotary positions.
    inputs : (T, d_model), or None where only the scaled scores are known.
    query_weight, key_weight, value_weight : (head_dim, d_model).
    query_bias, key_bias, value_bias : (head_dim,), or None.
    scaled : (T, T) scaled scores, where there are no inputs to compute them from.
    model_weights : (T, T), the model's own weights, or None.
    provenance : (what, value) pairs of strings that say where the numbers come from.
    """

    title: str
    tokens: tuple[str, ...]
    causal: bool
    scale: float
    window: int | None = None
    key_head: tuple[int, int] | None = None
    frequencies: Tensor | None = None
    inputs: Tensor | None = None
    query_weight: Tensor | None = None
    key_weight: Tensor | None = None
    value_weight: Tensor | None = None
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    scaled: Tensor | None = None
    model_weights: Tensor | None = None
    provenance: tuple[tuple[str, str], ...] = ()

    @property
    def allowed(self) -> Tensor:
        """(T, T), bool, which keys each query may attend to under the mask the head was trained with."""
        length = len(self.tokens)
        allowed = allowed_keys(length, causal=self.causal, window=self.window)
        return torch.ones(length, length, dtype=torch.bool) if allowed is None else allowed

    def projected(self, role: Role) -> Tensor:
        """Inputs times the weights of a role, plus their bias: (T, head_dim). Needs inputs."""
        weight, bias = getattr(self, f"{role}_weight"), getattr(self, f"{role}_bias")
        assert self.inputs is not None and weight is not None
        product: Tensor = self.inputs @ weight.T  # (T, d_model) @ (d_model, head_dim) -> (T, head_dim)
        return product if bias is None else product + bias

    def vectors(self, role: Role) -> Tensor:
        """What takes part in the attention: projected, and turned by position if it is a query or key."""
        projected = self.projected(role)
        turns = self.frequencies is not None and role != "value"
        return rotate(projected, self.frequencies) if turns else projected  # type: ignore[arg-type]

    @property
    def scaled_scores(self) -> Tensor:
        """(T, T), dot products of queries and keys times the scale."""
        if self.scaled is not None:
            return self.scaled
        return self.vectors("query") @ self.vectors("key").T * self.scale

    @property
    def weights(self) -> Tensor:
        """(T, T), the attention weights under the mask the head was trained with."""
        return softmax(self.scaled_scores.masked_fill(~self.allowed, -torch.inf))

    @property
    def angles(self) -> Tensor | None:
        """(T, head_dim / 2), how far each pair of numbers is turned at each position; None if they aren't."""
        return (
            None if self.frequencies is None else rotary_angles(len(self.tokens), self.frequencies).double()
        )


def head_numbers_of(recording: Recording, layer: int, head: int) -> HeadNumbers:
    """All that a head is computed from, from a run of a single text and a copy of the layer's weights."""
    model, (encoding,), seen = recording.model, recording.encodings, recording.layers[layer]
    site = model.sites[layer]
    key_head = head // site.group
    frequencies = site.rotary_frequencies
    shared = (("key and value head", f"{key_head}, which {site.group} heads read"),) if site.group > 1 else ()
    text = encoding.text if isinstance(encoding.text, str) else " | ".join(encoding.text)
    return HeadNumbers(
        title=f"Layer {layer}, head {head} of {model.name}",
        tokens=encoding.tokens,
        causal=recording.causal,
        scale=site.scale,
        window=site.window,
        key_head=(key_head, site.group) if site.group > 1 else None,
        frequencies=None if frequencies is None else exact(frequencies),
        inputs=exact(seen.input[0]),
        **_of_head(site, "query", site.query, head),
        **_of_head(site, "key", site.key, key_head),
        **_of_head(site, "value", site.value, key_head),
        model_weights=exact(seen.weights[0, head]),
        provenance=(
            ("model", model.name),
            ("source", model.source),
            ("revision", model.revision or ""),
            ("sha256", model.sha256 or ""),
            ("text", visible(text)),
            ("layer", str(layer)),
            ("head", str(head)),
            *shared,
            ("dtype", str(model.dtype).removeprefix("torch.")),
            ("device", str(model.device)),
            ("torch", torch.__version__),
            ("transformers", transformers.__version__),
        ),
    )


def _of_head(site: Site, role: Role, projection: Projection, head: int) -> dict[str, Any]:
    """One head's rows of a projection's weight and bias."""
    rows = slice(head * site.head_dim, (head + 1) * site.head_dim)
    bias = projection.bias()
    return {
        f"{role}_weight": exact(projection.weight()[rows]),
        f"{role}_bias": None if bias is None else exact(bias[rows]),
    }


def exact(tensor: Tensor) -> Tensor:
    """The same numbers in float64, on the CPU."""
    return tensor.detach().cpu().double()
