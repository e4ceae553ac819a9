"""What capturing attention costs, against the plain forward pass and eager's ``output_attentions=True``.

One network of the size of the smallest GPT-2 (12 layers of 12 heads, width 768), with 2,048 positions and
random weights. Each case has a fresh process: what another case leaves to the allocator changes what this
one costs, eager's by a third. Memory is what the process needs at its peak beyond what it had before the
first call. Time is the median of the calls after that; on a CPU it is the processor's, which depends less on
what else the machine does.

    python benchmarks/capture.py [--tokens 128 512 1024 2048] [--threads 1] [--device cpu]
    python benchmarks/capture.py --peers PYTHON

``PYTHON`` is that of another environment, in which TransformerLens or attnread are installed; they are timed
there in turn, in one process, beside the same network's plain and eager forward pass, because each asks for
versions of its own of torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

LAYERS, HEADS = 12, 12
TOKENIZER = Path(__file__).resolve().parent.parent / "probe" / "bundled" / "gpt2-stories"
WORDS = "one day a girl went to the park with her dog and they saw a big red ball near the old tree and "
ROUNDS = {128: 9, 512: 5, 1024: 3, 2048: 3}

Case = Callable[[], Any]
PLAIN, EAGER = "plain sdpa forward", "eager, output_attentions=True"
CAPTURED = {
    "one head": [(LAYERS - 1, 5)],
    "six heads in three layers": [(layer, head) for layer in (3, 7, LAYERS - 1) for head in (2, 9)],
    "all heads": None,
    "one head, stopping at half depth": [(LAYERS // 2 - 1, 5)],
}


def network(device: str) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=4_096, n_positions=2_048, bos_token_id=0, eos_token_id=0)
    hf = GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # queries and keys large enough that rows aren't all nearly uniform
        for block in hf.transformer.h:
            block.attn.c_attn.weight[:, : 2 * 768] *= 3.0
    return hf.to(device)


def text_of(tokens: int) -> str:
    """A text of exactly so many tokens."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER, model_max_length=4_096)
    text = WORDS * (tokens // 15 + 1)
    spans = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    text = text[: spans[tokens - 1][1]]
    assert len(tokenizer(text)["input_ids"]) == tokens
    return text


def cases(hf: GPT2LMHeadModel, tokens: int) -> dict[str, Case]:
    """What is measured: the network's own two ways, and ``attend``."""
    import probe

    text = text_of(tokens)
    model = probe.load(hf, tokenizer=AutoTokenizer.from_pretrained(TOKENIZER))
    inputs = model.tokenizer(text, return_tensors="pt").to(hf.device)
    own = own_cases(hf.transformer, inputs)
    captured = {name: partial(probe.attend, model, text, heads) for name, heads in CAPTURED.items()}
    return {PLAIN: own[PLAIN], **captured, EAGER: own[EAGER]}


def own_cases(network: Any, inputs: Any) -> dict[str, Case]:
    def forward(**more: Any) -> Any:
        with torch.no_grad():
            return network(**inputs, use_cache=False, **more)

    return {PLAIN: forward, EAGER: partial(forward, output_attentions=True)}


def peer_cases(hf: GPT2LMHeadModel, tokens: int) -> dict[str, Case]:
    """The two libraries, each keeping one head and all of them, as far as it has a way to."""
    inputs = AutoTokenizer.from_pretrained(TOKENIZER)(text_of(tokens), return_tensors="pt").to(hf.device)
    found = own_cases(hf, inputs)
    try:
        from attnread import extract_attention
    except ImportError:
        pass
    else:
        found["attnread, one head"] = partial(extract_attention, hf, inputs, heads=CAPTURED["one head"])
        found["attnread, all heads"] = partial(extract_attention, hf, inputs)
    try:
        from transformer_lens import TransformerBridge
    except ImportError:
        pass
    else:
        eager = network(str(hf.device))
        eager.set_attn_implementation("eager")
        bridge = TransformerBridge.boot_transformers(
            "gpt2", hf_model=eager, tokenizer=AutoTokenizer.from_pretrained(TOKENIZER), device=hf.device
        )
        every = [f"blocks.{layer}.attn.hook_pattern" for layer in range(LAYERS)]

        def cached(names: list[str]) -> Any:
            with torch.no_grad():
                _, cache = bridge.run_with_cache(inputs["input_ids"], names_filter=names, return_type=None)
            assert [tuple(cache[name].shape[1:]) for name in names] == [(HEADS, tokens, tokens)] * len(names)
            return cache

        found["TransformerLens, one layer"] = partial(cached, every[-1:])
        found["TransformerLens, all layers"] = partial(cached, every)
    return found


def run(hf: GPT2LMHeadModel, name: str, case: Case) -> float:
    """Seconds that a case takes; the backend it needs is set outside the clock."""
    hf.set_attn_implementation("eager" if name == EAGER else "sdpa")
    clock = time.process_time if hf.device.type == "cpu" else time.perf_counter
    start = clock()
    result = case()
    if hf.device.type == "cuda":
        torch.cuda.synchronize(hf.device)
    seconds = clock() - start
    del result
    return seconds


def seconds_of(hf: GPT2LMHeadModel, found: dict[str, Case], rounds: int) -> dict[str, float]:
    """The median seconds of each case, all taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(rounds):
        names = list(found) if turn % 2 == 0 else list(reversed(found))
        for name in names:
            taken[name].append(run(hf, name, found[name]))
    return {name: statistics.median(values) for name, values in taken.items()}


def check(hf: GPT2LMHeadModel, found: dict[str, Case]) -> float:
    """The largest difference of a captured weight from eager's; refused if it is more than 1e-5."""
    captured = found["all heads"]()
    hf.set_attn_implementation("eager")
    expected = found[EAGER]().attentions
    hf.set_attn_implementation("sdpa")
    worst = max(
        float((captured.weights(layer, head) - expected[layer][0, head].cpu()).abs().max())
        for layer in range(LAYERS)
        for head in range(HEADS)
    )
    assert worst <= 1e-5, f"captured weights differ by {worst:.1e}"
    return worst


def alone(name: str, tokens: int, rounds: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Seconds and megabytes of one case in a process of its own."""
    command = [sys.executable, __file__, "--only", name, "--tokens", str(tokens), "--rounds", str(rounds)]
    command += ["--threads", str(arguments.threads), "--device", arguments.device]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, megabytes


def only(name: str, tokens: int, rounds: int, device: str) -> tuple[float, float]:
    """``alone``, inside that process."""
    hf = network(device)
    run(hf, name, cases(hf, 16)[name])  # what is imported and set up once is no cost of a call
    case = cases(hf, tokens)[name]
    hf.set_attn_implementation("eager" if name == EAGER else "sdpa")
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = case()
        peak = torch.cuda.max_memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before = status("VmRSS")
        result = case()
        peak = status("VmHWM")
    del result
    return statistics.median(run(hf, name, case) for _ in range(rounds)), (peak - before) / 1e6


def status(field: str) -> int:
    """A number of bytes from what Linux says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def measure(arguments: argparse.Namespace) -> list[tuple[str, ...]]:
    hf = network(arguments.device)
    make = peer_cases if arguments.peer else cases
    rows: list[tuple[str, ...]] = [("Tokens", "Case", "Seconds", "of plain", "of eager", "MB", "of eager")]
    for tokens in arguments.tokens:
        found, rounds = make(hf, tokens), arguments.rounds or ROUNDS.get(tokens, 3)
        if arguments.peer:
            seconds, memory = seconds_of(hf, found, rounds), {}
        else:
            print(f"{tokens} tokens: captured weights differ by {check(hf, found):.1e}", file=sys.stderr)
            measured = {name: alone(name, tokens, rounds, arguments) for name in found}
            seconds, memory = ({name: pair[i] for name, pair in measured.items()} for i in (0, 1))
        for name, taken in seconds.items():
            row = [f"{tokens:,}", name, f"{taken:.3f}"]
            row += [f"{taken / seconds[reference]:.2f}" for reference in (PLAIN, EAGER)]
            row += [f"{memory[name]:.0f}", f"{memory[name] / memory[EAGER]:.2f}"] if memory else ["", ""]
            rows.append(tuple(row))
            print(*row, sep="  ", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=sorted(ROUNDS))
    parser.add_argument("--rounds", type=int, help="instead of 9, 5, 3 and 3")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--peers", metavar="PYTHON", help="time other libraries, in this Python's environment"
    )
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.only:
        print(json.dumps(only(arguments.only, arguments.tokens[0], arguments.rounds, arguments.device)))
        return
    if arguments.peers:
        options = [option for option in sys.argv[1:] if option not in ("--peers", arguments.peers)]
        os.execv(arguments.peers, [arguments.peers, __file__, "--peer", *options])
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.threads} threads", file=sys.stderr)
    print(table(measure(arguments)))


if __name__ == "__main__":
    main()
