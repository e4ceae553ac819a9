"""Traces of models with rotary positions, shared keys and windows, against transformers and on paper."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from texts import eager_maps
from torch import Tensor
from transformers import AutoModel, AutoTokenizer
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import probe
import tiny
from probe import Model, Trace

TEXT = "Lily and Tom went to the park, and it was warm."
TWO_RUNS = 1e-5


def projected(folder: Path, layer: int) -> dict[str, Tensor]:
    """What transformers makes of a text in one layer, in float64 where it keeps it, as (heads, T, head_dim):
    "q", "k" and "v" as projected, "turned q" and "turned k" by its own function, "o" the layer's output."""
    network: Any = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()
    seen: dict[str, Tensor] = {}
    attention = network.layers[layer].self_attn
    for name in "qkvo":
        getattr(attention, f"{name}_proj").register_forward_hook(
            lambda module, args, output, name=name: seen.update({name: output[0].detach()})
        )
    inputs = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    with torch.no_grad():
        network(**inputs)
    for name in "qkv":
        seen[name] = seen[name].unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)
    cosine, sine = network.rotary_emb(seen["q"], torch.arange(inputs["input_ids"].shape[1])[None])
    query, key = apply_rotary_pos_emb(seen["q"][None], seen["k"][None], cosine, sine)
    return {**seen, "turned q": query[0], "turned k": key[0]}


@pytest.fixture(scope="module")
def exact(rotary_folders: dict[str, Path]) -> dict[str, Model]:
    """The models in float64, as a trace computes."""
    return {name: probe.load(str(folder), dtype=torch.float64) for name, folder in rotary_folders.items()}


@pytest.mark.parametrize("name", tiny.ROTARY)
def test_each_line_is_the_models_own(
    exact: dict[str, Model], rotary_folders: dict[str, Path], name: str
) -> None:
    model = exact[name]
    maps = eager_maps(rotary_folders[name], TEXT, torch.float64)
    for layer in range(model.num_layers):
        theirs = projected(rotary_folders[name], layer)
        group = len(theirs["q"]) // len(theirs["k"])
        query = 9
        shares = []
        for head in range(model.num_heads):
            trace = probe.trace(model, TEXT, layer, head, query)
            key_head = head // group
            assert trace.key_head == key_head
            assert trace.projected_query is not None and trace.projected_keys is not None
            assert (trace.projected_query - theirs["q"][head, query]).abs().max() < 1e-12
            assert (trace.projected_keys - theirs["k"][key_head]).abs().max() < 1e-12
            assert (trace.query_vector - theirs["turned q"][head, query]).abs().max() < 1e-12
            assert (trace.keys - theirs["turned k"][key_head]).abs().max() < 1e-12
            assert (trace.values - theirs["v"][key_head]).abs().max() < 1e-12
            # Its softmax is in float32.
            assert (trace.weights - maps[layer, head, query]).abs().max() < 1e-6
            assert torch.equal(trace.allowed, maps[layer, head, query] > 0)
            shares.append(trace.output_share)
        # No bias in the output projections but Llama's.
        bias = model.sites[layer].output.bias()
        total = torch.stack(shares).sum(0) + (0.0 if bias is None else bias)
        assert (total - theirs["o"][query]).abs().max() < 1e-5


@pytest.mark.parametrize("name", tiny.ROTARY)
def test_in_float32(rotary_models: dict[str, Model], rotary_folders: dict[str, Path], name: str) -> None:
    maps = eager_maps(rotary_folders[name], TEXT)
    for layer in range(3):
        trace = probe.trace(rotary_models[name], TEXT, layer, 5, 11)
        assert (trace.weights - maps[layer, 5, 11]).abs().max() < TWO_RUNS
        assert trace.max_abs_error < 2e-6


NUMBER = r"-?\d+\.\d+(?:e[+-]\d+)?"


def vectors(printed: str, title: str) -> list[list[float]]:
    """The numbers that stand below each line that matches."""
    found = re.findall(rf"(?m)^{title}\n((?:(?: *{NUMBER})+\n)+)", printed)
    return [[float(number) for number in re.findall(NUMBER, block)] for block in found]


