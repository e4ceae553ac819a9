"""Compare: what is drawn and read out is what the toolkit computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from browser.conftest import Visitor
from numbers_in_text import alike, says, tells

import probe
from probe.display.colors import STEPS, WEIGHT
from probe.running.words import group_words
from probe.ui.state import DEFAULT_HEADS, DEFAULT_TEXT

REPEATED = "the cat and the dog and the cat"
EMOJI = "🙂🙂 the trophy"


def test_page_opens_with_a_result_of_both_models(look: Callable[..., Visitor]) -> None:
    visitor = look()
    verdict = visitor.page.locator("#verdict .pg-line").all_text_contents()
    expected = [probe.verify(name, DEFAULT_TEXT).verdict for name in ("bert", "gpt2")]
    assert all(alike(line, f"✓{one}") for line, one in zip(verdict, expected, strict=True))


@pytest.mark.parametrize(
    ("figure", "model", "layer", "head"),
    [("compare-a", "bert", *DEFAULT_HEADS[0]), ("compare-b", "gpt2", *DEFAULT_HEADS[1])],
)
def test_numbers_under_the_pointer_are_the_toolkits(
    look: Callable[..., Visitor], figure: str, model: str, layer: int, head: int
) -> None:
    visitor = look()
    comparison = probe.compare(model, DEFAULT_TEXT)
    ours, theirs = comparison.from_scratch(layer, head), comparison.from_model(layer, head)
    last = len(comparison.encoding) - 1
    drawn = visitor.figure(figure)
    assert drawn.tokens == list(comparison.encoding.tokens)
    for query, key in ((0, 0), (2, 1), (last, last), (11, 2), (last, 0)):
        for panel in range(3):
            read = drawn.point(query, key, panel)
            tokens = comparison.encoding.tokens
            assert read["where"] == f"query {tokens[query]}{query} → key {tokens[key]}{key}"
            assert says(read["from scratch"], float(ours[query, key]))
            assert says(read["model"], float(theirs[query, key]))
            assert says(read["difference"], abs(float(ours[query, key]) - float(theirs[query, key])))


def test_colours_follow_the_weights(look: Callable[..., Visitor]) -> None:
    visitor = look()
    weights = probe.attend("bert", DEFAULT_TEXT).weights(3, 1)
    scale = [WEIGHT["light"].rgb(i / (STEPS - 1)) for i in range(STEPS)]
    for query, key in ((0, 0), (11, 2), (11, 9), (7, 9), (5, 5), (16, 2)):
        expected = scale[round(float(weights[query, key]) * (STEPS - 1))]
        assert visitor.figure("compare-a").colour(query, key) == pytest.approx(expected, abs=1)


def test_repeated_words_keep_their_own_rows_and_columns(visitor: Visitor) -> None:
    visitor.open(text=REPEATED, ah="0.5")
    comparison = probe.compare("bert", REPEATED)
    weights = comparison.from_scratch(0, 5)
    drawn = visitor.figure("compare-a")
    assert drawn.tokens == ["[CLS]", *REPEATED.split(), "[SEP]"]
    canvas = drawn.root.locator("canvas.af-over").first
    assert canvas.get_attribute("data-rows") == canvas.get_attribute("data-cols") == str(len(weights))
    for key in (1, 4, 7):  # the three times "the"
        assert says(drawn.point(8, key)["from scratch"], float(weights[8, key]))


def test_another_head_runs_no_model(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor.open()

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was run")

    monkeypatch.setattr("probe.compare", refuse)
    monkeypatch.setattr("probe.load", refuse)
    weights = probe.attend("bert", DEFAULT_TEXT).weights(3, 2)
    slider = visitor.page.locator("#head-a input[type=range]")
    visitor.wait_for_new("compare-a", lambda: slider.press("ArrowRight"))
    assert says(visitor.figure("compare-a").point(11, 2)["from scratch"], float(weights[11, 2]))


def test_enter_runs_the_sentence(visitor: Visitor) -> None:
    visitor.open()
    visitor.run("The cat sat on")
    assert visitor.figure("compare-b").tokens == list(probe.attend("gpt2", "The cat sat on").tokens)


def test_the_marked_part_of_the_sentence_is_the_tokens_own(visitor: Visitor) -> None:
    visitor.open()
    for text in (EMOJI, "中文 句", "سلام hi", "e\u0301te\u0301 𝒳 x"):
        visitor.run(text)
        for figure, model in (("compare-a", "bert"), ("compare-b", "gpt2")):
            root = visitor.page.locator(f"#{figure}")
            marked = root.locator(".af-text .af-query")
            spans = probe.attend(model, text).spans or ()
            for i, (start, end) in enumerate(spans):
                root.locator(".af-chip").nth(i).hover()
                assert "".join(marked.all_text_contents()) == text[start:end]
            chosen = root.locator(".af-chip").nth(2)
            chosen.click()
            visitor.page.locator("h1").hover()
            assert chosen.get_attribute("aria-checked") == "true"
            assert "".join(marked.all_text_contents()) == text[slice(*spans[2])]


def test_hidden_special_tokens_are_not_renormalised(visitor: Visitor) -> None:
    visitor.open(special="hidden")
    run = probe.attend("bert", DEFAULT_TEXT)
    weights, special = run.weights(3, 1), torch.tensor(run.special)
    drawn = visitor.figure("compare-a")
    assert drawn.tokens == [token for token, hide in zip(run.tokens, run.special, strict=True) if not hide]
    assert says(drawn.point(10, 1)["from scratch"], float(weights[11, 2]))
    note = drawn.root.locator(".af-readout .af-faint").last.text_content() or ""
    assert says(note.rsplit(" ", 1)[1], float(weights[11][special].sum()))


def test_words_instead_of_tokens(visitor: Visitor) -> None:
    text = "Unbelievably, the photosynthesizing begonias flourished."
    visitor.open(text=text, words="yes")
    for slot, model, (layer, head) in zip("ab", ("bert", "gpt2"), DEFAULT_HEADS, strict=True):
        figure = f"compare-{slot}"
        comparison = probe.compare(model, text)
        words = group_words(comparison.encoding)
        assert visitor.figure(figure).tokens == list(words.labels)
        weights = comparison.from_scratch(layer, head)
        (first, last), (start, end) = words.pieces[3], words.pieces[0]
        by_hand = sum(float(weights[q, start:end].sum()) for q in range(first, last)) / (last - first)
        assert says(visitor.figure(figure).point(3, 0)["from scratch"], by_hand)


def test_mean_over_heads(visitor: Visitor) -> None:
    visitor.open(average="all")
    run = probe.attend("bert", DEFAULT_TEXT)
    mean = sum(float(run.weights(layer, head)[11, 2]) for layer in range(6) for head in range(12)) / 72
    assert says(visitor.figure("compare-a").point(11, 2)["from scratch"], mean)


def test_keyboard_alone(visitor: Visitor) -> None:
    visitor.open(text=REPEATED, ah="0.5", aq="0")
    field = visitor.page.locator("#compare-a .af-panels")
    field.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown"):
        field.press(key)
    weights = probe.attend("bert", REPEATED).weights(0, 5)
    spoken = visitor.page.locator("#compare-a [aria-live]").text_content() or ""
    assert spoken.startswith("query cat2 → key the1")
    assert tells(spoken, f"from scratch {float(weights[2, 1]):.6f}")
    field.press("Enter")
    visitor.page.locator("#steps-trace [data-painted]").wait_for()
    assert visitor.page.locator(".st-where").text_content() == (
        "all-MiniLM-L6-v2, layer 0, head 5: the row of query cat2"
    )
