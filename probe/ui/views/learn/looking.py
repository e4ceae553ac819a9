"""Steps 1 to 5: looking something up, likeness, shares, and attention that has no weights yet."""

from __future__ import annotations

from attention.examples import DESSERTS, DRAW_A_MAP
from probe.errors import ProbeError
from probe.ui.views.learn import lessons
from probe.ui.views.learn.blocks import (
    matrix,
    number,
    percent,
    says,
    side_by_side,
    table,
    tiny,
)
from probe.ui.views.learn.chapter import Chapter, Field, Shown, heatmap

ENCODINGS = "\n".join(
    f"{word} {x:g} {y:g}" for word, (x, y) in zip(DRAW_A_MAP.tokens, DRAW_A_MAP.encodings, strict=True)
)


# ---- 1


def _look_up(query: str, guests: str, sharpness: float) -> Shown:
    query = query.strip()
    if not query:
        raise ProbeError("What was typed: write a name to look for.")
    names, rooms = lessons.read_words(guests, "The guests")
    if any(len(room) != 1 for room in rooms):
        raise ProbeError("The guests: each line holds one name and one room, as in: Mercer 537")
    result = lessons.look_up(query[:60], names, [room[0] for room in rooms], sharpness)
    rows = [
        (name, [number(room[0], 0), number(float(likeness), 3), percent(float(weight), 1)])
        for name, room, likeness, weight in zip(names, rooms, result.likeness, result.weights, strict=True)
    ]
    best = rooms[result.best][0]
    return Shown(
        table("The guests", ["value: room", "likeness to the query", "weight"], rows)
        + says(f"Strict look-up: the key most alike is {names[result.best]}, so the answer is room {best:g}.")
        + says(f"Attention: all rooms, mixed by their weights, give {number(result.mixed, 1)}.")
    )


LOOK_UP = Chapter(
    "look-up",
    "Look-up",
    """
A hotel's clerk types *Merser*. No such guest; the nearest name in the book is *Mercer*, in room 537. What
was typed is the **query**, the names in the book are the **keys**, the rooms are the **values**.

A strict look-up answers with one value. Attention compares the query with *every* key, turns the
likenesses into weights $w_i$ that sum to 1, and mixes all values $v_i$:

$$\\text{answer} = \\sum_i w_i\\, v_i$$

Names are compared here by the pairs of letters they share. The next two steps are about the two parts of
this: the likeness, and the weights.
""",
    (
        "Turn the sharpness up until the mixture is room 537 to the first decimal.",
        "Turn it down to 0: every room counts the same, and the answer is a room nobody has. In a language "
        "model the values are vectors, and a mixture of vectors is as good a vector as any.",
        "Type *Parcer*: between which two guests does attention hesitate?",
    ),
    (
        Field("query", "Query: what was typed", "Merser"),
        Field(
            "guests",
            "Keys and values: a name and a room a line",
            "Mercer 537\nMiller 210\nMendes 118\nParker 402",
            4,
        ),
        Field("sharpness", "Sharpness: what the likeness is multiplied with", 20, range=(0, 60, 1)),
    ),
    _look_up,
)


# ---- 2


def _likeness(words: str, stretch: str) -> Shown:
    tokens, vectors = lessons.read_words(words, "The words")
    factor = lessons.read_number(stretch, "Stretch", -100, 100)
    result = lessons.compare_likeness(vectors, 0, factor)
    rows = [
        (token, [number(float(x)) for x in (length, dot, cosine)])
        for token, length, dot, cosine in zip(
            tokens, result.lengths, result.dots, result.cosines, strict=True
        )
    ]
    highest = tokens[int(result.dots.argmax())]
    nearest = [i for i in range(len(tokens)) if i]
    sum_of = " + ".join(number(float(x)) for x in result.products[-1])
    lines = [
        says(f"{tokens[0]} · {tokens[-1]} = {sum_of} = {number(float(result.dots[-1]))}"),
        says(f"By dot product {tokens[0]} is most like {highest}."),
    ]
    if nearest:
        best = max(nearest, key=lambda i: float(result.cosines[i]))
        lines.append(says(f"By cosine it is most like itself (1), then {tokens[best]}."))
    return Shown(
        table(f"{tokens[0]}, compared with each word", ["length", "dot product", "cosine"], rows)
        + "".join(lines)
    )


