"""Taking part in a model's forward pass: what it computes stays as it is, and what is seen is right."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from probe import ProbeError
from probe.models import backend
from scripts import families

TOLERANCE = 1e-5
NAMES = (
    "bert",
    "albert",
    "modernbert",
    "gpt2",
    "llama",
    "mistral",
    "gemma2",
    "gpt_oss",
    "clip (text)",
    "t5",
    "bart",
    "marian",
)
# transformers itself runs these on eager alone.
EAGER_ONLY = ("gemma2", "gpt_oss")
RUNS = [
    pytest.param(name, implementation, id=f"{name}-{implementation}")
    for name in NAMES
    for implementation in ("sdpa", "eager")
    if (name, implementation) not in [(only, "sdpa") for only in EAGER_ONLY]
]


def family(name: str) -> families.Family:
    return next(one for one in families.FAMILIES if one.name == name)


@lru_cache
def built(name: str) -> PreTrainedModel:
    return families.build(family(name))


def network(name: str, implementation: str | None = None) -> PreTrainedModel:
    """A tiny random network of its own for each test."""
    hf = copy.deepcopy(built(name))
    if implementation is not None:
        hf.set_attn_implementation(implementation)
        assert hf.config._attn_implementation == implementation
    return hf


def inputs_of(name: str, padding: str = "none") -> dict[str, Tensor]:
    return families.inputs_of(family(name), built(name), padding)[0]


def outputs(hf: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor that a forward pass returns, by name."""
    with torch.no_grad():
        result = hf(**inputs)
    return {name: value for name, value in result.items() if isinstance(value, Tensor)}


def state(hf: PreTrainedModel) -> Any:
    """All that a capture might leave changed, in a form that can be compared."""
    modules = list(hf.modules())
    configs = {id(one.config): one.config for one in modules if hasattr(one, "config")}
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "configurations": [
            config.to_dict() | {"on": config._attn_implementation} for config in configs.values()
        ],
        "training": [one.training for one in modules],
        "hooks": [[list(getattr(one, kind)) for kind in hooks] for one in modules],
        "attributes": [sorted(vars(one)) for one in modules],
        "forward": [one.forward.__func__ for one in modules],
        "kinds": [type(one) for one in modules],
        "weights": [(name, value.data_ptr(), value._version) for name, value in hf.state_dict().items()],
        "precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


