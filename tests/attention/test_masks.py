"""Masks against matrices written out by hand."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from attention import (
    additive_mask,
    causal_mask,
    combine_masks,
    padding_mask,
    scaled_dot_product_attention,
    sliding_window_mask,
    softmax,
)

INF = math.inf


def rows(mask):
    """A mask as strings, x = may attend."""
    assert mask.dtype == torch.bool
    return ["".join("x" if may else "." for may in row) for row in mask.tolist()]


class TestCausal:
    def test_square(self):
        assert rows(causal_mask(4)) == ["x...", "xx..", "xxx.", "xxxx"]

    def test_one_token(self):
        assert rows(causal_mask(1)) == ["x"]

    def test_more_keys_than_queries(self):
        # positions 3 and 4 of five: the queries come last
        assert rows(causal_mask(2, 5)) == ["xxxx.", "xxxxx"]

    def test_one_query_with_a_cache_sees_everything(self):
        assert rows(causal_mask(1, 4)) == ["xxxx"]

    def test_fewer_keys_than_queries(self):
        # positions -2 and -1 stand before the first key
        assert rows(causal_mask(4, 2)) == ["..", "..", "x.", "xx"]

    def test_a_cache_gives_the_last_rows_of_the_whole(self):
        query, key, value = torch.randn(3, 6, 4, dtype=torch.float64)
        whole = torch_attention(query[None], key[None], value[None], is_causal=True)[0]
        cached = scaled_dot_product_attention(query[4:], key, value, mask=causal_mask(2, 6)).output
        torch.testing.assert_close(cached, whole[4:], rtol=0, atol=1e-12)


class TestSlidingWindow:
    def test_by_hand(self):
        assert rows(sliding_window_mask(5, window=3)) == ["x....", "xx...", "xxx..", ".xxx.", "..xxx"]

    def test_window_of_one_is_the_position_itself(self):
        assert rows(sliding_window_mask(3, window=1)) == ["x..", ".x.", "..x"]

    def test_more_keys_than_queries(self):
        # positions 3 and 4 of five, each with the one before it
        assert rows(sliding_window_mask(2, 5, window=2)) == ["..xx.", "...xx"]

    def test_a_window_as_long_as_the_text_is_causal(self):
        assert torch.equal(sliding_window_mask(4, window=4), causal_mask(4))
        assert not torch.equal(sliding_window_mask(4, window=3), causal_mask(4))

    def test_both_ways(self):
        assert rows(sliding_window_mask(4, window=2, causal=False)) == ["xx..", "xxx.", ".xxx", "..xx"]
        assert rows(sliding_window_mask(2, 5, window=2, causal=False)) == ["..xxx", "...xx"]
        assert rows(sliding_window_mask(3, window=1, causal=False)) == ["x..", ".x.", "..x"]

    @pytest.mark.parametrize("window", [0, -1])
    def test_no_window(self, window):
        with pytest.raises(ValueError, match=f"at least 1.*{window}"):
            sliding_window_mask(3, window=window)


class TestPadding:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.uint8])
    def test_shape_and_meaning(self, dtype):
        mask = padding_mask(torch.tensor([[1, 1, 0], [0, 1, 1]]).to(dtype))
        assert mask.shape == (2, 1, 1, 3)
        assert rows(mask[:, 0, 0]) == ["xx.", ".xx"]

    def test_serves_every_head_and_query(self):
        query, key, value = torch.randn(3, 2, 4, 3, 8)  # each (2 texts, 4 heads, 3 tokens, 8 wide)
        mask = padding_mask(torch.tensor([[1, 1, 0], [0, 1, 1]]))
        weights = scaled_dot_product_attention(query, key, value, mask).weights
        assert (weights[0, :, :, 2] == 0).all()
        assert (weights[1, :, :, 0] == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 3))

    def test_an_additive_mask_is_refused_not_inverted(self):
        with pytest.raises(ValueError, match="1 for a token and 0 for padding"):
            padding_mask(torch.tensor([[0.0, 0.0, -10000.0]]))

    @pytest.mark.parametrize("shape", [(3,), (2, 1, 1, 3)])
    def test_other_shapes_are_refused(self, shape):
        with pytest.raises(ValueError, match=r"batch, tokens.*\("):
            padding_mask(torch.ones(shape))


class TestCombination:
    def test_what_both_allow(self):
        mask = combine_masks(causal_mask(3), padding_mask(torch.tensor([[1, 1, 1], [0, 1, 1]])))
        assert mask.shape == (2, 1, 3, 3)
        assert rows(mask[0, 0]) == ["x..", "xx.", "xxx"]
        assert rows(mask[1, 0]) == ["...", ".x.", ".xx"]

    def test_three(self):
        not_first = torch.tensor([False, True, True])
        mask = combine_masks(causal_mask(4)[1:, 1:], sliding_window_mask(3, window=2), not_first)
        assert rows(mask) == ["...", ".x.", ".xx"]

    def test_none_is_no_mask(self):
        mask = causal_mask(3)
        assert combine_masks() is None
        assert combine_masks(None, None) is None
        assert torch.equal(combine_masks(None, mask, None), mask)

    def test_numbers_are_refused(self):
        with pytest.raises(TypeError, match=r"bool.*torch\.float32"):
            combine_masks(causal_mask(3), torch.ones(3, 3))
        with pytest.raises(TypeError, match=r"bool.*torch\.float32"):
            combine_masks(torch.ones(3, 3))

    def test_shapes_that_do_not_fit(self):
        with pytest.raises(ValueError, match=r"\(3, 3\), \(4, 4\)"):
            combine_masks(causal_mask(3), causal_mask(4))


class TestAdditive:
    def test_zero_and_minus_infinity(self):
        assert additive_mask(causal_mask(3)).tolist() == [[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]

    def test_adding_is_masking(self):
        query, key, value = torch.randn(3, 5, 4, dtype=torch.float64)
        steps = scaled_dot_product_attention(query, key, value, causal_mask(5))
        matrix = additive_mask(causal_mask(5), dtype=torch.float64)
        assert torch.equal(steps.scaled + matrix, steps.masked)
        assert torch.equal(softmax(steps.scaled + matrix), steps.weights)
        expected = torch_attention(query, key, value, matrix)
        torch.testing.assert_close(steps.output, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_dtype(self, dtype):
        assert additive_mask(causal_mask(2), dtype).dtype == dtype

    def test_default_dtype(self):
        assert additive_mask(causal_mask(2)).dtype == torch.get_default_dtype()

    def test_numbers_are_refused(self):
        with pytest.raises(TypeError, match="bool"):
            additive_mask(torch.ones(2, 2))


def test_masks_are_made_on_the_device_asked_for():
    assert causal_mask(3, device="meta").is_meta
    assert sliding_window_mask(3, window=2, device="meta").is_meta
    assert additive_mask(causal_mask(3, device="meta")).is_meta
    assert combine_masks(causal_mask(3, device="meta"), causal_mask(3, device="meta")).is_meta


@pytest.mark.parametrize("count", [2.5, -1, "3", None])
def test_what_is_no_number_of_positions_is_refused(count):
    with pytest.raises(ValueError, match="a number of positions is a whole number"):
        causal_mask(4, count) if count is not None else causal_mask(count)
    if count is not None:
        with pytest.raises(ValueError, match="a number of positions is a whole number"):
            sliding_window_mask(count, window=2)
