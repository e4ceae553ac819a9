"""The words in which a family describes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

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
    """

    attention: nn.Module
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    num_heads: int
    scale: float

    @property
    def head_dim(self) -> int:
        return (self.query.stop - self.query.start) // self.num_heads


@dataclass(frozen=True)
class Family:
    """A kind of network whose attention can be taken apart."""

    model_types: tuple[str, ...]
    sites: Callable[[PreTrainedModel], tuple[Site, ...]]
    causal: Callable[[PretrainedConfig], bool]
    max_tokens: Callable[[PreTrainedModel], int]
    pairs: bool
