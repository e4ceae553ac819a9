"""The page of a run, opened from disk in a browser that has no network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

import probe
from origins import MADE_UP
from probe import Model, Run
from probe.display.page import MAX_CELLS, page_html, page_numbers, read_page

HOSTILE = (
    "</script><script>document.title='caught'</script> <img src=x onerror=\"document.title='caught'\"> "
    "<!-- ]]> & &lt; \u2028 \u202e ${1} 中文 the cat and the cat"
)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a run's page from disk; it may ask for nothing but itself, and may not complain."""
    asked: list[str] = []
    complaints: list[str] = []
    contexts = []

    def open_page(run: Run, manifest: Any = None, width: int = 1400, **options: Any) -> Page:
        path = tmp_path / "page.html"
        path.write_bytes(page_html(run, manifest))
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-painted]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert all((url.startswith("file:") and url.endswith("page.html")) or url == "data:," for url in asked)


def point(page: Page, row: int, column: int) -> tuple[str, float]:
    """Point at a cell of the large map; what is read out, and the number in it."""
    box = page.locator("#map")
    data = box.evaluate("canvas => ({...canvas.dataset})")
    left, top, cell = (float(data[name]) for name in ("left", "top", "cell"))
    box.hover(position={"x": left + cell * (column + 0.5), "y": top + cell * (row + 0.5)})
    return (
        page.locator("#readout").text_content() or "",
        float(page.locator("#readout b").text_content() or ""),
    )


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_weight_under_the_pointer(
    opened: Callable[..., Page], name: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(name)
    run = probe.attend(model, "the cat and the dog and the cat")
    page = opened(run)
    assert page.locator(".grid button").count() == model.num_layers * model.num_heads
    for layer, head in ((0, 0), (4, 5), (model.num_layers - 1, model.num_heads - 1)):
        page.get_by_role("button", name=f"layer {layer}, head {head}", exact=True).click()
        weights = run.weights(layer, head)
        length = len(run.tokens)
        # The largest weight, a repeated word, the corners, and above the diagonal.
        largest = divmod(int(weights.argmax()), length)
        for row, column in (largest, (3, 0), (length - 1, 0), (length - 1, length - 1), (1, length - 2)):
            words, number = point(page, row, column)
            assert abs(number - float(weights[row, column])) < 1e-3
            assert words.startswith(f"query {row} {run.tokens[row]} → key {column} {run.tokens[column]}: ")


def test_every_head_is_painted_in_its_own_colours(opened: Callable[..., Page], gpt2: Model) -> None:
    run = probe.attend(gpt2, "the cat and the dog")
    page = opened(run)
    read = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    pictures = [canvas.evaluate(read) for canvas in page.locator(".grid canvas").all()]
    assert len(pictures) == 36 and len({tuple(picture) for picture in pictures}) == 36
    first = torch.tensor(pictures[0]).view(5, 5, 4)
    weights = run.weights(0, 0)
    assert (first[..., 3] == 255).equal(torch.ones(5, 5).tril().bool())  # what is masked is left out
    # The scale runs from light to dark: the more weight, the less light.
    light = first[..., :3].sum(-1)[torch.ones(5, 5).tril().bool()]
    order = weights[torch.ones(5, 5).tril().bool()].argsort()
    assert (light[order].diff() <= 0).all()


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_hostile_tokens_stay_text(
    opened: Callable[..., Page], name: str, request: pytest.FixtureRequest
) -> None:
    run = probe.attend(request.getfixturevalue(name), HOSTILE, [0])
    manifest = {"texts": [HOSTILE], "python": "</script><script>document.title='caught'</script>"}
    page = opened(run, manifest)
    assert page.title() == f"{run.model_name}: all heads"
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert page.locator("p.text").text_content() == HOSTILE
    for row in range(0, len(run.tokens), 7):
        words, _ = point(page, row, 1)
        assert words.startswith(f"query {row} {run.tokens[row]} → key 1 {run.tokens[1]}: ")
    page.locator("summary").click()
    assert json.loads(page.locator("pre").text_content() or "") == manifest


def test_by_keyboard_alone(opened: Callable[..., Page], gpt2: Model) -> None:
    run = probe.attend(gpt2, "the cat and the dog")
    page = opened(run)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer 0, head 0"
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.locator("h2").text_content() == "layer 1, head 2"
    assert page.locator("[aria-pressed=true]").get_attribute("aria-label") == "layer 1, head 2"
    page.keyboard.press("Tab")
    for key in ("PageDown", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    assert (page.locator("#readout").text_content() or "").startswith("query 3 the → key 1 cat: ")
    number = float(page.locator("#readout b").text_content() or "")
    assert abs(number - float(run.weights(1, 2)[3, 1])) < 1e-3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_dark_and_small_screens(opened: Callable[..., Page], gpt2: Model, scheme: str) -> None:
    run = probe.attend(gpt2, "the cat and the dog")
    page = opened(run, width=390, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    channels = [int(part) for part in background[4:-1].split(",")]
    assert (sum(channels) > 600) == (scheme == "light")
    # Zero is the colour next to the ground: light on light, dark on dark.
    zero = page.locator(".legend canvas").evaluate(
        "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, 1, 1).data.slice(0, 3))"
    )
    assert (sum(zero) > 500) == (scheme == "light")


def test_a_damaged_run_says_not_a_number(opened: Callable[..., Page], gpt2: Model) -> None:
    run = probe.attend(gpt2, "the cat", [(0, 0)])
    run.maps["self", 0, 0][0, 0] = float("nan")
    page = opened(run)
    assert (page.locator("#readout b").text_content()) == "not a number"
    assert "NaN" not in (page.locator("body").inner_text())


def test_144_heads_over_128_tokens_in_four_megabytes(opened: Callable[..., Page]) -> None:
    run = random_run(layers=12, heads=12, length=128)
    content = page_html(run)
    assert len(content) <= 4_000_000
    _, numbers = read_page(content)
    for (_, layer, head), weights in run.maps.items():
        shown = numbers[f"self_layer_{layer}_head_{head}"]
        assert abs(shown - weights.numpy()).max() < 1e-3
    page = opened(run)
    page.get_by_role("button", name="layer 11, head 7", exact=True).click()
    _, number = point(page, 100, 90)
    assert abs(number - float(run.weights(11, 7)[100, 90])) < 1e-3


def test_512_tokens_are_pooled_and_the_page_says_so(opened: Callable[..., Page]) -> None:
    run = random_run(layers=12, heads=12, length=512)
    content = page_html(run)
    assert len(content) <= 4_000_000
    page = opened(run)
    assert "a cell stands for 4 x 4 tokens" in page.locator("main").inner_text()
    weights = run.weights(0, 0)
    words, number = point(page, 5, 9)
    assert words.startswith("query 20–23 t20 t21 t22 t23 → key 36–39 t36 t37 t38 t39: ")
    assert abs(number - float(weights[20:24, 36:40].sum(1).mean())) < 1e-3
    assert page_numbers(run)["self_layer_0_head_0"].sum(1) == pytest.approx(1.0, abs=0.06)


def test_a_causal_run_fits_more_tokens(opened: Callable[..., Page]) -> None:
    run = random_run(layers=12, heads=12, length=180, causal=True)
    assert MAX_CELLS < 144 * 180 * 180
    content = page_html(run)
    assert len(content) <= 4_000_000 and b"Pooled" not in content
    page = opened(run)
    _, number = point(page, 100, 90)
    assert abs(number - float(run.weights(0, 0)[100, 90])) < 1e-3


def random_run(*, layers: int, heads: int, length: int, causal: bool = False) -> Run:
    """Maps that no compression would make smaller, as large as those of BERT base."""
    scores = torch.randn(layers, heads, length, length, generator=torch.Generator().manual_seed(0)) * 3
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    return Run(
        origin=replace(MADE_UP, model="random"),
        text="no text",
        tokens=tuple(f"t{index}" for index in range(length)),
        spans=None,
        special=(False,) * length,
        truncated=None,
        heads={"self": (heads,) * layers},
        maps={
            ("self", layer, head): weights[layer, head] for layer in range(layers) for head in range(heads)
        },
    )
