"""Where memory is full, every analysis says so in a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BloomConfig, BloomModel, PreTrainedModel, T5Config, T5ForConditionalGeneration

import probe
from attention import MultiHeadAttention
from probe import Model, ProbeError
from probe.models.computing import memory_explained

TEXT = "The cat sat on the mat."
ERRORS: dict[str, BaseException] = {
    "CUDA": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "CPU": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
        "to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "MPS": RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)."),
    "Python": MemoryError(),
}
SAID = (
    r"^(The first text: )?The memory of cpu does not suffice for an input of shape \(1, \d+\): "
    r"give a shorter one\.$"
)

ANALYSES: dict[str, Callable[[Model], Any]] = {
    "ablate": lambda model: probe.ablate(model, TEXT, [(0, 0)]),
    "attend": lambda model: probe.attend(model, TEXT),
    "compare": lambda model: probe.compare(model, TEXT),
    "compare_masks": lambda model: probe.compare_masks(model, TEXT, 0, 0),
    "compare_texts": lambda model: probe.compare_texts(model, TEXT, "The dog sat.", 0, 0),
    "distances": lambda model: probe.distances(model, TEXT),
    "find_heads": lambda model: probe.find_heads(model, TEXT, "mat", "cat"),
    "measure_heads": lambda model: probe.measure_heads(model, TEXT),
    "predict": lambda model: probe.predict(model, TEXT),
    "rank_heads": lambda model: probe.rank_heads(model, TEXT),
    "rollout": lambda model: probe.rollout(model, TEXT),
    "run_from_scratch": lambda model: probe.run_from_scratch(model, TEXT),
    "trace": lambda model: probe.trace(model, TEXT, 0, 0, 1),
    "verify": lambda model: probe.verify(model, TEXT),
}
OF_TWO_STACKS: dict[str, Callable[[Model], Any]] = {
    "attend": lambda model: probe.attend(model, TEXT, target="Yes."),
    "compare": lambda model: probe.compare(model, TEXT, "Yes."),
    "run_from_scratch": lambda model: probe.run_from_scratch(model, TEXT, target="Yes."),
    "verify": lambda model: probe.verify(model, TEXT, target="Yes."),
}


@contextmanager
def failing(network: nn.Module, error: BaseException) -> Iterator[None]:
    """A network whose forward pass raises an error halfway."""

    def fail(*_: object) -> None:
        raise error

    handles = [
        module.register_forward_pre_hook(fail) for module in network.modules() if type(module) is nn.Dropout
    ]
    assert handles
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def test_every_analysis_is_here() -> None:
    takes_a_model = {
        name
        for name in probe.__all__
        if inspect.isfunction(getattr(probe, name))
        and next(iter(inspect.signature(getattr(probe, name)).parameters)) == "model"
    }
    assert set(ANALYSES) == takes_a_model


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_explains_it(gpt2: Model, name: str) -> None:
    with failing(gpt2.hf, ERRORS["CUDA"]), pytest.raises(ProbeError, match=SAID):
        ANALYSES[name](gpt2)
    ANALYSES[name](gpt2)


@pytest.mark.parametrize("kind", ERRORS)
def test_whatever_it_is_called(gpt2: Model, kind: str) -> None:
    with failing(gpt2.hf, ERRORS[kind]), pytest.raises(ProbeError, match=SAID):
        probe.ablate(gpt2, TEXT, [(0, 0)])


def test_other_errors_stay_what_they_are(gpt2: Model) -> None:
    with failing(gpt2.hf, RuntimeError("mine")), pytest.raises(RuntimeError, match=r"^mine$"):
        probe.run_from_scratch(gpt2, TEXT)


@pytest.mark.parametrize("name", OF_TWO_STACKS)
def test_of_an_encoder_and_a_decoder(gpt2: Model, name: str) -> None:
    sizes = {"num_layers": 2, "num_heads": 2, "d_model": 16, "d_kv": 8, "d_ff": 16}
    config = T5Config(vocab_size=len(gpt2.tokenizer), decoder_start_token_id=0, **sizes)
    model = probe.load(T5ForConditionalGeneration(config), tokenizer=gpt2.tokenizer)
    with failing(model.hf, ERRORS["CUDA"]), pytest.raises(ProbeError, match=SAID):
        OF_TWO_STACKS[name](model)


def bloom(gpt2: Model) -> PreTrainedModel:
    """A network with attention code of its own."""
    return BloomModel(BloomConfig(vocab_size=len(gpt2.tokenizer), hidden_size=16, n_layer=2, n_head=2))


def test_of_code_of_its_own(gpt2: Model) -> None:
    model = probe.load(bloom(gpt2), tokenizer=gpt2.tokenizer)
    for analysis in (ANALYSES["attend"], ANALYSES["rollout"], ANALYSES["find_heads"]):
        with failing(model.hf, ERRORS["CUDA"]), pytest.raises(ProbeError, match=SAID):
            analysis(model)


def test_of_a_network_whose_attentions_are_looked_for(gpt2: Model) -> None:
    network = bloom(gpt2)
    with failing(network, ERRORS["CUDA"]), pytest.raises(ProbeError, match=SAID):
        probe.load(network, tokenizer=gpt2.tokenizer)


def test_of_what_is_computed_from_a_run(gpt2: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ERRORS["CUDA"]

    monkeypatch.setattr(MultiHeadAttention, "steps", fail)
    with pytest.raises(ProbeError, match=SAID):
        probe.verify(gpt2, TEXT)


def test_while_the_weights_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ERRORS["CPU"]

    monkeypatch.setattr("transformers.GPT2LMHeadModel.from_pretrained", fail)
    with pytest.raises(ProbeError, match=r"^The memory of cpu does not suffice for \S+gpt2-stories\.$"):
        probe.load("gpt2-stories")


def test_the_cpu_is_proposed_to_other_devices_only() -> None:
    for device, remedy in (("cuda", 'Try device="cpu".'), ("cpu", "a model.")):
        with (
            pytest.raises(ProbeError, match="memory") as caught,
            memory_explained(torch.device(device), "a model"),
        ):
            raise ERRORS["CUDA"]
        assert str(caught.value).endswith(remedy)
