"""The same trained head under both masks: what the causal mask takes away, or would take away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attention import causal_mask, scaled_dot_product_attention
from probe.capture import Recording, encode_for, record
from probe.models import Model, resolve
from probe.tokens import Span, Text

Direction = Literal["causal", "bidirectional"]


@dataclass(frozen=True)
class MaskComparison:
    """One head of one run under the causal and under no mask, from the same queries and keys.

    Attributes
    ----------
    model_name, source, layer, head : which head.
    text, tokens, spans, special, truncated : as in a ``Run``.
    causal, bidirectional : (T, T) attention weights on the CPU, [query, key].
    moved : (T,), the weight each query moves: half the sum of the absolute differences of its two rows. It equals the
        weight that the query puts on later tokens when it may.
    trained_with : "causal" or "bidirectional", the mask the model was trained with.
    labels : a caption for each of the two.
    """

    model_name: str
    source: str
    layer: int
    head: int
    text: Text
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    truncated: str | None
    causal: Tensor
    bidirectional: Tensor
    moved: Tensor
    trained_with: Direction

    @property
    def labels(self) -> dict[str, str]:
        other = "bidirectional" if self.trained_with == "causal" else "causal"
        return {
            self.trained_with: f"{self.trained_with}, as the model was trained",
            other: f"{other}, not what the model was trained with",
        }

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        return (
            f"Layer {self.layer}, head {self.head} of {self.model_name}, trained with the {self.trained_with} mask: "
            f"without the causal mask a query has {float(self.moved.mean()):.1%} of its weight on later tokens, on average."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {
            "model": self.model_name,
            "source": self.source,
            "layer": self.layer,
            "head": self.head,
            "text": self.text,
            "tokens": list(self.tokens),
            "special": list(self.special),
            "truncated": self.truncated,
            "trained_with": self.trained_with,
            "labels": self.labels,
            "causal": self.causal.tolist(),
            "bidirectional": self.bidirectional.tolist(),
            "moved": self.moved.tolist(),
            "summary": self.summary,
        }

    def __str__(self) -> str:
        from probe.tables import masks_table

        return masks_table(self)


def compare_masks(model: Model | str, text: Text, layer: int, head: int, *, truncate: bool = False) -> MaskComparison:
    """Run a model once, and put one trained head under the mask it was trained with and under the other.

    Only this head's mask is changed, not the layers before it: queries and keys are those of the model's own run.

    Raises
    ------
    ProbeError
        If there is no such model, layer or head, or the text can't be taken.
    """
    model = resolve(model)
    model.check_head(layer, head)
    return masks_of(record(model, [encode_for(model, text, truncate=truncate)]), layer, head)


def masks_of(recording: Recording, layer: int, head: int) -> MaskComparison:
    """``compare_masks`` for a run that has been recorded already, of a single text."""
    model = recording.model
    model.check_head(layer, head)
    seen, (encoding,) = recording.layers[layer], recording.encodings
    query, key, value = (part[0, head] for part in (seen.query, seen.key, seen.value))  # (T, head_dim)
    scale = model.sites[layer].scale

    def weights(mask: Tensor | None) -> Tensor:
        return scaled_dot_product_attention(query, key, value, mask=mask, scale=scale, keep_steps=False).weights.cpu()

    with torch.no_grad():
        causal, bidirectional = weights(causal_mask(len(encoding), device=query.device)), weights(None)
    return MaskComparison(
        model_name=model.name,
        source=model.source,
        layer=layer,
        head=head,
        text=encoding.text,
        tokens=encoding.tokens,
        spans=encoding.spans,
        special=encoding.special,
        truncated=encoding.truncated,
        causal=causal,
        bidirectional=bidirectional,
        moved=(causal - bidirectional).abs().sum(-1) / 2,
        trained_with="causal" if model.causal else "bidirectional",
    )
