"""The course's examples, with the values they start with, give the numbers that were worked out elsewhere."""

from __future__ import annotations

import math

import pytest
import torch

from attention.examples import DESSERTS, DRAW_A_MAP, GPT2_SMALL, GPT2_XL, THE_CAT_SAT_ON, GPT2Size
from probe import ProbeError
from probe.ui.views.learn import CHAPTERS, lessons
from probe.ui.views.learn.chapter import Chapter

BY_ID = {chapter.id: chapter for chapter in CHAPTERS}


def defaults(chapter: str) -> dict[str, object]:
    return {field.name: field.value for field in BY_ID[chapter].fields}


def assert_printed(actual: torch.Tensor, printed: object, decimals: int) -> None:
    """Every number rounds to the one that was printed."""
    expected = torch.tensor(printed, dtype=torch.float64)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=0.5000001 * 10**-decimals)


def html(chapter: str, **changed: object) -> str:
    values = {**defaults(chapter), **changed}
    return BY_ID[chapter].show(*values.values()).html


# ---- the steps, one after the other


def test_the_misspelled_guest_is_found() -> None:
    given = defaults("look-up")
    names, rooms = lessons.read_words(str(given["guests"]), "guests")
    found = lessons.look_up(str(given["query"]), names, [room[0] for room in rooms], 20)
    assert (given["query"], names[found.best], rooms[found.best]) == ("Merser", "Mercer", [537.0])
    assert float(found.weights.sum()) == pytest.approx(1)
    # ^m me er rs se er r$ and ^m me er rc ce er r$: 1 + 1 + 2 * 2 + 1 over the lengths, both sqrt(9)
    assert float(found.likeness[0]) == pytest.approx(7 / 9)


def test_a_sharp_look_up_gives_the_room_and_a_blunt_one_the_mean() -> None:
    names, rooms = ["Mercer", "Miller", "Mendes", "Parker"], [537.0, 210.0, 118.0, 402.0]
    assert lessons.look_up("Merser", names, rooms, 60).mixed == pytest.approx(537, abs=0.05)
    assert lessons.look_up("Merser", names, rooms, 0).mixed == pytest.approx(sum(rooms) / 4)


def test_likeness() -> None:
    _, vectors = lessons.read_words(str(defaults("likeness")["words"]), "words")
    assert vectors == [list(row) for row in DRAW_A_MAP.encodings]
    result = lessons.compare_likeness(vectors, 0, 1)
    x = torch.tensor(vectors, dtype=torch.float64)
    torch.testing.assert_close(result.cosines, torch.nn.functional.cosine_similarity(x[:1], x))
    assert_printed(result.dots[2], 1.16 * 4.41 + 0.23 * -2.16, 9)
    shorter = lessons.compare_likeness(vectors, 0, 0.5)
    assert float(shorter.dots[2]) == pytest.approx(float(result.dots[2]) / 2)
    assert float(shorter.cosines[2]) == pytest.approx(float(result.cosines[2]))


def test_shares_of_the_desserts() -> None:
    given = defaults("shares")
    scores = lessons.read_numbers(str(given["scores"]), "scores")
    assert tuple(scores) == DESSERTS.scores
    result = lessons.share_scores(scores)
    assert result.divided is not None
    assert result.divided.tolist() == list(DESSERTS.divided) == [1.0, 0.5, -0.5]
    assert result.hard.tolist() == [1, 0, 0]
    assert_printed(result.exponentials, DESSERTS.exponentials, 3)
    assert result.total == pytest.approx(DESSERTS.total, abs=5e-4)
    assert_printed(result.shares[0], DESSERTS.largest_share, 3)
    assert float(result.shares[0] / result.shares[1]) == pytest.approx(math.e, rel=1e-5)


def test_a_sum_of_zero_has_no_answer_and_large_scores_overflow_only_the_literal_softmax() -> None:
    assert lessons.share_scores([1, -1]).divided is None
    shifted = lessons.share_scores([2, 1, -1], 1000)
    assert shifted.naive.isnan().all()
    torch.testing.assert_close(shifted.shares, torch.softmax(torch.tensor([2.0, 1.0, -1.0]), 0))


def test_without_weights_each_output_is_a_mixture() -> None:
    _, vectors = lessons.read_words(str(defaults("no-weights")["words"]), "words")
    result = lessons.mix_without_weights(vectors)
    x = torch.tensor(vectors, dtype=torch.float64)
    torch.testing.assert_close(
        result.steps.output, torch.nn.functional.scaled_dot_product_attention(x, x, x, scale=1.0)
    )
    assert result.loops_difference < 1e-12


def test_word_order_shows_only_with_positions() -> None:
    first, second = str(defaults("order")["first"]).split(), str(defaults("order")["second"]).split()
    assert (first, second) == (["dogs", "chase", "cats"], ["cats", "chase", "dogs"])
    without = lessons.compare_order(first, second, positions=False)
    assert without.shared == ("dogs", "chase", "cats")
    assert max(without.moved) < 1e-15
    assert min(lessons.compare_order(first, second, positions=True).moved) > 0.01


