"""One row of one head of a real model, number by number."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from attention import scaled_dot_product_attention
from probe.analyses.asking import analysis
from probe.analyses.result import Origin, Result, named, of_text
from probe.display.data import Column, Numbers, Table, array
from probe.display.nonfinite import nonfinite
from probe.display.terminal import digits, rendered
from probe.errors import ProbeError
from probe.models.loading import Model, resolve
from probe.running.head_numbers import HeadNumbers, exact, head_numbers_of
from probe.running.inputs import encode_for
from probe.running.recording import Recording, record
from probe.running.tokens import Text


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Result, what="trace"):
    """How one query of one head comes to its context vector: every number on the way, in order.

    All numbers are computed in float64 from the layer's recorded input and its weights, so that each line
    follows from the lines before it to as many digits as are shown. ``model_weights`` is what the model
    itself computed, in its own dtype, beside them.

    In some models query and keys are normalised after the projection: divided by their size, the root of
    their mean square, and multiplied with a gain for each number (Zhang and Sennrich 2019). With rotary
    positions (Su et al. 2021) they are turned then: pair i of a vector at position p, its numbers
    (a, b) = (x[i], x[i + n]) with n frequencies, becomes (a cos - b sin, b cos + a sin) of the angle
    p x frequency i; (x[2 i], x[2 i + 1]) if ``interleaved``. Angles, sines and cosines are rounded to
    float32, as the models do.

    Attributes
    ----------
    layer, head, query : which row; ``query`` is the position of its token.
    text, tokens, special, truncated : as in a ``Run``; T tokens.
    key_head : which key and value head this head reads: ``head``, unless several heads share one.
    input : (d_model,), the layer's attention input at the query's position.
    frequencies : (n,), radians a position; this and the angles are None without rotary positions.
    interleaved : which numbers turn together.
    angles : (T, n), radians, position times frequency.
    projected_query : (head_dim,), the query vector before it is normalised and turned; None if it is neither.
    projected_keys : (T, head_dim), the keys likewise.
    query_size : what the query is divided by; this and the next five are None where nothing is normalised.
    key_sizes : (T,), what each key is divided by.
    query_gain, key_gain : (head_dim,), what their numbers are then multiplied with.
    normalised_query : (head_dim,), the query vector after that, before it is turned.
    normalised_keys : (T, head_dim), the keys likewise.
    query_vector : (head_dim,), input times the head's query weights, plus their bias; normalised and turned.
    keys, values : (T, head_dim), the same with the key and value weights, for every token; values don't turn.
    dot_products : (T,), query vector times each key.
    scale : what they are multiplied with, 1 / sqrt(head_dim) in most models.
    scaled : (T,), dot products times scale.
    causal : whether the mask hides later tokens.
    window : how many of the last tokens it lets through, the query's included; None for all of them.
    allowed : (T,) bool, which keys the mask lets through.
    masked : (T,), scaled, with -inf where the mask forbids.
    maximum : the largest masked score; it is subtracted before the exponential and cancels in the division.
    exponentials : (T,), exp(masked - maximum).
    exponential_sum : their sum.
    weights : (T,), exponentials divided by their sum.
    context : (head_dim,), the values weighted and added up.
    output_share : (d_model,), context times the head's columns of the output projection: what this head adds
        to the layer's attention output, to which the other heads and the bias are added.
    model_weights : (T,), the model's own weights of this row.
    numbers : inputs and weights of the whole head, all queries; left out of ``to_dict``.
    """

    also_in_dict = ("max_abs_error",)
    not_in_dict = ("numbers",)

    layer: int
    head: int
    query: int
    text: Text
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    truncated: str | None
    key_head: int
    input: Tensor
    frequencies: Tensor | None
    interleaved: bool
    angles: Tensor | None
    projected_query: Tensor | None
    projected_keys: Tensor | None
    query_size: float | None
    key_sizes: Tensor | None
    query_gain: Tensor | None
    key_gain: Tensor | None
    normalised_query: Tensor | None
    normalised_keys: Tensor | None
    query_vector: Tensor
    keys: Tensor
    values: Tensor
    dot_products: Tensor
    scale: float
    scaled: Tensor
    causal: bool
    window: int | None
    allowed: Tensor
    masked: Tensor
    maximum: float
    exponentials: Tensor
    exponential_sum: float
    weights: Tensor
    context: Tensor
    output_share: Tensor
    model_weights: Tensor
    numbers: HeadNumbers = field(repr=False)

    @property
    def max_abs_error(self) -> float:
        """Largest difference of the weights from the model's own."""
        return float((self.weights - self.model_weights.double()).abs().max())

    @property
    def mask(self) -> str:
        """What the mask lets this query see, in words."""
        seen = [position for position, allowed in enumerate(self.allowed.tolist()) if allowed]
        kind = "causal" if self.causal else "bidirectional"
        window = "" if self.window is None else f", a window of {self.window}"
        keys = f"keys {seen[0]} to {seen[-1]}" if len(seen) > 1 else f"key {seen[0]} alone"
        return f"{keys} ({kind}{window})"

    @property
    def shared(self) -> str:
        """Which key and value head is read, in words to be added, where several heads share one; else ""."""
        if self.numbers.key_head is None:
            return ""
        key_head, heads = self.numbers.key_head
        return f", of key and value head {key_head}, which {heads} heads read"

    @property
    def problem(self) -> str | None:
        """One sentence if the row holds numbers that are not finite; None if all is well."""
        return nonfinite(self.model_name, (self.weights, self.model_weights, self.output_share))

    @property
    def summary(self) -> str:
        """Which row it is, and how far it is from the model's own, in one line."""
        row = f"query {self.query} {self.tokens[self.query]}"
        problem = self.problem or f"largest difference from the model's weights {self.max_abs_error:.1e}"
        return f"{self.model_name} ({self.source}), layer {self.layer}, head {self.head}, {row}; {problem}"

    def blocks(self) -> Numbers:
        """Every number of the row."""
        # Masked scores are the scaled ones where they are allowed; minus infinity is no number in JSON.
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "masked"}
        return {
            name: array(value) for name, value in values.items() if isinstance(value, (float, torch.Tensor))
        }

    def table(self) -> Table:
        """A row for each key: the way from its dot product to its weight."""
        parts = {
            "dot product": self.dot_products,
            "scaled": self.scaled,
            "allowed": self.allowed.double(),
            "exponential": self.exponentials,
            "weight": self.weights,
            "model's weight": self.model_weights,
        }
        columns = [Column(name, part.double().tolist(), digits="#.7g") for name, part in parts.items()]
        return Table((Column("key", named(self.tokens)), *columns))

    @property
    def remarks(self) -> tuple[str, ...]:
        made = {
            "normalised": self.query_gain is not None,
            "turned by their positions": self.frequencies is not None,
        }
        done = " and ".join(what for what, is_done in made.items() if is_done)
        turned = f"; query and keys are {done}" if done else ""
        return (
            f"It sees {self.mask}{turned}. Scale {digits(self.scale)}, largest masked score "
            f"{digits(self.maximum)}, sum of the exponentials {digits(self.exponential_sum)}.",
        )

    def printed(self) -> tuple[Table, ...]:
        """The way from dot products to weights, a row for each key."""
        may = self.allowed.tolist()

        def shown(values: Tensor, otherwise: str) -> list[str]:
            return [
                digits(value) if ok else otherwise for value, ok in zip(values.tolist(), may, strict=True)
            ]

        columns = (
            Column("key", range(len(self.tokens))),
            Column("token", self.tokens),
            *_in_digits(("query · key", self.dot_products)),
            Column("times scale", shown(self.scaled, "masked"), right=True),
            Column("exp(− largest)", shown(self.exponentials, "0"), right=True),
            Column("weight", shown(self.weights, "0"), right=True),
            *_in_digits(("model's weight", self.model_weights)),
        )
        return (Table(columns),)

    def workbook(self) -> HeadNumbers:
        """What a workbook that computes the head again is made of."""
        return self.numbers

    def told(self, rows: int | None = None) -> str:
        """A trace to be followed with a pocket calculator: seven significant digits a number."""
        masked = [
            digits(value) if may else "-inf"
            for value, may in zip(self.masked.tolist(), self.allowed.tolist(), strict=True)
        ]
        keys = Table(
            (
                Column("key", range(len(self.tokens))),
                Column("token", self.tokens),
                *_in_digits(("dot product", self.dot_products), ("scaled", self.scaled)),
                Column("masked", masked, right=True),
                *_in_digits(("exponential", self.exponentials), ("weight", self.weights)),
                *_in_digits(("model's weight", self.model_weights)),
            )
        )
        named = list(enumerate(self.tokens))
        parts = [
            "\n".join([self.summary, *self.remarks, *self.cuts]),
            f"Input at this position:\n{_vector(self.input)}",
            *_query_and_keys(self),
            f"Dot product = query vector . key vector.  Scaled = dot product x {digits(self.scale)}.  "
            "Masked = -inf for keys the mask forbids.\n"
            f"Exponential = exp(masked - {digits(self.maximum)}), the largest.  Their sum is "
            f"{digits(self.exponential_sum)}.  Weight = exponential / sum.",
            rendered(keys if rows is None else keys.head(rows)).rstrip(),
            f"Value vectors{self.shared}:\n"
            + "\n".join(f"{i} {token}:\n{_vector(self.values[i])}" for i, token in named),
            f"Context vector = sum of weight x value vector:\n{_vector(self.context)}",
            f"This head's share of the layer's output = context x its output weights:\n"
            f"{_vector(self.output_share)}",
        ]
        return "\n\n".join(parts) + "\n"


