"""All heads, their measures, the finder and rollout: what is shown is what the toolkit says."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from browser.conftest import Visitor
from numbers_in_text import alike, says, tells
from playwright.sync_api import Locator, expect

import probe
from probe.analyses.measures import MEASURES
from probe.display.page import compact
from probe.ui.state import DEFAULT_HEADS, DEFAULT_TEXT, Asked


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def open_heads(visitor: Visitor, **query: str) -> None:
    visitor.open("heads", **query)
    visitor.page.locator("#heads-measures [data-painted]").wait_for()


def look_at_heads(look: Callable[..., Visitor], **query: str) -> Visitor:
    visitor = look("heads", **query)
    visitor.page.locator("#heads-measures [data-painted]").wait_for()
    return visitor


def point(visitor: Visitor, layer: int, head: int, row: int, col: int, size: int) -> str:
    """Point at a cell of a small map; what is read out."""
    canvas = visitor.page.locator(".hd-all canvas")
    plan = {name: float(value) for name, value in canvas.evaluate("canvas => ({...canvas.dataset})").items()}
    cell = plan["tile"] / size
    canvas.hover(
        position={
            "x": plan["left"] + plan["pitch"] * head + cell * (col + 0.5),
            "y": plan["top"] + plan["pitch"] * layer + cell * (row + 0.5),
        }
    )
    return visitor.page.locator(".hd-readout").text_content() or ""


def click_head(visitor: Visitor, layer: int, head: int) -> None:
    canvas = visitor.page.locator(".hd-all canvas")
    plan = {name: float(value) for name, value in canvas.evaluate("canvas => ({...canvas.dataset})").items()}
    canvas.click(
        position={
            "x": plan["left"] + plan["pitch"] * head + plan["tile"] / 2,
            "y": plan["top"] + plan["pitch"] * layer + plan["tile"] / 2,
        }
    )


def rows(table: Locator) -> list[list[str]]:
    cells: list[list[str]] = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return cells


@pytest.mark.parametrize(("slot", "name"), [("a", "bert"), ("b", "gpt2")])
def test_the_number_under_the_pointer(look: Callable[..., Visitor], slot: str, name: str) -> None:
    visitor = look_at_heads(look, **({} if slot == "a" else {"on": slot}))
    run = probe.attend(name, DEFAULT_TEXT)
    size = len(run.tokens)
    for layer, head, row, col in ((0, 0, 0, 0), (3, 1, 11, 2), (5, 5, 9, 4), (2, 4, 3, 8), (4, 5, 12, 11)):
        read = point(visitor, layer, head, row, col, size)
        where, weight = read.removesuffix(" (masked)").rsplit(": ", 1)
        assert where == (
            f"layer {layer}, head {head} · query {row} {run.tokens[row]} → key {col} {run.tokens[col]}"
        )
        assert number(weight) == pytest.approx(float(run.weights(layer, head)[row, col]), abs=1e-3)
        assert read.endswith(" (masked)") == (name == "gpt2" and col > row)


def test_the_colour_of_a_cell_follows_its_weight(look: Callable[..., Visitor]) -> None:
    visitor = look_at_heads(look)
    weights = probe.attend("bert", DEFAULT_TEXT).weights(3, 1)
    cells = [(11, 2), (11, 9), (11, 3), (0, 0), (0, 1), (16, 4)]
    canvas = visitor.page.locator(".hd-one canvas")
    shades = canvas.evaluate(
        """(canvas, cells) => cells.map(([row, col]) => {
            const density = canvas.width / canvas.clientWidth, plan = canvas.dataset;
            const cell = Number(plan.cell);
            const at = (start, i) => Math.round((Number(start) + cell * (i + 0.5)) * density);
            const [x, y] = [at(plan.left, col), at(plan.top, row)];
            const [r, g, b] = canvas.getContext("2d").getImageData(x, y, 1, 1).data;
            return r + g + b;
        })""",
        [list(cell) for cell in cells],
    )
    by_weight = sorted(range(len(cells)), key=lambda i: float(weights[cells[i]]))
    assert sorted(range(len(cells)), key=lambda i: -shades[i]) == by_weight


def test_the_marked_head_large_by_pointer_and_keyboard(look: Callable[..., Visitor]) -> None:
    visitor = look_at_heads(look)
    run = probe.attend("bert", DEFAULT_TEXT)
    canvas = visitor.page.locator(".hd-one canvas")
    plan = {name: float(value) for name, value in canvas.evaluate("canvas => ({...canvas.dataset})").items()}
    canvas.hover(position={"x": plan["left"] + plan["cell"] * 2.5, "y": plan["top"] + plan["cell"] * 11.5})
    read = visitor.page.locator(".hd-readout")
    assert number((read.text_content() or "").rsplit(": ", 1)[1]) == pytest.approx(
        float(run.weights(3, 1)[11, 2]), abs=1e-3
    )
    canvas.press("ArrowDown")
    canvas.press("ArrowRight")
    assert f"query 12 {run.tokens[12]} → key 3 {run.tokens[3]}" in (read.text_content() or "")


def test_a_click_marks_the_head_everywhere(visitor: Visitor) -> None:
    open_heads(visitor)
    visitor.page.locator(".hd-all canvas").evaluate("canvas => { canvas.stillHere = true; }")
    click_head(visitor, 4, 7)
    visitor.page.wait_for_function("document.querySelector('#layer-a input[type=number]').value === '4'")
    assert visitor.page.locator("#head-a input[type=number]").input_value() == "7"
    assert visitor.page.locator(".hd-one h3").text_content() == "layer 4, head 7"
    visitor.page.wait_for_url("**ah=4.7**")
    # the maps are not sent a second time
    assert visitor.page.locator(".hd-all canvas").evaluate("canvas => canvas.stillHere")
    visitor.page.get_by_role("button", name="Open in Compare").click()
    visitor.page.locator("#compare-a [data-painted^='compare 4.7']").wait_for()


def test_a_slider_and_the_arrow_keys_mark_too(visitor: Visitor) -> None:
    open_heads(visitor)
    heading = visitor.page.locator(".hd-one h3")
    visitor.page.locator("#head-a input[type=range]").press("ArrowRight")
    visitor.page.wait_for_function("document.querySelector('.hd-one h3').textContent.endsWith('head 2')")
    visitor.page.locator(".hd-all canvas").press("ArrowDown")
    assert heading.text_content() == "layer 4, head 2"
    visitor.page.wait_for_function("document.querySelector('#layer-a input[type=number]').value === '4'")
    visitor.page.locator(".hd-all canvas").press("Enter")
    visitor.page.locator("#compare-a [data-painted^='compare 4.2']").wait_for()


def test_the_other_model(visitor: Visitor) -> None:
    open_heads(visitor)
    switch = visitor.page.locator("#heads-models").get_by_role("button", name="gpt2-stories")
    visitor.wait_for_new("heads-maps", switch.click)
    assert visitor.page.locator("#heads-maps .hd-title").text_content() == "All 36 heads of gpt2-stories"
    layer, head = DEFAULT_HEADS[1]
    assert visitor.page.locator(".hd-one h3").text_content() == f"layer {layer}, head {head}"
    click_head(visitor, 1, 3)
    visitor.page.wait_for_function("document.querySelector('#layer-b input[type=number]').value === '1'")
    assert visitor.page.locator("#head-b input[type=number]").input_value() == "3"


def test_the_choice_of_the_model_keeps_the_keyboard(visitor: Visitor) -> None:
    visitor.open("heads")
    for view, tab, model in (
        ("heads", "Heads", "gpt2-stories"),
        ("sentences", "Two sentences", "all-MiniLM-L6-v2"),
        ("effect", "Effect", "gpt2-stories"),
    ):
        visitor.page.get_by_role("tab", name=tab, exact=True).click()
        models = visitor.page.locator(f"#{view}-models")
        models.get_by_role("button", name=model).press("Enter")
        models.locator("button:focus[aria-pressed=true]", has_text=model).wait_for()


@pytest.mark.parametrize(
    ("view", "result"),
    [
        ("heads", lambda: probe.measure_heads("bert", DEFAULT_TEXT)),
        ("sentences", lambda: probe.compare_texts("bert", Asked().first, Asked().second, 3, 1)),
        ("effect", lambda: probe.ablate("bert", DEFAULT_TEXT, [(3, 1)])),
    ],
)
def test_python_lines_run_and_say_the_same(
    look: Callable[..., Visitor],
    capsys: pytest.CaptureFixture[str],
    view: str,
    result: Callable[[], object],
) -> None:
    visitor = look(view)
    visitor.page.wait_for_url(f"**view={view}**")
    visitor.page.locator("#share pre", has_text="probe.load").wait_for(state="attached")
    exec(visitor.page.locator("#share pre").text_content() or "", {})
    assert tells(capsys.readouterr().out, str(result()))


@pytest.mark.own_page
def test_measures_can_be_sorted(visitor: Visitor) -> None:
    text = "The cat sat on the mat. The cat sat on the mat."
    open_heads(visitor, text=text, on="b")
    measures = probe.measure_heads("gpt2", text)
    table = visitor.page.locator("#heads-measures")
    shown = rows(table)
    assert len(shown) == 36
    for cells, head in zip(shown, measures.heads, strict=True):
        assert cells[0] == f"layer {head.layer}, head {head.head}"
        for cell, measure in zip(cells[1:], MEASURES, strict=True):
            value = getattr(head, measure.name)
            if value is None:
                assert cell == "–"
            else:
                assert number(cell) == pytest.approx(value, abs=5.1e-4)
    table.get_by_role("button", name="induction").click()
    best = measures.ranked("induction")
    assert [row[0] for row in rows(table)[:3]] == [f"layer {h.layer}, head {h.head}" for h in best[:3]]
    assert table.locator("th[aria-sort=descending]").text_content() == "induction ↓"
    table.get_by_role("button", name="induction").click()
    assert rows(table)[0][0] == f"layer {best[-1].layer}, head {best[-1].head}"
    table.locator("summary").click()
    told = table.locator("dl").inner_text()
    for measure in MEASURES:
        assert measure.definition in told and measure.source in told
    table.locator("tbody button").nth(4).click()
    place = (best[-5].layer, best[-5].head)
    visitor.page.wait_for_url(f"**bh={place[0]}.{place[1]}**")


@pytest.mark.own_page
def test_the_finder(visitor: Visitor) -> None:
    open_heads(visitor)
    page, found = visitor.page, visitor.page.locator("#heads-found")
    expected = probe.find_heads("bert", DEFAULT_TEXT, "it", "trophy", "suitcase")
    assert any(alike(one, expected.summary) for one in found.locator(".af-remark").all_text_contents())
    shown = rows(found)
    assert len(shown) == 72
    for cells, head in zip(shown[:8], expected.heads[:8], strict=True):
        assert cells[0] == f"layer {head.layer}, head {head.head}"
        values = (head.weight, head.versus, head.difference)
        assert [number(cell) for cell in cells[1:]] == pytest.approx(list(values), abs=5.1e-4)
    found.get_by_role("button", name="difference").click()
    best = expected.by_difference[0]
    assert rows(found)[0][0] == f"layer {best.layer}, head {best.head}"
    page.locator("#from-word textarea, #from-word input").fill("big")
    page.locator("#versus textarea, #versus input").fill("")
    visitor.wait_for_new("heads-found", page.locator("#find").click)
    alone = probe.find_heads("bert", DEFAULT_TEXT, "big", "trophy")
    assert any(alike(one, alone.summary) for one in found.locator(".af-remark").all_text_contents())
    assert len(rows(found)[0]) == 2


def test_a_word_that_is_not_there_is_said_in_place(visitor: Visitor) -> None:
    open_heads(visitor)
    page = visitor.page
    for word in ("zebra", "", '<img src=x onerror="alert(1)">'):
        page.locator("#to-word textarea, #to-word input").fill(word)
        visitor.wait_for_new("heads-found", page.locator("#find").click)
        with pytest.raises(probe.ProbeError) as refused:
            probe.find_heads("bert", DEFAULT_TEXT, "it", word)
        assert page.locator("#heads-found .af-notice").text_content() == str(refused.value)
        assert page.locator("#heads-found img").count() == 0


@pytest.mark.own_page
def test_rollout(visitor: Visitor) -> None:
    open_heads(visitor)
    page = visitor.page
    page.get_by_text("Attention rollout: all layers multiplied up").click()
    rollout = probe.rollout("bert", DEFAULT_TEXT)
    drawn = visitor.figure("heads-rollout")
    assert drawn.root.locator(".af-subtitle").text_content() == rollout.caveat
    read = drawn.point(11, 2)["rollout"]
    assert says(read, float(rollout.weights(5)[11, 2]))
    slider = page.locator("#rollout-layer input[type=range]")
    visitor.wait_for_new("heads-rollout", lambda: slider.press("Home"))
    assert says(drawn.point(11, 2)["rollout"], float(rollout.weights(0)[11, 2]))


def test_a_long_text_says_what_a_cell_stands_for(visitor: Visitor) -> None:
    text = " ".join(["the old cat sat on a warm mat and slept"] * 40)
    open_heads(visitor, text="The cat sat on")
    visitor.run(text, "heads-maps")
    size = len(probe.attend("bert", text).tokens)
    side = 1
    while 72 * math.ceil(size / side) ** 2 > 144 * 128 * 128:
        side += 1
    assert side > 1
    told = visitor.page.locator("#heads-maps .af-notice").text_content() or ""
    assert f"A cell stands for {side} x {side} tokens" in told
    weights = probe.attend("bert", text, [(3, 1)]).weights(3, 1)
    shown = math.ceil(size / side)
    read = point(visitor, 3, 1, 4, 1, shown)
    pooled = weights[4 * side : 5 * side, side : 2 * side].sum(1).mean()
    assert number(read.rsplit(": ", 1)[1]) == pytest.approx(float(pooled), abs=1e-3)


def test_a_model_that_refuses_says_so_in_place(visitor: Visitor) -> None:
    visitor.go({"view": "heads", "a": "no-such-model"})
    visitor.page.locator("#heads-maps .af-notice").wait_for()
    assert "no-such-model" in (visitor.page.locator("#heads-maps").text_content() or "")
    expect(visitor.page.locator("#heads-measures table")).to_have_count(0)


def test_small_screen_and_dark(visit: Callable[..., Visitor]) -> None:
    visitor = visit(width=390, height=844, color_scheme="dark")
    open_heads(visitor)
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    run = probe.attend("bert", DEFAULT_TEXT)
    read = point(visitor, 3, 1, 11, 2, len(run.tokens))
    assert number(read.rsplit(": ", 1)[1]) == pytest.approx(float(run.weights(3, 1)[11, 2]), abs=1e-3)


def test_all_heads_at_128_tokens_are_under_4_mb() -> None:
    maps = list(torch.rand(144, 128, 128).softmax(-1))
    packed = compact(maps, ["token"] * 128, range(128))
    assert packed["side"] == 1 and not packed["triangle"]
    assert sum(map(len, packed["maps"])) < 4_000_000
