"""Traces, masks and ablations of families with norms, other turns and joint maps, against transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import torch
from texts import STORY, eager_maps
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

import probe
import tiny
from probe import Model
from probe.models import backend
from probe.running.inputs import batch_inputs, encode_for

TEXT = STORY[:110]
NAMES = ("modernbert", "qwen3", "olmo2", "gemma3_text", "phi3", "gpt_neox", "gptj")
TWO_RUNS = 1e-5


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tiny.family_saver(name, lambda: tmp_path_factory.mktemp("model"))() for name in NAMES}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Model]:
    return {name: probe.load(str(folder)) for name, folder in folders.items()}


def own_calls(model: Model) -> list[backend.Call]:
    """What the network hands over in each layer: queries and keys after norm and rotation, values."""
    calls: list[backend.Call] = []

    def see(call: backend.Call) -> None:
        calls.append(call)

    inputs, _ = batch_inputs(model, [encode_for(model, TEXT)])
    with backend.running(model.hf, inputs), backend.listening(model.hf, see):
        model.hf.base_model(**inputs)
    return calls


@pytest.mark.parametrize("name", NAMES)
def test_each_line_of_a_trace_is_the_models_own(
    models: dict[str, Model], folders: dict[str, Path], name: str
) -> None:
    model, query = models[name], 9
    maps = eager_maps(folders[name], TEXT)
    outputs: list[Tensor] = []
    handles = [
        site.output.module.register_forward_hook(lambda module, args, output: outputs.append(output[0]))
        for site in model.sites
    ]
    calls = own_calls(model)
    for handle in handles:
        handle.remove()
    for layer, (site, call) in enumerate(zip(model.sites, calls, strict=True)):
        shares = []
        for head in range(model.num_heads):
            trace = probe.trace(model, TEXT, layer, head, query)
            key_head = head // site.group
            assert trace.key_head == key_head
            assert (trace.query_vector - call.query[0, head, query]).abs().max() < TWO_RUNS
            assert (trace.keys - call.key[0, key_head]).abs().max() < TWO_RUNS
            assert (trace.values - call.value[0, key_head]).abs().max() < TWO_RUNS
            assert trace.scale == pytest.approx(call.scale)
            assert (trace.weights - maps[layer, head, query]).abs().max() < TWO_RUNS
            assert torch.equal(trace.allowed, maps[layer, head, query] > 0)
            assert trace.max_abs_error < 2e-6
            shares.append(trace.output_share)
        bias = site.output.bias()
        total = torch.stack(shares).sum(0) + (0.0 if bias is None else bias)
        assert (total - outputs[layer][query]).abs().max() < TWO_RUNS


@pytest.mark.parametrize("name", tiny.NORMALISED)
def test_the_norm_is_a_step_of_the_trace(models: dict[str, Model], name: str) -> None:
    model, layer, head, query = models[name], 1, 5, 9
    seen: dict[str, Tensor] = {}
    attention = model.sites[layer].attention
    for role in ("q", "k"):
        for part in ("proj", "norm"):
            getattr(attention, f"{role}_{part}").register_forward_hook(
                lambda module, args, output, what=f"{role}_{part}": seen.update({what: output[0].detach()})
            )
    probe.attend(model, TEXT)
    trace = probe.trace(model, TEXT, layer, head, query)
    group, width = model.sites[layer].group, model.head_dim

    def of_head(what: str, which: int) -> Tensor:
        """(T, head_dim)"""
        found = seen[what]
        if found.dim() == 2:
            return found.unflatten(-1, (-1, width))[:, which]
        return found[which] if name == "gemma3_text" else found[:, which]

    for found, expected in (
        (trace.projected_query, of_head("q_proj", head)[query]),
        (trace.projected_keys, of_head("k_proj", head // group)),
        (trace.normalised_query, of_head("q_norm", head)[query]),
        (trace.normalised_keys, of_head("k_norm", head // group)),
    ):
        assert found is not None and (found - expected).abs().max() < TWO_RUNS
    assert trace.projected_query is not None and trace.normalised_query is not None
    assert trace.query_size is not None and trace.query_gain is not None
    # As printed, to seven digits, it can be followed with a pocket calculator.
    printed = str(trace)
    size = float(printed.partition("divided by ")[2].partition(",")[0])
    together = name == "olmo2"
    whose = "all heads' numbers" if together else "its numbers"
    eps = model.hf.config.rms_norm_eps
    assert f", the root of (the mean square of {whose} + {eps:g}), times gain" in printed
    if not together:
        assert size == pytest.approx(float((trace.projected_query.square().mean() + 1e-6).sqrt()), rel=1e-6)
    by_hand = trace.projected_query / size * trace.query_gain
    assert torch.allclose(by_hand, trace.normalised_query, rtol=1e-6)
    assert printed.count("before it is normalised") == 1 + len(trace.tokens)
    plain = json.loads(trace.to_json())
    assert plain["query_size"] == trace.query_size and len(plain["key_sizes"]) == len(trace.tokens)
    assert "query and keys are normalised and turned by their positions" in trace._repr_html_()


def test_neighbours_that_turn_are_named(models: dict[str, Model]) -> None:
    trace = probe.trace(models["gptj"], TEXT, 1, 2, 9)
    printed = str(trace)
    assert "pair i is number 2 i, called a, and number 2 i + 1, called b." in printed
    assert "Numbers from 4 on stay." in printed
    assert trace.projected_query is not None
    assert torch.equal(trace.query_vector[4:], trace.projected_query[4:])
    a, b = trace.projected_query[2:4].tolist()
    assert trace.angles is not None
    angle = trace.angles[9, 1]
    assert float(trace.query_vector[2]) == pytest.approx(float(a * angle.cos() - b * angle.sin()), abs=1e-6)
    assert float(trace.query_vector[3]) == pytest.approx(float(b * angle.cos() + a * angle.sin()), abs=1e-6)


def allowed(length: int, window: int | None, *, causal: bool) -> Tensor:
    distance = torch.arange(length)[:, None] - torch.arange(length)
    within = distance.abs() < (window or length)
    return within & (distance >= 0) if causal else within


def added(mask: Tensor) -> Tensor:
    """(..., T, T) as transformers takes it: 0 and -inf."""
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


@pytest.mark.parametrize("name", NAMES)
def test_both_masks(models: dict[str, Model], folders: dict[str, Path], name: str) -> None:
    model = models[name]
    own = eager_maps(folders[name], TEXT)
    length, windows = own.shape[-1], [site.window for site in model.sites]
    given: Any = [added(allowed(length, window, causal=not model.causal))[None, None] for window in windows]
    given = dict(zip(model.hf.config.layer_types, given, strict=True)) if len({*windows}) > 1 else given[0]
    other = eager_maps(folders[name], TEXT, attention_mask=given)
    for layer in range(model.num_layers):
        for head in (0, model.num_heads - 1):
            alone = probe.compare_masks(model, TEXT, layer, head)
            whole = probe.compare_masks(model, TEXT, layer, head, whole_model=True)
            trained, untrained = ("causal", "bidirectional")[:: 1 if model.causal else -1]
            for found in (alone, whole):
                assert found.trained_with == trained and found.window == windows[layer]
                assert (getattr(found, trained) - own[layer, head]).abs().max() < TWO_RUNS
            assert (getattr(whole, untrained) - other[layer, head]).abs().max() < TWO_RUNS
            if layer == 0:
                assert (alone.moved - whole.moved).abs().max() < TWO_RUNS


@pytest.mark.parametrize("name", NAMES)
def test_a_head_under_the_other_mask(models: dict[str, Model], folders: dict[str, Path], name: str) -> None:
    """As transformers has it on its eager backend, where a layer is given a mask a head: (1, H, T, T)."""
    model, layer, head = models[name], 1, 2
    network: Any = AutoModel.from_pretrained(folders[name], attn_implementation="eager").eval()
    inputs = AutoTokenizer.from_pretrained(folders[name])(TEXT, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        before = network(**inputs).last_hidden_state[0]
    length, window = len(before), model.sites[layer].window
    masks = [allowed(length, window, causal=model.causal != (one == head)) for one in range(model.num_heads)]
    attention = type(model.sites[layer].attention)
    ours = [module for module in network.modules() if isinstance(module, attention)][layer]
    ours.register_forward_pre_hook(replaced_mask(added(torch.stack(masks))[None]), with_kwargs=True)
    with torch.no_grad():
        after = network(**inputs).last_hidden_state[0]
    ablation = probe.ablate(model, TEXT, [(layer, head)], "other mask")
    moved = (after - before).norm(dim=-1) / before.norm(dim=-1)
    assert torch.allclose(ablation.hidden_change, moved.double(), rtol=1e-3, atol=1e-4)
    assert moved.max() > 0.02


def replaced_mask(mask: Tensor) -> Callable[..., Any]:
    """A hook that gives an attention this mask, however it is handed over."""

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "attention_mask" in kwargs:
            return args, {**kwargs, "attention_mask": mask}
        (index,) = (i for i, value in enumerate(args) if isinstance(value, Tensor) and value.dim() == 4)
        return (*args[:index], mask, *args[index + 1 :]), kwargs

    return hook


@pytest.mark.parametrize("name", ["gptj", "olmo2"])
def test_a_head_switched_off(models: dict[str, Model], folders: dict[str, Path], name: str) -> None:
    """The same as with its columns of the output projection at zero."""
    model, layer, head = models[name], 0, 1
    network: Any = AutoModel.from_pretrained(folders[name]).eval()
    inputs = AutoTokenizer.from_pretrained(folders[name])(TEXT, return_tensors="pt")
    outputs = []
    for _ in range(2):
        with torch.no_grad():
            outputs.append(network(**inputs).last_hidden_state[0])
            output: Any = model.known_family.sites(network)[layer].output.module  # type: ignore[misc]
            output.weight[:, head * model.head_dim : (head + 1) * model.head_dim] = 0.0
    moved = (outputs[1] - outputs[0]).norm(dim=-1) / outputs[0].norm(dim=-1)
    ablation = probe.ablate(model, TEXT, [(layer, head)])
    assert torch.allclose(ablation.hidden_change, moved.double(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["gemma3_text", "olmo2", "gptj"])
def test_a_workbook_is_exported_and_checked(models: dict[str, Model], name: str, tmp_path: Path) -> None:
    path = probe.export(probe.trace(models[name], "The cat sat.", 1, 1, 2), tmp_path / "head.xlsx")
    result = probe.reproduce(path, model=models[name])
    assert result.holds, result.reasons
    for block in ("query_gain", "key_size") if name in tiny.NORMALISED else ("query",):
        changed = tmp_path / f"{block}.xlsx"
        book = openpyxl.load_workbook(path)
        ((sheet, area),) = book.defined_names[block].destinations
        book[sheet][area.replace("$", "")][0][0].value = 0.5
        book.save(changed)
        assert not probe.reproduce(changed, model=models[name]).holds
