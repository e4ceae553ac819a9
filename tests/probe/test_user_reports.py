"""What people who extract and draw attention ran into elsewhere, and how it ends here, one by one."""

from __future__ import annotations

import json
import re
import shutil
import time
import unicodedata
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file
from texts import STORY, eager_maps
from torch import nn
from transformers import AutoModel, AutoTokenizer, ByT5Tokenizer

import probe
from probe import Model, ProbeError, Run

SENTENCE = "The cat sat on the mat because it was warm."
FAMILY = "a \U0001f468\u200d\U0001f469\u200d\U0001f467 b"


@pytest.fixture(params=["bert", "gpt2"])
def model(request: pytest.FixtureRequest) -> Model:
    chosen: Model = request.getfixturevalue(request.param)
    return chosen


def assert_as_eager(run: Run, maps: torch.Tensor, atol: float = 2e-5) -> None:
    """Every head's map is transformers' own; (layers, heads, T, T)."""
    layers, heads, length = maps.shape[:3]
    assert len(run.maps) == layers * heads
    assert len(run.tokens) == len(run.special) == length
    for layer, head in product(range(layers), range(heads)):
        torch.testing.assert_close(run.weights(layer, head), maps[layer, head], rtol=0, atol=atol)


def folder_of(model: Model) -> Path:
    assert model.folder is not None
    return model.folder


# --- maps, masks, arithmetic --------------------------------------------------------------------------------


def test_a01_maps_of_all_heads_on_the_default_backend(model: Model) -> None:
    assert model.hf.config._attn_implementation == "sdpa"
    assert_as_eager(probe.attend(model, SENTENCE), eager_maps(folder_of(model), SENTENCE))


def test_a02_no_weight_on_the_future(gpt2: Model) -> None:
    run = probe.attend(gpt2, SENTENCE)
    for layer, head in product(range(6), range(6)):
        assert not run.weights(layer, head).triu(1).any()
    report = probe.verify(gpt2, SENTENCE)
    assert report.passed
    assert all(head.forbidden_weight == 0.0 for head in report.heads)


def test_a03_weight_on_the_first_token_is_left_as_it_is(gpt2: Model) -> None:
    run, maps = probe.attend(gpt2, SENTENCE), eager_maps(folder_of(gpt2), SENTENCE)
    first = torch.zeros(len(run.tokens))
    first[0] = 1.0
    heavy = 0
    for layer, head in product(range(6), range(6)):
        weights = run.weights(layer, head)
        assert torch.equal(weights[0], first)
        torch.testing.assert_close(weights[:, 0], maps[layer, head, :, 0], rtol=0, atol=2e-6)
        heavy += float(weights[1:, 0].mean()) > 0.5
    assert heavy, "no head of this model rests on the first token: the test shows nothing"
    assert probe.verify(gpt2, SENTENCE).passed


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a04_a_network_left_in_training_mode(name: str, tiny_gpt2: Callable[..., Path]) -> None:
    model = probe.load(name)
    expected = probe.attend(model, SENTENCE)
    model.hf.train()
    first, second = probe.attend(model, SENTENCE), probe.attend(model, SENTENCE)
    assert probe.verify(model, SENTENCE).passed
    for layer, head in product(range(model.num_layers), range(model.num_heads)):
        weights = first.weights(layer, head)
        assert torch.equal(weights, second.weights(layer, head))
        assert torch.equal(weights, expected.weights(layer, head))
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(first.tokens)), rtol=0, atol=1e-5)
    assert all(module.training for module in model.hf.modules())


@pytest.mark.parametrize(
    "setting", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}]
)
def test_a05_scaling_that_is_switched_off_or_by_layer(
    tiny_gpt2: Callable[..., Path], setting: dict[str, bool]
) -> None:
    folder = tiny_gpt2(n_layer=4, **setting)
    model = probe.load(str(folder))
    run = probe.attend(model, SENTENCE)
    assert_as_eager(run, eager_maps(folder, SENTENCE))
    assert probe.verify(model, SENTENCE).passed
    # The same weights without the setting attend to other things: it counts.
    plain = probe.attend(probe.load(str(tiny_gpt2(n_layer=4))), SENTENCE)
    assert float((plain.weights(3, 0) - run.weights(3, 0)).abs().max()) > 0.01


