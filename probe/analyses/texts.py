"""One head on two texts: what the words around them change for the tokens that both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from torch import Tensor

from probe.analyses.compare import Comparison
from probe.display.nonfinite import nonfinite
from probe.errors import ProbeError
from probe.models.loading import Model, resolve
from probe.running.capture import Run, attend
from probe.running.tokens import Span, Text


@dataclass(frozen=True)
class TextMap:
    """One head's map of one of two texts: ``weights`` is (T, T) [query, key], the rest as in a ``Run``."""

    text: Text
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    truncated: str | None
    weights: Tensor

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "special": list(self.special),
            "truncated": self.truncated,
            "weights": self.weights.tolist(),
        }


@dataclass(frozen=True)
class TextComparison:
    """One head on two texts, aligned at the A tokens that they share, in order. Printing it shows a table.

    Attributes
    ----------
    model_name, source, layer, head : which head.
    first, second : the two maps.
    pairs : (position in the first, position in the second) of each aligned token.
    difference : (A, A), second minus first, between aligned queries and aligned keys.
    moved : (A,), the part of each aligned query's weight that goes elsewhere in the second text: half the
        sum of the absolute differences of its two rows, a key that only one text has counting in full. 0: the
        same row; 1: nothing in common.
    """

    model_name: str
    source: str
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

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        return {
            "model": self.model_name,
            "source": self.source,
            "layer": self.layer,
            "head": self.head,
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            "pairs": [list(pair) for pair in self.pairs],
            "difference": self.difference.tolist(),
            "moved": self.moved.tolist(),
            "summary": self.summary,
        }

    def __str__(self) -> str:
        from probe.display.terminal import texts_table

        return texts_table(self)


def compare_texts(
    model: Model | str, first: Text, second: Text, layer: int, head: int, *, truncate: bool = False
) -> TextComparison:
    """Run a model on two texts, each by itself, and compare one head where their tokens agree.

    Tokens agree if they are called the same on screen. They are aligned in order, by the longest stretches
    that both texts have (Ratcliff and Metzener 1988, "Pattern Matching: The Gestalt Approach", as Python's
    difflib does it).

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
    return _compared(model, layer, head, *(_of_run(run, layer, head) for run in runs))


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
    return _compared(first.model, layer, head, *(_of_comparison(one, layer, head) for one in (first, second)))


def _of_run(run: Run, layer: int, head: int) -> TextMap:
    return TextMap(run.text, run.tokens, run.spans, run.special, run.truncated, run.weights(layer, head))


def _of_comparison(comparison: Comparison, layer: int, head: int) -> TextMap:
    encoding = comparison.encoding
    # A clone, because a view would keep the maps of all heads alive.
    weights = comparison.from_model(layer, head).clone()
    return TextMap(
        encoding.text, encoding.tokens, encoding.spans, encoding.special, encoding.truncated, weights
    )


def _compared(model: Model, layer: int, head: int, first: TextMap, second: TextMap) -> TextComparison:
    pairs = align(first.tokens, second.tokens)
    rows, columns = [one for one, _ in pairs], [other for _, other in pairs]
    ours, theirs = first.weights[rows], second.weights[columns]  # (A, T of each)
    difference = theirs[:, columns] - ours[:, rows]  # (A, A)
    only_first = [position for position in range(len(first.tokens)) if position not in rows]
    only_second = [position for position in range(len(second.tokens)) if position not in columns]
    unshared = ours[:, only_first].sum(-1) + theirs[:, only_second].sum(-1)
    return TextComparison(
        model_name=model.name,
        source=model.source,
        layer=layer,
        head=head,
        first=first,
        second=second,
        pairs=pairs,
        difference=difference,
        moved=(difference.abs().sum(-1) + unshared) / 2,
    )


def align(first: Sequence[str], second: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Positions of equal tokens in two texts, in order in both.

    >>> align(["a", "b", "c"], ["b", "x", "c"])
    ((1, 0), (2, 2))
    """
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    return tuple((block.a + i, block.b + i) for block in blocks for i in range(block.size))
