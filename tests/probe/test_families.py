"""Deep checks of every family on tiny random models, held against transformers' own maps."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from texts import STORY, eager_maps

import probe
import tiny
from attention import rotary_frequencies
from probe import Model, ProbeError
from probe.models import families
from probe.models.families import FAMILIES, supported_types
from probe.running.inputs import encode_for
from probe.running.recording import record

TEXTS = [STORY[:150], "The cat sat on the mat.", "Lily and Tom went to the park, and it was warm."]
FLOAT32, FLOAT64 = 2e-6, 1e-12
# Of two runs of a network, padded or not, on one backend or another: rounding adds up from layer to layer.
TWO_RUNS = 1e-5

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Case:
    """A configuration of a family, and what must be found of it."""

    family: str
    config: dict[str, Any] = field(default_factory=dict)
    layers: int = 3
    heads: int = 3
    head_dim: int = 8
    group: int = 1
    windows: tuple[int | None, ...] = (None, None, None)
    # Whether transformers keeps float64 all the way; some code takes its softmax in float32.
    keeps_float64: bool = True
    # How many numbers of a head are turned by positions; None for no rotary positions.
    turned: int | None = None
    # How queries and keys are normalised.
    norm: str | None = None


def decoder(family: str, config: dict[str, Any] | None = None, **found: Any) -> Case:
    turned = None if family == "opt" else found.get("head_dim", 8)
    return Case(family, config or {}, **{"heads": 6, "keeps_float64": False, "turned": turned, **found})


TWO: dict[str, Any] = {"layers": 2, "windows": (None, None)}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
STRETCHED = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
WINDOWS_LATER = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
CASES = {
    "bert": Case("bert"),
    "roberta": Case("roberta"),
    "electra": Case("electra"),
    "distilbert": Case("distilbert"),
    "albert": Case("albert"),
    "albert, one group": Case("albert", {"num_hidden_groups": 1}),
    # Three times two layers: the first four of the first group, in turn.
    "albert, inner layers": Case("albert", {"inner_group_num": 2}, layers=6, windows=(None,) * 6),
    "gpt2": Case("gpt2"),
    "opt": decoder("opt", head_dim=4),
    "opt, norm afterwards, no biases": decoder(
        "opt", {"do_layer_norm_before": False, "enable_bias": False}, head_dim=4
    ),
    "llama": decoder("llama", group=3),
    "llama, no sharing": decoder("llama", {"num_key_value_heads": 6}),
    "llama, one key head": decoder("llama", {"num_key_value_heads": 1}, group=6),
    "llama, head_dim not given, no biases": decoder(
        "llama", {"head_dim": None, "attention_bias": False}, head_dim=4, group=3
    ),
    "llama, linear": decoder(
        "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}, group=3
    ),
    "llama, llama3": decoder("llama", {"rope_parameters": LLAMA3}, group=3),
    "mistral": decoder("mistral", group=3, windows=(7, 7, 7)),
    "mistral, no window": decoder("mistral", {"sliding_window": None}, group=3),
    "qwen2": decoder("qwen2", head_dim=4, group=2, windows=(None, 7, 7)),
    "qwen2, no window": decoder("qwen2", {"use_sliding_window": False}, head_dim=4, group=2),
    # A decoder that is told to look both ways.
    "llama, both ways": decoder("llama", {"is_causal": False}, group=3),
    "mistral, both ways": decoder("mistral", {"is_causal": False}, group=3, windows=(8, 8, 8)),
    "qwen3": decoder("qwen3", **TWO, group=3, norm="head"),
    "qwen3, windows, no biases": decoder(
        "qwen3",
        {**WINDOWS_LATER, "attention_bias": False},
        layers=2,
        group=3,
        norm="head",
        windows=(None, 7),
    ),
    "olmo2": decoder("olmo2", **TWO, head_dim=4, group=2, norm="all"),
    "olmo2, no sharing": decoder("olmo2", {"num_key_value_heads": 6}, **TWO, head_dim=4, norm="all"),
    "gemma3_text": decoder("gemma3_text", layers=2, group=3, windows=(7, None), norm="head"),
    # It looks both ways: in its windows 7 // 2 to each side, and itself.
    "gemma3_text, both ways": decoder(
        "gemma3_text",
        {"use_bidirectional_attention": True},
        layers=2,
        group=3,
        windows=(4, None),
        norm="head",
    ),
    "gemma3_text, stretched": decoder(
        "gemma3_text",
        {"rope_parameters": {"full_attention": STRETCHED, "sliding_attention": PLAIN}},
        layers=2,
        group=3,
        windows=(7, None),
        norm="head",
    ),
    "phi3": decoder("phi3", layers=2, group=3, windows=(7, 7), turned=4),
    "phi3, no sharing, all turned, no window": decoder(
        "phi3", {"num_key_value_heads": 6, "sliding_window": None, "rope_parameters": PLAIN}, **TWO
    ),
    "gpt_neox": decoder("gpt_neox", **TWO, heads=3, turned=4),
    "gpt_neox, a quarter turned, no biases": decoder(
        "gpt_neox", {"attention_bias": False, "rope_parameters": PLAIN}, **TWO, heads=3, turned=2
    ),
    "gptj": decoder("gptj", **TWO, heads=3, turned=4),
    "modernbert": decoder("modernbert", layers=2, heads=3, windows=(None, 7)),
    "modernbert, no biases": decoder(
        "modernbert", {"attention_bias": False}, layers=2, heads=3, windows=(None, 7)
    ),
}


@pytest.fixture(scope="session")
def folders(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_bert: Callable[..., Path],
    tiny_gpt2: Callable[..., Path],
) -> dict[str, Path]:
    """Each case's model, saved."""

    def saved(case: Case) -> Path:
        if case.family == "bert":
            return tiny_bert(num_hidden_layers=3)
        if case.family == "gpt2":
            return tiny_gpt2(n_layer=3)
        return tiny.family_saver(case.family, lambda: tmp_path_factory.mktemp(case.family))(
            **copy.deepcopy(case.config)
        )

    return {name: saved(case) for name, case in CASES.items()}


