"""The worked examples come out of the classes, at the precision they were printed with."""

import pytest
import torch

from attention import (
    CausalAttention,
    CrossAttention,
    MultiHeadAttention,
    RawSelfAttention,
    SelfAttention,
    StackedMultiHeadAttention,
    causal_mask,
    renormalised_causal,
    scaled_dot_product_attention,
    softmax,
)
from attention.examples import DESSERTS, DRAW_A_MAP, GPT2_SMALL, GPT2_XL, THE_CAT_SAT_ON

HALF_A_UNIT = {decimals: 0.5000001 * 10**-decimals for decimals in (2, 3, 4)}


def assert_printed(actual, printed, decimals):
    """Every number of ``actual`` rounds to the one printed."""
    expected = torch.tensor(printed)
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=HALF_A_UNIT[decimals])


@pytest.fixture
def encodings():
    return torch.tensor(DRAW_A_MAP.encodings)


@pytest.fixture
def seeded():
    torch.manual_seed(DRAW_A_MAP.seed)
    return SelfAttention(2, 2)


class TestDesserts:
    def test_dividing_by_the_sum_gives_a_negative_share(self):
        scores = torch.tensor(DESSERTS.scores)
        assert (scores / scores.sum()).tolist() == list(DESSERTS.divided)

    def test_exponentials_and_total(self):
        exponentials = torch.tensor(DESSERTS.scores).exp()
        assert_printed(exponentials, DESSERTS.exponentials, 3)
        assert_printed(exponentials.sum(), DESSERTS.total, 3)

    def test_shares(self):
        shares = softmax(torch.tensor(DESSERTS.scores))
        assert_printed(shares[0], DESSERTS.largest_share, 3)
        # 7.389 : 2.718 : 0.368 of 10.475
        assert_printed(shares, [0.705, 0.259, 0.035], 3)

    def test_a_score_one_higher_gets_e_times_the_share(self):
        shares = softmax(torch.tensor(DESSERTS.scores))
        assert_printed(shares[0] / shares[1], 2.72, 2)


class TestDrawAMap:
    def test_seed_draws_query_then_key_then_value(self, seeded):
        assert_printed(seeded.W_query.weight, DRAW_A_MAP.W_query, 4)
        assert_printed(seeded.W_key.weight, DRAW_A_MAP.W_key, 4)
        assert_printed(seeded.W_value.weight, DRAW_A_MAP.W_value, 4)

    def test_first_query_entry(self, seeded, encodings):
        assert_printed(seeded.W_query(encodings)[0, 0], DRAW_A_MAP.first_query_entry, 4)

    def test_weights(self, seeded, encodings):
        weights = seeded.steps(encodings).weights
        assert_printed(weights[0], DRAW_A_MAP.first_weights, 3)
        assert_printed(weights[2, 2], DRAW_A_MAP.last_weight_on_itself, 3)

    def test_output(self, seeded, encodings):
        assert_printed(seeded(encodings), DRAW_A_MAP.output, 4)

    def test_hand_sum_of_rounded_factors_is_not_the_output(self):
        # 0.357 * 0.6037 + 0.401 * -0.3503 + 0.242 * 3.8694 = 1.0114, where the output is 1.0100
        products = zip(DRAW_A_MAP.first_weights, DRAW_A_MAP.first_values, strict=True)
        by_hand = sum(weight * value for weight, value in products)
        assert by_hand == pytest.approx(1.0114, abs=5e-5)
        assert DRAW_A_MAP.output[0][0] == 1.0100

    def test_first_values(self, seeded, encodings):
        from_printed_weights = encodings @ torch.tensor(DRAW_A_MAP.W_value).T
        assert_printed(from_printed_weights[:, 0], DRAW_A_MAP.first_values, 4)
        # the weights' rounding, 0.00005 at most, times 4.41 + 2.16 at most, and the printed values' own
        values = seeded.W_value(encodings)[:, 0].detach()
        torch.testing.assert_close(values, torch.tensor(DRAW_A_MAP.first_values), rtol=0, atol=4e-4)

    def test_causal_output(self, encodings):
        torch.manual_seed(DRAW_A_MAP.seed)
        causal = CausalAttention(2, 2, context_length=3)
        output = causal(encodings)
        assert_printed(output, DRAW_A_MAP.causal_output, 4)
        assert torch.equal(output[0], causal.W_value(encodings)[0])  # all of its weight on itself
        assert_printed(output[2], DRAW_A_MAP.output[2], 4)  # the last row sees all, as without a mask

    def test_causal_switched_off_is_self_attention(self, seeded, encodings):
        torch.manual_seed(DRAW_A_MAP.seed)
        unmasked = CausalAttention(2, 2, context_length=3, causal=False)
        assert_printed(unmasked(encodings), DRAW_A_MAP.output, 4)
        assert torch.equal(unmasked(encodings), seeded(encodings))

    def test_both_routes_to_the_causal_output(self, seeded, encodings):
        steps = seeded.steps(encodings)
        values = seeded.W_value(encodings)
        assert_printed(renormalised_causal(steps.weights) @ values, DRAW_A_MAP.causal_output, 4)

    def test_one_class_for_all_three(self, encodings):
        torch.manual_seed(DRAW_A_MAP.seed)
        cross = CrossAttention(2, 2)
        assert_printed(cross(encodings, encodings, encodings), DRAW_A_MAP.output, 4)
        masked = cross(encodings, encodings, encodings, mask=causal_mask(3))
        assert_printed(masked, DRAW_A_MAP.causal_output, 4)

    def test_raw_matrices_are_the_transpose_of_what_is_printed(self, encodings):
        raw = RawSelfAttention(2, 2)
        with torch.no_grad():
            raw.W_query.copy_(torch.tensor(DRAW_A_MAP.W_query).T)
            raw.W_key.copy_(torch.tensor(DRAW_A_MAP.W_key).T)
            raw.W_value.copy_(torch.tensor(DRAW_A_MAP.W_value).T)
        # weights rounded to four decimals, so the outputs are right to about three
        torch.testing.assert_close(raw(encodings), torch.tensor(DRAW_A_MAP.output), rtol=0, atol=6e-4)

    def test_one_stacked_head_is_the_single_head(self, encodings):
        torch.manual_seed(DRAW_A_MAP.seed)
        assert_printed(StackedMultiHeadAttention(2, 2, num_heads=1)(encodings), DRAW_A_MAP.output, 4)

    def test_two_stacked_heads(self, encodings):
        torch.manual_seed(DRAW_A_MAP.seed)
        stacked = StackedMultiHeadAttention(2, 2, num_heads=2)
        assert_printed(stacked(encodings), DRAW_A_MAP.two_heads_output, 4)

    def test_two_stacked_heads_pass_the_mask_on(self, encodings):
        torch.manual_seed(DRAW_A_MAP.seed)
        stacked = StackedMultiHeadAttention(2, 2, num_heads=2)
        masked = stacked(encodings, mask=causal_mask(3))
        assert_printed(masked[:, :2], DRAW_A_MAP.causal_output, 4)
        assert_printed(masked[2], DRAW_A_MAP.two_heads_output[2], 4)  # the last row sees all, in both heads
        second = stacked.get_submodule("heads.1.W_value")(encodings)
        assert torch.equal(masked[0, 2:], second[0])  # the first row sees itself only, in the second head too


