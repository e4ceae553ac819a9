"""The bundled GPT-2 is the model that its card describes.

Loss and attention come from transformers, not from the script that the card's numbers were made with. The
sample is the end of chapter 4 and the beginning of chapter 5 of E. Nesbit's "The Story of the Amulet" (1906,
public domain), a book that the model was not trained on.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, GPT2Tokenizer

import probe

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "probe" / "bundled" / "gpt2-stories"
SAMPLE = ROOT / "tests" / "data" / "the-story-of-the-amulet.txt"
LIMIT = 10_000_000
LENGTH = 256


def card_number(label: str) -> float:
    """The number in the card's table row that begins with ``label``."""
    row = re.search(rf"^\| {re.escape(label)}[^|]*\| ([\d.]+)", card_text(), re.MULTILINE)
    assert row is not None, f"the card has no row {label!r}"
    return float(row[1])


def card_head(label: str) -> tuple[int, int]:
    """Layer and head that the card's table row names."""
    row = re.search(rf"^\| {re.escape(label)}[^\n]*?layer (\d+), head (\d+)", card_text(), re.MULTILINE)
    assert row is not None, f"the card names no head in its row {label!r}"
    return int(row[1]), int(row[2])


def card_text() -> str:
    return (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    loaded = AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return loaded.eval()


@pytest.fixture(scope="module")
def tokenizer() -> GPT2Tokenizer:
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@pytest.fixture(scope="module")
def sample(tokenizer: GPT2Tokenizer) -> torch.Tensor:
    """Token ids of the sample after one <|endoftext|>, shape (1, tokens + 1)."""
    text = SAMPLE.read_text(encoding="utf-8")
    return torch.tensor([[0, *tokenizer(text, verbose=False)["input_ids"]]])


@pytest.fixture(scope="module")
def said_twice() -> torch.Tensor:
    """Eight random chunks of half a window, each said twice, shape (8, 256)."""
    chunks = torch.randint(1, 4096, (8, LENGTH // 2), generator=torch.Generator().manual_seed(20))
    return torch.cat([chunks, chunks], dim=1)


def on_earlier_successor(weights: torch.Tensor) -> float:
    """Mean weight from query 128 + i on key i + 1; ``weights`` is (rows, 256, 256)."""
    queries = torch.arange(LENGTH // 2, LENGTH)
    return float(weights[:, queries, queries - LENGTH // 2 + 1].mean())


def test_weights_are_the_ones_the_card_was_written_for() -> None:
    digest = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert digest in card_text()


def test_every_file_is_small() -> None:
    assert {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.stat().st_size >= LIMIT} == {}


def test_config_is_transformers_own(model: GPT2LMHeadModel) -> None:
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert type(model) is GPT2LMHeadModel
    assert (config["n_layer"], config["n_head"], config["n_embd"]) == (6, 6, 192)
    assert (config["n_positions"], config["vocab_size"], config["dtype"]) == (256, 4096, "float16")
    assert config["tie_word_embeddings"] is True
    # 4096 and 256 embeddings; in a block two norms and four matrices with biases; one norm at the end.
    block = 2 * 2 * 192 + (192 * 576 + 576) + (192 * 192 + 192) + (192 * 768 + 768) + (768 * 192 + 192)
    assert model.num_parameters() == (4096 + 256) * 192 + 6 * block + 2 * 192


def test_loss_on_the_sample(model: GPT2LMHeadModel, sample: torch.Tensor) -> None:
    nats = 0.0
    for start in range(0, sample.shape[1] - LENGTH // 2, LENGTH // 2):
        window = sample[:, start : start + LENGTH]
        labels = window.clone()
        if start:
            labels[:, : LENGTH // 2] = -100
        with torch.no_grad():
            loss = model(input_ids=window, labels=labels).loss
        nats += float(loss) * int((labels[:, 1:] != -100).sum())
    bits = nats / math.log(2) / len(SAMPLE.read_text(encoding="utf-8"))
    # The card gives four decimals; other CPUs and matrix kernels move float32 sums in the sixth.
    assert bits == pytest.approx(card_number("Bits per character, sample in the tests"), abs=2e-4)


def test_previous_token_head(model: GPT2LMHeadModel, sample: torch.Tensor) -> None:
    layer, head = card_head("Previous-token head")
    rows = sample[0, : sample.shape[1] // LENGTH * LENGTH].view(-1, LENGTH)
    with torch.no_grad():
        weights = model(rows, output_attentions=True).attentions[layer][:, head]
    queries = torch.arange(1, LENGTH)
    assert float(weights[:, queries, queries - 1].mean()) >= 0.7


def test_induction_head(model: GPT2LMHeadModel, said_twice: torch.Tensor) -> None:
    layer, head = card_head("Induction head")
    labels = said_twice.clone()
    labels[:, : LENGTH // 2 + 1] = -100
    with torch.no_grad():
        output = model(said_twice, labels=labels, output_attentions=True)
    assert on_earlier_successor(output.attentions[layer][:, head]) >= 0.9
    assert float(output.loss) < 0.1


def test_induction_head_needs_the_repetition(model: GPT2LMHeadModel, said_twice: torch.Tensor) -> None:
    layer, head = card_head("Induction head")
    # Each second half from another row: the same tokens, but nothing is said twice.
    rows = torch.cat([said_twice[:, : LENGTH // 2], said_twice[:, LENGTH // 2 :].roll(1, 0)], dim=1)
    labels = rows.clone()
    labels[:, : LENGTH // 2 + 1] = -100
    with torch.no_grad():
        output = model(rows, labels=labels, output_attentions=True)
    assert on_earlier_successor(output.attentions[layer][:, head]) < 0.05
    # Guessing evenly among 4,096 tokens costs ln 4096 = 8.3 nats; a model of English loses more here.
    assert float(output.loss) > math.log(4096)


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, there wasn't a dragon.",
        "  two  spaces ,\tand\r\nlines \n\n . ! ?",
        "e\u0301 is not \u00e9, \u212b is not \u00c5",
        "\u05e9\u05dc\u05d5\u05dd, \u0645\u0631\u062d\u0628\u0627, \u4f60\u597d, \u0928\u092e\u0938\u094d",
        "\U0001f469\u200d\U0001f4bb \U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "\x00\x01\x7f\ufeff\ufffd\U0010ffff",
        "do n't <|endoftext|> stop",
    ],
)
def test_every_string_comes_back(tokenizer: GPT2Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_code_point_comes_back(tokenizer: GPT2Tokenizer) -> None:
    every_eleventh = [chr(code) for code in range(0, 0x110000, 11) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(every_eleventh), 5000):
        text = "".join(every_eleventh[start : start + 5000])
        assert tokenizer.decode(tokenizer(text, verbose=False)["input_ids"]) == text


def test_tokenizer_knows_its_length_and_its_end(tokenizer: GPT2Tokenizer) -> None:
    assert tokenizer.model_max_length == LENGTH
    assert len(tokenizer) == 4096
    assert tokenizer.eos_token_id == 0
    assert tokenizer("<|endoftext|>")["input_ids"] == [0]


def test_writes_words(model: GPT2LMHeadModel, tokenizer: GPT2Tokenizer) -> None:
    prompt = tokenizer("Once upon a time", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=40, do_sample=False, pad_token_id=0)
    words = re.findall(r"[a-z]+", tokenizer.decode(ids[0, 4:]).lower())
    seen = set(re.findall(r"[a-z]+", SAMPLE.read_text(encoding="utf-8").lower()))
    assert len(words) > 20
    assert sum(word in seen for word in words) > len(words) / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_computes_the_attention_that_is_written_out(dtype: torch.dtype) -> None:
    report = probe.verify(probe.load("gpt2", dtype=dtype), "Once upon a time there was a little girl.")
    assert report.passed, report.verdict
