"""One head on two texts: what the words around them change for the tokens that both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.attend import Run, attend
from probe.analyses.compare import Comparison
from probe.analyses.result import Origin, Result, named
from probe.display.data import Axis, Column, Numbers, Panel, Sheet, Table, array
from probe.display.nonfinite import nonfinite
from probe.errors import ProbeError
from probe.models.loading import Model, resolve
from probe.running.tokens import Encoding, Span, Text


@dataclass(frozen=True)
class TextMap:
    """One head's map of one of two texts: ``weights`` is (T, T) [query, key], the rest as in a ``Run``."""

    text: Text
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    truncated: str | None
    weights: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class TextComparison(Result, what="texts"):
    """One head on two texts, aligned at the A tokens that they share, in order. Printing it shows a table.

    Attributes
    ----------
    layer, head : which head.
    first, second : the two maps.
    pairs : (position in the first, position in the second) of each aligned token.
    difference : (A, A), second minus first, between aligned queries and aligned keys.
    moved : (A,), the part of each aligned query's weight that goes elsewhere in the second text: half the
        sum of the absolute differences of its two rows, a key that only one text has counting in full. 0: the
        same row; 1: nothing in common.
    """

    also_in_dict = ("summary",)

    layer: int
    head: int
    first: TextMap
    second: TextMap
    pairs: tuple[tuple[int, int], ...]
    difference: Tensor
    moved: Tensor

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        problem = nonfinite(self.model_name, (self.first.weights, self.second.weights))
        if problem:
            return problem
        which = f"Layer {self.layer}, head {self.head} of {self.model_name}"
        if not self.pairs:
            return f"{which}: the two texts share no token, so there is nothing to compare."
        most = int(self.moved.argmax())
        first, second = self.pairs[most]
        tokens = "1 token is" if len(self.pairs) == 1 else f"{len(self.pairs)} tokens are"
        return (
            f"{which}: {tokens} in both texts; {float(self.moved.mean()):.1%} of the weight goes elsewhere "
            f'in the second, on average; most for "{self.first.tokens[first]}" (position {first}, there '
            f"{second}): {float(self.moved[most]):.1%}."
        )

    @property
    def cuts(self) -> tuple[str, ...]:
        both = (("first", self.first), ("second", self.second))
        return tuple(f"The {name} text: {one.truncated}" for name, one in both if one.truncated)

    @property
    def all_texts(self) -> tuple[Text, ...]:
        return self.first.text, self.second.text

    @property
    def all_tokens(self) -> tuple[str, ...]:
        return (*self.first.tokens, *self.second.tokens)

    def _argument(self, name: str) -> Any:
        value = getattr(self, name)
        return value.text if isinstance(value, TextMap) else value

    def blocks(self) -> Numbers:
        """Both maps, and the weight that moves."""
        return {
            "first": array(self.first.weights),
            "second": array(self.second.weights),
            "moved": array(self.moved),
        }

    def table(self) -> Table:
        """A row for each token that both texts have."""
        before, after = named(self.first.tokens), named(self.second.tokens)
        return Table(
            (
                Column("first", [before[row] for row, _ in self.pairs]),
                Column("second", [after[column] for _, column in self.pairs]),
                Column("moved", self.moved.tolist()),
            )
        )

    def printed(self) -> tuple[Table, ...]:
        """The tokens that both texts have, and how much of each one's weight moved."""
        if not self.pairs:
            return ()
        columns = (
            Column("first", [row for row, _ in self.pairs]),
            Column("second", [column for _, column in self.pairs]),
            Column("token", [self.first.tokens[row] for row, _ in self.pairs]),
            Column("weight moved", self.moved.tolist(), digits=".4f"),
            Column("largest in the first on", [_largest_key(self.first, row) for row, _ in self.pairs]),
            Column("in the second on", [_largest_key(self.second, column) for _, column in self.pairs]),
        )
        return (Table(columns),)

    def _sheet(self) -> Sheet:
        """The head on each text, and on the tokens that both have."""
        panels = [
            _panel("In the first text", "first", self.first),
            _panel("In the second text", "second", self.second),
        ]
        if self.pairs:
            rows = [row for row, _ in self.pairs]
            labels = tuple(self.first.tokens[row] for row in rows)
            axes = Axis("query in both", labels, tuple(rows)), Axis("key in both", labels, tuple(rows))
            panels += [
                Panel("Change", "change", self.difference, *axes, "change", "second minus first"),
                Panel(
                    "Weight that goes elsewhere",
                    "elsewhere",
                    self.moved,
                    *axes,
                    "bars",
                    "of each query's weight; a key that only one text has counts in full",
                ),
            ]
        title = f"{self.model_name} ({self.source}), layer {self.layer}, head {self.head}"
        return Sheet(title, tuple(panels), (self.summary,))


