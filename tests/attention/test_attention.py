"""Scaled dot-product attention against torch's own, against the loops, and against its definition."""

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as torch_attention
from torch.utils._python_dispatch import TorchDispatchMode

from attention import (
    attention_by_loops,
    causal_mask,
    dropout,
    renormalised_causal,
    scaled_dot_product_attention,
)

INF = math.inf


def draw(*leading, num_queries=5, num_keys=7, head_dim=4, value_dim=6, dtype=torch.float64):
    """A query, key and value of random numbers."""
    return (
        torch.randn(*leading, num_queries, head_dim, dtype=dtype),
        torch.randn(*leading, num_keys, head_dim, dtype=dtype),
        torch.randn(*leading, num_keys, value_dim, dtype=dtype),
    )


def assert_same(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


class TestAgainstTorch:
    @pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3)])
    @pytest.mark.parametrize("scale", [None, 0.3])
    def test_without_a_mask(self, leading, scale):
        query, key, value = draw(*leading)
        output = scaled_dot_product_attention(query, key, value, scale=scale).output
        assert_same(output, torch_attention(query, key, value, scale=scale))

    def test_causal(self):
        query, key, value = draw(2, 3, num_queries=6, num_keys=6)
        output = scaled_dot_product_attention(query, key, value, causal_mask(6)).output
        assert_same(output, torch_attention(query, key, value, is_causal=True))

    @pytest.mark.parametrize("shape", [(5, 7), (7,), (2, 1, 1, 7), (1, 3, 5, 7), (2, 3, 5, 7)])
    def test_masks_that_broadcast(self, shape):
        query, key, value = draw(2, 3)
        mask = torch.rand(shape) < 0.6
        mask[..., 0] = True  # no empty rows: what torch makes of them depends on its backend
        output = scaled_dot_product_attention(query, key, value, mask).output
        assert_same(output, torch_attention(query, key, value, mask.expand(2, 3, 5, 7)))

    def test_scale_with_a_mask(self):
        query, key, value = draw(2, 3, num_queries=7)
        output = scaled_dot_product_attention(query, key, value, causal_mask(7), 0.9).output
        assert_same(output, torch_attention(query, key, value, is_causal=True, scale=0.9))

    def test_one_key_head_for_all_query_heads(self):
        query, key, value = draw(2, 3)
        key, value = key[:, :1], value[:, :1]
        expected = torch_attention(query, key.expand(2, 3, 7, 4), value.expand(2, 3, 7, 6))
        assert_same(scaled_dot_product_attention(query, key, value).output, expected)

    def test_float32(self):
        query, key, value = draw(2, 3, num_queries=64, num_keys=64, head_dim=32, dtype=torch.float32)
        steps = scaled_dot_product_attention(query, key, value, causal_mask(64))
        expected = torch_attention(query.double(), key.double(), value.double(), is_causal=True)
        assert steps.output.dtype == torch.float32
        assert_same(steps.output.double(), expected, atol=2e-6)

    @pytest.mark.parametrize(("dtype", "atol"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
    def test_half_precision(self, dtype, atol):
        query, key, value = draw(2, 3, dtype=dtype)
        steps = scaled_dot_product_attention(query, key, value)
        assert steps.scores.dtype == steps.scaled.dtype == steps.masked.dtype == torch.float32
        assert steps.weights.dtype == steps.output.dtype == dtype
        assert_same(
            steps.output.double(), torch_attention(query.double(), key.double(), value.double()), atol
        )

    @pytest.mark.parametrize("keep_steps", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_dot_products_beyond_float16(self, dtype, keep_steps):
        # 64 products of about 60 * 60: dot products to 230,400, where float16 ends at 65,504
        query, key, value = draw(2, 3, num_queries=9, num_keys=9, head_dim=64, dtype=dtype)
        query, key = 60 * query.sign() + query, 60 * key.sign() + key
        largest = (query.double() @ key.double().transpose(-2, -1)).abs().max()
        assert largest > 65_504
        steps = scaled_dot_product_attention(query, key, value, scale=1e-4, keep_steps=keep_steps)
        wide = [tensor.double() for tensor in (query, key, value)]
        weights = (wide[0] @ wide[1].transpose(-2, -1) * 1e-4).softmax(-1)
        assert_same(steps.weights.double(), weights, atol=2e-3)
        assert_same(steps.output.double(), torch_attention(*wide, scale=1e-4), atol=2e-2)

    def test_dot_products_beyond_float16_under_autocast(self):
        query, key, value = (torch.full((2, 64), size) for size in (60.0, 60.0, 1.0))
        with torch.autocast("cpu", torch.float16):
            steps = scaled_dot_product_attention(query, key, value)
        assert steps.scores.tolist() == [[230_400.0] * 2] * 2
        assert steps.weights.tolist() == [[0.5] * 2] * 2

    def test_first_gradients(self):
        inputs = [tensor.requires_grad_() for tensor in draw(2, 3, num_queries=7)]
        upstream = torch.randn(2, 3, 7, 6, dtype=torch.float64)
        output = scaled_dot_product_attention(*inputs, causal_mask(7)).output
        expected = torch_attention(*inputs, is_causal=True)
        ours = torch.autograd.grad(output, inputs, upstream)
        theirs = torch.autograd.grad(expected, inputs, upstream)
        for our, their in zip(ours, theirs, strict=True):
            assert_same(our, their)


@settings(max_examples=25, deadline=None)
@given(
    num_queries=st.integers(1, 6),
    num_keys=st.integers(1, 6),
    head_dim=st.integers(1, 5),
    value_dim=st.integers(1, 5),
    size=st.sampled_from([0.01, 1.0, 100.0]),
    seed=st.integers(0, 2**31),
)
def test_equals_the_loops(num_queries, num_keys, head_dim, value_dim, size, seed):
    torch.manual_seed(seed)
    query, key, value = draw(
        2, num_queries=num_queries, num_keys=num_keys, head_dim=head_dim, value_dim=value_dim
    )
    mask = torch.rand(2, num_queries, num_keys) < 0.6  # some rows may be empty
    steps = scaled_dot_product_attention(size * query, key, value, mask)
    weights, output = attention_by_loops(size * query, key, value, mask)
    assert_same(steps.weights, weights)
    assert_same(steps.output, output)


class TestSteps:
    def test_each_step_by_definition(self):
        query, key, value = draw(2, 3, num_queries=7, head_dim=4)
        mask = causal_mask(7)
        steps = scaled_dot_product_attention(query, key, value, mask)
        assert_same(steps.scores, torch.einsum("bhqd,bhkd->bhqk", query, key))
        assert_same(steps.scaled, torch.einsum("bhqd,bhkd->bhqk", query, key) / 2)  # the root of head_dim
        assert_same(steps.masked, torch.where(mask, steps.scores / 2, torch.tensor(-INF).double()))
        assert_same(steps.weights, torch.softmax(steps.masked, -1))
        assert_same(steps.output, torch.einsum("bhqk,bhkd->bhqd", steps.weights, value))

    def test_without_a_mask_the_scaled_scores_stand(self):
        steps = scaled_dot_product_attention(*draw())
        assert torch.equal(steps.masked, steps.scaled)

    def test_rows_are_queries(self):
        # query 0 matches key 2 only
        query, key = torch.tensor([[9.0, 0], [0, 0]]), torch.tensor([[0.0, 1], [0, 1], [9, 0]])
        weights = scaled_dot_product_attention(query, key, torch.eye(3)).weights
        assert weights.shape == (2, 3)
        assert weights[0].tolist() == pytest.approx([0, 0, 1], abs=1e-20)
        assert weights[1].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])

    def test_rows_sum_to_one_and_columns_do_not(self):
        weights = scaled_dot_product_attention(*draw(2, 3, num_queries=7), causal_mask(7)).weights
        assert_same(weights.sum(-1), torch.ones(2, 3, 7).double(), 1e-15)
        assert (weights.sum(-2) - 1).abs().min() > 1e-6

    def test_head_dim_sets_the_scale(self):
        query, key = torch.ones(1, 16), torch.ones(1, 16)
        steps = scaled_dot_product_attention(query, key, torch.ones(1, 1))
        assert (steps.scores.item(), steps.scaled.item()) == (16.0, 4.0)

    def test_inputs_are_left_alone(self):
        inputs = draw()
        before = [tensor.clone() for tensor in inputs]
        mask = causal_mask(5, 7)
        for keep_steps in (True, False):
            scaled_dot_product_attention(*inputs, mask, keep_steps=keep_steps)
            assert all(torch.equal(tensor, copy) for tensor, copy in zip(inputs, before, strict=True))
            assert torch.equal(mask, causal_mask(5, 7))


class TestWhatSomeModelsAdd:
    mask = causal_mask(5, 7)

    @pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (2, 1, 1, 7)])
    def test_bias_is_added_to_the_scaled_scores(self, shape):
        query, key, value = draw(2, 3)
        bias = torch.randn(shape, dtype=torch.float64)
        steps = scaled_dot_product_attention(query, key, value, bias=bias)
        assert_same(steps.output, torch_attention(query, key, value, bias.expand(2, 3, 5, 7)))
        assert_same(steps.scaled, query @ key.mT / 2)
        assert_same(steps.masked - steps.scaled, bias.expand(2, 3, 5, 7))

    def test_the_mask_holds_against_any_bias(self):
        inputs = draw(2, 3)
        bias = torch.randn(5, 7, dtype=torch.float64)
        expected = torch_attention(*inputs, bias.masked_fill(~self.mask, -INF))
        assert_same(scaled_dot_product_attention(*inputs, self.mask, bias=bias).output, expected)

    def test_softcap_bounds_the_scaled_scores_before_the_bias(self):
        query, key, value = draw(2, 3)
        bias = torch.randn(5, 7, dtype=torch.float64)
        steps = scaled_dot_product_attention(100 * query, key, value, self.mask, bias=bias, softcap=2.0)
        capped = 2 * torch.tanh(torch.einsum("bhqd,bhkd->bhqk", query, key) * 50 / 2)
        assert_same(steps.weights, torch.softmax((capped + bias).masked_fill(~self.mask, -INF), -1))
        assert capped.abs().max() <= 2
        # a cap far above the scores does nothing
        uncapped = scaled_dot_product_attention(query, key, value).output
        assert_same(scaled_dot_product_attention(query, key, value, softcap=1e7).output, uncapped)

    def test_a_sink_is_a_key_without_a_value(self):
        query, key, value = draw(2, 3)
        sinks = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)  # one a head
        steps = scaled_dot_product_attention(query, key, value, self.mask, sinks=sinks)
        exponentials = (query @ key.mT / 2).exp() * self.mask
        total = exponentials.sum(-1, keepdim=True) + sinks.exp()[:, None, None]
        assert_same(steps.weights, exponentials / total)
        assert_same(steps.output, exponentials / total @ value)
        assert (steps.weights.sum(-1) < 1).all()

    def test_on_paper(self):
        # scores ln 1 and ln 2 and a sink of ln 5: shares 1, 2 and 5 of 8, the last one left unused
        key = torch.tensor([[1.0], [2.0]], dtype=torch.float64).log()
        one = torch.ones(1, 1, dtype=torch.float64)
        weights = scaled_dot_product_attention(one, key, key, sinks=torch.tensor(5.0).double().log()).weights
        assert_same(weights, torch.tensor([[1 / 8, 2 / 8]]).double(), 1e-15)

    @pytest.mark.parametrize("extra", ["bias", "softcap", "sinks"])
    def test_gradcheck_and_leaving_steps_out(self, extra):
        inputs = [t.requires_grad_() for t in draw(2, num_queries=5, head_dim=2, value_dim=2)]
        shape = {"bias": (5, 7), "sinks": (2,), "softcap": ()}[extra]
        added = torch.rand(shape, dtype=torch.float64, requires_grad=extra != "softcap") + 0.5
        if extra == "softcap":
            added = added.item()

        def attend(query, key, value, keep_steps=True):
            options = {extra: added, "keep_steps": keep_steps}
            return scaled_dot_product_attention(query, key, value, self.mask, **options).output

        assert torch.autograd.gradcheck(attend, inputs)
        assert torch.equal(attend(*inputs, keep_steps=False), attend(*inputs))

    def test_gradients_of_the_bias_and_the_sinks(self):
        inputs = draw(2, num_queries=5, head_dim=2, value_dim=2)
        bias = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
        sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

        def attend(bias, sinks):
            return scaled_dot_product_attention(*inputs, self.mask, bias=bias, sinks=sinks).output

        assert torch.autograd.gradcheck(attend, (bias, sinks))


