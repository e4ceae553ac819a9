"""How far heads look: against arithmetic on paper, loops over a run's maps, and in every face."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import probe
from probe import Model
from probe.analyses.compare import compare
from probe.analyses.distances import distances_of, weighted_distance
from probe.cli import app

TEXT = "the cat and the dog and the cat"


def by_loops(weights: torch.Tensor) -> float:
    """Vig and Belinkov 2019: the sum of weight times distance over the sum of weights."""
    far = total = 0.0
    for query, row in enumerate(weights.tolist()):
        for key, weight in enumerate(row):
            far += weight * abs(query - key)
            total += weight
    return far / total


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_maps_on_paper(length: int) -> None:
    causal = torch.ones(length, length).tril()
    causal = causal / causal.sum(-1, keepdim=True)
    assert float(weighted_distance(causal)) == pytest.approx((length - 1) / 4, abs=1e-6)
    alike = torch.full((length, length), 1 / length)
    assert float(weighted_distance(alike)) == pytest.approx((length**2 - 1) / (3 * length), abs=1e-6)
    previous = torch.eye(length).roll(-1, 1)
    previous[0] = torch.eye(length)[0]  # the first token has none before it
    previous = torch.cat([torch.eye(length)[:1], torch.eye(length)[:-1]])
    assert float(weighted_distance(previous)) == pytest.approx((length - 1) / length, abs=1e-12)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_every_head_against_loops(name: str) -> None:
    found, run = probe.distances(name, TEXT), probe.attend(name, TEXT)
    assert [(one.layer, one.head) for one in found.heads] == [place[1:] for place in sorted(run.maps)]
    length = len(run.tokens)
    even = (length - 1) / 4 if name == "gpt2" else (length**2 - 1) / (3 * length)
    for one in found.heads:
        assert one.distance == pytest.approx(by_loops(run.weights(one.layer, one.head)), rel=1e-5)
        assert one.uniform == pytest.approx(even, rel=1e-6)


def test_a_window_bounds_what_is_uniform(rotary_models: dict[str, Model]) -> None:
    model = rotary_models["mistral"]
    window = model.sites[0].window
    assert window is not None
    found = probe.distances(model, "a b c d e f g h i j k l")
    length = len(found.tokens)
    seen = [min(query + 1, window) for query in range(length)]
    expected = sum((count - 1) / 2 for count in seen) / length
    assert found.heads[0].uniform == pytest.approx(expected, rel=1e-6)


def test_a_run_that_was_made_already_gives_the_same(gpt2: Model) -> None:
    kept, again = distances_of(compare(gpt2, TEXT)), probe.distances(gpt2, TEXT)
    for one, other in zip(kept.heads, again.heads, strict=True):
        assert one.distance == pytest.approx(other.distance, rel=1e-5)


def test_the_previous_token_head_is_near(gpt2: Model) -> None:
    """Layer 3, head 5 looks at the token before, so at a distance of 1, but for the first."""
    found = probe.distances(gpt2, "Once upon a time there was a little girl who lived in a house.")
    head = next(one for one in found.heads if (one.layer, one.head) == (3, 5))
    assert head.distance == pytest.approx(1.0, abs=0.15)
    assert found.ranked[0].distance == max(one.distance or 0.0 for one in found.heads)


def test_every_face(gpt2: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = probe.distances(gpt2, TEXT)
    frame = found.to_frame()
    assert frame["distance"].tolist() == [one.distance for one in found.heads]
    assert found.summary in str(found) and "Vig and Belinkov 2019" in str(found)
    assert "<img" in found._repr_html_()
    sheet = found.sheet()
    assert sheet is not None and sheet.panels[0].values.shape == (6, 6)
    assert float(sheet.panels[0].values[2, 3]) == found.heads[2 * 6 + 3].distance
    for suffix in ("json", "npz", "csv", "parquet", "png", "svg", "pdf"):
        result = probe.reproduce(probe.export(found, tmp_path / f"x.{suffix}"))
        assert result.holds, result.reasons
    with pytest.raises(SystemExit) as ended:
        app(["distances", "gpt2", TEXT, "--json"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert np.allclose([one["distance"] for one in printed["heads"]], frame["distance"], rtol=1e-12)


@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_a_model_whose_numbers_are_none(tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2()
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.attn.c_attn.weight"][:] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    found = probe.distances(str(folder), "a b c")
    assert [one.distance is None for one in found.heads if one.layer == 1] == [True] * 3
    assert found.notice is not None and found.notice in str(found)
