"""Rotary positions against complex numbers, grouped queries against torch's and repeated weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attention import MultiHeadAttention, rotary_angles, rotary_frequencies, rotate

F64 = torch.float64


def test_frequencies_by_hand() -> None:
    # 10000^0, 10000^(-2/4)
    assert rotary_frequencies(4).tolist() == pytest.approx([1.0, 0.01])
    assert rotary_frequencies(6, base=8.0).tolist() == pytest.approx([1.0, 0.5, 0.25])


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="even; got 7"):
        rotary_frequencies(7)


def test_angles_by_hand() -> None:
    angles = rotary_angles(3, rotary_frequencies(4))
    assert angles.dtype == torch.float32
    assert [row.tolist() for row in angles] == [
        [0.0, 0.0],
        pytest.approx([1.0, 0.01]),
        pytest.approx([2.0, 0.02]),
    ]


def test_rotation_is_a_product_with_complex_numbers_of_length_one() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 9, 8, generator=generator, dtype=F64)
    frequencies = rotary_frequencies(8)
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angles = torch.arange(9, dtype=F64)[:, None] * frequencies.double()
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    # Angles up to 8 radians are rounded to float32.
    assert (rotate(x, frequencies) - expected).abs().max() < 5e-6


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [4, 8])
def test_pairs_of_a_part_of_the_width(width: int, interleaved: bool) -> None:
    """Of 8 numbers the first 4, or all, are turned: as complex numbers of neighbours, or of two halves."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, 9, 8, generator=generator, dtype=F64)
    frequencies = rotary_frequencies(width)
    part = x[..., :width]
    pairs = part.unflatten(-1, (-1, 2)) if interleaved else part.unflatten(-1, (2, -1)).transpose(-1, -2)
    angles = torch.arange(9, dtype=F64)[:, None] * frequencies.double()
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
    numbers = torch.view_as_real(turned)
    expected = (numbers if interleaved else numbers.transpose(-1, -2)).flatten(-2)
    found = rotate(x, frequencies, interleaved=interleaved)
    assert (found[..., :width] - expected).abs().max() < 5e-6
    assert torch.equal(found[..., width:], x[..., width:])


def test_lengths_stay_and_scores_see_distances_only() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 8, generator=generator, dtype=F64)
    frequencies = rotary_frequencies(8)
    queries, keys = (rotate(vector.expand(12, 8), frequencies) for vector in (query, key))
    assert torch.allclose(queries.norm(dim=-1), query.norm(), rtol=1e-6)
    scores = queries @ keys.T
    for distance in range(-11, 12):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0], atol=1e-5)
    assert (scores.diagonal(3)[0] - scores.diagonal(0)[0]).abs() > 0.1


def grouped(seed: int, **options: object) -> MultiHeadAttention:
    torch.manual_seed(seed)
    return MultiHeadAttention(12, 24, 6, num_key_value_heads=2, bias=True, dtype=F64, **options)  # type: ignore[arg-type]


def test_grouped_queries_equal_torchs() -> None:
    layer = grouped(0)
    x = torch.randn(2, 5, 12, dtype=F64)
    query = layer.W_query(x).unflatten(-1, (6, 4)).transpose(1, 2)
    key, value = (W(x).unflatten(-1, (2, 4)).transpose(1, 2) for W in (layer.W_key, layer.W_value))
    heads = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
    layer.causal = True
    assert (layer(x) - expected).abs().max() < 1e-12


def test_grouped_queries_equal_repeated_key_and_value_weights() -> None:
    layer = grouped(1)
    plain = MultiHeadAttention(12, 24, 6, bias=True, dtype=F64)
    state = layer.state_dict()
    for name in ("W_key", "W_value"):
        for part in ("weight", "bias"):
            shared = state[f"{name}.{part}"].unflatten(0, (2, 4))  # (H_kv, head_dim, ...)
            state[f"{name}.{part}"] = torch.stack([shared[head // 3] for head in range(6)]).flatten(0, 1)
    plain.load_state_dict(state)
    x = torch.randn(2, 5, 12, dtype=F64)
    assert (layer(x) - plain(x)).abs().max() < 1e-12
    steps = layer.steps(x)
    assert steps.key.shape == steps.value.shape == (2, 6, 5, 4)


def test_rotary_layer_is_turned_queries_and_keys_and_values_as_they_are() -> None:
    frequencies = rotary_frequencies(4)
    layer = grouped(2, rotary_frequencies=frequencies)
    x = torch.randn(1, 7, 12, dtype=F64)
    query = rotate(layer.W_query(x).unflatten(-1, (6, 4)).transpose(1, 2), frequencies)
    key = rotate(layer.W_key(x).unflatten(-1, (2, 4)).transpose(1, 2), frequencies)
    value = layer.W_value(x).unflatten(-1, (2, 4)).transpose(1, 2)
    heads = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert (layer(x) - layer.out_proj(heads.transpose(1, 2).flatten(2))).abs().max() < 1e-12
    # The order of the tokens counts now.
    assert (layer(x.flip(1)).flip(1) - layer(x)).abs().max() > 1e-2


def test_heads_that_can_not_share_are_refused() -> None:
    with pytest.raises(ValueError, match="6 heads can't share 4"):
        MultiHeadAttention(12, 24, 6, num_key_value_heads=4)
