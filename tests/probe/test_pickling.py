"""Models between processes: loaded there again by their names, or with the whole network."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe import Model, ProbeError

TEXT = "the cat and the dog"


def same(first: Model, second: Model) -> bool:
    return torch.equal(probe.attend(first, TEXT).weights(1, 1), probe.attend(second, TEXT).weights(1, 1))


def through(model: Model) -> Model:
    again: Model = pickle.loads(pickle.dumps(model))
    assert (again.name, again.source, again.revision) == (model.name, model.source, model.revision)
    assert (again.sha256, again.dtype, again.device) == (model.sha256, model.dtype, model.device)
    assert again.heads_per_layer == model.heads_per_layer and same(again, model)
    return again


def test_a_model_is_loaded_again_by_its_name(gpt2: Model, bert: Model) -> None:
    for model in (gpt2, bert):
        size = sum(parameter.nbytes for parameter in model.hf.parameters())
        assert len(pickle.dumps(model)) < size / 10
        assert through(model).folder == model.folder


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_its_dtype_and_with_its_tokenizer(tiny_gpt2: Callable[..., Path], dtype: torch.dtype) -> None:
    folder = tiny_gpt2(vocab_size=4_097)
    tokenizer = copy.deepcopy(probe.load("gpt2").tokenizer)
    for path in folder.glob("*token*"):
        path.unlink()
    tokenizer.add_tokens(["catdog"])
    model = probe.load(str(folder), dtype=dtype, tokenizer=tokenizer)
    assert "catdog" in probe.attend(through(model), "the catdog sat", heads=[(0, 0)]).tokens


def test_from_another_folder(
    tiny_gpt2: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_gpt2()
    monkeypatch.chdir(folder.parent)
    model = probe.load(f"./{folder.name}")
    pickled = pickle.dumps(model)
    monkeypatch.chdir(tmp_path)
    assert same(pickle.loads(pickled), model)


@pytest.mark.parametrize("change", ["weights", "through data", "backend", "configuration", "adapter"])
def test_what_was_changed_goes_along(tiny_gpt2: Callable[..., Path], change: str) -> None:
    model = probe.load(str(tiny_gpt2()))
    before = probe.attend(model, TEXT).weights(1, 1)
    network: Any = model.hf
    attention = network.transformer.h[0].attn
    with torch.no_grad():
        if change == "weights":
            attention.c_attn.weight[3, 4] += 2.0
        elif change == "through data":
            attention.c_attn.weight.data.mul_(1.5)
        elif change == "backend":
            network.set_attn_implementation("eager")
        elif change == "configuration":
            network.config.scale_attn_by_inverse_layer_idx = True
        else:
            network.transformer.h[0].mlp = torch.nn.Identity()
    again = through(model)
    assert again.hf is not network
    assert again.hf.config._attn_implementation == network.config._attn_implementation
    assert (change in ("backend", "configuration")) == same_maps(before, again)


def same_maps(before: torch.Tensor, model: Model) -> bool:
    return torch.allclose(before, probe.attend(model, TEXT).weights(1, 1), atol=1e-5)


def test_a_network_that_was_given_as_an_object(tiny_gpt2: Callable[..., Path]) -> None:
    named = probe.load(str(tiny_gpt2()))
    model = probe.load(named.hf, tokenizer=named.tokenizer)
    assert through(model).folder is None
    comparison = probe.compare(model, TEXT)
    assert pickle.loads(pickle.dumps(comparison)).to_json() == comparison.to_json()


def test_a_network_that_cant_be_pickled(tiny_gpt2: Callable[..., Path]) -> None:
    model = probe.load(str(tiny_gpt2()))
    model.hf.forward = lambda *args, **kwargs: None  # type: ignore[method-assign]
    model.hf.config.n_layer = 2
    model.hf.lm_head.weight.data.add_(1.0)
    with pytest.raises(ProbeError, match=r"can't be pickled \(.*\): save it with save_pretrained"):
        pickle.dumps(model)


def test_files_that_are_gone_or_others(tiny_gpt2: Callable[..., Path]) -> None:
    folder, other = tiny_gpt2(seed=0), tiny_gpt2(seed=1)
    pickled = pickle.dumps(probe.load(str(folder)))
    shutil.copy(other / "model.safetensors", folder)
    with pytest.raises(ProbeError, match=r"is not .* as it was pickled .*other weights"):
        pickle.loads(pickled)
    shutil.rmtree(folder)
    with pytest.raises(ProbeError, match=f"was loaded from {folder}, which is not here"):
        pickle.loads(pickled)


def test_the_kept_model_is_not_believed_once_it_was_changed(tiny_gpt2: Callable[..., Path]) -> None:
    model = probe.load(str(tiny_gpt2()))
    pickled, expected = pickle.dumps(model), probe.attend(model, TEXT).weights(1, 1)
    first: Model = pickle.loads(pickled)
    assert pickle.loads(pickled).hf is first.hf  # a process that is given it often loads it once
    first.hf.transformer.h[0].attn.c_attn.weight.data.mul_(1.5)  # type: ignore[union-attr, operator]
    assert torch.equal(probe.attend(pickle.loads(pickled), TEXT).weights(1, 1), expected)


def test_copies_are_apart(tiny_gpt2: Callable[..., Path]) -> None:
    model = probe.load(str(tiny_gpt2()))
    before = probe.attend(model, TEXT).weights(1, 1)
    deep = copy.deepcopy(model)
    assert copy.copy(model).hf is model.hf and deep.hf is not model.hf and deep.sha256 == model.sha256
    deep.hf.transformer.h[0].attn.c_attn.weight.data.mul_(1.5)  # type: ignore[union-attr, operator]
    assert torch.equal(probe.attend(model, TEXT).weights(1, 1), before)
    assert not torch.equal(probe.attend(deep, TEXT).weights(1, 1), before)


def looked_at(model: Model) -> probe.Comparison:
    return probe.compare(model, TEXT)


def test_a_pool_of_processes(tiny_gpt2: Callable[..., Path]) -> None:
    """Forked, so that none imports everything again; what goes to and fro is pickled all the same."""
    model = probe.load(str(tiny_gpt2()))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (found,) = pool.map(looked_at, [model])
    assert found.report.passed and found.model.sha256 == model.sha256
    assert torch.equal(found.from_model(1, 1), probe.compare(model, TEXT).from_model(1, 1))
