"""bertviz's views: drawn in their frames from the toolkit's numbers; nothing comes in, nothing gets out."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from browser.conftest import Visitor
from PIL import Image
from playwright.sync_api import Frame, Locator

import probe
from probe.ui.state import DEFAULT_HEADS, DEFAULT_TEXT
from probe.ui.views.bertviz import NUMBERS, SHAPES, Plan, drawing, plan

MODELS = ("bert", "gpt2")
LAYERS = [layer for layer, _ in DEFAULT_HEADS]
BOTH_NEW = """
    old => {
        const cards = [...document.querySelectorAll("#bertviz-frames section")];
        const now = cards.map((card) => card.dataset.painted);
        return now.length === 2 && now.every((stamp, i) => stamp && stamp !== old[i]);
    }
"""


def card(visitor: Visitor, slot: int) -> Locator:
    return visitor.page.locator("#bertviz-frames section").nth(slot)


def frame(visitor: Visitor, slot: int) -> Frame:
    """The frame of one model, once bertviz has drawn in it."""
    drawn = visitor.page.locator("#bertviz-frames section[data-painted]")
    drawn.nth(slot).locator("iframe").wait_for()
    element = card(visitor, slot).locator("iframe").element_handle()
    found = element.content_frame()
    assert found is not None
    return found


def draw(visitor: Visitor, **query: str) -> None:
    visitor.open("bertviz", **query)
    wait_for_both(visitor)


def wait_for_both(visitor: Visitor) -> None:
    visitor.page.wait_for_function(
        "document.querySelectorAll('#bertviz-frames section[data-painted]').length === 2"
    )


@pytest.fixture
def drawn(look: Callable[..., Visitor]) -> Visitor:
    """The view as it opens, for tests that only look at it."""
    visitor = look("bertviz")
    wait_for_both(visitor)
    return visitor


def choose_model_view(visitor: Visitor) -> None:
    old = [card(visitor, slot).get_attribute("data-painted") for slot in (0, 1)]
    visitor.page.locator("#bertviz-kind label").nth(1).click()
    visitor.page.wait_for_function(BOTH_NEW, arg=old)


def lines(inside: Frame, within: str) -> list[float]:
    """The weights that bertviz has drawn, as it has bound them to its lines."""
    weights: list[float] = inside.evaluate(
        "within => [...document.querySelectorAll(within + ' line')].map(line => line.__data__)", within
    )
    return weights


def test_head_view_holds_the_weights_of_the_chosen_layer(drawn: Visitor) -> None:
    for slot, name, layer in ((0, "bert", LAYERS[0]), (1, "gpt2", LAYERS[1])):
        comparison = probe.compare(name, DEFAULT_TEXT)
        heads, length = comparison.model.num_heads, len(comparison.encoding)
        inside = frame(drawn, slot)
        assert inside.locator("#layer").input_value() == str(layer)
        expected = torch.stack([comparison.from_model(layer, head) for head in range(heads)])
        found = torch.tensor(lines(inside, "#attention")).reshape(heads, length, length)
        torch.testing.assert_close(found, expected, rtol=0, atol=5.1e-5)
        opacity = inside.locator("#attention line").nth(length + 2).get_attribute("stroke-opacity")
        assert float(opacity or "nan") * heads == pytest.approx(float(expected[0, 1, 2]), abs=5.1e-5)
        labels = inside.locator("#left text").all_text_contents()
        assert labels == list(comparison.encoding.tokens)


def test_pointing_at_a_token_shows_its_row(drawn: Visitor) -> None:
    weights = probe.attend("bert", DEFAULT_TEXT).weights(3, 1)
    inside = frame(drawn, 0)
    inside.locator("#left text").nth(11).hover()
    shown = inside.locator("#right .attentionBoxes g[head-index='1'] rect").evaluate_all(
        "boxes => boxes.map(box => Number(box.style.opacity))"
    )
    assert shown == pytest.approx(weights[11].tolist(), abs=5.1e-5)


@pytest.mark.own_page
def test_another_layer_chosen_in_the_frame(visitor: Visitor) -> None:
    draw(visitor)
    inside = frame(visitor, 1)
    inside.locator("#layer").select_option("0")
    comparison = probe.compare("gpt2", DEFAULT_TEXT)
    expected = torch.stack([comparison.from_model(0, head) for head in range(6)]).flatten()
    torch.testing.assert_close(torch.tensor(lines(inside, "#attention")), expected, rtol=0, atol=5.1e-5)


def test_model_view_holds_every_head_and_a_click_enlarges_one(visitor: Visitor) -> None:
    draw(visitor)
    choose_model_view(visitor)
    for slot, name in enumerate(MODELS):
        comparison = probe.compare(name, DEFAULT_TEXT)
        model = comparison.model
        maps = [
            comparison.from_model(layer, head)
            for layer in range(model.num_layers)
            for head in range(model.num_heads)
        ]
        found = torch.tensor(lines(frame(visitor, slot), "#vis"))
        torch.testing.assert_close(found, torch.stack(maps).flatten(), rtol=0, atol=5.1e-5)
    inside = frame(visitor, 0)
    inside.locator("#vis svg > g > rect:last-child").nth(2 * 12 + 4).click()
    assert inside.locator(".detail", has_text="Layer 2, Head 4").count() == 1
    assert inside.locator(".detail text.token", has_text="suitcase").count() == 2


@pytest.mark.parametrize("width", [2560, 390])
def test_both_views_fit_the_width(visit, width: int) -> None:  # type: ignore[no-untyped-def]
    visitor = visit(own=True, width=width, height=2600)
    draw(visitor)
    for kind in ("head", "model"):
        if kind == "model":
            choose_model_view(visitor)
        for slot in (0, 1):
            right, inner, body, height = frame(visitor, slot).evaluate(
                "() => [document.querySelector('#vis svg').getBoundingClientRect().right, innerWidth,"
                " document.body.scrollWidth, document.body.offsetHeight]"
            )
            assert right <= inner and body <= inner
            box = card(visitor, slot).locator("iframe").bounding_box()
            assert box is not None and box["height"] == pytest.approx(height, abs=2)
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_second_run_draws_the_second_text(visitor: Visitor) -> None:
    draw(visitor)
    first = frame(visitor, 0).locator("#left text").all_text_contents()
    old = [card(visitor, slot).get_attribute("data-painted") for slot in (0, 1)]
    box = visitor.page.locator("#sentence textarea")
    box.fill("Rain fell on the old stone bridge.")
    box.press("Enter")
    visitor.page.wait_for_function(BOTH_NEW, arg=old)
    for slot, name in enumerate(MODELS):
        tokens = list(probe.attend(name, "Rain fell on the old stone bridge.").tokens)
        assert frame(visitor, slot).locator("#left text").all_text_contents() == tokens
        assert tokens != first
    assert visitor.page.locator("#bertviz-frames iframe").count() == 2


@pytest.mark.own_page
def test_a_frame_stays_when_only_another_tab_was_looked_at(visitor: Visitor) -> None:
    draw(visitor)
    frame(visitor, 0).evaluate("() => { window.stillHere = true; }")
    visitor.page.get_by_role("tab", name="Masks").click()
    visitor.page.locator("#masks-a [data-painted]").wait_for()
    visitor.page.get_by_role("tab", name="bertviz").click()
    frame(visitor, 0).locator("#left text").first.wait_for()
    assert frame(visitor, 0).locator("#left text").count() == len(probe.attend("bert", DEFAULT_TEXT).tokens)


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "</script><script>alert(1)</script>",
    "<!-- <script> PYTHON_PARAMS \u2028 end",
)


@pytest.mark.parametrize("text", [" ".join(HOSTILE[:2]), " ".join(HOSTILE[2:])])
def test_tokens_are_text_and_nothing_else(visitor: Visitor, text: str) -> None:
    draw(visitor, text=text, words="yes")
    for slot, name in enumerate(MODELS):
        inside = frame(visitor, slot)
        shown = "".join(inside.locator("#left text").evaluate_all("all => all.map(t => t.firstChild.data)"))
        assert re.sub(r"[^a-z]", "", shown.lower()).count("alert") == text.count("alert") >= 1
        assert inside.locator("#vis img, #vis script, body > img, [onmouseover], [onerror]").count() == 0
        assert inside.evaluate("() => document.scripts.length") == 6, name


def test_the_frame_can_reach_neither_page_nor_network(drawn: Visitor) -> None:
    element = card(drawn, 0).locator("iframe")
    assert element.get_attribute("sandbox") == "allow-scripts"
    inside = frame(drawn, 0)
    assert inside.evaluate("() => self.origin") == "null"
    assert (
        inside.evaluate("() => { try { return parent.document.title; } catch { return 'refused'; } }")
        == "refused"
    )
    blocked = inside.evaluate(
        "() => new Promise(done => { document.addEventListener('securitypolicyviolation',"
        " event => done(event.effectiveDirective)); new Image().src = 'data:image/png;base64,AAAA'; })"
    )
    assert blocked == "img-src"
    assert [text[:32] for text in drawn.complaints] == ["Loading the image 'data:image/pn"]
    drawn.complaints.clear()


def test_a_long_text_is_drawn_in_part_and_says_why(visitor: Visitor) -> None:
    draw(visitor, text=" ".join(["the old cat sat on a warm mat and slept"] * 20))
    for slot, layer, heads, tokens in ((0, LAYERS[0], 12, 202), (1, LAYERS[1], 6, 200)):
        notice = card(visitor, slot).locator(".af-notice").text_content() or ""
        assert f"Only layer {layer} is drawn" in notice and f"Of its {tokens} tokens" in notice
        assert f"{3 * heads * tokens**2:,} shapes" in notice
        inside = frame(visitor, slot)
        assert inside.locator("#layer option").all_text_contents() == [str(layer)]
        assert (
            inside.evaluate("() => document.querySelectorAll('#vis line, #vis .attentionBoxes rect').length")
            <= SHAPES
        )
    # the page answers
    visitor.page.get_by_role("tab", name="Compare").click()
    visitor.page.locator("#compare-a [data-painted]").wait_for()


def darkened(inside: Frame) -> None:
    """Wait until a frame has followed the page. Its policy forbids it to evaluate, as waiting in it would."""
    for _ in range(200):
        if inside.evaluate("() => document.documentElement.classList.contains('dark')"):
            return
        inside.page.wait_for_timeout(25)
    pytest.fail("the frame stays light")


@pytest.mark.own_page
def test_dark_and_light(visitor: Visitor) -> None:
    draw(visitor)
    read = (
        "() => [getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('#left text')).fill]"
    )
    inside = frame(visitor, 0)
    assert inside.evaluate(read) == ["rgb(255, 255, 255)", "rgb(23, 33, 43)"]
    visitor.page.evaluate("document.body.classList.add('dark')")
    darkened(inside)
    assert inside.evaluate(read) == ["rgb(24, 32, 39)", "rgb(232, 237, 241)"]


def away_from_paper(inside: Frame, lines: str, paper: str) -> float:
    """How far the lines' lightness is from that of what they are drawn on: CIE 1976 L*, on average."""
    picture = Image.open(io.BytesIO(inside.locator(lines).first.screenshot())).convert("RGB")
    levels = np.array([lightness(rgb) for rgb in np.asarray(picture).reshape(-1, 3).tolist()])
    return float(abs(levels - lightness(tuple(int(part) for part in paper[4:-1].split(",")))).mean())


