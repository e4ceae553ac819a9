"""One row of one head of a real model, number by number."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

from attention import rotary_angles, rotate, scaled_dot_product_attention, softmax
from probe.analyses.checks.report import finite
from probe.display.nonfinite import nonfinite
from probe.errors import ProbeError
from probe.models.families import Projection, Role, Site
from probe.models.loading import Model, resolve
from probe.models.visibility import allowed_keys
from probe.running.inputs import encode_for
from probe.running.recording import Recording, record
from probe.running.tokens import Text, visible


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


@dataclass(frozen=True, eq=False)
class Trace:
    """How one query of one head comes to its context vector: every number on the way, in order.

    All numbers are computed in float64 from the layer's recorded input and its weights, so that each line
    follows from the lines before it to as many digits as are shown. ``model_weights`` is what the model
    itself computed, in its own dtype, beside them.

    In some models query and keys are normalised after the projection: divided by their size, the root of
    their mean square, and multiplied with a gain for each number (Zhang and Sennrich 2019). With rotary
    positions (Su et al. 2021) they are turned then: pair i of a vector at position p, its numbers
    (a, b) = (x[i], x[i + n]) with n frequencies, becomes (a cos - b sin, b cos + a sin) of the angle
    p x frequency i; (x[2 i], x[2 i + 1]) if ``interleaved``. Angles, sines and cosines are rounded to
    float32, as the models do.

    Attributes
    ----------
    model_name, source, layer, head, query : which row; ``query`` is the position of its token.
    text, tokens, special, truncated : as in a ``Run``; T tokens.
    key_head : which key and value head this head reads: ``head``, unless several heads share one.
    input : (d_model,), the layer's attention input at the query's position.
    frequencies : (n,), radians a position; this and the angles are None without rotary positions.
    interleaved : which numbers turn together.
    angles : (T, n), radians, position times frequency.
    projected_query : (head_dim,), the query vector before it is normalised and turned; None if it is neither.
    projected_keys : (T, head_dim), the keys likewise.
    query_size : what the query is divided by; this and the next five are None where nothing is normalised.
    key_sizes : (T,), what each key is divided by.
    query_gain, key_gain : (head_dim,), what their numbers are then multiplied with.
    normalised_query : (head_dim,), the query vector after that, before it is turned.
    normalised_keys : (T, head_dim), the keys likewise.
    query_vector : (head_dim,), input times the head's query weights, plus their bias; normalised and turned.
    keys, values : (T, head_dim), the same with the key and value weights, for every token; values don't turn.
    dot_products : (T,), query vector times each key.
    scale : what they are multiplied with, 1 / sqrt(head_dim) in most models.
    scaled : (T,), dot products times scale.
    causal : whether the mask hides later tokens.
    window : how many of the last tokens it lets through, the query's included; None for all of them.
    allowed : (T,) bool, which keys the mask lets through.
    masked : (T,), scaled, with -inf where the mask forbids.
    maximum : the largest masked score; it is subtracted before the exponential and cancels in the division.
    exponentials : (T,), exp(masked - maximum).
    exponential_sum : their sum.
    weights : (T,), exponentials divided by their sum.
    context : (head_dim,), the values weighted and added up.
    output_share : (d_model,), context times the head's columns of the output projection: what this head adds
        to the layer's attention output, to which the other heads and the bias are added.
    model_weights : (T,), the model's own weights of this row.
    numbers : inputs and weights of the whole head, all queries; left out of ``to_dict``.
    """

    model_name: str
    source: str
    layer: int
    head: int
    query: int
    text: Text
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    truncated: str | None
    key_head: int
    input: Tensor
    frequencies: Tensor | None
    interleaved: bool
    angles: Tensor | None
    projected_query: Tensor | None
    projected_keys: Tensor | None
    query_size: float | None
    key_sizes: Tensor | None
    query_gain: Tensor | None
    key_gain: Tensor | None
    normalised_query: Tensor | None
    normalised_keys: Tensor | None
    query_vector: Tensor
    keys: Tensor
    values: Tensor
    dot_products: Tensor
    scale: float
    scaled: Tensor
    causal: bool
    window: int | None
    allowed: Tensor
    masked: Tensor
    maximum: float
    exponentials: Tensor
    exponential_sum: float
    weights: Tensor
    context: Tensor
    output_share: Tensor
    model_weights: Tensor
    numbers: HeadNumbers = field(repr=False)

    @property
    def max_abs_error(self) -> float:
        """Largest difference of the weights from the model's own."""
        return float((self.weights - self.model_weights.double()).abs().max())

    @property
    def mask(self) -> str:
        """What the mask lets this query see, in words."""
        seen = [position for position, allowed in enumerate(self.allowed.tolist()) if allowed]
        kind = "causal" if self.causal else "bidirectional"
        window = "" if self.window is None else f", a window of {self.window}"
        keys = f"keys {seen[0]} to {seen[-1]}" if len(seen) > 1 else f"key {seen[0]} alone"
        return f"{keys} ({kind}{window})"

    @property
    def shared(self) -> str:
        """Which key and value head is read, in words to be added, where several heads share one; else ""."""
        if self.numbers.key_head is None:
            return ""
        key_head, heads = self.numbers.key_head
        return f", of key and value head {key_head}, which {heads} heads read"

    @property
    def problem(self) -> str | None:
        """One sentence if the row holds numbers that are not finite; None if all is well."""
        return nonfinite(self.model_name, (self.weights, self.model_weights, self.output_share))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists; minus infinity is the string "-inf"."""
        plain: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            if name == "numbers":
                continue
            value = getattr(self, name)
            plain["model" if name == "model_name" else name] = (
                value.tolist() if isinstance(value, Tensor) else value
            )
        plain["tokens"], plain["special"] = list(self.tokens), list(self.special)
        plain["masked"] = [
            value if ok else "-inf" for value, ok in zip(plain["masked"], plain["allowed"], strict=True)
        ]
        plain["max_abs_error"] = self.max_abs_error
        return plain

    def to_json(self) -> str:
        """``to_dict`` as strict JSON; a number that isn't finite becomes its name."""
        return json.dumps(finite(self.to_dict()), ensure_ascii=False, allow_nan=False, indent=2)

    def __str__(self) -> str:
        from probe.display.terminal import trace_table

        return trace_table(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from probe.display.notebook import trace_html

        return trace_html(self)


def trace(
    model: Model | str, text: Text, layer: int, head: int, query: int, *, truncate: bool = False
) -> Trace:
    """Run a model once, and follow one query of one head through its attention, number by number.

    Parameters
    ----------
    layer, head, query : which row; all counted from 0, ``query`` over the tokens, special tokens included.

    Raises
    ------
    ProbeError
        If there is no such model, layer, head or position, or the text can't be taken.
    """
    model = resolve(model)
    model.check_head(layer, head)
    encoding = encode_for(model, text, truncate=truncate)
    _check_position(query, len(encoding))
    return trace_of(record(model, [encoding]), layer, head, query)


def trace_of(recording: Recording, layer: int, head: int, query: int) -> Trace:
    """``trace`` for a run of a single text that has been recorded already."""
    model, (encoding,) = recording.model, recording.encodings
    model.check_head(layer, head)
    _check_position(query, len(encoding))
    seen, site = recording.layers[layer], model.sites[layer]
    numbers = _head_numbers(recording, layer, head)
    assert numbers.inputs is not None
    query_norm, key_norm = numbers.query_norm, numbers.key_norm
    query_sizes = numbers.sizes("query")
    kept = numbers.frequencies is not None or query_norm is not None

    with torch.no_grad():
        query_vector, keys, values = (numbers.vectors(role) for role in ("query", "key", "value"))
        allowed = numbers.allowed[query]
        steps = scaled_dot_product_attention(
            query_vector[query, None], keys, values, mask=allowed, scale=site.scale
        )
        assert steps.scores is not None and steps.scaled is not None and steps.masked is not None
        masked = steps.masked[0]
        maximum = masked.max()
        exponentials = (masked - maximum).exp()
        columns = slice(head * site.head_dim, (head + 1) * site.head_dim)
        # (d_model, head_dim) @ (head_dim,) -> (d_model,)
        output_share = _exact(site.output.weight()[:, columns]) @ steps.output[0]

    return Trace(
        model_name=model.name,
        source=model.source,
        layer=layer,
        head=head,
        query=query,
        text=encoding.text,
        tokens=encoding.tokens,
        special=encoding.special,
        truncated=encoding.truncated,
        key_head=head // site.group,
        input=numbers.inputs[query],
        frequencies=numbers.frequencies,
        interleaved=numbers.interleaved,
        angles=numbers.angles,
        projected_query=numbers.projected("query")[query] if kept else None,
        projected_keys=numbers.projected("key") if kept else None,
        query_size=None if query_sizes is None else float(query_sizes[query]),
        key_sizes=numbers.sizes("key"),
        query_gain=None if query_norm is None else query_norm.gain,
        key_gain=None if key_norm is None else key_norm.gain,
        normalised_query=None if query_norm is None else numbers.normalised("query")[query],
        normalised_keys=None if key_norm is None else numbers.normalised("key"),
        query_vector=query_vector[query],
        keys=keys,
        values=values,
        dot_products=steps.scores[0],
        scale=site.scale,
        scaled=steps.scaled[0],
        causal=numbers.causal,
        window=numbers.window,
        allowed=allowed,
        masked=masked,
        maximum=float(maximum),
        exponentials=exponentials,
        exponential_sum=float(exponentials.sum()),
        weights=steps.weights[0],
        context=steps.output[0],
        output_share=output_share,
        model_weights=seen.weights[0, head, query].cpu(),
        numbers=numbers,
    )


def _head_numbers(recording: Recording, layer: int, head: int) -> HeadNumbers:
    """All that a head is computed from, from a run of a single text and a copy of the layer's weights."""
    model, (encoding,), seen = recording.model, recording.encodings, recording.layers[layer]
    site = model.sites[layer]
    key_head = head // site.group
    frequencies, inputs = site.rotary_frequencies, _exact(seen.input[0])
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
        frequencies=None if frequencies is None else _exact(frequencies),
        interleaved=site.rotary_interleaved,
        inputs=inputs,
        **_of_head(site, "query", site.query, head),
        **_of_head(site, "key", site.key, key_head),
        **_of_head(site, "value", site.value, key_head),
        model_weights=_exact(seen.weights[0, head]),
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
        f"{role}_weight": _exact(projection.weight()[rows]),
        f"{role}_bias": None if bias is None else _exact(bias[rows]),
    }


def _normalised(site: Site, role: Role, head: int, inputs: Tensor) -> Normalised | None:
    """How one head's queries or keys are normalised, of tokens with these inputs: (T, d_model)."""
    norm = site.norm(role)
    if norm is None:
        return None
    gain = _exact(norm.gain())
    if norm.over == "head":
        return Normalised(gain, norm.eps, None)
    projection: Projection = getattr(site, role)
    bias = projection.bias()
    every_head = inputs @ _exact(projection.weight()).T + (0.0 if bias is None else _exact(bias))
    rows = slice(head * site.head_dim, (head + 1) * site.head_dim)
    return Normalised(gain[rows], norm.eps, every_head.square().mean(-1))


def _exact(tensor: Tensor) -> Tensor:
    """The same numbers in float64, on the CPU."""
    return tensor.detach().cpu().double()


def _check_position(query: int, length: int) -> None:
    if not isinstance(query, int) or isinstance(query, bool) or not 0 <= query < length:
        raise ProbeError(
            f"There is no position {query!r}: the text has {length} tokens, special tokens included, counted "
            f"from 0 to {length - 1}."
        )
