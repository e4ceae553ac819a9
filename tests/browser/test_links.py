"""Addresses of views that have questions of their own, and the lines of Python that say the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from browser.conftest import Visitor, views
from numbers_in_text import alike, tells

import probe
from probe.ui import links
from probe.ui.screen import Screen, look
from probe.ui.state import DEFAULT_HEADS, DEFAULT_TEXT, Asked, Focus, Session
from probe.ui.views.view import View

PAIR = ("The bank of the river is muddy.", 'The "bank" took my money & left.')
OWN = Asked(
    first=PAIR[0],
    second=PAIR[1],
    from_word="big",
    to_word="suitcase",
    versus="",
    how="mean",
    heads="4.5, 2",
    drawing="model",
)


def lines(shown: Screen) -> str:
    return views()[shown.view].python(shown)


def screen(view: str, asked: Asked = OWN, text: str = DEFAULT_TEXT) -> Screen:
    session = Session(text)
    halves = look(session, 0, 3, 1, None), look(session, 1, 4, 5, None)
    return Screen(session, halves, Focus(slot=1), view=view, asked=asked)


def read(query: str) -> Asked:
    return links.read(dict(parse_qsl(query.removeprefix("?"), keep_blank_values=True)), ("compare",)).asked


def test_an_address_carries_what_single_views_were_asked() -> None:
    assert read(links.query(screen("effect"))) == OWN
    assert read(links.query(screen("effect", Asked()))) == Asked()


def test_what_is_as_usual_stays_out_of_the_address() -> None:
    usual = links.query(screen("effect", Asked()))
    assert not any(
        f"{name}=" in usual for name in ("one", "other", "from", "to", "versus", "instead", "heads")
    )
    assert "one=" not in links.query(screen("sentences", Asked(first="word " * 101)))


def test_choices_that_there_are_not_are_the_usual_ones() -> None:
    assert read("?instead=nonsense&bertviz=nonsense") == Asked()
    assert read("?one=" + "x" * 10_001) == Asked()


def printed(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(code, {})
    return capsys.readouterr().out


def test_lines_for_two_sentences_say_which_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(lines(screen("sentences")), capsys)
    assert tells(out, str(probe.compare_texts("gpt2", *PAIR, 4, 5)))


def test_lines_for_effect_say_which_heads_and_how(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(lines(screen("effect")), capsys)
    assert tells(out, str(probe.ablate("gpt2", DEFAULT_TEXT, [(4, 5), 2], "mean")))
    assert tells(out, str(probe.rank_heads("gpt2", DEFAULT_TEXT, "mean")))


def test_lines_for_heads_say_which_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(lines(screen("heads")), capsys)
    assert tells(out, str(probe.find_heads("gpt2", DEFAULT_TEXT, "big", "suitcase")))
    assert tells(out, str(probe.measure_heads("gpt2", DEFAULT_TEXT)))


@pytest.mark.parametrize("heads", ["third", "9.0", "99"])
def test_lines_run_where_there_are_no_such_heads_or_words(
    capsys: pytest.CaptureFixture[str], heads: str
) -> None:
    asked = Asked(heads=heads, from_word="zebra")
    assert "ablate" not in lines(screen("effect", asked))
    assert "find_heads" not in lines(screen("heads", asked))
    printed(lines(screen("heads", asked, "draw a map")), capsys)


def code(visitor: Visitor) -> str:
    return visitor.page.locator("#share pre").text_content() or ""


def test_the_link_of_two_sentences(visit: Callable[..., Visitor], capsys: pytest.CaptureFixture[str]) -> None:
    first = visit()
    first.open("sentences", on="b")
    for letter, text in zip("ab", PAIR, strict=True):
        first.page.locator(f"#pair-{letter} textarea").fill(text)
    first.wait_for_new("sentences-both", first.page.locator("#pair-run").click)
    result = probe.compare_texts("gpt2", *PAIR, *DEFAULT_HEADS[1])
    first.page.wait_for_url("**one=**")
    second = visit(own=True)
    second.page.goto(first.page.url)
    subtitle = second.page.locator("#sentences-both .af-subtitle")
    subtitle.wait_for()
    assert subtitle.text_content() == first.page.locator("#sentences-both .af-subtitle").text_content()
    assert alike(subtitle.text_content(), result.summary)
    assert second.page.locator("#pair-b textarea").input_value() == PAIR[1]
    assert tells(printed(code(second), capsys), str(result))


def test_the_link_of_the_finder(visit: Callable[..., Visitor], capsys: pytest.CaptureFixture[str]) -> None:
    first = visit()
    first.open("heads")
    found = first.page.locator("#heads-found [data-painted]")
    found.wait_for()
    first.page.locator("#from-word").locator("textarea, input").fill("big")
    first.page.locator("#versus").locator("textarea, input").fill("")
    first.wait_for_new("heads-found", first.page.locator("#find").click)
    first.page.wait_for_url("**from=big**")
    assert parse_qs(urlsplit(first.page.url).query, keep_blank_values=True)["versus"] == [""]
    second = visit(own=True)
    second.page.goto(first.page.url)
    result = probe.find_heads("bert", DEFAULT_TEXT, "big", "trophy")
    line = second.page.locator("#heads-found .af-remark").first
    line.wait_for()
    assert alike(line.text_content(), result.summary)
    assert tells(printed(code(second), capsys), str(result))


def test_the_link_of_an_effect(visit: Callable[..., Visitor], capsys: pytest.CaptureFixture[str]) -> None:
    first = visit()
    first.open("effect", on="b")
    box = first.page.locator("#effect-heads").locator("textarea, input")
    box.fill("4.5, 2")
    first.wait_for_new("effect-figure", lambda: box.press("Enter"))
    mean = first.page.locator("#effect-how label", has_text="its mean")
    first.wait_for_new("effect-figure", mean.click)
    first.page.wait_for_url("**instead=mean**")
    result = probe.ablate("gpt2", DEFAULT_TEXT, [(4, 5), 2], "mean")
    second = visit(own=True)
    second.page.goto(first.page.url)
    subtitle = second.page.locator("#effect-figure .af-subtitle")
    subtitle.wait_for()
    assert alike(subtitle.text_content(), result.summary)
    assert second.page.locator("#effect-heads").locator("textarea, input").input_value() == "4.5, 2"
    assert second.page.locator("#effect-how input:checked").input_value() == "mean"
    assert tells(printed(code(second), capsys), str(result))


def test_the_link_of_bertvizs_model_view(visit: Callable[..., Visitor]) -> None:
    first = visit()
    first.open("bertviz", text="draw a map")
    first.page.locator("#bertviz-kind label").nth(1).click()
    first.page.wait_for_url("**bertviz=model**")
    second = visit(own=True)
    second.page.goto(first.page.url)
    second.page.locator("#bertviz-frames .bz-model iframe").first.wait_for()
    assert second.page.locator("#bertviz-kind input:checked").input_value() == "model"


def test_back_and_forward_go_between_views(visitor: Visitor) -> None:
    visitor.open()
    page = visitor.page
    for view in ("masks", "steps"):
        page.locator(f'#views [role=tab][data-tab-id="{view}"]').click()
        page.locator(f"#tab-{view} [data-painted]").first.wait_for()
        page.wait_for_url(f"**view={view}**")
    for go, view in ((page.go_back, "masks"), (page.go_back, "compare"), (page.go_forward, "masks")):
        go()
        page.locator(f'#views [role=tab][data-tab-id="{view}"][aria-selected=true]').wait_for()
        page.wait_for_url(f"**view={view}**")


@pytest.mark.own_page
def test_back_does_not_wait_for_an_answer(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked before Back, and is answered after it, makes no step in the history."""
    visitor.open()
    page = visitor.page
    tab = '#views [role=tab][data-tab-id="{}"]'.format
    page.locator(tab("masks")).click()
    page.wait_for_url("**view=masks**")
    steps, let_go, render = views()["steps"], threading.Event(), type(views()["steps"]).render

    def slow(self: View, screen: Screen) -> list[Any]:
        let_go.wait(30)
        return render(self, screen)

    monkeypatch.setattr(type(steps), "render", slow)
    length = page.evaluate("history.length")
    page.locator(tab("steps")).click()
    page.wait_for_timeout(300)
    page.go_back()
    page.wait_for_timeout(300)
    let_go.set()
    page.wait_for_url("**view=compare**")
    visitor.settle()
    for view, go in (("compare", page.go_forward), ("masks", page.go_back), ("compare", None)):
        page.locator(f"{tab(view)}[aria-selected=true]").wait_for()
        page.wait_for_url(f"**view={view}**")
        assert page.evaluate("history.length") == length
        if go is not None:
            go()
            visitor.settle()
