"""The heads that link two words: words found as the tokenizer places them, sums by loops."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralModel
from typer.testing import CliRunner

import probe
from origins import MADE_UP
from probe.analyses.compare import compare
from probe.analyses.find import HeadLink, _Search, find_heads, find_heads_of, locate, matches
from probe.cli import app
from probe.running.inputs import encode_for

TROPHY = "The trophy doesn't fit in the suitcase because it is too big."


def positions(model: probe.Model, text: str, start: int, end: int) -> list[int]:
    """The tokens of text[start:end], by the tokenizer's own map of characters."""
    batch: Any = model.tokenizer(text)
    found = {batch.char_to_token(character) for character in range(start, end)}
    return sorted(position for position in found if position is not None)


def span(text: str, word: str, occurrence: int = 0) -> tuple[int, int]:
    start = -1
    for _ in range(occurrence + 1):
        start = text.index(word, start + 1)
    return start, start + len(word)


def link(run: probe.Run, layer: int, head: int, queries: list[int], keys: list[int]) -> float:
    total = 0.0
    for query in queries:
        for key in keys:
            total += float(run.weights(layer, head)[query, key])
    return total / len(queries)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_links_are_summed_over_the_key_and_averaged_over_the_query(
    name: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name)
    text = "The photosynthesizing begonias surprised the Unbelievably big begonias."
    run = probe.attend(model, text)
    found = find_heads(model, text, "unbelievably", "Photosynthesizing", versus="surprised")
    queries, keys, others = (
        positions(model, text, *span(text, word))
        for word in ("Unbelievably", "photosynthesizing", "surprised")
    )
    assert len(queries) > 3 and len(keys) > 3
    assert list(found.from_word.positions) == queries == list(found.queries)
    assert list(found.to_word.positions) == keys
    assert len(found.heads) == model.num_layers * model.num_heads
    for one in found.heads:
        weight, versus = (link(run, one.layer, one.head, queries, targets) for targets in (keys, others))
        assert one.weight == pytest.approx(weight, abs=2e-6)
        assert one.versus == pytest.approx(versus, abs=2e-6)
        assert one.difference == pytest.approx(weight - versus, abs=4e-6)
    assert [one.weight for one in found.heads] == sorted((one.weight for one in found.heads), reverse=True)
    differences = [one.difference or 0.0 for one in found.by_difference]
    assert differences == sorted(differences, reverse=True) and len(differences) == len(found.heads)
    assert found.notice is None


def test_a_run_already_made_gives_the_same(bert: probe.Model, gpt2: probe.Model) -> None:
    for model in (bert, gpt2):
        fresh = find_heads(model, TROPHY, "it", "trophy", "suitcase")
        again = find_heads_of(compare(model, TROPHY), "it", "trophy", "suitcase")
        weights = {(one.layer, one.head): one.weight for one in again.heads}
        for one in fresh.heads:
            assert weights[one.layer, one.head] == pytest.approx(one.weight, abs=2e-6)
        assert (again.queries, again.to_word) == (fresh.queries, fresh.to_word)


def test_all_occurrences_count_unless_one_is_named(bert: probe.Model) -> None:
    text = "it fell and It broke"
    first, second = (positions(bert, text, *span(text, word)) for word in ("it", "It"))
    key = positions(bert, text, *span(text, "broke"))
    run = probe.attend(bert, text)
    for word, queries in (("it", first + second), ("IT#1", first), ("it#2", second)):
        found = find_heads(bert, text, word, "broke")
        best = found.heads[0]
        assert list(found.from_word.positions) == queries
        assert best.weight == pytest.approx(link(run, best.layer, best.head, queries, key), abs=2e-6)
    assert find_heads(bert, text, "it", "broke").from_word.occurrences == (tuple(first), tuple(second))


def test_queries_of_a_causal_model_that_cannot_see_the_key_are_left_out(gpt2: probe.Model) -> None:
    text = "it fell down, and it broke"
    found = find_heads(gpt2, text, "it", "down")
    queries = positions(gpt2, text, *span(text, "it", 1))
    run = probe.attend(gpt2, text)
    best = found.heads[0]
    assert found.queries == tuple(queries)
    keys = positions(gpt2, text, *span(text, "down"))
    assert best.weight == pytest.approx(link(run, best.layer, best.head, queries, keys), abs=2e-6)
    assert found.notice == (
        'Left out: 1 of the 2 tokens of "it", which come before "down" and can\'t see it.'
    )
    assert found.notice in str(found)


