"""Measure a small GPT-2: loss and bits per character on given text, previous-token score, induction score.

Everything is computed by transformers' own model in float32 with its eager attention, from the files of one
checkpoint folder, so that two checkpoints (also with different tokenizers) can be compared on the same bytes.

Loss and bits per character
    A text is encoded whole, with ``<|endoftext|>`` in front. A window of as many tokens as the model has
    positions moves over it by half its length; each token is scored once, in the first window that holds it,
    so that all but the first window's tokens are predicted from at least half a window of context. Bits per
    character are the summed loss in nats, divided by ln 2 and by the number of characters (code points).
Previous-token score
    For each head, the mean attention weight from position t to position t - 1, over all t >= 1 of consecutive
    rows of text. 1 is a head that looks at nothing but the token before.
Induction score
    Rows of a random chunk, half a window long, twice [1]_. For each head, the mean weight from a position
    of the second half to the position after the earlier occurrence of its token. The repeat loss is the mean
    loss in nats on the tokens of the second half but its first.

References
----------
.. [1] C. Olsson et al., "In-context Learning and Induction Heads", Transformer Circuits Thread, 2022.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, GPT2Tokenizer


def load(folder: Path) -> tuple[GPT2LMHeadModel, GPT2Tokenizer]:
    """Model (float32, eager attention, evaluation mode) and tokenizer of a checkpoint folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def encode(tokenizer: GPT2Tokenizer, text: str) -> torch.Tensor:
    """Token ids of ``text`` after one ``<|endoftext|>``, shape (tokens + 1,)."""
    return torch.tensor([tokenizer.eos_token_id, *tokenizer(text, verbose=False)["input_ids"]])


