"""Steps 6 to 10: weights that can be trained, the scale, the mask and dropout."""

from __future__ import annotations

from attention import causal_mask
from attention.examples import DRAW_A_MAP, THE_CAT_SAT_ON
from probe.errors import ProbeError
from probe.ui.views.learn import lessons
from probe.ui.views.learn.blocks import (
    Line,
    chart,
    heading,
    matrix,
    number,
    percent,
    says,
    side_by_side,
    table,
    tiny,
)
from probe.ui.views.learn.chapter import Chapter, Field, Shown, heatmap
from probe.ui.views.learn.looking import ENCODINGS

# Not worked out anywhere: what stands here is forbidden, and must not matter.
_FUTURE = ((0.5, 1.1, 0.2), (1.3, 0.4), (0.9,))
SCORES = "\n".join(
    " ".join(f"{score:g}" for score in (*row[: i + 1], *(_FUTURE[i] if i < len(_FUTURE) else ())))
    for i, row in enumerate(THE_CAT_SAT_ON.scaled_scores)
)
WORDS = " ".join(THE_CAT_SAT_ON.tokens)


def _weights_text(index: int) -> str:
    weights = lessons.drawn_weights(DRAW_A_MAP.seed)[index]
    return "\n".join(" ".join(f"{number:.6f}" for number in row) for row in weights.tolist())


# ---- 6


def _by_hand(words: str, *weights: str) -> Shown:
    tokens, encodings = lessons.read_words(words, "The words")
    width = len(encodings[0])
    names = ("W query", "W key", "W value")
    matrices = [lessons.read_matrix(text, name, width) for text, name in zip(weights, names, strict=True)]
    heights = {name: len(rows) for name, rows in zip(names, matrices, strict=True)}
    if heights["W query"] != heights["W key"]:
        raise ProbeError(
            f"W query has {heights['W query']} lines and W key {heights['W key']}: queries and keys are "
            "compared number by number, so they need equally many."
        )
    result = lessons.attend_by_hand(encodings, *matrices)
    steps = result.steps
    assert steps.scores is not None and steps.scaled is not None
    size = [str(i) for i in range(heights["W query"])]
    of_values = [str(i) for i in range(heights["W value"])]
    terms = zip(encodings[0], matrices[0][0], strict=True)
    query_sum = " + ".join(f"{number(x, 2)} × {number(w, 4)}" for x, w in terms)
    mixture = zip(steps.weights[0], result.value[:, 0], strict=True)
    output_sum = " + ".join(f"{number(float(w), 5)} × {number(float(v), 5)}" for w, v in mixture)
    return Shown(
        heading("Encodings times weights")
        + side_by_side(
            matrix("Q", result.query, tokens, size),
            matrix("K", result.key, tokens, size),
            matrix("V", result.value, tokens, of_values),
        )
        + says(f"First number of Q: {query_sum} = {number(float(result.query[0, 0]))}")
        + heading("Similarities, scaled, as shares")
        + side_by_side(
            matrix("Q Kᵀ", steps.scores, tokens, tokens),
            matrix(f"divided by √{len(size)}", steps.scaled, tokens, tokens),
            matrix("softmax of each row", steps.weights, tokens, tokens),
        )
        + heading("Shares times values")
        + side_by_side(matrix("Output", steps.output, tokens, of_values))
        + says(f"First number of the output: {output_sum} = {number(float(steps.output[0, 0]))}"),
        heatmap("draw a map, by hand", [("Weights", steps.weights)], tokens, tokens, row=0),
    )


BY_HAND = Chapter(
    "by-hand",
    "Q, K and V",
    """
Now something that can be learned. Three matrices of weights make three versions of each word: a
**query**, what it looks for; a **key**, how it is found; a **value**, what it gives.

$$Q = X W_Q^\\top \\quad K = X W_K^\\top \\quad V = X W_V^\\top$$

$$\\text{Attention}(Q, K, V) = \\text{softmax}\\!\\left(\\frac{Q K^\\top}{\\sqrt{d_k}}\\right) V$$

$d_k$ is the number of values in a key, 2 here. PyTorch stores a weight matrix with a row for each number
that comes *out*, therefore the $\\top$. The weights are those that a fresh layer draws with seed 42;
training would change them.

"Weight" has two meanings: those in $W$ are learned and stay, those after the softmax are made anew for
every text.
""",
    (
        "Read the row of *draw*: 36% of itself, 40% of *a*, 24% of *map*. Check the two sums with a "
        "calculator. With fewer digits on paper the last ones come out a little different.",
        "Make W value `1 0` and `0 1`: the outputs are now mixtures of the encodings themselves.",
        "Make W query all zeros: no preference is left. What does the softmax do with it?",
    ),
    (
        Field("words", "Words and their encodings", ENCODINGS, 3),
        Field("w_query", "W query", _weights_text(0), 2),
        Field("w_key", "W key", _weights_text(1), 2),
        Field("w_value", "W value", _weights_text(2), 2),
    ),
    _by_hand,
    has_map=True,
)