def test_a_later_word_cannot_be_seen_by_a_causal_model(gpt2: probe.Model, bert: probe.Model) -> None:
    with pytest.raises(probe.ProbeError, match=r'"trophy" can\'t see "it": in gpt2-stories .* Swap'):
        find_heads(gpt2, TROPHY, "trophy", "it")
    with pytest.raises(probe.ProbeError, match='"fit" can\'t see "suitcase"'):
        find_heads(gpt2, TROPHY, "fit", "trophy", versus="suitcase")
    assert find_heads(bert, TROPHY, "trophy", "it").heads[0].weight > 0


def test_a_window_may_hold_either_target_but_not_both(gpt2: probe.Model) -> None:
    config = MistralConfig(
        vocab_size=4096, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=2,
    )  # fmt: skip
    model = probe.load(MistralModel(config), tokenizer=gpt2.tokenizer)
    text = "a cat the dog cat"
    assert len(encode_for(model, text)) == 5
    assert find_heads(model, text, "cat", "a").queries == (1,)
    assert find_heads(model, text, "cat", "dog").queries == (4,)
    with pytest.raises(probe.ProbeError, match='No occurrence of "cat" sees both "a" and "dog"'):
        find_heads(model, text, "cat", "a", versus="dog")


def test_a_word_that_is_not_there(bert: probe.Model) -> None:
    with pytest.raises(probe.ProbeError) as caught:
        find_heads(bert, TROPHY, "it", "troph")
    message = str(caught.value)
    assert '"troph" is not in the text as a whole word' in message
    assert "The, trophy, doesn, t, fit, in, the, suitcase, because, it, is, too, big." in message
    with pytest.raises(probe.ProbeError, match='"it" occurs once in the text: there is no "it#2"'):
        find_heads(bert, TROPHY, "it#2", "trophy")
    with pytest.raises(probe.ProbeError, match='"the" occurs 2 times in the text: there is no "the#0"'):
        find_heads(bert, TROPHY, "it", "the#0")
    for nothing in ("", "  ", None, 3):
        with pytest.raises(probe.ProbeError, match="must be a string"):
            find_heads(bert, TROPHY, "it", nothing)  # type: ignore[arg-type]


def test_a_long_list_of_words_is_cut(gpt2: probe.Model) -> None:
    text = " ".join(f"w{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(60))
    with pytest.raises(probe.ProbeError, match=r"waa, wab, .* and 20 more"):
        find_heads(gpt2, text, "nowhere", "waa")


def test_special_tokens_and_both_texts_of_a_pair(
    bert: probe.Model, tiny_roberta: Callable[..., Path]
) -> None:
    pair = ("the cat sat", "it saw the cat")
    encoding = encode_for(bert, pair)
    assert encoding.tokens == ("[CLS]", "the", "cat", "sat", "[SEP]", "it", "saw", "the", "cat", "[SEP]")
    assert locate(encoding, "cat").occurrences == ((2,), (8,))
    assert locate(encoding, "the#2").positions == (7,)
    assert locate(encoding, "[sep]").occurrences == ((4,), (9,))
    assert find_heads(bert, pair, "it", "cat#1").to_word.positions == (2,)
    roberta = encode_for(probe.load(str(tiny_roberta())), ("the cat", "cat the"))
    assert roberta.spans is not None
    for number, expected in ((1, (4, 7)), (2, (0, 3))):
        spans = [roberta.spans[position] for position in locate(roberta, f"cat#{number}").positions]
        assert (spans[0][0], spans[-1][1]) == expected


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("The cat, the CAT; concatenate", "cat", ["cat", "CAT"]),
        ("cafe\u0301 CAFÉ cafe", "café", ["cafe\u0301", "CAFÉ"]),
        ("cafe\u0301 cafe", "cafe", ["cafe"]),
        ("STRASSE Straße", "straße", ["STRASSE", "Straße"]),
        ("İstanbul", "i\u0307stanbul", ["İstanbul"]),
        ("foo_bar foo", "foo", ["foo"]),
        ("don't do", "don't", ["don't"]),
        ("a, b, c", ",", [",", ","]),
        ("New York, new york", "new york", ["New York", "new york"]),
        ("注意力很重要", "注意力", ["注意力"]),
        ("x", "xx", []),
        ("love \u2764\ufe0f it", "\u2764", ["\u2764"]),
    ],
)
def test_whole_words_in_a_text(text: str, word: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in matches(text, word)] == expected


