"""Networks whose maps are no plain ones: with adapters, replaced, or with weights that come for each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from texts import STORY
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

import probe
import tiny
from probe import Model, ProbeError

TEXT = STORY[:110]
TWO_RUNS = 1e-5
# The names of the maps in each network.
MAPS = {
    "bert": ("query", "key", "value", "attention.output.dense"),
    "gpt2": ("c_attn", "attn.c_proj"),
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "qwen3": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "olmo2": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "modernbert": ("Wqkv", "attn.Wo"),
    "gpt_neox": ("query_key_value", "attention.dense"),
    "albert": ("query", "key", "value", "attention.dense"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """A tiny model of a family; each call gives one of its own."""
    folders: dict[str, Path] = {}

    def loaded(name: str) -> Model:
        if name not in folders:
            new = partial(tmp_path_factory.mktemp, "model")
            plain = {
                "bert": partial(tiny.saver, tiny.bert, tiny.minilm_folder()),
                "gpt2": partial(tiny.saver, tiny.gpt2, tiny.GPT2_STORIES),
            }.get(name, partial(tiny.family_saver, name))
            folders[name] = plain(new)()
        return probe.load(str(folders[name]))

    return loaded


class Adapted(nn.Module):
    """A map with low-rank adapters around it, as the library peft puts them (its ``lora.Linear``)."""

    def __init__(self, base: Any, *, rank: int = 4, scaling: float = 0.75, bias: bool = False) -> None:
        super().__init__()
        into, out = base.weight.shape if isinstance(base, Conv1D) else reversed(base.weight.shape)
        self.base_layer, self.in_features, self.out_features = base, into, out
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()
        self.lora_dropout = nn.ModuleDict()
        self.scaling: dict[str, float] = {}
        self.use_dora: dict[str, bool] = {}
        self.lora_variant: dict[str, Any] = {}
        self.disable_adapters = False
        self.merged_adapters: list[str] = []
        self.active_adapters = ["first", "second", "absent"]
        for name in ("first", "second", "idle"):
            self.lora_A[name], self.lora_B[name] = (
                nn.Linear(into, rank, bias=False),
                nn.Linear(rank, out, bias=bias),
            )
            self.lora_dropout[name] = nn.Dropout(0.5)
            self.scaling[name] = scaling
            self.use_dora[name] = False
        with torch.no_grad():
            for part in (*self.lora_A.values(), *self.lora_B.values()):
                part.weight.normal_(std=part.weight.shape[1] ** -0.5)
        self.to(base.weight.dtype)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias

    @property
    def merged(self) -> bool:
        return bool(self.merged_adapters)

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        if self.disable_adapters or self.merged:
            return result
        for name in self.active_adapters:
            if name in self.lora_A:
                dropped = self.lora_dropout[name](x)
                result = result + self.lora_B[name](self.lora_A[name](dropped)) * self.scaling[name]
        return result

    def merge(self) -> None:
        """Add every active adapter to the base's weight."""
        for name in self.active_adapters[:2]:
            change = (self.lora_B[name].weight @ self.lora_A[name].weight) * self.scaling[name]
            self.base_layer.weight.data += change.T if isinstance(self.base_layer, Conv1D) else change
            self.merged_adapters.append(name)


def replace_maps(hf: PreTrainedModel, name: str, new: Callable[[Any], nn.Module]) -> list[Any]:
    """Put something in place of each map of the attention, and return what."""
    torch.manual_seed(3)
    found = [path for path, _ in hf.named_modules() if path.endswith(MAPS[name])]
    assert found
    for path in found:
        parent, _, last = path.rpartition(".")
        owner = hf.get_submodule(parent)
        setattr(owner, last, new(getattr(owner, last)))
    return [hf.get_submodule(path) for path in found]


def adapted(model: Model, name: str, **options: Any) -> tuple[Model, list[Adapted]]:
    layers = replace_maps(model.hf, name, partial(Adapted, **options))
    # In training mode there would be dropout.
    return probe.load(model.hf.train(), tokenizer=model.tokenizer), layers


def eager_maps(model: Model) -> Tensor:
    """(layers, H, T, T), by transformers, from the network itself."""
    own = model.hf.config._attn_implementation
    model.hf.config._attn_implementation = "eager"
    inputs = model.tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        maps = (
            model.hf.eval()
            .base_model(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], output_attentions=True
            )
            .attentions
        )
    model.hf.config._attn_implementation = own
    return torch.cat(maps)