class TestListening:
    @pytest.mark.parametrize("padding", ["none", "left", "right"])
    @pytest.mark.parametrize(("name", "implementation"), RUNS)
    def test_the_model_computes_what_it_computes_without(
        self, name: str, implementation: str, padding: str
    ) -> None:
        hf, inputs = network(name, implementation), inputs_of(name, padding)
        plain = outputs(hf, inputs)
        maps: list[Tensor] = []
        with backend.listening(hf, lambda call: maps.append(call.weights(range(call.shape[1])))):
            heard = outputs(hf, inputs)
        assert len(maps) == len(backend.attentions(hf))
        assert plain.keys() == heard.keys() and plain
        assert all(torch.equal(plain[key], heard[key]) for key in plain)

    @pytest.mark.parametrize("padding", ["none", "left", "right"])
    @pytest.mark.parametrize(("name", "implementation"), RUNS)
    def test_maps_are_those_of_eager(self, name: str, implementation: str, padding: str) -> None:
        hf = network(name, implementation)
        inputs, real = families.inputs_of(family(name), hf, padding)
        expected = families.eager_maps(hf, inputs)
        found = families.captured(hf, inputs)
        assert {kind for kind, _ in expected} == {one.kind for one in backend.attentions(hf)}
        assert families.worst(found, expected, real) < TOLERANCE
        for (kind, _), weights in found.items():
            keys = real["encoder" if kind == "cross" else kind]  # a row of what is real: (B, Tk)
            on_padding = weights.masked_fill(keys[:, None, None], 0.0).amax((1, 3))
            assert on_padding[real[kind]].max() == 0.0

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    def test_a_window_of_four(self, implementation: str) -> None:
        hf = network("mistral", implementation)
        for weights in families.captured(hf, inputs_of("mistral")).values():
            size = weights.shape[-1]
            assert size > 10
            back = torch.arange(size)[:, None] - torch.arange(size)
            assert weights[..., (back >= 4) | (back < 0)].abs().max() == 0.0
            assert weights[..., (back >= 0) & (back < 4)].min() > 0.0

    def test_grouped_heads_have_a_map_each(self) -> None:
        hf = network("llama")
        assert (hf.config.num_attention_heads, hf.config.num_key_value_heads) == (4, 2)
        for weights in families.captured(hf, inputs_of("llama")).values():
            assert weights.shape[1] == 4
            for one in range(4):
                for other in range(one):
                    assert (weights[:, one] - weights[:, other]).abs().max() > 0.1

    def test_some_heads_are_a_part_of_all(self) -> None:
        hf, inputs = network("llama"), inputs_of("llama", "left")
        seen: list[tuple[Tensor, Tensor]] = []
        with (
            torch.no_grad(),
            backend.listening(hf, lambda call: seen.append((call.weights([3, 1]), call.weights(range(4))))),
        ):
            hf(**inputs)
        assert len(seen) == 3
        assert all(torch.equal(some, every[:, [3, 1]]) for some, every in seen)

    def test_rows_in_blocks_are_the_same_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("gpt2", "t5", "mistral"):  # no mask but causal, a bias, a window
            hf, inputs = network(name), inputs_of(name, "right")
            at_once = families.captured(hf, inputs)
            monkeypatch.setattr(backend, "AT_ONCE", 2 * 4 * 12 * 5)  # five rows of two texts' heads
            in_blocks = families.captured(hf, inputs)
            monkeypatch.undo()
            assert families.worst(at_once, in_blocks, {}) < 1e-6

    @pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "bart", "t5"])
    def test_one_token_at_a_time_with_a_cache(self, name: str) -> None:
        # Each step has one query, whose row is that of a run over the whole text.
        hf, inputs = network(name), inputs_of(name)
        kind, ids = (
            ("decoder", "decoder_input_ids") if "decoder_input_ids" in inputs else ("self", "input_ids")
        )
        order = [(one.kind, one.layer) for one in backend.attentions(hf) if one.kind != "encoder"]
        whole = families.captured(hf, {key: inputs[key] for key in ("input_ids", ids)})[kind, 1]
        # transformers renamed the argument after 5.22.
        cache_name = "cache" if "cache" in inspect.signature(hf.forward).parameters else "past_key_values"
        cache = None
        for position in range(inputs[ids].shape[1]):
            calls: list[backend.Call] = []
            step = {
                "input_ids": inputs["input_ids"],
                ids: inputs[ids][:, position : position + 1],
                cache_name: cache,
            }
            with torch.no_grad(), backend.listening(hf, calls.append):
                cache = hf(**step, use_cache=True).past_key_values
            call = [call for call in calls if call.shape[2] == 1][order.index((kind, 1))]
            row = call.weights(range(call.shape[1]))
            kept = row.shape[-1]  # a cache with a window forgets
            found = whole[:, :, position, : position + 1][..., -kept:]
            assert (row[:, :, 0] - found).abs().max() < TOLERANCE


