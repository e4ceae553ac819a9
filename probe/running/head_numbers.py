"""All that one head's attention is computed from, in float64: inputs, weights, mask, positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from attention import rotary_angles, rotate, softmax
from probe.models.families import Projection, Role, Site
from probe.models.visibility import allowed_keys
from probe.running.recording import Recording
from probe.running.tokens import visible


@dataclass(frozen=True, eq=False)
class Normalised:
    """How a head's queries or keys are brought to one size, in float64.

    Attributes
    ----------
    gain : (head_dim,), what each number is multiplied with after the division.
    eps : what is added to the mean square before its root is taken.
    of_all_heads : (T,), the mean square of the numbers of all heads, where they are normalised as one vector;
        None where it is taken over this head's alone.
    """

    gain: Tensor
    eps: float
    of_all_heads: Tensor | None

    def size(self, vectors: Tensor) -> Tensor:
        """What each vector is divided by: (T, head_dim) -> (T,), the root of its mean square and eps."""
        own = vectors.square().mean(-1) if self.of_all_heads is None else self.of_all_heads
        return torch.sqrt(own + self.eps)


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
    query_norm, key_norm : how queries and keys are normalised after the projection; None if they aren't.
    frequencies : (n,), how far each pair of numbers of a query or key turns from one position to the next, in
        radians; the first 2 n numbers turn. None without rotary positions.
    interleaved : whether pair i is the numbers 2 i and 2 i + 1, in place of i and i + n.
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
    query_norm: Normalised | None = None
    key_norm: Normalised | None = None
    frequencies: Tensor | None = None
    interleaved: bool = False
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

    def norm(self, role: Role) -> Normalised | None:
        """How queries or keys are normalised, if they are."""
        return {"query": self.query_norm, "key": self.key_norm, "value": None}[role]

    def sizes(self, role: Role) -> Tensor | None:
        """(T,), what the vectors of a role are divided by; None if they aren't normalised."""
        norm = self.norm(role)
        return None if norm is None else norm.size(self.projected(role))

    def normalised(self, role: Role) -> Tensor:
        """Projected and, if they are, normalised: (T, head_dim)."""
        projected, norm = self.projected(role), self.norm(role)
        return projected if norm is None else projected / norm.size(projected)[:, None] * norm.gain

    def vectors(self, role: Role) -> Tensor:
        """What takes part in the attention: projected; queries and keys normalised and turned by position."""
        before = self.normalised(role)
        if self.frequencies is None or role == "value":
            return before
        return rotate(before, self.frequencies, interleaved=self.interleaved)

    def pair(self, pair: int) -> tuple[int, int]:
        """Which two numbers of a vector turn together."""
        assert self.frequencies is not None
        return (2 * pair, 2 * pair + 1) if self.interleaved else (pair, pair + len(self.frequencies))

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
        """(T, n), how far each pair of numbers is turned at each position; None if they aren't."""
        return (
            None if self.frequencies is None else rotary_angles(len(self.tokens), self.frequencies).double()
        )


def head_numbers_of(recording: Recording, layer: int, head: int) -> HeadNumbers:
    """All that a head is computed from, from a run of a single text and a copy of the layer's weights."""
    model, (encoding,), seen = recording.model, recording.encodings, recording.layers[layer]
    site = model.sites[layer]
    key_head = head // site.group
    frequencies, inputs = site.rotary_frequencies, exact(seen.input[0])
    shared = (("key and value head", f"{key_head}, which {site.group} heads read"),) if site.group > 1 else ()
    text = encoding.text if isinstance(encoding.text, str) else " | ".join(encoding.text)
    return HeadNumbers(
        title=f"Layer {layer}, head {head} of {model.name}",
        tokens=encoding.tokens,
        causal=recording.causal,
        scale=site.scale,
        window=site.window,
        key_head=(key_head, site.group) if site.group > 1 else None,
        query_norm=_normalised(site, "query", head, inputs),
        key_norm=_normalised(site, "key", key_head, inputs),
        frequencies=None if frequencies is None else exact(frequencies),
        interleaved=site.rotary_interleaved,
        inputs=inputs,
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


def _normalised(site: Site, role: Role, head: int, inputs: Tensor) -> Normalised | None:
    """How one head's queries or keys are normalised, of tokens with these inputs: (T, d_model)."""
    norm = site.norm(role)
    if norm is None:
        return None
    gain = exact(norm.gain())
    if norm.over == "head":
        return Normalised(gain, norm.eps, None)
    projection: Projection = getattr(site, role)
    bias = projection.bias()
    every_head = inputs @ exact(projection.weight()).T + (0.0 if bias is None else exact(bias))
    rows = slice(head * site.head_dim, (head + 1) * site.head_dim)
    return Normalised(gain[rows], norm.eps, every_head.square().mean(-1))


def exact(tensor: Tensor) -> Tensor:
    """The same numbers in float64, on the CPU."""
    return tensor.detach().cpu().double()
