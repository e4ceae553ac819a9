"""Weights that are not in the network between its calls.

The library accelerate keeps the weights of a large network elsewhere, in memory or in files. What lies in
the network meanwhile are tensors on the device "meta", which have shapes and no numbers, and a hook at each
module (``_hf_hook``) brings the numbers (``weights_map``) to where it computes (``execution_device``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from probe.errors import ProbeError


def device_of(hf: nn.Module) -> torch.device:
    """Where a network computes."""
    within = next((tensor.device for tensor in hf.parameters() if not tensor.is_meta), None)
    fetched = (hook.execution_device for module in hf.modules() for hook in _fetching(module))
    return within or torch.device(next(fetched, "meta"))


def check_numbers(hf: nn.Module) -> None:
    """Refuse a network some of whose weights have no numbers that anything brings.

    Raises
    ------
    ProbeError
        Naming one of them.
    """
    if not any(tensor.is_meta for tensor in (*hf.parameters(), *hf.buffers())):
        return
    lost = next(_without_numbers(hf), None)
    if lost is not None:
        raise ProbeError(
            f'The weights of {type(hf).__name__} have no numbers: {lost} is on the device "meta", and no '
            "hook of accelerate brings it. Load the network with its weights."
        )


def held(module: nn.Module, name: str) -> Tensor:
    """The numbers of one of a module's weights, wherever they are, on the device that it computes on.

    Raises
    ------
    ProbeError
        If there are none.
    """
    tensor: Tensor = getattr(module, name)
    if not tensor.is_meta:
        return tensor.detach()
    for hook in _fetching(module):
        kept: Tensor = hook.weights_map[name]
        return kept.detach().to(hook.execution_device)
    raise ProbeError(
        f"The weights of a {type(module).__name__} are not in the network between its calls (accelerate "
        "keeps them with a module around it): load the network without preload_module_classes."
    )


def _without_numbers(hf: nn.Module) -> Iterator[str]:
    """The names of tensors that are on "meta" and that no hook brings."""
    brought: tuple[str, ...] = ()
    for path, module in hf.named_modules():
        if _fetching(module):
            brought = (*brought, path)
        own = (*module.named_parameters(path, recurse=False), *module.named_buffers(path, recurse=False))
        for name, tensor in own:
            if tensor.is_meta and not any(name.startswith(f"{one}." if one else "") for one in brought):
                yield name


def _fetching(module: nn.Module) -> list[Any]:
    """A module's hooks that bring weights; several can be one after the other."""
    hook = getattr(module, "_hf_hook", None)
    return [one for one in getattr(hook, "hooks", [hook]) if getattr(one, "weights_map", None) is not None]
