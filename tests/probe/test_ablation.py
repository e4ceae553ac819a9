"""Heads switched off or under the other mask, against networks changed by hand and run by transformers."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel

import probe
import tiny
from origins import MADE_UP
from probe import Ablation, Model, ProbeError
from probe.analyses import ablate as ablation
from probe.analyses.ablate import Change
from probe.running.inputs import batch_inputs, encode_for

TEXT = "The little girl went to the garden, and the little girl went to the"


def outputs(model: Model, text: str, network: torch.nn.Module | None = None) -> tuple[Tensor, Tensor | None]:
    """Last hidden states (T, d_model) and logits (T, vocabulary) by plain transformers, without our hooks."""
    hf = network if network is not None else model.hf
    inputs, _ = batch_inputs(model, [encode_for(model, text)])
    with torch.no_grad():
        result = hf(**inputs, output_hidden_states=True)
    return result.hidden_states[-1][0], result.logits[0] if "logits" in result else None


@pytest.fixture(params=["bert", "gpt2"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    yield request.getfixturevalue(request.param)


@pytest.mark.parametrize("heads", [[(0, 0)], [(2, 3), (2, 5), (4, 1)]])
def test_switched_off_equals_output_columns_of_zeros(model: Model, heads: list[tuple[int, int]]) -> None:
    network = copy.deepcopy(model.hf)
    for layer, head in heads:
        output = model.family.sites(network)[layer].output.module
        columns = slice(head * model.head_dim, (head + 1) * model.head_dim)
        with torch.no_grad():
            # GPT-2 stores (in, out), BERT (out, in).
            (output.weight[columns] if model.causal else output.weight[:, columns]).zero_()
    before, after = outputs(model, TEXT), outputs(model, TEXT, network)

    ablation = probe.ablate(model, TEXT, heads)

    moved = (after[0] - before[0]).norm(dim=-1) / before[0].norm(dim=-1)
    assert torch.allclose(ablation.hidden_change, moved.double(), rtol=1e-3, atol=1e-5)
    assert ablation.hidden_change.max() > 1e-3
    if model.causal:
        assert before[1] is not None and after[1] is not None
        old, new = before[1][-1].double(), after[1][-1].double()
        assert ablation.logit_change == pytest.approx(float((new - old).abs().max()), rel=1e-4)
        (change,) = ablation.changes
        assert change.position == len(ablation.tokens)
        assert change.probability_before == pytest.approx(float(old.softmax(-1).max()), rel=1e-4)
        assert change.probability_after == pytest.approx(float(new.softmax(-1)[old.argmax()]), rel=1e-4)
        expected = torch.nn.functional.kl_div(
            new.log_softmax(-1), old.log_softmax(-1), log_target=True, reduction="sum"
        )
        assert change.divergence == pytest.approx(float(expected), rel=1e-3)
    else:
        assert ablation.changes == () and ablation.logit_change is None


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_one_of_the_layers_that_share_their_weights(layer: int, tmp_path: Path) -> None:
    model = probe.load(str(tiny.family_saver("albert", lambda: tmp_path)(num_hidden_groups=1)))
    # The same network with a copy of the weights for each layer, so that one of them can be changed by hand.
    network = tiny.BUILDERS["albert"](num_hidden_groups=3).eval()
    groups = "encoder.albert_layer_groups"
    shared = model.hf.state_dict()
    network.load_state_dict(
        {name: shared[re.sub(rf"{groups}.\d", f"{groups}.0", name)] for name in network.state_dict()}
    )
    before = outputs(model, TEXT, network)[0]
    with torch.no_grad():
        network.encoder.albert_layer_groups[layer].albert_layers[0].attention.dense.weight[:, 8:16] = 0.0
    after = outputs(model, TEXT, network)[0]

    moved = probe.ablate(model, TEXT, [(layer, 1)]).hidden_change

    expected = (after - before).norm(dim=-1) / before.norm(dim=-1)
    assert torch.allclose(moved, expected.double(), rtol=1e-3, atol=1e-5)
    assert moved.max() > 1e-3


def test_mean_is_the_mean_over_the_tokens(model: Model) -> None:
    layer, head = 3, 1
    columns = slice(head * model.head_dim, (head + 1) * model.head_dim)
    network = copy.deepcopy(model.hf)

    def average(module: torch.nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        contexts = args[0].clone()
        contexts[0, :, columns] = contexts[0, :, columns].sum(0) / contexts.shape[1]
        return (contexts,)

    model.family.sites(network)[layer].output.module.register_forward_pre_hook(average)
    before, after = outputs(model, TEXT)[0], outputs(model, TEXT, network)[0]
    ablation = probe.ablate(model, TEXT, [(layer, head)], "mean")
    moved = (after - before).norm(dim=-1) / before.norm(dim=-1)
    assert torch.allclose(ablation.hidden_change, moved.double(), rtol=1e-3, atol=1e-5)


def test_all_heads_under_the_other_mask_equal_the_network_given_that_mask(model: Model) -> None:
    inputs, _ = batch_inputs(model, [encode_for(model, TEXT)])
    length = inputs["input_ids"].shape[1]
    other = torch.zeros(length, length)
    if not model.causal:
        other = other.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    with torch.no_grad():
        before = model.hf.base_model(**inputs).last_hidden_state[0]
        after = model.hf.base_model(**{**inputs, "attention_mask": other[None, None]}).last_hidden_state[0]
    ablation = probe.ablate(model, TEXT, range(model.num_layers), "other mask")
    moved = (after - before).norm(dim=-1) / before.norm(dim=-1)
    assert torch.allclose(ablation.hidden_change, moved.double(), rtol=1e-3, atol=1e-4)
    assert moved.max() > 0.1


def allowed(length: int, window: int | None) -> Tensor:
    """Both ways, within a window if there is one."""
    position = torch.arange(length)
    return (position[:, None] - position).abs() < (window or length)


@pytest.mark.parametrize("name", tiny.ROTARY)
@pytest.mark.parametrize("heads", [[0, 1, 2], [(1, 4)], [(0, 0), (2, 3), (2, 5)]], ids=["all", "one", "some"])
def test_rotary_heads_under_the_other_mask(
    rotary_models: dict[str, Model], rotary_folders: dict[str, Path], name: str, heads: list[Any]
) -> None:
    """As transformers has it on its eager backend, where each layer is given a mask a head: (1, H, T, T)."""
    model = rotary_models[name]
    network = AutoModel.from_pretrained(rotary_folders[name], attn_implementation="eager").eval()
    before = outputs(model, TEXT, network)[0]
    length, chosen = len(before), {(head, h) for head in heads if isinstance(head, int) for h in range(6)}
    chosen |= {pair for pair in heads if isinstance(pair, tuple)}
    for layer in range(3):
        window = model.sites[layer].window
        masks = torch.stack(
            [
                allowed(length, window) if (layer, head) in chosen else allowed(length, window).tril()
                for head in range(6)
            ]
        )
        added = torch.zeros(1, 6, length, length).masked_fill(~masks, -torch.inf)
        network.layers[layer].self_attn.register_forward_pre_hook(
            lambda module, args, kwargs, added=added: (args, {**kwargs, "attention_mask": added}),
            with_kwargs=True,
        )
    after = outputs(model, TEXT, network)[0]

    ablation = probe.ablate(model, TEXT, heads, "other mask")

    moved = (after - before).norm(dim=-1) / before.norm(dim=-1)
    assert torch.allclose(ablation.hidden_change, moved.double(), rtol=1e-3, atol=1e-4)
    assert moved.max() > 0.05


def test_the_network_is_as_it_was_afterwards(gpt2: Model) -> None:
    before = outputs(gpt2, TEXT)
    probe.ablate(gpt2, TEXT, [0, 1], "other mask")
    assert torch.equal(before[0], outputs(gpt2, TEXT)[0])


def test_ranking_has_every_head_once_and_the_largest_effect_first(gpt2: Model) -> None:
    seen: list[tuple[int, int]] = []
    ranking = probe.rank_heads(
        gpt2, "The cat sat on", progress=lambda done, total: seen.append((done, total))
    )
    places = [ablation.heads[0] for ablation in ranking.ablations]
    assert sorted(places) == [(layer, head) for layer in range(6) for head in range(6)]
    effects = [ablation.effect for ablation in ranking.ablations]
    assert effects == sorted(effects, reverse=True)
    assert seen == [(n, 36) for n in range(1, 37)]
    alone = probe.ablate(gpt2, "The cat sat on", [places[0]])
    assert alone.effect == pytest.approx(effects[0], rel=1e-4)


@pytest.mark.parametrize("how", ["zero", "mean", "other mask"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "albert", "mistral", "words"])
def test_a_ranking_has_for_each_head_what_it_changes_alone(
    name: str,
    how: Any,
    tiny_bert: Callable[..., Path],
    tiny_gpt2: Callable[..., Path],
    tiny_bert_with_words: Model,
    rotary_models: dict[str, Model],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether all are run together, a few at a time, which may be of two layers, or each by itself."""
    if name == "albert":
        model = probe.load(str(tiny.family_saver("albert", lambda: tmp_path)(num_hidden_groups=1)))
    elif name in ("bert", "gpt2"):
        model = probe.load(str((tiny_bert if name == "bert" else tiny_gpt2)()))
    else:
        model = rotary_models["mistral"] if name == "mistral" else tiny_bert_with_words
    text = "the [MASK] sat on the [MASK]" if name == "words" else "the cat and the dog and the cat"
    length = len(encode_for(model, text))
    for tokens in (10_000, 2 * length, 1):
        monkeypatch.setattr(ablation, "_TOKENS_AT_ONCE", tokens)
        for found in probe.rank_heads(model, text, how).ablations:
            alone = probe.ablate(model, text, found.heads, how)
            assert torch.allclose(found.hidden_change, alone.hidden_change, rtol=1e-3, atol=1e-5)
            assert found.effect == pytest.approx(alone.effect, rel=1e-3, abs=1e-5)
            assert (found.logit_change is None) == (alone.logit_change is None)
            assert (found.logit_change or 0.0) == pytest.approx(alone.logit_change or 0.0, rel=1e-3, abs=1e-5)
            assert [one.position for one in found.changes] == [one.position for one in alone.changes]


