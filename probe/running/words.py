"""Words instead of tokens: which tokens make one word, and a map over words from a map over tokens.

Where one word ends and the next begins is read off the text between two tokens, with the tokenizer's own
splitting as a help: it knows pieces from words, but some tokenizers glue the comma to the word before it, and
byte-level ones cut an accent off its letter.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from probe.errors import ProbeError
from probe.running.tokens import Encoding, Span, Text, visible


class Tokens(Protocol):
    """What every result about one text holds: an ``Encoding``, a ``Run``, a ``MaskComparison``."""

    @property
    def text(self) -> Text: ...
    @property
    def tokens(self) -> tuple[str, ...]: ...
    @property
    def spans(self) -> tuple[Span, ...] | None: ...
    @property
    def special(self) -> tuple[bool, ...]: ...


@dataclass(frozen=True)
class Words:
    """The T tokens of a text in W groups, in order.

    Made by ``group_words`` (a group for each word) or ``single_tokens`` (a group for each token).

    Attributes
    ----------
    labels : what each group is called on screen.
    index : the number of each group, counted from 0; with gaps where groups are left out.
    pieces : (first, last + 1) token positions of each group.
    spans : (start, end) of each group in its text, in code points, without the spaces around it; None if the
        tokenizer keeps no spans.
    special : True for special tokens; each is a group of its own.
    num_tokens : T.
    notice : a sentence for the reader where words can't be told apart, or None.
    """

    labels: tuple[str, ...]
    index: tuple[int, ...]
    pieces: tuple[Span, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    num_tokens: int
    notice: str | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def weights(self, matrix: Tensor, keys: Words | None = None) -> Tensor:
        """(..., T, T) [query, key] over tokens as (..., W, W) over words.

        A key word gets the sum over its pieces, because weights are shares of one whole; a query word the
        mean over its pieces, each of which asks for itself (Clark et al. 2019, "What Does BERT Look At?",
        section 4.1). Rows that sum to 1 still do, as long as no group is left out.

        Parameters
        ----------
        keys : the groups of the keys, where they are of another text than the queries (cross-attention).

        Raises
        ------
        ProbeError
            If the matrix isn't one of these tokens.
        """
        keys = keys or self
        self._check(matrix, (self.num_tokens, keys.num_tokens))
        # (..., T, T) -> (..., T, W) -> (..., W, W)
        by_key = torch.stack([matrix[..., start:end].sum(-1) for start, end in keys.pieces], -1)
        return torch.stack([by_key[..., start:end, :].mean(-2) for start, end in self.pieces], -2)

    def means(self, values: Tensor) -> Tensor:
        """(..., T), one number for each query token, as (..., W): the mean over a word's pieces.

        Raises
        ------
        ProbeError
            If there isn't one number for each token.
        """
        self._check(values, (self.num_tokens,))
        return torch.stack([values[..., start:end].mean(-1) for start, end in self.pieces], -1)

    def without_special(self) -> Words:
        """The same without special tokens. Nothing is renormalised: rows then sum to less than 1.

        All groups are kept if every one is a special token.
        """
        kept = [group for group, special in enumerate(self.special) if not special]
        if not kept:
            return self
        return replace(
            self,
            labels=tuple(self.labels[group] for group in kept),
            index=tuple(self.index[group] for group in kept),
            pieces=tuple(self.pieces[group] for group in kept),
            spans=None if self.spans is None else tuple(self.spans[group] for group in kept),
            special=tuple(self.special[group] for group in kept),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def _check(self, values: Tensor, size: tuple[int, ...]) -> None:
        if tuple(values.shape[-len(size) :]) != size:
            raise ProbeError(
                f"These words are made of {self.num_tokens} tokens, so the numbers must be {size}, "
                f"not {tuple(values.shape)}: take both from the same text."
            )


def single_tokens(result: Tokens) -> Words:
    """Every token as its own group, so that maps stay as they are."""
    length = len(result.tokens)
    return Words(
        labels=result.tokens,
        index=tuple(range(length)),
        pieces=tuple((position, position + 1) for position in range(length)),
        spans=result.spans,
        special=result.special,
        num_tokens=length,
    )


def group_words(encoding: Encoding) -> Words:
    """Put the tokens of an encoding together to words.

    Two neighbouring tokens belong to one word if no space stands between them in the text and the tokenizer
    counts them to one word; except where letters or digits meet punctuation. Pieces of one character (the
    bytes of an emoji, say) and marks that sit on the letter before them always stay with it. A special token
    is a word of its own, and so is each token of a script without spaces between words (Chinese, Thai), where
    ``notice`` says so.

    Examples
    --------
    >>> group_words(encode_for(load("gpt2"), "Unbelievably, it works.")).labels
    ('Unbelievably', ',', 'it', 'works', '.')
    """
    spans, words, special = encoding.spans, encoding.words, encoding.special
    if spans is None or words is None:
        return replace(
            single_tokens(encoding),
            notice="This tokenizer doesn't say which part of the text a token covers: "
            "words can't be put together, each token stands for itself.",
        )
    given = encoding.text if isinstance(encoding.text, tuple) else (encoding.text,)
    texts = [given[part] for part in token_parts(encoding)]
    starts = [0]
    for left, right in pairwise(range(len(encoding))):
        if special[left] or special[right] or not _joined(spans, words, texts[left], left, right):
            starts.append(right)
    pieces = tuple(pairwise([*starts, len(encoding)]))
    written = "".join(part for part in given if not part.isascii())
    word_spans = tuple(_word_span(spans[start:end], texts[start]) for start, end in pieces)
    return Words(
        labels=tuple(
            encoding.tokens[start] if special[start] or first == last else visible(texts[start][first:last])
            for (start, _), (first, last) in zip(pieces, word_spans, strict=True)
        ),
        index=tuple(range(len(pieces))),
        pieces=pieces,
        spans=word_spans,
        special=tuple(special[start] for start, _ in pieces),
        num_tokens=len(encoding),
        notice=_APART if any(map(_no_spaces, written)) else None,
    )


_APART = (
    "Chinese, Japanese, Thai and some other scripts have no spaces between words: there, each token stands "
    "for itself."
)


def token_parts(encoding: Encoding) -> tuple[int, ...]:
    """For each token the text that its span counts in: 0, or 1 for the second of a pair."""
    if isinstance(encoding.text, str) or encoding.words is None:
        return (0,) * len(encoding)
    # Segments would say the same, but RoBERTa has none: a tokenizer counts the words of each text from 0, and
    # special tokens stand between the two.
    parts, second, counted, gap = [], False, False, False
    for word in encoding.words:
        second = second or (word == 0 and counted and gap)
        counted, gap = counted or word is not None, word is None
        parts.append(int(second))
    return tuple(parts)


def _joined(spans: Sequence[Span], words: Sequence[int | None], text: str, left: int, right: int) -> bool:
    """Whether two neighbouring tokens of one text, neither of them special, are pieces of one word."""
    (start, middle), (next_start, end) = spans[left], spans[right]
    same = words[left] == words[right]
    if start >= middle:
        return same  # the space before a word, as a token of its own that covers nothing
    if next_start >= end:
        return False
    if next_start < middle:
        return True  # both hold bytes of one character
    if any(character.isspace() for character in text[middle:next_start]):
        return False
    if text[start:middle].isspace():
        return same
    if text[middle - 1].isspace() or text[next_start].isspace():
        return False
    if _attaches(text[next_start]) or text[middle - 1] == _JOINER:
        return True
    last = middle - 1
    while last > 0 and _attaches(text[last]):
        last -= 1
    if _no_spaces(text[last]) or _no_spaces(text[next_start]):
        return False
    if last < middle - 1 and text[last].isalnum() and text[next_start].isalnum():
        return True  # the letter after an accented letter
    return same and _kind(text, last) == _kind(text, next_start)


_JOINER = "\u200d"


def _attaches(character: str) -> bool:
    """Whether it belongs to the character before it: a mark, a joiner, a skin tone.

    Not the zero-width space, which parts words in scripts without spaces.
    """
    if "\U0001f3fb" <= character <= "\U0001f3ff":
        return True
    return character != "\u200b" and unicodedata.category(character) in {"Mn", "Mc", "Me", "Cf"}


# As Unicode names their characters. (Korean is written with spaces.)
_WITHOUT_SPACES = {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO", "THAI", "LAO", "KHMER"}
_WITHOUT_SPACES |= {"MYANMAR", "TIBETAN", "JAVANESE", "BALINESE", "YI"}


def _no_spaces(character: str) -> bool:
    """Whether it is of a script that puts no spaces between words."""
    name = unicodedata.name(character, "").removeprefix("HALFWIDTH ")
    return character.isalpha() and name.partition(" ")[0] in _WITHOUT_SPACES


def _kind(text: str, position: int) -> str:
    """Letters and digits, pictures, or other signs; an apostrophe between letters is a letter."""
    character = text[position]
    around = text[position - 1 : position] + text[position + 1 : position + 2]
    if character.isalnum() or (character in "'\u2019" and len(around) == 2 and around.isalnum()):
        return "letter"
    return "picture" if unicodedata.category(character) == "So" else "sign"


def _word_span(spans: Sequence[Span], text: str) -> Span:
    covering = [span for span in spans if span[0] < span[1]] or spans
    start, end = min(start for start, _ in covering), max(end for _, end in covering)
    word = text[start:end]
    if not word or word.isspace():
        return start, end
    return start + len(word) - len(word.lstrip()), end - len(word) + len(word.rstrip())
