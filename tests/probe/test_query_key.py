"""The check from query and key on sound models: what it says, of whom, and whom it refuses."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    BloomConfig,
    BloomForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    EncoderDecoderModel,
    EsmConfig,
    EsmModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    MT5Config,
    MT5EncoderModel,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5Model,
    UMT5Config,
    UMT5EncoderModel,
    UMT5ForConditionalGeneration,
    WhisperConfig,
    WhisperForAudioClassification,
)
from transformers.models.t5.modeling_t5 import T5Attention

import probe
import tiny
from probe import Model, ProbeError, Report, cli
from probe.display.picture import draw
from probe.models import backend
from probe.models.families.t5 import t5_buckets
from probe.ui.views import verify as view
from scripts import families

TEXTS = [
    "The cat sat on the mat because it was warm.",
    "Dogs chase cats.",
    "Lily and Tom went to the park, and Lily gave a ball to Tom.",
]
TARGETS = ["Die Katze sass auf der Matte.", "Hunde jagen.", "Lily und Tom gingen in den Park, und dann heim."]
UNIT = 2.0**-24

SIZES: dict[str, Any] = {
    "vocab_size": 30_522,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 101,
    "eos_token_id": 102,
}
BUILDERS: dict[str, Callable[[], PreTrainedModel]] = {
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            vocab_size=30_522,
            d_model=24,
            d_kv=8,
            d_ff=32,
            num_layers=3,
            num_decoder_layers=2,
            num_heads=3,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
    ),
    "bart": lambda: BartForConditionalGeneration(
        BartConfig(
            vocab_size=30_522,
            d_model=24,
            encoder_layers=3,
            decoder_layers=2,
            encoder_attention_heads=3,
            decoder_attention_heads=4,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=32,
            pad_token_id=0,
            bos_token_id=101,
            eos_token_id=102,
            decoder_start_token_id=102,
            forced_eos_token_id=None,
        )
    ),
    "gpt_neox, yarn": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(
            **SIZES,
            num_hidden_layers=3,
            max_position_embeddings=32,
            rope_parameters=tiny.YARN | {"partial_rotary_factor": 0.25},
        )
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **SIZES,
            num_hidden_layers=2,
            num_key_value_heads=1,
            head_dim=8,
            query_pre_attn_scalar=12,
            sliding_window=4,
            max_position_embeddings=64,
        )
    ),
    "modernbert, yarn": lambda: ModernBertModel(
        ModernBertConfig(
            **{**SIZES, "num_attention_heads": 3},
            num_hidden_layers=3,
            local_attention=6,
            global_attn_every_n_layers=2,
            cls_token_id=101,
            sep_token_id=102,
            max_position_embeddings=64,
            rope_parameters={"full_attention": {**tiny.YARN}, "sliding_attention": {**tiny.YARN}},
        )
    ),
}
HEADS = {
    "t5": {"encoder": [3, 3, 3], "decoder": [3, 3], "cross": [3, 3]},
    "bart": {"encoder": [3, 3, 3], "decoder": [4, 4], "cross": [4, 4]},
    "gpt_neox, yarn": {"self": [3, 3, 3]},
    "gemma2": {"self": [3, 3]},
    "modernbert, yarn": {"self": [3, 3, 3]},
}


def built(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    network = BUILDERS[name]().eval()
    tiny.draw_weights(network, seed=0)
    return network


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    tokenizer = AutoTokenizer.from_pretrained(tiny.minilm_folder())
    return {name: probe.load(built(name), tokenizer=tokenizer) for name in BUILDERS}


def targets_of(name: str) -> list[str] | None:
    return TARGETS if "cross" in HEADS[name] else None


def checked(model: Model, name: str) -> Report:
    return probe.verify(model, TEXTS, targets_of(name))


# --- what the report says -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDERS)
def test_every_head_of_every_kind(models: dict[str, Model], name: str) -> None:
    report = checked(models[name], name)
    assert report.passed and not report.failures, report
    assert report.check == "from query and key" and report.backend == "eager"
    assert report.kinds == tuple(HEADS[name])
    assert [(head.kind, head.layer, head.head) for head in report.heads] == [
        (kind, layer, head)
        for kind, counts in HEADS[name].items()
        for layer, count in enumerate(counts)
        for head in range(count)
    ]
    for head in report.heads:
        assert (head.query_error, head.key_error, head.value_error) == (None, None, None)
        assert 0 < head.max_abs_error <= head.tolerance <= report.tolerance < 1e-5
        assert head.forbidden_weight == 0.0
    sampled = {(head.kind, head.layer) for head in report.heads if head.loops_error is not None}
    assert sampled == {(kind, layer) for kind, counts in HEADS[name].items() for layer in range(len(counts))}
    assert report.layers == ()


def test_which_tokens_are_whose(models: dict[str, Model]) -> None:
    report = checked(models["bart"], "bart")
    assert report.texts == tuple(TEXTS) and report.targets == tuple(TARGETS)
    assert report.num_tokens == tuple(map(len, report.tokens))
    assert report.tokens[1] == ("[CLS]", "Dogs", "chase", "cats", ".", "[SEP]")
    # The decoder is given its start token and the target without the token that ends it.
    assert report.target_tokens[1][0] == "[SEP]" and report.target_tokens[1][-1] == "."
    for head in report.heads:
        worst = head.worst
        rows = report.tokens if head.kind == "encoder" else report.target_tokens
        columns = report.target_tokens if head.kind == "decoder" else report.tokens
        assert worst.query_token == rows[worst.text][worst.query]
        assert worst.key_token == columns[worst.text][worst.key]


def test_numbers_against_transformers_own_maps(models: dict[str, Model]) -> None:
    """The worst cells hold what the model returns itself, without padding."""
    for name, model in models.items():
        hf = model.hf
        report = checked(model, name)
        maps = []
        for text, target in zip(report.texts, report.targets or [None] * 3, strict=True):
            run = probe.attend(model, text, target=target)
            ids = {"input_ids": torch.tensor([model.tokenizer(text)["input_ids"]])}
            if target is not None:
                start = hf.config.decoder_start_token_id
                ids["decoder_input_ids"] = torch.tensor([[start, *model.tokenizer(target)["input_ids"][:-1]]])
            found = families.eager_maps(hf, ids)
            assert all(found[kind, layer].shape[1] > head for kind, layer, head in run.maps)
            maps.append(found)
        for head in report.heads:
            theirs = maps[head.worst.text][head.kind, head.layer][0, head.head]
            cell = float(theirs[head.worst.query, head.worst.key])
            assert head.worst.model == pytest.approx(cell, abs=2e-6)
            assert abs(head.worst.model - head.worst.from_scratch) == pytest.approx(head.max_abs_error)


def test_the_check_is_named_everywhere(models: dict[str, Model], gpt2: Model) -> None:
    weights = probe.verify(gpt2, TEXTS[0])
    assert weights.check == weights.to_dict()["check"] == "from the weights"
    assert weights.kinds == ("self",) and weights.targets == weights.target_tokens == ()
    assert weights.verdict.endswith(" Checked from the weights.")
    for name, model in models.items():
        report = checked(model, name)
        assert json.loads(report.to_json(), parse_constant=pytest.fail) == report.to_dict()
        assert report.to_dict()["check"] == "from query and key"
        assert report.verdict.endswith(" Checked from query and key.")
        assert str(report).splitlines()[0] == report.verdict
        assert "Checked from query and key." in report._repr_html_()
        assert len(re.findall("ok$", str(report), re.MULTILINE)) == len(report.heads) and "None" not in str(
            report
        )


def test_the_table_and_the_figure_of_several_kinds(models: dict[str, Model]) -> None:
    report = checked(models["bart"], "bart")
    rows = [line.split() for line in str(report).splitlines() if line.endswith("ok")]
    assert [row[:3] for row in rows] == [[one.kind, str(one.layer), str(one.head)] for one in report.heads]
    assert "3 texts, " in str(report) and " of the targets; " in str(report)
    shapes = [axes.images[0].get_array().shape[:2] for axes in draw(report.sheet()).axes if axes.images]
    assert shapes[:3] == [(3, 3), (2, 4), (2, 4)]


def test_the_view_shows_what_there_is(models: dict[str, Model]) -> None:
    report = checked(models["gpt_neox, yarn"], "gpt_neox, yarn")
    table = json.dumps(view.listing({1: report}, "All heads", report.to_json()), ensure_ascii=False)
    assert "–" in table and "None" not in table
    assert view._verdict({1: report})[1].endswith(" Checked from query and key.")


# --- tolerance ----------------------------------------------------------------------------------------------


def test_the_tolerance_is_at_most_ten_times_the_worst_error() -> None:
    """Over every model of the README's table that is checked so, in units of float32's last place."""
    worst, largest, names = 0.0, 0.0, []
    for family in (*families.FAMILIES, tiny.watched("gpt_neox, yarn"), tiny.watched("modernbert, yarn")):
        network = families.build(family)
        if not family.takes.startswith("text") or not backend.uses_interface(network):
            continue
        model = probe.load(network, tokenizer=families.numbers())
        targets = families.drawn(60, 60, 40, 9, seed=3) if model.has_target else None
        report = probe.verify(model, families.drawn(60, 60, 60, 12), targets)
        if report.check != "from query and key":
            continue
        names.append(family.name)
        assert report.passed, report
        worst = max(worst, report.max_abs_error / UNIT)
        largest = max(largest, report.tolerance / UNIT)
    assert {"t5", "bart", "marian", "gpt_neox", "modernbert", "gemma2", "gpt_oss"} <= set(names)
    assert largest <= 10 * worst, (largest, worst)


@pytest.mark.parametrize("gain", [0.1, 6.0, 12.0])
@pytest.mark.parametrize("name", ["t5", "bart", "gpt_oss", "gemma2"])
def test_flat_and_peaky_weights_pass(name: str, gain: float) -> None:
    """Scores of nearly nothing, and of several hundred, where a weight is 0 or 1."""
    family = next(one for one in families.FAMILIES if one.name == name)
    model = probe.load(families.build(dataclasses.replace(family, gain=gain)), tokenizer=families.numbers())
    for seed in range(4):
        targets = families.drawn(40, 9, seed=seed + 50) if model.has_target else None
        report = probe.verify(model, families.drawn(60, 13, seed=seed), targets)
        assert report.passed, report


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["t5", "llama, yarn", "gpt_oss"])
def test_in_half_precision(name: str, dtype: torch.dtype) -> None:
    model = probe.load(families.build(tiny.watched(name)).to(dtype), tokenizer=families.numbers())
    targets = families.drawn(40, 9, seed=4) if model.has_target else None
    report = probe.verify(model, families.drawn(50, 13), targets)
    assert report.passed, report
    assert report.tolerance <= 50 * torch.finfo(dtype).eps / 2


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_in_float64(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.minilm_folder())
    model = probe.load(built(name).double(), tokenizer=tokenizer)
    report = checked(model, name)
    assert report.passed and report.dtype == "float64"
    assert report.max_abs_error <= 1e-13 and report.tolerance <= 1e-13


# --- texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDERS)
def test_texts_together_and_alone_give_the_same(models: dict[str, Model], name: str) -> None:
    together = checked(models[name], name)
    targets = targets_of(name) or [None] * 3
    alone = [probe.verify(models[name], text, target) for text, target in zip(TEXTS, targets, strict=True)]
    assert all(report.passed for report in alone)
    assert together.tokens == tuple(report.tokens[0] for report in alone)
    if name == "modernbert, yarn":
        # Alone, nothing is forbidden but what is out of a layer's window.
        assert {head.layer for head in alone[0].heads if head.forbidden_weight is None} == {0, 2}


def test_what_is_cut_is_said(models: dict[str, Model]) -> None:
    long = "the cat sat on the mat and " * 20
    with pytest.raises(ProbeError, match="at most 32"):
        probe.verify(models["bart"], long, "Kurz.")
    report = probe.verify(models["bart"], [long, "Short."], ["Kurz.", long], truncate=True)
    assert report.passed and report.num_tokens == (32, 4) and len(report.target_tokens[1]) == 32
    assert report.truncated[0] is not None and report.truncated[0].startswith("Cut to the first 32")
    assert report.truncated[1] is not None and report.truncated[1].startswith("The target: Cut to")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (None, "has an encoder and a decoder. Give what the decoder is to produce too"),
        ("one for all", "one target for each text"),
        (["too", "few"], "one target for each text"),
    ],
)
def test_targets_that_do_not_fit(models: dict[str, Model], target: Any, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        probe.verify(models["t5"], TEXTS, target)


def test_a_target_that_is_too_much(models: dict[str, Model], gpt2: Model) -> None:
    for model in (models["gpt_neox, yarn"], gpt2):
        with pytest.raises(ProbeError, match="it takes no target"):
            probe.verify(model, TEXTS[0], "more")
        with pytest.raises(ProbeError, match="takes text: give the text itself"):
            probe.verify(model, {"input_ids": torch.ones(1, 3, dtype=torch.long)})


# --- networks of which nothing is known beforehand ----------------------------------------------------------


DECODER: dict[str, Any] = {
    "vocab_size": families.VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
}
NOT_KNOWN: dict[str, Callable[[], PreTrainedModel]] = {
    "granite, with a scale of its own": lambda: GraniteForCausalLM(
        GraniteConfig(**DECODER, attention_multiplier=0.4)
    ),
    "cohere2, with windows": lambda: Cohere2ForCausalLM(Cohere2Config(**DECODER, sliding_window=4)),
    "esm": lambda: EsmModel(
        EsmConfig(
            **{**DECODER, "mask_token_id": 3},
            position_embedding_type="rotary",
            max_position_embeddings=64,
        )
    ),
    "umt5, with biases in each layer": lambda: UMT5ForConditionalGeneration(
        UMT5Config(
            vocab_size=families.VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=3,
            num_decoder_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=1,
        )
    ),
}


def not_known(name: str) -> Model:
    model = probe.load(families.build(families.Family(name, NOT_KNOWN[name])), tokenizer=families.numbers())
    assert model.family is None
    return model


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_networks_that_are_not_known_pass(name: str) -> None:
    model = not_known(name)
    targets = families.drawn(30, 9, seed=4) if model.has_target else None
    report = probe.verify(model, families.drawn(40, 13), targets)
    assert report.passed, report
    assert all(head.forbidden_weight == 0.0 for head in report.heads)


def test_a_network_that_is_not_known_must_be_causal_if_it_says_so() -> None:
    model = not_known("granite, with a scale of its own")
    sound = backend.Call

    def without_mask(
        module: Any, query: Any, key: Any, value: Any, name: str, mask: Any, options: Any
    ) -> Any:
        return sound(module, query, key, value, name, torch.zeros_like(mask), options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "Call", without_mask)
        report = probe.verify(model, families.drawn(40)[0])
    assert all({"weights", "forbidden weight"} <= set(head.failed) for head in report.heads)


# --- networks made of two, and one part of a network of two -------------------------------------------------


def small_modernbert() -> ModernBertModel:
    config = families.sized(ModernBertConfig, local_attention=4, global_attn_every_n_layers=2)
    config.cls_token_id = config.sep_token_id = 2
    return ModernBertModel(config)


def small_t5(kind: type) -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}
    return kind(vocab_size=families.VOCABULARY, **sizes, decoder_start_token_id=0, pad_token_id=1)


def made_of(encoder: PreTrainedModel) -> EncoderDecoderModel:
    decoder = GPT2LMHeadModel(families.gpt2_config(is_decoder=True, add_cross_attention=True))
    network = EncoderDecoderModel(encoder=encoder, decoder=decoder)
    network.config.decoder_start_token_id, network.config.pad_token_id = 2, 1
    return network


PARTS: dict[str, Callable[[], PreTrainedModel]] = {
    "windows and GPT-2": lambda: made_of(small_modernbert()),
    "GPT-2 twice": lambda: made_of(GPT2Model(families.gpt2_config())),
    "t5 and GPT-2": lambda: made_of(T5EncoderModel(small_t5(T5Config))),
    "t5 encoder": lambda: T5EncoderModel(small_t5(T5Config)),
    "mt5 encoder": lambda: MT5EncoderModel(small_t5(MT5Config)),
    "umt5 encoder": lambda: UMT5EncoderModel(small_t5(UMT5Config)),
    "t5 decoder": lambda: T5Model(small_t5(T5Config)).get_decoder(),
    "bart encoder": lambda: BartModel(families.bart_like(BartConfig)).get_encoder(),
    "bart decoder": lambda: BartModel(families.bart_like(BartConfig)).get_decoder(),
}


def part(name: str) -> Model:
    network = families.build(families.Family(name, PARTS[name]))
    return probe.load(network, tokenizer=families.numbers())


def checked_part(model: Model) -> Report:
    targets = families.drawn(30, 9, seed=4) if model.has_target else None
    return probe.verify(model, families.drawn(40, 13), targets)


@pytest.mark.parametrize("name", PARTS)
def test_networks_of_two_parts_and_parts_of_networks_pass(name: str) -> None:
    model = part(name)
    assert model.has_target == ("GPT-2" in name)
    report = checked_part(model)
    assert report.passed, report
    assert all(head.forbidden_weight == 0.0 for head in report.heads)
    run = probe.attend(model, report.texts[1], target=report.targets[1] if report.targets else None)
    assert set(run.heads) == set(model.kinds)


@contextmanager
def another_mask(model: Model, kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """The additive masks of one kind of attention, (B, 1, Tq, Tk), go through `change`."""
    sound, turns = backend.Call, itertools.cycle(model.attentions)

    def called(
        module: Any, query: Any, key: Any, value: Any, name: str, mask: Any, options: Any
    ) -> backend.Call:
        if next(turns).kind == kind:
            shape = (len(query), 1, query.shape[2], key.shape[2])
            mask = change(query.new_zeros(shape) if mask is None else mask.expand(shape))
        return sound(module, query, key, value, name, mask, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "Call", called)
        yield


@pytest.mark.parametrize(
    ("name", "kind"),
    [("windows and GPT-2", kind) for kind in ("encoder", "decoder", "cross")]
    + [("GPT-2 twice", "encoder"), ("t5 encoder", "self"), ("mt5 encoder", "self"), ("t5 decoder", "self")],
)
def test_masks_of_parts_are_known(name: str, kind: str) -> None:
    """What may be seen is lost (the first key), and what may not is seen."""
    model = part(name)

    def first_lost(mask: torch.Tensor) -> torch.Tensor:
        mask = mask.clone()
        mask[..., 1:, 0] = torch.finfo(mask.dtype).min
        return mask

    for change in (first_lost, torch.zeros_like):
        with another_mask(model, kind, change):
            report = checked_part(model)
        failed = [head for head in report.heads if not head.passed]
        assert failed == [head for head in report.heads if head.kind == kind]


@pytest.mark.parametrize("name", ["t5 encoder", "mt5 encoder", "t5 decoder", "t5 and GPT-2"])
@pytest.mark.parametrize("fault", ["lost", "the other direction's"])
def test_a_wrong_bias_of_a_part_is_caught(name: str, fault: str) -> None:
    model = part(name)
    sound = backend.Call

    def called(*given: Any) -> backend.Call:
        options = dict(given[-1])
        bias = options.get("position_bias")
        if bias is not None:
            options["position_bias"] = torch.zeros_like(bias) if fault == "lost" else bias.transpose(-1, -2)
        return sound(*given[:-1], options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "Call", called)
        report = checked_part(model)
    of_t5 = [head for head in report.heads if head.kind in ("self", "encoder")]
    assert len(of_t5) == sum(model.heads_of(model.kinds[0]))
    assert all("weights" in head.failed for head in of_t5)
    assert all(head.passed for head in report.heads if head not in of_t5)


@pytest.mark.parametrize("name", ["t5 encoder", "bart encoder"])
def test_encoders_alone_are_compared_from_query_and_key(name: str) -> None:
    model = part(name)
    text = families.drawn(12)[0]
    twin = copy.deepcopy(model.hf)
    twin.set_attn_implementation("eager")
    with torch.no_grad():
        given = torch.tensor([model.tokenizer(text)["input_ids"]])
        theirs = twin(input_ids=given, output_attentions=True).attentions[1][0, 2]
    comparison = probe.compare(model, text)
    torch.testing.assert_close(comparison.from_model(1, 2), theirs, rtol=0, atol=2e-6)
    torch.testing.assert_close(comparison.from_scratch(1, 2), theirs, rtol=0, atol=2e-6)


def test_a_classifier_of_sound_has_no_target() -> None:
    """Its configuration says that it has a decoder, as Whisper has."""
    config = families.bart_like(WhisperConfig, num_mel_bins=8, max_source_positions=20)
    family = families.Family("classifier", lambda: WhisperForAudioClassification(config))
    model = probe.load(families.build(family))
    assert model.hf.config.is_encoder_decoder and not model.has_target
    sound = {"input_features": torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(0))}
    report = probe.verify(model, sound)
    assert report.passed and report.kinds == ("self",) and report.num_tokens == (20,)
    assert probe.attend(model, sound).weights(2, 3).shape == (20, 20)


# --- images and sound, and models that show nothing ---------------------------------------------------------


@pytest.mark.parametrize("name", ["vit", "clip (images)", "whisper"])
def test_images_and_sound(name: str) -> None:
    family = next(one for one in families.FAMILIES if one.name == name)
    model = probe.load(families.build(family))
    inputs = {key: value[:1] for key, value in families.inputs_of(family, model.hf, "none")[0].items()}
    report = probe.verify(model, inputs)
    assert report.passed and report.check == "from query and key"
    assert len(report.heads) == sum(one.num_heads for one in model.attentions)
    if name == "vit":
        assert report.tokens[0][:2] == ("[CLS]", "row 0, column 0") and report.num_tokens == (17,)
        assert {head.forbidden_weight for head in report.heads} == {None}
    if name == "whisper":
        assert report.tokens[0][19] == "frame 19" and len(report.target_tokens[0]) == families.LENGTH
        forbidden = {head.kind: head.forbidden_weight for head in report.heads}
        assert forbidden == {"encoder": None, "decoder": 0.0, "cross": None}
    with pytest.raises(ProbeError, match="can't be run on these tensors"):
        key = model.hf.main_input_name
        probe.verify(model, {**inputs, key: inputs[key][..., :5]})


@pytest.mark.parametrize("name", ["bloom", "mpnet"])
def test_attention_code_of_its_own_is_refused_before_any_work(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network: Any = {
        "bloom": lambda: BloomForCausalLM(BloomConfig(vocab_size=99, hidden_size=32, n_layer=1, n_head=4)),
        "mpnet": lambda: MPNetModel(
            MPNetConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
        ),
    }[name]()
    tokenizer: Any = SimpleNamespace(pad_token_id=1)
    model = probe.load(network, tokenizer=tokenizer)
    monkeypatch.setattr(network.base_model, "forward", lambda *args, **options: pytest.fail("it was run"))
    with pytest.raises(ProbeError) as error:
        probe.verify(model, "a text that is never read")
    said = str(error.value)
    assert "in code of its own" in said and "nothing to check them against" in said
    assert said.endswith(".") and said.count(". ") == 0


@pytest.mark.parametrize("name", ["t5", "gpt_neox, yarn"])
def test_the_network_is_left_as_it_was(models: dict[str, Model], name: str) -> None:
    model = models[name]
    hf: Any = model.hf
    before = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in hf.modules()]
    own = hf.config._attn_implementation
    hf.train()
    assert checked(model, name).passed
    assert hf.training and hf.config._attn_implementation == own != "eager"
    assert [(len(one._forward_hooks), len(one._forward_pre_hooks)) for one in hf.modules()] == before
    hf.eval()


def test_more_attentions_than_before_are_refused(models: dict[str, Model]) -> None:
    hf: Any = models["gpt_neox, yarn"].hf
    layers = hf.base_model.layers
    for changed in (layers[:2], torch.nn.ModuleList([*layers, layers[0]])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(hf.base_model._modules, "layers", changed)
            patch.setattr(hf.base_model.config, "num_hidden_layers", len(changed))
            with pytest.raises(ProbeError, match="has been altered"):
                probe.verify(models["gpt_neox, yarn"], TEXTS[0])


# --- T5's buckets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 16), (16, 64), (32, 256), (10, 50)])
def test_buckets_are_transformers(num_buckets: int, max_distance: int, both_ways: bool) -> None:
    ahead = torch.arange(700) - torch.arange(600)[:, None]
    theirs = T5Attention._relative_position_bucket(
        ahead, bidirectional=both_ways, num_buckets=num_buckets, max_distance=max_distance
    )
    ours = t5_buckets(600, 700, num_buckets=num_buckets, max_distance=max_distance, both_ways=both_ways)
    assert torch.equal(ours, theirs)


def test_buckets_on_paper() -> None:
    """8 buckets up to distance 16, one way: 0 to 3 alone, then from 4, 5.7, 8 and 11.3 on."""
    row = t5_buckets(20, 20, num_buckets=8, max_distance=16, both_ways=False)[19].flip(0).tolist()
    assert row == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7]


# --- command line -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("t5")
    return tiny.saver(BUILDERS["t5"], tiny.minilm_folder(), lambda: path)()


def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[Any, str, str]:
    monkeypatch.setattr(sys, "argv", ["probe", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    return ended.value.code, out, " ".join(err.split())


def test_verify_on_the_command_line(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("verify", str(folder), TEXTS[0], "--target", TARGETS[0])
    code, out, _ = run(capfd, monkeypatch, *given)
    assert code == 0 and out.startswith("All 21 heads of ") and "Checked from query and key." in out
    code, out, _ = run(capfd, monkeypatch, *given, "--json")
    report = json.loads(out)
    assert code == 0 and report["check"] == "from query and key" and report["targets"] == [TARGETS[0]]
    assert report["heads"][20]["kind"] == "cross" and report["heads"][20]["query_error"] is None


def test_attend_on_the_command_line(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = probe.attend(str(folder), TEXTS[0], target=TARGETS[0])
    given = ("attend", str(folder), TEXTS[0], "--target", TARGETS[0], "--layer", "1", "--head", "2")
    for kind in ("encoder", "decoder", "cross"):
        code, out, _ = run(capfd, monkeypatch, *given, "--kind", kind, "--json")
        shown = json.loads(out)
        (kept,) = shown["weights"]
        assert code == 0 and (kept["kind"], kept["layer"], kept["head"]) == (kind, 1, 2)
        found = torch.tensor(kept["weights"])
        torch.testing.assert_close(found, expected.weights(1, 2, kind), rtol=0, atol=1e-6)
        assert expected.target is not None and shown["target"] == list(expected.target.tokens)
    code, out, _ = run(capfd, monkeypatch, *given)
    rows, columns = expected.labels("cross")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and "cross attention, layer 1, head 2; each row sums to 1" in out
    assert ["[0]", rows[0]] in [line[:2] for line in lines] and f"{len(columns) - 1} {columns[-1]}" in out
    assert sum(line[:1] == [f"[{len(rows) - 1}]"] for line in lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "T5", "Hi"), "Give what the decoder is to produce too: --target TEXT."),
        (("attend", "T5", "Hi"), "Give what the decoder is to produce too: --target TEXT."),
        (("verify", "T5", "Hi", "Ho", "--target", "x"), "--target goes with exactly one text"),
        (("attend", "T5", "Hi", "--target", "x", "--kind", "self"), "it has encoder, decoder, cross"),
        (("attend", "T5", "Hi", "--target", "x", "--layer", "2"), "no layer 2 in the cross attention"),
        (("attend", "T5", "Hi", "--target", "x", "--all", "--json", "--kind", "cross"), "not with --all"),
        (("verify", "gpt2", "Hi", "--target", "x"), "it takes no target"),
        (("attend", "gpt2", "Hi", "--target", "x"), "it takes no target"),
        (("attend", "gpt2", "Hi", "--kind", "cross"), "it has self"),
    ],
)
def test_what_does_not_fit_is_said(
    folder: Path,
    arguments: tuple[str, ...],
    message: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [str(folder) if part == "T5" else part for part in arguments]
    code, out, err = run(capfd, monkeypatch, *given)
    assert code == 2 and out == "" and message in err and "Traceback" not in err