class TestNothingStays:
    @pytest.mark.parametrize("name", [*NAMES, "EncoderDecoder", "mpnet", "bloom"])
    def test_after_a_run(self, name: str) -> None:
        hf = network(name)
        before = state(hf)
        with torch.no_grad():
            if backend.uses_interface(hf):
                families.captured(hf, inputs_of(name))
                with backend.from_scratch_backend(hf):
                    hf(**inputs_of(name))
            else:
                backend.attentions(hf)
                backend.own_maps(hf, inputs_of(name))
        assert state(hf) == before

    def test_after_an_exception_in_the_listener(self) -> None:
        hf, inputs = network("EncoderDecoder"), inputs_of("EncoderDecoder")
        before, plain = state(hf), outputs(hf, inputs)

        def fail(call: backend.Call) -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"), backend.running(hf, inputs), backend.listening(hf, fail):
            hf(**inputs)
        assert state(hf) == before
        assert all(torch.equal(plain[key], value) for key, value in outputs(hf, inputs).items())

    def test_after_an_exception_in_the_model(self) -> None:
        hf = network("gpt2")
        before = state(hf)
        too_large = torch.full((1, 3), families.VOCABULARY)
        for context in (backend.from_scratch_backend(hf), backend.listening(hf, lambda call: None)):
            with pytest.raises(IndexError), context:
                hf(input_ids=too_large)
        with pytest.raises(RuntimeError, match="mine"), backend.eager(hf):
            assert hf.config._attn_implementation == "eager"
            raise RuntimeError("mine")
        assert state(hf) == before

    def test_parts_on_backends_of_their_own_get_them_back(self) -> None:
        hf, inputs = network("EncoderDecoder"), inputs_of("EncoderDecoder")
        hf.encoder.config._attn_implementation = "eager"
        hf.decoder.config._attn_implementation = "sdpa"
        before, plain = state(hf), outputs(hf, inputs)
        backends: list[str] = []
        with backend.listening(hf, lambda call: backends.append(call.backend)):
            heard = outputs(hf, inputs)
        assert backends == ["eager"] * 3 + ["sdpa"] * 6
        assert all(torch.equal(plain[key], heard[key]) for key in plain)
        assert state(hf) == before

    def test_training_goes_on_where_it_was(self) -> None:
        hf, inputs = network("bert"), inputs_of("bert")
        hf.train()
        hf.encoder.layer[1].eval()
        before = state(hf)
        assert 0 < sum(before["training"]) < len(before["training"])
        maps: list[Tensor] = []
        for _ in range(2):  # dropout would make two runs differ
            with (
                backend.running(hf, inputs),
                backend.listening(hf, lambda call: maps.append(call.weights([0]))),
            ):
                hf(**inputs)
        assert state(hf) == before
        assert all(torch.equal(maps[layer], maps[3 + layer]) for layer in range(3))

    def test_precision_and_autocast(self) -> None:
        hf = network("gpt2")
        torch.set_float32_matmul_precision("medium")
        try:
            with torch.autocast("cpu", torch.bfloat16):
                with backend.running(hf, inputs_of("gpt2")):
                    assert torch.get_float32_matmul_precision() == "highest"
                    assert not torch.is_autocast_enabled("cpu")
                assert torch.is_autocast_enabled("cpu")
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision("highest")

    def test_one_inside_the_other(self) -> None:
        hf, inputs = network("gpt2"), inputs_of("gpt2")
        before, plain = state(hf), outputs(hf, inputs)
        outer: list[backend.Call] = []
        inner: list[backend.Call] = []
        with backend.listening(hf, outer.append):
            with backend.listening(hf, inner.append):
                hf(**inputs)
            assert (len(outer), len(inner)) == (0, 3)
            assert all(torch.equal(plain[key], value) for key, value in outputs(hf, inputs).items())
            assert (len(outer), len(inner)) == (3, 3)
        assert state(hf) == before


class TestThreads:
    @pytest.mark.parametrize("name", ["gpt2", "gemma2"])
    def test_another_thread_runs_the_model_as_ever(self, name: str) -> None:
        # The configuration is the same object for all threads, so its backend is renamed for them all.
        hf, inputs = network(name), inputs_of(name, "left")
        plain = outputs(hf, inputs)
        heard: list[backend.Call] = []
        found: list[dict[str, Tensor]] = []
        with backend.listening(hf, heard.append):
            thread = threading.Thread(target=lambda: found.append(outputs(hf, inputs)))
            thread.start()
            thread.join()
        assert heard == []
        (other,) = found
        assert all(torch.equal(plain[key], other[key]) for key in plain)

    def test_two_threads_listen_to_one_model(self) -> None:
        hf = network("gpt2")
        inputs = [inputs_of("gpt2"), inputs_of("gpt2", "right")]
        expected = [families.captured(hf, one) for one in inputs]
        results: list[list[Any]] = [[], []]

        def work(which: int) -> None:
            for _ in range(10):
                results[which].append(families.captured(hf, inputs[which]))

        threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for which in (0, 1):
            assert len(results[which]) == 10
            for found in results[which]:
                assert all(torch.equal(found[key], expected[which][key]) for key in found)


