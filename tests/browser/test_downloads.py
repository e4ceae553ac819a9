"""Files of what a view shows: made again by ``probe.reproduce``, and holding the numbers of the page."""

from __future__ import annotations

import io
import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from browser.conftest import Visitor, views

import probe
from attention.examples import DRAW_A_MAP, THE_CAT_SAT_ON
from probe.display.page import read_page
from probe.files.formats import formats_of
from probe.ui import downloads
from probe.ui.screen import Screen, look
from probe.ui.state import DEFAULT_HEADS, Asked, Focus, Options, Session

TEXT = "draw a map of it"
ASKED = Asked(
    first="this coffee is great",
    second="my laptop died, great",
    from_word="it",
    to_word="map",
    versus="draw",
)
HEAD = "layer {}, head {}".format(*DEFAULT_HEADS[1])
NAMED = HEAD.replace(", ", "-").replace(" ", "-")
KINDS = {
    "compare": [probe.Comparison, probe.Run],
    "masks": [probe.MaskComparison],
    "steps": [probe.Trace],
    "verify": [probe.Report],
    "heads": [probe.HeadMeasures, probe.HeadDistances, probe.FoundHeads, probe.Rollout, probe.Run],
    "sentences": [probe.TextComparison],
    "effect": [probe.Ablation],
    "bertviz": [probe.Run],
}


def screen(view: str, text: str = TEXT, asked: Asked = ASKED) -> Screen:
    session = Session(text)
    halves = look(session, 0, 3, 1, 2), look(session, 1, 4, 5, 3)
    return Screen(session, halves, Focus(slot=1), Options(), view, asked)


def offers_of(shown: Screen) -> list[Any]:
    return list(views()[shown.view].offers(shown))


def unpacked(folder: Path, name: str, content: bytes) -> Path:
    """The file, put down as its visitor would; of an archive the one that its manifest lies beside."""
    if not name.endswith(".zip"):
        (folder / name).write_bytes(content)
        return folder / name
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)
        names = archive.namelist()
    assert sorted(names) == names and names[1] == f"{names[0]}.json"
    return folder / names[0]


@pytest.mark.parametrize("view", KINDS)
def test_each_view_offers_what_it_shows(view: str) -> None:
    offers = offers_of(screen(view))
    of_gpt2 = [offer for offer in offers if offer.model.name == "gpt2-stories"]
    assert [offer.kind for offer in of_gpt2] == KINDS[view]
    both = view in ("compare", "masks", "verify", "bertviz")
    assert len(offers) == (2 if both else 1) * len(of_gpt2)
    assert len({offer.key for offer in offers}) == len({offer.name for offer in offers}) == len(offers)


