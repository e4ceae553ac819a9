"""What some models do besides: a bias on the scores, a cap on them, a sink in the softmax."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from attention import causal_mask, scaled_dot_product_attention

INF = math.inf


def draw(*leading, num_queries=5, num_keys=7):
    """A query, key and value of random numbers, large enough that the softmax isn't flat."""
    query = 2 * torch.randn(*leading, num_queries, 4, dtype=torch.float64)
    key = 2 * torch.randn(*leading, num_keys, 4, dtype=torch.float64)
    return query, key, torch.randn(*leading, num_keys, 6, dtype=torch.float64)


def with_scores(scores):
    """Query, key and value whose scores at scale 1 are these (one row), and whose output is the weights."""
    key = torch.tensor(scores, dtype=torch.float64)[:, None]
    return torch.ones(1, 1, dtype=torch.float64), key, torch.eye(len(scores), dtype=torch.float64)


def assert_same(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


class TestBias:
    @pytest.mark.parametrize("shape", [(5, 7), (1, 3, 5, 7), (2, 1, 1, 7), (2, 3, 5, 7)])
    def test_against_torch(self, shape):
        query, key, value = draw(2, 3)
        bias = torch.randn(shape, dtype=torch.float64)
        output = scaled_dot_product_attention(query, key, value, bias=bias).output
        assert_same(output, torch_attention(query, key, value, attn_mask=bias.expand(2, 3, 5, 7)))

    def test_with_a_mask_and_a_scale(self):
        query, key, value = draw(2, 3, num_queries=7)
        bias = torch.randn(3, 7, 7, dtype=torch.float64)
        allowed = causal_mask(7)
        output = scaled_dot_product_attention(query, key, value, allowed, 1.0, bias=bias).output
        additive = bias.masked_fill(~allowed, -INF).expand(2, 3, 7, 7)
        assert_same(output, torch_attention(query, key, value, attn_mask=additive, scale=1.0))

    def test_by_hand(self):
        # Equal scores; a bias of ln 3 on the first makes it count three times.
        query, key, value = with_scores([5.0, 5.0])
        bias = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
        assert_same(
            scaled_dot_product_attention(query, key, value, scale=1.0, bias=bias).weights,
            torch.tensor([[0.75, 0.25]], dtype=torch.float64),
        )


class TestSoftcap:
    def test_by_hand(self):
        # Scores far beyond the cap become the cap: softmax of c and -c with c = ln(3) / 2 is 3/4 and 1/4.
        query, key, value = with_scores([1e4, -1e4])
        steps = scaled_dot_product_attention(query, key, value, scale=1.0, softcap=math.log(3.0) / 2)
        assert_same(steps.weights, torch.tensor([[0.75, 0.25]], dtype=torch.float64))

    def test_hardly_changes_what_is_far_below_the_cap(self):
        query, key, value = with_scores([0.3, -0.2, 0.1])
        capped = scaled_dot_product_attention(query, key, value, scale=1.0, softcap=1e6).output
        assert_same(capped, torch_attention(query[None], key[None], value[None], scale=1.0)[0])

    def test_comes_after_the_scale(self):
        # tanh(2 * 0.5 / 1) = 0.761594..., a number from a table; the other score stays 0.
        query, key, value = with_scores([2.0, 0.0])
        steps = scaled_dot_product_attention(query, key, value, scale=0.5, softcap=1.0)
        assert_same(steps.scaled, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
        assert_same(steps.masked, torch.tensor([[0.7615941559557649, 0.0]], dtype=torch.float64))

    def test_comes_before_the_bias(self):
        # A cap of 0.1 would leave hardly anything of a bias of ln 3.
        query, key, value = with_scores([0.0, 0.0])
        bias = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)
        steps = scaled_dot_product_attention(query, key, value, scale=1.0, softcap=0.1, bias=bias)
        assert_same(steps.weights, torch.tensor([[0.75, 0.25]], dtype=torch.float64))

    def test_comes_before_the_mask(self):
        query, key, value = with_scores([9.0, 9.0, 9.0])
        mask = torch.tensor([[True, False, True]])
        steps = scaled_dot_product_attention(query, key, value, mask, softcap=1.0)
        assert steps.weights.tolist() == [[0.5, 0.0, 0.5]]


class TestSinks:
    def test_by_hand(self):
        # exp(0) + exp(0) + exp(ln 2) = 4: a quarter for each key, and half goes nowhere.
        query, key, value = with_scores([0.0, 0.0])
        sink = torch.tensor(math.log(2.0), dtype=torch.float64)
        steps = scaled_dot_product_attention(query, key, value, scale=1.0, sinks=sink)
        assert_same(steps.weights, torch.tensor([[0.25, 0.25]], dtype=torch.float64))
        assert_same(steps.output, torch.tensor([[0.25, 0.25]], dtype=torch.float64))

    def test_one_for_each_head(self):
        query, key, value = draw(2, 3)
        sinks = torch.randn(3, dtype=torch.float64)
        steps = scaled_dot_product_attention(query, key, value, sinks=sinks)
        column = sinks.view(1, 3, 1, 1).expand(2, 3, 5, 1)
        expected = torch.softmax(torch.cat([steps.masked, column], -1), -1)[..., :-1]
        assert_same(steps.weights, expected)
        assert_same(steps.output, expected @ value)

    def test_as_a_key_with_a_value_of_zeros(self):
        # What gpt-oss calls a sink is attention with one more key, whose value is nothing.
        query, key, value = draw(3)
        sinks = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
        bias = torch.zeros(3, 5, 8, dtype=torch.float64)
        bias[:, :, 7] = sinks[:, None]
        wider = [
            torch.cat([part, torch.zeros(3, 1, part.shape[-1], dtype=torch.float64)], 1)
            for part in (key, value)
        ]
        expected = torch_attention(query, *wider, attn_mask=bias)
        assert_same(scaled_dot_product_attention(query, key, value, sinks=sinks).output, expected)

    def test_a_sink_of_minus_infinity_is_none(self):
        query, key, value = draw(3)
        sinks = torch.full((3,), -INF, dtype=torch.float64)
        with_them = scaled_dot_product_attention(query, key, value, sinks=sinks).output
        assert_same(with_them, torch_attention(query, key, value))

    def test_a_large_sink_takes_all_and_nothing_overflows(self):
        query, key, value = with_scores([0.0, 1.0])
        steps = scaled_dot_product_attention(query, key, value, sinks=torch.tensor(1e4, dtype=torch.float64))
        assert steps.weights.tolist() == [[0.0, 0.0]]

    def test_a_row_that_may_attend_to_nothing(self):
        query, key, value = draw(3)
        mask = torch.ones(5, 7, dtype=torch.bool)
        mask[2] = False
        steps = scaled_dot_product_attention(
            query, key, value, mask, sinks=torch.zeros(3, dtype=torch.float64)
        )
        assert steps.weights[:, 2].abs().max() == 0.0
        assert steps.output[:, 2].abs().max() == 0.0

    def test_a_sink_of_another_dtype(self):
        query, key, value = draw(3)
        wide = scaled_dot_product_attention(query, key, value, sinks=torch.ones(3, dtype=torch.float64))
        narrow = scaled_dot_product_attention(query, key, value, sinks=torch.ones(3, dtype=torch.bfloat16))
        assert narrow.weights.dtype == torch.float64
        assert_same(narrow.weights, wide.weights)


class TestTogether:
    def arguments(self, **more):
        mask = causal_mask(7)
        return {
            "mask": mask,
            "scale": 0.7,
            "bias": torch.randn(3, 7, 7, dtype=torch.float64),
            "softcap": 2.0,
            "sinks": torch.randn(3, dtype=torch.float64),
        } | more

    def test_written_out(self):
        query, key, value = draw(2, 3, num_queries=7)
        given = self.arguments()
        capped = 2.0 * torch.tanh(torch.einsum("bhqd,bhkd->bhqk", query, key) * 0.7 / 2.0)
        scores = torch.where(given["mask"], capped + given["bias"], -INF)
        exponentials = scores.exp()
        expected = exponentials / (exponentials.sum(-1, keepdim=True) + given["sinks"].exp()[:, None, None])
        assert_same(scaled_dot_product_attention(query, key, value, **given).weights, expected)

    def test_keeping_no_steps_gives_the_same_numbers_and_changes_no_input(self):
        query, key, value = draw(2, 3, num_queries=7)
        given = self.arguments()
        before = {name: value.clone() for name, value in given.items() if isinstance(value, torch.Tensor)}
        kept = scaled_dot_product_attention(query, key, value, **given)
        lean = scaled_dot_product_attention(query, key, value, **given, keep_steps=False)
        assert lean.scores is lean.scaled is lean.masked is None
        assert torch.equal(lean.weights, kept.weights)
        assert torch.equal(lean.output, kept.output)
        assert all(torch.equal(given[name], value) for name, value in before.items())
        assert_same(kept.scaled, torch.einsum("bhqd,bhkd->bhqk", query, key) * 0.7)

    @pytest.mark.parametrize("keep_steps", [True, False])
    def test_gradients(self, keep_steps):
        query, key, value = (part.requires_grad_() for part in draw(2, num_queries=3, num_keys=4))
        bias = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
        sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

        def attend(query, key, value, bias, sinks):
            return scaled_dot_product_attention(
                query,
                key,
                value,
                causal_mask(3, 4),
                bias=bias,
                softcap=1.5,
                sinks=sinks,
                keep_steps=keep_steps,
            ).output

        assert torch.autograd.gradcheck(attend, (query, key, value, bias, sinks))
