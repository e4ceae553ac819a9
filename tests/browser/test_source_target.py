"""The view of models with an encoder and a decoder: what is drawn is what the toolkit says, for each kind."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import pytest
import torch
import transformers
from browser.conftest import Visitor, views
from browser.test_accessibility import faults
from browser.test_downloads import unpacked
from numbers_in_text import ROUNDING, says, tells
from playwright.sync_api import expect

import probe
import tiny
from probe.ui import downloads
from probe.ui.app import Page
from probe.ui.screen import Place, Screen, look
from probe.ui.state import Asked, Options, Session
from probe.ui.store import STORE
from probe.ui.views import source_target, verify
from scripts import families

SOURCE, TARGET = "the cat sat on the mat", "a small bird ate it"
KINDS = {"encoder": 2, "decoder": 3, "cross": 3}
"""And how many layers the tiny T5 has of each."""


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny random T5 of 2 and 3 layers, and the tokenizer of the bundled GPT-2."""
    folder = tmp_path_factory.mktemp("t5")
    config = transformers.T5Config(
        vocab_size=4096,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=0,
    )
    family = families.Family("t5", lambda: transformers.T5ForConditionalGeneration(config), gain=1.5)
    families.build(family).save_pretrained(folder)
    for name in tiny.TOKENIZER_FILES:
        if (tiny.GPT2_STORIES / name).is_file():
            shutil.copy(tiny.GPT2_STORIES / name, Path(folder) / name)
    return str(folder)


@pytest.fixture(scope="module")
def comparison(t5: str) -> probe.Comparison:
    return probe.compare(t5, SOURCE, TARGET)


def opened(visitor: Visitor, t5: str, **more: Any) -> None:
    visitor.open("source-target", pair=t5, source=SOURCE, target=TARGET, **more)
    visitor.page.locator("#source-target canvas").first.wait_for()


@pytest.mark.own_page
def test_from_an_empty_page_to_every_kind(
    visitor: Visitor, t5: str, comparison: probe.Comparison, gpt2: probe.Model
) -> None:
    visitor.open("source-target")
    page = visitor.page
    expect(page.locator("#source-target .af-notice")).to_contain_text("No model is loaded. Name one")
    expect(page.locator("#pair-drawing")).to_be_hidden()
    for box, text in (("source", SOURCE), ("target", TARGET)):
        page.locator(f"#pair-{box} textarea").fill(text)
    model = page.locator("#pair-model input")
    model.fill(t5)
    visitor.wait_for_new("source-target", lambda: model.press("Enter"))
    expect(page.locator("#source-target-verdict")).to_contain_text("Checked from query and key.")
    assert tells(page.locator("#source-target-verdict").text_content(), comparison.report.verdict)
    assert "Checked from query and key." in comparison.report.verdict
    # The last layer and head of each kind: the sliders go as far as the kind does.
    for kind, layers in KINDS.items():
        radio = page.locator(f"#pair-kind input[value={kind}]")
        visitor.wait_for_new("source-target", lambda radio=radio: radio.check())
        for name, count in (("layer", layers), ("head", 4)):
            slider = page.locator(f"#pair-{name} input[type=range]")
            expect(slider).to_have_attribute("max", str(count - 1))
            if slider.input_value() != str(count - 1):
                visitor.wait_for_new("source-target", lambda slider=slider: slider.press("End"))
        queries, keys = comparison.sides(kind)
        figure = visitor.figure("source-target")
        chips = figure.root.locator(".af-chips").all()
        assert [chip.locator(".af-chip > span").all_text_contents() for chip in chips] == [
            list(side.tokens) for side in ((queries, keys) if kind == "cross" else (queries,))
        ]
        place = layers - 1, 3, kind
        for row, column in ((1, 0), (len(queries) - 1, len(keys) - 1), (2, 1)):
            said = figure.point(row, column)
            assert said["where"] == (f"query {queries.tokens[row]}{row} → key {keys.tokens[column]}{column}")
            for name, weights in (
                ("from scratch", comparison.from_scratch(*place)),
                ("model", comparison.from_model(*place)),
            ):
                assert says(said[name], float(weights[row, column]))


