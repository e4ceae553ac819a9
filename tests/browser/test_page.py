"""The page as a whole: links, visitors apart from each other, refused and hostile input, small screens."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from browser.conftest import Visitor
from fake_hub import FakeHub, instead_of_the_hub
from numbers_in_text import says
from playwright.sync_api import Page

import probe
from probe.analyses.result import RESULTS
from probe.running.words import group_words
from probe.ui.limits import MAX_CHARACTERS
from probe.ui.state import DEFAULT_HEADS, DEFAULT_TEXT
from tiny import GPT2_STORIES

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "${alert(1)} {{constructor.constructor('alert(1)')()}} `",
    "a\x00b",
    "🙂 \u202eright to left\u202c \u0000",
)


def test_a_link_opens_the_same_view(visit: Callable[..., Visitor]) -> None:
    first = visit()
    first.open("compare", text="draw a map", ah="1.8")
    first.page.locator("#words input").check()
    first.page.locator("#compare-b .af-chip").nth(1).click()
    words = group_words(probe.compare("gpt2", "draw a map").encoding)
    first.page.wait_for_url(f"**bq={words.pieces[1][0]}&**")
    first.page.get_by_role("tab", name="Steps").click()
    first.page.wait_for_url("**view=steps**")
    query = parse_qs(urlsplit(first.page.url).query)
    assert query["text"] == ["draw a map"] and query["ah"] == ["1.8"] and query["words"] == ["yes"]
    second = visit(own=True)
    second.page.goto(first.page.url)
    second.page.locator("#steps-trace [data-painted]").wait_for()
    where = second.page.locator(".st-where").text_content()
    assert where == first.page.locator(".st-where").text_content()
    assert second.page.locator("#sentence textarea").input_value() == "draw a map"
    assert second.page.locator("#layer-a input[type=number]").input_value() == "1"
    assert second.page.locator("#head-a input[type=number]").input_value() == "8"
    assert second.page.locator("#words input").is_checked()


@pytest.mark.parametrize("query", [{"ah": "99.99", "aq": "9999"}, {"ah": "x", "view": "nothing", "text": ""}])
def test_a_link_that_makes_no_sense_shows_the_nearest_thing(visitor: Visitor, query: dict[str, str]) -> None:
    visitor.go(query)
    visitor.page.locator("#compare-a .af-panels").wait_for()
    if query.get("ah") == "99.99":
        assert visitor.page.locator("#layer-a input[type=number]").input_value() == "5"


@pytest.mark.own_page
def test_opening_a_view_asks_for_no_other(visitor: Visitor) -> None:
    asked: list[dict[str, Any]] = []
    joined = "/gradio_api/queue/join"
    visitor.page.on("request", lambda sent: asked.append(sent.post_data_json) if joined in sent.url else None)
    visitor.open("masks")
    visitor.page.wait_for_timeout(500)
    # A view that draws by itself is asked for with a state alone, whose value the browser does not know.
    assert [one["data"] for one in asked if one["data"] == [None]] == []
    assert [one["data"] for one in asked if not one["data"]] == [[]]  # the page itself


def test_two_visitors_see_only_their_own(visit: Callable[..., Visitor]) -> None:
    one, two = visit(), visit()
    one.open()
    two.open()
    one.run("draw a map")
    two.run("The cat sat on")
    slider = one.page.locator("#head-a input[type=range]")
    one.wait_for_new("compare-a", lambda: slider.press("ArrowRight"))
    slider = two.page.locator("#head-a input[type=range]")
    two.wait_for_new("compare-a", lambda: slider.press("ArrowRight"))
    assert one.figure("compare-a").tokens[1:-1] == ["draw", "a", "map"]
    assert two.figure("compare-a").tokens[1:-1] == ["The", "cat", "sat", "on"]
    fresh = visit(own=True)
    fresh.open()
    assert fresh.page.locator("#sentence textarea").input_value() == DEFAULT_TEXT


def test_the_half_that_can_take_the_text_is_shown(visitor: Visitor) -> None:
    visitor.open()
    text = "word " * 300  # 302 tokens for BERT, 300 and more for the small GPT-2, which takes 256
    visitor.run(text)
    notice = visitor.page.locator("#compare-b .af-notice").text_content() or ""
    tokens = len(probe.attend("gpt2", text, truncate=True).tokens)
    assert notice.endswith(f'takes at most {tokens}. Shorten it, or tick "Cut texts that are too long".')
    assert len(visitor.figure("compare-a").tokens) == 302
    visitor.run("The cat sat on", "compare-b")
    assert visitor.figure("compare-b").tokens == ["The", "cat", "sat", "on"]


@pytest.mark.own_page
def test_a_text_that_is_too_long_is_cut_in_the_views(visitor: Visitor) -> None:
    text = ("the cat and the dog " * 60).strip()  # 300 words, where gpt2-stories takes 256 tokens
    cut = "Cut to the first 256 of 300 tokens, all that this model takes."
    page = visitor.page
    visitor.open()
    visitor.run(text, "compare-b")
    assert page.locator("#compare-b .af-panels").count() == 0
    visitor.wait_for_new("compare-b", page.locator("#truncate input").check)
    page.wait_for_url("**cut=yes**")
    assert page.locator("#compare-b .af-notice").text_content() == cut
    place = DEFAULT_HEADS[1]
    weights = probe.attend("gpt2", text, [place], truncate=True).weights(*place)
    page.locator("#compare-b .af-chip").nth(255).click()
    key = int(weights[255].argmax())
    assert float(visitor.figure("compare-b").point(255, key)["model"]) == pytest.approx(
        float(weights[255, key]), abs=5e-6
    )
    for tab, notice in (
        ("Masks", "#masks-b .af-notice"),
        ("Steps", "#steps-trace .af-notice"),
        ("Heads", "#heads-maps"),
        ("bertviz", "#bertviz-frames"),
    ):
        page.get_by_role("tab", name=tab, exact=True).click()
        if tab == "Steps":  # from here on, the views of one model show this one
            page.get_by_role("button", name="gpt2-stories", exact=True).click()
        page.locator(notice, has_text=cut).wait_for()
    page.get_by_role("tab", name="Verify").click()
    page.get_by_text("Check more sentences").click()
    page.locator("#texts textarea").fill(f"draw a map\n{text}")
    page.locator("#check").click()
    page.locator("#batch-b .af-notice", has_text=f"Text 2: {cut}").wait_for()


def test_an_unknown_model_is_one_sentence(visitor: Visitor) -> None:
    visitor.open()
    box = visitor.page.locator("#model-a input")
    box.fill("<img src=x onerror=alert(1)>")
    visitor.wait_for_new("compare-a", lambda: box.press("Enter"))
    notice = visitor.page.locator("#compare-a .af-notice").text_content() or ""
    assert notice.startswith('There is no model "<img src=x onerror=alert(1)>"')
    assert visitor.page.locator("#compare-b .af-panels").is_visible()


def shown_tokens(model: str, text: str) -> list[str]:
    run = probe.attend(model, text)
    return [token for token, hide in zip(run.tokens, run.special, strict=True) if not hide]


def test_hostile_text_in_the_address_is_text_in_every_view(visitor: Visitor) -> None:
    text = " ".join(HOSTILE)
    visitor.open(text=text, special="hidden")
    assert visitor.figure("compare-a").tokens == shown_tokens("bert", text)
    assert visitor.figure("compare-b").tokens == shown_tokens("gpt2", text)
    for view in ("Masks", "Steps", "Verify"):
        visitor.page.get_by_role("tab", name=view).click()
        visitor.page.locator(f"#tab-{view.lower()} [data-painted]").first.wait_for()
    assert visitor.page.locator("#views img, #share img, #verdict img").count() == 0


def test_hostile_text_that_is_typed_is_text(visitor: Visitor) -> None:
    visitor.open(special="hidden")
    for text in HOSTILE:
        visitor.run(text)
        assert visitor.figure("compare-a").tokens == shown_tokens("bert", text)
        assert visitor.figure("compare-b").tokens == shown_tokens("gpt2", text)
    assert visitor.page.locator("#views img, #share img, #verdict img").count() == 0


def test_refused_text_is_one_sentence(visitor: Visitor) -> None:
    visitor.open()
    too_long = "x" * (MAX_CHARACTERS + 1)
    for text, message in (("   ", "only spaces"), (too_long, f"at most {MAX_CHARACTERS:,}")):
        visitor.run(text)
        for figure in ("compare-a", "compare-b"):
            assert message in (visitor.page.locator(f"#{figure} .af-notice").text_content() or "")
    visitor.run("The cat sat on")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only(visit: Callable[..., Visitor], scheme: str) -> None:
    visitor = visit(width=390, height=844, color_scheme=scheme, device_scale_factor=3, has_touch=True)
    visitor.open()
    for view in ("Masks", "Steps", "Verify", "Compare"):
        visitor.page.get_by_role("tab", name=view).tap()
        visitor.page.locator(f"#tab-{view.lower()} [data-painted]").first.wait_for()
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visitor.page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")


def test_nothing_sticks_out_on_a_small_phone(visit: Callable[..., Visitor]) -> None:
    visitor = visit(width=375, height=700, has_touch=True)
    visitor.open()
    # What scrolls by itself, as the examples do, may be wider than the screen.
    outside = """width => [...document.querySelectorAll("#controls *")].filter((node) => {
        const box = node.getBoundingClientRect();
        return box.width && !node.closest("#examples") && (box.left < 0 || box.right > width);
    }).map((node) => node.outerHTML.slice(0, 200))"""
    for width in (375, 320):
        visitor.page.set_viewport_size({"width": width, "height": 700})
        assert visitor.page.evaluate(outside, width) == []


def test_controls_have_names_of_their_own(look: Callable[..., Visitor]) -> None:
    visitor = look()
    controls = visitor.page.locator("#controls")
    for role in ("slider", "spinbutton", "checkbox", "textbox", "combobox", "listbox"):
        names = [
            re.sub(r"\s+", " ", line.strip())
            for line in controls.aria_snapshot().splitlines()
            if line.strip().startswith(f"- {role} ")
        ]
        assert len(set(names)) == len(names), names
    for letter in "AB":
        for what, largest in (("Layer", 5), ("Head", 11 if letter == "A" else 5)):
            slider = controls.get_by_role("slider", name=re.compile(f"{what} of {letter}$"))
            assert slider.get_attribute("max") == str(largest)


@pytest.mark.own_page
def test_the_foot_of_the_page_lists_the_endpoints_and_there_is_no_other_page(visitor: Visitor) -> None:
    visitor.open()
    assert visitor.page.get_by_text("Home", exact=True).count() == 0
    missing: list[str] = []
    visitor.page.on("response", lambda got: missing.append(got.url) if got.status == 404 else None)
    visitor.page.get_by_role("button", name="Use via API").click()
    for kind in RESULTS.values():
        visitor.page.get_by_text(f"/{kind.analysis.__name__}", exact=True).first.wait_for()
    # Gradio asks whether there is an MCP server, and there is none.
    assert len(missing) == len(visitor.complaints) and all("/mcp/" in url for url in missing)
    visitor.complaints.clear()


@pytest.mark.own_page
def test_a_run_is_shown_in_the_view_that_was_just_opened(visitor: Visitor) -> None:
    visitor.open()
    visitor.page.locator("#sentence textarea").fill("draw a map")
    visitor.page.get_by_role("tab", name="Masks").click()
    visitor.page.locator("#sentence textarea").press("Enter")
    visitor.page.get_by_role("tab", name="Verify").click()
    visitor.page.get_by_role("tab", name="Masks").click()
    visitor.page.locator("#masks-a .af-chip", has_text="map").wait_for()


def test_what_is_asked_while_an_answer_is_awaited_is_answered_too(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sentences in a row: the second one stays on the page."""
    visitor.open("compare")
    let_go, compare = threading.Event(), probe.compare

    def slow(*args: Any, **options: Any) -> probe.Comparison:
        let_go.wait(30)
        return compare(*args, **options)

    monkeypatch.setattr(probe, "compare", slow)
    box = visitor.page.locator("#sentence textarea")
    for sentence in ("the first of two", "and the second"):
        box.fill(sentence)
        box.press("Enter")
        visitor.page.wait_for_timeout(500)
    let_go.set()
    tokens = [token.strip() for token in compare("gpt2", "and the second").encoding.tokens]
    visitor.page.wait_for_function(
        "tokens => [...document.querySelectorAll('#compare-b .af-chip > span')]"
        ".map((chip) => chip.textContent.trim()).join('|') === tokens.join('|')",
        arg=tokens,
    )
    assert box.input_value() == "and the second"


