"""verify on sound models: every head passes, the report's numbers are right, and nothing is disturbed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numbers_in_text import close
from safetensors.numpy import load_file
from texts import SHORT_TEXTS, STORY, eager_maps, varied_texts
from transformers import AutoModel, AutoTokenizer

import probe
from probe import HeadCheck, LayerCheck, Model, ProbeError, Report
from probe.analyses.checks.report import FROM_WEIGHTS, Exceeded, Findings

# How far the weights of a sound model may be off, by the number of tokens.
FLOAT32_UP_TO_128, FLOAT32, FLOAT64 = 2e-6, 5e-6, 1e-13
SENTENCE = "Lily and Tom went to the park, and Lily gave a ball to Tom because it was his birthday."


@pytest.fixture(scope="session")
def doubles() -> dict[str, Model]:
    return {name: probe.load(name, dtype=torch.float64) for name in ("bert", "gpt2")}


@pytest.fixture(scope="session")
def reports(bert: Model, gpt2: Model, doubles: dict[str, Model]) -> dict[tuple[str, str], list[Report]]:
    """One report a text, for both models in both dtypes."""
    return {
        (name, dtype): [probe.verify(model, text) for text in varied_texts(model)]
        for name, dtype, model in (
            ("bert", "float32", bert),
            ("gpt2", "float32", gpt2),
            ("bert", "float64", doubles["bert"]),
            ("gpt2", "float64", doubles["gpt2"]),
        )
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "heads", "layers", "limit"), [("bert", 12, 6, 512), ("gpt2", 6, 6, 256)])
def test_all_heads_pass_on_varied_texts(
    reports: dict[tuple[str, str], list[Report]], name: str, heads: int, layers: int, limit: int, dtype: str
) -> None:
    found = reports[name, dtype]
    assert len({report.texts for report in found}) >= 20
    lengths = [report.num_tokens[0] for report in found]
    assert {64, 128, limit // 2, limit} <= set(lengths)
    for report, length in zip(found, lengths, strict=True):
        assert report.passed and not report.failures, report
        assert [(head.layer, head.head) for head in report.heads] == [
            (layer, head) for layer in range(layers) for head in range(heads)
        ]
        assert [layer.layer for layer in report.layers] == list(range(layers))
        assert all(head.passed and head.failed == () for head in report.heads)
        if dtype == "float64":
            assert report.max_abs_error <= FLOAT64
        else:
            assert report.max_abs_error <= (FLOAT32_UP_TO_128 if length <= 128 else FLOAT32)


def test_the_tolerance_is_at_most_ten_times_the_worst_error(
    reports: dict[tuple[str, str], list[Report]],
) -> None:
    """In units of the dtype's last place: a looser one would pass what a sound model never shows."""
    unit = {"float32": 2.0**-24, "float64": 2.0**-53}
    worst, largest = 0.0, 0.0
    for (_, dtype), found in reports.items():
        for report in found:
            for head in report.heads:
                assert head.max_abs_error <= head.tolerance <= report.tolerance
                worst = max(worst, head.max_abs_error / unit[dtype])
                largest = max(largest, head.tolerance / unit[dtype])
    assert largest <= 10 * worst


def test_several_texts_at_once_pass_too(bert: Model, gpt2: Model) -> None:
    for model in (bert, gpt2):
        texts = [text for text in varied_texts(model) if len(text) < 400]
        report = probe.verify(model, texts)
        assert report.passed, report
        assert list(report.texts) == texts
        assert len(report.num_tokens) == len(report.truncated) == len(texts)
        assert report.max_abs_error <= FLOAT32_UP_TO_128


