"""Worked examples, as data: small inputs, and the results that were worked out for them on paper or printed.

Numbers have the digits they were printed with, and are right to half a unit of the last one unless a comment
says otherwise. Nothing is computed here but a sum of parameters; the tests put the inputs through this
package and compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

Row = tuple[float, ...]
Matrix = tuple[Row, ...]


@dataclass(frozen=True)
class Shares:
    """Scores that become shares of a whole.

    Attributes
    ----------
    scores : what is shared by.
    divided : each score divided by the sum of scores; not shares, as one is negative.
    exponentials : exp of each score.
    total : sum of the exponentials.
    largest_share : the first exponential divided by the total.
    """

    scores: Row
    divided: Row
    exponentials: Row
    total: float
    largest_share: float


# Three judges, three desserts: why a softmax exponentiates before it divides.
DESSERTS = Shares(
    scores=(2.0, 1.0, -1.0),
    divided=(1.0, 0.5, -0.5),
    exponentials=(7.389, 2.718, 0.368),
    total=10.475,
    largest_share=0.705,
)


@dataclass(frozen=True)
class ProjectedSentence:
    """A sentence through self-attention with drawn weights, from its encodings to its outputs.

    Attributes
    ----------
    tokens : T words.
    encodings : (T, 2), what goes in.
    seed : of torch's generator on the CPU, set just before the layer is made.
    W_query, W_key, W_value : (2, 2), as a Linear stores them, (d_out, d_in).
    first_query_entry : query 0, entry 0.
    first_values : entry 0 of each value.
    first_weights : what query 0 takes from each key.
    last_weight_on_itself : what the last query takes from its own key.
    output : (T, 2), of :class:`attention.SelfAttention`.
    causal_output : (T, 2), of :class:`attention.CausalAttention`.
    two_heads_output : (T, 4), of two independent heads side by side, drawn one after the other.
    """

    tokens: tuple[str, ...]
    encodings: Matrix
    seed: int
    W_query: Matrix
    W_key: Matrix
    W_value: Matrix
    first_query_entry: float
    first_values: Row
    first_weights: Row
    last_weight_on_itself: float
    output: Matrix
    causal_output: Matrix
    two_heads_output: Matrix


DRAW_A_MAP = ProjectedSentence(
    tokens=("draw", "a", "map"),
    encodings=((1.16, 0.23), (0.57, 1.36), (4.41, -2.16)),
    seed=42,
    W_query=((0.5406, 0.5869), (-0.1657, 0.6496)),
    W_key=((-0.1549, 0.1427), (-0.3443, 0.4153)),
    W_value=((0.6233, -0.5188), (0.6146, 0.1323)),
    first_query_entry=0.7621,
    # Made by hand from the rounded weights above, so the fourth decimal may be off by a few. For the same
    # reason first_weights times these values give 1.0114 on paper, where the output is 1.0100.
    first_values=(0.6037, -0.3503, 3.8694),
    first_weights=(0.357, 0.401, 0.242),
    last_weight_on_itself=0.896,
    output=((1.0100, 1.0641), (0.2040, 0.7057), (3.4989, 2.2427)),
    causal_output=((0.6038, 0.7434), (-0.0062, 0.6072), (3.4989, 2.2427)),
    two_heads_output=(
        (1.0100, 1.0641, -0.7081, -0.8268),
        (0.2040, 0.7057, -0.7417, -0.9193),
        (3.4989, 2.2427, -0.7190, -0.8447),
    ),
)


@dataclass(frozen=True)
class MaskedScores:
    """Scores under a causal mask, and the weights that come of them.

    Attributes
    ----------
    tokens : T words.
    scaled_scores : (T, T), already scaled: the softmax is taken of them as they are. -inf where masked.
    percentages : (T, T), the weights in whole per cent.
    """

    tokens: tuple[str, ...]
    scaled_scores: Matrix
    percentages: Matrix


THE_CAT_SAT_ON = MaskedScores(
    tokens=("The", "cat", "sat", "on"),
    scaled_scores=(
        (0.8, -inf, -inf, -inf),
        (0.3, 0.9, -inf, -inf),
        (0.2, 1.4, 0.7, -inf),
        (0.1, 0.6, 1.2, 0.4),
    ),
    percentages=(
        (100, 0, 0, 0),
        (35, 65, 0, 0),
        (17, 56, 28, 0),
        (14, 24, 43, 19),
    ),
)


@dataclass(frozen=True)
class GPT2Size:
    """The sizes of a GPT-2 (Radford et al. 2019, section 2.3 and table 2).

    Attributes
    ----------
    num_layers, num_heads : numbers of blocks, and of heads in each.
    width : of the embeddings, which is that of all heads together.
    context_length : the most tokens it takes.
    vocabulary_size : number of different tokens.
    """

    num_layers: int
    num_heads: int
    width: int
    context_length: int = 1024
    vocabulary_size: int = 50257

    @property
    def num_parameters(self) -> int:
        """Trained numbers, counted once where shared: the embeddings serve as the output layer as well."""
        embeddings = (self.vocabulary_size + self.context_length) * self.width
        attention = 4 * (self.width * self.width + self.width)  # query, key, value and output projections
        feed_forward = 2 * (self.width * 4 * self.width) + 4 * self.width + self.width  # to 4 widths, back
        layer_norm = 2 * self.width
        return embeddings + self.num_layers * (attention + feed_forward + 2 * layer_norm) + layer_norm


# Often quoted with 117M parameters, a figure of the paper's; it has 124,439,808.
GPT2_SMALL = GPT2Size(num_layers=12, num_heads=12, width=768)

# 25 heads and 48 layers, two numbers that are easily swapped: 48 heads don't divide 1600.
GPT2_XL = GPT2Size(num_layers=48, num_heads=25, width=1600)