class TestFromScratch:
    @pytest.mark.parametrize("padding", ["none", "left", "right"])
    @pytest.mark.parametrize(("name", "implementation"), RUNS)
    def test_outputs_are_the_models_own(self, name: str, implementation: str, padding: str) -> None:
        hf = network(name, implementation)
        inputs, real = families.inputs_of(family(name), hf, padding)
        plain = families.outputs(hf, inputs)
        with backend.from_scratch_backend(hf):
            computed = families.outputs(hf, inputs)
        rows = real.get("cross", real.get("self"))
        assert (computed - plain)[rows].abs().max() < TOLERANCE * plain[rows].abs().max()

    @pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
    def test_no_attention_but_ours_is_called(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("torch's attention was called")

        hf, inputs = network(name, "sdpa"), inputs_of(name)
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fail)
        with pytest.raises(AssertionError, match="torch's attention"):
            hf(**inputs)
        with torch.no_grad(), backend.from_scratch_backend(hf):
            hf(**inputs)

    @pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2", "gpt_oss", "opt", "t5", "bart"])
    def test_greedy_generation_gives_the_same_tokens(self, name: str) -> None:
        # Eager, since sdpa leaves out Gemma 2's softcap (and is refused for it by a transformers that knows).
        hf = network(name, "eager")
        ids = inputs_of(name)["input_ids"]

        def generate() -> list[list[int]]:
            with torch.no_grad():
                made = hf.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=20,
                    min_new_tokens=20,
                    do_sample=False,
                    use_cache=True,
                    pad_token_id=1,
                    no_repeat_ngram_size=1,  # or some would repeat one token, whatever the attention
                )
            return made.tolist()

        own = generate()
        calls: list[int] = []

        def answer(call: backend.Call) -> Tensor:
            calls.append(call.shape[2])
            return call.output()

        with backend.listening(hf, answer):
            assert generate() == own
        assert calls.count(1) >= 19 * len(backend.attentions(hf)) // 3  # with a cache, one query at a time

    def test_an_answer_takes_the_backends_place(self) -> None:
        hf, inputs = network("gpt2"), inputs_of("gpt2")
        plain = outputs(hf, inputs)["logits"]
        with backend.listening(hf, lambda call: torch.zeros_like(call.output())):
            silenced = outputs(hf, inputs)["logits"]
        assert (silenced - plain).abs().max() > 0.1


