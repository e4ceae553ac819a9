"""A network of one's own beside the model whose weights it has: each fault is found in its place."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe
from probe import ModelCheck, ProbeError

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "gpt2_from_scratch.py"
    spec = importlib.util.spec_from_file_location("gpt2_from_scratch", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def mine(example: ModuleType, gpt2: probe.Model) -> Any:
    return example.gpt2(gpt2)


def test_the_example_is_the_model(mine: nn.Module, gpt2: probe.Model) -> None:
    check = probe.check_model(mine, gpt2, TEXT)
    assert check.passed and check.first is None and check.cause is None and check.notes == ()
    names = [place.name for place in check.places]
    inside = ("attention input", "attention output", "output")
    assert names == [
        "input of the first layer",
        *(f"layer {layer}, {what}" for layer in range(6) for what in inside),
        "logits",
    ]
    # transformers' own logits, in float64, are the other side.
    network = copy.deepcopy(gpt2.hf).double()
    ids = torch.tensor([gpt2.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        largest = float(network(ids).logits.abs().max())
    assert check.places[-1].largest == pytest.approx(largest, rel=1e-12)
    # Both are computed in float64, and the tolerance is some roundings of float32.
    assert all(
        place.error is not None and place.error < 1e-12 * max(1, place.largest) for place in check.places
    )
    assert all(1e-7 < place.tolerance / place.largest < 1e-4 for place in check.places)
    assert "PASSED" in str(check) and check.to_dict()["passed"] is True and "<table" in check._repr_html_()


class Wrapped(nn.Module):
    """A network that does something to what goes in or comes out."""

    def __init__(self, network: Any, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.network, self.change = network, change

    def forward(self, ids: Tensor) -> Any:
        return self.change(self.network, ids)


RIGHT: dict[str, Callable[[Any, Tensor], Any]] = {
    "logits of the last position, and no loss": lambda network, ids: (network(ids)[:, -1:], None),
    "a padded vocabulary": lambda network, ids: nn.functional.pad(network(ids), (0, 48), value=-7.0),
    "a dictionary": lambda network, ids: {"logits": network(ids)},
}


@pytest.mark.parametrize("change", RIGHT.values(), ids=RIGHT)
def test_other_ways_to_return_logits(mine: nn.Module, gpt2: probe.Model, change: Any) -> None:
    check = probe.check_model(Wrapped(mine, change), gpt2, TEXT)
    assert check.passed and check.places[-1].name == "logits" and len(check.places) == 20


def test_code_that_goes_through_float32_passes(mine: Any, gpt2: probe.Model) -> None:
    class Rounding(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).float().to(x.dtype)

    for layer in mine.layers:
        layer.before_feed_forward.__class__ = Rounding
    check = probe.check_model(mine, gpt2, TEXT)
    assert check.passed and check.dtype == "float64"
    assert check.places[-1].error is not None and check.places[-1].error > 1e-8


def test_a_network_that_takes_no_float64_is_run_as_it_is(mine: Any, gpt2: probe.Model) -> None:
    def only_float32(network: Any, ids: Tensor) -> Tensor:
        return network(ids) @ torch.eye(4096)

    check = probe.check_model(Wrapped(mine, only_float32), gpt2, TEXT)
    assert check.passed and check.dtype == "float32"


def positions_from_one(network: Any) -> None:
    with torch.no_grad():
        network.positions.weight.copy_(network.positions.weight.roll(-1, 0))


def no_positions(network: Any) -> None:
    nn.init.zeros_(network.positions.weight)


def no_norm_before_attention(network: Any) -> None:
    for layer in network.layers:
        layer.before_attention = nn.Identity()


def exact_gelu(network: Any) -> None:
    class Exact(type(network.layers[2].feed_forward)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return self.down(nn.functional.gelu(self.up(x)))  # type: ignore[no-any-return]

    network.layers[2].feed_forward.__class__ = Exact


def no_output_bias(network: Any) -> None:
    nn.init.zeros_(network.layers[3].attention.out_proj.bias)


def output_not_transposed(network: Any) -> None:
    with torch.no_grad():
        weight = network.layers[0].attention.out_proj.weight
        weight.copy_(weight.T.clone())


def no_last_norm(network: Any) -> None:
    network.last_norm = nn.Identity()


def one_weight_off(network: Any) -> None:
    with torch.no_grad():
        network.layers[4].feed_forward.down.weight[3, 5] += 0.01


FAULTS: dict[Callable[[Any], None], tuple[str, str | None]] = {
    positions_from_one: ("input of the first layer", "Counting positions from 1"),
    no_positions: ("input of the first layer", "Leaving out the positions"),
    no_norm_before_attention: ("layer 0, attention input", "Leaving out the norm before the attention"),
    output_not_transposed: ("layer 0, attention output", "An output projection that is not transposed"),
    exact_gelu: ("layer 2, output", "The exact GELU for the activation"),
    no_output_bias: ("layer 3, attention output", "Leaving out the output projection's bias"),
    one_weight_off: ("layer 4, output", None),
    no_last_norm: ("logits", "Leaving out the norm before the head for words"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_in_its_place(mine: Any, gpt2: probe.Model, fault: Callable[[Any], None]) -> None:
    fault(mine)
    place, cause = FAULTS[fault]
    check = probe.check_model(mine, gpt2, TEXT)
    assert not check.passed and check.first is not None
    assert check.first.name == place
    assert check.cause == (None if cause is None else f"{cause} makes both agree there.")
    assert "FAILED" in check.verdict and place in check.verdict
    before = check.places[: check.places.index(check.first)]
    assert all(one.passed and (one.error or 0.0) < 1e-12 * max(1, one.largest) for one in before)


def test_the_size_of_an_error_is_what_was_put_in(mine: Any, gpt2: probe.Model) -> None:
    """A bias of the last map of a layer, off by 0.5 in one number, shows as 0.5 there and at every token."""
    with torch.no_grad():
        mine.layers[1].feed_forward.down.bias[7] += 0.5
    first = probe.check_model(mine, gpt2, TEXT).first
    assert first is not None and first.name == "layer 1, output"
    assert first.error == pytest.approx(0.5, abs=1e-9) and first.shape == (1, 7, 192)


def test_not_a_number_is_said(mine: Any, gpt2: probe.Model) -> None:
    with torch.no_grad():
        mine.layers[1].feed_forward.down.bias[7] = torch.nan
    check = probe.check_model(mine, gpt2, TEXT)
    assert not check.passed and check.first is not None
    assert check.first.name == "layer 1, output" and "not a number" in check.verdict
    assert check.to_dict()["places"][6]["error"] == "nan"


def test_a_wrong_shape_is_said(mine: nn.Module, gpt2: probe.Model) -> None:
    check = probe.check_model(Wrapped(mine, lambda network, ids: network(ids)[..., :100]), gpt2, TEXT)
    assert not check.passed
    assert "the logits has the shape (1, 7, 100), where the model's is (1, 7, 4096)" in check.verdict


def test_an_encoder(bert: probe.Model) -> None:
    """BERT's own network in place of one that somebody wrote; its attention has a norm and a sum inside."""
    check = probe.check_model(bert.hf, bert, "A short text.")
    assert check.passed and [place.name for place in check.places if "output" in place.name] == [
        f"layer {layer}, output" for layer in range(6)
    ]
    no_logits, not_compared = check.notes
    assert "no head for words" in no_logits and "attention output" in not_compared
    broken = copy.deepcopy(bert.hf)
    with torch.no_grad():
        broken.encoder.layer[4].attention.self.query.bias[0] += 0.5
    first = probe.check_model(broken, bert, "A short text.").first
    assert first is not None and first.layer == 4