# --- the numbers in the report ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [SENTENCE, SHORT_TEXTS[13], STORY * 2])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_numbers_against_transformers_own_maps(name: str, text: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    assert model.folder is not None
    maps = eager_maps(model.folder, text).double()
    comparison = probe.compare(model, text)
    report = probe.verify(model, text)
    assert close(comparison.report.to_dict(), report.to_dict())
    length = maps.shape[-1]
    assert report.num_tokens == (length,)
    cells = length * (length + 1) // 2 if model.causal else length**2
    for head in report.heads:
        theirs = maps[head.layer, head.head]
        ours = comparison.from_scratch(head.layer, head.head).double()
        difference = (ours - theirs).abs()
        assert head.max_abs_error == pytest.approx(float(difference.max()), abs=2e-7)
        assert head.mean_abs_error == pytest.approx(float(difference.sum()) / cells, abs=2e-8)
        assert head.worst.text == 0
        assert head.worst.model == pytest.approx(float(theirs[head.worst.query, head.worst.key]), abs=2e-7)
        assert head.worst.from_scratch == pytest.approx(
            float(ours[head.worst.query, head.worst.key]), abs=1e-12
        )
        assert abs(head.worst.model - head.worst.from_scratch) == pytest.approx(head.max_abs_error, abs=1e-12)
        assert head.worst.query_token == comparison.encoding.tokens[head.worst.query]
        assert head.worst.key_token == comparison.encoding.tokens[head.worst.key]
        row_sum_error = float((theirs.sum(-1) - 1).abs().max())
        assert head.row_sum_error == pytest.approx(row_sum_error, abs=1e-6)
        if model.causal:
            assert head.forbidden_weight == 0.0 == float(theirs.triu(1).abs().max())
        else:
            assert head.forbidden_weight is None


