"""Figures: what is drawn is the numbers, at their places, under the labels as typed."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import _pylab_helpers
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from transformers import MistralConfig, MistralModel

import probe
from origins import MADE_UP
from probe.analyses.result import Result
from probe.display import picture as figures
from probe.display.colors import WEIGHT
from probe.display.data import Sheet
from probe.display.picture import draw, figure_bytes
from probe.running.inputs import encode_for
from probe.running.words import Words, group_words, single_tokens

REPEATED = "the cat and the dog and the cat"


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    """A character that matplotlib draws as a box is a warning, and so fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def maps(figure: Figure) -> list[Any]:
    """The axes that hold a heatmap, left to right; colour bars have none."""
    return [axes for axes in figure.axes if axes.images]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def caption(figure: Figure) -> str:
    return " ".join(" ".join(texts(figure)).split())


def labels(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


def run_of(labels: tuple[str, ...], weights: torch.Tensor | None = None) -> probe.Run:
    """A run with made-up tokens and weights, of one layer with one head."""
    size = len(labels)
    return probe.Run(
        origin=MADE_UP, text="", tokens=labels, spans=None, special=(False,) * size,
        truncated=None, heads={"self": (1,)},
        maps={("self", 0, 0): torch.full((size, size), 1 / size) if weights is None else weights},
    )  # fmt: skip


def draw_head(
    run: probe.Run, layer: int, head: int, shown: Words | None = None, kind: str | None = None
) -> Figure:
    return figure_of(run.only(layer, head, kind), shown)


def draw_comparison(
    comparison: probe.Comparison, layer: int, head: int, shown: Words | None = None
) -> Figure:
    return figure_of(comparison.only(layer, head), shown)


def figure_of(result: Result, shown: Words | None = None) -> Figure:
    return draw(sheet_of(result) if shown is None else sheet_of(result).grouped(shown))


def sheet_of(result: Result) -> Sheet:
    sheet = result.sheet()
    assert sheet is not None
    return sheet


def test_repeated_words_keep_their_rows_and_columns(gpt2: probe.Model) -> None:
    run = probe.attend(gpt2, REPEATED, [(1, 2)])
    figure = draw_head(run, 1, 2)
    (axes,) = maps(figure)
    drawn = axes.images[0].get_array()
    assert drawn.shape == (len(run.tokens), len(run.tokens))
    assert np.array_equal(np.ma.getdata(drawn), run.weights(1, 2).double().numpy())
    assert labels(axes.xaxis) == labels(axes.yaxis) == list(run.tokens)
    assert list(axes.get_xticks()) == list(axes.get_yticks()) == list(range(len(run.tokens)))
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("query", "key")
    # Row 0 at the top, column 0 at the left.
    assert axes.get_ylim()[0] > axes.get_ylim()[1] and axes.get_xlim()[0] < axes.get_xlim()[1]
    assert axes.images[0].get_clim() == (0.0, 1.0)
    assert "gpt2-stories (bundled), layer 1, head 2" in texts(figure)


def test_a_cell_has_the_colour_of_its_weight() -> None:
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    figure = draw_head(run_of(("a", "b"), weights), 0, 0)
    picture = imread(io.BytesIO(figure_bytes(figure)))
    (axes,) = maps(figure)
    height = picture.shape[0]
    for (query, key), weight in np.ndenumerate(weights.numpy()):
        x, y = axes.transData.transform((key, query))
        expected = np.array(WEIGHT["light"].rgb(float(weight))) / 255
        np.testing.assert_allclose(picture[height - 1 - int(y), int(x), :3], expected, atol=0.01)


def test_the_comparison_shows_both_sides_and_their_difference(gpt2: probe.Model) -> None:
    comparison = probe.compare(gpt2, REPEATED)
    figure = draw_comparison(comparison, 2, 3)
    ours, theirs, difference = maps(figure)
    future = np.triu(np.ones((8, 8), dtype=bool), 1)
    assert [axes.get_xlabel() for axes in (ours, theirs, difference)] == ["key"] * 3
    for axes, side in ((ours, comparison.from_scratch(2, 3)), (theirs, comparison.from_model(2, 3))):
        drawn = axes.images[0].get_array()
        assert np.array_equal(drawn.mask, future)
        assert np.array_equal(drawn.data, side.double().numpy())
    error = (comparison.from_scratch(2, 3) - comparison.from_model(2, 3)).abs().double().numpy()
    zeros, coloured = (image.get_array() for image in difference.images)
    assert np.array_equal(~zeros.mask, (error == 0) & ~future)
    assert np.array_equal(~coloured.mask, error > 0)
    scale = difference.images[1].norm
    assert isinstance(scale, LogNorm) and scale.vmin <= error[error > 0].min() and scale.vmax >= error.max()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["forbidden by the mask", "exactly 0"]
    assert "the two agree" in caption(figure)


def test_a_bidirectional_model_has_nothing_masked(bert: probe.Model) -> None:
    figure = draw_comparison(probe.compare(bert, REPEATED), 0, 0)
    assert not np.ma.getmaskarray(maps(figure)[0].images[0].get_array()).any()
    assert "forbidden" not in caption(figure)


def test_words_and_hidden_special_tokens(bert: probe.Model) -> None:
    text = "Unbelievably, begonias"
    run, encoding = probe.attend(bert, text, [(3, 1)]), encode_for(bert, text)
    words = group_words(encoding).without_special()
    figure = draw_head(run, 3, 1, words)
    (axes,) = maps(figure)
    assert labels(axes.yaxis) == ["Unbelievably", ",", "begonias"]
    pieces = [list(range(start, end)) for start, end in words.pieces]
    weights = run.weights(3, 1).double()
    expected = [[float(weights[rows][:, columns].sum(1).mean()) for columns in pieces] for rows in pieces]
    np.testing.assert_allclose(axes.images[0].get_array().data, expected, atol=1e-6)
    assert "summed over a key word's pieces" in caption(figure) and "sum to less than 1" in caption(figure)
    # [CLS] is the first token and [SEP] the last; each word counts once.
    shares = [float((weights[rows][:, 0] + weights[rows][:, -1]).mean()) for rows in pieces]
    assert f"They have {sum(shares) / 3:.1%} of a query's weight on average" in caption(figure)
    assert "pieces" not in caption(draw_head(run, 3, 1))


def test_words_of_a_causal_model_are_masked_as_wholes(gpt2: probe.Model) -> None:
    text = "Unbelievably, begonias"
    words = group_words(encode_for(gpt2, text))
    ours = maps(draw_comparison(probe.compare(gpt2, text), 0, 0, words))[0]
    assert np.array_equal(ours.images[0].get_array().mask, np.triu(np.ones((3, 3), dtype=bool), 1))


def test_cross_attention_has_the_target_as_rows_and_the_source_as_columns(gpt2: probe.Model) -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    source, target = run_of(("the", "sky", "is")), encode_for(gpt2, "el a")
    run = replace(
        source,
        heads={"encoder": (1,), "decoder": (1,), "cross": (1,)},
        maps={("cross", 0, 0): weights},
        target=target,
    )
    run = replace(run, target=replace(target, tokens=("el", "cielo")))
    figure = draw_head(run, 0, 0, kind="cross")
    (axes,) = maps(figure)
    assert axes.images[0].get_array().shape == (2, 3)
    assert (labels(axes.yaxis), labels(axes.xaxis)) == (["el", "cielo"], ["the", "sky", "is"])
    assert "made-up (here), layer 0, head 0, cross attention" in texts(figure)


def test_a_window_masks_what_lies_further_back(gpt2: probe.Model) -> None:
    config = MistralConfig(
        vocab_size=4096, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=3,
    )  # fmt: skip
    model = probe.load(MistralModel(config), tokenizer=gpt2.tokenizer)
    drawn = maps(draw_comparison(probe.compare(model, REPEATED), 0, 1))[0].images[0].get_array()
    open_cells = [(q, k) for q in range(8) for k in range(8) if 0 <= q - k < 3]
    assert sorted(map(tuple, np.argwhere(~drawn.mask).tolist())) == open_cells
    # The window stays under the other mask.
    figure = figure_of(probe.compare_masks(model, REPEATED, 0, 1))
    first_mask, other_mask, causal, both_ways, _ = (axes.images[0].get_array() for axes in maps(figure))
    assert sorted(map(tuple, np.argwhere(first_mask == 1).tolist())) == open_cells
    assert np.array_equal(other_mask == 1, ~both_ways.mask)
    assert sorted(map(tuple, np.argwhere(~causal.mask).tolist())) == open_cells
    near = [(q, k) for q in range(8) for k in range(8) if abs(q - k) < 3]
    assert sorted(map(tuple, np.argwhere(~both_ways.mask).tolist())) == near


def test_both_masks_side_by_side(gpt2: probe.Model) -> None:
    masks = probe.compare_masks(gpt2, REPEATED, 1, 1)
    figure = figure_of(masks)
    may, may_anywhere, causal, bidirectional, change = (axes.images[0].get_array() for axes in maps(figure))
    assert np.array_equal(may, np.tril(np.ones((8, 8)))) and (may_anywhere == 1).all()
    assert np.array_equal(causal.data, masks.causal.double().numpy())
    assert np.array_equal(bidirectional.data, masks.bidirectional.double().numpy())
    assert not np.ma.getmaskarray(bidirectional).any()
    assert np.array_equal(change.data, (masks.bidirectional - masks.causal).double().numpy())
    (bars,) = (axes for axes in figure.axes if axes.patches and not axes.images)
    assert [bar.get_width() for bar in bars.patches] == masks.moved.double().tolist()
    assert masks.labels["causal"] in caption(figure) and masks.summary in caption(figure)


def test_one_head_on_two_texts(bert: probe.Model) -> None:
    compared = probe.compare_texts(bert, "this coffee is great", "my laptop just died, great", 2, 5)
    figure = figure_of(compared)
    first, second, difference = maps(figure)
    for axes, one in ((first, compared.first), (second, compared.second)):
        assert labels(axes.yaxis) == labels(axes.xaxis) == list(one.tokens)
        assert np.array_equal(axes.images[0].get_array().data, one.weights.double().numpy())
    assert labels(difference.yaxis) == ["[CLS]", "great", "[SEP]"]
    assert np.array_equal(difference.images[0].get_array().data, compared.difference.double().numpy())
    (bars,) = (axes for axes in figure.axes if axes.patches and not axes.images)
    assert [bar.get_width() for bar in bars.patches] == compared.moved.double().tolist()
    assert compared.summary in caption(figure)
    assert len(maps(figure_of(probe.compare_texts(bert, "one", "two", 0, 0)))) == 3  # [CLS] and [SEP]


def test_texts_with_nothing_in_common_have_no_difference_to_draw(gpt2: probe.Model) -> None:
    assert len(maps(figure_of(probe.compare_texts(gpt2, "the", "and", 0, 0)))) == 2


def test_rollout_with_its_caveat(gpt2: probe.Model) -> None:
    rolled = probe.rollout(gpt2, REPEATED)
    figure = draw(replace(sheet_of(rolled), panels=(rolled.panel(1),)))
    assert rolled.caveat in caption(figure)
    assert np.array_equal(maps(figure)[0].images[0].get_array().data, rolled.weights(1).numpy())
    assert rolled.caveat in " ".join(sheet_of(rolled).captions) and "After layer 1" in caption(figure)
    assert "up to layer 5" in caption(figure_of(rolled))


def test_errors_of_all_heads_with_the_failed_ones_crossed(bert: probe.Model) -> None:
    report = probe.verify(bert, "The cat sat.")
    heads = list(report.heads)
    heads[13] = replace(heads[13], max_abs_error=0.5, passed=False)
    heads[-1] = replace(heads[-1], max_abs_error=float("nan"), passed=False)
    figure = figure_of(replace(report, heads=tuple(heads), passed=False))
    (axes,) = maps(figure)
    drawn = axes.images[-1].get_array()
    assert drawn.shape == (6, 12) and (axes.get_ylabel(), axes.get_xlabel()) == ("layer", "head")
    assert drawn[1, 1] == 0.5 and drawn.mask[5, 11]
    assert drawn[3, 4] == report.heads[40].max_abs_error
    assert axes.collections[0].get_offsets().tolist() == [[1.0, 1.0], [11.0, 5.0]]  # (head, layer)
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "did not pass"
    assert "do NOT agree" in caption(figure)
    assert not maps(figure_of(report))[0].collections


def test_a_weight_that_is_not_a_number_is_crossed() -> None:
    figure = draw_head(run_of(("a", "b"), torch.tensor([[1.0, 0.0], [float("nan"), 1.0]])), 0, 0)
    (axes,) = maps(figure)
    assert axes.collections[0].get_offsets().tolist() == [[0.0, 1.0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["not a number"]


def test_equal_sides_have_no_colour_scale_to_fail_on(gpt2: probe.Model) -> None:
    comparison = probe.compare(gpt2, "The cat sat.")
    equal = {place: replace(one, from_scratch=one.from_model) for place, one in comparison.maps.items()}
    same = replace(comparison, maps=equal)
    difference = maps(draw_comparison(same, 0, 0))[2]
    assert difference.images[1].get_array().mask.all()


@pytest.mark.parametrize("count", [1, 30, 120, 300])
def test_labels_never_overlap(count: int) -> None:
    tokens = tuple(f"token{position}" for position in range(count))
    figure = draw_head(run_of(tokens), 0, 0)
    (axes,) = maps(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axis, low, high in ((axes.xaxis, "x0", "x1"), (axes.yaxis, "y0", "y1")):
        boxes = [text.get_window_extent(renderer) for text in axis.get_ticklabels()]
        ranges = sorted((getattr(box, low), getattr(box, high)) for box in boxes)
        assert all(left[1] <= right[0] for left, right in pairwise(ranges))
    assert labels(axes.xaxis) == [tokens[int(position)] for position in axes.get_xticks()]
    assert ("is labelled" in caption(figure)) == (len(axes.get_xticks()) < count) == (count >= 120)
    prose = [axes.xaxis.label, axes.yaxis.label, *(text for text in figure.texts if text.get_text())]
    for one, other in combinations([text.get_window_extent(renderer) for text in prose], 2):
        assert not one.overlaps(other)
    size = figure.get_window_extent(renderer)
    for text in figure.findobj(Text):
        box = text.get_window_extent(renderer)
        assert not text.get_text() or (size.x0 <= box.x0 and box.x1 <= size.x1), text.get_text()
        assert not text.get_text() or (size.y0 <= box.y0 and box.y1 <= size.y1), text.get_text()


def test_long_labels_are_cut_and_the_figure_says_so() -> None:
    figure = draw_head(run_of(("a" * 40, "b")), 0, 0)
    assert labels(maps(figure)[0].yaxis) == ["a" * 17 + "…", "b"]
    assert "Long labels are cut." in caption(figure)
    assert "Long labels" not in caption(draw_head(run_of(("a" * 18, "b")), 0, 0))


def test_no_text_is_mathematics() -> None:
    tokens = ("$x$", r"$\frac", "$", r"a\$b", "x_1^2", "%")
    figure = draw_head(run_of(tokens), 0, 0)
    assert labels(maps(figure)[0].yaxis) == list(tokens)
    for format in ("png", "svg", "pdf"):
        figure_bytes(figure, format)  # r"$\frac" read as mathematics would be an error
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())


CHINESE = ("中文", "句子", "注意力")


def test_chinese_is_drawn_or_the_figure_names_the_font() -> None:
    figure = draw_head(run_of(CHINESE), 0, 0)
    shown = labels(maps(figure)[0].yaxis)
    figure_bytes(figure)  # warnings are errors here, and a box would be a warning
    if shown != list(CHINESE):
        assert shown[0] == "U+4E2D U+6587" and "install Noto Sans CJK" in caption(figure)


@pytest.mark.parametrize(
    ("token", "shown", "font"),
    [
        ("中文", "U+4E2D U+6587", "Noto Sans CJK"),
        ("a\U0001f642", "a U+1F642", "Noto Emoji"),
        ("न", "U+0928", "Noto Sans Devanagari"),
        ("\U00010330", "U+10330", "Noto Sans Gothic"),
        ("\u2400", "U+2400", "Noto Sans Symbols 2"),
    ],
)
def test_what_no_font_can_draw_is_written_as_code_points(
    token: str, shown: str, font: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last two hold something for every character, but not what it looks like.
    names = ("DejaVu Sans", "Last Resort", "STIX")
    only = [entry for entry in figures.fontManager.ttflist if entry.name.startswith(names)]
    monkeypatch.setattr(
        figures, "fontManager", SimpleNamespace(ttflist=only, findfont=figures.fontManager.findfont)
    )
    monkeypatch.setattr(figures, "_family", figures._family.__wrapped__)
    figure = draw_head(run_of((token, "b")), 0, 0)
    assert labels(maps(figure)[0].yaxis) == [shown, "b"]
    assert "No font installed here can draw U+" in caption(figure) and f"install {font}" in caption(figure)
    figure_bytes(figure)


def test_one_truth_about_which_characters_a_font_has() -> None:
    """The drawn ink agrees: no two of these look alike, as boxes would."""
    drawable = [
        token for token in ("é", "Ж", "λ", "א", "␣", "中", "文") if figures._Lettering([token]).missing == []
    ]
    assert {"é", "Ж", "λ"} <= set(drawable)
    pictures = set()
    for token in drawable:
        figure = Figure(figsize=(1, 1))
        figure.text(0.3, 0.3, token, fontsize=30, fontfamily=figures._Lettering([token]).families)
        pictures.add(figure_bytes(figure))
    assert len(pictures) == len(drawable)


def test_odd_names_end_up_as_text() -> None:
    name = "</svg><script>alert(1)</script> & \x0c\ud800\n\u202e"
    run = replace(run_of(("<img onerror=x>", "-->", "]]>")), origin=replace(MADE_UP, model=name))
    figure = draw_head(run, 0, 0)
    root = ElementTree.fromstring(figure_bytes(figure, "svg"))
    assert not [element for element in root.iter() if element.tag.endswith(("script", "img"))]
    assert "U+000C" in caption(figure) and "U+D800" in caption(figure) and "U+202E" in caption(figure)
    figure_bytes(figure, "png"), figure_bytes(figure, "pdf")


def test_letters_of_an_svg_are_text() -> None:
    """Each label in one piece, right-to-left words in their logical order: what shows it turns them."""
    tokens = ("naïve", "שלום", "مرحبا", "中文")
    figure = draw_head(run_of(tokens), 0, 0)
    shown = labels(maps(figure)[0].yaxis)
    root = ElementTree.fromstring(figure_bytes(figure, "svg"))
    written = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert shown[0] == "naïve"
    for label in shown:
        assert written.count(label) == 2  # of a row and of a column
    families = {element.get("style", "") for element in root.iter() if element.tag.endswith("}text")}
    assert all("sans-serif" in style for style in families)


def test_files() -> None:
    figure = draw_head(run_of(("中", "a")), 0, 0)
    png, svg, pdf = (figure_bytes(figure, format) for format in ("png", "svg", "pdf"))
    width, height = figure.get_size_inches() * figure.dpi
    assert imread(io.BytesIO(png)).shape[:2] == (int(height), int(width))
    assert svg.startswith(b"<?xml") and b"made-up (here), layer 0, head 0" in svg and pdf.startswith(b"%PDF")
    with pytest.raises(probe.ProbeError, match="png, svg, pdf, not as 'gif'"):
        figure_bytes(figure, "gif")


def test_a_long_text_keeps_a_pixel_for_every_cell() -> None:
    size = 1600
    weights = torch.zeros(size, size)
    weights[7, 1234] = 1.0
    figure = draw_head(run_of(("a",) * size, weights), 0, 0)
    picture = imread(io.BytesIO(figure_bytes(figure)))
    dark = np.isclose(picture[..., :3], np.array(WEIGHT["light"].rgb(1.0)) / 255, atol=0.01).all(-1)
    (axes,) = maps(figure)
    box = axes.get_window_extent()
    assert min(box.width, box.height) >= size
    inside = dark[:, int(box.x0) + 2 : int(box.x1) - 2]
    assert inside.any()


def test_figures_are_drawn_the_same_by_many_threads_at_once(gpt2: probe.Model) -> None:
    run = probe.attend(gpt2, REPEATED)
    heads = [(layer, head) for layer in range(2) for head in range(2)]
    alone = [figure_bytes(draw_head(run, *pair)) for pair in heads]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pair: figure_bytes(draw_head(run, *pair)), heads * 2))
    assert together == alone * 2
    assert _pylab_helpers.Gcf.get_num_fig_managers() == 0


def test_maps_of_other_texts_and_heads_are_refused(gpt2: probe.Model) -> None:
    run = probe.attend(gpt2, REPEATED, [(0, 0)])
    with pytest.raises(probe.ProbeError, match="is not in this run"):
        draw_head(run, 0, 1)
    for layer in (6, -7):
        with pytest.raises(probe.ProbeError, match=f"no layer {layer}"):
            draw_comparison(probe.compare(gpt2, "a"), layer, 0)
    other: Words = single_tokens(probe.attend(gpt2, "another text", [(0, 0)]))
    with pytest.raises(probe.ProbeError, match="take both from the same text"):
        draw_head(run, 0, 0, other)


STYLES: dict[str, Any] = {
    "dark": {"text.color": "white", "axes.facecolor": "black", "figure.facecolor": "black"},
    "grid": {"axes.grid": True, "axes.axisbelow": False, "grid.linewidth": 3.0},
    "from below": {"image.origin": "lower", "font.size": 20.0, "savefig.facecolor": "red"},
}


@pytest.mark.parametrize("style", STYLES)
def test_a_notebooks_style_stays_outside(gpt2: probe.Model, style: str) -> None:
    sheet = probe.compare_masks(gpt2, REPEATED, 4, 5).sheet()
    plain = figure_bytes(draw(sheet))
    with matplotlib.rc_context(STYLES[style]):
        assert figure_bytes(draw(sheet)) == plain
        assert {name: matplotlib.rcParams[name] for name in STYLES[style]} == STYLES[style]


def test_a_pdf_has_no_type_3_fonts(gpt2: probe.Model) -> None:
    """The journals' rule; a font that is embedded whole or in part says what it is by its Subtype."""
    written = figure_bytes(draw(probe.attend(gpt2, REPEATED, [(4, 5)]).sheet()), "pdf")
    assert b"/Subtype /Type3" not in written
    assert b"/FontFile2" in written
