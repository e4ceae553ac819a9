"""The linear maps of a network as plain numbers: the one place that knows what they are kept in.

``nn.Linear`` keeps a weight as (out, in), GPT-2's ``Conv1D`` as (in, out). Around either there can be
low-rank adapters (Hu et al. 2022, "LoRA", equation 3), as the library peft puts them: with a ``base_layer`` W
and, for each adapter that is active, ``lora_A``, ``lora_B`` and ``scaling`` s, the map is W + s B A. Anything
else is refused, because to take the weight that it happens to have would be to compute with other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from probe.errors import ProbeError
from probe.models.offload import held

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# What tells that adapters are around a map.
_ADAPTED = ("base_layer", "lora_A", "lora_B", "scaling", "active_adapters", "disable_adapters", "merged")


def weight(module: nn.Module) -> Tensor:
    """What a map multiplies with: (out, in), of its own dtype; not always a copy.

    Raises
    ------
    ProbeError
        If it can't be known from outside.
    """
    base = _base(module)
    own = _stored(base)
    adapters = list(_adapters(module))
    if not adapters:
        return own
    wide = _wide(own)
    return sum((s * (_wide(b) @ _wide(a)) for a, b, _, s in adapters), start=wide).to(own.dtype)


def bias(module: nn.Module) -> Tensor | None:
    """What a map adds: (out,), or None. Raises as ``weight``."""
    base: Any = _base(module)
    own = None if base.bias is None else held(base, "bias")
    added = [s * _wide(extra) for _, _, extra, s in _adapters(module) if extra is not None]
    if not added:
        return own
    start = added[0].new_zeros(()) if own is None else _wide(own)
    return sum(added, start=start).to(_stored(base).dtype)


def detour(module: nn.Module) -> Tensor:
    """With adapters, the size of what is added up in all, for an input of norm 1: (out,); 0 without.

    What the base makes and what the adapters make can be large and cancel, and each is rounded by itself.
    """
    own = _wide(_stored(_base(module)))
    through = own.new_zeros(len(own))
    for a, b, _, s in _adapters(module):
        through += abs(s) * (_wide(b).abs() @ _wide(a).norm(dim=1))
    return through + own.norm(dim=1) if through.any() else through


def _base(module: Any) -> nn.Module:
    """The map itself, with or without adapters around it."""
    if isinstance(module, nn.Linear | Conv1D):
        base: Any = module
    elif all(hasattr(module, name) for name in _ADAPTED):
        base = module.base_layer
    else:
        _refuse(module)
    # A class that computes in another way can be a Linear by name, and its weight a code for numbers.
    plain = type(base).forward in (nn.Linear.forward, Conv1D.forward)
    if not plain or type(base.weight) not in (Tensor, nn.Parameter) or base.weight.dtype not in _DTYPES:
        _refuse(base)
    return base


def _stored(base: nn.Module) -> Tensor:
    return held(base, "weight").T if isinstance(base, Conv1D) else held(base, "weight")


def _adapters(module: Any) -> Iterator[tuple[Tensor, Tensor, Tensor | None, float]]:
    """A, B, the bias of B and s of each adapter that takes part and isn't merged into the weight already."""
    if isinstance(module, nn.Linear | Conv1D) or module.disable_adapters or module.merged:
        return
    for name in module.active_adapters:
        if name not in module.lora_A:
            continue
        parts = module.lora_A[name], module.lora_B[name]
        other = name in getattr(module, "lora_variant", {}) or getattr(module, "use_dora", {}).get(name)
        if other or any(type(part) is not nn.Linear for part in parts):
            _refuse(module, f'the adapter "{name}"')
        extra = None if parts[1].bias is None else held(parts[1], "bias")
        yield held(parts[0], "weight"), held(parts[1], "weight"), extra, float(module.scaling[name])


def _wide(tensor: Tensor) -> Tensor:
    """In float32 at least: sums in half precision would lose digits of the weight."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _refuse(module: nn.Module, what: str = "a map") -> NoReturn:
    kind = type(module)
    raise ProbeError(
        f"In the attention of this network, {what} is of a kind whose weights can't be read "
        f"({kind.__module__}.{kind.__qualname__}): merge adapters into the weights (peft's "
        "merge_and_unload), or give the network as it was before its maps were replaced or quantised; its "
        "attention can be looked at as it is."
    )
