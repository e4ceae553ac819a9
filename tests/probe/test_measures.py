"""Measures on heads that are exactly such, on paper and by loops; rollout multiplied out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    BloomConfig,
    BloomModel,
    MistralConfig,
    MistralModel,
    T5Config,
    T5ForConditionalGeneration,
)
from typer.testing import CliRunner

import probe
from probe.analyses.compare import compare, comparison_of
from probe.analyses.measures import (
    MEASURES,
    HeadMeasure,
    induction_score,
    mean_distance,
    measure_heads,
    measures_of,
    relative_entropy,
    weight_at,
    weight_on_first,
    weight_on_special,
)
from probe.analyses.rollout import roll_out, rollout, rollout_of
from probe.cli import app
from probe.running.inputs import encode_for
from probe.running.recording import record

REPEATED = "the cat and the dog and the cat and the dog"


def causal(size: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


def uniform(allowed: Tensor) -> Tensor:
    return allowed.double() / allowed.sum(-1, keepdim=True)


def pointing(targets: Sequence[int]) -> Tensor:
    """Each query puts all its weight on one key."""
    weights = torch.zeros(len(targets), len(targets))
    weights[range(len(targets)), list(targets)] = 1.0
    return weights


def close(expected: float) -> object:
    return pytest.approx(expected, abs=1e-7)


def test_a_previous_token_head() -> None:
    weights = pointing([0, 0, 1, 2, 3, 4])
    assert weight_at(weights, -1, causal(6)) == 1.0
    assert weight_at(weights, -1) == 1.0
    assert mean_distance(weights, causal(6)) == 1.0
    assert relative_entropy(weights, causal(6)) == 0.0
    assert weight_at(weights, 0, causal(6)) == 0.0
    # Query 1 of the five that count has position 0 as the token before.
    assert weight_on_first(weights, causal(6)) == close(0.2)
    assert weight_at(weights, 1, causal(6)) is None


def test_a_next_token_head() -> None:
    weights = pointing([1, 2, 3, 4, 4])
    assert weight_at(weights, 1) == 1.0
    assert weight_at(weights, -1) == 0.0
    assert mean_distance(weights) == close(4 / 5)


def test_a_head_that_looks_at_itself() -> None:
    weights = torch.eye(5)
    for allowed in (None, causal(5)):
        assert weight_at(weights, 0, allowed) == 1.0
        assert mean_distance(weights, allowed) == 0.0
        assert relative_entropy(weights, allowed) == 0.0
        assert weight_on_first(weights, allowed) == 0.0


def test_a_head_that_looks_at_the_first_token() -> None:
    weights = pointing([0] * 5)
    assert weight_on_first(weights) == weight_on_first(weights, causal(5)) == 1.0
    assert mean_distance(weights, causal(5)) == close((1 + 2 + 3 + 4) / 4)


def test_a_uniform_causal_head() -> None:
    size = 8
    weights = uniform(causal(size))
    assert relative_entropy(weights, causal(size)) == pytest.approx(1.0, abs=1e-15)
    # A query at q is q / 2 away on average, and q runs from 1 to 7.
    assert mean_distance(weights, causal(size)) == close(2.0)
    harmonic = sum(1 / n for n in range(2, size + 1))
    for measure in (weight_at(weights, 0, causal(size)), weight_on_first(weights, causal(size))):
        assert measure == close(harmonic / (size - 1))


def test_a_uniform_bidirectional_head() -> None:
    size = 7
    weights = uniform(torch.ones(size, size, dtype=torch.bool))
    assert relative_entropy(weights) == close(1.0)
    assert mean_distance(weights) == close((size**2 - 1) / (3 * size))
    assert [weight_at(weights, offset) for offset in (-1, 0, 1)] == [close(1 / 7)] * 3
    special = [True, *[False] * 5, True]
    assert weight_on_special(weights, special) == close(2 / 7)


def test_entropy_is_relative_to_what_each_query_may_see() -> None:
    weights = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [1.0, 0, 0, 0], [0.25, 0.25, 0.5, 0.0]])
    last = (0.25 * math.log(4) * 2 + 0.5 * math.log(2)) / math.log(4)
    assert relative_entropy(weights, causal(4)) == close((1.0 + 0.0 + last) / 3)


def test_special_tokens_count_together_and_are_none_without_any() -> None:
    weights = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]])
    assert weight_on_special(weights, [True, False, True]) == close((0.8 + 0.4 + 0.6) / 3)
    assert weight_on_special(weights, [False] * 3) is None
    # Under the causal mask, and with the last token special, only the last query can see it.
    assert weight_on_special(weights.tril(), [False, False, True], causal(3)) == close(0.2)


def test_induction_on_a_repeated_sequence() -> None:
    ids = [5, 6, 7, 5, 6, 7]
    head = pointing([0, 0, 0, 1, 2, 3])
    assert induction_score(head, ids, causal(6)) == 1.0
    assert induction_score(uniform(causal(6)), ids, causal(6)) == close((1 / 4 + 1 / 5 + 1 / 6) / 3)
    assert induction_score(pointing([0, 0, 0, 0, 1, 2]), ids, causal(6)) == 0.0  # the occurrences themselves


def test_induction_adds_up_several_earlier_occurrences() -> None:
    ids = [1, 2, 1, 3, 1]
    weights = torch.eye(5)
    weights[2] = torch.tensor([0.0, 0.7, 0.3, 0.0, 0.0])
    weights[4] = torch.tensor([0.1, 0.2, 0.1, 0.5, 0.1])
    assert induction_score(weights, ids) == close((0.7 + (0.2 + 0.5)) / 2)


def test_induction_needs_a_repetition_with_something_after_it() -> None:
    assert induction_score(uniform(causal(4)), [1, 2, 3, 4], causal(4)) is None
    assert induction_score(uniform(causal(2)), [1, 1], causal(2)) is None
    # Of 1 1 1 the last may look at the second, which follows the first.
    assert induction_score(uniform(causal(3)), [1, 1, 1], causal(3)) == close(1 / 3)
    pair = [101, 5, 102, 6, 102]
    special = [True, False, True, False, True]
    assert induction_score(uniform(causal(5)), pair, causal(5)) == close(1 / 5)
    assert induction_score(uniform(causal(5)), pair, causal(5), special) is None


@pytest.mark.parametrize("window", [2, 3])
def test_no_masked_cell_counts(window: int) -> None:
    """Anything in the masked cells: the measures are those of the open ones."""
    size = 9
    allowed = causal(size).triu(1 - window)
    weights = torch.rand(size, size, generator=torch.Generator().manual_seed(0)).masked_fill(~allowed, 0)
    weights = weights / weights.sum(-1, keepdim=True)
    spoiled = weights.masked_fill(~allowed, 7.0)
    ids, special = [1, 2, 3] * 3, [True, *[False] * 7, True]
    for measure in (
        lambda one: relative_entropy(one, allowed),
        lambda one: mean_distance(one, allowed),
        lambda one: weight_at(one, 0, allowed),
        lambda one: weight_at(one, -1, allowed),
        lambda one: weight_at(one, 1, allowed),
        lambda one: weight_on_first(one, allowed),
        lambda one: weight_on_special(one, special, allowed),
        lambda one: induction_score(one, ids, allowed),
    ):
        assert measure(spoiled) == measure(weights)
    assert relative_entropy(uniform(allowed), allowed) == close(1.0)
    assert weight_on_first(uniform(allowed), allowed) == close(
        sum(1 / (q + 1) for q in range(1, window)) / (window - 1)
    )


def test_one_token_leaves_nothing_to_measure() -> None:
    weights = torch.ones(1, 1)
    assert relative_entropy(weights) is mean_distance(weights) is weight_on_first(weights) is None
    assert all(weight_at(weights, offset) is None for offset in (-1, 0, 1))
    assert weight_on_special(weights, [True]) is induction_score(weights, [3]) is None


def test_a_map_must_be_square() -> None:
    with pytest.raises(probe.ProbeError, match=r"\(T, T\).*\(2, 3\)"):
        relative_entropy(torch.rand(2, 3))


def by_loops(
    weights: Tensor, ids: Sequence[int], special: Sequence[bool], is_causal: bool
) -> list[float | None]:
    """The eight measures of one head, number by number, in the order of ``MEASURES``."""
    size = len(ids)
    rows: list[list[float]] = [[] for _ in MEASURES]
    for q in range(size):
        keys = range(q + 1) if is_causal else range(size)
        w = {k: float(weights[q, k]) for k in keys}
        if len(w) < 2:
            continue
        rows[0].append(sum(-x * math.log(x) for x in w.values() if x > 0) / math.log(len(w)))
        rows[1].append(sum(x * abs(q - k) for k, x in w.items()))
        rows[2].append(w[q])
        if q - 1 in w:
            rows[3].append(w[q - 1])
        if q + 1 in w:
            rows[4].append(w[q + 1])
        if q > 0:
            rows[5].append(w[0])
        if any(special[k] for k in w):
            rows[6].append(sum(x for k, x in w.items() if special[k]))
        after = [k for k in w if 1 <= k < q and ids[k - 1] == ids[q]]
        if after and not special[q]:
            rows[7].append(sum(w[k] for k in after))
    return [sum(values) / len(values) if values else None for values in rows]


def assert_same(head: HeadMeasure, expected: list[float | None]) -> None:
    values = [getattr(head, measure.name) for measure in MEASURES]
    for measure, value, other in zip(MEASURES, values, expected, strict=True):
        assert value == (None if other is None else pytest.approx(other, abs=2e-6)), measure.name


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_every_head_of_a_model_as_by_loops(name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    encoding, run = encode_for(model, REPEATED), probe.attend(model, REPEATED)
    measured = measure_heads(model, REPEATED)
    assert len(measured.heads) == model.num_layers * model.num_heads
    for head in measured.heads:
        weights = run.weights(head.layer, head.head)
        assert_same(head, by_loops(weights, encoding.ids, encoding.special, model.causal))
    assert all((head.on_special is None) == (name == "gpt2") for head in measured.heads)
    assert all((head.on_next is None) == (name == "gpt2") for head in measured.heads)


def test_a_run_already_made_gives_the_same(gpt2: probe.Model, bert: probe.Model) -> None:
    for model in (gpt2, bert):
        recorded = measures_of(compare(model, REPEATED))
        run = measure_heads(model, REPEATED)
        assert replace(recorded, heads=(), origin=run.origin) == replace(run, heads=())
        for one, other in zip(recorded.heads, run.heads, strict=True):
            assert (one.layer, one.head) == (other.layer, other.head)
            assert_same(one, [getattr(other, measure.name) for measure in MEASURES])


def test_a_run_under_the_other_mask_is_measured_under_that_mask(gpt2: probe.Model) -> None:
    encoding = encode_for(gpt2, REPEATED)
    recording = record(gpt2, [encoding], causal=False)
    measured = measures_of(comparison_of(recording))
    weights = recording.layers[2].weights[0, 3]
    head = next(one for one in measured.heads if (one.layer, one.head) == (2, 3))
    assert_same(head, by_loops(weights, encoding.ids, encoding.special, is_causal=False))


def test_heads_of_zero_weights_are_uniform_whatever_the_mask(
    gpt2: probe.Model, tiny_gpt2: Callable[..., Path]
) -> None:
    causal_model = probe.load(str(tiny_gpt2()))
    config = MistralConfig(
        vocab_size=4096, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=4,
    )  # fmt: skip
    windowed = probe.load(MistralModel(config), tokenizer=gpt2.tokenizer)
    with torch.no_grad():
        for name, parameter in [*causal_model.hf.named_parameters(), *windowed.hf.named_parameters()]:
            if "c_attn" in name or "q_proj" in name:
                parameter.zero_()
    size = len(encode_for(gpt2, REPEATED))
    assert size == 11
    for head in measure_heads(causal_model, REPEATED).heads:
        assert head.entropy == close(1.0) and head.distance == pytest.approx(size / 4, abs=1e-5)
    recorded = measures_of(compare(windowed, REPEATED))
    for head in (*measure_heads(windowed, REPEATED).heads, *recorded.heads):
        # Queries 1 and 2 see two and three keys, the other eight see four.
        assert head.entropy == close(1.0)
        assert head.distance == pytest.approx((0.5 + 1.0 + 8 * 1.5) / 10, abs=1e-5)
        assert head.on_self == pytest.approx((1 / 2 + 1 / 3 + 8 / 4) / 10, abs=1e-5)


def test_models_with_attention_code_of_their_own_and_with_two_texts(gpt2: probe.Model) -> None:
    torch.manual_seed(0)
    bloom = probe.load(
        BloomModel(BloomConfig(vocab_size=4096, hidden_size=16, n_layer=2, n_head=2)),
        tokenizer=gpt2.tokenizer,
    )
    encoding, run = encode_for(bloom, REPEATED), probe.attend(bloom, REPEATED)
    for head in measure_heads(bloom, REPEATED).heads:
        weights = run.weights(head.layer, head.head)
        assert_same(head, by_loops(weights, encoding.ids, encoding.special, is_causal=True))
    config = T5Config(
        vocab_size=4096, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    t5 = probe.load(T5ForConditionalGeneration(config), tokenizer=gpt2.tokenizer)
    with pytest.raises(probe.ProbeError, match="no model of one text with one kind of attention"):
        measure_heads(t5, REPEATED)


def test_ranking(gpt2: probe.Model) -> None:
    measured = measure_heads(gpt2, REPEATED)
    ranked = measured.ranked("on_previous")
    values = [head.on_previous for head in ranked if head.on_previous is not None]
    assert values == sorted(values, reverse=True) and len(values) == len(measured.heads)
    assert measured.ranked("previous") == ranked
    assert measured.ranked("on_previous", ascending=True)[0] == ranked[-1]
    gaps = replace(measured, heads=(replace(measured.heads[0], entropy=None), *measured.heads[1:]))
    assert gaps.ranked("entropy")[-1].entropy is gaps.ranked("entropy", ascending=True)[-1].entropy is None
    with pytest.raises(probe.ProbeError, match="no measure 'size'; there are entropy, distance, self"):
        measured.ranked("size")


def test_numbers_and_words_for_the_reader(bert: probe.Model) -> None:
    measured = measure_heads(bert, "The cat sat.")
    plain = json.loads(json.dumps(measured.to_dict(), allow_nan=False))
    assert plain["heads"][13] == vars(measured.heads[13]) and plain["heads"][13]["head"] == 1
    assert {row["name"] for row in plain["measures"]} == set(plain["heads"][0]) - {"layer", "head"}
    lines = str(measured).splitlines()
    assert lines[0].startswith("all-MiniLM-L6-v2 (bundled), 6 tokens")
    assert lines[2].split() == ["layer", "head", *(measure.title for measure in MEASURES)]
    numbers = lines[4 + 13].split()
    assert numbers[:2] == ["1", "1"] and numbers[2] == f"{measured.heads[13].entropy:.3f}"
    assert len(numbers) == 9  # nothing is repeated, so there is no induction score


def test_rollout_on_paper() -> None:
    # Two heads whose mean is [[1, 0], [0.5, 0.5]], then [[1, 0], [1, 0]].
    first = torch.tensor([[[1.0, 0.0], [0.2, 0.8]], [[1.0, 0.0], [0.8, 0.2]]])
    second = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    one, two = roll_out([first, second])
    # 0.5 A + 0.5 I is [[1, 0], [0.25, 0.75]], then [[1, 0], [0.5, 0.5]]; the product's last row is
    # 0.5 [1, 0] + 0.5 [0.25, 0.75].
    torch.testing.assert_close(one, torch.tensor([[1.0, 0.0], [0.25, 0.75]]).double(), rtol=0, atol=1e-7)
    torch.testing.assert_close(two, torch.tensor([[1.0, 0.0], [0.625, 0.375]]).double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_rollout_of_a_model(name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    run, rolled = probe.attend(model, REPEATED), rollout(model, REPEATED)
    size = len(run.tokens)
    expected = torch.eye(size).double()
    for layer in range(model.num_layers):
        mean = sum(run.weights(layer, head).double() for head in range(model.num_heads)) / model.num_heads
        expected = (mean + torch.eye(size)) / 2 @ expected
        torch.testing.assert_close(rolled.weights(layer), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(
            rolled.weights(layer).sum(-1), torch.ones(size).double(), rtol=0, atol=1e-5
        )
    again = rollout_of(compare(model, REPEATED))
    torch.testing.assert_close(again.weights(model.num_layers - 1), expected, rtol=0, atol=1e-6)
    assert again.tokens == rolled.tokens == run.tokens
    if model.causal:
        assert expected.triu(1).count_nonzero() == 0 and rolled.weights(5).triu(1).count_nonzero() == 0


def test_rollout_says_what_it_is_not(bert: probe.Model) -> None:
    rolled = rollout(bert, "The cat sat.")
    assert "leaves out values" in rolled.caveat and rolled.caveat in str(rolled)
    assert rolled.to_dict()["caveat"] == rolled.caveat and len(rolled.to_dict()["layers"]) == 6
    with pytest.raises(probe.ProbeError, match=r"no layer 6.*layers 0 to 5"):
        rolled.weights(6)
    row = rolled.weights(5)[2]
    assert f"{int(row.argmax())} {rolled.tokens[int(row.argmax())]} ({float(row.max()):.3f})" in str(rolled)


def test_the_command_line(gpt2: probe.Model) -> None:
    expected = measure_heads(gpt2, REPEATED).ranked("induction")
    run = CliRunner().invoke(app, ["heads", "gpt2", REPEATED, "--sort", "induction", "--top", "2", "--json"])
    found = json.loads(run.stdout)["heads"]
    assert [(one["layer"], one["head"]) for one in found] == [(one.layer, one.head) for one in expected[:2]]
    assert found[0]["induction"] == pytest.approx(expected[0].induction, abs=1e-6)
    table = CliRunner().invoke(app, ["heads", "gpt2", REPEATED]).stdout.splitlines()
    assert sum(line.strip()[:1].isdigit() for line in table) == 36
