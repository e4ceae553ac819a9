"""Faults put in on purpose into models not taken apart: the check from query and key must report them.

The battery of test_faults.py, as far as it makes sense where both sides start from the same queries, keys and
values: on the right kind of attention, layer and heads, and nowhere else. Sound models must pass, and what
the check can't see in principle is said, and shown, at the end.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

import attention.functional
import probe
import tiny
from attention import causal_mask, sliding_window_mask
from probe import Model, Report
from probe.models import backend
from scripts import families

SIZES, TARGET_SIZES = (12, 40), (9, 30)  # the shorter text is padded
ENCODER_DECODERS = ("t5", "bart", "marian")
CAUSAL = ("gemma2", "gpt_oss", "llama, yarn", "gpt_neox, yarn")
WINDOWS = {"modernbert, yarn": (4, (1,)), "gemma2": (4, (0, 2)), "gpt_oss": (4, (0, 2))}
EVERY = (*ENCODER_DECODERS, *CAUSAL, "modernbert, yarn")
Place = tuple[str, int]


@lru_cache
def model_of(name: str) -> Model:
    return probe.load(families.build(tiny.watched(name)), tokenizer=families.numbers())


def check(name: str) -> Report:
    targets = families.drawn(*TARGET_SIZES, seed=4) if model_of(name).has_target else None
    report = probe.verify(model_of(name), families.drawn(*SIZES, seed=3), targets)
    assert report.check == "from query and key"
    return report


def places(name: str) -> list[Place]:
    """The first and the last layer of each kind of attention."""
    kinds = ("encoder", "decoder", "cross") if name in ENCODER_DECODERS else ("self",)
    last = {"encoder": 2, "self": 2, "decoder": 1, "cross": 1}
    return [(kind, layer) for kind in kinds for layer in (0, last[kind])]


def each(names: tuple[str, ...] = EVERY, *kinds: str, first: bool = True) -> Any:
    """A test for each place of some models, of some kinds, with the first layers or without."""
    found = [
        (name, place)
        for name in names
        for place in places(name)
        if (not kinds or place[0] in kinds) and (first or place[1])
    ]
    return pytest.mark.parametrize(
        ("name", "place"), found, ids=[f"{name}-{kind}-{layer}" for name, (kind, layer) in found]
    )


def every_head(name: str, place: Place) -> list[int]:
    return list(range(model_of(name).heads_of(place[0])[place[1]]))


def assert_only(report: Report, place: Place, heads: list[int], *reasons: str) -> None:
    """Exactly these heads have failed, each for all these reasons at least."""
    failed = {(head.kind, head.layer, head.head): head.failed for head in report.heads if not head.passed}
    assert sorted(failed) == [(*place, head) for head in heads], report.verdict
    for reason in failed.values():
        assert set(reasons) <= set(reason), reason
    assert not report.passed
    kind, layer = place
    named = f"layer {layer}" if kind == "self" else f"{kind} layer {layer}"
    assert f"do NOT agree, in {named}: " in report.verdict
    assert report.verdict.endswith(" Checked from query and key.")


def index_of(name: str, place: Place) -> int:
    """Which attention of a run it is."""
    return [(one.kind, one.layer) for one in model_of(name).attentions].index(place)


# --- how faults are put in ----------------------------------------------------------------------------------


@contextmanager
def handed_over(name: str, place: Place, change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """What the network hands over in one of its attentions goes through `change`, by the names of `Call`."""
    turns = itertools.cycle(range(len(model_of(name).attentions)))
    wanted, sound, calls = index_of(name, place), backend.Call, 0

    def called(*args: Any) -> backend.Call:
        nonlocal calls
        given = dict(zip(inspect.signature(sound).parameters, args, strict=True))
        if next(turns) == wanted:
            given["options"] = dict(given["options"])
            change(given)
            calls += 1
        return sound(**given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "Call", called)
        yield
    assert calls


@contextmanager
def computed(name: str, place: Place, otherwise: Callable[..., tuple[Tensor, Tensor]]) -> Iterator[None]:
    """One of the network's attentions is `otherwise(sound, query, key, value, mask, options)` on eager."""
    model = model_of(name)
    turns = itertools.cycle(range(len(model.attentions)))
    wanted, calls = index_of(name, place), 0
    file: Any = sys.modules[type(model.hf).__module__]
    sound = file.eager_attention_forward

    def replaced(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        nonlocal calls

        def as_ever(
            query: Any = query, key: Any = key, value: Any = value, mask: Any = mask, **more: Any
        ) -> Any:
            return sound(module, query, key, value, mask, **(options | more))

        if next(turns) != wanted:
            return as_ever()
        calls += 1
        return otherwise(as_ever, query, key, value, mask, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, "eager_attention_forward", replaced)
        yield
    assert calls


def returned(name: str, place: Place, change: Callable[[Tensor], Tensor]) -> Any:
    """The maps that one attention returns, (B, H, Tq, Tk), go through `change`; its contexts don't."""

    def otherwise(sound: Any, *rest: Any) -> tuple[Tensor, Tensor]:
        output, weights = sound()
        return output, change(weights)

    return computed(name, place, otherwise)


def masked(name: str, place: Place, change: Callable[[Tensor], Tensor]) -> Any:
    """The additive mask that one attention is given, (B, 1, Tq, Tk), goes through `change`."""

    def before(given: dict[str, Any]) -> None:
        query, key = given["query"], given["key"]
        shape = len(query), 1, query.shape[2], key.shape[2]
        mask = given["attention_mask"]
        mask = query.new_zeros(shape) if mask is None else mask.expand(shape).clone()
        given["attention_mask"] = change(mask)

    return handed_over(name, place, before)


def forbidding(allowed: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros_like(mask).masked_fill(~allowed, torch.finfo(mask.dtype).min)


# --- sound models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_sound_models_pass(name: str) -> None:
    report = check(name)
    assert report.passed and not report.failures, report
    model = model_of(name)
    assert [(head.kind, head.layer, head.head) for head in report.heads] == [
        (kind, layer, head)
        for kind in model.kinds
        for layer, heads in enumerate(model.heads_of(kind))
        for head in range(heads)
    ]
    # Every text but the longest is padded, so that something is forbidden everywhere.
    assert all(head.forbidden_weight == 0.0 for head in report.heads)


# --- faults in what the network hands over ------------------------------------------------------------------


@each()
def test_scale_off_by_one_percent(name: str, place: Place) -> None:
    def off(given: dict[str, Any]) -> None:
        given["options"]["scaling"] *= 1.01

    with handed_over(name, place, off):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights")


@pytest.mark.parametrize("name", [*ENCODER_DECODERS, "gpt_neox, yarn", "llama, yarn", "gemma2"])
def test_scale_of_the_network_off_by_one_percent(name: str) -> None:
    """The same on the network's own module, for all layers of it."""
    model = model_of(name)
    modules = [module for module in model.hf.modules() if hasattr(module, "scaling")]
    assert len(modules) == len(model.attentions)
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "scaling", module.scaling * 1.01)
        report = check(name)
    assert not any(head.passed for head in report.heads)
    assert all("weights" in head.failed for head in report.heads)


@each(("t5",))
def test_t5_scaled_where_it_must_not_be(name: str, place: Place) -> None:
    def scaled(given: dict[str, Any]) -> None:
        given["options"]["scaling"] = given["query"].shape[-1] ** -0.5

    with handed_over(name, place, scaled):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights")


@pytest.mark.parametrize("fault", ["lost", "shifted", "the other direction's"])
@each(("t5",), "encoder", "decoder")
def test_position_bias_is_another(name: str, place: Place, fault: str) -> None:
    def other(given: dict[str, Any]) -> None:
        bias = given["options"]["position_bias"]
        assert bias.abs().max() > 0.1
        change = {"lost": torch.zeros_like, "shifted": lambda bias: bias.roll(1, -1)}
        change["the other direction's"] = lambda bias: bias.transpose(-1, -2)
        given["options"]["position_bias"] = change[fault](bias)

    with handed_over(name, place, other):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights")


@each(("t5",), "cross")
def test_a_bias_between_the_two_texts(name: str, place: Place) -> None:
    def given_one(given: dict[str, Any]) -> None:
        bias = torch.zeros(1, 4, given["query"].shape[2], given["key"].shape[2])
        given["options"]["position_bias"] = bias + torch.linspace(0, 1, bias.shape[-1])

    with handed_over(name, place, given_one):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights")


@each((*ENCODER_DECODERS, *CAUSAL), "decoder", "self")
def test_causal_mask_dropped(name: str, place: Place) -> None:
    with masked(name, place, torch.zeros_like):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights", "forbidden weight")


@pytest.mark.parametrize("by", [1, -1])
@each((*ENCODER_DECODERS, *CAUSAL), "decoder", "self")
def test_causal_mask_shifted_by_one(name: str, place: Place, by: int) -> None:
    def shifted(mask: Tensor) -> Tensor:
        ahead = torch.arange(mask.shape[-1]) - torch.arange(mask.shape[-1])[:, None]
        window = WINDOWS[name][0] if place[1] in WINDOWS.get(name, (0, ()))[1] else mask.shape[-1] + 1
        return forbidding((ahead <= by) & (ahead - by > -window), mask)

    with masked(name, place, shifted):
        report = check(name)
    # Looking one behind, no query sees itself, and the first has nothing to see.
    assert_only(report, place, every_head(name, place), "weights", "forbidden weight")


@pytest.mark.parametrize("by", [1, -1, None])
@pytest.mark.parametrize(
    ("name", "layer"), [(name, layer) for name, (_, layers) in WINDOWS.items() for layer in layers]
)
def test_window_off_by_one_or_lost(name: str, layer: int, by: int | None) -> None:
    causal, (window, _) = name in CAUSAL, WINDOWS[name]

    def other(mask: Tensor) -> Tensor:
        length = mask.shape[-1]
        if by is None:
            allowed = causal_mask(length) if causal else torch.ones(length, length, dtype=torch.bool)
        else:
            allowed = sliding_window_mask(length, window=window + by, causal=causal)
        return forbidding(allowed & (mask[:, :, -1:] == 0 if not causal else True), mask)

    place = ("self", layer)
    with masked(name, place, other):
        report = check(name)
    assert_only(
        report, place, every_head(name, place), *(("weights",) if by == -1 else ("forbidden weight",))
    )


@each()
def test_a_padded_key_is_attended_to(name: str, place: Place) -> None:
    def opened(mask: Tensor) -> Tensor:
        mask[0, ..., -1] = 0.0  # the last position is padding in the shorter text
        return mask

    with masked(name, place, opened):
        report = check(name)
    assert_only(report, place, every_head(name, place), "forbidden weight")
    assert {head.worst.text for head in report.failures if head.max_abs_error > 0.1} <= {0}  # type: ignore[union-attr]


# --- faults in what the backend computes or returns ---------------------------------------------------------


@each()
def test_backend_scales_by_one_percent_more(name: str, place: Place) -> None:
    def otherwise(sound: Any, query: Tensor, *rest: Any) -> Any:
        return sound(query=1.01 * query)

    with computed(name, place, otherwise):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights")


@each()
def test_softmax_over_the_wrong_axis(name: str, place: Place) -> None:
    def transposed(scores: Tensor, dim: int = -1, dtype: Any = None) -> Tensor:
        return scores.softmax(dim=-2, dtype=dtype)

    def otherwise(sound: Any, *rest: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.functional, "softmax", transposed)
            return sound()

    with computed(name, place, otherwise):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights")


@each()
def test_two_maps_swapped(name: str, place: Place) -> None:
    heads = every_head(name, place)
    order = [heads[-1], *heads[1:-1], heads[0]]
    with returned(name, place, lambda weights: weights[:, order]):
        report = check(name)
    assert_only(report, place, [heads[0], heads[-1]], "weights")


@each()
def test_two_contexts_swapped(name: str, place: Place) -> None:
    heads = every_head(name, place)
    order = [heads[-1], *heads[1:-1], heads[0]]

    def otherwise(sound: Any, *rest: Any) -> Any:
        output, weights = sound()  # (B, Tq, H, value_dim)
        return output[:, :, order], weights

    with computed(name, place, otherwise):
        report = check(name)
    assert_only(report, place, [heads[0], heads[-1]], "context")
    assert all(head.failed == ("context",) for head in report.heads if not head.passed)


@each()
def test_two_heads_keys_swapped(name: str, place: Place) -> None:
    """Keys, and the values with them: of key heads, which several heads may share."""
    model = model_of(name)
    heads = every_head(name, place)
    groups: list[int] = []

    def otherwise(sound: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
        order = [key.shape[1] - 1, *range(1, key.shape[1] - 1), 0]
        groups.append(query.shape[1] // key.shape[1])
        return sound(key=key[:, order], value=value[:, order])

    with computed(name, place, otherwise):
        report = check(name)
    group = groups[0]
    assert group == (2 if getattr(model.hf.config, "num_key_value_heads", len(heads)) < len(heads) else 1)
    assert_only(report, place, sorted({*heads[:group], *heads[-group:]}), "weights")


@each(first=False)
def test_maps_of_another_layer(name: str, place: Place) -> None:
    kept: list[Tensor] = []

    def keep(weights: Tensor) -> Tensor:
        kept.append(weights)
        return weights

    with returned(name, (place[0], 0), keep), returned(name, place, lambda weights: kept[-1]):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights")
    # What it computed with is sound: only what it handed out is wrong.
    assert all("context" not in head.failed for head in report.heads)


@each(EVERY, "encoder", "decoder", "self")
def test_maps_transposed(name: str, place: Place) -> None:
    with returned(name, place, lambda weights: weights.transpose(-1, -2)):
        report = check(name)
    assert_only(report, place, every_head(name, place), "weights", "row sums")


@pytest.mark.parametrize("amount", [1e-5, float("nan")])
@each()
def test_one_wrong_cell(name: str, place: Place, amount: float) -> None:
    def touch(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[1, 1, 20, 7] += amount
        return weights

    with returned(name, place, touch):
        report = check(name)
    assert_only(report, place, [1], "weights")
    (found,) = (head for head in report.heads if not head.passed)
    assert (found.worst.text, found.worst.query, found.worst.key) == (1, 20, 7)
    rows = report.target_tokens if place[0] in ("decoder", "cross") else report.tokens
    columns = report.target_tokens if place[0] == "decoder" else report.tokens
    assert (found.worst.query_token, found.worst.key_token) == (rows[1][20], columns[1][7])
    if amount == 1e-5:
        assert found.max_abs_error == pytest.approx(1e-5, rel=0.2)


@pytest.mark.parametrize("name", ["t5", "gemma2", "gpt_oss"])
def test_backend_leaves_something_out(name: str) -> None:
    """T5's biases, Gemma's softcap, the sinks of gpt-oss: then each row sums to 1."""

    def otherwise(sound: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Any:
        if name == "t5":
            return sound(position_bias=torch.zeros_like(options["position_bias"]))
        if name == "gemma2":
            return sound(softcap=None)
        output, weights = sound()
        return output, weights / weights.sum(-1, keepdim=True)

    for place in places(name):
        if place[0] == "cross":
            continue
        with computed(name, place, otherwise):
            report = check(name)
        assert_only(report, place, every_head(name, place), "weights")


# --- faults in our own arithmetic ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_our_function_scales_by_one_percent_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = backend.scaled_dot_product_attention

    def off(*args: Any, scale: float, **options: Any) -> Any:
        return sound(*args, scale=1.01 * scale, **options)

    monkeypatch.setattr(backend, "scaled_dot_product_attention", off)
    report = check(name)
    assert all("weights" in head.failed for head in report.heads)
    # The loops share nothing with our function: they say that the model is right.
    assert not any("loops" in head.failed for head in report.heads)


@pytest.mark.parametrize("name", EVERY)
def test_our_softmax_over_the_wrong_axis(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = attention.functional.softmax
    transposed = partial(sound, dim=-2)
    monkeypatch.setattr(
        attention.functional, "softmax", lambda scores, dim, **more: transposed(scores, **more)
    )
    assert all("weights" in head.failed for head in check(name).heads)


# --- what it can't see --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["projection", "rotation", "heads exchanged", "output", "query scaled"])
def test_what_it_cannot_see(fault: str) -> None:
    """Both sides start from the same queries, keys and values, and end before the output projection."""
    name, place = "gpt_neox, yarn", ("self", 1)

    def change(given: dict[str, Any]) -> None:
        if fault == "query scaled":
            given["query"] = 1.01 * given["query"]
        elif fault == "heads exchanged":
            for part in ("query", "key", "value"):
                given[part] = given[part].flip(1)
        elif fault == "rotation":
            given["key"] = given["key"].roll(1, 2)
        elif fault == "projection":
            given["key"] = given["key"] + 0.1

    with handed_over(name, place, change):
        if fault == "output":
            layer = model_of(name).hf.base_model.layers[1].attention.dense
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(layer, "forward", lambda merged: 2 * merged)
                report = check(name)
        else:
            report = check(name)
    assert report.passed
