"""Normalised queries and keys: each vector brought to one size, so that scores can't grow without bound.

With queries and keys as long as they like to be, training can blow scores up until every softmax is a step.
Brought to one size after the projection, they differ in direction only, times a learnt gain for each number
(Henry et al. 2020, "Query-Key Normalization for Transformers", section 3, with another norm than this one).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rms_norm(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide each vector by the root mean square of its numbers, then multiply each number with its gain.

    Parameters
    ----------
    x : (..., width), floating. float16 and bfloat16 are computed in float32 and rounded once, at the end.
    gain : (width,)
    eps : added to the mean square, so that a vector of zeros stays one.

    Returns
    -------
    Same shape and dtype as ``x``.

    References
    ----------
    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", section 3, equation 4.

    Examples
    --------
    The mean square of 1 and 7 is 25:

    >>> rms_norm(torch.tensor([1.0, 7.0]), torch.tensor([1.0, 2.0]), eps=0.0).tolist()
    [0.20000000298023224, 2.799999952316284]
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean_square = (wide * wide).mean(dim=-1, keepdim=True)  # (..., width) -> (..., 1)
    return (wide / torch.sqrt(mean_square + eps) * gain).to(x.dtype)


class RMSNorm(nn.Module):
    """:func:`rms_norm` with a trainable gain, which begins as 1.

    Parameters
    ----------
    width : how many numbers a vector has.
    eps : see :func:`rms_norm`.
    device, dtype : of the gain.
    """

    def __init__(
        self,
        width: int,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        return rms_norm(x, self.weight, self.eps)