def test_bytes_of_an_emoji_are_its_tokens(gpt2: probe.Model) -> None:
    encoding = encode_for(gpt2, "so \U0001f642 it is")
    found = locate(encoding, "\U0001f642")
    assert [encoding.tokens[position] for position in found.positions][-4:] == [
        f"\U0001f642 {part}/4" for part in range(1, 5)
    ]


def test_numbers_and_words_for_the_reader(bert: probe.Model) -> None:
    found = find_heads(bert, TROPHY, "it", "[SEP]", versus="trophy")
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    best = found.heads[0]
    assert plain["heads"][0] == vars(best) and plain["to_word"]["word"] == "[SEP]"
    assert f"Layer {best.layer}, head {best.head} of all-MiniLM-L6-v2" in found.summary
    table = found.told(3).splitlines()
    header = next(line for line in table if line.startswith("layer"))
    assert "on [SEP]" in header and "on trophy" in header  # brackets are no markup
    assert sum(line.strip()[:1].isdigit() for line in table) == 6
    first = next(line for line in table if line.strip()[:1].isdigit()).split()
    numbers = [f"{best.weight:.4f}", f"{best.versus:.4f}", f"{best.difference:+.4f}"]
    assert first == [str(best.layer), str(best.head), *numbers]
    alone = find_heads(bert, TROPHY, "it", "trophy")
    assert alone.by_difference == () and alone.heads[0].versus is None and "difference" not in str(alone)


def test_a_tokenizer_without_spans_is_refused(bert: probe.Model) -> None:
    encoding = encode_for(bert, TROPHY)
    with pytest.raises(probe.ProbeError, match="words can't be looked up"):
        locate(type(encoding)(**{**vars(encoding), "spans": None}), "it")


def test_the_command_line(bert: probe.Model) -> None:
    arguments = ["find", "bert", TROPHY, "it", "trophy", "--versus", "suitcase"]
    best = find_heads(bert, TROPHY, "it", "trophy", "suitcase").heads[0]
    plain = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert (plain["heads"][0]["layer"], plain["heads"][0]["head"]) == (best.layer, best.head)
    lines = CliRunner().invoke(app, [*arguments, "--top", "3"]).stdout.splitlines()
    assert sum(line.strip()[:1].isdigit() for line in lines) == 6


def test_heads_whose_weights_are_no_numbers_come_last(gpt2: probe.Model) -> None:
    search = _Search(encode_for(gpt2, "a cat the dog cat"), "cat", "a", "the")
    size = len(search.encoding)
    for layer in range(2):
        weights = torch.full((3, size, size), 0.1)
        weights[1, :, 0] = torch.nan if layer == 0 else 0.3
        weights[2, :, 0] = 0.2 + layer / 4
        search.see(layer, weights, None)
    found = search.result(MADE_UP)
    for links in (found.heads, found.by_difference):
        assert [(link.layer, link.head) for link in links][:3] == [(1, 2), (1, 1), (0, 2)]
        assert (links[-1].layer, links[-1].head) == (0, 1)
    assert "not finite (NaN or infinity)" in found.summary and "nan%" not in found.told(9)


def test_no_head_prefers_what_every_head_puts_less_weight_on(bert: probe.Model) -> None:
    found = probe.find_heads(bert, "The trophy doesn't fit in the suitcase.", "suitcase", "trophy", "fit")
    less = (HeadLink(0, 0, 0.2, 0.5, -0.3), HeadLink(1, 0, 0.1, 0.12, -0.02))
    assert replace(found, heads=less).summary.endswith('50.0% on "fit". No head prefers "trophy".')
    more = (HeadLink(0, 0, 0.2, 0.5, -0.3), HeadLink(1, 0, 0.15, 0.1, 0.05))
    assert replace(found, heads=more).summary.endswith(
        "Layer 1, head 0 prefers it most: 15.0% against 10.0%."
    )


@pytest.mark.parametrize(("weight", "said"), [(1.0, "100.0%"), (0.9996, "over 99.9%"), (0.9994, "99.9%")])
def test_almost_all_is_not_all(weight: float, said: str, gpt2: probe.Model) -> None:
    found = probe.find_heads(gpt2, "The cat sat", "cat", "The")
    best = replace(found.heads[0], weight=weight)
    assert f"it puts {said} of its weight there" in replace(found, heads=(best, *found.heads[1:])).summary