@torch.no_grad()
def text_loss(model: GPT2LMHeadModel, ids: torch.Tensor) -> float:
    """Summed loss in nats over ``ids[1:]``; ``ids`` is (tokens + 1,). The window moves by half its length."""
    length = model.config.n_positions
    total = 0.0
    scored = 1
    for start in tqdm(range(0, max(1, len(ids) - length // 2), length // 2), desc="windows", leave=False):
        window = ids[start : start + length]
        log_probabilities = model(window[None]).logits[0, :-1].log_softmax(-1)
        losses = -log_probabilities.gather(-1, window[1:, None])[:, 0]
        total += float(losses[scored - start - 1 :].double().sum())
        scored = start + len(window)
    return total


def rows_of_text(ids: torch.Tensor, length: int, limit: int) -> torch.Tensor:
    """At most ``limit`` rows of ``length`` consecutive tokens, spread evenly over ``ids``; (rows, length)."""
    rows = ids[: len(ids) // length * length].view(-1, length)
    if len(rows) == 0:
        raise SystemExit(f"the text is shorter than one window of {length} tokens")
    return rows[torch.linspace(0, len(rows) - 1, min(limit, len(rows))).long()]


@torch.no_grad()
def previous_token_scores(model: GPT2LMHeadModel, rows: torch.Tensor) -> torch.Tensor:
    """Mean weight on the previous token, shape (layers, heads), over ``rows`` (rows, length)."""
    scores = torch.zeros(model.config.n_layer, model.config.n_head, dtype=torch.float64)
    for row in rows:
        attentions = model(row[None], output_attentions=True).attentions
        scores += torch.stack([weights[0].diagonal(-1, -2, -1).double().mean(-1) for weights in attentions])
    return scores / len(rows)


@torch.no_grad()
def induction_scores(model: GPT2LMHeadModel, count: int, seed: int) -> tuple[torch.Tensor, float]:
    """Mean weight on the token after the earlier occurrence, (layers, heads), and the repeat loss in nats."""
    half = model.config.n_positions // 2
    chunks = torch.randint(
        1, model.config.vocab_size, (count, half), generator=torch.Generator().manual_seed(seed)
    )
    scores = torch.zeros(model.config.n_layer, model.config.n_head, dtype=torch.float64)
    loss = 0.0
    for chunk in chunks:
        row = torch.cat([chunk, chunk])
        output = model(row[None], output_attentions=True)
        # Query half + i holds the token of position i; the token that followed it then is at i + 1.
        on_next = [weights[0].diagonal(1 - half, -2, -1)[..., 1:] for weights in output.attentions]
        scores += torch.stack([weights.double().mean(-1) for weights in on_next])
        loss += float(F.cross_entropy(output.logits[0, half:-1], row[half + 1 :]))
    return scores / count, loss / count


def best_head(scores: torch.Tensor) -> dict[str, float | int]:
    """Layer, head and score of the largest entry of ``scores`` (layers, heads)."""
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    return {"layer": layer, "head": head, "score": round(float(scores[layer, head]), 4)}


def measure_text(
    model: GPT2LMHeadModel, tokenizer: GPT2Tokenizer, texts: list[str]
) -> dict[str, float | int]:
    """Loss in nats per token and bits per character over all ``texts`` together."""
    nats = 0.0
    tokens = 0
    for text in texts:
        ids = encode(tokenizer, text)
        nats += text_loss(model, ids)
        tokens += len(ids) - 1
    characters = sum(len(text) for text in texts)
    return {
        "characters": characters,
        "tokens": tokens,
        "nats_per_token": round(nats / tokens, 4),
        "bits_per_character": round(nats / math.log(2) / characters, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Loss, bits per character and head scores of a small GPT-2, as JSON.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "checkpoint", type=Path, help="folder with model.safetensors, config.json and the tokenizer"
    )
    parser.add_argument(
        "--text", type=Path, action="append", default=[], help="a text file to score; may be repeated"
    )
    parser.add_argument(
        "--corpus", type=Path, help="folder of the training books, to score the part held out of each"
    )
    parser.add_argument(
        "--held-out", type=float, default=0.02, help="last part of each book of --corpus to score"
    )
    parser.add_argument(
        "--rows", type=int, default=64, help="rows of text for the previous-token score, at most"
    )
    parser.add_argument("--repeats", type=int, default=32, help="rows for the induction score")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random chunks")
    parser.add_argument("--scores", action="store_true", help="add the scores of all heads")
    parser.add_argument("--continue", dest="prompt", help="add a sampled continuation of this text")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.checkpoint)

    weights = args.checkpoint / "model.safetensors"
    report: dict[str, object] = {"sha256": hashlib.sha256(weights.read_bytes()).hexdigest()}
    texts = {path.name: [path.read_text(encoding="utf-8")] for path in args.text}
    if args.corpus:
        books = [path.read_text(encoding="utf-8") for path in sorted(args.corpus.glob("*.txt"))]
        texts["held out of the corpus"] = [
            book[len(book) - round(len(book) * args.held_out) :] for book in books
        ]
    for name, parts in texts.items():
        report[name] = measure_text(model, tokenizer, parts)
        ids = torch.cat([encode(tokenizer, part) for part in parts])
        previous = previous_token_scores(model, rows_of_text(ids, model.config.n_positions, args.rows))
        report[f"previous token, {name}"] = best_head(previous)
        if args.scores:
            report[f"previous token, all heads, {name}"] = previous.round(decimals=3).tolist()
    induction, repeat_loss = induction_scores(model, args.repeats, args.seed)
    report["induction"] = best_head(induction) | {"repeat_loss": round(repeat_loss, 5)}
    if args.scores:
        report["induction, all heads"] = induction.round(decimals=3).tolist()
    if args.prompt is not None:
        torch.manual_seed(args.seed)
        prompt = tokenizer(args.prompt, return_tensors="pt")
        ids = model.generate(
            **prompt,
            max_new_tokens=120,
            do_sample=True,
            top_p=0.9,
            temperature=0.8,
            pad_token_id=tokenizer.eos_token_id,
        )
        report["continuation"] = tokenizer.decode(ids[0])
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
