"""The worked examples as live computations: inputs can be changed, and every number comes from ``attention``.

One function an example, plain numbers in, a frozen dataclass of tensors, numbers and words out. What some of
them must give for the numbers they start with stands in ``attention.examples``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attention import (
    AttentionSteps,
    CausalAttention,
    CrossAttention,
    MultiHeadAttention,
    RawSelfAttention,
    SelfAttention,
    SimplifiedSelfAttention,
    StackedMultiHeadAttention,
    additive_mask,
    attention_by_loops,
    causal_mask,
    dropout,
    naive_softmax,
    renormalised_causal,
    scaled_dot_product_attention,
    softmax,
)
from attention.examples import GPT2Size
from probe.errors import ProbeError

MAX_ROWS, MAX_COLUMNS = 12, 8
MAX_CHARACTERS = 2_000
DIMENSIONS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

_SEEDING = threading.Lock()


# ---- what is typed in


def read_numbers(text: str, what: str, most: int = MAX_ROWS) -> list[float]:
    """Numbers separated by spaces or commas.

    Raises
    ------
    ProbeError
        One sentence that names the first thing that isn't a number, or says how many are wanted.
    """
    words = _short(text, what).replace(",", " ").replace("−", "-").split()
    numbers = []
    for word in words:
        try:
            number = float(word)
        except ValueError:
            raise ProbeError(
                f"{what}: {word[:30]!r} is not a number; write numbers such as 1.5 with spaces between them."
            ) from None
        if not math.isfinite(number) or abs(number) > 1e6:
            raise ProbeError(f"{what}: {word[:30]} is not a number between -1,000,000 and 1,000,000.")
        numbers.append(number)
    if not numbers:
        raise ProbeError(f"{what}: there is no number yet; write at least one.")
    if len(numbers) > most:
        raise ProbeError(f"{what}: there are {len(numbers)} numbers; at most {most} are taken.")
    return numbers


def read_number(text: str, what: str, low: float, high: float) -> float:
    """One number between ``low`` and ``high``; a ProbeError with one sentence otherwise."""
    numbers = read_numbers(text, what)
    if len(numbers) != 1 or not low <= numbers[0] <= high:
        raise ProbeError(f"{what}: write one number from {low:,g} to {high:,g}.")
    return numbers[0]


def read_count(text: str, what: str, low: int, high: int) -> int:
    """One whole number between ``low`` and ``high``; a ProbeError with one sentence otherwise."""
    number = read_number(text, what, low, high)
    if number != int(number):
        raise ProbeError(f"{what}: write a whole number from {low:,} to {high:,}.")
    return int(number)


def read_matrix(text: str, what: str, columns: int | None = None) -> list[list[float]]:
    """Rows of numbers, one a line, all equally long.

    Raises
    ------
    ProbeError
        As ``read_numbers``; or if the rows aren't equally long, or not of ``columns`` numbers.
    """
    lines = _lines(text, what)
    rows = [
        read_numbers(line, f"{what}, line {i}", MAX_COLUMNS if columns is None else max(columns, MAX_COLUMNS))
        for i, line in enumerate(lines, 1)
    ]
    width = len(rows[0]) if columns is None else columns
    for i, row in enumerate(rows, 1):
        if len(row) != width:
            raise ProbeError(f"{what}: line {i} has {_count(len(row), 'number')}, where {width} are needed.")
    return rows


def read_words(text: str, what: str) -> tuple[list[str], list[list[float]]]:
    """A word and its numbers on each line: "draw 1.16 0.23"."""
    words, rows = [], []
    for i, line in enumerate(_lines(text, what), 1):
        word, _, numbers = line.partition(" ")
        if not numbers.strip():
            raise ProbeError(f"{what}: line {i} must hold a word and its numbers, as in: draw 1.16 0.23")
        words.append(word)
        rows.append(read_numbers(numbers, f"{what}, line {i}", MAX_COLUMNS))
        if len(rows[-1]) != len(rows[0]):
            raise ProbeError(
                f"{what}: line {i} has {_count(len(rows[-1]), 'number')}, line 1 has {len(rows[0])}; "
                "every word needs equally many."
            )
    return words, rows


def read_sentence(text: str, what: str) -> list[str]:
    """Words separated by spaces."""
    words = _short(text, what).split()
    if not words:
        raise ProbeError(f"{what}: write at least one word.")
    if len(words) > MAX_ROWS:
        raise ProbeError(f"{what}: there are {len(words)} words; at most {MAX_ROWS} are taken.")
    return words


def _short(text: str, what: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise ProbeError(f"{what}: that is {len(text):,} characters; at most {MAX_CHARACTERS:,} are read.")
    return text


def _lines(text: str, what: str) -> list[str]:
    lines = [line.strip() for line in _short(text, what).splitlines() if line.strip()]
    if not lines:
        raise ProbeError(f"{what}: there is nothing here yet; write at least one line.")
    if len(lines) > MAX_ROWS:
        raise ProbeError(f"{what}: there are {len(lines)} lines; at most {MAX_ROWS} are taken.")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Random numbers of one seed, and torch's own generator as it was afterwards."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


# ---- looking something up


@dataclass(frozen=True, eq=False)
class LookUp:
    """A look-up by likeness.

    Attributes
    ----------
    parts : the pairs of letters that names are compared by.
    likeness : (keys,), from 0 to 1: dot products of vectors of length 1.
    weights : (keys,), the share of each key.
    best : index of the key most alike.
    mixed : the values mixed by their weights.
    """

    parts: tuple[str, ...]
    likeness: Tensor
    weights: Tensor
    best: int
    mixed: float


def look_up(query: str, keys: Sequence[str], values: Sequence[float], sharpness: float) -> LookUp:
    """Find a name among names by the pairs of letters they share, softly: every value gets a weight.

    Each name is a vector that counts its pairs of letters, its beginning and end included, made 1 long.
    """
    spelled = [f"^{name.lower()}$" for name in (query, *keys)]
    pairs = [["".join(pair) for pair in pairwise(name)] for name in spelled]
    parts = tuple(dict.fromkeys(part for name in pairs for part in name))
    counts = torch.tensor([[name.count(part) for part in parts] for name in pairs], dtype=torch.float64)
    vectors = counts / counts.norm(dim=-1, keepdim=True)
    worth = torch.tensor(values, dtype=torch.float64)[:, None]
    steps = scaled_dot_product_attention(vectors[:1], vectors[1:], worth, scale=sharpness)
    assert steps.scores is not None
    likeness = steps.scores[0]
    return LookUp(parts, likeness, steps.weights[0], int(likeness.argmax()), float(steps.output))


# ---- the dot product


@dataclass(frozen=True, eq=False)
class Likeness:
    """Each word against one of them: dot products, lengths and cosines, (words,) each."""

    dots: Tensor
    lengths: Tensor
    cosines: Tensor
    products: Tensor  # (words, d), what is added up to the dot product


def compare_likeness(vectors: Sequence[Sequence[float]], query: int, stretch: float) -> Likeness:
    """Dot product and cosine of one vector with all, the last of which is stretched by a factor first.

    Raises
    ------
    ProbeError
        If a vector is all zeros: it has no direction, so no cosine.
    """
    x = torch.tensor(vectors, dtype=torch.float64)
    x[-1] *= stretch
    lengths = x.norm(dim=-1)
    if not lengths.all():
        raise ProbeError(
            "A vector of zeros has no direction, so its cosine doesn't exist: change one number."
        )
    unit = x / lengths[:, None]
    dots, cosines = (
        scaled_dot_product_attention(v[query : query + 1], v, v, scale=1.0).scores for v in (x, unit)
    )
    assert dots is not None and cosines is not None
    return Likeness(dots[0], lengths, cosines[0], x[query] * x)


# ---- from scores to shares


@dataclass(frozen=True, eq=False)
class ScoreShares:
    """Scores made into shares in four ways, (scores,) each.

    Attributes
    ----------
    shifted : the scores, with the same number added to each.
    divided : each score by the sum of all; None where the sum is 0.
    hard : 1 for the largest, 0 for the rest.
    exponentials : exp of each score, in float32.
    total : their sum.
    shares : the softmax.
    naive : the softmax as it is defined, in float32; NaN where it overflows.
    """

    shifted: Tensor
    divided: Tensor | None
    hard: Tensor
    exponentials: Tensor
    total: float
    shares: Tensor
    naive: Tensor


def share_scores(scores: Sequence[float], shift: float = 0.0) -> ScoreShares:
    """Four ways from scores to shares; only the softmax is always right."""
    x = torch.tensor(scores, dtype=torch.float32) + shift
    total = x.sum()
    hard = torch.zeros_like(x)
    hard[x.argmax()] = 1.0
    exponentials = x.exp()
    return ScoreShares(
        x,
        None if total == 0 else x / total,
        hard,
        exponentials,
        float(exponentials.sum()),
        softmax(x),
        naive_softmax(x),
    )


# ---- no weights, and word order


@dataclass(frozen=True, eq=False)
class Mixed:
    """Attention without weights, and the largest difference of its outputs from those of nested loops."""

    steps: AttentionSteps
    loops_difference: float


def mix_without_weights(encodings: Sequence[Sequence[float]]) -> Mixed:
    """Every word mixes all words by their dot products: softmax(X X^T) X, for (T, d) encodings."""
    x = torch.tensor(encodings, dtype=torch.float64)
    steps = SimplifiedSelfAttention().steps(x)
    _, looped = attention_by_loops(x, x, x, scale=1.0)
    return Mixed(steps, float((steps.output - looped).abs().max()))


@dataclass(frozen=True, eq=False)
class WordOrder:
    """The same words in two orders.

    Attributes
    ----------
    sentences : the words of each.
    outputs : (T, d), a row for each word of each sentence.
    shared : the words both sentences hold once.
    moved : for each of them the largest difference between its two outputs.
    """

    sentences: tuple[tuple[str, ...], tuple[str, ...]]
    outputs: tuple[Tensor, Tensor]
    shared: tuple[str, ...]
    moved: tuple[float, ...]


def compare_order(first: Sequence[str], second: Sequence[str], positions: bool) -> WordOrder:
    """Attention without weights over two sentences, with or without the position added to each word.

    A word's four numbers follow from its letters, so that it is the same wherever it stands. The positions
    are those of Vaswani et al. 2017, section 3.5.
    """
    outputs = []
    for words in (first, second):
        x = torch.stack([_toy_encoding(word) for word in words])
        outputs.append(SimplifiedSelfAttention()(x + sinusoids(len(words), 4) if positions else x))
    shared = [word for word in dict.fromkeys(first) if first.count(word) == 1 == list(second).count(word)]
    pairs = [(outputs[0][first.index(word)], outputs[1][second.index(word)]) for word in shared]
    moved = [float((one - other).abs().max()) for one, other in pairs]
    return WordOrder((tuple(first), tuple(second)), (outputs[0], outputs[1]), tuple(shared), tuple(moved))


def sinusoids(num_positions: int, width: int) -> Tensor:
    """(num_positions, width): sines and cosines of the position, slower from pair to pair."""
    position = torch.arange(num_positions, dtype=torch.float64)[:, None]
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=-1).flatten(-2)


def _toy_encoding(word: str) -> Tensor:
    """Four numbers between -1 and 1 that depend on nothing but the word."""
    generator = torch.Generator().manual_seed(int.from_bytes(word.lower().encode()[:7], "little"))
    return torch.rand(4, generator=generator, dtype=torch.float64) * 2 - 1


# ---- queries, keys and values


@dataclass(frozen=True, eq=False)
class ByHand:
    """Self-attention with weights: (T, d) the projections and outputs, (T, T) the other steps."""

    query: Tensor
    key: Tensor
    value: Tensor
    steps: AttentionSteps


def drawn_weights(seed: int, width: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """The query, key and value weights of a fresh ``SelfAttention``, as stored: (d_out, d_in) each."""
    with _seeded(seed):
        layer = SelfAttention(width, width)
    return layer.W_query.weight.detach(), layer.W_key.weight.detach(), layer.W_value.weight.detach()


@torch.no_grad()
def attend_by_hand(
    encodings: Sequence[Sequence[float]],
    W_query: Sequence[Sequence[float]],
    W_key: Sequence[Sequence[float]],
    W_value: Sequence[Sequence[float]],
) -> ByHand:
    """Self-attention over (T, d_in) encodings, with weights as a Linear stores them, (d_out, d_in) each."""
    x = torch.tensor(encodings)
    layer = SelfAttention(x.size(1), len(W_query))
    for linear, weights in ((layer.W_query, W_query), (layer.W_key, W_key), (layer.W_value, W_value)):
        linear.weight.copy_(torch.tensor(weights))
    paper = RawSelfAttention(x.size(1), len(W_query))
    paper.copy_from(layer)
    return ByHand(x @ paper.W_query, x @ paper.W_key, x @ paper.W_value, layer.steps(x))


# ---- why the square root


@dataclass(frozen=True, eq=False)
class Scaling:
    """What the width does to scores and softmax, (widths,) each; means over many random queries.

    Attributes
    ----------
    widths : the numbers of values in a query and a key.
    spread : standard deviation of the raw scores.
    entropy, scaled_entropy : of the softmax of the raw and of the scaled scores, in bits.
    gradient, scaled_gradient : how much the weights answer to their own scores, summed over the keys: the
        trace of the softmax's Jacobian, that is the sum of w (1 - w).
    most : the entropy of equal weights, in bits.
    """

    widths: tuple[int, ...]
    spread: Tensor
    entropy: Tensor
    scaled_entropy: Tensor
    gradient: Tensor
    scaled_gradient: Tensor
    most: float


def measure_scaling(num_keys: int, seed: int, draws: int = 200) -> Scaling:
    """Entropy and gradient of the softmax with and without 1 / sqrt(d_k), for standard normal vectors."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[float]] = []
    for width in DIMENSIONS:
        query = torch.randn(draws, 1, width, generator=generator)
        key = torch.randn(draws, num_keys, width, generator=generator)
        raw = scaled_dot_product_attention(query, key, key, scale=1.0)
        scaled = scaled_dot_product_attention(query, key, key)
        assert raw.scores is not None
        measured = [measure(steps.weights) for measure in (_entropy, _answer) for steps in (raw, scaled)]
        rows.append([float(number) for number in (raw.scores.std(), *measured)])
    spread, entropy, scaled_entropy, gradient, scaled_gradient = torch.tensor(rows).T
    return Scaling(
        DIMENSIONS, spread, entropy, scaled_entropy, gradient, scaled_gradient, math.log2(num_keys)
    )


