"""The words in which a family describes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attention import rotate

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Projection:
    """One linear map of a layer: the output columns ``start`` to ``stop`` of ``module``.

    Networks store it in three ways: as an ``nn.Linear`` of its own (BERT), as some columns of a wider map,
    and transposed, as GPT-2's ``Conv1D`` of shape (in, out). This class is the only place that knows.
    """

    module: nn.Module
    start: int
    stop: int

    @classmethod
    def whole(cls, linear: nn.Linear) -> Projection:
        """All output columns of a ``Linear``."""
        return cls(linear, 0, linear.out_features)

    def weight(self) -> Tensor:
        """A copy of the weight in ``nn.Linear``'s layout: (out, in)."""
        weight: Any = self.module.weight
        stored_in_out = isinstance(self.module, Conv1D)
        if stored_in_out:
            # Copied as it lies, then looked at the other way round: much faster than to move every number.
            columns = weight.detach()[:, self.start : self.stop]
            return torch.clone(columns, memory_format=torch.contiguous_format).T
        return torch.clone(weight.detach()[self.start : self.stop], memory_format=torch.contiguous_format)

    def bias(self) -> Tensor | None:
        """A copy of the bias: (out,), or None if the map has none."""
        bias: Any = self.module.bias
        return None if bias is None else bias.detach()[self.start : self.stop].clone()

    def columns(self, output: Tensor) -> Tensor:
        """This projection's part of what ``module`` returned: (..., out)."""
        return output[..., self.start : self.stop]


@dataclass(frozen=True)
class Site:
    """One layer's attention inside the network.

    ``attention`` is the module whose first argument is the input of the attention, (B, T, d_model), and which
    returns ``(output, weights)`` under the eager backend, weights being (B, H, T, T). ``output`` is the map
    that takes the merged heads back to the width of the model, before the residual connection.

    With fewer key and value heads than heads (``num_key_value_heads``), each serves several heads in a row.
    With ``rotary_frequencies``, (head_dim / 2,), queries and keys are turned by their positions after the
    projection. With a ``window``, a query sees that many of the last tokens, itself included.
    """

    attention: nn.Module
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    num_heads: int
    scale: float
    num_key_value_heads: int | None = None
    rotary_frequencies: Tensor | None = None
    window: int | None = None

    @property
    def head_dim(self) -> int:
        return (self.query.stop - self.query.start) // self.num_heads

    @property
    def group(self) -> int:
        """How many heads share a key and value head."""
        return self.num_heads // (self.num_key_value_heads or self.num_heads)

    def heads(self, role: Literal["query", "key", "value"], output: Tensor) -> Tensor:
        """What takes part in the attention, from what a projection's module returned.

        (B, T, ...) -> (B, num_heads, T, head_dim): split into heads, turned by positions, shared among a
        group.
        """
        projection: Projection = getattr(self, role)
        split = projection.columns(output).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        if self.rotary_frequencies is not None and role != "value":
            split = rotate(split, self.rotary_frequencies)
        return split if role == "query" or self.group == 1 else split.repeat_interleave(self.group, dim=1)


@dataclass(frozen=True)
class Family:
    """A kind of network whose attention can be taken apart."""

    model_types: tuple[str, ...]
    sites: Callable[[PreTrainedModel], tuple[Site, ...]]
    causal: Callable[[PretrainedConfig], bool]
    max_tokens: Callable[[PreTrainedModel], int]
    pairs: bool
    # Whether its code computes the softmax in float32 even where everything else is float64.
    float32_inside: bool = False
    # Whether a configuration with its model_type is one that ``sites`` describes.
    describes: Callable[[PretrainedConfig], bool] = lambda config: True
