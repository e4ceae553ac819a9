"""What verifying every head costs, against the model's own eager forward with ``output_attentions=True``.

Both run on the same loaded network, in turn, in one process, so that whatever else the machine does meanwhile
slows both alike; on one thread, as the models are small. Prints the median of each and the ratio of the
medians; at most 2 is wanted.

    python benchmarks/verify.py [--tokens 128] [--rounds 15] [--threads 1] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

import probe
from probe import Model

WORDS = (
    "one day a girl went to the park with her dog and they saw a big red ball near the old tree so she ran "
    "to it and the dog ran too but the ball was not there and she was sad until her mom said look up there "
)


def text_of(model: Model, tokens: int) -> str:
    """A text of exactly so many tokens, special tokens included."""
    words = (WORDS * (tokens // 40 + 1)).split()
    for count in range(1, len(words)):
        text = " ".join(words[:count])
        if len(model.tokenizer(text)["input_ids"]) == tokens:
            return text
    raise SystemExit(f"no start of the text has exactly {tokens} tokens for {model.name}")


def models(device: str) -> list[tuple[str, Model]]:
    """The two bundled models, and two of the size of the smallest BERT and GPT-2, with random weights."""
    bert, gpt2 = probe.load("all-MiniLM-L6-v2", device=device), probe.load("gpt2-stories", device=device)
    torch.manual_seed(0)
    large_bert = BertModel(BertConfig(vocab_size=30_522)).to(device).eval()
    large_gpt2 = GPT2Model(GPT2Config(vocab_size=4_096, bos_token_id=0, eos_token_id=0)).to(device).eval()
    return [
        (bert.name, bert),
        (gpt2.name, gpt2),
        ("random BERT, 12 x 12 heads, width 768", probe.load(large_bert, tokenizer=bert.tokenizer)),
        ("random GPT-2, 12 x 12 heads, width 768", probe.load(large_gpt2, tokenizer=gpt2.tokenizer)),
    ]


def timed(call: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def compare(model: Model, tokens: int, rounds: int) -> tuple[float, float]:
    """Median seconds of the eager forward and of ``verify``, alternating."""
    text = text_of(model, tokens)
    network = model.hf
    backend = network.config._attn_implementation
    inputs = model.tokenizer(text, return_tensors="pt").to(model.device)

    def forward() -> None:
        with torch.no_grad():
            assert len(network(**inputs, output_attentions=True).attentions) == model.num_layers

    def verify() -> None:
        report = probe.verify(model, text)
        assert report.passed, report.verdict
        assert report.num_tokens == (tokens,)

    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 2):
        # The backend is switched outside the clock: verify is timed on the model as it was loaded.
        model.hf.set_attn_implementation("eager")
        first = timed(forward, model.device)
        model.hf.set_attn_implementation(backend)
        second = timed(verify, model.device)
        if turn >= 2:  # the first rounds warm up
            seconds[0].append(first)
            seconds[1].append(second)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = f"{arguments.threads} threads, {arguments.device}, torch {torch.__version__}"
    print(f"{arguments.tokens} tokens, {where}")
    for name, model in models(arguments.device):
        forward, verify = compare(model, arguments.tokens, arguments.rounds)
        print(
            f"{name:40} eager forward {forward * 1e3:8.1f} ms   verify {verify * 1e3:8.1f} ms   "
            f"ratio {verify / forward:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