def _entropy(weights: Tensor) -> Tensor:
    return torch.special.entr(weights).sum(-1).mean() / math.log(2)


def _answer(weights: Tensor) -> Tensor:
    return (weights * (1 - weights)).sum(-1).mean()


# ---- the causal mask


@dataclass(frozen=True, eq=False)
class TwoRoutes:
    """Both routes from scaled scores to a causal matrix, (T, T) each.

    Attributes
    ----------
    unmasked : the weights without a mask.
    zeroed : the same with the future set to 0.
    kept : (T,), what is left in each row then.
    renormalised : those rows divided by what is left.
    masked : the scores with -inf in place of the future.
    causal : the softmax of those.
    difference : the largest between the two results.
    """

    unmasked: Tensor
    zeroed: Tensor
    kept: Tensor
    renormalised: Tensor
    masked: Tensor
    causal: Tensor
    difference: float


def mask_both_ways(scaled_scores: Sequence[Sequence[float]]) -> TwoRoutes:
    """The two routes to a causal matrix, from (T, T) scores that are scaled already.

    Raises
    ------
    ProbeError
        If there isn't a row of scores for each column.
    """
    scores = torch.tensor(scaled_scores, dtype=torch.float64)
    if scores.size(0) != scores.size(1):
        raise ProbeError(
            f"The scores have {_count(scores.size(0), 'row')} and {_count(scores.size(1), 'column')}; "
            "a word needs one row and one column."
        )
    allowed = causal_mask(len(scores))
    unmasked = softmax(scores)
    zeroed = unmasked * allowed
    masked = scores + additive_mask(allowed, scores.dtype)
    causal, renormalised = softmax(masked), renormalised_causal(unmasked)
    difference = float((causal - renormalised).abs().max())
    return TwoRoutes(unmasked, zeroed, zeroed.sum(-1), renormalised, masked, causal, difference)


