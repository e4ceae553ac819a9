""" "Copy as Python": the lines run, and give the numbers that the view shows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from browser.conftest import Visitor
from numbers_in_text import ROUNDING, ROUNDING_FLOAT64, alike, says, tells
from playwright.sync_api import Locator

from probe.ui.state import DEFAULT_TEXT

LONG = ("the cat and the dog " * 60).strip()  # 300 words, where gpt2-stories takes 256 tokens


def printed(code: Locator) -> list[Any]:
    """What the lines print, as it was given to print."""
    values: list[Any] = []
    exec(code.text_content() or "", {"print": values.append})
    return values


def cells(length: int) -> list[tuple[int, int]]:
    return [(length - 1, 0), (length - 1, length - 1), (length // 2, 1), (1, length - 2)]


@pytest.mark.parametrize(
    "query",
    [
        {"text": 'it\'s "quoted" \\ 中', "second": "and more", "ah": "2.3"},
        {"text": DEFAULT_TEXT, "average": "layer"},
        {"text": "draw a map", "average": "all"},
        {"text": LONG, "cut": "yes", "bh": "1.2"},
    ],
    ids=["pair", "mean of a layer", "mean of all", "cut"],
)
def test_compare(visitor: Visitor, query: dict[str, str]) -> None:
    visitor.open("compare", **query)
    verdicts = visitor.page.locator("#verdict").text_content() or ""
    values = printed(visitor.page.locator("#share pre"))
    for figure in ("compare-a", "compare-b"):
        assert tells(verdicts, values.pop(0))
        maps = []
        while values and not isinstance(values[0], str):
            maps.append(values.pop(0))
        drawn = visitor.figure(figure)
        assert len(drawn.tokens) == len(maps[0])
        for row, column in cells(len(maps[0])):
            read = drawn.point(row, column)
            for name, weights in zip(("from scratch", "model", "difference"), maps, strict=False):
                assert says(read[name], float(weights[row, column]))
    assert values == []


@pytest.mark.parametrize(
    "query",
    [{}, {"mask": "everywhere", "second": "And that was it.", "text": LONG, "cut": "yes"}],
    ids=["plain", "everywhere, pair, cut"],
)
def test_masks(visitor: Visitor, query: dict[str, str]) -> None:
    visitor.open("masks", **query)
    for figure, result in zip(
        ("masks-a", "masks-b"), printed(visitor.page.locator("#share pre")), strict=True
    ):
        drawn = visitor.figure(figure)
        assert alike(drawn.root.locator(".af-subtitle").text_content(), result.summary)
        assert result.whole_model == ("mask" in query)
        for row, column in cells(len(result.tokens)):
            read = drawn.point(row, column)
            for name, weights in (("causal", result.causal), ("bidirectional", result.bidirectional)):
                assert says(read[f"under {name}"], float(weights[row, column]))


@pytest.mark.parametrize(
    "query",
    [
        {"aq": "7"},
        {"second": "And that was it.", "text": LONG, "cut": "yes", "on": "b", "bq": "255"},
    ],
    ids=["plain", "pair, cut"],
)
def test_steps(visitor: Visitor, query: dict[str, str]) -> None:
    visitor.open("steps", **query)
    (trace,) = printed(visitor.page.locator("#share pre"))
    assert trace.query == int(query.get("aq") or query["bq"])
    where = visitor.page.locator(".st-where").text_content() or ""
    assert where.endswith(f"the row of query {trace.tokens[trace.query]}{trace.query}")
    rows = visitor.page.locator(".st-table").first.locator("tbody tr")
    assert rows.count() == len(trace.tokens)
    for key in (0, trace.query):
        shown = rows.nth(key).locator("td").all_text_contents()
        largest = float(trace.dot_products.abs().max())
        assert says(shown[0], float(trace.dot_products[key]), ROUNDING * max(1.0, largest))
        assert says(shown[4], float(trace.weights[key]))


@pytest.mark.parametrize("query", [{}, {"second": "And that was it.", "text": LONG, "cut": "yes"}])
def test_verify(visitor: Visitor, query: dict[str, str]) -> None:
    visitor.open("verify", **query)
    for figure, report in zip(
        ("verify-a", "verify-b"), printed(visitor.page.locator("#share pre")), strict=True
    ):
        drawn = visitor.figure(figure)
        assert tells(visitor.page.locator("#verdict").text_content(), report.verdict)
        for check in (report.heads[0], report.heads[9], report.heads[-1]):
            read = drawn.point(check.layer, check.head)["largest difference"]
            assert says(read, check.max_abs_error)


@pytest.mark.own_page
def test_a_list_of_texts(visitor: Visitor) -> None:
    visitor.open("verify", cut="yes")
    page = visitor.page
    page.get_by_text("Check more sentences").click()
    page.locator("#texts textarea").fill(f'draw a "map"\n{LONG}\n\nThe cat\x0csat')
    page.locator("#dtype label", has_text="float64").click()
    page.locator("#check").click()
    page.locator("#batch-progress [data-painted=done]").wait_for()
    page.locator("#batch-code pre").wait_for(state="attached")
    reports = printed(page.locator("#batch-code pre"))
    assert [report.dtype for report in reports] == ["float64"] * 6
    said = page.locator("#batch-progress .pg-line").all_text_contents()
    for slot, three in enumerate((reports[:3], reports[3:])):
        largest = max(report.max_abs_error for report in three)
        told = f"agree on 3 texts: largest difference {largest:.1e}."
        assert tells(said[slot], told, ROUNDING_FLOAT64)
        assert [report.texts[0] for report in three] == ['draw a "map"', LONG, "The cat\x0csat"]
        head = max(report.heads[5].max_abs_error for report in three)
        read = visitor.figure(f"batch-{'ab'[slot]}").point(0, 5)["largest difference"]
        assert says(read, head, ROUNDING_FLOAT64)


@pytest.mark.own_page
def test_a_list_with_a_text_that_one_model_refuses(visitor: Visitor) -> None:
    visitor.open("verify")
    page = visitor.page
    page.get_by_text("Check more sentences").click()
    page.locator("#texts textarea").fill(f"draw a map\n{LONG}\nThe cat sat")
    page.locator("#check").click()
    page.locator("#batch-progress [data-painted=done]").wait_for()
    said = page.locator("#batch-progress .pg-line").all_text_contents()
    assert said[2].startswith("–gpt2-stories, text 2: The text has 300 tokens")
    page.locator("#batch-code pre").wait_for(state="attached")
    reports = printed(page.locator("#batch-code pre"))
    assert {report.dtype for report in reports} == {"float32"}
    assert [(report.model, report.texts[0]) for report in reports] == [
        *(("all-MiniLM-L6-v2", text) for text in ("draw a map", LONG, "The cat sat")),
        *(("gpt2-stories", text) for text in ("draw a map", "The cat sat")),
    ]
    worst = max(reports[3:], key=lambda report: report.heads[0].max_abs_error)
    row = (
        page.locator("#batch-table-b tbody tr")
        .filter(has=page.locator("td:nth-child(1)", has_text="0"))
        .filter(has=page.locator("td:nth-child(2)", has_text=re.compile("^0$")))
    )
    text = {"draw a map": 1, "The cat sat": 3}[worst.texts[0]]
    assert (row.first.locator("td").last.text_content() or "").startswith(f"text {text}: ")
