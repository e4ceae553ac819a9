"""Who may attend to whom, as boolean matrices: rows are queries, columns are keys, True means "may attend".

That is the convention of ``torch.nn.functional.scaled_dot_product_attention``. The other one, a matrix M of 0
and -inf that is added to the scaled scores, is :func:`additive_mask` away.

A mask must be on the device of the tensors it serves: pass ``device=x.device``.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor


def causal_mask(
    num_queries: int, num_keys: int | None = None, *, device: torch.device | str | None = None
) -> Tensor:
    """Each position sees itself and what came before it, never what comes after.

    With more keys than queries (a cache holds the earlier keys) the queries are the *last* positions: query
    ``i`` stands at position ``num_keys - num_queries + i``. With fewer keys than queries, by the same count,
    the first ``num_queries - num_keys`` queries stand before every key and may attend to none.

    Parameters
    ----------
    num_queries, num_keys : numbers of positions; as many keys as queries if not given.
    device : where the mask is made.

    Returns
    -------
    (num_queries, num_keys), bool, True = may attend.

    Raises
    ------
    ValueError : if a number of positions isn't one.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.

    Examples
    --------
    >>> causal_mask(2, 4).int().tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    num_keys = num_queries if num_keys is None else num_keys
    everything = _everything(num_queries, num_keys, device)
    own_key = num_keys - num_queries  # the diagonal on which a query meets the key of its own position
    return everything.tril(own_key)


def sliding_window_mask(
    num_queries: int,
    num_keys: int | None = None,
    *,
    window: int,
    causal: bool = True,
    device: torch.device | str | None = None,
) -> Tensor:
    """A causal mask that forgets: each position sees the last ``window`` positions, itself included.

    The furthest key it sees is ``window - 1`` back. Positions are counted as in :func:`causal_mask`.

    Parameters
    ----------
    num_queries, num_keys : numbers of positions; as many keys as queries if not given.
    window : number of positions seen, at least 1 (itself only).
    causal : with False it looks as far ahead as back, and sees ``2 * window - 1`` positions.
    device : where the mask is made.

    Returns
    -------
    (num_queries, num_keys), bool, True = may attend.

    Raises
    ------
    ValueError : if ``window`` is less than 1, or a number of positions isn't one.

    References
    ----------
    Jiang et al. 2023, "Mistral 7B", section 2; for the form that looks both ways, Beltagy et al. 2020,
    "Longformer: The Long-Document Transformer", section 3.1.

    Examples
    --------
    >>> sliding_window_mask(4, window=2).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, the position itself; got {window}")
    num_keys = num_queries if num_keys is None else num_keys
    everything = _everything(num_queries, num_keys, device)
    own_key = num_keys - num_queries  # as above
    furthest = own_key if causal else own_key + window - 1
    return everything.tril(furthest).triu(own_key - window + 1)  # without what is window or more away


def _everything(num_queries: int, num_keys: int, device: torch.device | str | None) -> Tensor:
    for count in (num_queries, num_keys):
        if not isinstance(count, int | torch.SymInt) or count < 0:
            raise ValueError(f"a number of positions is a whole number, not negative; got {count!r}")
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)


def padding_mask(attention_mask: Tensor) -> Tensor:
    """Hide the padding of a batch: a tokenizer's attention mask, shaped to serve all heads and queries.

    Parameters
    ----------
    attention_mask : (B, T), bool or 0 and 1; 1 is a token, 0 is padding.

    Returns
    -------
    (B, 1, 1, T), bool, True = may attend, on the same device. It broadcasts to scores of (B, num_heads,
    num_queries, T); for scores without a heads axis, (B, num_queries, T), take ``padding_mask(...)[:, 0]``.

    Raises
    ------
    ValueError : if it isn't (B, T), or holds anything but 0 and 1 (an additive mask would come out inverted).
    """
    if attention_mask.dim() != 2:
        raise ValueError(f"attention_mask must be (batch, tokens); got shape {tuple(attention_mask.shape)}")
    allowed = attention_mask == 1
    if not (allowed | (attention_mask == 0)).all():
        raise ValueError("attention_mask must hold 1 for a token and 0 for padding, and nothing else")
    return allowed[:, None, None, :]  # (B, T) -> (B, 1, 1, T)


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """What all of the masks allow. None stands for no mask.

    Parameters
    ----------
    masks : bool masks, True = may attend, whose shapes broadcast; or None.

    Returns
    -------
    Their logical and, in the shape they broadcast to; None if every one is None.

    Raises
    ------
    TypeError : if a mask isn't bool.
    ValueError : if the shapes don't broadcast, naming them.
    """
    given = [require_bool(mask) for mask in masks if mask is not None]
    try:
        return reduce(torch.logical_and, given) if given else None
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(mask.shape)) for mask in given)
        raise ValueError(f"the masks can't be combined, their shapes don't broadcast: {shapes}") from error


def additive_mask(mask: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The same mask as a matrix M to add to the scaled scores: 0 where allowed, -inf where not.

    Parameters
    ----------
    mask : any shape, bool, True = may attend.
    dtype : a floating dtype; torch's default if not given.

    Returns
    -------
    0 and -inf, in the shape and on the device of ``mask``.

    Raises
    ------
    TypeError : if ``mask`` isn't bool.
    """
    nothing_added = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return nothing_added.masked_fill(~require_bool(mask), float("-inf"))


def require_bool(mask: Tensor) -> Tensor:
    """``mask`` itself if it is bool. Else a TypeError: as a number, 0 may mean "no" or, added, "yes"."""
    if mask.dtype != torch.bool:
        raise TypeError(
            f"a mask must be bool, True = may attend; got {mask.dtype}. "
            "Pass mask == 1 if 1 means attend, mask == 0 if it is a mask of 0 and -inf to be added"
        )
    return mask
