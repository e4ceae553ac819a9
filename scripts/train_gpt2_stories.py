"""Train a small GPT-2 on a folder of stories, from text files to a finished checkpoint.

The model is transformers' own ``GPT2LMHeadModel`` (6 layers x 6 heads, width 192, 256 positions) over a
byte-level BPE of 4,096 entries that this script trains first. What the recipe does, and why:

* Muon [1]_ updates the matrices inside the blocks, AdamW [2]_ the embeddings, norms and biases. With AdamW
  alone no induction head [3]_ forms in the few million tokens that two CPU cores get through.
* Part of the rows repeat one chunk until the row is full. Copying is the only way to lower the loss there, so
  these rows are what previous-token and induction heads form on. Once the copy is learnt, most of those rows
  go back to the stories.
* A row never holds tokens of two books: books begin and end with ``<|endoftext|>``, and rows are cut inside a
  book.
* The learning rate is a function of the time used: warm-up, constant, then linear to zero. The end can be
  moved by resuming with another ``--minutes`` while the rate is still constant.
* The batch is a queue of small pieces that single-threaded workers take from, so that a core busy with
  something else slows the step in proportion and no more.

Stop it with SIGINT or SIGTERM (it saves first) and run the same command again to go on.

References
----------
.. [1] K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
.. [2] I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
.. [3] C. Olsson et al., "In-context Learning and Induction Heads", Transformer Circuits Thread, 2022.
.. [4] Y. Gal and Z. Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural
   Networks", NeurIPS 2016.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

END_OF_TEXT = "<|endoftext|>"
IGNORED = -100
STEP_TIME_CAP = 10.0


@dataclass(frozen=True)
class Book:
    """One book as token ids, each part framed by ``<|endoftext|>`` where the book itself begins or ends."""

    name: str
    train: np.ndarray
    held_out: np.ndarray


class RowDropout(torch.nn.Module):
    """Dropout with one mask per row and channel, shared by all positions of the row [4]_; (B, T, C) to same.

    A mask per element would cost a quarter of the step in random numbers.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * F.dropout(torch.ones_like(hidden[:, :1]), self.probability, self.training)


def train_tokenizer(texts: Sequence[str], vocab_size: int, max_tokens: int) -> GPT2Tokenizer:
    """Byte-level BPE over ``texts``: all 256 bytes are entries, so every Unicode string can be encoded."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    learnt = json.loads(bpe.to_str())["model"]
    return GPT2Tokenizer(
        vocab=learnt["vocab"],
        merges=[tuple(pair) for pair in learnt["merges"]],
        unk_token=END_OF_TEXT,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
    )


def split_text(text: str, held_out: float) -> tuple[str, str]:
    """``text`` cut into its first part and its last ``held_out`` (a fraction of the characters)."""
    cut = len(text) - round(len(text) * held_out)
    return text[:cut], text[cut:]


def read_books(folder: Path) -> dict[str, str]:
    """Name and text of every ``*.txt`` file in ``folder``, sorted by name."""
    books = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}
    if not books:
        raise SystemExit(f"no .txt files in {folder}: give --text a folder with one plain-text file per book")
    return books


def encode_books(books: dict[str, str], tokenizer: GPT2Tokenizer, held_out: float) -> list[Book]:
    """Token ids of both parts of every book."""
    end = tokenizer.eos_token_id
    encoded = []
    for name, text in books.items():
        first, last = (tokenizer(part, verbose=False)["input_ids"] for part in split_text(text, held_out))
        encoded.append(
            Book(name, np.array([end, *first], dtype=np.int64), np.array([*last, end], dtype=np.int64))
        )
    return encoded


def rows_of_epoch(books: Sequence[Book], length: int, seed: int, epoch: int) -> np.ndarray:
    """All rows of one pass over the books, shuffled, (rows, length + 1); each pass cuts them elsewhere."""
    rng = np.random.default_rng((seed, 1, epoch))
    rows = []
    for book in books:
        starts = list(range(int(rng.integers(length)), len(book.train) - length - 1, length))
        starts += [0, len(book.train) - length - 1]
        rows += [book.train[start : start + length + 1] for start in starts]
    stacked = np.stack(rows)
    return stacked[rng.permutation(len(stacked))]


def story_rows(
    books: Sequence[Book], length: int, seed: int, position: tuple[int, int]
) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Rows without end from ``position`` (epoch, row) on, each with the position that follows it."""
    epoch, first = position
    while True:
        rows = rows_of_epoch(books, length, seed, epoch)
        for index in range(first, len(rows)):
            yield rows[index], (epoch, index + 1)
        epoch, first = epoch + 1, 0


