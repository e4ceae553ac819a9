"""Positions as rotations: queries and keys are turned by an angle that grows with their position.

The dot product of two turned vectors depends on the difference of their positions only, so scores see how
far apart two tokens are, and the projections need not learn it (Su et al. 2021, "RoFormer: Enhanced
Transformer with Rotary Position Embedding", section 3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_frequencies(head_dim: int, base: float = 10_000.0) -> Tensor:
    """How far each pair of numbers turns from one position to the next: base^(-2 i / head_dim) radians.

    Parameters
    ----------
    head_dim : even; the width that is turned, where that is less than the head's.
    base : the larger, the slower the slowest pair turns.

    Returns
    -------
    (head_dim / 2,), float32, from 1 downwards.

    Raises
    ------
    ValueError : if ``head_dim`` is odd.

    References
    ----------
    Su et al. 2021, section 3.2.2, equation 15, with theta_i as in Vaswani et al. 2017, section 3.5.
    """
    if head_dim % 2 != 0:
        raise ValueError(f"rotary positions turn pairs of numbers, so head_dim must be even; got {head_dim}")
    pair = torch.arange(0, head_dim, 2, dtype=torch.float32)
    return 1.0 / base ** (pair / head_dim)  # rounded as models do that were trained with it


def rotary_angles(num_positions: int, frequencies: Tensor) -> Tensor:
    """How far each pair of numbers is turned at each position: position times frequency, in radians.

    Parameters
    ----------
    num_positions : T; the first position is 0.
    frequencies : (head_dim / 2,), from :func:`rotary_frequencies`, or a model's own.

    Returns
    -------
    (T, head_dim / 2), float32, on the device of ``frequencies``.

    References
    ----------
    Su et al. 2021, section 3.2.2, equation 15: m theta_i.
    """
    positions = torch.arange(num_positions, dtype=torch.float32, device=frequencies.device)
    return positions[:, None] * frequencies.float()


def rotate(x: Tensor, frequencies: Tensor, *, interleaved: bool = False) -> Tensor:
    """Turn each vector by its position: (..., T, head_dim) -> (..., T, head_dim).

    The length of a vector stays what it is. Angles (from :func:`rotary_angles`), sines and cosines are
    computed in float32, as every model that was trained with them does, and then rounded to the dtype of
    ``x``.

    Parameters
    ----------
    x : (..., T, head_dim), queries or keys; the first is at position 0.
    frequencies : (n,), from :func:`rotary_frequencies`, or a model's own; n is head_dim / 2, or less: then
        the first 2 n numbers are turned, and the others stay.
    interleaved : which numbers make a pair: (2 i, 2 i + 1) as in the paper and in GPT-J, or else
        (i, i + n), which is the same with the numbers in another order.

    References
    ----------
    Su et al. 2021, section 3.4.2, equation 34; for turning a part only, Black et al. 2022, "GPT-NeoX-20B: An
    Open-Source Autoregressive Language Model", section 2.1.

    Examples
    --------
    A quarter turn from one position to the next:

    >>> rotate(torch.tensor([[3.0, 4.0], [3.0, 4.0]]), torch.tensor([torch.pi / 2])).round().tolist()
    [[3.0, 4.0], [-4.0, 3.0]]
    """
    angles = rotary_angles(x.size(-2), frequencies.to(x.device))  # (T, n)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    count = frequencies.size(-1)
    turning, staying = x[..., : 2 * count], x[..., 2 * count :]
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]  # (..., T, n), twice
    else:
        first, second = turning.chunk(2, dim=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    if interleaved:
        return torch.cat([torch.stack(turned, dim=-1).flatten(-2), staying], dim=-1)
    return torch.cat([*turned, staying], dim=-1)
