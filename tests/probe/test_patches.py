"""Pictures as patches and rollout without a text, against the maps that transformers returns on eager."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    PreTrainedModel,
    SiglipVisionConfig,
    SiglipVisionModel,
    ViTConfig,
    ViTModel,
    WhisperConfig,
    WhisperModel,
    YolosConfig,
    YolosModel,
)

import probe
import tiny
from probe import Model, ProbeError

ROWS, COLUMNS = 3, 5
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "patch_size": 4,
}


def vit() -> PreTrainedModel:
    return ViTModel(ViTConfig(image_size=[4 * ROWS, 4 * COLUMNS], **SIZES))


def dinov2() -> PreTrainedModel:
    return Dinov2WithRegistersModel(
        Dinov2WithRegistersConfig(image_size=20, num_register_tokens=4, mlp_ratio=2, **SIZES)
    )


def clip() -> PreTrainedModel:
    return CLIPVisionModel(CLIPVisionConfig(image_size=20, **SIZES))


def siglip() -> PreTrainedModel:
    return SiglipVisionModel(SiglipVisionConfig(image_size=20, **SIZES))


def yolos() -> PreTrainedModel:
    sizes = SIZES | {"num_detection_tokens": 7, "use_mid_position_embeddings": False}
    return YolosModel(YolosConfig(image_size=[4 * ROWS, 4 * COLUMNS], **sizes))


# The builder, rows and columns of patches, and the names of what stands before and after them.
PICTURES: dict[str, tuple[Callable[[], PreTrainedModel], tuple[int, int], list[str], list[str]]] = {
    "vit": (vit, (ROWS, COLUMNS), ["[CLS]"], []),
    "dinov2 with registers": (dinov2, (ROWS, COLUMNS), ["[CLS]", "[1]", "[2]", "[3]", "[4]"], []),
    "clip": (clip, (5, 5), ["[CLS]"], []),
    "siglip": (siglip, (5, 5), [], []),
    "yolos": (yolos, (ROWS, COLUMNS), ["[CLS]"], [f"[object {index}]" for index in range(7)]),
}
every_picture = pytest.mark.parametrize("name", PICTURES)


def loaded(build: Callable[[], PreTrainedModel]) -> Model:
    torch.manual_seed(0)
    network = build().eval()
    tiny.draw_weights(network, 5)
    return probe.load(network)


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: loaded(build) for name, (build, *_) in PICTURES.items()}


def picture(name: str) -> dict[str, Tensor]:
    rows, columns = PICTURES[name][1]
    generator = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(1, 3, 4 * rows, 4 * columns, generator=generator)}


def eager(model: Model, inputs: dict[str, Tensor]) -> list[Tensor]:
    """What transformers itself returns: (H, T, T) for each layer, of the encoder."""
    network = type(model.hf)(model.hf.config).eval()
    network.load_state_dict(model.hf.state_dict())
    network.set_attn_implementation("eager")
    with torch.no_grad():
        found: Any = network(**inputs, output_attentions=True)
    maps = found.encoder_attentions if model.has_target else found.attentions
    return [one[0] for one in maps]


@every_picture
@pytest.mark.parametrize("query", [0, 4])
def test_weights_over_the_patches_of_a_picture(models: dict[str, Model], name: str, query: int) -> None:
    model, inputs = models[name], picture(name)
    _, (rows, columns), before, after = PICTURES[name]
    maps, run = eager(model, inputs), probe.attend(model, inputs)
    for layer in range(3):
        for head in range(3):
            expected = maps[layer][head, query]
            found = run.patches(layer, head, query)
            assert found.weights.shape == (rows, columns)
            for row in range(rows):
                for column in range(columns):
                    cell = float(expected[len(before) + row * columns + column])
                    assert float(found.weights[row, column]) == pytest.approx(cell, abs=1e-5)
            apart = [*range(len(before)), *range(len(expected) - len(after), len(expected))]
            assert list(found.special) == [*before, *after]
            assert list(found.special.values()) == pytest.approx(
                [float(expected[i]) for i in apart], abs=1e-5
            )
            assert float(found.weights.sum()) + sum(found.special.values()) == pytest.approx(1.0, abs=1e-5)
    assert run.patches(1, 2, query).query == run.tokens[query]


def by_products(maps: list[Tensor]) -> list[Tensor]:
    """Abnar and Zuidema 2020, section 3: half the mean map, half the identity, multiplied up."""
    found, product = [], torch.eye(maps[0].shape[-1], dtype=torch.float64)
    for layer in maps:
        mixed = (layer.double().mean(0) + torch.eye(len(product), dtype=torch.float64)) / 2
        product = mixed @ product
        found.append(product)
    return found


@every_picture
def test_rollout_of_a_picture(models: dict[str, Model], name: str) -> None:
    model, inputs = models[name], picture(name)
    _, (rows, columns), before, _ = PICTURES[name]
    rolled = probe.rollout(model, inputs)
    for found, expected in zip(rolled.maps, by_products(eager(model, inputs)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    grid = rolled.patches(2, query=1)
    row = rolled.maps[2][1]
    assert grid.weights.tolist() == [
        [float(row[len(before) + i * columns + j]) for j in range(columns)] for i in range(rows)
    ]
    assert f"{rolled.model_name}, attention rollout up to layer 2" in grid.summary
    assert rolled.summary in str(rolled) and rolled.tokens == probe.attend(model, inputs, [0]).tokens


def test_rollout_of_a_sound() -> None:
    config = WhisperConfig(
        d_model=24,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=8,
        vocab_size=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = loaded(lambda: WhisperModel(config))
    generator = torch.Generator().manual_seed(1)
    inputs = {
        "input_features": torch.randn(1, 8, 20, generator=generator),
        "decoder_input_ids": torch.tensor([[1, 7]]),
    }
    rolled = probe.rollout(model, inputs)
    for found, expected in zip(rolled.maps, by_products(eager(model, inputs)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert rolled.tokens == tuple(f"frame {index}" for index in range(10))
    with pytest.raises(ProbeError, match="no patches of a picture"):
        rolled.patches(0)


@every_picture
def test_what_is_shown_of_a_picture(models: dict[str, Model], name: str) -> None:
    found = probe.attend(models[name], picture(name), [(1, 2)]).patches(1, 2)
    assert f"{float(found.weights.sum()):.1%} of the weight on the picture" in str(found)
    (panel,) = found.sheet().panels
    assert (panel.rows.name, panel.columns.name) == ("row", "column")
    assert torch.equal(panel.values, found.weights) and panel.ends == (0.0, float(found.weights.max()))
    assert found._repr_html_().count("<img") == 1
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["weights"] == found.weights.tolist() and plain["special"] == found.special


def test_what_is_no_picture(models: dict[str, Model], gpt2: Model) -> None:
    run = probe.attend(models["vit"], picture("vit"), [(0, 0)])
    for query in (-1, 16, 1.0, True):
        with pytest.raises(ProbeError, match="from 0 to 15"):
            run.patches(0, 0, query)  # type: ignore[arg-type]
    with pytest.raises(ProbeError, match="is not in this run"):
        run.patches(2, 0)
    with pytest.raises(ProbeError, match="no patches of a picture"):
        probe.attend(gpt2, "the cat").patches(0, 0)
    with pytest.raises(ProbeError, match="takes text"):
        probe.rollout(gpt2, {"input_ids": torch.zeros(1, 3).long()})
    with pytest.raises(ProbeError, match="can't be exported"):
        probe.export(run, "x.json", model=models["vit"])