def _panel(title: str, short: str, one: TextMap) -> Panel:
    return Panel(title, short, one.weights, Axis("query", one.tokens), Axis("key", one.tokens))


def _largest_key(one: TextMap, query: int) -> str:
    key = int(one.weights[query].argmax())
    return f"{key} {one.tokens[key]} ({float(one.weights[query, key]):.3f})"


@analysis(TextComparison, command="texts")
def compare_texts(
    model: Model | str, first: Text, second: Text, layer: int, head: int, *, truncate: bool = False
) -> TextComparison:
    """Run a model on two texts, each by itself, and compare one head where their tokens agree.

    Tokens agree if they are called the same on screen. They are aligned in order, by the longest stretches
    that both texts have (Ratcliff and Metzener 1988, "Pattern Matching: The Gestalt Approach", as Python's
    difflib does it).

    Parameters
    ----------
    first, second : the two texts.
    layer, head : which head, both counted from 0.

    Raises
    ------
    ProbeError
        If there is no such model, layer or head, or a text can't be taken; the error says which text.

    Examples
    --------
    >>> compared = compare_texts("bert", "this coffee is great", "my laptop just died, great", 2, 5)
    >>> [compared.first.tokens[position] for position, _ in compared.pairs]
    ['[CLS]', 'great', '[SEP]']
    """
    model = resolve(model)
    model.check_head(layer, head)
    runs = []
    for which, text in (("first", first), ("second", second)):
        try:
            runs.append(attend(model, text, [(layer, head)], truncate=truncate))
        except ProbeError as error:
            raise error.about(f"The {which} text") from None
    maps = (_text_map(run, run.weights(layer, head)) for run in runs)
    return _compared(runs[0].origin, layer, head, *maps)


def compare_texts_of(first: Comparison, second: Comparison, layer: int, head: int) -> TextComparison:
    """``compare_texts`` for runs of one model that have been made already.

    Raises
    ------
    ProbeError
        If the runs are of different models, or there is no such layer or head.
    """
    if first.model is not second.model:
        raise ProbeError(
            f"The two runs are of different models, {first.model.name} and {second.model.name}: "
            "take one for both."
        )
    first.model.check_head(layer, head)
    # Clones, because a view would keep the maps of all heads alive.
    maps = (_text_map(one.encoding, one.from_model(layer, head).clone()) for one in (first, second))
    return _compared(first.origin, layer, head, *maps)


def _text_map(of: Run | Encoding, weights: Tensor) -> TextMap:
    return TextMap(of.text, of.tokens, of.spans, of.special, of.truncated, weights)


def _compared(origin: Origin, layer: int, head: int, first: TextMap, second: TextMap) -> TextComparison:
    pairs = align(first.tokens, second.tokens)
    rows, columns = [one for one, _ in pairs], [other for _, other in pairs]
    ours, theirs = first.weights[rows], second.weights[columns]  # (A, T of each)
    difference = theirs[:, columns] - ours[:, rows]  # (A, A)
    only_first = [position for position in range(len(first.tokens)) if position not in rows]
    only_second = [position for position in range(len(second.tokens)) if position not in columns]
    unshared = ours[:, only_first].sum(-1) + theirs[:, only_second].sum(-1)
    return TextComparison(
        layer=layer,
        head=head,
        first=first,
        second=second,
        pairs=pairs,
        difference=difference,
        moved=(difference.abs().sum(-1) + unshared) / 2,
        origin=origin,
    )


def align(first: Sequence[str], second: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Positions of equal tokens in two texts, in order in both.

    >>> align(["a", "b", "c"], ["b", "x", "c"])
    ((1, 0), (2, 2))
    """
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    return tuple((block.a + i, block.b + i) for block in blocks for i in range(block.size))
