"""What results show in a notebook, and the tutorial."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import probe
from probe import Model
from probe.display.page import coarse
from scripts.run_notebook import TUTORIAL, executed

ROOT = Path(__file__).parents[2]
TEXT = '</div><script>alert(1)</script> <img src=x onerror=alert(1)> & "it\'s" the cat and the cat'
KINDS = ("all heads", "one head", "report", "masks", "comparison", "trace")


class Reader(HTMLParser):
    """Collects elements, what they say, and their pictures."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.pictures: dict[str, Any] = {}
        self.cells: list[str] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}
        values = dict(attrs)
        if tag == "img":
            kind, _, data = (values["src"] or "").partition(",")
            assert kind == "data:image/png;base64"
            self.pictures[values["alt"] or ""] = imread(io.BytesIO(base64.b64decode(data)))
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.elements[-1] == "td":
            self.cells[-1] += data


@pytest.fixture(scope="module")
def shown(gpt2: Model) -> dict[str, Any]:
    return {
        "all heads": probe.attend(gpt2, TEXT),
        "one head": probe.attend(gpt2, TEXT, [(4, 5)]),
        "report": probe.verify(gpt2, TEXT),
        "masks": probe.compare_masks(gpt2, TEXT, 4, 5),
        "comparison": probe.compare(gpt2, TEXT),
        "trace": probe.trace(gpt2, TEXT, 4, 5, 6),
    }


@pytest.mark.parametrize("what", KINDS)
def test_html_is_escaped_and_asks_for_nothing(shown: dict[str, Any], what: str) -> None:
    reader = Reader(shown[what]._repr_html_())
    assert set(reader.elements) <= {"div", "table", "thead", "tbody", "tr", "th", "td", "img"}
    assert reader.attributes <= {"style", "src", "alt", "title"}
    if what in ("all heads", "one head", "comparison", "trace"):
        assert TEXT in reader.text


def test_small_pictures_are_the_heads(gpt2: Model) -> None:
    run = probe.attend(gpt2, "the cat and the dog and the cat")
    pictures = Reader(run._repr_html_()).pictures
    assert list(pictures) == [f"layer {layer}, head {head}" for layer in range(6) for head in range(6)]
    for layer, head in ((0, 0), (5, 3)):
        picture, weights = pictures[f"layer {layer}, head {head}"], run.weights(layer, head)
        assert picture.shape[:2] == weights.shape
        # Light to dark: the more weight, the less light.
        light = picture[..., :3].sum(-1).ravel()[weights.ravel().argsort().numpy()]
        assert (np.diff(light) <= 0).all() and light[0] > 2 * light[-1]


def test_small_pictures_of_a_comparison_are_the_models_own(gpt2: Model) -> None:
    """Not those from scratch: where the two are apart, the pictures are of the maps that the model gave."""
    text = "the cat and the dog and the cat"
    comparison = probe.compare(gpt2, text)
    maps = {place: replace(of, from_model=of.from_model.roll(1, -1)) for place, of in comparison.maps.items()}
    apart = Reader(replace(comparison, maps=maps)._repr_html_())
    as_it_is, run = Reader(comparison._repr_html_()), Reader(probe.attend(gpt2, text)._repr_html_())
    name = "layer 4, head 5"
    assert (as_it_is.pictures[name] == run.pictures[name]).all()
    assert (apart.pictures[name] == np.roll(run.pictures[name], 1, axis=1)).all()
    said = "the model's own maps, a row for each layer, a column for each head"
    assert said in as_it_is.text and "the model's own" not in run.text


def test_large_maps_are_pooled_to_small_pictures() -> None:
    weights = torch.rand(100, 100).softmax(-1)
    pooled = coarse(weights, 48)
    assert pooled.shape == (34, 34)  # three tokens a cell
    torch.testing.assert_close(pooled[1, 2], weights[3:6, 6:9].sum(1).mean())
    torch.testing.assert_close(pooled.sum(1), torch.ones(34))


def test_the_trace_is_a_table_of_its_numbers(shown: dict[str, Any]) -> None:
    trace = shown["trace"]
    cells = Reader(trace._repr_html_()).cells
    rows = [cells[start : start + 7] for start in range(0, len(cells), 7)]
    assert [row[1] for row in rows] == list(trace.tokens)
    for key, row in enumerate(rows):
        assert float(row[2]) == pytest.approx(float(trace.dot_products[key]), rel=1e-6)
        assert (
            row[3] == "masked"
            if key > 6
            else float(row[3]) == pytest.approx(float(trace.scaled[key]), rel=1e-6)
        )
        assert float(row[5]) == pytest.approx(float(trace.weights[key]), rel=1e-6)
        assert float(row[6]) == pytest.approx(float(trace.model_weights[key]), rel=1e-6)


def test_verdicts_are_shown(shown: dict[str, Any]) -> None:
    for what, verdict in (
        ("report", shown["report"].verdict),
        ("comparison", shown["comparison"].report.verdict),
        ("masks", shown["masks"].summary),
    ):
        assert verdict in Reader(shown[what]._repr_html_()).text


def test_importing_probe_loads_nothing_for_drawing() -> None:
    code = (
        "import sys, probe; print([name for name in ('matplotlib', 'openpyxl', 'IPython', "
        "'probe.display.picture', 'probe.display.notebook') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.stdout.strip(), run.returncode) == ("[]", 0), run.stderr


@pytest.mark.slow
def test_the_tutorial_runs_and_shows_what_is_committed() -> None:
    committed = json.loads(TUTORIAL.read_text("utf-8"))
    again = executed(TUTORIAL)
    for before, after in zip(committed["cells"], again.cells, strict=True):
        if before["cell_type"] == "code":
            assert before["execution_count"] == after.execution_count
            assert [kinds(one) for one in before["outputs"]] == [kinds(one) for one in after.outputs]
    shown = [kind for cell in committed["cells"] for one in cell.get("outputs", []) for kind in kinds(one)]
    assert shown.count("text/html") >= 6 and "error" not in shown


def kinds(output: Any) -> list[str]:
    return sorted(output["data"]) if "data" in output else [output["output_type"]]