@dataclass(frozen=True, eq=False)
class MaskOnAndOff:
    """One layer without and with its mask: (T, T) weights, (T, d) values and outputs."""

    value: Tensor
    both_ways: AttentionSteps
    causal: AttentionSteps


@torch.no_grad()
def mask_on_and_off(encodings: Sequence[Sequence[float]], seed: int) -> MaskOnAndOff:
    """Self-attention over (T, d) encodings with drawn weights, and the same with the future masked."""
    x = torch.tensor(encodings)
    with _seeded(seed):
        layer = CausalAttention(x.size(1), x.size(1), context_length=len(x))
    causal = layer.steps(x)
    layer.causal = False
    return MaskOnAndOff(layer.W_value(x), layer.steps(x), causal)


# ---- dropout


@dataclass(frozen=True, eq=False)
class Dropped:
    """Dropout on causal weights, (T, T) each.

    Attributes
    ----------
    weights : before.
    dropped : after; survivors are multiplied by 1 / (1 - p).
    sums : (T,), of the rows after.
    factor : 1 / (1 - p).
    average : the mean over many draws, close to the weights again.
    draws : how many.
    """

    weights: Tensor
    dropped: Tensor
    sums: Tensor
    factor: float
    average: Tensor
    draws: int


def drop_weights(scaled_scores: Sequence[Sequence[float]], p: float, seed: int, draws: int = 2000) -> Dropped:
    """Dropout at rate ``p`` on the causal weights of (T, T) scaled scores: once, and on average."""
    weights = mask_both_ways(scaled_scores).causal
    with _seeded(seed):
        dropped = dropout(weights, p)
        average = dropout(weights.expand(draws, *weights.shape), p).mean(0)
    factor = 1 / (1 - p) if p < 1 else 0.0
    return Dropped(weights, dropped, dropped.sum(-1), factor, average, draws)