@pytest.fixture(scope="session")
def models(folders: dict[str, Path]) -> dict[str, Model]:
    return {name: probe.load(str(folder)) for name, folder in folders.items()}


def entropy(maps: torch.Tensor) -> torch.Tensor:
    """Of each row: (..., T, T) -> (..., T)."""
    return -(maps * maps.clamp_min(1e-30).log()).sum(-1)


def test_every_model_type_that_is_listed_is_one_that_transformers_knows() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    listed = [model_type for family in FAMILIES for model_type in family.model_types]
    assert len(listed) == len(set(listed)) and set(listed) <= set(CONFIG_MAPPING_NAMES)
    # CamemBERT and XLM-R are RoBERTa under other names.
    assert {case.family for case in CASES.values()} == {*supported_types()} - {"camembert", "xlm-roberta"}


def test_every_family_is_one_file() -> None:
    folder = Path(families.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "family", "site"}
    found = [importlib.import_module(f"probe.models.families.{name}").FAMILY for name in files]
    assert len(found) == len(FAMILIES) and all(family in FAMILIES for family in found)


@pytest.mark.parametrize("name", CASES)
def test_layers_and_heads(models: dict[str, Model], name: str) -> None:
    model, case = models[name], CASES[name]
    assert (model.num_layers, model.num_heads, model.head_dim) == (case.layers, case.heads, case.head_dim)
    assert tuple(site.window for site in model.sites) == case.windows
    assert {site.group for site in model.sites} == {case.group}
    for site in model.sites:
        assert (site.rotary_frequencies is None) == (case.turned is None)
        assert site.rotary_frequencies is None or 2 * len(site.rotary_frequencies) == case.turned
        assert {norm and norm.over for norm in (site.query_norm, site.key_norm)} == {case.norm}


