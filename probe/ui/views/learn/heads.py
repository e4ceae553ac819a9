"""Steps 11 to 14: two sentences, several heads, and how large it all gets."""

from __future__ import annotations

from attention.examples import DRAW_A_MAP, GPT2_SMALL, GPT2_XL, GPT2Size
from probe.ui.views.learn import lessons
from probe.ui.views.learn.blocks import matrix, says, side_by_side, table, tiny
from probe.ui.views.learn.chapter import Chapter, Field, Shown, heatmap
from probe.ui.views.learn.looking import ENCODINGS

_ENGLISH = "the 1 0.2\nsky 0.1 1.1\nis -1 0.2\nblue -0.2 -1"
_SPANISH = "el 0.9 0.1\ncielo 0.2 1\nes -1.1 0.1\nazul -0.1 -1.2"


# ---- 11


def _across(decoder: str, encoder: str, sharpness: float) -> Shown:
    asking, queries = lessons.read_words(decoder, "The words that ask")
    answering, keys = lessons.read_words(encoder, "The words that answer")
    steps = lessons.attend_across(queries, keys, sharpness)
    size = [str(i) for i in range(len(keys[0]))]
    finds = [
        f"{word} → {answering[int(row.argmax())]}" for word, row in zip(asking, steps.weights, strict=True)
    ]
    return Shown(
        side_by_side(
            matrix("Weights", steps.weights, asking, answering, percentages=True),
            matrix("Outputs", steps.output, asking, size),
        )
        + says(f"Each looks most at: {', '.join(finds)}."),
        heatmap("Cross-attention", [("Weights", steps.weights)], asking, answering, row=len(asking) - 1),
    )


ACROSS = Chapter(
    "cross",
    "Cross-attention",
    """
The first transformer translated (Vaswani et al. 2017, section 3.2.3). Its encoder read *the sky is blue*;
its decoder wrote *el cielo es azul*, and at every word looked back at the English. The recipe changes in
one place:

$$Q = X_{\\text{dec}} W_Q^\\top \\qquad K = X_{\\text{enc}} W_K^\\top \\qquad V = X_{\\text{enc}} W_V^\\top$$

Queries come from one sentence, keys and values from the other. There is no causal mask: the English is
all there. The sentences needn't be equally long, so the matrix needn't be square.

The encodings are toys, chosen so that words with the same meaning point the same way. A trained model
finds such directions by itself. Models that describe a picture or take down speech work in the same way.
""",
    (
        "Take the last Spanish word away, or add `today 0.7 0.7` to the English: what stays as wide as it "
        "was?",
        "Give *azul* the numbers of *sky*: where does it look now?",
        "Turn the sharpness to 0: each Spanish word gets the same, the mean of the English.",
    ),
    (
        Field("decoder", "Words that ask, with encodings", _SPANISH, 4),
        Field("encoder", "Words that answer, with encodings", _ENGLISH, 4),
        Field("sharpness", "Sharpness: what queries are multiplied with", 4, range=(0, 12, 0.5)),
    ),
    _across,
    has_map=True,
)


# ---- 12


def _heads(words: str, num_heads: float, seed: str) -> Shown:
    tokens, encodings = lessons.read_words(words, "The words")
    heads, drawn = int(num_heads), lessons.read_count(seed, "Seed", 0, 999_999)
    result = lessons.stack_and_split(encodings, heads, drawn)
    labels = [f"{head}.{i}" for head in range(heads) for i in range(len(encodings[0]))]
    rows = [
        (
            "stacked",
            [f"{result.stacked_products}", f"{result.stacked_multiplications:,}", f"{result.parameters:,}"],
        ),
        (
            "split",
            [f"{result.split_products}", f"{result.split_multiplications:,}", f"{result.parameters:,}"],
        ),
    ]
    return Shown(
        side_by_side(
            matrix("Output, stacked (head.number)", result.stacked, tokens, labels),
            matrix("Output, split (head.number)", result.split, tokens, labels),
        )
        + says(f"Largest difference between the two: {tiny(result.difference)}.", "good")
        + table("What it takes", ["products of matrices", "multiplications", "weights"], rows),
        heatmap(
            f"{heads} {'head' if heads == 1 else 'heads'} on the same words",
            [(f"Head {i}", weights) for i, weights in enumerate(result.weights)],
            tokens,
            tokens,
        ),
    )


HEADS = Chapter(
    "heads",
    "Many heads",
    """
One set of weights can look for one kind of thing. A model has several, its **heads**, each with its own
$W_Q$, $W_K$ and $W_V$, over the same words at the same time (Vaswani et al. 2017, section 3.2.2); their
outputs are put side by side:

$$\\operatorname{MultiHead}(X) = \\big[\\,\\text{head}_0,\\ \\text{head}_1,\\ \\dots\\,\\big]$$

**Stacked**, each head is a layer of its own, one after the other. **Split**, there is one wide matrix for
all queries, one for all keys, one for all values, whose results are cut up into heads. The numbers are
the same; so are the multiplications. But a few large products of matrices suit a processor far better
than many small ones.
""",
    (
        "The first two columns are the output of step 6: head 0 drew the same weights from seed 42. Head 1 "
        "sees the same words in another way.",
        "Turn up the number of heads: which count of products grows, which doesn't?",
    ),
    (
        Field("words", "Words and their encodings", ENCODINGS, 3),
        Field("heads", "Heads", 2, range=(1, 6, 1)),
        Field("seed", "Seed of the weights", str(DRAW_A_MAP.seed)),
    ),
    _heads,
    has_map=True,
)


