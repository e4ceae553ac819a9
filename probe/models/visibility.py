"""Which keys a query may attend to: the one place that says it."""

from __future__ import annotations

import torch
from torch import Tensor

from attention import causal_mask, sliding_window_mask


def allowed_keys(
    length: int, *, causal: bool, window: int | None = None, device: torch.device | str | None = None
) -> Tensor | None:
    """The mask of one attention over ``length`` tokens: (T, T), bool, True = may attend; None if all may.

    Parameters
    ----------
    causal : whether a query sees only itself and what came before it.
    window
        How many of the last tokens a query sees, itself included; None for all of them. It stays where
        ``causal`` is False, and then reaches as far ahead as back: a window and a direction are two things.
    """
    if window is not None:
        return sliding_window_mask(length, window=window, causal=causal, device=device)
    return causal_mask(length, device=device) if causal else None