def hooks(network: nn.Module) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in network.modules())


def test_yours_stays_as_it_is(mine: Any, gpt2: probe.Model) -> None:
    mine.train()
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    hooked = hooks(mine), hooks(gpt2.hf)
    probe.check_model(mine, gpt2, TEXT)
    after = mine.state_dict()
    assert mine.training and all(torch.equal(value, before[name]) for name, value in after.items())
    assert (hooks(mine), hooks(gpt2.hf)) == hooked
    assert gpt2.hf.dtype == torch.float32


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.ModuleList(nn.Linear(2, 2) for _ in range(6))
        self.two = nn.ModuleList(nn.Linear(2, 2) for _ in range(6))


REFUSED: list[tuple[Callable[[Any], Any], dict[str, Any], str]] = [
    (lambda mine: mine.forward, {}, "as a torch.nn.Module; this is of type method"),
    (lambda mine: nn.Identity(), {}, "has no parameters"),
    (lambda mine: Two(), {}, r"several lists of 6 modules \(one, two\): say which are its layers"),
    (lambda mine: mine, {"layers": "blocks"}, 'has no module "blocks"'),
    (
        lambda mine: mine,
        {"layers": "tokens"},
        '"tokens" is no list of 6 layers, which the model has, but Embedding',
    ),
    (lambda mine: mine, {"attention": "attn"}, 'A layer of your network has no module "attn"'),
    (lambda mine: nn.Linear(4, 4), {}, r"can't be called with token ids of shape \(1, 7\): RuntimeError"),
    (lambda mine: Wrapped(mine, lambda network, ids: None), {"layers": "network.layers[0]"}, "no module"),
]


@pytest.mark.parametrize(("network", "options", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_cannot_be_checked_is_said(
    mine: Any, gpt2: probe.Model, network: Callable[[Any], Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProbeError, match=message):
        probe.check_model(network(mine), gpt2, TEXT, **options)


def test_layers_that_are_not_found_are_no_failure(mine: Any, gpt2: probe.Model) -> None:
    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = mine.to(self.weight.dtype)(ids)
            return logits

    check: ModelCheck = probe.check_model(Opaque(), gpt2, TEXT)
    assert check.passed and [place.name for place in check.places] == ["logits"]
    assert 'layers="transformer.h"' in check.notes[0]