@analysis(Trace, command="trace")
def trace(
    model: Model | str, text: Text, layer: int, head: int, query: int, *, truncate: bool = False
) -> Trace:
    """Run a model once, and follow one query of one head through its attention, number by number.

    Parameters
    ----------
    layer, head, query : which row; all counted from 0, ``query`` over the tokens, special tokens included.

    Raises
    ------
    ProbeError
        If there is no such model, layer, head or position, or the text can't be taken.
    """
    model = resolve(model)
    model.check_head(layer, head)
    encoding = encode_for(model, text, truncate=truncate)
    _check_position(query, len(encoding))
    return trace_of(record(model, [encoding]), layer, head, query)


def trace_of(recording: Recording, layer: int, head: int, query: int) -> Trace:
    """``trace`` for a run of a single text that has been recorded already."""
    model, (encoding,) = recording.model, recording.encodings
    model.check_head(layer, head)
    _check_position(query, len(encoding))
    seen, site = recording.layers[layer], model.sites[layer]
    numbers = head_numbers_of(recording, layer, head)
    assert numbers.inputs is not None
    query_norm, key_norm = numbers.query_norm, numbers.key_norm
    query_sizes = numbers.sizes("query")
    kept = numbers.frequencies is not None or query_norm is not None

    with torch.no_grad():
        query_vector, keys, values = (numbers.vectors(role) for role in ("query", "key", "value"))
        allowed = numbers.allowed[query]
        steps = scaled_dot_product_attention(
            query_vector[query, None], keys, values, mask=allowed, scale=site.scale
        )
        assert steps.scores is not None and steps.scaled is not None and steps.masked is not None
        masked = steps.masked[0]
        maximum = masked.max()
        exponentials = (masked - maximum).exp()
        columns = slice(head * site.head_dim, (head + 1) * site.head_dim)
        # (d_model, head_dim) @ (head_dim,) -> (d_model,)
        output_share = exact(site.output.weight()[:, columns]) @ steps.output[0]

    return Trace(
        layer=layer,
        head=head,
        query=query,
        **of_text(encoding, "special"),
        key_head=head // site.group,
        input=numbers.inputs[query],
        frequencies=numbers.frequencies,
        interleaved=numbers.interleaved,
        angles=numbers.angles,
        projected_query=numbers.projected("query")[query] if kept else None,
        projected_keys=numbers.projected("key") if kept else None,
        query_size=None if query_sizes is None else float(query_sizes[query]),
        key_sizes=numbers.sizes("key"),
        query_gain=None if query_norm is None else query_norm.gain,
        key_gain=None if key_norm is None else key_norm.gain,
        normalised_query=None if query_norm is None else numbers.normalised("query")[query],
        normalised_keys=None if key_norm is None else numbers.normalised("key"),
        query_vector=query_vector[query],
        keys=keys,
        values=values,
        dot_products=steps.scores[0],
        scale=site.scale,
        scaled=steps.scaled[0],
        causal=numbers.causal,
        window=numbers.window,
        allowed=allowed,
        masked=masked,
        maximum=float(maximum),
        exponentials=exponentials,
        exponential_sum=float(exponentials.sum()),
        weights=steps.weights[0],
        context=steps.output[0],
        output_share=output_share,
        model_weights=seen.weights[0, head, query].cpu(),
        numbers=numbers,
        origin=Origin.of(model, "eager"),
    )


