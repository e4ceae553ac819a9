"""Which heads link two words of a text: "it" and "trophy", say."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.attend import watched_origin
from probe.analyses.compare import Comparison
from probe.analyses.over_texts import Averaging, OverTexts, Progress, ask_each
from probe.analyses.result import Origin, columns_of, of_text
from probe.display.data import PanelKind, Sheet, Table, heads_panel
from probe.display.nonfinite import descending, nonfinite
from probe.errors import ProbeError
from probe.models.loading import Model
from probe.running.capture import watch
from probe.running.tokens import Encoding, Span, Text
from probe.running.words import group_words, token_parts

_LISTED = 40
_UNSPACED = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"}


@dataclass(frozen=True)
class FoundWord:
    """A word as asked for, and where it stands: the token positions of each occurrence."""

    word: str
    occurrences: tuple[tuple[int, ...], ...]

    @property
    def positions(self) -> tuple[int, ...]:
        """The token positions of all occurrences, in order."""
        return tuple(sorted({position for occurrence in self.occurrences for position in occurrence}))


@dataclass(frozen=True)
class HeadLink:
    """How strongly one head links the two words.

    Attributes
    ----------
    layer, head : counted from 0.
    weight : from ``from_word`` to ``to_word``: summed over the key's tokens, averaged over the query's.
    versus : the same to the second target; None without one.
    difference : weight - versus.
    """

    layer: int
    head: int
    weight: float
    versus: float | None
    difference: float | None


@dataclass(frozen=True, repr=False)
class FoundHeads(Averaging, what="found"):
    """The heads of a model by how much weight links two words of one text. Printing it shows a table.

    Attributes
    ----------
    from_word, to_word, versus : the query, the key, and the key to compare with (or None).
    queries : the token positions of ``from_word`` that count: those that can see both targets.
    heads : all heads, the largest weight first, NaN last.
    notice : a sentence about queries that were left out, or None.
    """

    also_in_dict = ("summary",)
    ranked_by: ClassVar[str] = "weight"
    scales: ClassVar[Mapping[str, PanelKind]] = {
        "weight": "weight",
        "versus": "weight",
        "difference": "change",
    }

    text: Text
    tokens: tuple[str, ...]
    truncated: str | None
    from_word: FoundWord
    to_word: FoundWord
    versus: FoundWord | None
    queries: tuple[int, ...]
    heads: tuple[HeadLink, ...]
    notice: str | None

    @property
    def by_difference(self) -> tuple[HeadLink, ...]:
        """All heads, the largest difference first, NaN last; empty without a second target."""
        if self.versus is None:
            return ()
        return tuple(sorted(self.heads, key=lambda head: descending(head.difference or 0.0)))

    @property
    def summary(self) -> str:
        """The strongest link in one line."""
        if self.problem:
            return self.problem
        best = self.heads[0]
        line = (
            f'Layer {best.layer}, head {best.head} of {self.model_name} links "{self.from_word.word}" to '
            f'"{self.to_word.word}" most: it puts {_share(best.weight)} of its weight there'
        )
        if self.versus is None:
            return f"{line}."
        other = self.by_difference[0]
        line = f'{line}, {_share(best.versus or 0.0)} on "{self.versus.word}"'
        if not (other.difference or 0.0) > 0.0:
            return f'{line}. No head prefers "{self.to_word.word}".'
        if other == best:
            return f"{line}. No head prefers it more."
        return (
            f"{line}. Layer {other.layer}, head {other.head} prefers it most: {_share(other.weight)} against "
            f"{_share(other.versus or 0.0)}."
        )

    @property
    def problem(self) -> str | None:
        return nonfinite(self.model_name, [head.weight for head in self.heads])

    @property
    def question(self) -> str:
        against = f' or "{self.versus.word}"' if self.versus else ""
        return f'heads from "{self.from_word.word}" to "{self.to_word.word}"{against}'

    @property
    def remarks(self) -> tuple[str, ...]:
        return (self.notice,) if self.notice else ()

    def _argument(self, name: str) -> Any:
        value = getattr(self, name)
        return value.word if isinstance(value, FoundWord) else value

    def table(self) -> Table:
        """A row for each head, in the order of layers: an order by nearly equal weights may change."""
        heads = sorted(self.heads, key=lambda one: (one.layer, one.head))
        return Table(columns_of(heads, ("layer", "head", "weight", "versus", "difference")))

    def printed(self) -> tuple[Table, ...]:
        """The strongest links, and with a second target those that tell the two apart."""
        by_difference = (self._listed(self.by_difference, "By difference:"),) if self.by_difference else ()
        return self._listed(self.heads), *by_difference

    def _listed(self, links: Sequence[HeadLink], title: str = "") -> Table:
        shares = {name: f"on {word.word}" for name, word in self._targets.items()}
        differences = columns_of(links, ("difference",), "+.4f") if self.versus else ()
        places = columns_of(links, ("layer", "head"))
        return Table((*places, *columns_of(links, shares, ".4f"), *differences), title)

    @property
    def _targets(self) -> dict[str, FoundWord]:
        """The words that are attended to, by what the weight on them is called in a ``HeadLink``."""
        return {"weight": self.to_word, **({"versus": self.versus} if self.versus else {})}

    def _sheet(self) -> Sheet:
        """A panel for each target: a row for each layer, a column for each head."""
        panels = tuple(
            heads_panel(
                f"{self.from_word.word} → {word.word}",
                {(link.layer, link.head): getattr(link, name) for link in self.heads},
                "weight from the first word to the second",
            )
            for name, word in self._targets.items()
        )
        return Sheet(f"{self.model_name} ({self.source}), all heads", panels, (self.summary,))


@overload
def find_heads(
    model: Model | str,
    text: Text,
    from_word: str,
    to_word: str,
    versus: str | None = None,
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> FoundHeads: ...


@overload
def find_heads(
    model: Model | str,
    text: list[str] | list[tuple[str, str]] | list[Text],
    from_word: str,
    to_word: str,
    versus: str | None = None,
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> OverTexts[FoundHeads]: ...


@analysis(FoundHeads, command="find")
def find_heads(
    model: Model | str,
    text: Text | Sequence[Text],
    from_word: str,
    to_word: str,
    versus: str | None = None,
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> FoundHeads | OverTexts[FoundHeads]:
    """Run a model once on a text and rank its heads by the weight that links two words. No map is kept.

    Parameters
    ----------
    text : a text, or (first, second) for a model that takes sentence pairs; or a list of either, each with
        the words in it, for what is found in each and the means.
    from_word : the word that attends (the query).
    to_word : the word that is attended to (the key).
    versus : a second target, to see which heads prefer the first.
    truncate : cut a text that is longer than the model's positions; the result then says so.
    progress : of a list, called with the number of texts done and their number.

    Words are matched whole, whatever their case. Where one occurs several times all occurrences count;
    ``"it#2"`` names the second. A special token is named as it is shown, ``"[SEP]"``. The weight on a key
    word is summed over its tokens, and averaged over the tokens of the query word that can see it.

    Raises
    ------
    ProbeError
        If there is no such model, the text can't be taken, a word isn't in it, or no query can see a target
        (a causal model's tokens don't see what comes after them).

    Examples
    --------
    >>> trophy = "The trophy doesn't fit in the suitcase because it is too big."
    >>> find_heads("bert", trophy, "it", "trophy", versus="suitcase").heads[0]  # doctest: +SKIP
    """

    def ask(model: Model, encoding: Encoding) -> FoundHeads:
        search = _Search(encoding, from_word, to_word, versus)
        watch(model, encoding, search.see)
        return search.result(watched_origin(model))

    return ask_each(model, text, ask, truncate=truncate, progress=progress)


def find_heads_of(
    comparison: Comparison, from_word: str, to_word: str, versus: str | None = None
) -> FoundHeads:
    """``find_heads`` for a run that has been made already."""
    search = _Search(comparison.encoding, from_word, to_word, versus)
    for seen in comparison.layers():
        search.see(*seen)
    return search.result(comparison.origin)


class _Search:
    """Collects, layer by layer, the weights between the words."""

    def __init__(self, encoding: Encoding, from_word: str, to_word: str, versus: str | None) -> None:
        self.encoding = encoding
        self.query = locate(encoding, from_word)
        words = [to_word] if versus is None else [to_word, versus]
        self.targets = [locate(encoding, word) for word in words]
        # For each layer (targets, H, Q): the weight on each target, and whether the query can see any of it.
        self.weights: list[Tensor] = []
        self.visible: list[Tensor] = []

    def see(self, layer: int, weights: Tensor, allowed: Tensor | None) -> None:
        rows = weights[:, list(self.query.positions)]  # (H, Q, T)
        keys = [list(target.positions) for target in self.targets]
        # What is masked has a weight of 0; whether a query could see a target must be known all the same.
        open_rows = torch.ones_like(rows, dtype=torch.bool)
        if allowed is not None:
            open_rows = allowed[:, list(self.query.positions)]
        self.weights.append(torch.stack([rows[..., key].sum(-1, dtype=torch.float32).cpu() for key in keys]))
        self.visible.append(torch.stack([open_rows[..., key].any(-1).cpu() for key in keys]))

    def result(self, origin: Origin) -> FoundHeads:
        to_word, versus = self.targets[0], self.targets[1] if len(self.targets) > 1 else None
        # (targets, Q): whether a query sees a target in any head of any layer.
        visible = torch.stack([layer.any(1) for layer in self.visible]).any(0)
        for target, seen in zip(self.targets, visible, strict=True):
            if not seen.any():
                raise ProbeError(
                    f'"{self.query.word}" can\'t see "{target.word}": in {origin.model} a token sees only '
                    "itself and what came before it. Swap the two words, or name a later occurrence."
                )
        counted = visible.all(0)
        if not counted.any():
            raise ProbeError(
                f'No occurrence of "{self.query.word}" sees both "{self.targets[0].word}" and '
                f'"{self.targets[-1].word}": in {origin.model} a token sees only itself and what came before.'
            )
        links = []
        for layer, weights in enumerate(self.weights):
            means = weights[..., counted].mean(-1, dtype=torch.float64)  # (targets, H, Q) -> (targets, H)
            for head, (first, *second) in enumerate(means.T.tolist()):
                other = second[0] if second else None
                links.append(HeadLink(layer, head, first, other, None if other is None else first - other))
        return FoundHeads(
            **of_text(self.encoding),
            from_word=self.query,
            to_word=to_word,
            versus=versus,
            queries=tuple(
                position for position, counts in zip(self.query.positions, counted, strict=True) if counts
            ),
            heads=tuple(sorted(links, key=lambda link: descending(link.weight))),
            notice=self.notice(counted),
            origin=origin,
        )

    def notice(self, counted: Tensor) -> str | None:
        left_out = int((~counted).sum())
        if not left_out:
            return None
        targets = " and ".join(f'"{target.word}"' for target in self.targets)
        return (
            f'Left out: {left_out} of the {len(counted)} tokens of "{self.query.word}", which come before '
            f"{targets} and can't see {'it' if len(self.targets) == 1 else 'both'}."
        )


def locate(encoding: Encoding, word: str) -> FoundWord:
    """Where a word stands in a text: whole words, whatever their case; ``word#2`` is the second occurrence.

    Raises
    ------
    ProbeError
        If it isn't there, listing the words that are; if there are fewer occurrences; if the tokenizer
        doesn't say which part of the text a token covers.
    """
    if not isinstance(word, str) or not word.strip():
        raise ProbeError(f'A word to look for must be a string such as "trophy"; this is {word!r}.')
    if encoding.spans is None:
        raise ProbeError(
            "This tokenizer doesn't say which part of the text a token covers, so words can't be looked up."
        )
    name, number = word.strip(), None
    word = name
    found = _occurrences(encoding, encoding.spans, name)
    numbered = re.fullmatch(r"(.+)#(\d+)", name)
    if not found and numbered:
        name, number = numbered[1], int(numbered[2])
        found = _occurrences(encoding, encoding.spans, name)
    if not found:
        raise ProbeError(_missing(encoding, name))
    if number is None:
        return FoundWord(word, tuple(found))
    if not 1 <= number <= len(found):
        times = "once" if len(found) == 1 else f"{len(found)} times"
        raise ProbeError(f'"{name}" occurs {times} in the text: there is no "{word}". They count from 1.')
    return FoundWord(word, (found[number - 1],))


def _share(weight: float) -> str:
    """In per cent; what is not all is not rounded to all."""
    return "over 99.9%" if 0.9995 <= weight < 1.0 else f"{weight:.1%}"


def _missing(encoding: Encoding, word: str) -> str:
    labels = group_words(encoding).without_special().labels
    names = list(dict.fromkeys(label for label in labels if any(map(str.isalnum, label))))
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if names[_LISTED:] else "")
    cut = " (The text has been cut.)" if encoding.truncated else ""
    return f'"{word}" is not in the text as a whole word. Its words are: {listed}.{cut}'


def _occurrences(encoding: Encoding, spans: Sequence[Span], word: str) -> list[tuple[int, ...]]:
    """The token positions of each occurrence of a word, or of each special token of that name."""
    texts = encoding.text if isinstance(encoding.text, tuple) else (encoding.text,)
    parts = token_parts(encoding)
    found = []
    for part, text in enumerate(texts):
        for start, end in matches(text, word):
            positions = tuple(
                position
                for position, (first, last) in enumerate(spans)
                if parts[position] == part and text[max(first, start) : min(last, end)].strip()
            )
            if positions:  # else the text has been cut before it
                found.append(positions)
    return found or [
        (position,)
        for position, (token, special) in enumerate(zip(encoding.tokens, encoding.special, strict=True))
        if special and token.casefold() == word.casefold()
    ]


def matches(text: str, word: str) -> list[Span]:
    """Where a word stands in a text as a whole word, whatever the case and however accents are encoded."""
    folded, origin = _folded(text)
    wanted, _ = _folded(word)
    found = []
    start = folded.find(wanted)
    while wanted and start >= 0:
        end = start + len(wanted)
        if not (_inside_word(folded, start) or _inside_word(folded, end)):
            found.append((origin[start], origin[end - 1] + 1))
        start = folded.find(wanted, start + 1)
    return found


def _folded(text: str) -> tuple[str, list[int]]:
    """Without case and with accents apart, and for each character the position it came from."""
    pieces = [unicodedata.normalize("NFD", character.casefold()) for character in text]
    return "".join(pieces), [position for position, piece in enumerate(pieces) for _ in piece]


def _inside_word(text: str, position: int) -> bool:
    """Whether the gap before ``position`` is inside a word, accents included."""
    return 0 < position < len(text) and _of_word(text[position - 1]) and _of_word(text[position])


def _of_word(character: str) -> bool:
    """Whether a neighbour of its kind would continue the word; not where words are written without spaces."""
    if unicodedata.name(character, "").split(" ")[0] in _UNSPACED:
        return False
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"