def repeat_row(
    tokens: np.ndarray, length: int, vocab_size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A chunk of 8 to length / 2 tokens, repeated over a row: random in five cases of eight, else ``tokens``.

    Returns the row, shape (length + 1,), and its labels, shape (length,). The first occurrence of a random
    chunk has no labels: it cannot be predicted, so its gradient would be noise.
    """
    size = int(rng.integers(8, length // 2 + 1))
    is_random = rng.random() < 5 / 8
    chunk = rng.integers(1, vocab_size, size) if is_random else tokens[:size]
    row = np.tile(chunk, length // size + 2)[: length + 1]
    labels = row[1:].copy()
    if is_random:
        labels[: size - 1] = IGNORED
    return row, labels


def learning_rate_factor(progress: float, warmup: float, decay: float) -> float:
    """Warm-up from 0 to 1, constant 1, linear to 0; all three arguments are fractions of the budget."""
    if progress < warmup:
        return progress / warmup
    return min(1.0, max(0.0, 1.0 - progress) / decay)


def make_optimizers(model: GPT2LMHeadModel, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """One Muon per block for its matrices (so that workers share the steps) and one AdamW for the rest."""
    optimizers: list[torch.optim.Optimizer] = []
    taken = set()
    for block in model.transformer.h:
        matrices = [parameter for parameter in block.parameters() if parameter.ndim == 2]
        taken.update(id(parameter) for parameter in matrices)
        optimizers.append(
            torch.optim.Muon(
                matrices, lr=args.muon_lr, weight_decay=args.muon_weight_decay, adjust_lr_fn="match_rms_adamw"
            )
        )
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    groups = [
        {
            "params": [parameter for parameter in rest if parameter.ndim == 2],
            "weight_decay": args.adamw_weight_decay,
        },
        {"params": [parameter for parameter in rest if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers.append(torch.optim.AdamW(groups, lr=args.adamw_lr, betas=(0.9, 0.98), fused=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers


def summed_loss(
    model: GPT2LMHeadModel, rows: torch.Tensor, labels: torch.Tensor, autocast: bool
) -> torch.Tensor:
    """Sum of the loss in nats over the labelled positions; ``rows`` and ``labels`` are (rows, length)."""
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(input_ids=rows, use_cache=False).logits
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def mean_loss(
    model: GPT2LMHeadModel, rows: torch.Tensor, labels: torch.Tensor, autocast: bool, pool: ThreadPoolExecutor
) -> float:
    """Mean loss in nats per labelled token, in evaluation mode."""

    def piece(index: int) -> float:
        with torch.no_grad():
            return float(summed_loss(model, rows[index : index + 8], labels[index : index + 8], autocast))

    model.eval()
    total = sum(pool.map(piece, range(0, len(rows), 8)))
    model.train()
    return total / int((labels != IGNORED).sum())


def held_out_rows(books: Sequence[Book], length: int) -> np.ndarray:
    """The held-out parts cut into rows without overlap, shape (rows, length + 1)."""
    return np.stack(
        [
            book.held_out[start : start + length + 1]
            for book in books
            for start in range(0, len(book.held_out) - length - 1, length)
        ]
    )


def repeated_pairs(length: int, vocab_size: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a random chunk of length / 2 said twice, labelled on the second half only."""
    generator = torch.Generator().manual_seed(1)
    chunk = torch.randint(1, vocab_size, (count, length // 2), generator=generator)
    rows = torch.cat([chunk, chunk], dim=1)
    labels = torch.full_like(rows, IGNORED)
    labels[:, length // 2 : -1] = rows[:, length // 2 + 1 :]
    return rows, labels


def export(model: GPT2LMHeadModel, tokenizer: GPT2Tokenizer, folder: Path) -> None:
    """Write the model as float16 safetensors with its tokenizer and config."""
    state = {name: tensor.half() for name, tensor in model.state_dict().items()}
    copy = GPT2LMHeadModel(model.config).half()
    copy.load_state_dict(state)
    copy.config.use_cache = True
    copy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small GPT-2 on a folder of stories. Run the same command again to resume.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--text", type=Path, required=True, help="folder with one .txt file per book")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoint.pt, log.jsonl and model/"
    )
    parser.add_argument(
        "--minutes", type=float, default=120.0, help="training time in all, over all sittings"
    )
    parser.add_argument(
        "--decay", type=float, default=0.35, help="last part of the time, rate falling to zero"
    )
    parser.add_argument(
        "--warmup", type=float, default=0.015, help="first part of the time, rate rising from zero"
    )
    parser.add_argument("--batch", type=int, default=32, help="rows in a step")
    parser.add_argument("--piece", type=int, default=4, help="rows a worker takes at a time; divides --batch")
    parser.add_argument("--workers", type=int, default=2, help="single-threaded workers")
    parser.add_argument(
        "--muon-lr", type=float, default=4e-3, help="Muon's rate, scaled to the size of AdamW's updates"
    )
    parser.add_argument("--muon-weight-decay", type=float, default=0.2, help="Muon's decoupled weight decay")
    parser.add_argument("--adamw-lr", type=float, default=2e-3, help="AdamW's rate")
    parser.add_argument(
        "--adamw-weight-decay", type=float, default=0.1, help="AdamW's weight decay on the embeddings"
    )
    parser.add_argument(
        "--dropout", type=float, default=0.1, help="dropout on the embeddings and the residual branches"
    )
    parser.add_argument(
        "--repeats", type=float, default=0.25, help="share of rows that repeat a chunk, until it is learnt"
    )
    parser.add_argument(
        "--repeats-after", type=float, default=0.0625, help="that share once the copy is learnt"
    )
    parser.add_argument(
        "--learnt", type=float, default=0.05, help="loss on a repeated half, in nats, that counts as learnt"
    )
    parser.add_argument(
        "--held-out", type=float, default=0.02, help="last part of each book, never trained on"
    )
    parser.add_argument("--vocab", type=int, default=4096, help="entries of the tokenizer")
    parser.add_argument("--length", type=int, default=256, help="positions")
    parser.add_argument("--layers", type=int, default=6, help="blocks")
    parser.add_argument("--heads", type=int, default=6, help="heads per block")
    parser.add_argument("--width", type=int, default=192, help="width of the residual stream")
    parser.add_argument("--evaluate-every", type=int, default=250, help="steps between held-out losses")
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights, the rows and the dropout")
    parser.add_argument("--init-from", type=Path, help="folder of a model to start from, with its tokenizer")
    parser.add_argument(
        "--no-compile", action="store_true", help="leave out torch.compile (it needs a C++ compiler)"
    )
    parser.add_argument(
        "--no-autocast", action="store_true", help="stay in float32 (for CPUs without bfloat16)"
    )
    args = parser.parse_args()
    if args.batch % args.piece:
        parser.error("--piece must divide --batch")
    return args


def new_model(args: argparse.Namespace, end_of_text: int) -> GPT2LMHeadModel:
    """The model, from nothing or from ``--init-from``, in float32, with ``RowDropout`` for its dropout."""
    dropout = {"attn_pdrop": 0.0, "resid_pdrop": args.dropout, "embd_pdrop": args.dropout}
    if args.init_from:
        model = GPT2LMHeadModel.from_pretrained(args.init_from, dtype=torch.float32, **dropout)
    else:
        model = GPT2LMHeadModel(new_config(args, end_of_text, dropout))
    model.transformer.drop = RowDropout(args.dropout)
    for block in model.transformer.h:
        block.attn.resid_dropout = RowDropout(args.dropout)
        block.mlp.dropout = RowDropout(args.dropout)
    # Compiled, the plain matrix products are faster at this size than the fused attention kernel for CPUs.
    model.set_attn_implementation("eager")
    return model


def new_config(args: argparse.Namespace, end_of_text: int, dropout: dict[str, float]) -> GPT2Config:
    return GPT2Config(
        vocab_size=args.vocab,
        n_positions=args.length,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.heads,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        **dropout,
    )


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    exported, checkpoint_file = args.out / "model", args.out / "checkpoint.pt"
    books_text = read_books(args.text)
    saved = torch.load(checkpoint_file, weights_only=True) if checkpoint_file.exists() else None
    if saved or args.init_from:
        tokenizer = GPT2Tokenizer.from_pretrained(exported if saved else args.init_from)
        for where_it_was in ("is_local", "local_files_only"):
            tokenizer.init_kwargs.pop(where_it_was, None)
    else:
        tokenizer = train_tokenizer(
            [split_text(text, args.held_out)[0] for text in books_text.values()], args.vocab, args.length
        )
    books = encode_books(books_text, tokenizer, args.held_out)
    model = new_model(args, tokenizer.eos_token_id)
    parameters = list(model.parameters())
    optimizers = make_optimizers(model, args)
    step, tokens, elapsed, position, learnt = 0, 0, 0.0, (0, 0), False
    if saved:
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            base = [group["base_lr"] for group in optimizer.param_groups]
            decay = [group["weight_decay"] for group in optimizer.param_groups]
            optimizer.load_state_dict(state)
            for group, lr, weight_decay in zip(optimizer.param_groups, base, decay, strict=True):
                group.update(base_lr=lr, weight_decay=weight_decay)
        torch.set_rng_state(saved["rng"])
        step, tokens, elapsed, learnt = (saved[key] for key in ("step", "tokens", "elapsed", "learnt"))
        position = tuple(saved["position"])
    train_tokens = sum(len(book.train) for book in books)
    size = sum(parameter.numel() for parameter in parameters)
    print(f"{len(books)} books, {train_tokens:,} tokens, {size:,} parameters, step {step}")

    autocast = not args.no_autocast
    held_out = torch.from_numpy(held_out_rows(books, args.length))
    pairs = repeated_pairs(args.length, len(tokenizer), 8)

    def piece_loss(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return summed_loss(model, rows, labels, autocast)

    compiled: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = (
        piece_loss if args.no_compile else torch.compile(piece_loss, dynamic=False)
    )

    def piece_gradient(piece: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, tuple[torch.Tensor, ...]]:
        loss = compiled(*piece)
        return float(loss.detach()), torch.autograd.grad(loss, parameters)

    def save() -> None:
        export(model, tokenizer, exported)
        partial = checkpoint_file.with_suffix(".partial")
        torch.save(
            {
                "model": model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "rng": torch.get_rng_state(),
                "step": step,
                "tokens": tokens,
                "elapsed": elapsed,
                "position": list(position),
                "learnt": learnt,
            },
            partial,
        )
        os.replace(partial, checkpoint_file)

    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)

    model.train()
    stream = story_rows(books, args.length, args.seed, position)
    budget = args.minutes * 60
    recent_times: list[float] = []
    recent_losses: list[float] = []
    bar = tqdm(total=round(budget), initial=round(elapsed), unit="s", mininterval=5)
    with (
        ThreadPoolExecutor(args.workers) as pool,
        (args.out / "log.jsonl").open("a", encoding="utf-8") as log,
    ):
        piece_gradient((held_out[: args.piece, :-1].contiguous(), held_out[: args.piece, 1:].contiguous()))
        last = time.monotonic()
        while elapsed < budget and not stopped:
            factor = learning_rate_factor(elapsed / budget, args.warmup, args.decay)
            rng = np.random.default_rng((args.seed, 2, step))
            repeats = round(args.batch * (args.repeats_after if learnt else args.repeats))
            rows = np.empty((args.batch, args.length + 1), dtype=np.int64)
            labels = np.empty((args.batch, args.length), dtype=np.int64)
            for index in range(args.batch):
                if index < repeats:
                    book = books[int(rng.integers(len(books)))].train
                    start = int(rng.integers(len(book) - args.length))
                    rows[index], labels[index] = repeat_row(book[start:], args.length, len(tokenizer), rng)
                else:
                    rows[index], position = next(stream)
                    labels[index] = rows[index, 1:]
            inputs = torch.from_numpy(np.ascontiguousarray(rows[:, :-1])).split(args.piece)
            targets = torch.from_numpy(labels).split(args.piece)
            count = int((labels != IGNORED).sum())
            total = 0.0
            gradients: list[torch.Tensor] | None = None
            for loss, piece in pool.map(piece_gradient, zip(inputs, targets, strict=True)):
                total += loss
                if gradients is None:
                    gradients = list(piece)
                else:
                    torch._foreach_add_(gradients, piece)
            assert gradients is not None
            torch._foreach_div_(gradients, count)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["base_lr"] * factor
            list(pool.map(lambda optimizer: optimizer.step(), optimizers))
            step, tokens = step + 1, tokens + rows[:, 1:].size
            recent_losses.append(total / count)

            if step % args.evaluate_every == 0:
                held_out_loss = mean_loss(model, held_out[:, :-1], held_out[:, 1:], autocast, pool)
                repeat_loss = mean_loss(model, *pairs, autocast, pool)
                learnt = repeat_loss < args.learnt
                entry = {
                    "step": step,
                    "tokens": tokens,
                    "epoch": position[0],
                    "minutes": round(elapsed / 60, 2),
                    "rate": round(factor, 4),
                    "train_loss": round(statistics.fmean(recent_losses), 4),
                    "held_out_loss": round(held_out_loss, 4),
                    "repeat_loss": round(repeat_loss, 4),
                    "repeats": repeats,
                }
                recent_losses.clear()
                log.write(json.dumps(entry) + "\n")
                log.flush()
                bar.set_postfix(step=step, held_out=entry["held_out_loss"], repeat=entry["repeat_loss"])
            if step % args.save_every == 0:
                save()

            # A process that was paused sees one very long step; the cap keeps the pause out of the schedule.
            now = time.monotonic()
            taken, last = now - last, now
            recent_times = [*recent_times[-50:], taken]
            counted = min(taken, STEP_TIME_CAP * statistics.median(recent_times))
            elapsed += counted
            bar.update(counted)
    save()
    bar.close()


if __name__ == "__main__":
    main()
