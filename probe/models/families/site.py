"""One layer's attention inside a network: where its weights lie, and what is done with what they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attention import rotate
from probe.models import linear
from probe.models.offload import held

Role = Literal["query", "key", "value"]
ROLES: tuple[Role, ...] = ("query", "key", "value")


@dataclass(frozen=True)
class Projection:
    """One linear map of a layer: the output columns ``start`` to ``stop`` of ``module``.

    Networks store it in two ways: as a map of its own (BERT), or as some columns of a wider one: side by side
    (GPT-2), or head by head (GPT-NeoX: each ``every`` columns belong to a head, and the map has ``start`` to
    ``stop`` of these). A ``stop`` of None is the end. How the map itself is kept ``linear.py`` knows.
    """

    module: nn.Module
    start: int = 0
    stop: int | None = None
    every: int | None = None

    @classmethod
    def side_by_side(cls, module: nn.Module, *widths: int, every: int | None = None) -> list[Projection]:
        """Columns of one map, as many as each width says, one after the other."""
        bounds = pairwise(accumulate(widths, initial=0))
        return [cls(module, start, stop, every) for start, stop in bounds]

    def weight(self) -> Tensor:
        """A copy of the weight in ``nn.Linear``'s layout: (out, in).

        Raises
        ------
        ProbeError
            If the module is of a kind whose weights can't be read; so do ``bias`` and ``detour``.
        """
        part = self._part(linear.weight(self.module), 0)
        if part.stride(0) == 1:
            # Copied as it lies, then looked at the other way round: much faster than to move every number.
            return torch.clone(part.T, memory_format=torch.contiguous_format).T
        return torch.clone(part, memory_format=torch.contiguous_format)

    def bias(self) -> Tensor | None:
        """A copy of the bias: (out,), or None if the map has none."""
        bias = linear.bias(self.module)
        return None if bias is None else self._part(bias, 0).clone()

    def detour(self) -> Tensor:
        """The size of what is added up where there are adapters, see ``linear.detour``: (out,)."""
        return self._part(linear.detour(self.module), 0)

    def columns(self, output: Tensor) -> Tensor:
        """This projection's part of what ``module`` returned: (..., out)."""
        return self._part(output, output.dim() - 1)

    def _part(self, tensor: Tensor, dim: int) -> Tensor:
        split = tensor if self.every is None else tensor.unflatten(dim, (-1, self.every))
        along = dim if self.every is None else dim + 1
        stop = split.shape[along] if self.stop is None else self.stop
        part = split.narrow(along, self.start, stop - self.start)
        return part if self.every is None else part.flatten(dim, along)


@dataclass(frozen=True)
class Norm:
    """The root mean square norm that queries or keys go through after their projection.

    Attributes
    ----------
    module : the network's, whose output is recorded in place of the projection's.
    eps : what it adds to the mean square.
    over : "head" if each head's vector is normalised by itself, "all" if all heads' are as one.
    one_more : whether it multiplies with its weight and 1 (Gemma).
    heads_first : whether it is given (B, H, T, head_dim) in place of (B, T, H, head_dim).
    """

    module: nn.Module
    eps: float
    over: Literal["head", "all"]
    one_more: bool = False
    heads_first: bool = False

    def gain(self) -> Tensor:
        """What numbers are multiplied with after the division, a copy: (head_dim,), or for all heads."""
        weight = held(self.module, "weight")
        # 1 more rounded to half precision would lose digits of a small weight.
        wide = torch.promote_types(weight.dtype, torch.float32)
        return weight.to(wide) + 1 if self.one_more else weight.clone()


@dataclass(frozen=True)
class Site:
    """One layer's attention inside the network.

    ``attention`` is the module whose first argument is the input of the attention, (B, T, d_model), and which
    returns ``(output, weights)`` under the eager backend, weights being (B, H, T, T). ``output`` is the map
    that takes the merged heads back to the width of the model, before the residual connection.

    With fewer key and value heads than heads (``num_key_value_heads``), each serves several heads in a row.
    With ``query_norm`` and ``key_norm`` queries and keys are normalised after the projection. With
    ``rotary_frequencies``, (n,), they are then turned by their positions, the first 2 n of their numbers: the
    pairs are (i, i + n), or neighbours if ``rotary_interleaved``. With a ``window``, a query sees that many
    of the last tokens, itself included.
    """

    attention: nn.Module
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    num_heads: int
    head_dim: int
    scale: float
    num_key_value_heads: int | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    rotary_frequencies: Tensor | None = None
    rotary_interleaved: bool = False
    window: int | None = None

    @classmethod
    def of(
        cls, attention: Any, maps: Iterable[Any], *, num_heads: int, head_dim: int, **otherwise: Any
    ) -> Site:
        """A site, scaled by the head's width if ``otherwise``, its other fields, has no scale.

        ``maps`` are those of query, key, value and output: each a ``Projection``, or a module for the whole
        of it.
        """
        query, key, value, output = (one if isinstance(one, Projection) else Projection(one) for one in maps)
        scale = otherwise.pop("scale", head_dim**-0.5)
        return cls(attention, query, key, value, output, num_heads, head_dim, scale, **otherwise)

    @property
    def group(self) -> int:
        """How many heads share a key and value head."""
        return self.num_heads // (self.num_key_value_heads or self.num_heads)

    def norm(self, role: Role) -> Norm | None:
        """The norm of queries or keys, if there is one."""
        return {"query": self.query_norm, "key": self.key_norm, "value": None}[role]

    def source(self, role: Role) -> nn.Module:
        """The module whose output ``heads`` takes: the norm, or else the projection's."""
        norm = self.norm(role)
        projection: Projection = getattr(self, role)
        return projection.module if norm is None else norm.module

    def heads(self, role: Role, output: Tensor) -> Tensor:
        """What takes part in the attention, from what the ``source`` of a role returned.

        (B, T, ...) -> (B, num_heads, T, head_dim): split into heads, turned by positions, shared among a
        group.
        """
        norm = self.norm(role)
        if norm is None:
            projection: Projection = getattr(self, role)
            output = projection.columns(output)
        split = output if output.dim() == 4 else output.unflatten(-1, (-1, self.head_dim))
        if norm is None or not norm.heads_first:
            split = split.transpose(1, 2)
        if self.rotary_frequencies is not None and role != "value":
            split = rotate(split, self.rotary_frequencies, interleaved=self.rotary_interleaved)
        return split if role == "query" or self.group == 1 else split.repeat_interleave(self.group, dim=1)