class TestTheCatSatOn:
    def test_scores_are_scaled_already(self):
        weights = softmax(torch.tensor(THE_CAT_SAT_ON.scaled_scores))
        assert (100 * weights).round().tolist() == [list(row) for row in THE_CAT_SAT_ON.percentages]

    def test_through_attention_with_the_mask(self):
        # queries from the identity: the scores are the transposed keys, whatever stands above the diagonal
        scores = torch.tensor(THE_CAT_SAT_ON.scaled_scores).nan_to_num(neginf=5.0)
        steps = scaled_dot_product_attention(
            torch.eye(4), scores.T, torch.eye(4), mask=causal_mask(4), scale=1.0
        )
        assert torch.equal(steps.masked, torch.tensor(THE_CAT_SAT_ON.scaled_scores))
        assert (100 * steps.output).round().tolist() == [list(row) for row in THE_CAT_SAT_ON.percentages]


class TestGPT2Sizes:
    def test_parameters_of_the_smallest_on_paper(self):
        # embeddings   50,257 tokens * 768 + 1,024 positions * 768             =  38,597,376 + 786,432
        # attention    4 projections of 768 * 768 + 768                        =   2,362,368
        # feed-forward 768 * 3,072 + 3,072, and back 3,072 * 768 + 768         =   4,722,432
        # layer norms  2 of 2 * 768                                            =       3,072
        # 12 layers    12 * (2,362,368 + 4,722,432 + 3,072)                    =  85,054,464
        # last norm    2 * 768                                                 =       1,536
        assert 38_597_376 + 786_432 + 85_054_464 + 1_536 == 124_439_808
        assert GPT2_SMALL.num_parameters == 124_439_808

    @pytest.mark.parametrize("size", [GPT2_SMALL, GPT2_XL], ids=["small", "xl"])
    def test_same_sizes_as_transformers(self, size):
        transformers = pytest.importorskip("transformers")
        config = transformers.GPT2Config(n_layer=size.num_layers, n_head=size.num_heads, n_embd=size.width)
        with torch.device("meta"):
            model = transformers.GPT2LMHeadModel(config)
        assert model.num_parameters() == size.num_parameters
        assert config.n_positions == size.context_length

    def test_the_smallest_is_the_default_of_transformers(self):
        transformers = pytest.importorskip("transformers")
        config = transformers.GPT2Config()
        assert (config.n_layer, config.n_head, config.n_embd) == (12, 12, 768)
        assert (GPT2_SMALL.num_layers, GPT2_SMALL.num_heads, GPT2_SMALL.width) == (12, 12, 768)

    @pytest.mark.parametrize(("size", "head_dim"), [(GPT2_SMALL, 64), (GPT2_XL, 64)], ids=["small", "xl"])
    def test_multi_head_attention_in_its_configuration(self, size, head_dim):
        layer = MultiHeadAttention(
            size.width,
            size.width,
            size.num_heads,
            bias=True,
            causal=True,
            context_length=size.context_length,
            device="meta",
        )
        assert layer.head_dim == head_dim
        assert layer(torch.empty(2, 1024, size.width, device="meta")).shape == (2, 1024, size.width)
        with pytest.raises(ValueError, match=r"1025 .* 1024"):
            layer(torch.empty(2, 1025, size.width, device="meta"))

    def test_attention_parameters_of_one_layer(self):
        layer = MultiHeadAttention(768, 768, 12, bias=True, device="meta")
        assert sum(parameter.numel() for parameter in layer.parameters()) == 2_362_368

    def test_layers_given_as_heads(self):
        with pytest.raises(ValueError, match=r"\b1600\b.*\b48\b"):
            MultiHeadAttention(1600, 1600, num_heads=48)