def test_a09_padded_together_as_if_alone(model: Model) -> None:
    texts = ["Hi.", STORY, SENTENCE]
    report = probe.verify(model, texts)
    assert report.passed, report
    lengths = [len(model.tokenizer(text)["input_ids"]) for text in texts]
    assert list(report.num_tokens) == lengths and max(lengths) > 5 * min(lengths)
    assert all(head.worst.key < lengths[head.worst.text] for head in report.heads)
    runs = probe.attend(model, texts)
    for text, run, length in zip(texts, runs, lengths, strict=True):
        assert len(run.tokens) == length and not any("pad" in token.lower() for token in run.tokens)
        maps = eager_maps(folder_of(model), text)
        assert maps.shape[-1] == length
        assert_as_eager(run, maps)


def test_a15_rows_are_queries(bert: Model) -> None:
    run = probe.attend(bert, SENTENCE)
    weights = run.weights(2, 3)
    torch.testing.assert_close(weights.sum(1), torch.ones(len(run.tokens)), rtol=0, atol=1e-6)
    assert float((weights.sum(0) - 1).abs().max()) > 0.1
    table = str(run.only(2, 3))
    assert "query \\ key" in table and "each row sums to 1" in table


def test_a16_weight_on_sep_is_shown_and_marked(bert: Model) -> None:
    run, maps = probe.attend(bert, SENTENCE), eager_maps(folder_of(bert), SENTENCE)
    assert run.tokens[0] == "[CLS]" and run.tokens[-1] == "[SEP]"
    assert run.special == (True, *[False] * (len(run.tokens) - 2), True)
    heaviest = float(maps[:, :, :, -1].mean(-1).max())
    assert heaviest > 0.15, "no head rests on [SEP] here: the test shows nothing"
    for layer, head in product(range(6), range(12)):
        torch.testing.assert_close(
            run.weights(layer, head)[:, -1], maps[layer, head, :, -1], rtol=0, atol=2e-6
        )
    assert probe.verify(bert, SENTENCE).passed


def test_a19_five_heads_of_width_seven(tiny_gpt2: Callable[..., Path]) -> None:
    model = probe.load(str(tiny_gpt2(n_head=5, n_embd=35, n_layer=3)))
    assert (model.num_layers, model.num_heads, model.head_dim) == (3, 5, 7)
    report = probe.verify(model, SENTENCE)
    assert report.passed
    assert [(head.layer, head.head) for head in report.heads] == list(product(range(3), range(5)))
    rows = [line.split()[:2] for line in str(report).splitlines() if re.match(r" *\d+ +\d+ +\d", line)]
    assert rows == [[str(layer), str(head)] for layer, head in product(range(3), range(5))]
    assert len(probe.attend(model, SENTENCE).maps) == 15


def test_a21_no_such_layer_or_head(gpt2: Model) -> None:
    for layer, head, message in (
        (6, 0, r"no layer 6 .*6 layers, counted from 0 to 5"),
        (-7, 0, r"no layer -7 .*6 layers, counted from 0 to 5"),
        (-1, 0, r"no layer -1 .*counted from 0 to 5"),
        (0, 6, r"no head 6 .*6 heads in each layer, counted from 0 to 5"),
        (0, -1, r"no head -1 .*counted from 0 to 5"),
        (1.0, 0, r"no layer 1\.0 "),
        (True, 0, r"no layer True "),
    ):
        with pytest.raises(ProbeError, match=message):
            probe.compare_masks(gpt2, SENTENCE, layer, head)
        with pytest.raises(ProbeError, match=message):
            probe.attend(gpt2, SENTENCE, [(layer, head)])


