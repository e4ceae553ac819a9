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
    head_dim : even; pair i is made of the numbers i and i + head_dim / 2.
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
    return base ** -(pair / head_dim)


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


def rotate(x: Tensor, frequencies: Tensor) -> Tensor:
    """Turn each vector by its position: (..., T, head_dim) -> (..., T, head_dim).

    The length of a vector stays what it is. Angles (from :func:`rotary_angles`), sines and cosines are
    computed in float32, as every model that was trained with them does, and then rounded to the dtype of
    ``x``.

    Parameters
    ----------
    x : (..., T, head_dim), queries or keys; the first is at position 0.
    frequencies : (head_dim / 2,), from :func:`rotary_frequencies`, or a model's own.

    References
    ----------
    Su et al. 2021, section 3.4.2, equation 34; the pairs are (i, i + head_dim / 2) instead of (2 i, 2 i + 1),
    which is the same with the numbers in another order.

    Examples
    --------
    A quarter turn from one position to the next:

    >>> rotate(torch.tensor([[3.0, 4.0], [3.0, 4.0]]), torch.tensor([torch.pi / 2])).round().tolist()
    [[3.0, 4.0], [-4.0, 3.0]]
    """
    angles = rotary_angles(x.size(-2), frequencies.to(x.device))  # (T, head_dim / 2)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)  # (..., T, head_dim / 2), twice
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
