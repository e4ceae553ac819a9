"""One head on two texts: the alignment as a reader would make it, the differences by hand."""

from __future__ import annotations

import json

import pytest
import torch

import probe
from origins import MADE_UP
from probe.analyses.compare import compare
from probe.analyses.texts import TextMap, _compared, align, compare_texts, compare_texts_of
from probe.running.inputs import encode_for

COFFEE, LAPTOP = "this coffee is great", "my laptop just died, great"


def text_map(tokens: str, weights: list[list[float]]) -> TextMap:
    return TextMap(
        tokens, tuple(tokens.split()), None, (False,) * len(tokens.split()), None, torch.tensor(weights)
    )


def test_rows_on_paper() -> None:
    first = text_map("a b c", [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    second = text_map("x a c", [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.25, 0.25]])
    compared = _compared(MADE_UP, 0, 0, first, second)
    assert compared.pairs == ((0, 1), (2, 2))
    # Row a: (a, c) was (1, 0) and becomes (0.75, 0); x gets 0.25. Row c: (0.25, 0.5) becomes (0.25, 0.25);
    # b had 0.25, x gets 0.5.
    assert compared.difference.tolist() == [[-0.25, 0.0], [0.0, -0.25]]
    assert compared.moved.tolist() == [(0.25 + 0.25) / 2, (0.25 + 0.25 + 0.5) / 2]
    assert "2 tokens are in both texts; 37.5% of the weight" in compared.summary
    assert 'most for "c" (position 2, there 2): 50.0%' in compared.summary


def test_the_coffee_and_the_laptop(bert: probe.Model) -> None:
    compared = compare_texts(bert, COFFEE, LAPTOP, 2, 5)
    names = [(compared.first.tokens[i], compared.second.tokens[j]) for i, j in compared.pairs]
    assert names == [("[CLS]", "[CLS]"), ("great", "great"), ("[SEP]", "[SEP]")]
    for side, text in ((compared.first, COFFEE), (compared.second, LAPTOP)):
        assert torch.equal(side.weights, probe.attend(bert, text, [(2, 5)]).weights(2, 5))
    for index, (i, j) in enumerate(compared.pairs):
        aligned = {pair: 0.0 for pair in compared.pairs}
        total = 0.0
        for k, weight in enumerate(compared.first.weights[i].tolist()):
            pair = next((pair for pair in aligned if pair[0] == k), None)
            other = 0.0 if pair is None else float(compared.second.weights[j, pair[1]])
            total += abs(other - weight)
        for k, weight in enumerate(compared.second.weights[j].tolist()):
            if all(pair[1] != k for pair in aligned):
                total += weight
        assert float(compared.moved[index]) == pytest.approx(total / 2, abs=1e-6)


def test_the_same_text_twice_moves_nothing(gpt2: probe.Model) -> None:
    compared = compare_texts(gpt2, COFFEE, COFFEE, 1, 2)
    assert compared.pairs == tuple((i, i) for i in range(len(compared.first.tokens)))
    assert compared.difference.count_nonzero() == 0 and compared.moved.count_nonzero() == 0


def test_a_causal_model_cannot_know_what_follows(gpt2: probe.Model, bert: probe.Model) -> None:
    shared, first, second = "the cat and the dog", " ran away.", " slept all day long."
    for layer in range(gpt2.num_layers):
        compared = compare_texts(gpt2, shared + first, shared + second, layer, 1)
        same = len(encode_for(gpt2, shared))
        assert compared.pairs[:same] == tuple((i, i) for i in range(same))
        assert float(compared.moved[:same].max()) < 1e-5
    assert float(compare_texts(bert, shared + first, shared + second, 3, 1).moved[:5].max()) > 1e-3


def test_runs_already_made_give_the_same(bert: probe.Model, gpt2: probe.Model) -> None:
    first, second = (compare(bert, text) for text in (COFFEE, LAPTOP))
    again, fresh = compare_texts_of(first, second, 2, 5), compare_texts(bert, COFFEE, LAPTOP, 2, 5)
    assert (again.pairs, again.first.tokens, again.second.text) == (fresh.pairs, fresh.first.tokens, LAPTOP)
    torch.testing.assert_close(again.moved, fresh.moved, rtol=0, atol=2e-6)
    torch.testing.assert_close(again.difference, fresh.difference, rtol=0, atol=2e-6)
    # The maps of the other heads can be forgotten.
    size = len(again.first.tokens)
    assert again.first.weights.untyped_storage().nbytes() == 4 * size * size
    other = compare(gpt2, COFFEE)
    with pytest.raises(probe.ProbeError, match="different models, all-MiniLM-L6-v2 and gpt2-stories"):
        compare_texts_of(first, other, 0, 0)
    with pytest.raises(probe.ProbeError, match="no head 12"):
        compare_texts_of(first, second, 0, 12)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a b c d", "a x c d", [(0, 0), (2, 2), (3, 3)]),
        ("a b", "c d", []),
        ("the cat the dog", "the dog", [(2, 0), (3, 1)]),
        ("a " * 300, "b " + "a " * 300, [(i, i + 1) for i in range(300)]),  # no token is too common to align
    ],
)
def test_alignment(first: str, second: str, expected: list[tuple[int, int]]) -> None:
    assert list(align(first.split(), second.split())) == expected


def test_tokens_are_compared_as_the_reader_sees_them(gpt2: probe.Model) -> None:
    """GPT-2 has one id for "it" at the start of a text and another for " it" within."""
    first, second = (encode_for(gpt2, text) for text in ("it", "the it"))
    assert first.tokens == ("it",) and second.tokens == ("the", "it") and first.ids[0] != second.ids[1]
    assert compare_texts(gpt2, "it", "the it", 0, 0).pairs == ((0, 1),)


def test_texts_with_nothing_in_common(gpt2: probe.Model) -> None:
    compared = compare_texts(gpt2, "the", "and", 0, 0)
    assert compared.pairs == () and compared.difference.shape == (0, 0)
    assert "share no token" in str(compared) and json.dumps(compared.to_dict())


def test_errors_name_the_text(bert: probe.Model) -> None:
    with pytest.raises(probe.ProbeError, match="The second text: The text is empty"):
        compare_texts(bert, COFFEE, "", 0, 0)
    with pytest.raises(probe.ProbeError, match="no layer 6"):
        compare_texts(bert, COFFEE, LAPTOP, 6, 0)


def test_numbers_and_words_for_the_reader(bert: probe.Model) -> None:
    compared = compare_texts(bert, COFFEE, LAPTOP, 2, 5)
    plain = json.loads(json.dumps(compared.to_dict(), allow_nan=False))
    assert plain["pairs"] == [[0, 0], [4, 6], [5, 7]] and len(plain["moved"]) == 3
    assert plain["first"]["tokens"] == ["[CLS]", "this", "coffee", "is", "great", "[SEP]"]
    row = next(line for line in str(compared).splitlines() if line.split()[:3] == ["4", "6", "great"])
    assert f"{float(compared.moved[1]):.4f}" in row