LIKENESS = Chapter(
    "likeness",
    "Dot product",
    """
Words come as lists of numbers, their **encodings**. Two lists are compared by multiplying them number by
number and adding up:

$$q \\cdot k = \\sum_j q_j\\, k_j$$

The **dot product** is large where both point the same way, 0 where they are at right angles, negative
where they point apart. It also grows with their lengths. The **cosine** takes the lengths out and stays
between −1 and 1:

$$\\cos(q, k) = \\frac{q \\cdot k}{\\lVert q \\rVert\\, \\lVert k \\rVert}$$

Attention uses the dot product: a word may be loud as well as near.
""",
    (
        "*draw* scores higher with *map* than with itself, though its cosine with itself is 1. Halve *map* "
        "with a stretch of 0.5, then 0.2: which number changes, which doesn't?",
        "Stretch by −1: both change their sign.",
        "Give *a* the numbers `0.23 -1.16`, at a right angle to *draw*.",
    ),
    (
        Field("words", "Words and their encodings; the first one asks", ENCODINGS, 3),
        Field("stretch", "Stretch: what the last word is multiplied with", "1"),
    ),
    _likeness,
)


# ---- 3


def _shares(scores: str, shift: str) -> Shown:
    x = lessons.read_numbers(scores, "Scores")
    added = lessons.read_number(shift, "Added to every score", -1e5, 1e5)
    result = lessons.share_scores(x, added)
    rows = [
        (
            number(float(result.shifted[i]), 1),
            [
                "no answer" if result.divided is None else percent(float(result.divided[i])),
                percent(float(result.hard[i])),
                number(float(result.exponentials[i]), 3),
                percent(float(result.shares[i]), 1),
                percent(float(result.naive[i]), 1),
            ],
        )
        for i in range(len(x))
    ]
    lines = []
    if result.divided is None:
        lines.append(says("The scores sum to 0, and nothing can be divided by 0.", "bad"))
    elif float(result.divided.min()) < 0:
        lines.append(says("Dividing by the sum gives a negative share, which means nothing.", "bad"))
    if result.naive.isnan().any():
        lines.append(
            says(
                "The softmax as it is defined fails here: e^x left the range of the numbers it is kept in.",
                "bad",
            )
        )
    lines.append(says(f"The exponentials sum to {number(result.total, 3)}."))
    if len(x) > 1 and result.shares[1] > 0:
        ratio = number(float(result.shares[0] / result.shares[1]), 3)
        lines.append(
            says(f"The first score is {x[0] - x[1]:g} above the second, its share {ratio} times as large.")
        )
    lines.append(says(f"The shares of the softmax sum to {percent(float(result.shares.sum()), 1)}.", "good"))
    return Shown(
        table(
            "Scores, and five ways to read them",
            ["divided by the sum", "hard maximum", "e^x", "softmax", "softmax as defined"],
            rows,
        )
        + "".join(lines)
    )


SHARES = Chapter(
    "shares",
    "Shares",
    """
Judges give three desserts 2, 1 and −1 points. How much of the praise is each one's? Dividing by the sum
gives 100%, 50% and −50%; and with points that sum to 0 it gives nothing at all.

The **softmax** first takes $e^x$, which is never negative, then divides:

$$\\operatorname{softmax}(x)_i = \\frac{e^{x_i}}{\\sum_j e^{x_j}}$$

One point more is $e \\approx 2.72$ times the share. A **hard maximum** gives the winner everything; a
small change of a score then changes nothing, so there is nothing to learn from. The soft one answers
every score.

Taken literally it overflows: $e^x$ beyond 88.7 is infinite in float32. Taking the largest score from all
of them first changes no share, and keeps every $e^x$ at 1 or below.
""",
    (
        "Add 1000 to every score: the softmax doesn't change, the literal one fails.",
        "Scores `1 -1`: the sum is 0. Scores `3 3 3`: equal shares.",
        "Scores `2 1 -1000`: the last share is exactly 0. That is how a mask will work.",
    ),
    (
        Field("scores", "Scores", " ".join(f"{score:g}" for score in DESSERTS.scores)),
        Field("shift", "Added to every score", "0"),
    ),
    _shares,
)


# ---- 4


