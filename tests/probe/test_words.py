"""Words from tokens, and maps over words: words as a reader would split them, sums by loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace
from transformers import PreTrainedTokenizerFast

import probe
from probe.running.inputs import encode_for
from probe.running.tokens import Encoding, encode
from probe.running.words import Words, group_words, single_tokens, token_parts

UNBELIEVABLY = "Unbelievably, the photosynthesizing begonias flourished."
ITS_WORDS = ["Unbelievably", ",", "the", "photosynthesizing", "begonias", "flourished", "."]
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def words_of(model: probe.Model, text: str | tuple[str, str]) -> list[str]:
    return list(group_words(encode_for(model, text)).labels)


def encoding(text: str, spans: list[tuple[int, int]], words: list[int | None]) -> Encoding:
    """What a tokenizer with these spans and word numbers would give; a token without a word is special."""
    return Encoding(
        text=text,
        ids=tuple(range(len(spans))),
        tokens=tuple(text[start:end] or "<s>" for start, end in spans),
        spans=tuple(spans),
        special=tuple(word is None for word in words),
        words=tuple(words),
        segments=(0,) * len(spans),
        segment_ids_used=False,
    )


def test_the_pieces_of_long_words_come_together(bert: probe.Model, gpt2: probe.Model) -> None:
    assert words_of(gpt2, UNBELIEVABLY) == ITS_WORDS
    assert words_of(bert, UNBELIEVABLY) == ["[CLS]", *ITS_WORDS, "[SEP]"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("great \U0001f642!", ["great", "\U0001f642", "!"]),
        (f"a {FAMILY} b", ["a", FAMILY, "b"]),
        ("ok \U0001f44d\U0001f3fd then", ["ok", "\U0001f44d\U0001f3fd", "then"]),
        ("Cafe\u0301 c\u0327a", ["Cafe\u0301", "c\u0327a"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("don't stop", ["don", "'t", "stop"]),
        ("it cost $5 (3.5 off)", ["it", "cost", "$", "5", "(", "3", ".", "5", "off", ")"]),
        ("a  b\nc", ["a", "␣", "b", "⏎", "c"]),
        ("hi <|endoftext|> you", ["hi", "␣", "<|endoftext|>", "you"]),
        ("中文 句子", ["中", "文", "句", "子"]),
        ("I like 猫 a lot", ["I", "like", "猫", "a", "lot"]),
        ("한국어 문장", ["한국어", "문장"]),
    ],
)
def test_words_of_a_byte_level_tokenizer(gpt2: probe.Model, text: str, expected: list[str]) -> None:
    assert words_of(gpt2, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("great \U0001f642!", ["great", "\U0001f642", "!"]),
        (f"a {FAMILY} b", ["a", FAMILY, "b"]),
        ("Cafe\u0301 İstanbul", ["Cafe\u0301", "İstanbul"]),
        ("foo_bar [MASK]unbelievably", ["foo", "_", "bar", "[MASK]", "unbelievably"]),
    ],
)
def test_words_of_a_wordpiece_tokenizer(bert: probe.Model, text: str, expected: list[str]) -> None:
    assert words_of(bert, text) == ["[CLS]", *expected, "[SEP]"]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("你好世界", [(0, 2), (2, 4)]),
        ("こんにちは世界", [(0, 5), (5, 7)]),
        ("コーヒーを飲む", [(0, 4), (4, 5), (5, 7)]),
        ("สวัสดีชาวโลก", [(0, 6), (6, 9), (9, 12)]),
        ("ສະບາຍດີ", [(0, 2), (2, 7)]),
        ("កម្ពុជា", [(0, 5), (5, 7)]),
        ("2024年3月", [(0, 4), (4, 5), (5, 6), (6, 7)]),
    ],
)
def test_tokens_of_scripts_without_spaces_stay_apart(text: str, spans: list[tuple[int, int]]) -> None:
    """They are words, or parts of words, and nothing between them says which."""
    found = group_words(encoding(text, spans, [0] * len(spans)))
    assert [text[start:end] for start, end in spans] == list(found.labels)
    assert found.notice is not None and "no spaces between words" in found.notice


def test_a_script_with_spaces_needs_no_notice(gpt2: probe.Model) -> None:
    for text in ("the cat", "한국어 문장", "नमस्ते दुनिया", "Café, naïve"):
        assert group_words(encode_for(gpt2, text)).notice is None


def test_marks_stay_with_the_letter_before_them() -> None:
    """The vowel above a Thai consonant, which a tokenizer has cut off."""
    assert group_words(encoding("ที่นี่", [(0, 1), (1, 3), (3, 6)], [0, 0, 0])).labels == ("ที่", "นี่")


@pytest.fixture(scope="module")
def sentencepiece() -> PreTrainedTokenizerFast:
    """A tokenizer that puts a space before each text, as Llama's and T5's do."""
    pieces = [("<unk>", 0.0), ("\u2581", -1.0), ("中", -2.0), ("文", -2.0), ("\u2581a", -1.5), ("b", -3.0)]
    made = Tokenizer(Unigram(pieces, unk_id=0, byte_fallback=False))
    made.pre_tokenizer = Metaspace(replacement="\u2581", prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


@pytest.mark.parametrize(
    ("text", "tokens", "spans"),
    [
        ("中文", ("\u2581", "中", "文"), ((0, 0), (0, 1), (1, 2))),
        ("a 中", ("a", "␣", "中"), ((0, 1), (1, 2), (2, 3))),
        ("\u2581中", ("\u2581", "中"), ((0, 1), (1, 2))),  # typed
        ("ab", ("a", "b"), ((0, 1), (1, 2))),
    ],
)
def test_a_space_that_a_tokenizer_puts_before_a_text_is_no_part_of_it(
    sentencepiece: PreTrainedTokenizerFast,
    text: str,
    tokens: tuple[str, ...],
    spans: tuple[tuple[int, int], ...],
) -> None:
    found = encode(sentencepiece, text, None, 6, truncate=False)
    assert (found.tokens, found.spans) == (tokens, spans)


def test_a_tokenizer_that_splits_at_spaces_only_does_not_glue_the_comma_to_the_word() -> None:
    text = "Unbelievably, don't."
    glued = encoding(
        text, [(0, 0), (0, 9), (9, 12), (12, 13), (14, 17), (17, 18), (18, 19), (19, 20), (0, 0)],
        [None, 0, 0, 0, 1, 1, 1, 1, None],
    )  # fmt: skip
    assert group_words(glued).labels == ("<s>", "Unbelievably", ",", "don't", ".", "<s>")
    assert group_words(glued).pieces == ((0, 1), (1, 3), (3, 4), (4, 7), (7, 8), (8, 9))


def test_a_tokenizer_that_counts_the_whole_text_as_one_word() -> None:
    whole = encoding("the red cat", [(0, 3), (3, 7), (7, 8), (8, 9), (9, 11)], [0, 0, 0, 0, 0])
    assert group_words(whole).labels == ("the", "red", "cat")
    assert group_words(whole).spans == ((0, 3), (4, 7), (8, 11))


def test_spans_are_the_words_without_spaces(gpt2: probe.Model) -> None:
    text = "  Dr. Unbelievably\tleft"
    words = group_words(encode_for(gpt2, text))
    assert words.spans is not None
    shown = [text[start:end] for start, end in words.spans if not text[start:end].isspace()]
    assert shown == ["Dr", ".", "Unbelievably", "left"]


def test_every_token_is_in_exactly_one_word(gpt2: probe.Model, bert: probe.Model) -> None:
    for model in (gpt2, bert):
        words = group_words(encode_for(model, f"{UNBELIEVABLY} {FAMILY} naïve"))
        tokens = [position for start, end in words.pieces for position in range(start, end)]
        assert tokens == list(range(words.num_tokens))
        assert words.index == tuple(range(len(words)))


def test_a_pair_of_sentences(bert: probe.Model, tiny_roberta: Callable[..., Path]) -> None:
    pair = ("the begonias", "the unbelievably")
    expected = ["the", "begonias"], ["the", "unbelievably"]
    for model, start, between, end in (
        (bert, ["[CLS]"], ["[SEP]"], ["[SEP]"]),
        (probe.load(str(tiny_roberta())), ["<s>"], ["</s>", "</s>"], ["</s>"]),
    ):
        encoded = encode_for(model, pair)
        words = group_words(encoded)
        assert list(words.labels) == [*start, *expected[0], *between, *expected[1], *end]
        first_of_second = words.pieces[len(start) + 2 + len(between)][0]
        ordinary = [i for i, special in enumerate(encoded.special) if not special]
        parts = token_parts(encoded)
        assert [parts[i] for i in ordinary] == [int(i >= first_of_second) for i in ordinary]


def test_without_spans_each_token_stands_for_itself_and_says_so() -> None:
    known = encoding("ab", [(0, 1), (1, 2)], [0, 0])
    words = group_words(Encoding(**{**vars(known), "spans": None, "words": None}))
    assert words.labels == ("a", "b") and words.pieces == ((0, 1), (1, 2))
    assert words.notice is not None and "words can't be put together" in words.notice
    assert group_words(known).notice is None


def by_loops(matrix: torch.Tensor, words: Words) -> torch.Tensor:
    """Each cell added up number by number."""
    result = torch.zeros(len(words), len(words), dtype=torch.float64)
    for row, (query_start, query_end) in enumerate(words.pieces):
        for column, (key_start, key_end) in enumerate(words.pieces):
            for query in range(query_start, query_end):
                for key in range(key_start, key_end):
                    result[row, column] += float(matrix[query, key]) / (query_end - query_start)
    return result


def test_a_small_map_on_paper() -> None:
    words = group_words(encoding("abc d", [(0, 1), (1, 3), (4, 5)], [0, 0, 1]))
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.125, 0.25, 0.625]])
    assert words.labels == ("abc", "d")
    assert words.weights(weights).tolist() == [[1.0, 0.0], [0.375, 0.625]]
    assert words.means(torch.tensor([1.0, 4.0, 5.0])).tolist() == [2.5, 5.0]


def test_keys_of_another_text_on_paper() -> None:
    queries = group_words(encoding("ab", [(0, 1), (1, 2)], [0, 0]))
    keys = group_words(encoding("c de", [(0, 1), (2, 3), (3, 4)], [0, 1, 1]))
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.0, 0.75]])
    assert queries.weights(weights, keys).tolist() == [[0.375, 0.625]]
    with pytest.raises(probe.ProbeError, match=r"\(2, 3\), not \(2, 2\)"):
        queries.weights(weights[:, :2], keys)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_maps_of_a_model_over_words(name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    run = probe.attend(model, UNBELIEVABLY)
    words = group_words(encode_for(model, UNBELIEVABLY))
    weights = run.weights(3, 2)
    over_words = words.weights(weights)
    torch.testing.assert_close(over_words.double(), by_loops(weights, words), rtol=0, atol=1e-6)
    torch.testing.assert_close(over_words.sum(-1), torch.ones(len(words)), rtol=0, atol=1e-5)
    stacked = torch.stack([weights, run.weights(0, 1)])
    assert torch.equal(words.weights(stacked)[0], over_words)
    if model.causal:
        assert over_words.triu(1).count_nonzero() == 0


def test_special_tokens_left_out_are_not_shared_out(bert: probe.Model) -> None:
    encoded = encode_for(bert, "the begonias")
    weights = probe.attend(bert, "the begonias", [(1, 1)]).weights(1, 1)
    whole, inner = group_words(encoded), group_words(encoded).without_special()
    assert inner.labels == ("the", "begonias") and inner.index == (1, 2)
    assert torch.equal(inner.weights(weights), whole.weights(weights)[1:-1, 1:-1])
    tokens = single_tokens(encoded)
    assert torch.equal(tokens.weights(weights), weights)
    assert torch.equal(tokens.without_special().weights(weights), weights[1:-1, 1:-1])


def test_where_all_is_special_all_stays(gpt2: probe.Model) -> None:
    words = group_words(encode_for(gpt2, "<|endoftext|>"))
    assert words.without_special().labels == ("<|endoftext|>",)


def test_a_map_of_another_text_is_refused() -> None:
    words = group_words(encoding("ab", [(0, 1), (1, 2)], [0, 0]))
    with pytest.raises(probe.ProbeError, match=r"2 tokens.*\(2, 2\), not \(3, 3\)"):
        words.weights(torch.eye(3))
    with pytest.raises(probe.ProbeError, match=r"\(2,\), not \(4,\)"):
        words.means(torch.zeros(4))


def test_to_dict_is_plain() -> None:
    words = group_words(encoding("ab c", [(0, 1), (1, 2), (3, 4)], [0, 0, 1]))
    assert words.to_dict() == {
        "labels": ["ab", "c"],
        "index": [0, 1],
        "pieces": [[0, 2], [2, 3]],
        "spans": [[0, 2], [3, 4]],
        "special": [False, False],
        "num_tokens": 3,
        "notice": None,
    }