def raw_attention(folder: Path, text: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Weights (H, T, T) and attention outputs (T, d) of each layer, in float64 numpy from the file's arrays.

    Only the inputs of the layers are transformers': its hidden states.
    """
    arrays = {key: value.astype(np.float64) for key, value in load_file(folder / "model.safetensors").items()}
    config = json.loads((folder / "config.json").read_text())
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    network = AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        states = [state[0].numpy() for state in network(**tokens, output_hidden_states=True).hidden_states]
    is_gpt2 = config["model_type"] == "gpt2"
    heads = config["n_head"] if is_gpt2 else config["num_attention_heads"]
    maps, outputs = [], []
    for layer in range(len(states) - 1):
        x = states[layer]
        if is_gpt2:
            at = next(key for key in arrays if key.endswith(f"h.{layer}.attn.c_attn.weight"))[
                : -len("attn.c_attn.weight")
            ]
            mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            x = (x - mean) / np.sqrt(variance + config["layer_norm_epsilon"])
            x = x * arrays[at + "ln_1.weight"] + arrays[at + "ln_1.bias"]
            qkv = x @ arrays[at + "attn.c_attn.weight"] + arrays[at + "attn.c_attn.bias"]
            query, key, value = np.split(qkv, 3, axis=-1)
            out_weight, out_bias = arrays[at + "attn.c_proj.weight"], arrays[at + "attn.c_proj.bias"]
        else:
            at = f"encoder.layer.{layer}.attention."
            query, key, value = (
                x @ arrays[f"{at}self.{role}.weight"].T + arrays[f"{at}self.{role}.bias"]
                for role in ("query", "key", "value")
            )
            out_weight, out_bias = arrays[at + "output.dense.weight"].T, arrays[at + "output.dense.bias"]
        width = query.shape[-1] // heads
        weights, contexts = [], []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            scores = query[:, part] @ key[:, part].T / np.sqrt(width)
            if is_gpt2:
                scores[np.triu_indices(len(scores), 1)] = -np.inf
            exponentials = np.exp(scores)
            weights.append(exponentials / exponentials.sum(-1, keepdims=True))
            contexts.append(weights[-1] @ value[:, part])
        maps.append(np.stack(weights))
        outputs.append(np.concatenate(contexts, axis=-1) @ out_weight + out_bias)
    return maps, outputs


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_from_scratch_is_what_the_checkpoint_says(name: str, doubles: dict[str, Model]) -> None:
    """Against numpy on the arrays of the weights' file: nothing of torch's or of the network's modules."""
    model = doubles[name]
    assert model.folder is not None
    maps, outputs = raw_attention(model.folder, SENTENCE)
    comparison = probe.compare(model, SENTENCE)
    for layer in range(model.num_layers):
        for head in range(model.num_heads):
            np.testing.assert_allclose(
                comparison.from_scratch(layer, head), maps[layer][head], rtol=0, atol=1e-12
            )
            np.testing.assert_allclose(
                comparison.from_model(layer, head), maps[layer][head], rtol=0, atol=1e-12
            )
        seen = comparison.recording.layers[layer]
        np.testing.assert_allclose(seen.output[0], outputs[layer], rtol=0, atol=1e-11)


def test_report_says_what_was_checked(bert: Model, gpt2: Model, doubles: dict[str, Model]) -> None:
    for model in (bert, gpt2, doubles["gpt2"]):
        report = probe.verify(model, SENTENCE)
        assert model.folder is not None
        digest = hashlib.sha256((model.folder / "model.safetensors").read_bytes()).hexdigest()
        assert report.sha256 == digest
        assert (report.model, report.source, report.revision) == (model.name, "bundled", None)
        assert report.device == "cpu"
        assert report.dtype == ("float64" if model is doubles["gpt2"] else "float32")
        assert report.backend == "eager" and report.matmul_precision == "highest"
        assert report.versions["torch"] == torch.__version__
        assert report.versions["transformers"] == transformers.__version__
    assert (bert.name, gpt2.name) == ("all-MiniLM-L6-v2", "gpt2-stories")


def test_report_as_dict_json_and_table(gpt2: Model) -> None:
    report = probe.verify(gpt2, SENTENCE)
    parsed = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert parsed == report.to_dict()
    assert parsed["passed"] is True and parsed["verdict"] == report.verdict
    assert len(parsed["heads"]) == 36 and len(parsed["layers"]) == 6
    assert parsed["heads"][7]["layer"] == 1 and parsed["heads"][7]["head"] == 1
    assert parsed["heads"][7]["max_abs_error"] == report.heads[7].max_abs_error
    table = str(report)
    assert table.splitlines()[0] == report.verdict
    assert "All 36 heads of gpt2-stories agree" in report.verdict
    rows = [line.split() for line in table.splitlines() if line.rstrip().endswith("ok")]
    assert [row[:2] for row in rows if len(row) > 5] == [[str(h.layer), str(h.head)] for h in report.heads]
    assert "FAILED" not in table


def test_a_sample_of_heads_goes_through_the_loops(bert: Model, gpt2: Model) -> None:
    for model in (bert, gpt2):
        report = probe.verify(model, SENTENCE)
        sampled = [head for head in report.heads if head.loops_error is not None]
        assert {head.layer for head in sampled} == set(range(model.num_layers))
        assert len({head.head for head in sampled}) == 6
        assert all(0 < head.loops_error <= head.tolerance for head in sampled if head.loops_error is not None)


# --- other sound models -------------------------------------------------------------------------------------


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "5 heads of width 7": {"n_head": 5, "n_embd": 35, "n_layer": 3},
    "layer-wise scale": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 4},
    "no scale": {"scale_attn_weights": False},
    "upcast": {"reorder_and_upcast_attn": True},
    "one wide head": {"n_head": 1, "n_embd": 96},
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_gpt2s_pass(tiny_gpt2: Callable[..., Path], variant: str, seed: int) -> None:
    folder = tiny_gpt2(seed=seed, **VARIANTS[variant])
    check_tiny(folder, [torch.float32] if variant == "upcast" else [torch.float32, torch.float64])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "variant", [{}, {"hidden_size": 35, "num_attention_heads": 5, "num_hidden_layers": 3}]
)
def test_tiny_berts_pass(tiny_bert: Callable[..., Path], variant: dict[str, Any], seed: int) -> None:
    check_tiny(tiny_bert(seed=seed, **variant), [torch.float32, torch.float64])