# ---- 13


def _ways(width: str, heads: str, head_width: str) -> Shown:
    d, h = lessons.read_count(width, "Width", 1, 1024), lessons.read_count(heads, "Heads", 1, 64)
    each = lessons.read_count(head_width, "Values in each head", 1, 256)
    ways = lessons.ways_back(d, h, each)
    rows = [
        (way.name, [f"{way.value_width:,}", f"{way.joined:,}", f"{way.output:,}", f"{way.parameters:,}"])
        for way in ways
    ]
    rest = (
        ""
        if d % h == 0
        else says(
            f"{h} heads can't share {d} numbers evenly, so the way by narrower values is closed.", "bad"
        )
    )
    return Shown(
        table("Three ways", ["values per head", "side by side", "width in the end", "trained numbers"], rows)
        + says(f"{h} × {each} = {h * each} numbers for each word, from {d}.")
        + rest
    )


BACK = Chapter(
    "back",
    "Back to the width",
    """
Heads side by side are wider than what went in: three heads of two values make six numbers out of two. The
next layer wants the old width. Three ways:

1. **A linear layer** behind the heads, with as many outputs as the input had: $\\;[\\text{head}_0,
   \\dots]\\, W_O^\\top$. This is what BERT and GPT-2 do; it also lets the heads' findings mix.
2. **Narrower values**: with $d / h$ values in each of $h$ heads the sum is right by itself.
3. **No way back**: build what follows for the larger width.

Real models combine the first two: each head is $d / h$ wide, and a linear layer follows all the same.
""",
    (
        "Three heads: six numbers out of two, and one of the ways is closed. Why?",
        "Width 768, 12 heads, 64 values each: the sizes of GPT-2 small.",
    ),
    (
        Field("width", "Width of the input", "2"),
        Field("heads", "Heads", "2"),
        Field("head_width", "Values in each head", "2"),
    ),
    _ways,
)


# ---- 14


def _sizes(layers: str, heads: str, width: str, context: str, vocabulary: str) -> Shown:
    yours = GPT2Size(
        num_layers=lessons.read_count(layers, "Layers", 1, 200),
        num_heads=lessons.read_count(heads, "Heads", 1, 256),
        width=lessons.read_count(width, "Width", 1, 20_000),
        context_length=lessons.read_count(context, "Longest text", 1, 1_000_000),
        vocabulary_size=lessons.read_count(vocabulary, "Vocabulary", 1, 1_000_000),
    )
    named = (("GPT-2 small", GPT2_SMALL), ("GPT-2 XL", GPT2_XL), ("yours", yours))
    sizes = [lessons.size_of(size) for _, size in named]
    rows = [
        ("layers", [f"{s.size.num_layers:,}" for s in sizes]),
        ("heads in each", [f"{s.size.num_heads:,}" for s in sizes]),
        ("width", [f"{s.size.width:,}" for s in sizes]),
        ("width of a head", [f"{s.head_dim:,}" for s in sizes]),
        ("trained numbers in attention", [f"{s.attention_parameters:,}" for s in sizes]),
        ("trained numbers in all", [f"{s.parameters:,}" for s in sizes]),
        ("weights in all maps of one longest text", [f"{s.map_cells:,}" for s in sizes]),
    ]
    return Shown(table("Sizes", [name for name, _ in named], rows))


SIZES = Chapter(
    "sizes",
    "GPT-2",
    """
What you have built is the attention of GPT-2; what is left is to make it large. Per layer there are four
matrices of $d \\times d$ with their biases, for queries, keys, values and the way back:

$$4\\,(d^2 + d)$$

The smallest GPT-2 (Radford et al. 2019) has 12 layers of 12 heads and a width of 768: 124,439,808 trained
numbers, though its paper said 117 million. The largest has 48 layers of 25 heads and a width of 1,600. In
both a head is 64 wide.

Width doubled is four times the weights. Text doubled is four times the cells in every map.

Now look at real heads: **Compare** shows one of a BERT and one of a GPT-2 beside the same arithmetic.
""",
    (
        "Give XL's width, 1600, 48 heads instead of 25: why is that not possible?",
        "Double the width; then double the longest text. What grows four times?",
    ),
    (
        Field("layers", "Layers", "12"),
        Field("heads", "Heads", "12"),
        Field("width", "Width", "768"),
        Field("context", "Longest text, in tokens", "1024"),
        Field("vocabulary", "Vocabulary", "50257"),
    ),
    _sizes,
)

CHAPTERS = (ACROSS, HEADS, BACK, SIZES)
