"""Models whose layers see a window of the last tokens: pictures hatch what is outside it, in every view."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser.conftest import Visitor

import tiny
from probe.ui.screen import Place, Screen, look
from probe.ui.state import Asked, Focus, Options, Session
from probe.ui.views import compare, effect, heads, masks, sentences

WINDOW = 7
TEXT = "the cat and the dog and the cat sat on the mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    made: dict[str, Path] = {}

    def get(family: str) -> str:
        if family not in made:
            made[family] = tiny.family_saver(family, lambda: tmp_path_factory.mktemp(family))()
        return str(made[family])

    return get


def open_cells(length: int, windowed: bool = True) -> np.ndarray:
    """Which keys a query sees: itself and, with the window, the six tokens before it."""
    query, key = np.indices((length, length))
    return (key <= query) & (query - key < WINDOW if windowed else True)


def screen(name: str, layer: int, **asked: Any) -> Screen:
    session = Session(TEXT, models=(name, "bert"))
    halves = look(session, 0, layer, 1, None), look(session, 1, 0, 0, None)
    return Screen(session, halves, Focus(), Options(), asked=Asked(**asked))


def masked(panel: dict[str, Any], length: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(panel["masked"]), "u1").reshape(length, length) > 0


def panels(figure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {panel["short"]: panel for panel in figure["panels"]}


# The first layer of the tiny Qwen2 sees everything before it, the others a window; Mistral has one in each.
@pytest.mark.parametrize(
    ("family", "layer", "windowed"), [("mistral", 0, True), ("qwen2", 0, False), ("qwen2", 2, True)]
)
def test_every_figure_hatches_what_is_outside(
    folder: Callable[[str], str], family: str, layer: int, windowed: bool
) -> None:
    shown = screen(folder(family), layer)
    half = shown.halves[0]
    assert half.comparison is not None
    length = len(half.comparison.encoding)
    assert length > WINDOW + 2
    outside = ~open_cells(length, windowed)
    compared = panels(compare.describe(shown, half))
    changed = panels(effect.describe(shown.place(Asked())))
    pair = Place("sentences", shown.session, 0, layer, 1, asked=Asked(first=TEXT, second=f"then {TEXT}"))
    first, _, both = map(panels, sentences.describe(pair))
    for panel in (compared["from scratch"], compared["model"], changed["weight"], first["first"]):
        assert (masked(panel, length) == outside).all()
    weights = np.frombuffer(base64.b64decode(compared["model"]["data"]), "<f4").reshape(length, length)
    assert (weights[outside] == 0).all() and (weights[~outside] > 0).all()
    # All tokens of the first sentence are in the second, one further on.
    assert (masked(both["first"], length) == outside).all()
    assert (masked(both["second"], length) == outside).all()


def test_the_mean_over_layers_with_and_without_a_window_is_open_where_one_of_them_is(
    folder: Callable[[str], str],
) -> None:
    shown = screen(folder("qwen2"), 2, average="all")
    drawn = panels(compare.describe(shown, shown.halves[0]))["model"]
    length = round(len(base64.b64decode(drawn["masked"])) ** 0.5)
    assert (masked(drawn, length) == ~open_cells(length, windowed=False)).all()


def test_without_the_causal_mask_the_window_stays(folder: Callable[[str], str]) -> None:
    shown = screen(folder("mistral"), 1)
    drawn = panels(masks.describe(shown, shown.halves[0]))
    under = drawn["under bidirectional"]
    length = round(len(base64.b64decode(under["masked"])) ** 0.5)
    query, key = np.indices((length, length))
    assert (masked(under, length) == (abs(query - key) >= WINDOW)).all()
    weights = np.frombuffer(base64.b64decode(under["data"]), "<f4").reshape(length, length)
    assert (weights[abs(query - key) >= WINDOW] == 0).all() and weights[0, WINDOW - 1] > 0
    for kind, closed in (("causal", ~open_cells(length)), ("bidirectional", abs(query - key) >= WINDOW)):
        may = np.frombuffer(base64.b64decode(drawn[f"{kind} mask"]["data"]), "<f4").reshape(length, length)
        assert ((may == 0) == closed).all()


def test_all_heads_say_which_cells_are_masked(visitor: Visitor, folder: Callable[[str], str]) -> None:
    visitor.open("heads", text=TEXT, a=folder("qwen2"), ah="2.1")
    canvas = visitor.page.locator(".hd-one canvas")
    read = visitor.page.locator(".hd-readout")
    for layer, is_masked in ((2, True), (0, False)):
        if layer == 0:
            visitor.page.locator("#layer-a input[type=range]").press("Home")
            visitor.page.wait_for_function(
                "document.querySelector('.hd-one h3').textContent.startsWith('layer 0')"
            )
        plan = canvas.evaluate("canvas => ({...canvas.dataset})")
        left, top, cell = (float(plan[name]) for name in ("left", "top", "cell"))
        for query, key, expected in ((9, 9 - WINDOW, is_masked), (9, 10 - WINDOW, False), (3, 4, True)):
            canvas.hover(position={"x": left + cell * (key + 0.5), "y": top + cell * (query + 0.5)})
            visitor.page.wait_for_function(
                "([query, key]) => { const text = document.querySelector('.hd-readout').textContent;"
                " return text.includes(`query ${query} `) && text.includes(`key ${key} `); }",
                arg=[query, key],
            )
            assert (read.text_content() or "").endswith(" (masked)") == expected, (layer, query, key)


def test_a_pooled_cell_is_masked_where_all_of_it_is(folder: Callable[[str], str]) -> None:
    from probe.running.words import single_tokens

    half = screen(folder("mistral"), 0).halves[0]
    assert half.comparison is not None
    kept = single_tokens(half.comparison.encoding)
    length = len(kept)
    small = (length + 3) // 4
    (first, *_) = heads.masked_cells(half.comparison, kept, 4)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(first), "u1"), bitorder="little")[: small**2]
    allowed = open_cells(length)
    for row in range(small):
        for column in range(small):
            block = allowed[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            assert bool(bits[small * row + column]) == (not block.any())