@pytest.mark.parametrize("seed", range(3))
def test_tiny_robertas_pass(tiny_roberta: Callable[..., Path], seed: int) -> None:
    check_tiny(tiny_roberta(seed=seed), [torch.float32, torch.float64])


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_bert"])
def test_peaky_and_flat_weights_pass(name: str, request: pytest.FixtureRequest) -> None:
    """Scores of several hundred, where a weight is 0 or 1, and scores of nearly nothing."""
    for factor in (10.0, 0.01):
        folder = request.getfixturevalue(name)(seed=3)
        hf = AutoModel.from_pretrained(folder)
        with torch.no_grad():
            for key, parameter in hf.named_parameters():
                if parameter.dim() == 2 and any(part in key for part in ("query", "key", "c_attn")):
                    parameter *= factor
        model = probe.load(hf, tokenizer=AutoTokenizer.from_pretrained(folder))
        texts = [text for text in SHORT_TEXTS if len(model.tokenizer(text)["input_ids"]) <= 64]
        report = probe.verify(model, texts)
        assert report.passed, report
        largest = max(
            float(probe.attend(model, SHORT_TEXTS[1]).weights(1, head)[-1].max()) for head in range(3)
        )
        assert largest > 0.99 if factor == 10.0 else largest < 0.3


def check_tiny(folder: Path, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        model = probe.load(str(folder), dtype=dtype)
        texts = [text for text in SHORT_TEXTS if len(model.tokenizer(text)["input_ids"]) <= 64]
        assert len(texts) >= 8
        for given in (texts, texts[1]):
            report = probe.verify(model, given)
            assert report.passed, report
            assert len(report.heads) == model.num_layers * model.num_heads
            assert report.dtype == str(dtype).removeprefix("torch.")
            assert report.max_abs_error <= (FLOAT64 if dtype == torch.float64 else FLOAT32)
        maps = eager_maps(folder, texts[1], dtype)
        run = probe.attend(model, texts[1])
        limit = 1e-12 if dtype == torch.float64 else 2e-5
        for layer in range(model.num_layers):
            for head in range(model.num_heads):
                torch.testing.assert_close(run.weights(layer, head), maps[layer, head], rtol=0, atol=limit)


def test_upcast_attention_has_no_float64(tiny_gpt2: Callable[..., Path]) -> None:
    """transformers itself can't: it raises a RuntimeError about upcasting in the middle of the run."""
    folder = str(tiny_gpt2(reorder_and_upcast_attn=True))
    with pytest.raises(ProbeError, match=r"reorder_and_upcast_attn.*float32"):
        probe.load(folder, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_half_precision_passes_within_its_own_tolerance(name: str, dtype: torch.dtype) -> None:
    report = probe.verify(probe.load(name, dtype=dtype), [SENTENCE, "One day"])
    assert report.passed, report
    assert report.dtype == str(dtype).removeprefix("torch.")
    assert report.max_abs_error < 0.02
    # Against float64 the model's half precision shows.
    assert 1e-5 < max(head.loops_error or 0.0 for head in report.heads) < 0.02


# --- nothing is disturbed, and nothing disturbs -------------------------------------------------------------


@contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
        assert torch.get_float32_matmul_precision() == value
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)


@contextmanager
def autocast() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
        assert torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


@contextmanager
def grad() -> Iterator[None]:
    with torch.enable_grad():
        yield
        assert torch.is_grad_enabled()


@contextmanager
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
        assert not torch.is_grad_enabled()


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "matmul precision high": lambda: matmul_precision("high"),
    "matmul precision medium": lambda: matmul_precision("medium"),
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "autocast": autocast,
    "gradients on": grad,
    "gradients off": no_grad,
    "inference mode": torch.inference_mode,
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_settings_change_no_result_and_are_left_alone(
    name: str, setting: str, request: pytest.FixtureRequest
) -> None:
    """A13."""
    model: Model = request.getfixturevalue(name)
    texts = [SENTENCE, "One day a cat sat."]
    expected = probe.verify(model, texts).to_dict()
    maps = probe.attend(model, SENTENCE)
    masks = probe.compare_masks(model, SENTENCE, 1, 2)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    with SETTINGS[setting]():
        report = probe.verify(model, texts)
        run = probe.attend(model, SENTENCE)
        again = probe.compare_masks(model, SENTENCE, 1, 2)
    assert report.to_dict() == expected
    assert torch.equal(torch.get_rng_state(), state)
    for layer, head in product(range(model.num_layers), range(model.num_heads)):
        assert torch.equal(run.weights(layer, head), maps.weights(layer, head))
        assert not run.weights(layer, head).requires_grad
    assert torch.equal(again.causal, masks.causal) and torch.equal(again.bidirectional, masks.bidirectional)
    assert report.matmul_precision == "highest"


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_network_is_left_as_it_was(name: str) -> None:
    model = probe.load(name)
    hf: Any = model.hf
    inputs = model.tokenizer(SENTENCE, return_tensors="pt")

    def output() -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = hf(**inputs)[0]
        return result

    def state() -> dict[str, Any]:
        return {
            "implementation": hf.config._attn_implementation,
            "training": [module.training for module in hf.modules()],
            "forward hooks": [len(module._forward_hooks) for module in hf.modules()],
            "pre-hooks": [len(module._forward_pre_hooks) for module in hf.modules()],
            "gradients": [parameter.requires_grad for parameter in hf.parameters()],
        }

    before, first = state(), output()
    weights = {key: value.clone() for key, value in hf.state_dict().items()}
    assert before["implementation"] != "eager"
    for _ in range(2):
        assert probe.verify(model, SENTENCE).passed
    assert state() == before
    assert torch.equal(output(), first)
    assert all(torch.equal(value, weights[key]) for key, value in hf.state_dict().items())


# --- several batches ----------------------------------------------------------------------------------------


def head_check(report: Report, **more: Any) -> HeadCheck:
    return dataclasses.replace(report.heads[3], **more)


def test_several_batches_show_the_worst_of_each_number(gpt2: Model) -> None:
    """A batch that fails by a small error doesn't hide the larger one of a batch that passes."""
    report = probe.verify(gpt2, SENTENCE)
    cell = report.heads[3].worst
    fine = head_check(
        report, max_abs_error=4e-6, tolerance=5e-6, mean_abs_error=1e-7, context_error=2e-6, loops_error=None
    )
    wrong = head_check(
        report,
        max_abs_error=3e-6,
        tolerance=2e-6,
        mean_abs_error=4e-7,
        context_error=1e-6,
        loops_error=1e-7,
        worst=dataclasses.replace(cell, text=1),
        failed=("weights",),
        exceeded=(Exceeded("weights", 3e-6, 2e-6),),
        passed=False,
    )
    for order in ((fine, wrong), (wrong, fine)):
        findings = Findings(gpt2, FROM_WEIGHTS, ())
        for check, cells in zip(order, (100, 200) if order[0] is fine else (200, 100), strict=True):
            findings.add_head(check, cells)
        (found,) = findings.report().heads
        assert (found.max_abs_error, found.tolerance, found.context_error) == (4e-6, 2e-6, 2e-6)
        assert found.mean_abs_error == pytest.approx((1e-7 * 100 + 4e-7 * 200) / 300)
        assert found.loops_error == 1e-7 and found.worst.text == 1
        assert found.failed == ("weights",) and not found.passed
        # The error that is beyond its bound is named, and not the larger one that is within its own.
        assert "Not within bounds: weights 3.0e-06 (bound 2.0e-06)." in findings.report().verdict
        assert findings.report().max_abs_error == 4e-6


def test_an_error_that_is_no_number_is_the_worst(gpt2: Model) -> None:
    report = probe.verify(gpt2, SENTENCE)
    findings = Findings(gpt2, FROM_WEIGHTS, ())
    for error in (1e-6, float("nan"), 1e-3):
        failed = ("weights",) if error != 1e-6 else ()
        exceeded = tuple(Exceeded(name, error, 2e-6) for name in failed)
        checked = head_check(report, max_abs_error=error, failed=failed, exceeded=exceeded, passed=not failed)
        findings.add_head(checked, 10)
    (found,) = findings.report().heads
    assert math.isnan(found.max_abs_error) and not found.passed
    assert "weights not a number" in findings.report().verdict


def test_several_batches_of_a_layers_output(gpt2: Model) -> None:
    findings = Findings(gpt2, FROM_WEIGHTS, ())
    findings.add_head(probe.verify(gpt2, SENTENCE).heads[0], 10)
    for error, tolerance in ((4e-6, 5e-6), (3e-6, 2e-6), (1e-6, 2e-6)):
        findings.add_layer(LayerCheck(2, error, tolerance, error <= tolerance))
    (found,) = findings.report().layers
    assert (found.output_error, found.tolerance, found.passed) == (4e-6, 2e-6, False)
