"""Faults put in on purpose: verify must report every one of them, on the right layer and head, and no other.

Some are in our own copy of a model's weights or in our own arithmetic, the others in what the model computes
or returns. Sound models, on the same texts, must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attention.functional
import attention.modules
import probe
from probe import Model, Report, verification
from probe.families import Projection, Site

TEXT = (
    "Once upon a time there was a little girl named Lily who lived near a big green forest. One day she "
    "found a small bird under a tree; its wing was hurt, so she took it home, and gave it water and bread."
)
SHORT = "The cat sat on the mat, and it was warm."
LAYERS = ("first", "middle", "last")


@pytest.fixture(scope="session")
def checked(
    bert: Model, gpt2: Model, tiny_bert: Callable[..., Path], tiny_gpt2: Callable[..., Path]
) -> dict[str, Model]:
    odd: dict[str, Any] = {"n_head": 5, "n_embd": 35, "n_layer": 3, "n_positions": 96}
    return {
        "bert": bert,
        "gpt2": gpt2,
        "tiny bert": probe.load(str(tiny_bert(max_position_embeddings=96))),
        "tiny gpt2": probe.load(str(tiny_gpt2(**odd))),
        "tiny gpt2, layer-wise scale": probe.load(
            str(tiny_gpt2(scale_attn_by_inverse_layer_idx=True, **odd))
        ),
        "tiny gpt2, no scale": probe.load(str(tiny_gpt2(scale_attn_weights=False, **odd))),
        "tiny gpt2, upcast": probe.load(str(tiny_gpt2(reorder_and_upcast_attn=True, **odd))),
    }


BERTS = ("bert", "tiny bert")
GPT2S = ("gpt2", "tiny gpt2", "tiny gpt2, layer-wise scale", "tiny gpt2, no scale", "tiny gpt2, upcast")
EVERY = BERTS + GPT2S


def layer_of(model: Model, where: str) -> int:
    return {"first": 0, "middle": model.num_layers // 2, "last": model.num_layers - 1}[where]


def check(model: Model, text: Any = TEXT) -> Report:
    report = probe.verify(model, text)
    assert max(report.num_tokens) >= 40
    return report


def failed_heads(report: Report) -> dict[tuple[int, int], tuple[str, ...]]:
    return {(head.layer, head.head): head.failed for head in report.heads if not head.passed}


def failed_layers(report: Report) -> list[int]:
    return [layer.layer for layer in report.layers if not layer.passed]


def assert_only(report: Report, layer: int, heads: list[int], *reasons: str) -> None:
    """Exactly these heads have failed, each for all these reasons at least, and no other layer."""
    assert not report.passed
    assert sorted(failed_heads(report)) == [(layer, head) for head in heads]
    for head, failed in failed_heads(report).items():
        assert set(reasons) <= set(failed), (head, failed)
    assert set(failed_layers(report)) <= {layer}
    assert f"{len(heads)} of {len(report.heads)} heads" in report.verdict
    assert f"do NOT agree, in layer {layer}: " in report.verdict


@pytest.mark.parametrize("name", EVERY)
def test_sound_models_pass(checked: dict[str, Model], name: str) -> None:
    for text in (TEXT, [TEXT, SHORT]):
        report = check(checked[name], text)
        assert report.passed, report
        assert not report.failures and not failed_heads(report) and not failed_layers(report)
        assert report.verdict.startswith(f"All {len(report.heads)} heads")


# --- faults in our copy of the weights ----------------------------------------------------------------------


def change_copy(
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    layer: int,
    role: str,
    *,
    weight: Callable[[Tensor], Tensor] | None = None,
    bias: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Change what we copy of one projection ("query", "key", "value" or "output") of one layer."""
    target = getattr(model.sites[layer], role)
    for name, change in (("weight", weight), ("bias", bias)):
        if change is not None:
            original = getattr(Projection, name)

            def changed(
                self: Projection, original: Any = original, change: Callable[[Tensor], Tensor] = change
            ) -> Tensor:
                copied: Tensor = original(self)
                return change(copied) if self == target else copied

            monkeypatch.setattr(Projection, name, changed)


