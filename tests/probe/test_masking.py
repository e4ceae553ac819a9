"""Both masks on models with rotary positions, shared keys and windows, against transformers given them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from texts import STORY, eager_maps

import probe
import tiny
from probe import Model

TEXT = STORY[:110]
TWO_RUNS = 1e-5
# What each layer of a model sees: how many tokens back, itself included.
WINDOWS = {"mistral": (7, 7, 7), "qwen2": (None, 7, 7)}


def both_ways(length: int, window: int | None) -> torch.Tensor:
    """The mask that transformers is given: (1, 1, T, T), 0 and -inf, from the distance of two positions."""
    position = torch.arange(length)
    distance = (position[:, None] - position).abs()
    return torch.zeros(length, length).masked_fill(distance >= (window or length), -torch.inf)[None, None]


def given_masks(name: str, length: int) -> Any:
    """The bidirectional masks of a whole model, as transformers takes them."""
    if name == "qwen2":
        return {"full_attention": both_ways(length, None), "sliding_attention": both_ways(length, 7)}
    return both_ways(length, 7 if name == "mistral" else None)


@pytest.mark.parametrize("name", tiny.ROTARY)
def test_through_the_whole_model(
    rotary_models: dict[str, Model], rotary_folders: dict[str, Path], name: str
) -> None:
    model = rotary_models[name]
    length = len(probe.attend(model, TEXT, [0]).tokens)
    own = eager_maps(rotary_folders[name], TEXT)
    other = eager_maps(rotary_folders[name], TEXT, attention_mask=given_masks(name, length))
    for layer in range(model.num_layers):
        for head in (0, 4, 5):
            comparison = probe.compare_masks(model, TEXT, layer, head, whole_model=True)
            assert (comparison.causal - own[layer, head]).abs().max() < TWO_RUNS
            assert (comparison.bidirectional - other[layer, head]).abs().max() < TWO_RUNS
            expected = (own[layer, head] - other[layer, head]).abs().sum(-1) / 2
            assert (comparison.moved - expected).abs().max() < 2e-5
            # Rows from other queries and keys: weight moves among the earlier tokens as well.
            assert (comparison.moved - comparison.later >= -1e-5).all()
            assert layer == 0 or (comparison.moved - comparison.later).max() > 1e-3
        window = WINDOWS.get(name, (None,) * 3)[layer]
        assert comparison.window == window
        beyond = other[layer].tril(-(window or length)) + other[layer].triu(window or length)
        assert not beyond.any() and other[layer].triu(1).any()


@pytest.mark.parametrize("name", tiny.ROTARY)
def test_in_one_layer_the_future_alone_is_added(
    rotary_models: dict[str, Model], rotary_folders: dict[str, Path], name: str
) -> None:
    """From the rows under the two masks back to each other: what is allowed by both keeps its proportions."""
    model = rotary_models[name]
    own = eager_maps(rotary_folders[name], TEXT)
    for layer in range(model.num_layers):
        comparison = probe.compare_masks(model, TEXT, layer, 4)
        assert (comparison.causal - own[layer, 4]).abs().max() < TWO_RUNS
        past = comparison.bidirectional.tril()
        assert (past / past.sum(-1, keepdim=True) - own[layer, 4]).abs().max() < 1e-4
        assert (comparison.moved - comparison.bidirectional.triu(1).sum(-1)).abs().max() < 1e-6
        assert comparison.moved.max() > 0.1


@pytest.mark.parametrize("name", tiny.ROTARY)
def test_the_first_layer_is_the_same_in_either_way(rotary_models: dict[str, Model], name: str) -> None:
    """Nothing comes before it that another mask could have changed."""
    alone = probe.compare_masks(rotary_models[name], TEXT, 0, 3)
    whole = probe.compare_masks(rotary_models[name], TEXT, 0, 3, whole_model=True)
    assert (alone.bidirectional - whole.bidirectional).abs().max() < TWO_RUNS


def test_the_window_is_named(rotary_models: dict[str, Model]) -> None:
    windowed = probe.compare_masks(rotary_models["qwen2"], TEXT, 1, 0)
    assert windowed.labels == {
        "causal": "causal within the window of 7, as the model was trained",
        "bidirectional": "bidirectional within the window of 7, not what the model was trained with",
    }
    assert "a window of 7, which stays" in windowed.summary and windowed.to_dict()["window"] == 7
    whole = probe.compare_masks(rotary_models["qwen2"], TEXT, 0, 0)
    assert "window" not in whole.summary + "".join(whole.labels.values())
    assert whole.to_dict()["window"] is None


def test_the_masks_themselves(rotary_models: dict[str, Model]) -> None:
    windowed = probe.compare_masks(rotary_models["qwen2"], TEXT, 1, 0)
    length = len(windowed.tokens)
    two_ways = both_ways(length, 7)[0, 0] == 0
    assert torch.equal(windowed.allowed("bidirectional"), two_ways)
    assert torch.equal(windowed.allowed("causal"), two_ways.tril())
    whole = probe.compare_masks(rotary_models["qwen2"], TEXT, 0, 0)
    assert whole.allowed("bidirectional").all()
    assert torch.equal(whole.allowed("causal"), torch.ones(length, length).tril() == 1)
