"""`attend`: the right maps, of what was asked for and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel, AutoTokenizer

import probe
import tiny
from probe import Model, ProbeError
from probe.models import backend
from scripts import families

TEXTS = (
    "One day a girl found a small bird.",
    "Cats",
    "The dog ran to the park, and the cat sat on the mat and slept until the sun was low.",
)
TOLERANCE = 1e-5


def eager(folder: Path, text: str) -> Tensor:
    """transformers' own maps, from a network loaded here: (layers, heads, T, T)."""
    network = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        return torch.cat(network(**inputs, output_attentions=True).attentions)


def stacked(run: probe.Run) -> Tensor:
    """All maps of a run of all heads: (layers, heads, T, T)."""
    (heads,) = run.heads.values()
    return torch.stack(
        [
            torch.stack([run.weights(layer, head) for head in range(count)])
            for layer, count in enumerate(heads)
        ]
    )


@pytest.fixture(scope="module")
def folders(tiny_bert: Callable[..., Path], tiny_gpt2: Callable[..., Path]) -> dict[str, Path]:
    return {"bert": tiny_bert(num_hidden_layers=4), "gpt2": tiny_gpt2(n_layer=4)}


@pytest.fixture(params=["bert", "gpt2"])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def model(folder: Path) -> Model:
    return probe.load(str(folder))


def of_family(name: str) -> Model:
    """A tiny random network of a family, with the tokenizer of gpt2-stories cut to its vocabulary."""
    family = next(one for one in families.FAMILIES if one.name == name)
    hf = families.build(family)
    return probe.load(
        hf, tokenizer=AutoTokenizer.from_pretrained(tiny.GPT2_STORIES) if family.takes != "images" else None
    )


class TestMaps:
    def test_are_those_of_eager(self, folder: Path, model: Model) -> None:
        for text in TEXTS:
            run = probe.attend(model, text)
            expected = eager(folder, text)
            assert stacked(run).shape == expected.shape
            assert (stacked(run) - expected).abs().max() < TOLERANCE

    def test_batches_are_as_alone(self, folder: Path, model: Model) -> None:
        together = probe.attend(model, list(TEXTS))
        for text, run in zip(TEXTS, together, strict=True):
            expected = eager(folder, text)
            assert len(run.tokens) == expected.shape[-1]
            assert run.text == text
            assert (stacked(run) - expected).abs().max() < TOLERANCE

    def test_chosen_heads_and_layers(self, folder: Path, model: Model) -> None:
        expected = eager(folder, TEXTS[0])
        run = probe.attend(model, TEXTS[0], [(2, 1), 1, (0, 2), (2, 1)])
        assert set(run.maps) == {("self", *pair) for pair in [(0, 2), (1, 0), (1, 1), (1, 2), (2, 1)]}
        for (_, layer, head), weights in run.maps.items():
            assert (weights - expected[layer, head]).abs().max() < TOLERANCE
        with pytest.raises(ProbeError, match=r"Layer 0, head 0 is not .* has \(0, 2\), \(1, 0\)"):
            run.weights(0, 0)

    def test_float16_on_request(self, model: Model) -> None:
        whole = probe.attend(model, TEXTS[0])
        half = probe.attend(model, TEXTS[0], dtype=torch.float16)
        for key, weights in half.maps.items():
            assert weights.dtype == torch.float16
            assert torch.equal(weights, whole.maps[key].half())

    @pytest.mark.parametrize("heads", [None, [(1, 2)], [0, (1, 0)]])
    def test_what_is_kept_pins_nothing_else(self, model: Model, heads: Any) -> None:
        for dtype, size in ((None, 4), (torch.float16, 2), (torch.float32, 4)):
            for run in probe.attend(model, list(TEXTS), heads, dtype=dtype):
                for weights in run.maps.values():
                    assert weights.untyped_storage().nbytes() == len(run.tokens) ** 2 * size
                storages = {weights.untyped_storage().data_ptr() for weights in run.maps.values()}
                assert len(storages) == len(run.maps)