class TestAttentions:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("bert", {"self": [4, 4, 4]}),
            ("albert", {"self": [4, 4, 4]}),
            ("llama", {"self": [4, 4, 4]}),
            ("bloom", {"self": [4, 4, 4]}),
            ("t5", {"encoder": [4, 4, 4], "decoder": [4, 4], "cross": [4, 4]}),
            ("bart", {"encoder": [4, 4, 4], "decoder": [2, 2], "cross": [2, 2]}),
            ("whisper", {"encoder": [4, 4, 4], "decoder": [2, 2], "cross": [2, 2]}),
            ("EncoderDecoder", {"encoder": [4, 4, 4], "decoder": [4, 4, 4], "cross": [4, 4, 4]}),
            ("vit", {"self": [4, 4, 4]}),
            ("clip (images)", {"self": [4, 4, 4]}),
        ],
    )
    def test_found_by_running(self, name: str, expected: dict[str, list[int]]) -> None:
        found = backend.attentions(network(name))
        by_kind: dict[str, list[int]] = {}
        for one in found:
            assert one.layer == len(by_kind.setdefault(one.kind, []))
            by_kind[one.kind].append(one.num_heads)
        assert by_kind == expected

    @pytest.mark.parametrize("name", ["t5", "bart", "marian"])
    def test_one_stack_of_two(self, name: str) -> None:
        hf: Any = network(name)
        assert hf.config.is_encoder_decoder
        for stack, layers, heads in (
            (hf.get_encoder(), 3, 4),
            (hf.get_decoder(), 2, 4 if name == "t5" else 2),
        ):
            found = backend.attentions(stack)
            assert found == tuple(backend.Attention("self", layer, heads) for layer in range(layers))

    def test_kinds_are_where_their_modules_are(self) -> None:
        hf = network("t5")
        names = {module: name for name, module in hf.named_modules()}
        seen: list[str] = []
        with torch.no_grad(), backend.listening(hf, lambda call: seen.append(names[call.module])):
            hf(**inputs_of("t5"))
        where = {
            "encoder": "encoder.block.{}.layer.0",
            "decoder": "decoder.block.{}.layer.0",
            "cross": "decoder.block.{}.layer.1",
        }
        for one, name in zip(backend.attentions(hf), seen, strict=True):
            assert name.startswith(where[one.kind].format(one.layer))

    def test_two_eager_functions_in_one_file(self) -> None:
        config = transformers.Llama4VisionConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            vision_output_dim=32,
            projector_input_dim=32,
            projector_output_dim=32,
            image_size=32,
            patch_size=8,
        )
        config._attn_implementation = "eager"
        torch.manual_seed(0)
        hf = transformers.Llama4VisionModel(config).eval()
        image = {"pixel_values": torch.randn(1, 3, 32, 32)}
        plain = outputs_of(hf, image)
        with backend.listening(hf, lambda call: None):
            assert torch.equal(outputs_of(hf, image), plain)


