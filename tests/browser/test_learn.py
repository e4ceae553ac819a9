"""The course: what a learner sees is what the examples say, and nothing typed is ever lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from browser.conftest import Figure, Visitor
from playwright.sync_api import Locator, expect

from attention.examples import DRAW_A_MAP, THE_CAT_SAT_ON
from probe.ui.views.learn import CHAPTERS, TITLES, lessons

IDS = [chapter.id for chapter in CHAPTERS]


def shown(visitor: Visitor, chapter: str) -> Locator:
    return visitor.page.locator(f"#learn-{chapter}-shown .ln")


@pytest.fixture
def learner(look: Callable[..., Visitor]) -> Visitor:
    """The course for tests that read steps which no other such test edits."""
    return look("learn")


def turn_to(visitor: Visitor, chapter: str) -> None:
    if visitor.page.url == "about:blank":
        visitor.go({"view": "learn"})
    visitor.page.locator("#learn-steps label").nth(IDS.index(chapter)).click()
    shown(visitor, chapter).wait_for()


def type_in(visitor: Visitor, chapter: str, field: str, text: str) -> None:
    """Type, and wait for the answer."""
    before = shown(visitor, chapter).get_attribute("data-painted")
    visitor.page.locator(f"#learn-{chapter}-{field}").locator("textarea, input").first.fill(text)
    visitor.page.wait_for_function(
        "([id, before]) => { const now = document.querySelector(`#learn-${id}-shown .ln`);"
        " const problem = document.querySelector(`#learn-${id}-problem p`);"
        " return problem || (now && now.dataset.painted !== before); }",
        arg=[chapter, before],
    )


def table(visitor: Visitor, chapter: str, caption: str) -> list[list[str]]:
    """The cells of a table, row by row, without labels."""
    found = shown(visitor, chapter).locator(
        "table", has=visitor.page.locator(f"caption:text-is('{caption}')")
    )
    rows: list[list[str]] = found.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    return rows


def numbers(rows: list[list[str]]) -> list[list[float]]:
    return [[float(cell.replace("−", "-").replace(",", "").rstrip("%")) for cell in row] for row in rows]


def test_every_step_opens_with_formulas_and_something_to_try(learner: Visitor) -> None:
    for chapter, title in zip(CHAPTERS, TITLES, strict=True):
        turn_to(learner, chapter.id)
        part = learner.page.locator(f"#learn-{chapter.id}")
        expect(part.locator("h2").first).to_have_text(title)
        assert part.locator(".prose.learn-try li").count() == len(chapter.tries) >= 2
        assert part.locator(".katex-error").count() == 0
        if "$" in chapter.text:
            assert part.locator(".katex .katex-html").count() >= 1
            assert "$" not in (part.locator(".prose.learn-text").inner_text())
        assert learner.page.locator(".learn-part:visible").count() == 1
        expect(learner.page.locator("#learn-previous")).to_be_enabled(enabled=chapter is not CHAPTERS[0])
        expect(learner.page.locator("#learn-next")).to_be_enabled(enabled=chapter is not CHAPTERS[-1])


@pytest.mark.own_page
def test_only_the_first_step_comes_with_the_page(visitor: Visitor) -> None:
    visitor.open("compare")
    assert visitor.page.locator(".learn-part").count() == 0
    visitor.page.get_by_role("tab", name="Learn").click()
    shown(visitor, "look-up").wait_for()
    assert visitor.page.locator(".learn-part .ln").count() == 1


def test_draw_a_map(learner: Visitor) -> None:
    turn_to(learner, "by-hand")
    assert numbers(table(learner, "by-hand", "Output")) == [list(row) for row in DRAW_A_MAP.output]
    weights = torch.tensor(numbers(table(learner, "by-hand", "softmax of each row")))
    torch.testing.assert_close(weights[0], torch.tensor(DRAW_A_MAP.first_weights), rtol=0, atol=5e-4)
    figure = Figure(learner.page.locator("#learn-by-hand-map"))
    read = figure.point(2, 2)
    assert read["where"].split(" → ") == ["query map2", "key map2"]
    assert float(read["Weights"]) == pytest.approx(DRAW_A_MAP.last_weight_on_itself, abs=5e-4)


def test_the_cat_sat_on(learner: Visitor) -> None:
    turn_to(learner, "causal")
    percentages = numbers(table(learner, "causal", "The same in per cent"))
    assert percentages == [list(row) for row in THE_CAT_SAT_ON.percentages]
    assert table(learner, "causal", "Divided by that") == table(learner, "causal", "Their softmax")
    assert table(learner, "causal", "Scores, masked")[0] == ["0.8", "−∞", "−∞", "−∞"]
    figure = Figure(learner.page.locator("#learn-causal-map"))
    scores = lessons.read_matrix(str(CHAPTERS[IDS.index("causal")].fields[1].value), "scores")
    causal = lessons.mask_both_ways(scores).causal
    for query, key in ((1, 0), (2, 1), (3, 2)):
        assert float(figure.point(query, key)["Weights"]) == pytest.approx(
            float(causal[query, key]), abs=1e-6
        )


@pytest.mark.own_page
def test_a_score_in_the_future_changes_nothing_that_is_kept(visitor: Visitor) -> None:
    turn_to(visitor, "causal")
    kept, all_of_it = (table(visitor, "causal", name) for name in ("Their softmax", "Weights without a mask"))
    type_in(visitor, "causal", "scores", "0.8 0.5 1.1 9\n0.3 0.9 1.3 0.4\n0.2 1.4 0.7 0.9\n0.1 0.6 1.2 0.4")
    assert table(visitor, "causal", "Their softmax") == kept == table(visitor, "causal", "Divided by that")
    assert table(visitor, "causal", "Weights without a mask") != all_of_it


@pytest.mark.own_page
def test_an_edited_input_gives_new_numbers_and_a_new_map(visitor: Visitor) -> None:
    turn_to(visitor, "by-hand")
    before = visitor.page.locator("#learn-by-hand-map [data-painted]").get_attribute("data-painted")
    type_in(visitor, "by-hand", "w_query", "0 0\n0 0")
    thirds = numbers(table(visitor, "by-hand", "softmax of each row"))
    assert thirds == [[0.3333] * 3] * 3
    visitor.page.wait_for_function(
        "before => document.querySelector('#learn-by-hand-map [data-painted]').dataset.painted !== before",
        arg=before,
    )
    read = Figure(visitor.page.locator("#learn-by-hand-map")).point(0, 1)
    assert float(read["Weights"]) == pytest.approx(1 / 3, abs=1e-6)


@pytest.mark.own_page
def test_what_is_no_number_gets_a_sentence_and_nothing_is_lost(visitor: Visitor) -> None:
    turn_to(visitor, "by-hand")
    before = table(visitor, "by-hand", "Output")
    type_in(visitor, "by-hand", "words", "draw 1.16 0.23\na 0.57 <b>x</b>\nmap 4.41 -2.16")
    problem = visitor.page.locator("#learn-by-hand-problem")
    expect(problem).to_have_text(
        "The words, line 2: '<b>x</b>' is not a number; write numbers such as 1.5 with spaces between them."
    )
    assert table(visitor, "by-hand", "Output") == before
    assert (
        visitor.page.locator("#learn-by-hand-words textarea")
        .input_value()
        .startswith("draw 1.16 0.23\na 0.57 <b>")
    )
    visitor.page.locator("#learn-by-hand-words textarea").fill("draw 1.16 0.23\na 0.57 1.36")
    expect(problem).to_have_text("")
    assert len(table(visitor, "by-hand", "Output")) == 2


@pytest.mark.own_page
def test_inputs_are_still_there_on_the_way_back(visitor: Visitor) -> None:
    turn_to(visitor, "shares")
    type_in(visitor, "shares", "scores", "1 -1")
    expect(shown(visitor, "shares")).to_contain_text("The scores sum to 0, and nothing can be divided by 0.")
    visitor.page.locator("#learn-next").click()
    shown(visitor, "no-weights").wait_for()
    visitor.page.locator("#learn-previous").click()
    shown(visitor, "shares").wait_for()
    assert visitor.page.locator("#learn-shares-scores").locator("textarea, input").input_value() == "1 -1"
    expect(shown(visitor, "shares")).to_contain_text("The scores sum to 0, and nothing can be divided by 0.")
    # and after a look at another view and a run of another text
    visitor.page.get_by_role("tab", name="Compare").click()
    visitor.run("Rain fell.")
    visitor.page.get_by_role("tab", name="Learn").click()
    shown(visitor, "shares").wait_for()
    assert visitor.page.locator("#learn-shares-scores").locator("textarea, input").input_value() == "1 -1"


def test_dividing_by_the_sum_and_overflow(learner: Visitor) -> None:
    turn_to(learner, "shares")
    rows = table(learner, "shares", "Scores, and five ways to read them")
    assert [row[0] for row in rows] == ["100%", "50%", "−50%"]
    assert [row[2] for row in rows] == ["7.389", "2.718", "0.368"]
    assert rows[0][3] == "70.5%"
    type_in(learner, "shares", "shift", "1000")
    rows = table(learner, "shares", "Scores, and five ways to read them")
    assert [row[3] for row in rows] == ["70.5%", "25.9%", "3.5%"]
    assert [row[4] for row in rows] == ["not a number"] * 3


def test_positions_make_the_order_matter(learner: Visitor) -> None:
    turn_to(learner, "order")
    expect(shown(learner, "order")).to_contain_text("attention can't tell them apart")
    learner.page.locator("#learn-order-positions label").nth(1).click()
    expect(shown(learner, "order")).to_contain_text("attention now knows where each word stands")


def test_the_lines_of_the_chart_are_the_numbers_of_the_table(learner: Visitor) -> None:
    turn_to(learner, "scale")
    points = shown(learner, "scale").locator("svg").first.locator("circle.ln-main title").all_text_contents()
    rows = table(learner, "scale", "The numbers, by width d")
    assert len(points) == len(rows) == 10
    for point, row in zip(points, rows, strict=True):
        assert float(point.split(": ")[-1]) == pytest.approx(float(row[2]), abs=6e-4)


def test_heads_in_a_slider(learner: Visitor) -> None:
    turn_to(learner, "heads")
    assert numbers(table(learner, "heads", "Output, split (head.number)")) == [
        list(row) for row in DRAW_A_MAP.two_heads_output
    ]
    type_in(learner, "heads", "heads", "4")
    assert table(learner, "heads", "What it takes") == [["20", "288", "48"], ["5", "288", "48"]]
    expect(learner.page.locator("#learn-heads-map .af-panel")).to_have_count(4)


def test_nothing_is_wider_than_a_phone(visit: Callable[..., Visitor]) -> None:
    visitor = visit(own=True, width=390, height=844)
    for chapter in CHAPTERS:
        turn_to(visitor, chapter.id)
        assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), chapter.id