# ---- cross-attention


@torch.no_grad()
def attend_across(
    decoder: Sequence[Sequence[float]], encoder: Sequence[Sequence[float]], sharpness: float
) -> AttentionSteps:
    """Queries from (Tq, d) decoder encodings, keys and values from (Tk, d) encoder encodings.

    The query weights are ``sharpness`` times the identity, key and value weights the identity, so that all
    the numbers can be followed.

    Raises
    ------
    ProbeError
        If the words of the two sentences aren't given by equally many numbers.
    """
    asked, answering = torch.tensor(decoder), torch.tensor(encoder)
    width = asked.size(1)
    if width != answering.size(1):
        raise ProbeError(
            f"The words that ask have {_count(width, 'number')} each, those that answer "
            f"{answering.size(1)}; with the same weights they need equally many."
        )
    layer = CrossAttention(width, width)
    for linear, factor in ((layer.W_query, sharpness), (layer.W_key, 1.0), (layer.W_value, 1.0)):
        linear.weight.copy_(torch.eye(width) * factor)
    return layer.steps(asked, answering, answering)


# ---- several heads


@dataclass(frozen=True, eq=False)
class Heads:
    """The same heads stacked and split.

    Attributes
    ----------
    stacked, split : (T, num_heads * d), the outputs of all heads side by side.
    difference : the largest between them.
    stacked_products, split_products : matrix products that were computed on the way.
    stacked_multiplications, split_multiplications : of single numbers, in those products.
    parameters : numbers in the query, key and value weights, the same for both.
    weights : (num_heads, T, T).
    """

    stacked: Tensor
    split: Tensor
    difference: float
    stacked_products: int
    split_products: int
    stacked_multiplications: int
    split_multiplications: int
    parameters: int
    weights: Tensor