def _check_position(query: int, length: int) -> None:
    if not isinstance(query, int) or isinstance(query, bool) or not 0 <= query < length:
        raise ProbeError(
            f"There is no position {query!r}: the text has {length} tokens, special tokens included, counted "
            f"from 0 to {length - 1}."
        )


def _query_and_keys(trace: Trace) -> list[str]:
    """The vectors that the dot products are of, how they were normalised, and how they were turned."""
    named = list(enumerate(trace.tokens))
    title = f"Key vectors, likewise{trace.shared}:"
    query, keys = trace.projected_query, trace.projected_keys
    if query is None or keys is None:
        return [
            f"Query vector = input x query weights + bias:\n{_vector(trace.query_vector)}",
            f"{title}\n" + "\n".join(f"{i} {token}:\n{_vector(trace.keys[i])}" for i, token in named),
        ]
    # What comes first of each key, and of the query.
    of_keys = [f"{i} {token}, before it is turned:\n{_vector(keys[i])}" for i, token in named]
    of_query = [f"Query vector before it is turned = input x query weights + bias:\n{_vector(query)}"]
    if trace.query_size is not None:
        assert trace.query_gain is not None and trace.normalised_query is not None
        assert trace.key_gain is not None and trace.normalised_keys is not None
        norm = trace.numbers.query_norm
        assert trace.key_sizes is not None and norm is not None
        of_what = "its numbers" if norm.of_all_heads is None else "all heads' numbers"
        of_query = [
            f"Query vector before it is normalised = input x query weights + bias:\n{_vector(query)}",
            f"Gains of query vectors:\n{_vector(trace.query_gain)}",
            f"Gains of key vectors:\n{_vector(trace.key_gain)}",
            f"Query vector, normalised = divided by {digits(trace.query_size)}, the root of (the mean square "
            f"of {of_what} + {norm.eps:g}), times gain:\n"
            f"{_vector(trace.normalised_query)}",
        ]
        of_keys = [
            f"{i} {token}, before it is normalised:\n{_vector(keys[i])}\n"
            f"normalised, divided by {digits(trace.key_sizes[i])}:\n"
            f"{_vector(trace.normalised_keys[i])}"
            for i, token in named
        ]
        query, keys = trace.normalised_query, trace.normalised_keys
    if trace.frequencies is None or trace.angles is None:
        return [*of_query, f"{title}\n" + "\n".join(of_keys)]
    pairs = [trace.numbers.pair(pair) for pair in range(len(trace.frequencies))]
    which = "2 i" if trace.interleaved else "i"
    other = "2 i + 1" if trace.interleaved else f"i + {len(pairs)}"
    stay = "" if 2 * len(pairs) == len(query) else f"  Numbers from {2 * len(pairs)} on stay."
    first, second = (list(side) for side in zip(*pairs, strict=True))
    turned = Table(
        (
            Column("pair", range(len(pairs))),
            Column("frequency", [_angle(value) for value in trace.frequencies], right=True),
            Column("angle", [_angle(value) for value in trace.angles[trace.query]], right=True),
            *_in_digits(("a", query[first]), ("b", query[second])),
            *_in_digits(("a cos - b sin", trace.query_vector[first])),
            *_in_digits(("b cos + a sin", trace.query_vector[second])),
        )
    )
    return [
        *of_query,
        f"Turned by its position: pair i is number {which}, called a, and number {other}, called b.  Angle = "
        f"position x frequency = {trace.query} x frequency, in radians.{stay}\n\n{rendered(turned).rstrip()}",
        f"Query vector, turned:\n{_vector(trace.query_vector)}",
        f"{title}\n"
        + "\n".join(
            f"{of_keys[i]}\n"
            f"angles = {i} x frequency:\n{_lines([f'{_angle(angle):>15}' for angle in trace.angles[i]])}\n"
            f"turned:\n{_vector(trace.keys[i])}"
            for i, token in named
        ),
    ]


def _in_digits(*parts: tuple[str, Tensor]) -> list[Column]:
    """Columns of numbers with seven significant digits."""
    return [Column(name, part.tolist(), digits="#.7g") for name, part in parts]


def _vector(values: Tensor) -> str:
    """Eight numbers a line, in columns."""
    return _lines([f" {digits(value):>13}" for value in values.tolist()])


def _lines(numbers: list[str]) -> str:
    return "\n".join("".join(numbers[start : start + 8]) for start in range(0, len(numbers), 8))


def _angle(value: float | Tensor) -> str:
    """Nine significant digits, all that a float32 has: what an angle is off by, its sine is too."""
    return f"{float(value):#.9g}"