# --- tokens -------------------------------------------------------------------------------------------------


def assert_covered(run: Run, text: str) -> None:
    """Spans lie inside the text and follow one another, and nothing that can be seen is left out."""
    assert run.spans is not None
    covered: set[int] = set()
    for start, end in run.spans:
        assert 0 <= start <= end <= len(text)
        covered.update(range(start, end))
    missing = [text[at] for at in range(len(text)) if at not in covered and not text[at].isspace()]
    assert not missing, missing
    starts = [start for start, end in run.spans if end > start]
    assert starts == sorted(starts)


def assert_readable(run: Run) -> None:
    for token in run.tokens:
        assert token and not any(symbol in token for symbol in "ĠĊĉ▁\ufffd"), token
        assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in token), token


def test_t01_no_byte_symbols(gpt2: Model) -> None:
    text = "The cat  sat\n on the mat"
    run = probe.attend(gpt2, text)
    assert_readable(run)
    assert len(run.tokens) == len(run.weights(0, 0))
    assert run.spans is not None
    assert "".join(text[start:end] for start, end in run.spans) == text


@pytest.mark.parametrize("text", [FAMILY, "\U0001f642\U0001f642 the trophy", "\U0001f1e9\U0001f1f0!"])
def test_t02_emoji(model: Model, text: str) -> None:
    run = probe.attend(model, text)
    assert_readable(run)
    assert_covered(run, text)
    assert_as_eager(run, eager_maps(folder_of(model), text))
    assert probe.verify(model, text).passed


@pytest.mark.parametrize("text", ["\u200b", "\x00", "\ufeff\u200b", ("a cat", "\u200b"), ("\x00", "a cat")])
def test_text_of_which_the_tokenizer_leaves_nothing(bert: Model, gpt2: Model, text: Any) -> None:
    # transformers gives [CLS] [SEP], and a map of two special tokens.
    assert bert.tokenizer("\u200b")["input_ids"] == [101, 102]
    for look in (probe.attend, probe.verify, probe.compare):
        with pytest.raises(
            ProbeError, match=r"finds no token in .* only characters that it drops: give at lea"
        ):
            look(bert, text)
    if isinstance(text, str):
        assert len(probe.attend(gpt2, text).tokens) == len(gpt2.tokenizer(text)["input_ids"])  # kept as bytes
    assert probe.attend(bert, "[MASK]").tokens == ("[CLS]", "[MASK]", "[SEP]")


@pytest.mark.parametrize("text", ["Café İstanbul naïve", unicodedata.normalize("NFD", "Café İstanbul naïve")])
def test_t04_accents_come_back_as_typed(model: Model, text: str) -> None:
    run = probe.attend(model, text)
    assert_covered(run, text)
    assert run.spans is not None
    words: dict[int, str] = {}
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    for start, end in run.spans:
        piece = text[start:end].strip()
        if piece:
            at = start + text[start:end].index(piece)
            word = max(index for index, begin in enumerate(starts) if begin <= at)
            # Tokens that share one character have the same span.
            if not words.get(word, "").endswith(piece) or len(piece) > 1:
                words[word] = words.get(word, "") + piece
    assert list(words.values()) == text.split()


def test_t06_segments_of_a_pair(bert: Model, tiny_roberta: Callable[..., Path]) -> None:
    pair = ("Who sat on the mat?", "The cat sat on the mat.")
    run = probe.attend(bert, pair)
    assert_as_eager(run, eager_maps(folder_of(bert), pair))
    assert probe.verify(bert, pair).passed
    assert run.tokens.count("[SEP]") == 2
    # With all segments 0 the maps would be others.
    inputs = bert.tokenizer(*pair, return_tensors="pt")
    network = AutoModel.from_pretrained(folder_of(bert), attn_implementation="eager")
    without = network(input_ids=inputs["input_ids"], output_attentions=True).attentions
    assert float((run.weights(5, 0) - without[5][0, 0].detach()).abs().max()) > 1e-3

    folder = tiny_roberta()
    roberta = probe.load(str(folder))
    for text in (SENTENCE, pair):
        assert_as_eager(probe.attend(roberta, text), eager_maps(folder, text))
        assert probe.verify(roberta, text).passed