def test_positions_are_sines_and_cosines() -> None:
    found = lessons.sinusoids(3, 4)
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(3)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def by_hand_defaults() -> tuple[list[list[float]], list[list[list[float]]]]:
    given = defaults("by-hand")
    _, encodings = lessons.read_words(str(given["words"]), "words")
    return encodings, [
        lessons.read_matrix(str(given[name]), name) for name in ("w_query", "w_key", "w_value")
    ]


def test_draw_a_map_by_hand() -> None:
    encodings, weights = by_hand_defaults()
    assert encodings == [list(row) for row in DRAW_A_MAP.encodings]
    for given, printed in zip(
        weights, (DRAW_A_MAP.W_query, DRAW_A_MAP.W_key, DRAW_A_MAP.W_value), strict=True
    ):
        assert_printed(torch.tensor(given), printed, 4)
    result = lessons.attend_by_hand(encodings, *weights)
    assert_printed(result.query[0, 0], DRAW_A_MAP.first_query_entry, 4)
    assert_printed(result.steps.weights[0], DRAW_A_MAP.first_weights, 3)
    assert_printed(result.steps.weights[2, 2], DRAW_A_MAP.last_weight_on_itself, 3)
    assert_printed(result.steps.output, DRAW_A_MAP.output, 4)
    # 36%, 40% and 24%
    assert (100 * result.steps.weights[0]).round().tolist() == [36, 40, 24]


def test_the_page_says_what_can_be_checked_on_paper() -> None:
    shown = html("by-hand")
    assert "1.16 × 0.5406 + 0.23 × 0.5869 = 0.7621" in shown
    assert "= 1.0100" in shown
    for row in DRAW_A_MAP.output:
        for number in row:
            assert f"<td>{number:.4f}</td>" in shown


def test_scaling_keeps_entropy_and_gradient() -> None:
    result = lessons.measure_scaling(16, 0)
    assert result.widths == (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    widths = torch.tensor(result.widths, dtype=torch.float32)
    # the variance of a dot product of d products of standard normal numbers is d
    torch.testing.assert_close(result.spread, widths.sqrt(), rtol=0.06, atol=0)
    assert (result.entropy.diff() < 0).all() and float(result.entropy[-1]) < 0.2
    assert float(result.scaled_entropy.min()) > 3.2 and result.most == 4
    assert float(result.gradient[-1]) < 0.06 < 0.8 < float(result.scaled_gradient.min())


def test_the_gradient_is_the_trace_of_the_jacobian() -> None:
    scores = torch.tensor([0.3, -1.2, 2.0, 0.0])
    jacobian = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, 0), scores)
    weights = torch.softmax(scores, 0)
    torch.testing.assert_close(lessons._answer(weights), jacobian.trace())


def test_the_cat_sat_on_by_both_routes() -> None:
    scores = lessons.read_matrix(str(defaults("causal")["scores"]), "scores")
    given = torch.tensor(scores).tril()
    expected = torch.tensor(THE_CAT_SAT_ON.scaled_scores)
    assert torch.equal(given, expected.masked_fill(expected == -math.inf, 0))
    result = lessons.mask_both_ways(scores)
    for weights in (result.causal, result.renormalised):
        assert (100 * weights).round().int().tolist() == [list(row) for row in THE_CAT_SAT_ON.percentages]
    assert result.difference < 1e-15


def test_the_future_does_not_leak() -> None:
    scores = lessons.read_matrix(str(defaults("causal")["scores"]), "scores")
    before = lessons.mask_both_ways(scores)
    scores[0][3] = 9.0
    after = lessons.mask_both_ways(scores)
    assert not torch.equal(before.unmasked, after.unmasked)
    assert torch.equal(before.causal, after.causal)
    torch.testing.assert_close(before.renormalised, after.renormalised)


def test_first_and_last_row_under_the_mask() -> None:
    given = defaults("rows")
    _, encodings = lessons.read_words(str(given["words"]), "words")
    result = lessons.mask_on_and_off(encodings, int(str(given["seed"])))
    assert_printed(result.causal.output, DRAW_A_MAP.causal_output, 4)
    assert_printed(result.both_ways.output, DRAW_A_MAP.output, 4)
    torch.testing.assert_close(result.causal.output[0], result.value[0])
    torch.testing.assert_close(result.causal.output[-1], result.both_ways.output[-1])


def test_dropout_keeps_the_average() -> None:
    scores = lessons.read_matrix(str(defaults("dropout")["scores"]), "scores")
    result = lessons.drop_weights(scores, 0.5, 42)
    assert result.factor == 2
    kept = result.dropped != 0
    torch.testing.assert_close(result.dropped[kept], 2 * result.weights[kept])
    # the mean of 2,000 draws of 0 or 2w is w, give or take w / sqrt(2000); four times that is far out
    assert ((result.average - result.weights).abs() <= 4 * result.weights / math.sqrt(2000)).all()


def test_dropout_leaves_torch_its_random_numbers() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    lessons.drop_weights([[1.0, 2.0], [3.0, 4.0]], 0.5, 1)
    assert torch.equal(torch.rand(3), expected)


