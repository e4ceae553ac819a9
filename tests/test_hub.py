"""The real bert-base-uncased and GPT-2 small: `make test-hub`. The first run fetches 990 MB from the Hub."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from texts import eager_maps, varied_texts

import probe
from probe import Model

pytestmark = pytest.mark.hub

BERT, GPT2 = "google-bert/bert-base-uncased", "openai-community/gpt2"


@pytest.fixture(scope="module")
def load() -> Callable[..., Model]:
    return cache(probe.load)


@pytest.mark.parametrize(
    ("name", "positions", "causal", "parameters"),
    # Devlin et al. 2019, section 3: 12 layers, width 768, 12 heads. Radford et al. 2019, section 2.3: 12
    # layers, width 768, 1,024 positions; the number of parameters is that of the published checkpoint.
    [(BERT, 512, False, None), (GPT2, 1024, True, 124_439_808)],
)
def test_is_the_published_model(
    load: Callable[..., Model], name: str, positions: int, causal: bool, parameters: int | None
) -> None:
    model = load(name)
    assert (model.name, model.max_tokens, model.causal) == (name, positions, causal)
    assert (model.num_layers, model.num_heads, model.head_dim) == (12, 12, 64)
    if parameters is not None:
        assert sum(parameter.numel() for parameter in model.hf.parameters()) == parameters


@pytest.mark.parametrize(("short", "name"), [("bert", BERT), ("gpt2", GPT2)])
def test_the_short_name_takes_it_from_the_cache(load: Callable[..., Model], short: str, name: str) -> None:
    downloaded = load(name)
    model = probe.load(short)
    assert (model.name, model.sha256) == (name, downloaded.sha256)


@pytest.mark.parametrize("name", [BERT, GPT2])
@pytest.mark.parametrize(
    ("dtype", "up_to_128", "beyond"), [(torch.float32, 2e-6, 5e-6), (torch.float64, 1e-13, 1e-13)]
)
def test_all_144_heads_pass(
    load: Callable[..., Model], name: str, dtype: torch.dtype, up_to_128: float, beyond: float
) -> None:
    model = load(name, dtype=dtype)
    for text in varied_texts(model):
        report = probe.verify(model, text)
        assert report.passed, report
        assert len(report.heads) == 144
        assert report.max_abs_error <= (up_to_128 if max(report.num_tokens) <= 128 else beyond)


@pytest.mark.parametrize("name", [BERT, GPT2])
def test_maps_are_those_of_eager(load: Callable[..., Model], name: str) -> None:
    model = load(name)
    assert model.folder is not None
    text = "The trophy doesn't fit into the suitcase because it is too big."
    eager = eager_maps(model.folder, text)
    run = probe.attend(model, text)
    for layer in range(12):
        for head in range(12):
            assert (run.weights(layer, head) - eager[layer, head]).abs().max() <= 2e-5
