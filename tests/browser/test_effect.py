"""Effect: what is shown is what the toolkit says of the model with heads changed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial

import pytest
from browser.conftest import Visitor
from numbers_in_text import alike, says, tells
from playwright.sync_api import expect

import probe
from probe.ui.state import DEFAULT_HEADS, DEFAULT_TEXT
from probe.ui.views.effect import HOW, read_heads


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_a_head_of_a_model_that_predicts_words(visitor: Visitor) -> None:
    visitor.open("effect", on="b")
    place = DEFAULT_HEADS[1]
    result = probe.ablate("gpt2", DEFAULT_TEXT, [place])
    drawn = visitor.figure("effect-figure")
    assert alike(drawn.root.locator(".af-subtitle").text_content(), result.summary)
    weights = probe.attend("gpt2", DEFAULT_TEXT, [place]).weights(*place)
    for query, key in ((13, 12), (6, 4), (17, 0)):
        read = drawn.point(query, key)
        assert says(read["weight"], float(weights[query, key]))
        assert number(read["hidden state"]) == pytest.approx(float(result.hidden_change[query]), abs=1e-5)
    told = drawn.root.locator(".af-remark").all_text_contents()
    (change,) = result.changes
    for line, prediction in zip(told[1:3], (change.before, change.after), strict=True):
        for word, share in prediction.candidates:
            assert tells(line, f'"{word.strip() or word}" {share:.1%}')
    assert alike(told[3], f"Largest change of a logit there: {result.logit_change:.3g}")
    largest = float(weights[1:].max())
    assert told[0].startswith("Weight is not effect: ")
    assert tells(told[0], f"is {largest:.3f} (") and tells(told[0], f"by {change.divergence:.3g} nats")


def test_every_way_of_a_model_without_a_head_for_words(visitor: Visitor) -> None:
    visitor.open("effect")
    drawn = visitor.figure("effect-figure")
    for how in ("mean", "other mask"):
        choice = visitor.page.locator("#effect-how label", has_text=HOW[how])  # type: ignore[index]
        visitor.wait_for_new("effect-figure", choice.click)
        result = probe.ablate("bert", DEFAULT_TEXT, [(3, 1)], how)  # type: ignore[arg-type]
        assert alike(drawn.root.locator(".af-subtitle").text_content(), result.summary)
        for query in (0, 11, 16):
            read = number(drawn.point(query, 0)["hidden state"])
            assert read == pytest.approx(float(result.hidden_change[query]), abs=1e-5)


def test_several_heads_and_a_layer(visitor: Visitor) -> None:
    visitor.open("effect", on="b")
    box = visitor.page.locator("#effect-heads textarea, #effect-heads input")
    box.fill("4.5, 2.0 1")
    visitor.wait_for_new("effect-figure", lambda: box.press("Enter"))
    result = probe.ablate("gpt2", DEFAULT_TEXT, [(4, 5), (2, 0), 1])
    assert len(result.heads) == 8
    subtitle = visitor.page.locator("#effect-figure .af-subtitle")
    assert alike(subtitle.text_content(), result.summary)
    run = probe.attend("gpt2", DEFAULT_TEXT)
    mean = sum(float(run.weights(*place)[7, 3]) for place in result.heads) / 8
    assert says(visitor.figure("effect-figure").point(7, 3)["weight"], mean)


def test_heads_that_are_not_there_are_said_in_place(visitor: Visitor) -> None:
    visitor.open("effect")
    box = visitor.page.locator("#effect-heads textarea, #effect-heads input")
    for written, sentence in (
        ("third", "is neither a head"),
        ("9.0", "counted from 0 to 5"),
        ("1.2.3", "is neither a head"),
    ):
        box.fill(written)
        visitor.wait_for_new("effect-figure", lambda: box.press("Enter"))
        assert sentence in (visitor.page.locator("#effect-figure .af-notice").text_content() or "")


@pytest.mark.own_page
def test_all_heads_ranked(visitor: Visitor) -> None:
    visitor.open("effect", on="b")
    page = visitor.page
    page.locator("#rank").click()
    page.locator("#effect-progress [data-painted=done]").wait_for()
    expected = probe.rank_heads("gpt2", DEFAULT_TEXT)
    rows = page.locator("#effect-ranking tbody tr")
    assert rows.count() == 36
    for i, ablation in enumerate(expected.ablations[:6]):
        ((layer, head),) = ablation.heads
        cells = rows.nth(i).locator("th, td").all_text_contents()
        assert cells[0] == f"layer {layer}, head {head}"
        assert number(cells[1]) == pytest.approx(ablation.effect, abs=5.1e-4)
        assert cells[3] == ablation.changes[0].after.candidates[0][0].strip()
    # a row is a way to that head, and its effect is shown above
    ((layer, head),) = expected.ablations[2].heads
    visitor.wait_for_new("effect-figure", rows.nth(2).locator("button").click)
    subtitle = page.locator("#effect-figure .af-subtitle")
    assert alike(subtitle.text_content(), expected.ablations[2].summary)
    assert page.locator("#layer-b input[type=number]").input_value() == str(layer)
    assert page.locator("#head-b input[type=number]").input_value() == str(head)


@pytest.mark.own_page
def test_a_ranking_can_be_stopped(visitor: Visitor) -> None:
    visitor.open("effect", text=" ".join(["the old cat sat on a warm mat and slept"] * 40))
    page = visitor.page
    page.locator("#rank").click()
    page.get_by_text(re.compile(r"\d+ of 72 heads …")).wait_for()
    page.locator("#rank-stop").click()
    page.locator("#effect-progress [data-painted=stopped]").wait_for()
    # the server, which runs in this process, does not go on for nobody
    for thread in threading.enumerate():
        if thread.name == "ranking":
            thread.join(timeout=10)
            assert not thread.is_alive()
    assert page.locator("#effect-progress [data-painted=stopped]").count() == 1
    assert page.locator("#effect-ranking table").count() == 0
    assert page.locator("#rank-stop").is_hidden()
    # and it can be started again
    visitor.run("draw a map", "effect-figure")
    page.locator("#rank").click()
    page.locator("#effect-progress [data-painted=done]").wait_for()
    assert page.locator("#effect-ranking tbody tr").count() == 72


@pytest.mark.own_page
def test_stop_is_there_only_while_a_ranking_runs(visitor: Visitor) -> None:
    visitor.open("effect", text=" ".join(["the old cat sat on a warm mat and slept"] * 20))
    page = visitor.page
    stop = page.locator("#rank-stop")
    assert stop.is_hidden()
    page.locator("#rank").click()
    stop.wait_for()
    assert page.locator("#rank").is_disabled()
    # another text has another ranking: this one ends, and nothing of it stays
    visitor.run("draw a map", "effect-figure")
    page.wait_for_function("!document.querySelector('#rank').disabled")
    assert stop.is_hidden()
    page.wait_for_function("document.querySelector('#effect-progress').textContent.trim() === ''")


@pytest.mark.own_page
def test_a_ranking_goes_when_it_is_about_something_else(visitor: Visitor) -> None:
    visitor.open("effect", on="b", text="draw a map")
    page = visitor.page
    rows = page.locator("#effect-ranking tbody tr")
    how = page.locator("#effect-how label", has_text=HOW["mean"])
    other_model = page.locator("#effect-models").get_by_role("button").first
    shown_model = page.locator("#effect-models button[aria-pressed=true]")
    for change in (
        partial(visitor.run, "The cat sat on", "effect-figure"),
        partial(visitor.wait_for_new, "effect-figure", how.click),
        partial(visitor.wait_for_new, "effect-figure", other_model.click),
    ):
        page.locator("#rank").click()
        rows.first.wait_for()
        # another head is another figure; the ranking is about all of them
        slider = page.locator("#head-b input[type=range]")
        visitor.wait_for_new("effect-figure", partial(slider.press, "ArrowLeft"))
        assert rows.count() == 36
        change()
        rows.first.wait_for(state="detached")
        assert (page.locator("#effect-progress").text_content() or "").strip() == ""
        other = change.args[-1] == other_model.click
        expect(shown_model).to_contain_text("MiniLM" if other else "gpt2")


def test_small_screen_and_dark(visit: Callable[..., Visitor]) -> None:
    visitor = visit(width=390, height=844, color_scheme="dark")
    visitor.open("effect", on="b")
    visitor.page.locator("#effect-figure canvas").first.wait_for()
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_heads_as_written() -> None:
    assert read_heads("3.1, 4.5 2") == [(3, 1), (4, 5), 2]
    assert read_heads("  ") == []