def test_frequencies_by_the_papers_formula(models: dict[str, Model]) -> None:
    plain, halved = models["llama"], models["llama, linear"]
    assert plain.sites[2].rotary_frequencies.tolist() == pytest.approx(  # type: ignore[union-attr]
        [10_000.0 ** (-i / 4) for i in range(4)]
    )
    # Linear: as if positions were closer together by the factor.
    expected = rotary_frequencies(8, base=100.0) / 2
    assert torch.allclose(halved.sites[0].rotary_frequencies, expected)  # type: ignore[arg-type]
    for layer, base in enumerate((10_000.0, 1_000_000.0)):  # of Gemma 3: fast within windows, slow elsewhere
        frequencies = models["gemma3_text"].sites[layer].rotary_frequencies
        assert torch.allclose(frequencies, rotary_frequencies(8, base=base))  # type: ignore[arg-type]
    bent = models["llama, llama3"].sites[0].rotary_frequencies
    ratio = bent / rotary_frequencies(8, base=100.0)  # type: ignore[operator]
    assert ratio.min() == pytest.approx(0.25, abs=1e-6) and ratio.max() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_texts_of_different_lengths_together(
    models: dict[str, Model], folders: dict[str, Path], name: str
) -> None:
    model = models[name]
    report = probe.verify(model, TEXTS)
    assert report.passed, report
    assert len(set(report.num_tokens)) == 3
    assert len(report.heads) == model.num_layers * model.num_heads
    assert report.max_abs_error <= FLOAT32 and report.tolerance < 1e-5
    maps = [eager_maps(folders[name], text) for text in TEXTS]
    # Maps that are nearly uniform, or nearly one-hot, would hide a mistake.
    long = entropy(maps[0])[..., 16:]
    assert 0.3 < long.mean() < 0.8 * torch.tensor(report.num_tokens[0]).log()
    for head in report.heads:
        worst = head.worst
        theirs = maps[worst.text][head.layer, head.head]
        assert worst.model == pytest.approx(float(theirs[worst.query, worst.key]), abs=TWO_RUNS)
        assert abs(worst.from_scratch - worst.model) == pytest.approx(head.max_abs_error, abs=1e-9)
        assert head.forbidden_weight == 0.0
    # Rows and columns of what is compared are the text's, in each layer, whatever the padding.
    comparison = probe.compare(model, TEXTS[1])
    for layer, head in (
        (layer, head) for layer in range(model.num_layers) for head in range(model.num_heads)
    ):
        theirs = maps[1][layer, head]
        assert (comparison.from_model(layer, head) - theirs).abs().max() < TWO_RUNS
        assert (comparison.from_scratch(layer, head) - theirs).abs().max() < TWO_RUNS
        assert all((theirs - maps[1][other, head]).abs().max() > 0.02 for other in range(layer))


@pytest.mark.parametrize("name", CASES)
def test_in_float64(folders: dict[str, Path], name: str) -> None:
    model = probe.load(str(folders[name]), dtype=torch.float64)
    report = probe.verify(model, TEXTS)
    assert report.passed, report
    exact = CASES[name].keeps_float64
    bound = FLOAT64 if exact else FLOAT32
    assert report.max_abs_error <= bound
    assert report.tolerance < (FLOAT64 if exact else 1e-5)
    # Norms are computed in float32, and so is ModernBERT's rotation.
    turned_in_float32 = CASES[name].norm is not None
    for head in report.heads:
        assert head.value_error is not None and head.value_error <= FLOAT64
        assert head.query_error is not None
        assert head.query_error <= (1e-5 if turned_in_float32 else FLOAT64)
    maps = eager_maps(folders[name], TEXTS[0], torch.float64)
    comparison = probe.compare(model, TEXTS[0])
    for layer in range(model.num_layers):
        ours = torch.stack([comparison.from_scratch(layer, head) for head in range(model.num_heads)])
        assert (ours - maps[layer]).abs().max() <= bound