class TestNoMoreThanAskedFor:
    def test_later_layers_do_not_run(self, model: Model) -> None:
        layers: Any = model.hf.encoder.layer if hasattr(model.hf, "encoder") else model.hf.transformer.h
        ran: list[int] = []
        inside: list[str] = []
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda module, args, index=index: ran.append(index))
            last = layer.output.dense if hasattr(layer, "output") else layer.mlp.c_proj
            last.register_forward_hook(lambda module, args, output, index=index: inside.append(index))
        probe.attend(model, TEXTS[0], [(1, 0)])
        assert (ran, inside) == ([0, 1], [0])  # nothing of layer 1 after its attention
        ran.clear()
        probe.attend(model, TEXTS[0], [(3, 0), (0, 0)])
        assert ran == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("heads", "expected"),
        [
            ([(1, 2)], {1: [1]}),
            ([(0, 0), (0, 2), 2], {0: [2], 2: [3]}),
            (None, {0: [3], 1: [3], 2: [3], 3: [3]}),
        ],
    )
    def test_no_other_head_is_computed(
        self, model: Model, heads: Any, expected: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        computed: dict[int, list[int]] = {}
        attentions = [site.attention for site in model.sites]
        now = -1
        own_weights, own_attention = backend.Call.weights, backend.scaled_dot_product_attention

        def weights(call: backend.Call, chosen: Any) -> Tensor:
            nonlocal now
            now = attentions.index(call.module)
            return own_weights(call, chosen)

        def attention(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Any:
            assert query.shape[1] == key.shape[1]
            assert value.shape[-1] == 0  # only weights, no outputs
            computed.setdefault(now, []).append(query.shape[1])
            return own_attention(query, key, value, **kwargs)

        monkeypatch.setattr(backend, "scaled_dot_product_attention", attention)
        monkeypatch.setattr(backend.Call, "weights", weights)
        probe.attend(model, TEXTS[0], heads)
        assert computed == expected

    def test_one_head_of_a_long_text_holds_no_map_of_all(
        self, tiny_gpt2: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = probe.load(str(tiny_gpt2(n_positions=4096, n_embd=32, n_head=4, n_layer=2)))
        sizes: list[tuple[int, ...]] = []
        own = backend.scaled_dot_product_attention

        def attention(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Any:
            sizes.append((*query.shape[:3], key.shape[2]))
            return own(query, key, value, **kwargs)

        monkeypatch.setattr(backend, "scaled_dot_product_attention", attention)
        with LargestTensor() as largest:
            run = probe.attend(model, "The cat sat on the mat. " * 600, [(0, 1)], truncate=True)
        size = len(run.tokens)
        assert size == 4096
        assert sum(rows for _, _, rows, _ in sizes) == size
        assert all(
            shape[:2] == (1, 1) and shape[2] * size <= backend.AT_ONCE and shape[3] <= size for shape in sizes
        )
        # The largest of all tensors in the whole run is the one map itself, not the four of the layer.
        assert largest.numel == size * size


class LargestTensor(TorchDispatchMode):
    """Remembers how many numbers the largest tensor has that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self.numel = max(self.numel, value.numel())
        return result


class TestNothingStays:
    def test_after_errors(self, model: Model) -> None:
        before = probe.attend(model, TEXTS[0])
        on = model.hf.config._attn_implementation
        hooks = [len(module._forward_hooks) for module in model.hf.modules()]
        for arguments in (
            (TEXTS[0], [(9, 0)]),
            (TEXTS[0], [(0, 9)]),
            (TEXTS[0], []),
            ("cat " * 500,),
            ([TEXTS[0], ""],),
            ([TEXTS[0], "cat " * 500],),
        ):
            with pytest.raises(ProbeError):
                probe.attend(model, *arguments)
        assert model.hf.config._attn_implementation == on
        assert [len(module._forward_hooks) for module in model.hf.modules()] == hooks
        after = probe.attend(model, TEXTS[0])
        assert before.maps.keys() == after.maps.keys()
        assert all(torch.equal(before.maps[key], after.maps[key]) for key in before.maps)

    def test_after_stopping_early(self, model: Model) -> None:
        inputs = model.tokenizer(TEXTS[0], return_tensors="pt")
        with torch.no_grad():
            before = model.hf(**inputs)[0]
            probe.attend(model, TEXTS[0], [(0, 0)])
            after = model.hf(**inputs)[0]
        assert torch.equal(before, after)
        assert model.hf.config._attn_implementation == "sdpa"

    def test_an_altered_network_is_noticed(self, model: Model) -> None:
        layers: Any = model.hf.encoder.layer if hasattr(model.hf, "encoder") else model.hf.transformer.h
        del layers[1:3]
        model.hf.config.num_hidden_layers = 2
        with pytest.raises(ProbeError, match="ended after 2 of 4 attention layers"):
            probe.attend(model, TEXTS[0])

    def test_another_number_of_heads_is_noticed(self, folders: dict[str, Path]) -> None:
        model = probe.load(str(folders["gpt2"]))
        block: Any = model.hf.base_model.h[1].attn
        block.num_heads, block.head_dim = 6, 4
        with pytest.raises(ProbeError, match="such maps are not supported"):
            probe.attend(model, TEXTS[0])


class TestCompiled:
    @pytest.mark.parametrize("how", ["in place", "forward", "a part"])
    def test_compiled_before(self, folder: Path, model: Model, how: str) -> None:
        ran: list[str] = []

        def compiler(graph: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
            """Like the backend "eager", and notes when what it has made is run."""

            def run(*arguments: Any) -> Any:
                ran.append("compiled")
                return graph.forward(*arguments)

            return run

        inputs = model.tokenizer(TEXTS[0], return_tensors="pt")
        if how == "in place":
            model.hf.compile(backend=compiler)
        elif how == "forward":
            model.hf.base_model.forward = torch.compile(model.hf.base_model.forward, backend=compiler)
        else:
            for site in model.sites:
                site.attention.compile(backend=compiler)
        with torch.no_grad():
            before = model.hf(**inputs)[0]
        assert ran
        for _ in range(2):
            ran.clear()
            run = probe.attend(model, TEXTS[0])
            assert (stacked(run) - eager(folder, TEXTS[0])).abs().max() < TOLERANCE
            assert ran == []
        with torch.no_grad():
            assert torch.equal(model.hf(**inputs)[0], before)
        assert ran  # compiled as before
        torch.compiler.reset()


class TestThreads:
    @pytest.mark.parametrize("shared", ["model", "network"])
    def test_every_run_is_as_alone(self, model: Model, shared: str) -> None:
        # Each thread its text and its heads; "network": two models around one network.
        other = model if shared == "model" else probe.load(model.hf, tokenizer=model.tokenizer)
        work = [(model, TEXTS[0], None), (other, TEXTS[2], [(3, 1), (1, 0)])]
        alone = [probe.attend(*arguments) for arguments in work]
        failures: list[Any] = []

        def runs(which: int) -> None:
            try:
                for _ in range(25):
                    run = probe.attend(*work[which])
                    assert run.tokens == alone[which].tokens
                    assert run.maps.keys() == alone[which].maps.keys()
                    assert all(torch.equal(run.maps[key], alone[which].maps[key]) for key in run.maps)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=runs, args=(index % 2,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


class TestEncoderDecoder:
    @pytest.fixture(params=["t5", "bart", "marian"])
    def model(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Model:
        monkeypatch.setattr(families, "VOCABULARY", 4096)
        return of_family(request.param)

    def expected(self, model: Model, run: probe.Run) -> dict[tuple[str, int], Tensor]:
        ids = torch.tensor([model.tokenizer(run.text)["input_ids"]])
        assert run.target is not None
        return families.eager_maps(
            model.hf, {"input_ids": ids, "decoder_input_ids": torch.tensor([run.target.ids])}
        )

    def test_three_kinds_of_maps(self, model: Model) -> None:
        run = probe.attend(model, "The cat sat on the mat.", target="A small bird")
        source = ("The", "cat", "sat", "on", "the", "mat", ".")
        assert run.tokens == source
        assert run.target is not None
        start = model.hf.config.decoder_start_token_id
        assert run.target.ids == (start, *model.tokenizer("A small bird")["input_ids"])
        target = run.target.tokens
        assert target[1:] == ("A", "small", "bird")
        assert {kind: len(counts) for kind, counts in run.heads.items()} == {
            "encoder": 3,
            "decoder": 2,
            "cross": 2,
        }
        assert run.labels("encoder") == (source, source)
        assert run.labels("decoder") == (target, target)
        assert run.labels("cross") == (target, source)
        expected = self.expected(model, run)
        assert {(kind, layer) for kind, layer, _ in run.maps} == expected.keys()
        for (kind, layer, head), weights in run.maps.items():
            assert weights.shape == tuple(map(len, run.labels(kind)))
            assert (weights - expected[kind, layer][0, head]).abs().max() < TOLERANCE
            assert torch.equal(run.weights(layer, head, kind), weights)

    def test_batches_are_as_alone(self, model: Model) -> None:
        targets = ["A small bird", "And they all lived in the big house.", "No"]
        together = probe.attend(model, list(TEXTS), target=targets)
        for text, target, run in zip(TEXTS, targets, together, strict=True):
            assert run.text == text
            for key, weights in probe.attend(model, text, target=target).maps.items():
                assert weights.shape == run.maps[key].shape
                assert (weights - run.maps[key]).abs().max() < TOLERANCE

    def test_chosen_maps_and_an_early_stop(self, model: Model) -> None:
        whole = probe.attend(model, TEXTS[0], target=TEXTS[1])
        part = probe.attend(model, TEXTS[0], ["decoder", ("cross", 0, 1)], target=TEXTS[1])
        assert {key[0] for key in part.maps} == {"decoder", "cross"}
        assert len([key for key in part.maps if key[0] == "cross"]) == 1
        assert all(torch.equal(weights, whole.maps[key]) for key, weights in part.maps.items())

        calls: list[str] = []
        decoder: Any = model.hf.get_decoder()
        decoder.register_forward_pre_hook(lambda *_: calls.append("decoder"))
        probe.attend(model, TEXTS[0], ["encoder"], target=TEXTS[1])
        assert calls == []

    def test_a_target_as_long_as_its_positions(self, model: Model) -> None:
        if model.max_target_tokens is None:
            return
        # Of 64 positions the start token takes one; this tokenizer adds no token at the end.
        with pytest.raises(ProbeError, match=r"64 tokens.*at most 63"):
            probe.attend(model, "cat", target=" cat" * 64)
        run = probe.attend(model, " cat" * 70, target=" cat" * 80, truncate=True)
        assert run.target is not None and len(run.target) == 64 == run.weights(0, 0, "decoder").shape[0]
        assert run.truncated == (
            "Cut to the first 64 of 70 tokens, all that this model takes. "
            "The target: Cut to the first 63 of 80 tokens, all that this model takes."
        )

    def test_from_scratch(self, model: Model) -> None:
        run = probe.run_from_scratch(model, TEXTS[0], target=TEXTS[2])
        assert run.what == "logits"
        assert run.model.shape == (len(run.tokens), 4096)
        assert run.max_abs_error < TOLERANCE * run.model.abs().max()
        assert run.tokens == probe.attend(model, TEXTS[0], ["cross"], target=TEXTS[2]).labels("cross")[0]

    def test_errors(self, model: Model) -> None:
        for arguments, message in (
            ({}, "has an encoder and a decoder. Give what the decoder is to produce too: target="),
            ({"target": ["a", "b"]}, "one target for each text"),
            ({"target": ""}, "empty"),
            ({"target": "a", "heads": [(0, 0)]}, r"\(kind, layer, head\) triples"),
            ({"target": "a", "heads": [("cross", 2, 0)]}, "no layer 2 in the cross attention"),
            ({"target": "a", "heads": [("self", 0, 0)]}, "no 'self' attention .* encoder, decoder, cross"),
        ):
            with pytest.raises(ProbeError, match=message):
                probe.attend(model, TEXTS[0], **arguments)  # type: ignore[call-overload]
        run = probe.attend(model, TEXTS[0], target="a")
        with pytest.raises(ProbeError, match='say kind="encoder" or kind="decoder" or kind="cross"'):
            run.weights(0, 0)

    def test_other_models_take_no_target(self, gpt2: Model) -> None:
        with pytest.raises(ProbeError, match="takes no target"):
            probe.attend(gpt2, TEXTS[0], target="a")


class TestTensors:
    @pytest.mark.parametrize("name", ["vit", "clip (images)"])
    def test_an_image(self, name: str) -> None:
        model = of_family(name)
        family = next(one for one in families.FAMILIES if one.name == name)
        image = {"pixel_values": families.inputs_of(family, model.hf, "none")[0]["pixel_values"][:1]}
        run = probe.attend(model, image)
        assert run.tokens[0] == "[CLS]" and run.special[0] and not any(run.special[1:])
        assert run.tokens[1:6] == tuple(f"row {place // 4}, column {place % 4}" for place in range(5))
        assert len(run.tokens) == 1 + 4 * 4
        for (_, layer), expected in families.eager_maps(model.hf, image).items():
            for head in range(4):
                assert (run.weights(layer, head) - expected[0, head]).abs().max() < TOLERANCE

    def test_a_larger_image_with_its_flag(self) -> None:
        """The model was made for 16 x 16; its positions are interpolated, as the flag of its forward asks."""
        model = of_family("vit")
        pixels = torch.randn(1, 3, 24, 32, generator=torch.Generator().manual_seed(0))
        image = {"pixel_values": pixels, "interpolate_pos_encoding": True}
        run = probe.attend(model, image)
        assert run.tokens[-1] == "row 5, column 7" and len(run.tokens) == 1 + 6 * 8
        expected = families.eager_maps(model.hf, image)
        comparison = probe.compare(model, image)
        for (_, layer), maps in expected.items():
            for head in range(4):
                for weights in (run.weights(layer, head), comparison.from_scratch(layer, head)):
                    assert (weights - maps[0, head]).abs().max() < TOLERANCE
        assert probe.verify(model, image).passed

    def test_a_recording(self) -> None:
        family = next(one for one in families.FAMILIES if one.name == "whisper")
        model = probe.load(families.build(family))
        given = {key: value[:1] for key, value in families.inputs_of(family, model.hf, "none")[0].items()}
        run = probe.attend(model, given)
        assert run.tokens == tuple(f"frame {index}" for index in range(20))
        assert run.labels("cross") == (run.target.tokens if run.target else None, run.tokens)
        for (kind, layer), expected in families.eager_maps(model.hf, given).items():
            for head in range(expected.shape[1]):
                assert (run.weights(layer, head, kind) - expected[0, head]).abs().max() < TOLERANCE

    def test_errors(self, gpt2: Model) -> None:
        model = of_family("vit")
        with pytest.raises(ProbeError, match="takes no text"):
            probe.attend(model, "a cat")
        for given in (
            {},
            {"pixel_values": torch.zeros(2, 3, 16, 16)},
            {"pixel_values": [[0.0]]},
            {"pixel_values": torch.tensor(1.0)},
        ):
            with pytest.raises(ProbeError, match='"pixel_values" as a tensor of one item'):
                probe.attend(model, given)  # type: ignore[arg-type]
        with pytest.raises(ProbeError, match=r"can't be run on these tensors \(.*9\*9"):
            probe.attend(model, {"pixel_values": torch.zeros(1, 3, 9, 9)})
        with pytest.raises(ProbeError, match="heads is a list"):
            probe.attend(gpt2, "a cat", 3)  # type: ignore[call-overload]
        with pytest.raises(ProbeError, match="takes text: give the text itself"):
            probe.attend(gpt2, {"input_ids": torch.zeros(1, 3, dtype=torch.long)})


class TestCodeOfItsOwn:
    @pytest.mark.parametrize("name", ["mpnet", "deberta-v2", "gpt_neo", "bloom"])
    def test_the_models_own_maps(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(families, "VOCABULARY", 4096)
        model = of_family(name)
        runs = probe.attend(model, list(TEXTS))
        for text, run in zip(TEXTS, runs, strict=True):
            ids = torch.tensor([model.tokenizer(text)["input_ids"]])
            (_, watched) = families.own(model.hf, {"input_ids": ids})
            assert stacked(run).shape == (3, 4, len(run.tokens), len(run.tokens))
            for (_, layer), expected in watched.items():
                for head in range(4):
                    assert (run.weights(layer, head) - expected[0, head]).abs().max() < TOLERANCE
        assert not any(module._forward_hooks for module in model.hf.modules())
        with pytest.raises(ProbeError, match="code of its own"):
            probe.run_from_scratch(model, TEXTS[0])