@pytest.mark.parametrize("name", MAPS)
def test_adapters_take_part_everywhere(base: Callable[[str], Model], name: str) -> None:
    plain = eager_maps(base(name))
    model, _ = adapted(base(name), name, bias=name == "bert")
    maps = eager_maps(model)
    assert (maps - plain).abs().max() > 0.1
    report = probe.verify(model, [TEXT, "The cat."])
    assert report.passed, report
    assert report.check == "from the weights" and report.max_abs_error < 5e-6
    run, comparison = probe.attend(model, TEXT), probe.compare(model, TEXT)
    for layer in range(model.num_layers):
        head = layer % model.num_heads
        assert (run.weights(layer, head) - maps[layer, head]).abs().max() < TWO_RUNS
        assert (comparison.from_scratch(layer, head) - maps[layer, head]).abs().max() < TWO_RUNS
        trace = probe.trace(model, TEXT, layer, head, 7)
        assert (trace.weights - maps[layer, head, 7]).abs().max() < TWO_RUNS
    # A head's share of the output is that of the adapted map too.
    site = model.sites[layer]
    shares = sum(probe.trace(model, TEXT, layer, head, 7).output_share for head in range(model.num_heads))
    outputs: list[Tensor] = []
    with site.output.module.register_forward_hook(lambda module, args, output: outputs.append(output[0])):
        eager_maps(model)
    bias = site.output.bias()
    assert (shares + (0.0 if bias is None else bias) - outputs[-1][7]).abs().max() < TWO_RUNS


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_adapters_in_other_dtypes(base: Callable[[str], Model], name: str, dtype: torch.dtype) -> None:
    model = base(name)
    model.hf.to(dtype)
    report = probe.verify(adapted(model, name)[0], TEXT)
    assert report.passed, report


def test_a_workbook_computes_with_the_adapters(base: Callable[[str], Model], tmp_path: Path) -> None:
    model, _ = adapted(base("gpt2"), "gpt2")
    trace = probe.trace(model, "The cat", 1, 1, 1)
    path = probe.export(trace, tmp_path / "head.xlsx", model=model)
    assert probe.reproduce(path, model=model).holds
    with pytest.raises(ProbeError, match="doesn't give these numbers again"):
        probe.export(trace, path, model=base("gpt2"))


def test_a_fault_of_an_adapter_is_found(base: Callable[[str], Model]) -> None:
    model, layers = adapted(base("gpt2"), "gpt2")
    layers[2].forward = lambda x: Adapted.forward(layers[2], x) * 1.01  # the joint map of layer 1
    report = probe.verify(model, TEXT)
    assert {head.layer for head in report.heads if not head.passed} == {1}


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("how", ["switched off", "merged", "another is active"])
def test_which_adapters_take_part(base: Callable[[str], Model], name: str, how: str) -> None:
    model, layers = adapted(base(name), name)
    before = probe.attend(model, TEXT).weights(1, 1)
    for layer in layers:
        if how == "switched off":
            layer.disable_adapters = True
        elif how == "merged":
            layer.merge()
        else:
            layer.active_adapters = ["idle"]
    report = probe.verify(model, TEXT)
    assert report.passed, report
    trace, maps = probe.trace(model, TEXT, 1, 1, 7), eager_maps(model)
    assert (trace.weights - maps[1, 1, 7]).abs().max() < TWO_RUNS
    assert bool((maps[1, 1] - before).abs().max() > 0.05) == (how != "merged")


def test_adapters_that_come_after_the_first_run(base: Callable[[str], Model]) -> None:
    model = base("bert")
    assert probe.verify(model, TEXT).passed
    replace_maps(model.hf, "bert", Adapted)
    assert probe.verify(model, TEXT).passed
    trace = probe.trace(model, TEXT, 1, 1, 7)
    assert (trace.weights - eager_maps(model)[1, 1, 7]).abs().max() < TWO_RUNS


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_an_adapter_that_undoes_its_base(base: Callable[[str], Model], name: str) -> None:
    """What the two make is a thousand times as large as their sum, and rounded as such."""
    model, layers = adapted(base(name), name, rank=24)
    for layer in layers:
        layer.active_adapters = ["first"]
        own = layer.base_layer.weight
        wanted = (own.T if isinstance(layer.base_layer, Conv1D) else own).detach().clone()
        large = 1000 * torch.randn(wanted.shape)
        with torch.no_grad():
            own.copy_((wanted + large).T if isinstance(layer.base_layer, Conv1D) else wanted + large)
            layer.lora_A["first"].weight.copy_(torch.eye(24))
            layer.lora_B["first"].weight.data = -large / 0.75
    report = probe.verify(model, TEXT)
    assert report.passed, report


# --- maps of a kind that is not known -----------------------------------------------------------------------


