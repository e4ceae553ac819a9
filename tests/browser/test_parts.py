"""Parts of the page that need no browser: colours, links, limits and the store of results."""

from __future__ import annotations

import base64
import csv
import io
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
import torch
from fake_hub import FakeHub, instead_of_the_hub
from safetensors.torch import load_file, save_file

import probe
import tiny
from probe.display import colors
from probe.display.data import Axis, Panel, Sheet
from probe.ui import downloads, header, limits, links, theme
from probe.ui.figure import token_figure
from probe.ui.offers import KEPT_SHEETS, Sheets
from probe.ui.screen import Screen, look
from probe.ui.state import Focus, Options, Session
from probe.ui.store import STORE, Store
from probe.ui.views import compare, verify

SCALES = [
    (name, kind, scale)
    for name, scales in (
        ("weight", colors.WEIGHT),
        ("difference", colors.DIFFERENCE),
        ("lost", colors.LOST),
        ("gained", colors.GAINED),
    )
    for kind, scale in scales.items()
]


def luminance(rgb: tuple[int, int, int]) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    red, green, blue = (
        c / 12.92 if (c := channel / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for channel in rgb
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(rgb: tuple[int, int, int]) -> float:
    """CIE 1976 L*, 0 to 100: what a print in black and white keeps of a colour."""
    y = luminance(rgb)
    return 116 * y ** (1 / 3) - 16 if y > (6 / 29) ** 3 else y * (29 / 3) ** 3


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two hexadecimal colours, as WCAG 2 defines it."""
    light, dark = sorted(
        (luminance((int(c[1:3], 16), int(c[3:5], 16), int(c[5:7], 16))) for c in (one, other)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    ("name", "kind", "scale"), SCALES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_lightness_alone_tells_the_values_apart(name: str, kind: str, scale: colors.Scale) -> None:
    levels = [lightness(scale.rgb(i / 32)) for i in range(33)]
    steps = [right - left for left, right in pairwise(levels)]
    assert all(step < -0.5 for step in steps) or all(step > 0.5 for step in steps), (name, kind)
    assert max(map(abs, steps)) < 2.5 * min(map(abs, steps))
    assert abs(levels[-1] - levels[0]) > 50


@pytest.mark.parametrize("kind", ["light", "dark"])
def test_text_can_be_read_on_every_surface(kind: str) -> None:
    for surface in (theme.PAPER, theme.SURFACE):
        for ink in (theme.INK, theme.FAINT, theme.ACCENT):
            assert contrast(ink[kind], surface[kind]) >= 4.5
        assert contrast(theme.EDGE[kind], surface[kind]) >= 3  # borders of controls
    for ink, fill in (
        (theme.ON_ACCENT, theme.ACCENT),
        (theme.GOOD_INK, theme.GOOD_FILL),
        (theme.BAD_INK, theme.BAD_FILL),
    ):
        assert contrast(ink[kind], fill[kind]) >= 4.5


@pytest.mark.parametrize("text", ["draw a map", "a&b=c #?+% 中 🙂", "</script>", "a hat " * 83 + "on"])
def test_an_address_says_what_the_screen_shows(text: str) -> None:
    session = Session(text, "and a second", ("gpt2", "bert"), truncate=True)
    halves = (look(session, 0, 2, 3, 1), look(session, 1, 4, 11, None))
    screen = Screen(session, halves, Focus((1, None), 1), Options(words=True, hide_special=True), "masks")
    place = links.read(dict(parse_qsl(links.query(screen)[1:])), ("compare", "masks"))
    assert place.session == session
    assert place.heads == ((2, 3), (4, 11))
    assert place.focus.queries == (1, None)
    assert (place.options, place.focus.slot, place.view) == (screen.options, 1, "masks")


def test_a_long_text_stays_out_of_the_address() -> None:
    session = Session("word " * 101)
    screen = Screen(session, (look(session, 0, 0, 0, None), look(session, 1, 0, 0, None)))
    assert quote("word word") not in links.query(screen) and "text=" not in links.query(screen)


def test_a_figure_of_no_result_is_saved_as_it_is_shown() -> None:
    """A map over three words, without the special tokens around them."""
    encoding = STORE.comparison("bert", "the cat sat").encoding
    assert encoding.tokens == ("[CLS]", "the", "cat", "sat", "[SEP]")
    weights = torch.full((5, 5), 0.125)
    weights[:, 2] = 0.5
    panel = Panel(
        "Mean over heads", "mean", weights, *(Axis(one, encoding.tokens) for one in ("query", "key"))
    )
    hidden = Options(hide_special=True)
    shown = token_figure(
        Sheet("a mean of heads", (panel,)), encoding, options=hidden, query=0, stamp="mean", label="a map"
    )

    def saved(suffix: str) -> tuple[dict[str, Any], str]:
        *_, (file, told) = downloads.answer([], hidden, shown["download"]["key"], suffix)
        assert file is not None
        return {**file, **told}, base64.b64decode(file["content"]).decode("utf-8-sig")

    told, content = saved("csv")
    assert told["name"] == "a-mean-of-heads.csv" and "reproduce can't check it" in str(told)
    header, *rows = csv.reader(io.StringIO(content))
    assert header == ["query", "query label", "key", "key label", "mean"]
    tokens = ("the", "cat", "sat")
    assert rows == [
        [str(query), tokens[query - 1], str(key), tokens[key - 1], "0.5" if key == 2 else "0.125"]
        for query in (1, 2, 3)
        for key in (1, 2, 3)
    ]
    # Two keys of five are hidden, with 2 x 0.125 of each query's weight.
    _, picture = saved("svg")
    assert "a mean of heads" in picture and "Special tokens are left out. They have 25.0%" in picture
    gone = [*downloads.answer([], hidden, "sheet of another", "csv")]
    assert gone[0][0] is None and "not on the page any more" in str(gone)


def test_only_the_last_figures_of_no_result_are_kept() -> None:
    sheets = Sheets()
    keys = [sheets.keep(f"figure {index}", Sheet(f"sheet {index}", ())) for index in range(KEPT_SHEETS + 1)]
    assert sheets.offer(keys[0]) is None
    kept = sheets.offer(keys[1])
    assert kept is not None and kept.sheet.title == "sheet 1"


def test_the_store_is_bounded_and_computes_again() -> None:
    first = Store()
    kept = first.comparison("gpt2", "the cat sat")
    assert first.comparison("gpt2", "the cat sat") is kept
    size = first.held_bytes
    maps = 2 * sum(layer.weights.nbytes for layer in kept.recording.layers)
    assert maps < size < 100 * maps
    store = Store(kept_bytes=int(2.5 * size))
    texts = ["the cat sat", "the dog ran", "the cow ate", "the pig saw"]
    for text in texts:
        store.comparison("gpt2", text)
        assert store.held_bytes <= 2.5 * size
    again = store.comparison("gpt2", texts[0])
    assert again is not kept
    assert torch.equal(again.from_scratch(4, 5), kept.from_scratch(4, 5))


def test_a_model_whose_weights_are_no_numbers_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny.GPT2_STORIES, folder)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.2.attn.c_attn.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    session = Session(text="The cat sat.", models=("gpt2", str(folder)))
    screen = Screen(session, (look(session, 0, 0, 0, None), look(session, 1, 3, 0, None)))
    first, second = (compare.describe(screen, half)["badge"] for half in screen.halves)
    assert first["kind"] == "good"
    assert second == {"text": "differs: at most nan", "kind": "bad"}
    assert [line["kind"] for line in header.verdict(screen)["lines"]] == ["good", "bad", "bad"]
    warning = header.verdict(screen)["lines"][2]["text"]
    assert warning.startswith(
        f"{folder} in torch.float32 has weights that are NaN or infinite, in transformer.h.2"
    )
    for half, kind in zip(screen.halves, ("good", "bad"), strict=True):
        assert half.comparison is not None
        assert verify.picture({1: half.comparison.report}, "", None, "")["badge"]["kind"] == kind


def test_a_model_is_loaded_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls, go = probe.load, [], threading.Event()

    def slow(name: str, **rest: object) -> probe.Model:
        calls.append(name)
        go.wait(10)
        return real(name)

    monkeypatch.setattr("probe.load", slow)
    store = Store()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(store.model, "gpt2") for _ in range(4)]
        go.set()
        models = [one.result() for one in waiting]
    assert calls == ["gpt2"]
    assert all(model is models[0] for model in models)


def test_a_folder_that_was_overwritten_is_shown_anew(tiny_gpt2: Callable[..., Path]) -> None:
    folder, other = tiny_gpt2(seed=0), tiny_gpt2(seed=1)
    store, text = Store(), "the cat sat"
    first, first_masked = store.comparison(str(folder), text), store.masked(str(folder), text)
    assert store.comparison(str(folder), text) is first
    assert store.masked(str(folder), text) is first_masked
    shutil.copy(other / "model.safetensors", folder)
    assert store.loaded(str(folder)) is None
    again, expected = store.comparison(str(folder), text), probe.compare(str(other), text)
    old, new, right = (one.from_scratch(1, 1) for one in (first, again, expected))
    assert torch.allclose(new, right, atol=1e-5) and not torch.allclose(old, right, atol=1e-5)
    assert store.masked(str(folder), text).model is again.model
    assert store.loaded(str(folder)) is store.model(str(folder)) is again.model


def test_a_failed_load_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    with pytest.raises(probe.ProbeError):
        store.model("no-such-model")
    monkeypatch.setattr("probe.load", lambda name, **rest: name)
    assert store.model("no-such-model") == "no-such-model"


def test_a_download_ends_when_the_last_one_has_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, store = "someone/a-large-model", Store()
    with instead_of_the_hub(monkeypatch, FakeHub(name, tiny.GPT2_STORIES), tmp_path / "hub") as hub:
        hub.flow.clear()
        with store.loading(name) as first:
            with store.loading(name) as second:
                assert second is first
                while not hub.sending:
                    time.sleep(0.1)
            time.sleep(1)
            assert hub.sending and not first.done()
        with pytest.raises(probe.ProbeError, match="was given up"):
            first.result(20)
        # Whoever names the model now has given nothing up; asking for it downloads nothing.
        with pytest.raises(probe.ProbeError, match="is not on this machine yet"):
            store.model(name)
        hub.flow.set()
        with store.loading(name) as again:
            assert again.result(60).name == name
        assert store.model(name) is again.result()


@pytest.mark.parametrize("name", ["", "   ", None, 3, "x" * 301])
def test_a_models_name_is_checked(name: object) -> None:
    with pytest.raises(probe.ProbeError):
        limits.check_model(name)


def test_sentences_are_parted_at_line_ends_only() -> None:
    pasted = "one\x0cpage\r\ntwo\u2028lines\n\n \nthree\x85 \x1cparts"
    assert verify.sentences(pasted) == ["one\x0cpage", "two\u2028lines", "three\x85 \x1cparts"]
    assert verify.sentences(None) == []


@pytest.mark.parametrize(("space", "says"), [("", "python -m probe"), ("someone/something", "own machine")])
def test_a_limit_says_what_can_be_done_where_the_app_runs(
    monkeypatch: pytest.MonkeyPatch, space: str, says: str
) -> None:
    monkeypatch.setenv("SPACE_ID", space)
    with pytest.raises(probe.ProbeError, match=f"has 10,001 characters.* at most 10,000.*{says}"):
        limits.check_text("x" * 10_001)
    with pytest.raises(probe.ProbeError, match=f"are 33 texts.* at most 32 at once.*{says}"):
        limits.check_texts(["x"] * 33)


def test_a_model_that_refuses_is_called_by_its_full_name() -> None:
    session = Session("   ")
    screen = Screen(session, (look(session, 0, 0, 0, None), look(session, 1, 0, 0, None)))
    lines = [line["text"] for line in header.verdict(screen)["lines"]]
    assert [line.split(":")[0] for line in lines] == ["all-MiniLM-L6-v2", "gpt2-stories"]


def test_a_space_lists_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "someone/something")
    with pytest.raises(probe.ProbeError, match="bert, gpt2"):
        limits.check_model("../../etc")
    assert limits.check_model(" gpt2 ") == "gpt2"
