"""One row of one head of a real model, number by number."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

from attention import MultiHeadAttention, causal_mask, scaled_dot_product_attention
from probe.capture import Recording, encode_for, record
from probe.errors import ProbeError
from probe.models import Model, resolve
from probe.report import finite
from probe.tokens import Text, visible
from probe.verification import from_scratch


@dataclass(frozen=True, eq=False)
class HeadNumbers:
    """All that one head's attention is computed from, in float64, for all T tokens.

    Attributes
    ----------
    title : what it is, in words.
    tokens : what each token is called.
    causal : the mask the head was trained with.
    scale : what the scores are multiplied with.
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


@dataclass(frozen=True, eq=False)
class Trace:
    """How one query of one head comes to its context vector: every number on the way, in order.

    All numbers are computed in float64 from the layer's recorded input and its weights, so that each line
    follows from the lines before it to as many digits as are shown. ``model_weights`` is what the model
    itself computed, in its own dtype, beside them.

    Attributes
    ----------
    model_name, source, layer, head, query : which row; ``query`` is the position of its token.
    text, tokens, special, truncated : as in a ``Run``; T tokens.
    input : (d_model,), the layer's attention input at the query's position.
    query_vector : (head_dim,), input times the head's query weights, plus their bias.
    keys, values : (T, head_dim), the same with the key and value weights, for every token.
    dot_products : (T,), query vector times each key.
    scale : what they are multiplied with, 1 / sqrt(head_dim) in most models.
    scaled : (T,), dot products times scale.
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
    input: Tensor
    query_vector: Tensor
    keys: Tensor
    values: Tensor
    dot_products: Tensor
    scale: float
    scaled: Tensor
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
        from probe.tables import trace_table

        return trace_table(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from probe.notebook import trace_html

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
    if site.rotary_frequencies is not None or site.group > 1:
        raise ProbeError(
            f"{model.name} turns its queries and keys by their positions, or shares keys among heads; a "
            "trace of that, number by number, is not there yet. Its weights can be verified."
        )
    module = from_scratch(site).double().cpu()
    hidden = seen.input[0].double().cpu()  # (T, d_model)
    columns = slice(head * site.head_dim, (head + 1) * site.head_dim)

    with torch.no_grad():
        query_vector = module.W_query(hidden[query])[columns]  # (head_dim,)
        keys = module.W_key(hidden)[:, columns]  # (T, head_dim)
        values = module.W_value(hidden)[:, columns]
        allowed = torch.ones(len(encoding), dtype=torch.bool)
        if recording.causal:
            allowed = causal_mask(len(encoding))[query]
        steps = scaled_dot_product_attention(query_vector[None], keys, values, mask=allowed, scale=site.scale)
        assert steps.scores is not None and steps.scaled is not None and steps.masked is not None
        masked = steps.masked[0]
        maximum = masked.max()
        exponentials = (masked - maximum).exp()
        output_share = (
            module.out_proj.weight[:, columns] @ steps.output[0]
        )  # (d_model, head_dim) @ (head_dim,)

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
        input=hidden[query],
        query_vector=query_vector,
        keys=keys,
        values=values,
        dot_products=steps.scores[0],
        scale=site.scale,
        scaled=steps.scaled[0],
        allowed=allowed,
        masked=masked,
        maximum=float(maximum),
        exponentials=exponentials,
        exponential_sum=float(exponentials.sum()),
        weights=steps.weights[0],
        context=steps.output[0],
        output_share=output_share,
        model_weights=seen.weights[0, head, query].cpu(),
        numbers=_head_numbers(recording, layer, head, module),
    )


def _head_numbers(recording: Recording, layer: int, head: int, module: MultiHeadAttention) -> HeadNumbers:
    """The whole head of one query's trace; ``module`` holds the layer's weights in float64."""
    model, (encoding,), seen = recording.model, recording.encodings, recording.layers[layer]
    columns = slice(head * module.head_dim, (head + 1) * module.head_dim)

    def bias(linear: torch.nn.Linear) -> Tensor | None:
        return None if linear.bias is None else linear.bias.detach()[columns]

    text = encoding.text if isinstance(encoding.text, str) else " | ".join(encoding.text)
    return HeadNumbers(
        title=f"Layer {layer}, head {head} of {model.name}",
        tokens=encoding.tokens,
        causal=recording.causal,
        scale=model.sites[layer].scale,
        inputs=seen.input[0].double().cpu(),
        query_weight=module.W_query.weight.detach()[columns],
        key_weight=module.W_key.weight.detach()[columns],
        value_weight=module.W_value.weight.detach()[columns],
        query_bias=bias(module.W_query),
        key_bias=bias(module.W_key),
        value_bias=bias(module.W_value),
        model_weights=seen.weights[0, head].double().cpu(),
        provenance=(
            ("model", model.name),
            ("source", model.source),
            ("revision", model.revision or ""),
            ("sha256", model.sha256 or ""),
            ("text", visible(text)),
            ("layer", str(layer)),
            ("head", str(head)),
            ("dtype", str(model.dtype).removeprefix("torch.")),
            ("device", str(model.device)),
            ("torch", torch.__version__),
            ("transformers", transformers.__version__),
        ),
    )


def _check_position(query: int, length: int) -> None:
    if not isinstance(query, int) or isinstance(query, bool) or not 0 <= query < length:
        raise ProbeError(
            f"There is no position {query!r}: the text has {length} tokens, special tokens included, counted "
            f"from 0 to {length - 1}."
        )