@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_our_scale_off_by_one_percent(checked: dict[str, Model], name: str, where: str) -> None:
    model = checked[name]
    layer = layer_of(model, where)
    sites = list(model.sites)
    sites[layer] = replace(sites[layer], scale=sites[layer].scale * 1.01)
    family = replace(model.known_family, sites=lambda hf: tuple(sites))
    report = check(replace(model, family=family))
    assert_only(report, layer, list(range(model.num_heads)), "weights")


@pytest.mark.parametrize("name", EVERY)
def test_our_function_scales_by_one_percent_more(
    checked: dict[str, Model], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = attention.modules.scaled_dot_product_attention

    def off(query: Tensor, *args: Any, scale: float | None = None, **options: Any) -> Any:
        return sound(query, *args, scale=1.01 * (scale or query.shape[-1] ** -0.5), **options)

    monkeypatch.setattr(attention.modules, "scaled_dot_product_attention", off)
    report = check(checked[name])
    assert len(failed_heads(report)) == len(report.heads)
    assert all("weights" in failed for failed in failed_heads(report).values())


@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_our_heads_swapped(
    checked: dict[str, Model], name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checked[name]
    layer, first, second = layer_of(model, where), 0, model.num_heads - 1
    order = list(range(model.num_heads))
    order[first], order[second] = second, first

    def swap(rows: Tensor) -> Tensor:
        by_head = rows.reshape(model.num_heads, model.head_dim, *rows.shape[1:])
        return by_head[order].reshape(rows.shape)

    for role in ("query", "key", "value"):
        change_copy(monkeypatch, model, layer, role, weight=swap, bias=swap)
    assert_only(check(model), layer, [first, second], "query", "key", "value", "weights")


@pytest.mark.parametrize("name", EVERY)
def test_our_layers_swapped(checked: dict[str, Model], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = checked[name]
    first, second = 0, model.num_layers - 1
    other = {id(model.sites[first]): model.sites[second], id(model.sites[second]): model.sites[first]}
    sound = verification.from_scratch

    def swapped(site: Site, *args: Any) -> Any:
        return sound(other.get(id(site), site), *args)

    monkeypatch.setattr(verification, "from_scratch", swapped)
    report = check(model)
    heads = [(layer, head) for layer in (first, second) for head in range(model.num_heads)]
    assert sorted(failed_heads(report)) == heads
    assert set(failed_layers(report)) <= {first, second}
    assert f"in layers {first}, {second}: " in report.verdict


@pytest.mark.parametrize("role", ["query", "key", "value", "output"])
@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", ["gpt2", "tiny gpt2"])
def test_our_square_projection_not_transposed(
    checked: dict[str, Model], name: str, where: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checked[name]
    layer = layer_of(model, where)
    change_copy(monkeypatch, model, layer, role, weight=lambda weight: weight.T.contiguous())
    report = check(model)
    if role == "output":
        assert not report.passed and not failed_heads(report)
        assert failed_layers(report) == [layer]
    else:
        assert_only(report, layer, list(range(model.num_heads)), role)


@pytest.mark.parametrize("name", EVERY)
def test_our_softmax_over_the_wrong_axis(
    checked: dict[str, Model], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = attention.functional.softmax
    monkeypatch.setattr(attention.functional, "softmax", lambda scores, dim=-1: sound(scores, dim=-2))
    report = check(checked[name])
    assert len(failed_heads(report)) == len(report.heads)
    assert all("weights" in failed for failed in failed_heads(report).values())


@pytest.mark.parametrize("role", ["query", "key", "value", "output"])
@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_our_bias_lost(
    checked: dict[str, Model], name: str, where: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checked[name]
    layer = layer_of(model, where)
    lost = getattr(model.sites[layer], role).bias()
    # A bias that training left at zero is no loss. (A key bias moves all scores of a row alike, which the
    # softmax doesn't notice: so it hardly gets a gradient, and shows in the keys only.)
    largest = lost.unflatten(0, (model.num_heads, -1)).abs().amax(1)
    counted = [head for head in range(model.num_heads) if largest[head] > 1e-4]
    change_copy(monkeypatch, model, layer, role, bias=torch.zeros_like)
    report = check(model)
    if role == "output":
        assert counted, "this layer has no output bias to lose"
        assert not failed_heads(report) and failed_layers(report) == [layer]
    elif counted:
        assert_only(report, layer, counted, role)
    else:
        assert role == "key"


@pytest.mark.parametrize("head", ["first", "last"])
@pytest.mark.parametrize("role", ["query", "key", "value", "output"])
@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_one_entry_of_our_projection_off(
    checked: dict[str, Model],
    name: str,
    where: str,
    role: str,
    head: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = checked[name]
    layer, which = layer_of(model, where), 0 if head == "first" else model.num_heads - 1
    row = which * model.head_dim + model.head_dim // 2  # of an output row, one that belongs to no head

    def off(weight: Tensor) -> Tensor:
        weight[row, weight.shape[1] // 3] += 1e-3
        return weight

    change_copy(monkeypatch, model, layer, role, weight=off)
    report = check(model)
    if role == "output":
        assert not report.passed and not failed_heads(report)
        assert failed_layers(report) == [layer]
        assert "0 of" in report.verdict and f"in layer {layer}: " in report.verdict
    else:
        assert_only(report, layer, [which], role)


# --- faults in what the model computes or returns -----------------------------------------------------------


@contextmanager
def masked_by(model: Model, layer: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """The additive mask of one layer of the network, (B, 1, T, T), goes through `change` on its way in."""

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        mask = kwargs.get("attention_mask")
        if mask is None:
            mask = hidden.new_zeros(hidden.shape[0], 1, hidden.shape[1], hidden.shape[1])
        kwargs["attention_mask"] = change(mask.expand(-1, 1, hidden.shape[1], hidden.shape[1]).clone())
        return args, kwargs

    handle = model.sites[layer].attention.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def maps_through(model: Model, layer: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """What one layer of the network returns as its weights, (B, H, T, T), goes through `change` first."""

    def hook(module: Any, args: Any, output: tuple[Any, ...]) -> Any:
        return (output[0], change(output[1]), *output[2:])

    handle = model.sites[layer].attention.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def lowest(mask: Tensor) -> float:
    return torch.finfo(mask.dtype).min


@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", GPT2S)
def test_model_drops_its_causal_mask(checked: dict[str, Model], name: str, where: str) -> None:
    model = checked[name]
    layer = layer_of(model, where)
    with masked_by(model, layer, torch.zeros_like):
        report = check(model)
    assert_only(report, layer, list(range(model.num_heads)), "weights", "forbidden weight")
    worst = max(report.heads, key=lambda head: head.max_abs_error)
    assert worst.forbidden_weight is not None and worst.forbidden_weight > 1e-3


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", GPT2S)
def test_model_shifts_its_causal_mask_by_one(
    checked: dict[str, Model], name: str, where: str, by: int
) -> None:
    model = checked[name]
    layer = layer_of(model, where)

    def shifted(mask: Tensor) -> Tensor:
        return torch.full_like(mask, lowest(mask)).triu(1 + by)

    with masked_by(model, layer, shifted):
        report = check(model)
    # One ahead: a later token is seen. One behind: no query sees itself, and the first has nothing to see.
    assert_only(report, layer, list(range(model.num_heads)), "weights", "forbidden weight")


@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_model_attends_to_padding(checked: dict[str, Model], name: str, where: str) -> None:
    model = checked[name]
    layer = layer_of(model, where)

    def opened(mask: Tensor) -> Tensor:
        mask[..., -1] = 0.0  # the last position is padding in every text but the longest
        if model.causal:
            mask[-1] = torch.full_like(mask[-1], lowest(mask)).triu(1)
        return mask

    with masked_by(model, layer, opened):
        # The shorter text is first in the batch.
        report = check(model, [SHORT, TEXT])
    assert_only(report, layer, list(range(model.num_heads)), "forbidden weight")
    for head in report.heads:
        if head.layer == layer and head.max_abs_error > 0.1:
            assert report.texts[head.worst.text] == SHORT


@pytest.mark.parametrize("name", EVERY)
def test_model_returns_the_maps_of_another_layer(checked: dict[str, Model], name: str) -> None:
    model = checked[name]
    source, layer = 0, model.num_layers - 1
    kept: list[Tensor] = []

    def keep(weights: Tensor) -> Tensor:
        kept.append(weights)
        return weights

    with ExitStack() as stack:
        stack.enter_context(maps_through(model, source, keep))
        stack.enter_context(maps_through(model, layer, lambda weights: kept[-1]))
        report = check(model)
    assert_only(report, layer, list(range(model.num_heads)), "weights")
    # What it computed with is sound: only what it handed out is wrong.
    assert all("context" not in head.failed for head in report.heads)


@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_model_returns_its_maps_transposed(checked: dict[str, Model], name: str, where: str) -> None:
    model = checked[name]
    layer = layer_of(model, where)
    with maps_through(model, layer, lambda weights: weights.transpose(-1, -2)):
        report = check(model)
    assert_only(report, layer, list(range(model.num_heads)), "weights", "row sums")


@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_model_returns_two_maps_swapped(checked: dict[str, Model], name: str, where: str) -> None:
    model = checked[name]
    layer, last = layer_of(model, where), model.num_heads - 1
    order = [last, *range(1, last), 0]
    with maps_through(model, layer, lambda weights: weights[:, order]):
        report = check(model)
    assert_only(report, layer, [0, last], "weights")


@pytest.mark.parametrize("where", LAYERS)
@pytest.mark.parametrize("name", EVERY)
def test_model_computes_with_another_scale(
    checked: dict[str, Model], name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checked[name]
    layer = layer_of(model, where)
    module: Any = model.sites[layer].attention
    monkeypatch.setattr(module, "scaling", module.scaling * 1.01)
    assert_only(check(model), layer, list(range(model.num_heads)), "weights")


@pytest.mark.parametrize("amount", [1e-5, float("nan")])
@pytest.mark.parametrize("name", EVERY)
def test_one_wrong_cell_is_found(checked: dict[str, Model], name: str, amount: float) -> None:
    model = checked[name]
    layer, head, query, key = model.num_layers // 2, 1, 30, 7

    def touch(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[0, head, query, key] += amount
        return weights

    with maps_through(model, layer, touch):
        report = check(model)
    assert_only(report, layer, [head], "weights")
    found = next(check for check in report.heads if not check.passed)
    assert (found.worst.query, found.worst.key) == (query, key)
    assert found.worst.query_token and found.worst.key_token
    if amount == 1e-5:
        assert found.max_abs_error == pytest.approx(1e-5, rel=0.2)
        assert found.worst.model - found.worst.from_scratch == pytest.approx(1e-5, rel=0.2)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_fault_in_one_text_of_many(checked: dict[str, Model], name: str) -> None:
    """A fault that only one text shows is not lost among texts that pass, whatever batch they were in."""
    model = checked[name]
    texts = [SHORT, TEXT, "Hello there.", TEXT[:120], "One day", TEXT[20:]]

    def touch(weights: Tensor) -> Tensor:
        if weights.shape[-1] == length:
            weights = weights.clone()
            weights[0, 2, -1, 0] += 0.01
        return weights

    length = max(check(model, texts).num_tokens)
    with maps_through(model, 1, touch), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            verification, "batches", lambda model, encodings, heads: [[i] for i in range(len(encodings))]
        )
        report = check(model, texts)
    assert_only(report, 1, [2], "weights")
    worst = next(head for head in report.heads if not head.passed).worst
    assert report.num_tokens[worst.text] == length
    assert (worst.query, worst.key) == (length - 1, 0)