def test_a_link_opens_the_same_head_and_its_python_gives_the_same(
    visitor: Visitor, t5: str, comparison: probe.Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(visitor, t5, kind="decoder", layer="2", head="3")
    figure = visitor.figure("source-target")
    said = figure.point(3, 2)
    assert says(said["model"], float(comparison.from_model(2, 3, "decoder")[3, 2]))
    code = visitor.page.locator("#share .pg-code")
    expect(code).to_contain_text("comparison.from_scratch(2, 3, 'decoder')")
    lines: dict[str, Any] = {}
    exec(code.locator("pre").text_content() or "", lines)
    assert tells(capsys.readouterr().out, comparison.report.verdict)
    made, place = lines["comparison"], (2, 3, "decoder")
    torch.testing.assert_close(
        made.from_scratch(*place), comparison.from_scratch(*place), rtol=0, atol=ROUNDING
    )


def test_a_cell_of_the_errors_opens_its_head(visitor: Visitor, t5: str, comparison: probe.Comparison) -> None:
    opened(visitor, t5)
    page, errors = visitor.page, visitor.figure("source-target-errors")
    said = errors.point(2, 1)
    check = comparison.check(2, 1, "cross")
    assert said["where"] == "layer 2, head 1"
    assert says(said["largest difference"], check.max_abs_error)
    canvas = errors.root.locator("canvas.af-over")
    visitor.wait_for_new("source-target", lambda: canvas.click(position=errors.place(2, 1)))
    expect(page.locator("#pair-layer input[type=range]")).to_have_value("2")
    expect(page.locator("#source-target .af-subtitle")).to_contain_text("cross layer 2, head 1")


@pytest.mark.parametrize(("kind", "drawing"), [("cross", "head"), ("encoder", "model")])
def test_bertviz_draws_it(
    visitor: Visitor, t5: str, comparison: probe.Comparison, kind: str, drawing: str
) -> None:
    opened(visitor, t5, kind=kind, layer="1", drawn=drawing)
    visitor.page.locator("#source-target-frames [data-painted]").wait_for()
    frame = visitor.page.frame_locator("#source-target-frames iframe")
    queries, keys = comparison.sides(kind)
    if drawing == "head":
        expect(frame.locator("#layer")).to_have_value("1")
        # The first of the target, its start token, is too long to be written out.
        for side, tokens in (("left", queries.tokens), ("right", keys.tokens)):
            assert frame.locator(f"#{side} text").all_text_contents()[1:] == list(tokens)[1:]
    within = "#attention line" if drawing == "head" else "#vis line"
    drawn = frame.locator(within).evaluate_all("lines => lines.map(line => line.__data__)")
    layers = [1] if drawing == "head" else range(KINDS[kind])
    maps = [comparison.from_model(layer, head, kind) for layer in layers for head in range(4)]
    expected = torch.stack(maps).flatten()
    torch.testing.assert_close(torch.tensor(drawn), expected, rtol=0, atol=5.1e-5)
    sandbox = visitor.page.locator("#source-target-frames iframe").get_attribute("sandbox")
    assert sandbox == "allow-scripts"


def offers_of(screen: Screen) -> list[Any]:
    return list(views()[screen.view].offers(screen))


def test_files_of_it_are_made_again(t5: str, tmp_path: Path) -> None:
    session = Session(SOURCE)
    halves = look(session, 0, 0, 0, None), look(session, 1, 0, 0, None)
    asked = Asked(pair_model=t5, source=SOURCE, target=TARGET)
    screen = Screen(session, halves, view="source-target", asked=asked)
    STORE.model(t5)
    head, report, comparison, run = offers_of(screen)
    assert [head.kind, report.kind, comparison.kind, run.kind] == [
        probe.Comparison,
        probe.Report,
        probe.Comparison,
        probe.Run,
    ]
    assert {"json", "npz"} <= set(comparison.formats) and not {"png", "csv"} & set(comparison.formats)
    for offer, suffix in ((head, "csv"), (report, "json"), (comparison, "npz"), (run, "html")):
        path = unpacked(tmp_path, *downloads.write(offer, suffix, Options()))
        again = probe.reproduce(path, load=True)
        assert again.holds, again.reasons
        assert TARGET in again.manifest.arguments["target"]


def test_the_limits_of_the_view_hold_for_its_files(t5: str) -> None:
    halves = look(Session(SOURCE), 0, 0, 0, None), look(Session(SOURCE), 1, 0, 0, None)
    asked = Asked(pair_model=t5, source=SOURCE, target="cat " * 20_000)
    screen = Screen(Session(SOURCE, truncate=True), halves, view="source-target", asked=asked)
    STORE.model(t5)
    offers = offers_of(screen)
    assert len(offers) == 4
    for offer in offers:
        with pytest.raises(probe.ProbeError, match="The text has 80,000 characters"):
            downloads.write(offer, "html" if offer.kind is probe.Run else "json", Options())


def test_kinds_are_not_mixed_in_one_picture(comparison: probe.Comparison) -> None:
    report = comparison.report
    with pytest.raises(ValueError, match="of one kind of attention, not of cross, decoder, encoder"):
        verify.picture({1: report}, "", None, "")
    assert len(verify.worst_checks({1: report})) == len(report.heads) == 4 * sum(KINDS.values())
    for kind, layers in KINDS.items():
        drawn = verify.picture({1: source_target.of_kind(report, kind)}, "", None, "")
        assert drawn["row"]["labels"] == [str(layer) for layer in range(layers)]


def test_words_and_hidden_special_tokens_on_both_sides(t5: str, comparison: probe.Comparison) -> None:
    asked = Asked(pair_model=t5, source=SOURCE, target=TARGET, kind="cross")
    place = Place("source-target", Session(), 0, options=Options(hide_special=True, words=True), asked=asked)
    drawn = source_target.picture(place, comparison)
    # The target's start token is left out as a query; no key is special.
    assert drawn["row"]["labels"] == TARGET.split() and drawn["row"]["index"] == [1, 2, 3, 4, 5]
    assert drawn["col"]["labels"] == SOURCE.split() and drawn["hidden"] is None
    values = np.frombuffer(base64.b64decode(drawn["panels"][1]["data"]), "<f4").reshape(5, 6)
    np.testing.assert_allclose(values, comparison.from_model(0, 0, "cross")[1:], rtol=0, atol=1e-6)
    # In the decoder that token is a key too, and its weight is told.
    decoder = replace(place, asked=asked.changed(kind="decoder"))
    drawn = source_target.picture(decoder, comparison)
    hidden = np.frombuffer(base64.b64decode(drawn["hidden"]), "<f4")
    np.testing.assert_allclose(hidden, comparison.from_model(0, 0, "decoder")[1:, 0], rtol=0, atol=1e-6)


@pytest.mark.own_page
def test_the_example_fills_in_all_three(visitor: Visitor) -> None:
    visitor.open("source-target")
    page = visitor.page
    page.locator("#pair-source textarea").fill("something else")
    visitor.wait_for_new("source-target", page.locator("#pair-example").click)
    expect(page.locator("#pair-model input")).to_have_value("google-t5/t5-small")
    expect(page.locator("#pair-source textarea")).to_have_value(Asked().source)
    # There is no network here.
    expect(page.locator("#source-target .af-notice")).to_contain_text("google-t5/t5-small")
    expect(page.locator("#source-target .af-title")).to_have_text("google-t5/t5-small")
    expect(page.locator("#pair-give-up")).to_be_hidden()
    expect(page.locator("#source-target-verdict .pg-line")).to_have_count(0)


def test_no_verdict_stays_of_a_model_that_has_gone(visitor: Visitor, t5: str) -> None:
    opened(visitor, t5)
    verdict = visitor.page.locator("#source-target-verdict .pg-line")
    expect(verdict).to_contain_text("agree")
    box = visitor.page.locator("#pair-model input")
    box.fill("no such folder")
    visitor.wait_for_new("source-target", lambda: box.press("Enter"))
    expect(visitor.page.locator("#source-target .af-notice")).to_contain_text("no such folder")
    expect(verdict).to_have_count(0)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_no_serious_fault(visit: Callable[..., Visitor], t5: str, scheme: str, width: int) -> None:
    visitor = visit(width=width, height=900, color_scheme=scheme)
    opened(visitor, t5)
    visitor.page.locator("#source-target-frames [data-painted]").wait_for()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == width
    assert faults(visitor.page) == []


def test_a_space_has_no_such_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "someone/something")
    with gr.Blocks():
        page = Page()
    (hidden,) = (view for view in page.views if not view.tab.visible)
    assert hidden.id == "source-target"
    assert page.ids[-2:] == ("bertviz", "learn")


def test_what_cannot_be_shown_is_said(visitor: Visitor) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    for model, problem in (("facebook/bart-base", "is not on this machine"), (hostile, hostile)):
        visitor.open("source-target", pair=model)
        expect(visitor.page.locator("#source-target .af-notice")).to_contain_text(problem)
    box, notice = (visitor.page.locator(it) for it in ("#pair-model input", "#source-target .af-notice"))
    for model, problem in (
        ("bert", "has no decoder beside an encoder"),
        ("no such folder", "no such folder"),
    ):
        box.fill(model)
        box.press("Enter")
        expect(notice).to_contain_text(problem)
        expect(visitor.page.locator("#pair-drawing")).to_be_hidden()


def test_the_slots_above_say_where_such_a_model_belongs(visitor: Visitor, t5: str) -> None:
    visitor.open("compare", a=t5)
    expect(visitor.page.locator("#compare-a .af-notice")).to_contain_text(
        "has an encoder and a decoder. It has a view of its own, Source and target."
    )