def test_a_wide_screen_is_used(visit: Callable[..., Visitor]) -> None:
    visitor = visit(width=2560, height=1440)
    visitor.open()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 2560
    assert visitor.page.locator("#compare-a .af").bounding_box()["width"] > 1500  # type: ignore[index]


def wait_until(page: Page, what: Callable[[], bool]) -> None:
    """Until something on the server is true, or twenty seconds have passed."""
    for _ in range(200):
        if what():
            return
        page.wait_for_timeout(100)
    pytest.fail("it never came to that")


@pytest.mark.own_page
def test_a_download_is_shown_and_ends_when_it_is_given_up(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, cache, page = "someone/a-large-model", tmp_path / "hub", visitor.page
    visitor.open()
    before = page.locator("#verdict .pg-line").all_text_contents()
    box = page.locator("#model-a input")
    with instead_of_the_hub(monkeypatch, FakeHub(name, GPT2_STORIES), cache) as hub:
        hub.flow.clear()
        box.fill(name)
        box.press("Enter")
        page.get_by_text(re.compile(rf"Loading {name}: 0\.[1-9] MB so far")).wait_for()
        page.get_by_role("button", name="Give up loading").click()
        page.wait_for_function("document.querySelector('#model-a input').value.startsWith('all-MiniLM')")
        assert page.locator("#verdict .pg-line").all_text_contents() == before
        wait_until(page, lambda: not hub.sending)
        wait_until(page, lambda: not list(cache.rglob("*.incomplete")))
        visitor.run("draw a map")
        hub.asked.clear()
        box.fill(name)
        box.press("Enter")
        page.get_by_text(f"Loading {name}").wait_for()
        hub.flow.set()
        page.locator("#compare-a .af-title", has_text=name).wait_for()
        assert hub.asked == ["model.safetensors"]  # it went on from where it was
        weights = probe.attend("gpt2-stories", "draw a map").weights(3, 1)
        assert says(visitor.figure("compare-a").point(2, 1)["model"], float(weights[2, 1]))


def test_a_download_that_fails_leaves_the_page_working(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    visitor.open()
    box = visitor.page.locator("#model-a input")
    with instead_of_the_hub(monkeypatch, FakeHub("someone/a-large-model", GPT2_STORIES), tmp_path / "hub"):
        box.fill("someone/no-model")
        box.press("Enter")
        refused = 'The Hub has no public model "someone/no-model": check the spelling, owner included.'
        visitor.page.locator("#compare-a .af-notice", has_text=refused).wait_for()
    assert visitor.figure("compare-b").root.locator(".af-panels").is_visible()
    visitor.run("draw a map", "compare-b")


def test_a_link_downloads_nothing(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *_: object) -> None:
        pytest.fail(f"{name} was downloaded")

    monkeypatch.setattr("probe.models.hub.download", refuse)
    monkeypatch.setattr("probe.ui.store.download", refuse)
    visitor.open(a="someone/another-model")
    notice = visitor.page.locator("#compare-a .af-notice").text_content() or ""
    assert notice.startswith('"someone/another-model" is not on this machine yet')
    assert visitor.figure("compare-b").root.locator(".af-panels").is_visible()
