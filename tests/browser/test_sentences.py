"""Two sentences: what is shown is what the toolkit says of the same head on both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browser.conftest import Visitor
from numbers_in_text import alike

import probe
from probe.ui.limits import MAX_CHARACTERS
from probe.ui.state import DEFAULT_HEADS, Asked

DEFAULT_PAIR = (Asked().first, Asked().second)


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))


def type_pair(visitor: Visitor, first: str, second: str) -> None:
    visitor.page.locator("#pair-a textarea").fill(first)
    visitor.page.locator("#pair-b textarea").fill(second)
    visitor.wait_for_new("sentences-a", visitor.page.locator("#pair-run").click)


@pytest.mark.parametrize(
    ("slot", "model", "layer", "head"), [("a", "bert", *DEFAULT_HEADS[0]), ("b", "gpt2", *DEFAULT_HEADS[1])]
)
def test_both_maps_and_what_changes(visitor: Visitor, slot: str, model: str, layer: int, head: int) -> None:
    visitor.open("sentences", on=slot)
    result = probe.compare_texts(model, *DEFAULT_PAIR, layer, head)
    for figure, name, side in (
        ("sentences-a", "first", result.first),
        ("sentences-b", "second", result.second),
    ):
        drawn = visitor.figure(figure)
        assert tuple(drawn.tokens) == side.tokens
        for query, key in ((1, 0), (4, 2), (2, 2)):
            read = number(drawn.point(query, key)[name])
            assert read == pytest.approx(float(side.weights[query, key]), abs=1e-5)
    both = visitor.figure("sentences-both")
    assert alike(both.root.locator(".af-subtitle").text_content(), result.summary)
    assert len(result.pairs) >= 2
    for row, (first, second) in enumerate(result.pairs):
        read_all = both.point(row, 0)
        key = result.pairs[0]
        values = {
            "first": result.first.weights[first, key[0]],
            "second": result.second.weights[second, key[1]],
            "change": result.difference[row, 0],
            "elsewhere": result.moved[row],
        }
        for short, value in values.items():
            assert number(read_all[short]) == pytest.approx(float(value), abs=1e-5)


def test_a_pair_of_ones_own_and_another_head(visitor: Visitor) -> None:
    first, second = "The bank of the river is muddy.", "The bank took my money."
    visitor.open("sentences")
    type_pair(visitor, first, second)
    result = probe.compare_texts("bert", first, second, 3, 1)
    subtitle = visitor.page.locator("#sentences-both .af-subtitle")
    assert alike(subtitle.text_content(), result.summary)
    slider = visitor.page.locator("#head-a input[type=range]")
    visitor.wait_for_new("sentences-both", lambda: slider.press("ArrowRight"))
    assert alike(subtitle.text_content(), probe.compare_texts("bert", first, second, 3, 2).summary)
    # what is typed above is another sentence, and changes nothing here
    assert visitor.figure("sentences-a").tokens == list(result.first.tokens)


def test_texts_without_a_common_token(visitor: Visitor) -> None:
    visitor.open("sentences", on="b")
    type_pair(visitor, "Rain fell", "a cat")
    told = visitor.page.locator("#sentences-both .af-notice").text_content() or ""
    assert told.endswith("the two texts share no token, so there is nothing to compare.")


def test_what_can_not_be_taken_is_said_in_place(visitor: Visitor) -> None:
    visitor.open("sentences")
    for first, second, sentence in (
        ("", "a cat", "The first sentence: "),
        ("a cat", "x" * (MAX_CHARACTERS + 1), f"at most {MAX_CHARACTERS:,}"),
        ("a cat", "word " * 600, "The second sentence: "),
    ):
        type_pair(visitor, first, second)
        assert sentence in (visitor.page.locator("#sentences-a .af-notice").text_content() or "")
        assert visitor.page.locator("#sentences-b canvas, #sentences-both canvas").count() == 0
    type_pair(visitor, *DEFAULT_PAIR)
    visitor.page.locator("#sentences-both canvas").first.wait_for()


def test_tokens_are_text_and_nothing_else(visitor: Visitor) -> None:
    hostile = '<img src=x onerror="alert(1)"> great'
    visitor.open("sentences")
    type_pair(visitor, hostile, "great </script><script>alert(1)</script>")
    assert visitor.figure("sentences-a").tokens == list(probe.attend("bert", hostile).tokens)
    assert visitor.page.locator("#tab-sentences .af img, #tab-sentences .af script").count() == 0


def test_small_screen_and_dark(visit: Callable[..., Visitor]) -> None:
    visitor = visit(width=390, height=844, color_scheme="dark")
    visitor.open("sentences")
    visitor.page.locator("#sentences-both canvas").first.wait_for()
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