def with_effect(effect: float) -> Ablation:
    change = Change(1, None, None, "cat", 0.5, 0.4, effect)  # type: ignore[arg-type]
    return Ablation("t", ("t",), None, ((0, 0),), "zero", (change,), 1.0, torch.zeros(1), origin=MADE_UP)


@pytest.mark.parametrize("first", [torch.nan, torch.inf])
def test_an_effect_that_is_no_number(first: float) -> None:
    broken = with_effect(first)
    assert "with layer 0 head 0 switched off computes numbers here that are not finite" in broken.summary
    (change,), (other,) = broken.changes, with_effect(2.0).changes
    for changes in ((change, other), (other, change)):
        assert not math.isfinite(dataclasses.replace(broken, changes=changes).effect)
    hidden = torch.tensor([0.1, first, 0.3])
    assert not math.isfinite(dataclasses.replace(broken, changes=(), hidden_change=hidden).effect)


def test_a_head_whose_effect_is_no_number_comes_last(gpt2: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ablation._compared

    def compared(model: Model, encoding: Any, chosen: Any, *rest: Any) -> Ablation:
        found = sound(model, encoding, chosen, *rest)
        if chosen not in ({0: [3]}, {4: [5]}):
            return found
        (change,) = found.changes
        return dataclasses.replace(found, changes=(dataclasses.replace(change, divergence=torch.nan),))

    monkeypatch.setattr(ablation, "_compared", compared)
    ranking = probe.rank_heads(gpt2, "The cat sat on")
    *ranked, last, very_last = [one.effect for one in ranking.ablations]
    assert ranked == sorted(ranked, reverse=True) and len(ranked) == 34
    assert math.isnan(last) and math.isnan(very_last)
    assert [one.heads for one in ranking.ablations[-2:]] == [((0, 3),), ((4, 5),)]


def test_a_model_whose_weights_are_no_numbers_is_refused(gpt2: Model) -> None:
    network = copy.deepcopy(gpt2.hf)
    with torch.no_grad():
        network.transformer.h[2].attn.c_proj.weight[0, 0] = torch.nan
    broken = probe.load(network, tokenizer=gpt2.tokenizer)
    for call in (lambda: probe.ablate(broken, TEXT, [(0, 0)]), lambda: probe.rank_heads(broken, TEXT)):
        with pytest.raises(ProbeError, match=r"not finite \(NaN or infinity\)"):
            call()


def test_a_mask_token_is_what_changes_in_a_masked_language_model(tiny_bert_with_words: Model) -> None:
    ablation = probe.ablate(tiny_bert_with_words, "The [MASK] sat on the [MASK].", [(0, 0)])
    tokens = ablation.tokens
    assert [tokens[change.position] for change in ablation.changes] == ["[MASK]", "[MASK]"]
    assert all(change.divergence > 0 for change in ablation.changes)


@pytest.fixture(scope="module")
def tiny_bert_with_words() -> Model:
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    network = BertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8.0)
    return probe.load(network, tokenizer=AutoTokenizer.from_pretrained(tiny.minilm_folder()))


@pytest.mark.parametrize(
    ("heads", "how", "says"),
    [
        ([(6, 0)], "zero", "0 to 5"),
        ([(0, 6)], "zero", "0 to 5"),
        ([], "zero", "at least one"),
        ([0], "half", "'mean'"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    gpt2: Model, heads: list[tuple[int, int]], how: str, says: str
) -> None:
    with pytest.raises(ProbeError, match=says):
        probe.ablate(gpt2, "The cat", heads, how)  # type: ignore[arg-type]
