"""T5: scores are not scaled, and get a bias for each head and distance; checked from query and key.

Raffel et al. 2020, section 2.1, who leave the scale to the initial weights. The biases are the same in all
layers of a stack; the first layer holds them. An encoder or a decoder alone says which it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from probe.models.families.family import Family, causal_as_decoder, unscaled
from probe.models.offload import device_of, held


def bias(hf: PreTrainedModel, module: nn.Module, kind: str, num_queries: int, num_keys: int) -> Tensor:
    """One number for each head and distance; none between the two texts."""
    if kind == "cross":
        return torch.zeros(1, 1, num_queries, num_keys, device=device_of(hf))
    stacks = (part for part in hf.modules() if hasattr(part, "block"))
    stack: Any = next(part for part in stacks if module in part.modules())
    table = held(stack.block[0].layer[0].SelfAttention.relative_attention_bias, "weight")  # (buckets, H)
    buckets = t5_buckets(
        num_queries,
        num_keys,
        num_buckets=len(table),
        max_distance=stack.config.relative_attention_max_distance,
        both_ways=kind == "encoder" or (kind == "self" and not stack.config.is_decoder),
    )
    return table[buckets.to(table.device)].permute(2, 0, 1)[None]  # (Tq, Tk, H) -> (1, H, Tq, Tk)


def t5_buckets(
    num_queries: int, num_keys: int, *, num_buckets: int, max_distance: int, both_ways: bool
) -> Tensor:
    """Which distances share a bias: (num_queries, num_keys), the number of each pair's bucket.

    Half of the buckets are for one distance each, from 0 on; the others grow in proportion, so that the last
    begins shortly before ``max_distance`` and holds everything beyond it. Looking both ways, keys ahead of
    their query have buckets of their own, the second half; otherwise they all count as distance 0.

    References
    ----------
    Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    section 2.1; the sizes are those of the authors' code.
    """
    count = num_buckets // 2 if both_ways else num_buckets
    single = count // 2
    growing = count - single
    # Bucket single + j begins at distance single * (max_distance / single) ** (j / growing). Raised to a
    # power, both sides are whole numbers, and nothing is rounded.
    bucket_of = []
    for distance in range(max(num_queries, num_keys)):
        begun = (
            j for j in range(1, growing) if distance**growing >= max_distance**j * single ** (growing - j)
        )
        bucket_of.append(distance if distance < single else single + max(begun, default=0))
    ahead = torch.arange(num_keys) - torch.arange(num_queries)[:, None]
    behind = torch.tensor(bucket_of)
    if not both_ways:
        return behind[(-ahead).clamp_min(0)]
    return behind[ahead.abs()] + count * (ahead > 0)


FAMILY = Family(("t5", "mt5"), causal_as_decoder, scale=unscaled, bias=bias)