@pytest.mark.parametrize("name", ["mistral", "llama, heads of 32"])
def test_what_is_printed_can_be_followed_with_a_pocket_calculator(
    rotary_models: dict[str, Model], name: str
) -> None:
    trace = probe.trace(rotary_models[name], TEXT, 1, 4, 10)
    printed = str(trace)
    half = len(trace.query_vector) // 2
    # The rows of the query: pair, frequency, angle, a, b, and both turned.
    rows = re.findall(rf"^ *(\d+) +({NUMBER}) +({NUMBER}) +({NUMBER}) +({NUMBER}) +({NUMBER}) +({NUMBER})$",
                      printed, re.MULTILINE)  # fmt: skip
    assert [int(row[0]) for row in rows] == list(range(half))
    frequencies = []
    for _, *cells in rows:
        frequency, angle, a, b, first, second = map(float, cells)
        frequencies.append(frequency)
        assert angle == pytest.approx(10 * frequency, rel=1e-7)
        assert first == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=2e-6)
        assert second == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=2e-6)
    ((*query,),) = vectors(printed, "Query vector, turned:")
    assert query == [float(row[5]) for row in rows] + [float(row[6]) for row in rows]

    before, angles, after = (
        vectors(printed, title) for title in (".*, before it is turned:", "angles = .*:", "turned:")
    )
    assert len(before) == len(angles) == len(after) == len(trace.tokens)
    dot_products = []
    for position, (plain, turns, turned) in enumerate(zip(before, angles, after, strict=True)):
        assert turns == pytest.approx([position * frequency for frequency in frequencies], rel=1e-7)
        for i, angle in enumerate(turns):
            a, b = plain[i], plain[i + half]
            assert turned[i] == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=2e-6)
            assert turned[i + half] == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=2e-6)
        dot_products.append(sum(one * other for one, other in zip(query, turned, strict=True)))
    assert dot_products == pytest.approx(trace.dot_products.tolist(), abs=1e-4)


def test_the_window_and_the_key_head_are_said(rotary_models: dict[str, Model]) -> None:
    model = rotary_models["qwen2"]  # two heads a key head; layer 0 without a window, then windows of 7
    printed = str(probe.trace(model, TEXT, 1, 3, 10))
    assert "It sees keys 4 to 10 (causal, a window of 7); query and keys are turned" in printed
    assert "of key and value head 1, which 2 heads read" in printed
    assert "sees keys 0 to 10 (causal); query" in str(probe.trace(model, TEXT, 0, 3, 10))
    assert "sees key 0 alone (causal); query" in str(probe.trace(model, TEXT, 0, 3, 0))
    html = probe.trace(model, TEXT, 1, 3, 10)._repr_html_()
    assert "It sees keys 4 to 10 (causal, a window of 7); query and keys are turned" in html
    alone = str(probe.trace(rotary_models["llama, no sharing"], TEXT, 1, 3, 10))
    assert "key and value head" not in alone


def test_as_json(rotary_models: dict[str, Model]) -> None:
    trace = probe.trace(rotary_models["mistral"], TEXT, 1, 4, 10)
    plain = json.loads(trace.to_json())
    assert plain["key_head"] == 1 and plain["window"] == 7 and plain["causal"] is True
    # 10000^(-2 i / 8)
    assert plain["frequencies"] == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-6)
    assert plain["angles"][10] == pytest.approx([10.0, 1.0, 0.1, 0.01], rel=1e-6)
    assert len(plain["projected_query"]) == 8 and len(plain["projected_keys"]) == len(trace.tokens)
    assert plain["masked"][3] == "-inf" and plain["masked"][4] == pytest.approx(float(trace.scaled[4]))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_without_rotary_positions(name: str, request: pytest.FixtureRequest) -> None:
    trace: Trace = probe.trace(request.getfixturevalue(name), TEXT, 1, 2, 3)
    plain = trace.to_dict()
    assert all(plain[name] is None for name in ("frequencies", "angles", "projected_query", "projected_keys"))
    assert plain["key_head"] == 2 and plain["window"] is None
    assert "turned" not in str(trace) and trace.mask == (
        "keys 0 to 3 (causal)" if name == "gpt2" else f"keys 0 to {len(trace.tokens) - 1} (bidirectional)"
    )


def test_numbers_of_a_vector_stand_apart(gpt2: Model) -> None:
    """Also those that fill their column: a minus, seven digits and a power of ten."""
    trace = probe.trace(gpt2, TEXT, 1, 2, 3)
    shares = torch.full_like(trace.output_share, -7.931989e-05)
    _, printed = str(replace(trace, output_share=shares)).rsplit(":", 1)
    assert printed.split() == ["-7.931989e-05"] * len(shares)