def test_t06_no_pair_for_gpt2(gpt2: Model) -> None:
    with pytest.raises(ProbeError, match=r"takes one text, not a sentence pair"):
        probe.verify(gpt2, ("a", "b"))


def test_t07_no_padding_token(tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2()
    model = probe.load(str(folder))
    assert model.tokenizer.pad_token is None
    before = {**model.tokenizer.special_tokens_map}, len(model.tokenizer)
    report = probe.verify(model, ["Hi", SENTENCE])
    assert report.passed and report.num_tokens[0] < report.num_tokens[1]
    assert model.tokenizer.pad_token is None
    assert ({**model.tokenizer.special_tokens_map}, len(model.tokenizer)) == before


@pytest.mark.parametrize(
    ("text", "what"), [("", "is empty"), ("   ", "holds only spaces"), ("\n\t ", "holds only spaces")]
)
def test_t08_nothing_to_read(model: Model, text: str, what: str) -> None:
    for call in (
        lambda: probe.attend(model, text),
        lambda: probe.verify(model, text),
        lambda: probe.verify(model, [SENTENCE, text]),
        lambda: probe.compare_masks(model, text, 0, 0),
        lambda: probe.compare(model, text),
    ):
        with pytest.raises(ProbeError, match=f"text {what}: give at least one word"):
            call()


def test_t09_a_lone_surrogate(model: Model) -> None:
    with pytest.raises(ProbeError, match=r"not valid Unicode: character 1 is the lone surrogate U\+D800"):
        probe.verify(model, "x\ud800y")


def test_t10_control_characters(model: Model) -> None:
    text = "T\x10his \x0bis a\x1ftest \x00 end"
    run = probe.attend(model, text)
    assert_readable(run)
    assert run.spans is not None
    pieces = "".join(text[start:end] for start, end in run.spans)
    # BERT's tokenizer drops control characters, and may leave the one between two pieces of a word out.
    for word in ("his", "is", "a", "test", "end"):
        assert word in pieces
    assert probe.verify(model, text).passed


def test_t11_a_tokenizer_without_offsets(tiny_bert: Callable[..., Path]) -> None:
    hf = AutoModel.from_pretrained(tiny_bert())
    model = probe.load(hf, tokenizer=ByT5Tokenizer())
    run = probe.attend(model, "a café")
    assert run.spans is None
    assert len(run.tokens) == len(run.weights(0, 0)) == 8  # 7 bytes and the end token
    assert_readable(run)
    assert run.special == (*[False] * 7, True)
    assert probe.verify(model, "a café").passed


# --- limits -------------------------------------------------------------------------------------------------


def test_l01_more_tokens_than_positions(bert: Model, gpt2: Model, tiny_gpt2: Callable[..., Path]) -> None:
    tiny = probe.load(str(tiny_gpt2(n_positions=64)))
    text = STORY * 20
    for model, limit in ((bert, 512), (gpt2, 256), (tiny, 64)):
        assert model.max_tokens == limit
        full = len(model.tokenizer(text, verbose=False)["input_ids"])
        message = f"has {full:,} tokens, special tokens included; this model takes at most {limit}\\."
        for call in (probe.attend, probe.verify, probe.compare):
            with pytest.raises(ProbeError, match=message):
                call(model, text)
        with pytest.raises(ProbeError, match=f"Text 1 of 2: .*{message}"):
            probe.verify(model, ["Hi", text])
        run = probe.attend(model, text, [(0, 0)], truncate=True)
        assert len(run.tokens) == limit
        assert run.truncated == f"Cut to the first {limit} of {full:,} tokens, all that this model takes."
    report = probe.verify(tiny, ["Hi", text], truncate=True)
    assert report.passed and report.num_tokens[0] < 5 and report.num_tokens[1] == 64
    assert report.truncated[0] is None and "Cut to the first 64" in str(report.truncated[1])
    assert "Text 1: Cut to the first 64" in str(report)
    assert probe.attend(tiny, "Hi", truncate=True).truncated is None


def test_l01_what_is_left_of_a_pair_and_by_a_tokenizer_that_cuts_on_the_left(
    bert: Model, tiny_gpt2: Callable[..., Path]
) -> None:
    # 600 words each, [CLS] and two [SEP]; of both texts the ends are gone.
    run = probe.attend(bert, ("cat " * 600, "dog " * 600), [(0, 0)], truncate=True)
    assert run.tokens.count("cat") + run.tokens.count("dog") == 509 and run.tokens.count("cat") < 300
    assert run.truncated == "Cut to 512 of 1,203 tokens, all that this model takes."
    left = probe.load(str(tiny_gpt2(n_positions=64)))
    left.tokenizer.truncation_side = "left"
    run = probe.attend(left, "one" + " cat" * 100 + " end", [(0, 0)], truncate=True)
    assert run.tokens[0] != "one" and run.tokens[-1] == "end"
    assert run.truncated is not None and run.truncated.startswith("Cut to the last 64 of ")


@pytest.mark.parametrize(
    "text",
    [
        "a" * 10_000_000,
        "word " * 2_000_000,
        "a b " * 249_000,
        pytest.param("中" * 999_000, marks=pytest.mark.slow),
    ],
    ids=["one word", "words", "many tokens", "many pieces"],
)
def test_l02_huge_texts_end_soon(model: Model, text: str) -> None:
    start = time.process_time()
    with pytest.raises(ProbeError, match=r"Shorten it"):
        probe.attend(model, text)
    assert time.process_time() - start < 20
    assert probe.verify(model, "Still here.").passed


# --- loading ------------------------------------------------------------------------------------------------


def test_m02_a_shard_is_missing(tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2(save={"max_shard_size": "10KB"})
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) >= 5
    assert probe.verify(probe.load(str(folder)), SENTENCE).passed
    shards[1].unlink()
    with pytest.raises(ProbeError, match=rf"incomplete: {shards[1].name} is missing\. Copy or download"):
        probe.load(str(folder))
    shards[3].unlink()
    with pytest.raises(ProbeError, match=rf"{shards[1].name}, {shards[3].name} are missing"):
        probe.load(str(folder))


def test_m04_only_a_pickle(tmp_path: Path, tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2()
    hf = AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(hf.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ProbeError, match=r"pytorch_model\.bin, a pickle.*safetensors.*save_pretrained"):
        probe.load(str(folder))


@pytest.mark.parametrize(
    "name", ["./no/such/folder", "/no/such/folder", "~/no-such-folder", "no/such/folder/"]
)
def test_m05_a_folder_that_is_not_there(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(ProbeError, match=r"There is no folder"):
        probe.load(name)
    assert time.monotonic() - start < 2


def test_m06_an_adapter(tmp_path: Path, tiny_gpt2: Callable[..., Path]) -> None:
    shutil.copy(tiny_gpt2() / "model.safetensors", tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "gpt2"}')
    with pytest.raises(ProbeError, match=r"adapter.*merge it with its base model"):
        probe.load(str(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_bert"])
def test_m08_a_half_precision_checkpoint(
    name: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    model = probe.load(str(request.getfixturevalue(name)(dtype=dtype)))
    assert model.dtype == torch.float32
    assert all(parameter.dtype == torch.float32 for parameter in model.hf.parameters())
    report = probe.verify(model, SENTENCE)
    assert report.passed and report.dtype == "float32" and report.max_abs_error < 5e-6


def test_m12_objects_in_place_of_a_name(tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2()
    hf, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    expected = probe.attend(probe.load(str(folder)), SENTENCE)
    for network in (hf, nn.DataParallel(hf)):
        model = probe.load(network, tokenizer=tokenizer)
        assert model.source == "given as an object" and model.sha256 is None
        assert torch.equal(probe.attend(model, SENTENCE).weights(1, 2), expected.weights(1, 2))
        with pytest.raises(ProbeError, match=r"Give the tokenizer too"):
            probe.load(network)
    taken = r'"bert", "gpt2", a local folder or a Hub id'
    wrong: list[tuple[Any, str]] = [
        (None, "this is None"),
        (7, "of type int"),
        ("", "an empty string"),
        ([], "of type list"),
    ]
    for value, described in wrong:
        with pytest.raises(ProbeError, match=f"{taken}.*{described}"):
            probe.load(value)
    with pytest.raises(ProbeError, match=r"PreTrainedModel, not of type Linear"):
        probe.load(nn.Linear(2, 2), tokenizer=tokenizer)  # type: ignore[arg-type]


def test_m14_after_an_error_as_before(model: Model) -> None:
    def state() -> list[Any]:
        modules = list(model.hf.modules())
        return [
            model.hf.config._attn_implementation,
            [module.training for module in modules],
            [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules],
            torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(),
        ]

    first, before = probe.attend(model, SENTENCE), state()
    wrong: list[Callable[[], Any]] = [
        lambda: probe.attend(model, SENTENCE, [(0, 99)]),
        lambda: probe.attend(model, STORY * 50),
        lambda: probe.verify(model, [SENTENCE, "", SENTENCE]),
        lambda: probe.verify(model, [SENTENCE, STORY * 50]),
        lambda: probe.verify(model, []),
        lambda: probe.verify(model, 5),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(ProbeError):
            call()
    # An error in the middle of the run, from the network itself.
    handle = model.sites[2].attention.register_forward_pre_hook(lambda module, args: 1 / 0)
    for interrupted in (probe.attend, probe.verify, probe.compare):
        with pytest.raises(ZeroDivisionError):
            interrupted(model, SENTENCE)
    handle.remove()
    assert state() == before
    again = probe.attend(model, SENTENCE)
    for layer, head in product(range(model.num_layers), range(model.num_heads)):
        assert torch.equal(again.weights(layer, head), first.weights(layer, head))


@pytest.mark.parametrize("make", [pandas.Series, np.array, tuple], ids=["Series", "array", "object array"])
def test_r07_a_column_of_a_table_is_a_list_of_texts(bert: Model, make: Callable[[list[str]], Any]) -> None:
    texts = ["the cat sat", "a dog", "it rained all day"]
    column = np.array(texts, dtype=object) if make is tuple else make(texts)
    runs = probe.attend(bert, column)
    assert [run.text for run in runs] == texts
    for run, text in zip(runs, texts, strict=True):
        assert (run.weights(2, 5) - probe.attend(bert, text).weights(2, 5)).abs().max() < 1e-6
    report = probe.verify(bert, column)
    assert report.passed and list(report.texts) == texts
    with pytest.raises(ProbeError, match="an empty list"):
        probe.attend(bert, column[:0])
    with pytest.raises(ProbeError, match="Give a text or a list of texts; this is of type ndarray"):
        probe.attend(bert, np.array([["a", "b"]]))


def test_r31_a_pruned_checkpoint_is_called_so(tiny_bert: Callable[..., Path]) -> None:
    folder = tiny_bert()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pruned_heads": {"0": [1]}}))
    weights = load_file(folder / "model.safetensors")
    width = config["hidden_size"] // config["num_attention_heads"]
    for name in weights:
        if "layer.0.attention.self." in name:
            weights[name] = weights[name][width:].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ProbeError, match=r"were pruned \(pruned_heads in its config\.json\)"):
        probe.load(str(folder))
