"""Comparisons: the maps of both sides against transformers' own, for models checked from query and key."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from numbers_in_text import close
from torch import Tensor

import probe
import tiny
from probe import Model, ProbeError
from scripts import families

VOCABULARY = 4096
SOURCE, TARGET = "The cat sat on the mat because it was warm.", "A small bird"
TOLERANCE = 1e-6


def model_of(name: str, gpt2: Model, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A tiny random model of a family, with the tokenizer of the bundled GPT-2."""
    monkeypatch.setattr(families, "VOCABULARY", VOCABULARY)
    return probe.load(families.build(tiny.watched(name)), tokenizer=gpt2.tokenizer)


@pytest.fixture
def t5(gpt2: Model) -> Model:
    """More layers in the decoder than in the encoder."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
    )
    family = families.Family("t5", lambda: transformers.T5ForConditionalGeneration(config), gain=1.5)
    return probe.load(families.build(family), tokenizer=gpt2.tokenizer)


def own_maps(model: Model, comparison: probe.Comparison) -> dict[tuple[str, int], Tensor]:
    """What transformers returns on its eager backend, (1, H, Tq, Tk), by kind and layer."""
    inputs = {"input_ids": torch.tensor([comparison.encoding.ids])}
    if comparison.target is not None:
        inputs["decoder_input_ids"] = torch.tensor([comparison.target.ids])
    return families.eager_maps(model.hf, inputs)


def assert_like_transformers(model: Model, comparison: probe.Comparison) -> None:
    expected = own_maps(model, comparison)
    assert expected.keys() == comparison.maps.keys()
    compared = 0
    for (kind, layer), theirs in expected.items():
        queries, keys = comparison.sides(kind)
        assert theirs.shape[2:] == (len(queries), len(keys))
        for head, weights in enumerate(theirs[0]):
            place = layer, head, kind
            assert (comparison.from_model(*place) - weights).abs().max() < TOLERANCE
            assert (comparison.from_scratch(*place) - weights).abs().max() < TOLERANCE
            difference = (comparison.from_scratch(*place) - comparison.from_model(*place)).abs()
            assert torch.equal(comparison.difference(*place), difference)
            check = comparison.check(*place)
            assert (check.kind, check.layer, check.head) == (kind, layer, head)
            assert check.max_abs_error == float(difference.max())
            allowed = comparison.allowed(*place)
            if kind in ("encoder", "cross"):
                assert allowed is None
            elif allowed is not None:
                assert not weights[~allowed].any()
                assert kind == "self" or torch.equal(allowed, torch.ones_like(allowed).tril())
            compared += 1
    assert compared == len(comparison.report.heads) and comparison.report.passed
    assert comparison.report.check == "from query and key"


def test_t5_with_more_layers_in_its_decoder(t5: Model) -> None:
    comparison = probe.compare(t5, SOURCE, TARGET)
    assert_like_transformers(t5, comparison)
    layers = {kind: [layer for of, layer in comparison.maps if of == kind] for kind in t5.kinds}
    assert layers == {"encoder": [0, 1], "decoder": [0, 1, 2], "cross": [0, 1, 2]}
    queries, keys = comparison.sides("cross")
    # The decoder is given its start token, and then what it is to produce.
    assert queries.tokens[1:] == ("A", "small", "bird") and queries.ids[0] == 0
    assert keys.tokens == ("The", "cat", "sat", "on", "the", "mat", "because", "it", "was", "warm", ".")
    assert close(comparison.report.to_dict(), probe.verify(t5, SOURCE, TARGET).to_dict())


@pytest.mark.parametrize("name", ["bart", "marian"])
def test_other_encoder_decoders(name: str, gpt2: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name, gpt2, monkeypatch)
    comparison = probe.compare(model, SOURCE, TARGET)
    assert_like_transformers(model, comparison)
    # 3 layers of 4 heads, 2 of 2, 2 of 2
    assert len(comparison.report.heads) == 12 + 4 + 4


@pytest.mark.parametrize("name", ["gpt_neox, yarn", "modernbert, yarn", "gemma2", "gpt_oss"])
def test_models_that_are_not_taken_apart(name: str, gpt2: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name, gpt2, monkeypatch)
    comparison = probe.compare(model, SOURCE)
    assert_like_transformers(model, comparison)
    assert comparison.target is None and comparison.sides() == (comparison.encoding, comparison.encoding)
    assert torch.equal(comparison.from_model(1, 3), comparison.from_model(1, 3, "self"))


def test_one_run_and_no_more(t5: Model) -> None:
    runs: list[None] = []
    t5.hf.get_encoder().register_forward_pre_hook(lambda *_: runs.append(None))
    comparison = probe.compare(t5, SOURCE, TARGET)
    for kind in t5.kinds:
        comparison.difference(1, 3, kind)
    assert len(runs) == 1


def test_an_image(gpt2: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("vit", gpt2, monkeypatch)
    image = {"pixel_values": torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
    comparison = probe.compare(model, image)
    for (_, layer), theirs in families.eager_maps(model.hf, image).items():
        for head, weights in enumerate(theirs[0]):
            assert (comparison.from_scratch(layer, head) - weights).abs().max() < TOLERANCE
    assert comparison.encoding.tokens[1] == "row 0, column 0" and len(comparison.encoding) == 17


def test_what_such_a_model_cannot_do_is_said(t5: Model, gpt2: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = probe.compare(t5, SOURCE, TARGET)
    with pytest.raises(ProbeError, match='say kind="encoder" or kind="decoder" or kind="cross"'):
        comparison.from_scratch(0, 0)
    with pytest.raises(ProbeError, match="no layer 2 in the encoder attention of"):
        comparison.from_model(2, 0, "encoder")
    with pytest.raises(ProbeError, match="no 'self' attention"):
        comparison.difference(0, 0, "self")
    with pytest.raises(ProbeError, match="its heads can't be switched off"):
        probe.rank_heads(t5, "the cat")
    with pytest.raises(ProbeError, match="has an encoder and a decoder"):
        probe.compare(t5, SOURCE)
    with pytest.raises(ProbeError, match="takes no target"):
        probe.compare(gpt2, SOURCE, TARGET)
    gemma = probe.compare(model_of("gemma2", gpt2, monkeypatch), SOURCE)
    asked: tuple[Any, ...] = (lambda: gemma.trace(0, 0, 1), lambda: gemma.compare_masks(0, 0))
    for question in asked:
        with pytest.raises(ProbeError, match='weights of a "gemma2" lie is not known here') as refused:
            question()
        assert "can be seen, but it can't be taken apart" in str(refused.value)
    mpnet = model_of("mpnet", gpt2, monkeypatch)
    with pytest.raises(ProbeError, match="nothing to check them against"):
        probe.compare(mpnet, SOURCE)