class Other(nn.Module):
    """A module that computes what a Linear does, and more."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base_layer, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * self.base_layer(x)


class Coded(nn.Linear):
    """A Linear by name, whose weight is not what it multiplies with."""

    def __init__(self, base: Any) -> None:
        super().__init__(base.in_features, base.out_features)
        self.load_state_dict(base.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, 1.5 * self.weight, self.bias)


def variant(kind: str) -> Callable[[Any], nn.Module]:
    def new(base: Any) -> nn.Module:
        layer = Adapted(base)
        if kind == "DoRA":
            layer.use_dora["first"] = True
        elif kind == "another variant":
            layer.lora_variant["first"] = object()
        else:
            layer.lora_A["first"] = nn.Sequential(layer.lora_A["first"])
        return layer

    return new


def quantised(hf: PreTrainedModel) -> PreTrainedModel:
    whole: PreTrainedModel = torch.ao.quantization.quantize_dynamic(hf, {nn.Linear}, dtype=torch.qint8)
    return whole


UNKNOWN: dict[str, Callable[[Any], nn.Module]] = {
    "a module of one's own": Other,
    "a Linear that computes otherwise": Coded,
    "an adapter around one": lambda base: Adapted(Coded(base)),
    **{f"LoRA, {kind}": variant(kind) for kind in ("DoRA", "another variant", "more than a map")},
}


@pytest.mark.filterwarnings("ignore")  # of torch, that its way of quantising is an old one
@pytest.mark.parametrize("how", [*UNKNOWN, "quantised"])
def test_other_maps_are_refused_where_their_weights_are_needed(
    base: Callable[[str], Model], how: str
) -> None:
    model = base("bert")
    if how == "quantised":
        model = probe.load(quantised(model.hf), tokenizer=model.tokenizer)
    else:
        replace_maps(model.hf, "bert", UNKNOWN[how])
    for ask in (probe.verify, probe.compare, lambda *what: probe.trace(*what, 1, 1, 7)):
        with pytest.raises(
            ProbeError, match=r"^In the attention of this network, .* can't be read \("
        ) as caught:
            ask(model, TEXT)
        assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    # Where they aren't, the network's own word is right.
    maps = eager_maps(model)
    assert (probe.attend(model, TEXT).weights(1, 1) - maps[1, 1]).abs().max() < TWO_RUNS
    assert probe.ablate(model, TEXT, [(1, 1)]).hidden_change.isfinite().all()


# --- weights that come for each call ------------------------------------------------------------------------


class Hook:
    """What accelerate attaches to a module whose weights it keeps (its ``AlignDevicesHook``)."""

    def __init__(self, module: nn.Module, *, place_submodules: bool = False) -> None:
        self.execution_device = torch.device("cpu")
        self.weights_map = {
            name: tensor.detach() for name, tensor in module.named_parameters(recurse=place_submodules)
        }
        self.post_forward(module)

    def pre_forward(self, module: nn.Module) -> None:
        for name, tensor in self.weights_map.items():
            self.put(module, name, tensor)

    def post_forward(self, module: nn.Module) -> None:
        for name, tensor in self.weights_map.items():
            self.put(module, name, tensor.to("meta"))

    @staticmethod
    def put(module: nn.Module, name: str, tensor: Tensor) -> None:
        path, _, last = name.rpartition(".")
        module.get_submodule(path)._parameters[last] = nn.Parameter(tensor, requires_grad=False)


def attach(module: nn.Module, hook: Hook) -> None:
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        hook.pre_forward(module)
        output = own(*args, **kwargs)
        hook.post_forward(module)
        return output

    module._hf_hook, module.forward = hook, forward  # type: ignore[assignment]


def layers_of(network: Any, name: str) -> Any:
    base = network.base_model
    return base.encoder.layer if name == "bert" else base.h if name == "gpt2" else base.layers


@pytest.mark.parametrize("part", ["one layer", "all"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "qwen3"])
def test_offloaded_layers(base: Callable[[str], Model], name: str, part: str) -> None:
    plain, model = base(name), base(name)
    network: Any = model.hf
    layers = layers_of(network, name)
    for module in (layers[1] if part == "one layer" else network).modules():
        if list(module.parameters(recurse=False)):
            attach(module, Hook(module))
    assert any(parameter.is_meta for parameter in network.parameters())
    model = probe.load(network, tokenizer=model.tokenizer)
    assert model.device == torch.device("cpu")
    report = probe.verify(model, [TEXT, "The cat."])
    assert report.passed, report
    assert report.max_abs_error == probe.verify(plain, [TEXT, "The cat."]).max_abs_error
    for ask in (probe.attend, probe.measure_heads, lambda *what: probe.trace(*what, 1, 1, 7)):
        assert ask(model, TEXT).to_frame().equals(ask(plain, TEXT).to_frame())
    assert model.weight_warnings == ()
    # Nothing was left in the network.
    assert all(one.is_meta for one in layers[1].parameters())


@pytest.mark.parametrize("part", ["one layer", "all"])
def test_weights_that_nothing_brings(base: Callable[[str], Model], part: str) -> None:
    model = base("bert")
    network: Any = model.hf
    (network.encoder.layer[1] if part == "one layer" else network).to("meta")
    for ask in (probe.attend, probe.verify, probe.ablate, probe.compare):
        with pytest.raises(ProbeError, match=r'have no numbers: .* is on the device "meta", and no hook'):
            ask(model, TEXT, *([[0]] if ask is probe.ablate else []))


def test_weights_kept_with_a_module_around(base: Callable[[str], Model]) -> None:
    """accelerate's ``preload_module_classes``: one hook for a whole layer, and its maps have none."""
    model = base("bert")
    layer = layers_of(model.hf, "bert")[1]
    expected = probe.attend(model, TEXT).weights(1, 1)
    attach(layer, Hook(layer, place_submodules=True))
    assert torch.equal(probe.attend(model, TEXT).weights(1, 1), expected)
    with pytest.raises(ProbeError, match="with a module around it"):
        probe.trace(model, TEXT, 1, 1, 7)