def lightness(rgb: tuple[int, ...]) -> float:
    red, green, blue = (
        c / 12.92 if (c := channel / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for channel in rgb
    )
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return 116 * y ** (1 / 3) - 16 if y > (6 / 29) ** 3 else y * (29 / 3) ** 3


@pytest.mark.parametrize(("kind", "lines"), [("head", "#attention"), ("model", "#vis svg > g:has(line)")])
def test_lines_stand_out_on_black_as_they_do_on_white(visit, kind: str, lines: str) -> None:  # type: ignore[no-untyped-def]
    visitor = visit(own=True, height=2600)
    draw(visitor, bertviz=kind)
    for slot in (0, 1):
        inside = frame(visitor, slot)
        on_white = away_from_paper(inside, lines, "rgb(255, 255, 255)")
        visitor.page.evaluate("document.body.classList.add('dark')")
        darkened(inside)
        on_black = away_from_paper(inside, lines, "rgb(24, 32, 39)")
        assert on_black > on_white > 2
        visitor.page.evaluate("document.body.classList.remove('dark')")


def test_a_pair_of_sentences_can_be_looked_at_by_sentence(visitor: Visitor) -> None:
    draw(visitor, text="The rain fell.", second="We stayed inside.")
    tokens = probe.attend("bert", ("The rain fell.", "We stayed inside.")).tokens
    inside = frame(visitor, 0)
    inside.locator("#filter").select_option(label="Sentence B -> Sentence B")
    assert inside.locator("#left text").all_text_contents() == list(tokens[tokens.index("[SEP]") + 1 :])
    assert frame(visitor, 1).locator("#filter").count() == 0  # GPT-2 takes no pairs


def test_the_view_points_to_steps(drawn: Visitor) -> None:
    lead = (drawn.page.locator("#tab-bertviz .lead").text_content() or "").replace("\n", " ")
    assert "Steps is the neuron view for every model" in lead


# ---- what is decided without a browser


@pytest.mark.parametrize("kind", ["head", "model"])
@pytest.mark.parametrize("num_tokens", [1, 16, 22, 31, 32, 64, 128, 300, 512])
def test_no_plan_goes_over_what_can_be_drawn(kind: str, num_tokens: int) -> None:
    chosen = plan(kind, 12, 12, num_tokens, 5, num_tokens // 2)
    shown = chosen.end - chosen.start
    pairs = 12 * shown**2
    assert (3 if kind == "head" else len(chosen.layers)) * pairs <= SHAPES
    assert len(chosen.layers) * pairs <= NUMBERS
    assert 0 <= chosen.start <= num_tokens // 2 < chosen.end <= num_tokens
    assert chosen.layers in (tuple(range(12)), (5,))


def test_a_short_text_is_drawn_whole_and_a_long_one_around_the_query() -> None:
    assert plan("head", 6, 12, 17, 3, 0) == Plan((0, 1, 2, 3, 4, 5), 0, 17)
    assert plan("model", 12, 12, 32, 3, 0) == Plan((3,), 0, 32)
    last = plan("head", 12, 12, 300, 3, 299)
    assert (last.layers, last.end) == ((3,), 300)


def test_another_bertviz_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import bertviz
    from IPython.display import HTML

    monkeypatch.setattr(bertviz, "head_view", lambda *args, **options: HTML("<script>const p = {};</script>"))
    with pytest.raises(probe.ProbeError, match=r"install bertviz 1\.4"):
        drawing("head", torch.ones(1, 1, 1, 1), (0,), 0, ["a"], None)


@pytest.mark.parametrize("token", [*HOSTILE, "token 0", "\\u003c/script>"])
def test_no_token_ends_the_script(token: str) -> None:
    page = drawing("head", torch.rand(1, 2, 2, 2), (4,), 4, [token, "b"], None)
    assert page.count("<script") == page.count("</script") == 1 and "<!--" not in page
    assert "cdnjs.cloudflare.com/ajax/libs/require.js" not in page