def outputs_of(hf: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return hf(**inputs).last_hidden_state


class TestOwnMaps:
    @pytest.mark.parametrize("padding", ["none", "left", "right"])
    @pytest.mark.parametrize("name", ["mpnet", "deberta-v2", "gpt_neo", "bloom"])
    def test_are_the_softmax_of_the_scores(self, name: str, padding: str) -> None:
        hf = network(name)
        inputs, real = families.inputs_of(family(name), hf, padding)
        returned, watched = families.own(hf, inputs)
        assert len(returned) == 3
        assert families.worst(returned, watched, real) < 1e-6


LAYERS: dict[str, Any] = {
    "vocab_size": families.VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "pad_token_id": 1,
}
TWO_STACKS: dict[str, Any] = {
    "vocab_size": families.VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
}


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda: transformers.LongT5Model(transformers.LongT5Config(**TWO_STACKS)),
                "LongT5Model has 3 layers of encoder attention, and 0 can be seen",
            ),
            (
                lambda: transformers.LongT5Model(
                    transformers.LongT5Config(**TWO_STACKS, encoder_attention_type="transient-global")
                ),
                "LongT5Model has 3 layers of encoder attention, and 0 can be seen",
            ),
            (
                lambda: transformers.BigBirdPegasusModel(
                    families.bart_like(transformers.BigBirdPegasusConfig)
                ),
                "BigBirdPegasusModel has 3 layers of encoder attention, and 0 can be seen",
            ),
            (
                lambda: transformers.PegasusXModel(
                    families.bart_like(transformers.PegasusXConfig, block_size=4)
                ),
                "PegasusXModel has 3 layers of encoder attention, and 0 can be seen",
            ),
            (
                lambda: transformers.Lfm2Model(transformers.Lfm2Config(**LAYERS, full_attn_idxs=[1, 3])),
                "Lfm2Model has 4 layers of self attention, and 2 can be seen",
            ),
            (
                lambda: transformers.RecurrentGemmaModel(
                    families.sized(transformers.RecurrentGemmaConfig, lru_width=32, attention_window_size=8)
                ),
                "RecurrentGemmaModel has 3 layers of self attention, and 1 can be seen",
            ),
            (
                # The second layer looks at an image, if there is one.
                lambda: transformers.MllamaTextModel(
                    transformers.MllamaTextConfig(**LAYERS, cross_attention_layers=[1])
                ),
                "MllamaTextModel has 4 layers of self attention, and 3 can be seen",
            ),
        ],
    )
    def test_heads_are_never_missing_without_a_word(
        self, make: Callable[[], PreTrainedModel], message: str
    ) -> None:
        with pytest.raises(ProbeError, match=f"^By its configuration {message}: .* is not supported.$"):
            backend.attentions(make().eval())

    def test_a_configuration_that_does_not_say_how_many_layers_there_are(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hf = network("EncoderDecoder")
        monkeypatch.setattr(hf.config, "decoder", None)
        with pytest.raises(ProbeError, match="doesn't say how many layers of decoder attention"):
            backend.attentions(hf)

    def test_code_of_its_own_can_not_be_listened_to(self) -> None:
        hf = network("bloom")
        before = state(hf)
        with pytest.raises(ProbeError, match=r"BloomForCausalLM .* code of its own"):
            backend.from_scratch_backend(hf).__enter__()
        assert state(hf) == before

    def test_a_backend_without_masks(self) -> None:
        hf = network("gpt2")
        hf.config._attn_implementation = "flex_attention"
        before = state(hf)
        with pytest.raises(ProbeError, match=r'"flex_attention" backend.*attn_implementation="sdpa"'):
            backend.listening(hf, lambda call: None).__enter__()
        assert state(hf) == before

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda: transformers.SwinModel(
                    transformers.SwinConfig(
                        image_size=32,
                        patch_size=4,
                        embed_dim=16,
                        depths=[1, 1],
                        num_heads=[2, 2],
                        window_size=4,
                    )
                ),
                "SwinModel computes attention over .*windows",
            ),
            (
                lambda: transformers.CLIPModel(
                    transformers.CLIPConfig(
                        text_config=families.sized(transformers.CLIPTextConfig).to_dict(),
                        vision_config=families.sized(
                            transformers.CLIPVisionConfig, image_size=16, patch_size=4
                        ).to_dict(),
                    )
                ),
                "CLIPModel can't be run on input_ids alone",
            ),
            (
                lambda: transformers.FNetModel(families.sized(transformers.FNetConfig)),
                "FNetModel shows no attention",
            ),
            (
                lambda: transformers.LongformerModel(
                    families.sized(transformers.LongformerConfig, attention_window=4)
                ),
                "LongformerModel .* doesn't return a map of all queries and keys",
            ),
            (
                lambda: transformers.LEDModel(families.bart_like(transformers.LEDConfig, attention_window=4)),
                "LEDModel .* code of its own",
            ),
            (
                lambda: transformers.Wav2Vec2Model(
                    transformers.Wav2Vec2Config(
                        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48
                    )
                ),
                'Wav2Vec2Model takes "input_values"',
            ),
            (
                lambda: transformers.Speech2TextModel(families.bart_like(transformers.Speech2TextConfig)),
                "The configuration of Speech2TextModel doesn't say how large its input is .*num_mel_bins",
            ),
            (
                lambda: transformers.EncoderDecoderModel(
                    config=transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
                        families.sized(transformers.MPNetConfig),
                        families.sized(transformers.BertConfig, is_decoder=True, add_cross_attention=True),
                    )
                ),
                "EncoderDecoderModel .* code of its own",
            ),
        ],
        ids=[
            "windows",
            "text and image",
            "no attention",
            "bands",
            "bands of two stacks",
            "sound",
            "spectra",
            "mixed",
        ],
    )
    def test_what_has_no_maps_that_can_be_shown(
        self, make: Callable[[], PreTrainedModel], message: str
    ) -> None:
        with pytest.raises(ProbeError, match=message):
            backend.attentions(make().eval())


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