@pytest.mark.parametrize("name", CASES)
def test_attend_agrees_with_record(models: dict[str, Model], name: str) -> None:
    """Two ways to the same maps: from queries and keys on the model's own backend, and eager's own."""
    model = models[name]
    runs = probe.attend(model, TEXTS)
    recording = record(model, [encode_for(model, text) for text in TEXTS])
    for row, run in enumerate(runs):
        length = len(run.tokens)
        for layer in range(model.num_layers):
            seen = recording.layers[layer].weights[row, :, :length, :length]
            for head in range(model.num_heads):
                assert (run.weights(layer, head) - seen[head]).abs().max() < TWO_RUNS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["qwen3", "olmo2", "gemma3_text", "gptj", "phi3", "gpt_neox", "modernbert"])
def test_in_half_precision(folders: dict[str, Path], name: str, dtype: torch.dtype) -> None:
    report = probe.verify(probe.load(str(folders[name]), dtype=dtype), TEXTS)
    assert report.passed, report
    assert report.tolerance <= 50 * torch.finfo(dtype).eps / 2


@pytest.mark.parametrize("name", CASES)
def test_a_row_number_by_number(models: dict[str, Model], folders: dict[str, Path], name: str) -> None:
    """A trace is computed from the weights too, by another way through the code."""
    model = models[name]
    theirs = eager_maps(folders[name], TEXTS[1])
    for layer in range(model.num_layers):
        trace = probe.trace(model, TEXTS[1], layer, head=1, query=4)
        assert (trace.weights - theirs[layer, 1, 4]).abs().max() < TWO_RUNS
        assert trace.max_abs_error < FLOAT32


def one_sentence(error: pytest.ExceptionInfo[ProbeError], *parts: str) -> None:
    said = str(error.value)
    assert all(part in said for part in parts), said
    assert said.endswith(".") and "\n" not in said and len(said) < 400


@pytest.mark.parametrize("rope_type", ["dynamic", "yarn"])
def test_a_kind_of_rotation_that_is_not_described(rope_type: str, tmp_path: Path) -> None:
    """Its maps are captured, and checked from query and key; what needs the weights is refused, by name."""
    parameters: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 100.0, "factor": 4.0}
    if rope_type == "yarn":
        parameters["original_max_position_embeddings"] = 24
    folder = tiny.family_saver("llama", lambda: tmp_path)(rope_parameters=parameters)
    model = probe.load(str(folder))
    assert not model.has_sites and model.num_layers == 3 and model.num_heads == 6
    report = probe.verify(model, TEXTS)
    assert report.passed and report.check == "from query and key" and len(report.heads) == 18
    comparison = probe.compare(model, TEXTS[0])
    with pytest.raises(ProbeError) as error:
        comparison.trace(0, 0, 1)
    one_sentence(error, model.name, 'kind of "llama"', "not described", "rope_type", "can be seen")
    run = probe.attend(model, TEXTS[0])
    theirs = eager_maps(folder, TEXTS[0])
    for layer in range(3):
        for head in range(6):
            assert (run.weights(layer, head) - theirs[layer, head]).abs().max() < TWO_RUNS
    assert probe.run_from_scratch(model, TEXTS[0]).max_abs_error < 1e-4


@pytest.mark.parametrize("change", ["rounded weights", "another window"])
def test_a_network_that_changes_after_its_first_check(folders: dict[str, Path], change: str) -> None:
    model = probe.load(str(folders["mistral"]))
    assert probe.verify(model, TEXTS).passed
    hf: Any = model.hf
    before = probe.attend(model, TEXTS[0]).weights(2, 1)
    if change == "rounded weights":
        hf.bfloat16().float()
    else:
        hf.config.sliding_window = 5
    assert (probe.attend(model, TEXTS[0]).weights(2, 1) - before).abs().max() > 1e-3
    report = probe.verify(model, TEXTS)
    assert report.passed, report