def _no_weights(words: str) -> Shown:
    tokens, vectors = lessons.read_words(words, "The words")
    result = lessons.mix_without_weights(vectors)
    steps = result.steps
    assert steps.scores is not None
    columns = ", ".join(number(float(x), 2) for x in steps.weights.sum(0))
    size = [str(i) for i in range(len(vectors[0]))]
    return Shown(
        side_by_side(
            matrix("Scores X Xᵀ", steps.scores, tokens, tokens),
            matrix("Weights", steps.weights, tokens, tokens),
            matrix("Outputs", steps.output, tokens, size),
        )
        + says("Every row of weights sums to 1.", "good")
        + says(f"The columns sum to {columns}: a softmax along the wrong side would show here.")
        + says(
            f"Nested loops over words give the same outputs; difference: {tiny(result.loops_difference)}."
        ),
        heatmap("Attention without weights", [("Weights", steps.weights)], tokens, tokens, row=0),
    )


NO_WEIGHTS = Chapter(
    "no-weights",
    "No weights",
    """
All the pieces are there. Let every word be query, key and value at once, with nothing to learn yet. Stack
the encodings as rows of a matrix $X$:

$$\\Omega = X X^\\top \\qquad A = \\operatorname{softmax}(\\Omega) \\qquad Z = A X$$

Row $i$ of $\\Omega$ holds the dot products of word $i$ with every word, row $i$ of $A$ their shares, and
row $i$ of $Z$ the mixture: the word with its context in it. The softmax goes along the rows, so each row
sums to 1.

Three products of matrices do what two nested loops over the words would.
""",
    (
        "*draw* spends most of its weight on *map*, the longest word. Make *map* `0.44 -0.22`.",
        "Give *a* the numbers of *draw*: the two rows become equal.",
        "Add a fourth line, `here 0 0`. Its dot products are all 0: what are its weights?",
    ),
    (Field("words", "Words and their encodings", ENCODINGS, 4),),
    _no_weights,
    has_map=True,
)


# ---- 5


def _order(first: str, second: str, positions: str) -> Shown:
    sentences = [lessons.read_sentence(text, what) for text, what in ((first, "First"), (second, "Second"))]
    result = lessons.compare_order(sentences[0], sentences[1], positions == _ADDED)
    size = [str(i) for i in range(4)]
    rows = [
        (word, [tiny(moved) if moved > 1e-12 else "none"])
        for word, moved in zip(result.shared, result.moved, strict=True)
    ]
    if not result.shared:
        verdict = says(
            "The sentences share no word that stands once in each, so there is nothing to compare."
        )
    elif max(result.moved) > 1e-12:
        verdict = says("The outputs differ: attention now knows where each word stands.", "good")
    else:
        verdict = says(
            "Each word's output is the same in both orders: attention can't tell them apart.", "bad"
        )
    return Shown(
        side_by_side(
            *(
                matrix(f"Outputs: {' '.join(words)}", outputs, words, size)
                for words, outputs in zip(result.sentences, result.outputs, strict=True)
            ),
            table("Difference between the two", ["largest"], rows) if rows else "",
        )
        + verdict
    )


_LEFT_OUT, _ADDED = "left out", "added to each word"
WORD_ORDER = Chapter(
    "order",
    "Word order",
    """
*Dogs chase cats* and *cats chase dogs*: the same words, another meaning. A sum does not care about the
order of its parts, and attention is a weighted sum. Put the words in another order, and the outputs come
in that order, with the same numbers.

So the position is added to each encoding before the first layer. The first transformer (Vaswani et al.
2017, section 3.5) took sines and cosines of the position $p$, each pair slower than the one before:

$$\\sin\\!\\left(p / 10000^{2i/d}\\right),\\quad \\cos\\!\\left(p / 10000^{2i/d}\\right)$$

The four numbers of a word follow from its letters here, and mean nothing.
""",
    (
        "Compare the row of *dogs* on both sides. Then add the positions.",
        "Write any other sentence, and the same words in another order.",
    ),
    (
        Field("first", "First", "dogs chase cats"),
        Field("second", "Second", "cats chase dogs"),
        Field("positions", "Positions", _LEFT_OUT, choices=(_LEFT_OUT, _ADDED)),
    ),
    _order,
)

CHAPTERS = (LOOK_UP, LIKENESS, SHARES, NO_WEIGHTS, WORD_ORDER)