class _MapsMade(TorchDispatchMode):
    """Collects the storages of floating results of one shape, and holds them, so that none is used twice."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.storages = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape == self.shape and result.is_floating_point():
            storage = result.untyped_storage()
            self.storages[storage.data_ptr()] = storage
        return result


@pytest.mark.parametrize("dtypes", [(torch.half, torch.float32), (torch.int64, torch.int64)])
def test_dtypes_that_dont_go_together_are_named(dtypes):
    query, key, value = draw(2, 3)
    with pytest.raises(TypeError, match=f"of one floating dtype; got {dtypes[0]}, {dtypes[1]}"):
        scaled_dot_product_attention(query.to(dtypes[0]), key.to(dtypes[1]), value.to(dtypes[1]))


def test_autocast_may_bring_dtypes_together():
    query, key, value = (tensor.float() for tensor in draw(2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        output = scaled_dot_product_attention(query.bfloat16(), key, value).output
    expected = scaled_dot_product_attention(query, key, value).output
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)


class TestLeavingStepsOut:
    mask = causal_mask(5, 7)

    def test_same_numbers(self):
        inputs = draw(2, 3)
        full = scaled_dot_product_attention(*inputs, self.mask, 0.4)
        lean = scaled_dot_product_attention(*inputs, self.mask, 0.4, keep_steps=False)
        assert lean.scores is lean.scaled is lean.masked is None
        assert torch.equal(lean.weights, full.weights)
        assert torch.equal(lean.output, full.output)

    def test_same_gradients(self):
        inputs = [tensor.requires_grad_() for tensor in draw(2, 3)]
        gradients = []
        for keep_steps in (True, False):
            output = scaled_dot_product_attention(*inputs, self.mask, keep_steps=keep_steps).output
            gradients.append(torch.autograd.grad(output.square().sum(), inputs))
        assert all(torch.equal(full, lean) for full, lean in zip(*gradients, strict=True))

    @pytest.mark.parametrize("gradients", [True, False])
    def test_fewer_matrices_are_made(self, gradients):
        inputs = [tensor.requires_grad_(gradients) for tensor in draw(2, 3)]
        made = {}
        for keep_steps in (True, False):
            with nullcontext() if gradients else torch.no_grad(), _MapsMade((2, 3, 5, 7)) as maps:
                scaled_dot_product_attention(*inputs, self.mask, keep_steps=keep_steps)
            made[keep_steps] = len(maps.storages)
        # kept: scores, scaled, masked and exponentials; else one matrix that becomes each in turn. Either way
        # the weights overwrite the exponentials where no gradient needs those.
        weights = 1 if gradients else 0
        assert made == {True: 4 + weights, False: 1 + weights}


class TestGradcheck:
    @pytest.mark.parametrize("mask", [None, causal_mask(3, 4)], ids=["no mask", "causal"])
    @pytest.mark.parametrize("keep_steps", [True, False])
    def test_output_and_weights(self, mask, keep_steps):
        inputs = [t.requires_grad_() for t in draw(2, num_queries=3, num_keys=4, head_dim=2, value_dim=3)]

        def attend(query, key, value):
            steps = scaled_dot_product_attention(query, key, value, mask, keep_steps=keep_steps)
            return steps.weights, steps.output

        assert torch.autograd.gradcheck(attend, inputs)
        assert torch.autograd.gradgradcheck(attend, inputs)

    def test_with_an_empty_row(self):
        inputs = [t.requires_grad_() for t in draw(num_queries=3, num_keys=4, head_dim=2, value_dim=3)]
        mask = causal_mask(3, 4)
        mask[1] = False
        assert torch.autograd.gradcheck(lambda *qkv: scaled_dot_product_attention(*qkv, mask).output, inputs)


class TestRowsThatMayAttendToNothing:
    mask = torch.tensor(
        [[True, False, True], [False, False, False], [True, True, True], [False, False, False]]
    )

    @pytest.mark.parametrize("keep_steps", [True, False])
    def test_zeros_and_the_rest_untouched(self, keep_steps):
        query, key, value = draw(num_queries=4, num_keys=3)
        steps = scaled_dot_product_attention(query, key, value, self.mask, keep_steps=keep_steps)
        for empty in (1, 3):
            assert steps.weights[empty].tolist() == [0, 0, 0]
            assert steps.output[empty].tolist() == [0] * 6
        others = [0, 2]
        assert_same(steps.output[others], torch_attention(query[others], key, value, self.mask[others]))

    @pytest.mark.parametrize("keep_steps", [True, False])
    def test_gradients_are_those_of_the_other_rows(self, keep_steps):
        query, key, value = inputs = [t.requires_grad_() for t in draw(num_queries=4, num_keys=3)]
        upstream = torch.randn(4, 6, dtype=torch.float64)
        output = scaled_dot_product_attention(*inputs, self.mask, keep_steps=keep_steps).output
        gradients = torch.autograd.grad(output, inputs, upstream)

        others = [0, 2]
        without = torch_attention(query[others], key, value, self.mask[others])
        expected = torch.autograd.grad(without, inputs, upstream[others])
        for gradient, other in zip(gradients, expected, strict=True):
            assert_same(gradient, other)
        assert gradients[0][[1, 3]].tolist() == [[0] * 4] * 2

    def test_no_keys_at_all(self):
        output = scaled_dot_product_attention(*draw(num_keys=0)).output
        assert output.tolist() == [[0] * 6] * 5


class TestSymmetries:
    def test_permuting_keys_permutes_weights_and_leaves_the_output(self):
        query, key, value = draw(2, 3)
        order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
        steps = scaled_dot_product_attention(query, key, value)
        permuted = scaled_dot_product_attention(query, key[..., order, :], value[..., order, :])
        assert_same(permuted.weights, steps.weights[..., order])
        assert_same(permuted.output, steps.output)

    def test_permuting_queries_permutes_rows(self):
        query, key, value = draw(2, 3)
        order = torch.tensor([4, 2, 0, 1, 3])
        steps = scaled_dot_product_attention(query, key, value)
        permuted = scaled_dot_product_attention(query[..., order, :], key, value)
        assert_same(permuted.weights, steps.weights[..., order, :])
        assert_same(permuted.output, steps.output[..., order, :])

    def test_a_future_key_or_value_changes_nothing_earlier(self):
        query, key, value = draw(num_queries=6, num_keys=6)
        before = scaled_dot_product_attention(query, key, value, causal_mask(6))
        key[4:], value[4:] = 100.0, -100.0
        after = scaled_dot_product_attention(query, key, value, causal_mask(6))
        assert torch.equal(after.weights[:4], before.weights[:4])
        assert torch.equal(after.output[:4], before.output[:4])
        assert not torch.isclose(after.output[4:], before.output[4:]).any()

    def test_masked_weights_are_exactly_zero(self):
        weights = scaled_dot_product_attention(*draw(2, 3, num_queries=7), causal_mask(7)).weights
        assert (weights.triu(1) == 0).all()
        assert (weights.tril() > 0).sum() == 2 * 3 * 28  # 7 * 8 / 2 allowed pairs each


class TestTwoRoutesToACausalMatrix:
    def test_same_matrix(self):
        query, key, value = draw(2, 3, num_queries=6, num_keys=6)
        unmasked = scaled_dot_product_attention(query, key, value).weights
        masked = scaled_dot_product_attention(query, key, value, causal_mask(6)).weights
        assert_same(renormalised_causal(unmasked), masked, 1e-14)

    def test_by_hand(self):
        weights = torch.tensor([[0.2, 0.3, 0.5], [0.3, 0.1, 0.6], [0.5, 0.25, 0.25]])
        expected = torch.tensor([[1, 0, 0], [0.75, 0.25, 0], [0.5, 0.25, 0.25]])
        torch.testing.assert_close(renormalised_causal(weights), expected)

    def test_more_keys_than_queries(self):
        weights = torch.full((2, 4), 0.25)
        expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0], [0.25, 0.25, 0.25, 0.25]])
        torch.testing.assert_close(renormalised_causal(weights), expected)

    def test_they_part_where_the_future_takes_all(self):
        # query 0 scores its own key 0 and the next 1000: exp(-1000) is 0 in float64, and can't be rescaled
        query, key = torch.tensor([[1.0], [1.0]]).double(), torch.tensor([[0.0], [1000.0]]).double()
        unmasked = scaled_dot_product_attention(query, key, key).weights
        assert renormalised_causal(unmasked)[0].tolist() == [0, 0]
        assert scaled_dot_product_attention(query, key, key, causal_mask(2)).weights[0].tolist() == [1, 0]


class TestDropout:
    def test_survivors_are_scaled_up(self):
        weights = torch.rand(200, 100, dtype=torch.float64) + 0.5
        dropped = dropout(weights, 0.2)
        survives = dropped != 0
        assert_same(dropped[survives], weights[survives] / 0.8)
        # 20,000 draws of 0.8: the standard deviation of the share is 0.0028
        assert survives.double().mean().item() == pytest.approx(0.8, abs=0.02)

    def test_rows_no_longer_sum_to_one_and_some_are_lost(self):
        inputs = draw(num_queries=1000, num_keys=3)
        sums = scaled_dot_product_attention(*inputs, dropout_p=0.5).weights.sum(-1)
        assert ((sums - 1).abs() > 0.01).double().mean() > 0.9
        assert sums.mean().item() == pytest.approx(1, abs=0.1)
        # a row of three is lost with probability 1/8
        assert (sums == 0).double().mean().item() == pytest.approx(1 / 8, abs=0.04)

    def test_values_are_mixed_by_what_is_left(self):
        query, key, value = draw(2, 3)
        for keep_steps in (True, False):
            steps = scaled_dot_product_attention(query, key, value, dropout_p=0.5, keep_steps=keep_steps)
            assert 0 < (steps.weights == 0).double().mean() < 1
            assert_same(steps.output, torch.einsum("bhqk,bhkd->bhqd", steps.weights, value))

    def test_dropped_on_top_of_the_mask(self):
        inputs = draw(20, 20, num_queries=7)
        masked = scaled_dot_product_attention(*inputs, causal_mask(7)).weights
        dropped = scaled_dot_product_attention(*inputs, causal_mask(7), dropout_p=0.25).weights
        assert (dropped.triu(1) == 0).all()
        survives = dropped != 0
        assert_same(dropped[survives], masked[survives] / 0.75)

    def test_none_by_default_and_no_random_numbers_used(self):
        inputs = draw()
        state = torch.get_rng_state()
        assert_same(scaled_dot_product_attention(*inputs).weights.sum(-1), torch.ones(5).double(), 1e-15)
        assert torch.equal(torch.get_rng_state(), state)

    def test_nothing_and_everything(self):
        weights = torch.rand(4, 5, requires_grad=True)
        assert torch.equal(dropout(weights, 0.0), weights)
        everything = dropout(weights, 1.0)
        everything.sum().backward()
        assert (everything == 0).all()
        assert (weights.grad == 0).all()

    def test_gradient_flows_through_survivors_only(self):
        weights = torch.rand(50, requires_grad=True)
        dropped = dropout(weights, 0.5)
        dropped.sum().backward()
        assert torch.equal(weights.grad, torch.where(dropped != 0, 2.0, 0.0))

    @pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
    def test_not_a_probability(self, p):
        with pytest.raises(ValueError, match=f"between 0 and 1; got {p}"):
            scaled_dot_product_attention(*draw(), dropout_p=p)


class TestRefusals:
    @pytest.mark.parametrize(
        ("query", "key", "value"),
        [
            ((5, 4), (7, 3), (7, 6)),  # widths of query and key
            ((5, 4), (7, 4), (8, 6)),  # a value without a key
            ((2, 5, 4), (3, 7, 4), (3, 7, 6)),  # batches of queries and keys
            ((3, 5, 4), (3, 7, 4), (2, 7, 6)),  # batches of keys and values
            ((5, 0), (7, 0), (7, 6)),  # no width
            ((4,), (7, 4), (7, 6)),  # one query without its dimension
            ((5, 4), (7, 4), (7,)),
        ],
    )
    def test_shapes_are_named(self, query, key, value):
        with pytest.raises(ValueError) as caught:
            scaled_dot_product_attention(torch.zeros(query), torch.zeros(key), torch.zeros(value))
        assert f"query {query}, key {key}, value {value}" in str(caught.value)

    @pytest.mark.parametrize("shape", [(7, 5), (4, 7), (3, 2, 5, 7), (2, 2, 3, 5, 7), (1, 1, 1, 5, 7)])
    def test_masks_that_do_not_broadcast(self, shape):
        with pytest.raises(ValueError) as caught:
            scaled_dot_product_attention(*draw(2, 3), torch.ones(shape, dtype=torch.bool))
        assert f"mask {shape}" in str(caught.value)
        assert "(2, 3, 5, 7)" in str(caught.value)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8])
    def test_masks_of_numbers(self, dtype):
        with pytest.raises(TypeError, match=rf"bool, True = may attend; got {dtype}"):
            scaled_dot_product_attention(*draw(), torch.ones(5, 7, dtype=dtype))

    @pytest.mark.parametrize("shape", [(4, 7), (2, 2, 3, 5, 7)])
    def test_a_bias_that_does_not_broadcast(self, shape):
        with pytest.raises(ValueError) as caught:
            scaled_dot_product_attention(*draw(2, 3), bias=torch.zeros(shape))
        assert f"bias {shape} doesn't broadcast to (2, 3, 5, 7)" in str(caught.value)

    def test_sinks_that_do_not_broadcast(self):
        with pytest.raises(ValueError, match=r"sinks \(4,\) doesn't broadcast to \(2, 3\)"):
            scaled_dot_product_attention(*draw(2, 3), sinks=torch.zeros(4))

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
    def test_a_bias_that_is_no_number_to_add(self, dtype):
        with pytest.raises(TypeError, match=rf"floating; got {dtype}"):
            scaled_dot_product_attention(*draw(), bias=torch.ones(5, 7, dtype=dtype))

    def test_steps_cannot_be_changed(self):
        steps = scaled_dot_product_attention(*draw())
        with pytest.raises(AttributeError):
            steps.weights = None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("keep_steps", [True, False])
def test_cuda(keep_steps):
    query, key, value = draw(2, 3, num_queries=7)
    mask = causal_mask(7)
    expected = torch_attention(query, key, value, mask)
    steps = scaled_dot_product_attention(
        query.cuda(), key.cuda(), value.cuda(), causal_mask(7, device="cuda"), keep_steps=keep_steps
    )
    assert steps.output.is_cuda
    assert_same(steps.output.cpu(), expected)
