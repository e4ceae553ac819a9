"""Masks, steps and verify: what is shown is what the toolkit says."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from browser.conftest import Visitor
from numbers_in_text import ROUNDING, ROUNDING_FLOAT64, alike, says
from safetensors.torch import load_file, save_file

import probe
import tiny
from probe.ui.state import DEFAULT_HEADS, DEFAULT_TEXT


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))


def test_masks_of_this_layer_and_of_the_whole_model(visitor: Visitor) -> None:
    visitor.open("masks")
    check_masks(visitor, whole_model=False)
    before = visitor.figure("masks-b").point(11, 13)["under bidirectional"]
    visitor.wait_for_new("masks-b", visitor.page.locator("#whole-model label").nth(1).click)
    check_masks(visitor, whole_model=True)
    assert visitor.figure("masks-b").point(11, 13)["under bidirectional"] != before


def check_masks(visitor: Visitor, whole_model: bool) -> None:
    for slot, model, (layer, head) in zip("ab", ("bert", "gpt2"), DEFAULT_HEADS, strict=True):
        figure = f"masks-{slot}"
        result = probe.compare_masks(model, DEFAULT_TEXT, layer, head, whole_model=whole_model)
        drawn = visitor.figure(figure)
        for query, key in ((0, 0), (11, 2), (2, 11), (5, 4)):
            read = drawn.point(query, key)
            assert says(read["under causal"], float(result.causal[query, key]))
            assert says(read["under bidirectional"], float(result.bidirectional[query, key]))
            assert says(read["moved"], float(result.moved[query]))
            assert read["causal mask"] == ("may attend" if key <= query else "may not attend")
            assert read["bidirectional mask"] == "may attend"
        notes = drawn.root.locator(".af-panel-note").all_text_contents()
        assert result.labels["causal"] in notes and result.labels["bidirectional"] in notes
        assert alike(drawn.root.locator(".af-subtitle").text_content(), result.summary)


def test_steps(visitor: Visitor) -> None:
    visitor.open("steps", on="b", bq="9")
    layer, head = DEFAULT_HEADS[1]
    trace = probe.trace("gpt2", DEFAULT_TEXT, layer, head, 9)
    page = visitor.page
    assert page.locator(".st-where").text_content() == (
        f"{trace.model_name}, layer {layer}, head {head}: the row of query {trace.tokens[9]}9"
    )
    rows = page.locator(".st-table").first.locator("tbody tr")
    assert rows.count() == len(trace.tokens)
    columns = (
        trace.dot_products,
        trace.scaled,
        trace.masked,
        trace.exponentials,
        trace.weights,
        trace.model_weights,
    )
    largest = float(trace.dot_products.abs().max())
    for key in (0, 8, 9, 10):
        cells = rows.nth(key).locator("td").all_text_contents()
        for cell, values in zip(cells, columns, strict=True):
            if cell == "−∞":
                assert key > 9 and values is trace.masked
            else:
                assert says(cell, float(values[key]), ROUNDING * max(1.0, largest))
    page.get_by_text("The numbers that are multiplied").click()
    factors = page.get_by_role("region", name="Query vector and key vector").locator("tbody tr")
    factors.first.wait_for()
    key = int(trace.weights.argmax())
    products = 0.0
    for i in range(len(trace.query_vector)):
        left, right = factors.nth(i).locator("td").all_text_contents()
        products += number(left) * number(right)
    assert products == pytest.approx(float(trace.dot_products[key]), abs=1e-5 * max(1.0, largest))
    page.locator("select").first.select_option("3")
    page.get_by_text(f"query {trace.tokens[3]}3").wait_for()
    page.get_by_role("button", name="all-MiniLM-L6-v2", exact=True).click()
    page.get_by_text("all-MiniLM-L6-v2, layer 3, head 1: the row of query it11").wait_for()


def test_steps_of_a_model_with_rotary_positions(visitor: Visitor, rotary_folders: dict[str, Path]) -> None:
    name = str(rotary_folders["mistral"])
    visitor.open("steps", text=DEFAULT_TEXT, a=name, ah="1.4", on="a", aq="9")
    trace = probe.trace(name, DEFAULT_TEXT, 1, 4, 9)
    page = visitor.page
    said = page.inner_text("#steps-trace")
    assert "the mask lets this query see keys 3 to 9 (causal, a window of 7)" in said
    assert "of key and value head 1, which 3 heads read" in said
    chosen = max(range(3, 10), key=lambda key: float(trace.weights[key]))
    for button, region, position, after in (
        ("How it was turned", "The query vector, turned", 9, trace.query_vector),
        ("How the key vector was turned", "The key vector, turned", chosen, trace.keys[chosen]),
    ):
        page.get_by_text(button).click()
        rows = page.get_by_role("region", name=region).locator("tbody tr")
        rows.first.wait_for()
        assert rows.count() == 4
        for pair in range(4):
            angle, a, b, *turned = map(number, rows.nth(pair).locator("td").all_text_contents())
            # 10000^(-2 i / 8)
            assert angle == pytest.approx(position * 10.0**-pair, rel=1e-6)
            assert turned[0] == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=3e-6)
            assert turned[1] == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=3e-6)
            assert turned == pytest.approx(after[[pair, pair + 4]].tolist(), rel=1e-5, abs=1e-5)


def test_a_cell_opens_its_steps(visitor: Visitor) -> None:
    visitor.open()
    drawn = visitor.figure("compare-b")
    drawn.root.locator("canvas.af-over").first.click(position=drawn.place(7, 3))
    visitor.page.locator("#steps-trace [data-painted]").wait_for()
    tokens = probe.attend("gpt2", DEFAULT_TEXT).tokens
    assert (visitor.page.locator(".st-where").text_content() or "").endswith(f"query {tokens[7]}7")
    assert visitor.page.locator(".st-chosen .st-key").text_content() == f"{tokens[3]}3"


def test_verify(visitor: Visitor, tmp_path: Path) -> None:
    visitor.open("verify")
    for figure, slot, model in (("verify-a", "a", "bert"), ("verify-b", "b", "gpt2")):
        report = probe.verify(model, DEFAULT_TEXT)
        drawn = visitor.figure(figure)
        for check in (report.heads[0], report.heads[8], report.heads[-1]):
            read = drawn.point(check.layer, check.head)
            assert read["where"] == f"layer {check.layer}, head {check.head}"
            assert says(read["largest difference"], check.max_abs_error)
        table = visitor.page.locator(f"#verify-table-{slot}")
        table.locator("summary").click()
        rows = [row.split("\t") for row in table.locator("tbody").inner_text().split("\n")]
        assert {(int(row[0]), int(row[1])) for row in rows} == {(c.layer, c.head) for c in report.heads}
        with visitor.page.expect_download() as download:
            table.get_by_role("button", name="Download the report (JSON)").click()
        download.value.save_as(tmp_path / "report.json")
        saved = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
        assert alike(saved["verdict"], report.verdict)
        assert len(saved["heads"]) == len(report.heads)
        worst = max(saved["heads"], key=lambda check: check["max_abs_error"])
        assert [int(cell) for cell in rows[0][:2]] == [worst["layer"], worst["head"]]


@pytest.mark.own_page
def test_verify_takes_more_sentences_from_a_file(visitor: Visitor) -> None:
    texts = ["The cat sat on", "draw a map", "naïve 🙂"]
    visitor.open("verify")
    page = visitor.page
    page.get_by_text("Check more sentences").click()
    content = "\r\n".join(["", *texts, "  "]).encode()
    file = {"name": "texts.txt", "mimeType": "text/plain", "buffer": content}
    page.locator("#more input[type=file]").set_input_files(files=[file])  # type: ignore[list-item]
    page.wait_for_function("document.querySelector('#texts textarea').value.includes('draw a map')")
    page.locator("#dtype label", has_text="float64").click()
    page.locator("#check").click()
    page.locator("#batch-progress [data-painted=done]").wait_for()
    model = probe.load("gpt2", dtype=torch.float64)
    reports = [probe.verify(model, text) for text in texts]
    worst = max(report.max_abs_error for report in reports)
    said = page.locator("#batch-progress .pg-line").nth(1).text_content() or ""
    told = f"✓All 36 heads of gpt2-stories agree on 3 texts: largest difference {worst:.1e}."
    assert alike(said, told, ROUNDING_FLOAT64)
    head = max(report.heads[29].max_abs_error for report in reports)  # layer 4, head 5
    read = visitor.figure("batch-b").point(4, 5)["largest difference"]
    assert says(read, head, ROUNDING_FLOAT64)


@pytest.mark.own_page
def test_a_check_can_be_stopped(visitor: Visitor) -> None:
    visitor.open("verify")
    page = visitor.page
    page.get_by_text("Check more sentences").click()
    page.locator("#texts textarea").fill("\n".join(["the cat and the dog " * 15] * 32))
    page.locator("#check").click()
    page.get_by_text(re.compile(r"text \d+ of 32")).wait_for()
    page.locator("#stop").click()
    page.locator("#batch-progress [data-painted=stopped]").wait_for()
    page.locator("#texts textarea").fill("draw a map")
    page.locator("#check").click()
    page.locator("#batch-progress [data-painted=done]").wait_for()
    visitor.run("draw a map", "verify-a")


def test_a_head_of_the_picture_opens_in_compare(visitor: Visitor) -> None:
    visitor.open("verify")
    drawn = visitor.figure("verify-b")
    drawn.root.locator("canvas.af-over").click(position=drawn.place(5, 3))
    visitor.page.locator("#compare-b [data-painted^='compare 5.3']").wait_for()
    assert visitor.page.locator("#layer-b input[type=number]").input_value() == "5"
    assert visitor.page.locator("#head-b input[type=number]").input_value() == "3"


@pytest.mark.parametrize("kind", ["PNG", "SVG", "CSV"])
def test_figures_are_saved(look: Callable[..., Visitor], tmp_path: Path, kind: str) -> None:
    text = "中文 <b> the the"
    visitor = look(text=text)
    comparison = probe.compare("gpt2", text)
    with visitor.page.expect_download() as download:
        visitor.page.locator("#compare-b").get_by_role("button", name=f"as {kind}").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    if kind == "CSV":  # its manifest lies beside it
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path)
        path = path.with_name(f"{path.stem.removesuffix('-csv')}.csv")
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        names = [f"[{position}] {token}" for position, token in enumerate(comparison.encoding.tokens)]
        assert [(row["query"], row["key"]) for row in rows] == [(q, k) for q in names for k in names]
        weights = comparison.from_model(*DEFAULT_HEADS[1]).flatten().tolist()
        assert [float(row["model"]) for row in rows] == pytest.approx(weights, abs=1e-6)
    else:
        assert path.read_bytes().startswith({"PNG": b"\x89PNG", "SVG": b"<?xml"}[kind])
    assert probe.reproduce(path).holds


def test_weights_that_are_no_numbers_leave_no_view_unpainted(visitor: Visitor, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny.GPT2_STORIES, folder)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.2.attn.c_attn.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    visitor.open("compare", text="The cat sat.", a=str(folder), ah="2.1")
    page = visitor.page
    page.locator("#compare-a [data-painted]").wait_for()
    for view, figure in (("masks", "masks-a"), ("steps", "steps-trace"), ("verify", "verify-a")):
        page.locator(f'#views [role=tab][data-tab-id="{view}"]').click()
        page.locator(f"#{figure} [data-painted]").wait_for()
    visitor.found_nothing()