def test_each_spanish_word_finds_its_english_one() -> None:
    given = defaults("cross")
    asking, queries = lessons.read_words(str(given["decoder"]), "decoder")
    answering, keys = lessons.read_words(str(given["encoder"]), "encoder")
    assert (" ".join(asking), " ".join(answering)) == ("el cielo es azul", "the sky is blue")
    steps = lessons.attend_across(queries, keys, 4)
    q, k = torch.tensor(queries) * 4, torch.tensor(keys)
    torch.testing.assert_close(steps.output, torch.nn.functional.scaled_dot_product_attention(q, k, k))
    assert steps.weights.argmax(-1).tolist() == [0, 1, 2, 3]
    assert lessons.attend_across(queries[:3], keys, 4).weights.shape == (3, 4)


def test_stacked_and_split_heads() -> None:
    _, encodings = lessons.read_words(str(defaults("heads")["words"]), "words")
    result = lessons.stack_and_split(encodings, 2, 42)
    assert_printed(result.stacked, DRAW_A_MAP.two_heads_output, 4)
    assert_printed(result.split, DRAW_A_MAP.two_heads_output, 4)
    # three projections, scores and mixture for each head; or the five for all heads at once
    assert (result.stacked_products, result.split_products) == (2 * 5, 5)
    # 3 tokens: 3 projections of 3 x 2 x 2, scores and mixture of 3 x 3 x 2, in each of 2 heads
    assert result.stacked_multiplications == result.split_multiplications == 2 * (3 * 12 + 2 * 18)
    assert result.parameters == 2 * 3 * 4
    assert lessons.stack_and_split(encodings, 6, 42).split_products == 5


def test_three_ways_back_to_the_width() -> None:
    linear, narrow, wide = lessons.ways_back(2, 2, 2)
    assert (linear.joined, linear.output, linear.parameters) == (4, 2, 2 * 3 * 4 + 4 * 2)
    assert (narrow.value_width, narrow.joined, narrow.output) == (1, 2, 2)
    assert (wide.joined, wide.output) == (4, 4)
    # three heads of two values are six numbers, and three don't divide two
    assert [way.joined for way in lessons.ways_back(2, 3, 2)] == [6, 6]


def test_sizes_of_gpt2() -> None:
    small, large = lessons.size_of(GPT2_SMALL), lessons.size_of(GPT2_XL)
    assert (small.size.num_heads, small.size.width, small.parameters) == (12, 768, 124_439_808)
    assert (large.size.num_heads, large.size.width, large.parameters) == (25, 1600, 1_557_611_200)
    assert small.head_dim == large.head_dim == 64
    assert small.attention_parameters == 12 * 4 * (768 * 768 + 768)
    assert "124,439,808" in html("sizes")
    with pytest.raises(ProbeError, match="1,600 can't be split evenly into 48 heads"):
        lessons.size_of(GPT2Size(num_layers=48, num_heads=48, width=1600))


# ---- what is typed in


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.id)
def test_every_chapter_shows_something_and_says_what_to_try(chapter: Chapter) -> None:
    shown = chapter.show(*(field.value for field in chapter.fields))
    assert "<td>" in shown.html and "not a number" not in shown.html
    assert (shown.map is not None) == chapter.has_map
    assert len(chapter.tries) >= 2


@pytest.mark.parametrize(
    "chapter, field",
    [
        (chapter.id, field.name)
        for chapter in CHAPTERS
        for field in chapter.fields
        if field.range is None and not field.choices
    ],
)
@pytest.mark.parametrize("typed", ["", "   ", "a b", "1 x", "nan", "1e999", "9" * 3000, "<script>"])
def test_what_is_no_number_gets_one_sentence(chapter: str, field: str, typed: str) -> None:
    values = {**defaults(chapter), field: typed}
    try:
        shown = BY_ID[chapter].show(*values.values())
    except ProbeError as error:
        sentence = str(error)
        assert sentence and "\n" not in sentence and len(sentence) < 250
        return
    # a name, a sentence or a word may be anything
    assert field in {"query", "first", "second", "words"}
    assert "<script>" not in shown.html


@pytest.mark.parametrize(
    "typed, sentence",
    [
        ("draw 1 2\na 1", "The words: line 2 has 1 number, line 1 has 2; every word needs equally many."),
        ("draw 1 2\na 1 zwei", "The words, line 2: 'zwei' is not a number; write numbers such as 1.5"),
        ("draw", "The words: line 1 must hold a word and its numbers, as in: draw 1.16 0.23"),
        ("x 1 2\n" * 13, "The words: there are 13 lines; at most 12 are taken."),
    ],
)
def test_the_sentence_says_where(typed: str, sentence: str) -> None:
    with pytest.raises(ProbeError) as caught:
        lessons.read_words(typed, "The words")
    assert str(caught.value).startswith(sentence)


def test_commas_and_typographic_minus_signs_are_read() -> None:
    assert lessons.read_numbers("1.5, −2,3", "x") == [1.5, -2.0, 3.0]
