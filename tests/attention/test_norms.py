"""The root mean square norm against torch's own, alone and inside an attention."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F

from attention import MultiHeadAttention, rms_norm, rotary_frequencies, rotate
from attention.norms import RMSNorm

F64 = torch.float64


@pytest.mark.parametrize(("dtype", "error"), [(F64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_against_torch(dtype: torch.dtype, error: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 5 * torch.randn(2, 3, 8, generator=generator, dtype=F64)
    gain = 1 + torch.randn(8, generator=generator, dtype=F64)
    for eps in (1e-6, 0.5):
        found = rms_norm(x.to(dtype), gain.to(dtype), eps)
        assert found.dtype == dtype
        assert (found.double() - F.rms_norm(x, (8,), gain, eps)).abs().max() < error * gain.abs().max() * 3


def test_numbers_whose_squares_are_too_large_for_half_precision() -> None:
    x = torch.tensor([[3e4, -3e4], [0.0, 0.0]], dtype=torch.float16)
    assert rms_norm(x, torch.ones(2)).tolist() == [[1.0, -1.0], [0.0, 0.0]]


def test_the_module_begins_with_gains_of_one() -> None:
    norm = RMSNorm(4, eps=0.0)
    assert norm(torch.tensor([[2.0, -2.0, 2.0, -2.0]])).tolist() == [[1.0, -1.0, 1.0, -1.0]]


@pytest.mark.parametrize("over", ["head", "all"])
def test_queries_and_keys_are_normalised_and_then_turned(over: Literal["head", "all"]) -> None:
    torch.manual_seed(1)
    frequencies = rotary_frequencies(4)
    options: dict[str, Any] = {"query_key_norm": over, "rotary_frequencies": frequencies, "dtype": F64}
    layer = MultiHeadAttention(12, 24, 6, num_key_value_heads=2, **options)
    x = torch.randn(2, 5, 12, dtype=F64)

    def normalised(projected: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
        torch.nn.init.normal_(norm.weight, mean=1.0, std=0.3)
        heads = projected.unflatten(-1, (-1, 4)).transpose(1, 2)
        if over == "head":
            return F.rms_norm(heads, (4,), norm.weight, norm.eps)
        whole = F.rms_norm(projected, (projected.shape[-1],), norm.weight, norm.eps)
        return whole.unflatten(-1, (-1, 4)).transpose(1, 2)

    query = rotate(normalised(layer.W_query(x), layer.query_norm), frequencies)
    key = rotate(normalised(layer.W_key(x), layer.key_norm), frequencies)
    value = layer.W_value(x).unflatten(-1, (2, 4)).transpose(1, 2)
    heads = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
    assert (layer(x) - expected).abs().max() < 1e-12
    steps = layer.steps(x)
    assert (steps.query - query).abs().max() < 1e-12
    assert (steps.key - key.repeat_interleave(3, dim=1)).abs().max() < 1e-12


def test_another_kind_of_norm_is_refused() -> None:
    with pytest.raises(ValueError, match='"head", "all" or None; got \'layer\''):
        MultiHeadAttention(12, 24, 6, query_key_norm="layer")  # type: ignore[arg-type]
