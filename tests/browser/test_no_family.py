"""Models that are not taken apart, in the two slots: what works is drawn, and what does not is refused."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser.conftest import Visitor, views
from numbers_in_text import says, tells
from playwright.sync_api import expect

import probe
import tiny
from probe.ui.screen import Screen, look
from probe.ui.state import Asked, Focus, Options, Session
from probe.ui.views import bertviz as bertviz_view
from probe.ui.views import effect, heads, masks, sentences, steps
from scripts import families

TEXT = "the cat and the dog sat on the mat"
NAMES = ("gpt_oss", "gemma2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    made: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(families, "VOCABULARY", 4096)
                family = next(one for one in families.FAMILIES if one.name == name)
                families.build(family).save_pretrained(path)
            for file in tiny.TOKENIZER_FILES:
                if (tiny.GPT2_STORIES / file).is_file():
                    shutil.copy(tiny.GPT2_STORIES / file, Path(path) / file)
            made[name] = str(path)
        return made[name]

    return get


def screen(name: str, view: str = "compare", **asked: Any) -> Screen:
    session = Session(TEXT, models=(name, "gpt2"))
    halves = look(session, 0, 1, 3, None), look(session, 1, 0, 0, None)
    return Screen(session, halves, Focus(), Options(), view, Asked(**asked))


@pytest.mark.parametrize("name", NAMES)
def test_views_that_need_no_weights_are_drawn(name: str, folder: Callable[[str], str]) -> None:
    shown = screen(folder(name))
    half = shown.halves[0]
    assert half.comparison is not None and (half.layer, half.head) == (1, 3)
    weights = half.comparison.from_model(1, 3)
    place = shown.place(Asked())
    assert "maps" in heads.picture(place)
    assert len(heads.measured(place)["rows"]) == 12
    assert heads.rolled_out(place, None)[0]["panels"]
    found = heads.found_heads(heads.sought(place, "dog", "cat", ""))
    assert len(found["rows"]) == 12
    drawn = sentences.describe(shown.place(Asked(first=TEXT, second=f"then {TEXT}")))
    first = next(panel for panel in drawn[0]["panels"] if panel["kind"] == "weight")
    values = np.frombuffer(base64.b64decode(first["data"]), "<f4").reshape(weights.shape)
    np.testing.assert_array_equal(values, weights.numpy())
    for kind in ("head", "model"):
        assert bertviz_view.describe(half, shown.options, kind)["drawing"] is not None


@pytest.mark.parametrize("name", NAMES)
def test_views_that_need_the_weights_say_so_in_one_sentence(name: str, folder: Callable[[str], str]) -> None:
    shown = screen(folder(name))
    told = [
        masks.describe(shown, shown.halves[0])["notice"],
        steps.describe(shown)["problem"],
        effect.describe(shown.place(Asked()))["notice"],
    ]
    for sentence in told:
        assert sentence.startswith(f'Where the attention weights of a "{name}" lie is not known here')
        assert sentence.endswith(".") and sentence.count(". ") == 0
    for view in ("masks", "steps", "effect"):
        asking = screen(folder(name), view)
        assert folder(name) not in views()[view].python(asking)
        assert {offer.model.name for offer in views()[view].offers(asking)} <= {"gpt2-stories"}


def test_compare_and_verify_in_the_page(visitor: Visitor, folder: Callable[[str], str]) -> None:
    name = folder("gemma2")
    visitor.open("compare", text=TEXT, a=name, ah="1.3")
    comparison = probe.compare(name, TEXT)
    line = visitor.page.locator("#verdict .pg-line").first
    expect(line).to_contain_text("Checked from query and key.")
    assert tells(line.text_content(), comparison.report.verdict)
    assert "Checked from query and key." in comparison.report.verdict
    said = visitor.figure("compare-a").point(5, 2)
    for side, weights in (
        ("from scratch", comparison.from_scratch(1, 3)),
        ("model", comparison.from_model(1, 3)),
    ):
        assert says(said[side], float(weights[5, 2]))
    visitor.page.get_by_role("tab", name="Verify").click()
    visitor.page.locator("#verify-a [data-painted]").wait_for()
    errors = visitor.figure("verify-a").point(2, 1)
    check = comparison.check(2, 1)
    assert says(errors["largest difference"], check.max_abs_error)