# ---- 7


def _scale(keys: str, seed: str) -> Shown:
    num_keys = lessons.read_count(keys, "Keys", 2, 256)
    result = lessons.measure_scaling(num_keys, lessons.read_count(seed, "Seed", 0, 999_999))
    ticks = [str(width) for width in result.widths]
    names = ("scaled: divided by √d", "raw")
    rows = [
        (tick, [number(float(column[i]), 3) for column in columns])
        for columns in [
            (
                result.spread,
                result.entropy,
                result.scaled_entropy,
                result.gradient,
                result.scaled_gradient,
            )
        ]
        for i, tick in enumerate(ticks)
    ]
    most = result.most
    at = result.widths.index(64)
    spread = number(float(result.spread[at]), 1)
    lost = percent(float(1 - result.gradient[at] / result.scaled_gradient[at]))
    return Shown(
        side_by_side(
            chart(
                f"Entropy of the weights, in bits (equal weights: {most:.3g})",
                ticks,
                [
                    Line(names[0], result.scaled_entropy.tolist(), main=True),
                    Line(names[1], result.entropy.tolist()),
                ],
                most,
                [0, most / 2, most],
            ),
            chart(
                "Gradient: how much the weights answer to their scores",
                ticks,
                [
                    Line(names[0], result.scaled_gradient.tolist(), main=True),
                    Line(names[1], result.gradient.tolist()),
                ],
                1.0,
                [0, 0.5, 1],
            ),
        )
        + says(
            f"At a width of 64, that of a head of GPT-2, the raw scores spread by {spread} (√64 = 8), "
            f"and {lost} of the gradient is gone without the scale."
        )
        + table(
            "The numbers, by width d",
            ["spread of scores", "entropy, raw", "entropy, scaled", "gradient, raw", "gradient, scaled"],
            rows,
        )
    )


SCALE = Chapter(
    "scale",
    "Why √d",
    """
Take queries and keys of random numbers with variance 1. A dot product of width $d$ adds up $d$ products,
so its variance is $d$, and scores spread by $\\sqrt{d}$. Wide heads get large scores, and the softmax of
large scores is nearly a hard maximum: one weight close to 1, the others close to 0 (Vaswani et al. 2017,
section 3.2.1).

Two numbers show it. The **entropy** says over how many keys a row is spread; 0 bits is a single one. The
**gradient** is what training works with: how much each weight moves with its own score, added up,
$\\sum_i w_i (1 - w_i)$. When it is 0 nothing is learned.

Divided by $\\sqrt{d_k}$ the scores spread by 1 at every width, and both lines stay level.
""",
    (
        "Follow the line of the raw scores from 2 to 1,024; point at a dot for its number.",
        "Try 4 keys, then 256. Does the scale still do its work?",
        "Another seed draws other numbers: which part of the picture is chance?",
    ),
    (Field("keys", "Keys in each row", "16"), Field("seed", "Seed", "0")),
    _scale,
)


# ---- 8


def _cat_scores(words: str, scores: str) -> tuple[list[str], list[list[float]]]:
    tokens = lessons.read_sentence(words, "The words")
    rows = lessons.read_matrix(scores, "The scores", len(tokens))
    if len(rows) != len(tokens):
        raise ProbeError(
            f"The scores: there are {len(rows)} lines for {len(tokens)} words; write one for each."
        )
    return tokens, rows


def _two_routes(words: str, scores: str) -> Shown:
    tokens, rows = _cat_scores(words, scores)
    result = lessons.mask_both_ways(rows)
    return Shown(
        heading("First route: weights, zeros, and the rows made whole again")
        + side_by_side(
            matrix("Weights without a mask", result.unmasked, tokens, tokens),
            matrix("The future set to 0", result.zeroed, tokens, tokens),
            matrix("Left in each row", result.kept[:, None], tokens, ["sum"]),
            matrix("Divided by that", result.renormalised, tokens, tokens),
        )
        + heading("Second route: −∞ before the softmax")
        + side_by_side(
            matrix("Scores, masked", result.masked, tokens, tokens, digits=1),
            matrix("Their softmax", result.causal, tokens, tokens),
            matrix("The same in per cent", result.causal, tokens, tokens, percentages=True),
        )
        + says(f"Largest difference between the two routes: {tiny(result.difference)}.", "good"),
        heatmap(
            f"{' '.join(tokens)}, causal",
            [("Weights", result.causal)],
            tokens,
            tokens,
            masked=~causal_mask(len(tokens)),
            row=min(2, len(tokens) - 1),
        ),
    )