@pytest.mark.own_page
def test_the_course_gives_a_worked_example(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.page
    page.goto(f"{visitor.address}?view=learn")
    page.get_by_text("Download", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name='Download worked example "draw a map" as XLSX').click()
    download.value.save_as(tmp_path / download.value.suggested_filename)
    book = openpyxl.load_workbook(tmp_path / "draw-a-map.xlsx")
    assert "weights" in book.defined_names


def test_the_worked_examples_of_the_course(tmp_path: Path) -> None:
    offers = offers_of(screen("learn"))
    assert [offer.formats for offer in offers] == [("xlsx",)] * 2
    for offer, block, numbers in (
        (offers[0], "inputs", DRAW_A_MAP.encodings),
        (offers[1], "scaled", THE_CAT_SAT_ON.scaled_scores),
    ):
        name, content = downloads.write(offer, "xlsx", Options())
        (tmp_path / name).write_bytes(content)
        book = openpyxl.load_workbook(tmp_path / name)
        ((sheet, area),) = book.defined_names[block].destinations
        cells = book[sheet][area.replace("$", "")]
        for row, expected in zip(cells, numbers, strict=True):
            # What the example masks is 0 on this sheet: the one after it masks by formula.
            assert [cell.value for cell in row] == [0 if x == -math.inf else x for x in expected]
        assert any(cell.data_type == "f" for row in book["weights"].iter_rows() for cell in row)


CASES = [
    (view, kind, suffix)
    for view, kinds in KINDS.items()
    for kind in kinds
    for suffix in (("html",) if kind is probe.Run else formats_of(kind))
    if view != "bertviz" and suffix != "svg"
]


@pytest.mark.parametrize(("view", "kind", "suffix"), CASES)
def test_every_file_is_made_again(tmp_path: Path, view: str, kind: type, suffix: str) -> None:
    offer = next(
        offer
        for offer in offers_of(screen(view))
        if offer.kind is kind and offer.model.name == "gpt2-stories"
    )
    name, content = downloads.write(offer, suffix, Options())
    path = unpacked(tmp_path, name, content)
    made_again = probe.reproduce(path)
    assert made_again.holds, made_again.reasons
    assert made_again.manifest.model == offer.model.name


def test_names_say_model_layer_and_head() -> None:
    names = {
        view: [offer.name for offer in offers_of(screen(view))][-1]
        for view in ("masks", "steps", "sentences", "effect")
    }
    assert names == {
        "masks": "gpt2-stories-layer-4-head-5-masks",
        "steps": "gpt2-stories-layer-4-head-5-query-3-steps",
        "sentences": "gpt2-stories-layer-4-head-5-two-sentences",
        "effect": "gpt2-stories-heads-4.5-zero",
    }
    first, *_ = offers_of(screen("compare"))
    assert first.name == "all-MiniLM-L6-v2-layer-3-head-1-comparison"


def test_a_mean_over_heads_is_no_result_and_words_that_are_not_there_find_nothing() -> None:
    kinds = [offer.kind for offer in offers_of(screen("compare", asked=ASKED.changed(average="layer")))]
    assert kinds == [probe.Run, probe.Run]
    assert offers_of(screen("effect", asked=Asked(heads="9.9"))) == []
    assert probe.FoundHeads not in [
        offer.kind for offer in offers_of(screen("heads", asked=Asked(from_word="zebra")))
    ]


def test_nothing_stays_on_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for suffix in ("csv", "json", "png"):
        downloads.write(offers_of(screen("masks"))[0], suffix, Options())
    assert list(tmp_path.iterdir()) == []


def answers(view: str, key: object, suffix: object) -> Iterator[tuple[object, str]]:
    for file, told in downloads.answer(offers_of(screen(view)), Options(), key, suffix):
        yield file, told["text"]


@pytest.mark.parametrize(
    ("key", "suffix"), [("0 nothing", "json"), (None, None), ("1 report", "exe"), ("1 report", ["json"])]
)
def test_what_is_not_offered_is_not_written(key: object, suffix: object) -> None:
    assert list(answers("verify", key, suffix)) == [
        (None, "This is not on the page any more: show it again.")
    ]


def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MAX_BYTES", 1000)
    *_, (file, told) = answers("verify", "1 report", "json")
    assert file is None and "the page gives at most" in told
    long = screen("steps", "the cat and the dog " * 40)
    *_, (file, told) = (
        (file, told["text"])
        for file, told in downloads.answer(offers_of(long), Options(), offers_of(long)[0].key, "xlsx")
    )
    assert file is None and "a workbook takes at most 128" in told


def test_the_limits_of_a_view_hold_for_its_files() -> None:
    long = "cat " * 20_000
    cut = replace(screen("sentences", asked=Asked(first=long)), session=Session(TEXT, truncate=True))
    (offer,) = offers_of(cut)
    with pytest.raises(probe.ProbeError, match="The first sentence: The text has 80,000 characters"):
        downloads.write(offer, "json", Options())
    assert offers_of(screen("effect", asked=Asked(heads="3.1 " * 20_000))) == []


# ---- in the browser


def save(visitor: Visitor, label: str, folder: Path) -> Path:
    page = visitor.page
    if not page.locator("#downloads details[open]").count():
        page.locator("#downloads summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=label).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return unpacked(folder, path.name, path.read_bytes()) if path.suffix == ".zip" else path


@pytest.mark.own_page
def test_what_is_saved_is_what_is_shown(visitor: Visitor, tmp_path: Path) -> None:
    visitor.open(text=TEXT)
    read = visitor.figure("compare-b").point(3, 2)["model"]
    path = save(visitor, f"Download gpt2-stories, {HEAD} as JSON", tmp_path)
    assert path.name == f"gpt2-stories-{NAMED}-comparison.json"
    assert probe.reproduce(path).holds
    numbers = json.loads(path.read_text("utf-8"))["numbers"]
    assert numbers[f"model_{NAMED.replace('-', '_')}"][3][2] == pytest.approx(float(read), abs=1e-6)
    told = visitor.page.locator("#download-progress [data-painted^=saved]")
    told.wait_for()
    assert path.name in (told.text_content() or "")


def test_the_workbook_of_the_steps(visitor: Visitor, tmp_path: Path) -> None:
    import openpyxl

    visitor.open("steps", text=TEXT, on="b", bq="3")
    path = save(visitor, f"Download gpt2-stories, {HEAD}, query 3 as XLSX", tmp_path)
    assert path.name == f"gpt2-stories-{NAMED}-query-3-steps.xlsx"
    assert probe.reproduce(path).holds
    book = openpyxl.load_workbook(path)
    ((sheet, area),) = book.defined_names["weights"].destinations
    cells = [cell.value for row in book[sheet][area.replace("$", "")] for cell in row]
    assert all(isinstance(cell, str) and cell.startswith("=") for cell in cells)


@pytest.mark.own_page
def test_the_page_of_all_heads_opens_from_disk(visitor: Visitor, tmp_path: Path) -> None:
    visitor.open("heads", text=TEXT)
    path = save(visitor, "Download all-MiniLM-L6-v2, all 72 heads as HTML", tmp_path)
    _, numbers = read_page(path.read_bytes())
    run = probe.attend("bert", TEXT)
    assert abs(numbers["self_layer_3_head_1"] - run.weights(3, 1).numpy()).max() < 1e-3
    page = visitor.page.context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-painted]")
    assert page.locator(".grid button").count() == 72


def test_a_table_and_its_manifest_in_one_archive(visitor: Visitor, tmp_path: Path) -> None:
    visitor.open("verify", text=TEXT)
    path = save(visitor, "Download all-MiniLM-L6-v2, errors of all heads as CSV", tmp_path)
    assert path.name == "all-MiniLM-L6-v2-report.csv"
    assert probe.reproduce(path).holds


def test_each_visitor_gets_their_own(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    texts = {"one": "the cat sat", "two": "a dog ran home"}
    visitors = {name: visit() for name in texts}
    for name, visitor in visitors.items():
        visitor.open("masks", text=texts[name])
        (tmp_path / name).mkdir()
    for name, visitor in visitors.items():
        path = save(visitor, f"Download gpt2-stories, {HEAD} as JSON", tmp_path / name)
        assert json.loads(path.read_text("utf-8"))["manifest"]["arguments"]["text"] == texts[name]
    # another text, and the same button gives the new one; the old one isn't saved a second time
    one = visitors["one"]
    one.run("rain fell", "masks-a")
    path = save(one, f"Download gpt2-stories, {HEAD} as JSON", tmp_path / "one")
    assert json.loads(path.read_text("utf-8"))["manifest"]["arguments"]["text"] == "rain fell"


TYPED = {
    "sentences": ("pair-a", "rain fell", f"gpt2-stories, {HEAD}"),
    "effect": ("effect-heads", "9.9", "gpt2-stories, heads 3.2: switched off: zeros"),
    "heads": ("to-word", "draw", "gpt2-stories, heads that link it and map"),
}


@pytest.mark.parametrize("view", TYPED)
def test_what_is_typed_and_not_sent_is_in_no_file(visitor: Visitor, tmp_path: Path, view: str) -> None:
    box, typed, label = TYPED[view]
    asked = {"one": "a dog ran", "other": "a dog sat", "heads": "3.2"}
    asked |= {"from": "it", "to": "map", "versus": "of"}
    visitor.open(view, text="draw a map of it", on="b", **asked)
    visitor.page.locator(f"#{box} :is(textarea, input)").fill(typed)
    path = save(visitor, f"Download {label} as JSON", tmp_path)
    manifest = json.loads(path.read_text("utf-8"))["manifest"]
    given = manifest["arguments"]
    texts = [given["first"], given["second"]] if view == "sentences" else [given["text"]]
    assert texts == (["a dog ran", "a dog sat"] if view == "sentences" else [TEXT])
    if view == "effect":
        assert "[(3, 2)]" in json.dumps(manifest)
    if view == "heads":
        assert '"map"' in json.dumps(manifest) and '"draw"' not in json.dumps(manifest)


@pytest.mark.own_page
def test_two_files_asked_for_at_once(visitor: Visitor) -> None:
    visitor.open("verify", text=TEXT)
    page = visitor.page
    page.locator("#downloads summary").click()
    names: list[str] = []
    page.on("download", lambda download: names.append(download.suggested_filename))
    for suffix in ("JSON", "NPZ"):
        page.get_by_role("button", name=f"gpt2-stories, errors of all heads as {suffix}").click()
    page.locator("#download-progress [data-painted='saved gpt2-stories-report.npz']").wait_for()
    page.wait_for_timeout(200)
    assert names == ["gpt2-stories-report.json", "gpt2-stories-report.npz"]


@pytest.mark.own_page
def test_a_refusal_is_said_in_place(visitor: Visitor) -> None:
    visitor.open("steps", text="the cat and the dog " * 40, on="b")
    page = visitor.page
    page.locator("#downloads summary").click()
    page.get_by_role("button", name="as XLSX").click()
    page.locator("#download-progress [data-painted=refused]").wait_for()
    assert "a workbook takes at most 128" in (page.locator("#download-progress").text_content() or "")