class _CountProducts(TorchFunctionMode):
    """Counts matrix products, and the multiplications in them, while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.multiplications = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if func in (torch.nn.functional.linear, torch.Tensor.matmul, torch.Tensor.__matmul__):
            self.products += 1
            self.multiplications += result.numel() * args[0].size(-1)
        return result


@torch.no_grad()
def stack_and_split(encodings: Sequence[Sequence[float]], num_heads: int, seed: int) -> Heads:
    """Heads as wide as the (T, d) encodings: one after the other, and as one projection that is cut up."""
    x = torch.tensor(encodings)
    d = x.size(1)
    with _seeded(seed):
        stacked = StackedMultiHeadAttention(d, d, num_heads)
        split = MultiHeadAttention(d, num_heads * d, num_heads)
    for role in ("W_query", "W_key", "W_value"):
        rows = [getattr(head, role).weight for head in stacked.heads]
        getattr(split, role).weight.copy_(torch.cat(rows))  # H of (d, d) -> (H * d, d)
    with _CountProducts() as one_by_one:
        side_by_side = stacked(x)
    with _CountProducts() as at_once:
        steps = split.steps(x)
    # the output projection is no part of the comparison: the stack has none
    projection = (1, x.size(0) * (num_heads * d) ** 2)
    return Heads(
        side_by_side,
        steps.context,
        float((side_by_side - steps.context).abs().max()),
        one_by_one.products,
        at_once.products - projection[0],
        one_by_one.multiplications,
        at_once.multiplications - projection[1],
        sum(p.numel() for p in stacked.parameters()),
        steps.heads.weights,
    )


@dataclass(frozen=True)
class WayBack:
    """One way from several heads to the width of the input.

    Attributes
    ----------
    name : of the way.
    value_width : values of one token in one head.
    joined : width of all heads side by side.
    output : width in the end.
    parameters : trained numbers, projections included.
    """

    name: str
    value_width: int
    joined: int
    output: int
    parameters: int


@torch.no_grad()
def ways_back(width: int, num_heads: int, head_width: int) -> list[WayBack]:
    """Three ways to join heads over an input of a given width; widths are read off real outputs.

    The second is left out where the heads don't divide the width.
    """
    x = torch.zeros(1, width)
    stacked = StackedMultiHeadAttention(width, head_width, num_heads)
    joined = torch.nn.Sequential(stacked, torch.nn.Linear(stacked.output_width, width, bias=False))
    ways: list[tuple[str, int, StackedMultiHeadAttention, Callable[[Tensor], Tensor], torch.nn.Module]] = [
        ("a linear layer behind the heads", head_width, stacked, joined, joined)
    ]
    if width % num_heads == 0:
        narrow = StackedMultiHeadAttention(width, head_width, num_heads, d_value=width // num_heads)
        ways.append(("narrower values", width // num_heads, narrow, narrow, narrow))
    ways.append(("nothing: what follows takes any width", head_width, stacked, stacked, stacked))
    return [
        WayBack(
            name,
            value_width,
            heads.output_width,
            run(x).size(-1),
            sum(parameter.numel() for parameter in module.parameters()),
        )
        for name, value_width, heads, run, module in ways
    ]


# ---- sizes


@dataclass(frozen=True)
class Size:
    """A GPT-2's sizes, and what follows from them.

    Attributes
    ----------
    head_dim : width of one head.
    attention_parameters : trained numbers in the attention of all layers.
    parameters : all trained numbers.
    map_cells : weights in all maps of one text as long as the context.
    """

    size: GPT2Size
    head_dim: int
    attention_parameters: int
    parameters: int
    map_cells: int


def size_of(size: GPT2Size) -> Size:
    """What follows from the sizes of a GPT-2; its attention is built, without memory, to be counted.

    Raises
    ------
    ProbeError
        If the heads don't divide the width.
    """
    try:
        layer = MultiHeadAttention(size.width, size.width, size.num_heads, bias=True, device="meta")
    except ValueError:
        raise ProbeError(
            f"A width of {size.width:,} can't be split evenly into {size.num_heads} heads: "
            f"{size.width:,} / {size.num_heads} is not a whole number."
        ) from None
    return Size(
        size,
        layer.head_dim,
        size.num_layers * sum(parameter.numel() for parameter in layer.parameters()),
        size.num_parameters,
        size.num_layers * size.num_heads * size.context_length**2,
    )