TWO_ROUTES = Chapter(
    "causal",
    "Causal mask",
    """
A model that writes text word by word must not look at words that are not written yet. In *The cat sat on*
the word *sat* may see *The*, *cat* and itself. There are two routes to such a matrix.

**Zeros afterwards.** Take the softmax, set the future to 0, divide each row by what is left. **−∞
before.** Add

$$M_{ij} = \\begin{cases} 0 & j \\le i \\\\ -\\infty & j > i \\end{cases}$$

to the scaled scores; $e^{-\\infty} = 0$, and one softmax does it all. That is the one in use (Vaswani et
al. 2017, section 3.2.3).

Does the first one leak? The future was in the denominator. But it was there for the whole row alike, and
the division takes it out again.

These scores are scaled already: there is no $\\sqrt{d_k}$ left to divide by.
""",
    (
        "Read the row of *sat*: 17% of *The*, 56% of *cat*, 28% of itself.",
        "Change a number above the diagonal, the first line's last one, say, to 9. The weights without a "
        "mask change a lot; the result must not change at all.",
        "Change a number below the diagonal: only its own row moves.",
    ),
    (
        Field("words", "Words", WORDS),
        Field("scores", "Scaled scores: a line for each query", SCORES, 4),
    ),
    _two_routes,
    has_map=True,
)


# ---- 9


def _rows(words: str, seed: str) -> Shown:
    tokens, encodings = lessons.read_words(words, "The words")
    result = lessons.mask_on_and_off(encodings, lessons.read_count(seed, "Seed", 0, 999_999))
    size = [str(i) for i in range(len(encodings[0]))]
    free, causal = result.both_ways, result.causal
    first = float((causal.output[0] - result.value[0]).abs().max())
    last = float((causal.output[-1] - free.output[-1]).abs().max())
    return Shown(
        side_by_side(
            matrix("Values", result.value, tokens, size),
            matrix("Output, no mask", free.output, tokens, size),
            matrix("Output, masked", causal.output, tokens, size),
        )
        + says(f"First row: the output of {tokens[0]} is its own value; difference: {tiny(first)}.", "good")
        + says(f"Last row: {tokens[-1]} sees everything either way; difference: {tiny(last)}.", "good"),
        heatmap(
            "The same layer without and with its mask",
            [("No mask", free.weights), ("Masked", causal.weights)],
            tokens,
            tokens,
            masked=~causal_mask(len(tokens)),
            row=0,
        ),
    )


FIRST_AND_LAST = Chapter(
    "rows",
    "First and last row",
    """
*draw a map* again, with the weights of seed 42, and now with a mask. Look at the outputs row by row:

- the **first** word can only attend to itself. Its weight is 1, so its output is its own value;
- the **second** mixes two values, and nothing that comes later;
- the **last** was allowed to see everything anyway. Its row is what it was.

Only the rows between are a mixture of something else than before. That makes the first and the last row a
cheap test of any mask: if they don't hold, it is wrong.
""",
    (
        "Add a word at the end, `here 1 1`: which rows of the masked output change? Which without a mask?",
        "Take another seed: the three statements hold for any weights.",
    ),
    (
        Field("words", "Words and their encodings", ENCODINGS, 4),
        Field("seed", "Seed of the weights", str(DRAW_A_MAP.seed)),
    ),
    _rows,
    has_map=True,
)


# ---- 10


def _dropout(words: str, scores: str, rate: float, seed: str) -> Shown:
    tokens, rows = _cat_scores(words, scores)
    result = lessons.drop_weights(rows, rate, lessons.read_count(seed, "Seed", 0, 999_999))
    lost = [token for token, total in zip(tokens, result.sums, strict=True) if total == 0]
    lines = [says(f"Survivors are multiplied by 1 / (1 − {rate:g}) = {number(result.factor, 4)}.")]
    if lost:
        lines.append(says(f"Lost altogether this time: the row of {', '.join(lost)}.", "bad"))
    return Shown(
        side_by_side(
            matrix("Causal weights", result.weights, tokens, tokens),
            matrix("After dropout", result.dropped, tokens, tokens),
            matrix("Sums of its rows", result.sums[:, None], tokens, ["sum"]),
            matrix(f"Mean of {result.draws:,} draws", result.average, tokens, tokens),
        )
        + "".join(lines)
    )


DROPOUT = Chapter(
    "dropout",
    "Dropout",
    """
In training, and only there, some of the finished weights are set to 0 at random, so that the model
doesn't come to rely on a single one (Srivastava et al. 2014). With rate $p$ the survivors are multiplied
by

$$\\frac{1}{1 - p}$$

so that each weight keeps its value *on average*, and nothing has to change when dropout is switched off.

Two things look like faults and aren't. A row doesn't sum to 1 any more. And now and then a whole row is
lost, the first one most easily, as it has only one weight. Rates in use are 0.1 or 0.2; a half is for
looking at.
""",
    (
        "Go through the seeds 0, 1, 2, 3: find one that loses a whole row.",
        "Compare the mean of the draws with the weights. Then take a rate of 0.9: why is the mean so much "
        "rougher?",
    ),
    (
        Field("words", "Words", WORDS),
        Field("scores", "Scaled scores", SCORES, 4),
        Field("rate", "Rate p", 0.5, range=(0, 0.95, 0.05)),
        Field("seed", "Seed", "42"),
    ),
    _dropout,
)

CHAPTERS = (BY_HAND, SCALE, TWO_ROUTES, FIRST_AND_LAST, DROPOUT)
