"""Text in, token ids and readable tokens out.

What a token is called on screen is decided here and nowhere else: by the part of the text that it covers, so
that no byte symbols of a vocabulary ever show. Positions count from 0, special tokens included; spans count
code points.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from probe.errors import ProbeError

# Far beyond any context this project can check, and still tokenised within a second or two.
MAX_CHARACTERS = 1_000_000

# A text, or a first and a second sentence for a model that was trained on pairs.
Text = str | tuple[str, str]
Span = tuple[int, int]


@dataclass(frozen=True)
class Encoding:
    """One text as a model sees it: T token ids and, for each, what a reader needs to know.

    Attributes
    ----------
    text : the text as given, or the pair of texts.
    ids : token ids, special tokens included.
    tokens : what each token is called on screen.
    spans : (start, end) of each token in its text, in code points; (0, 0) for a token that stands for no
        text. None if the tokenizer keeps no spans.
    special : True for special tokens, those typed in the text included.
    words : for each token the index of the word it is part of (as the tokenizer splits words), None for
        special tokens. None if the tokenizer keeps no words.
    segments : 0 for the first text of a pair, 1 for the second, as the tokenizer assigns them to all tokens.
    segment_ids_used : whether the model is given the segments.
    truncated : one sentence saying what was cut, or None.
    """

    text: Text
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    special: tuple[bool, ...]
    words: tuple[int | None, ...] | None
    segments: tuple[int, ...]
    segment_ids_used: bool
    truncated: str | None = None

    def __len__(self) -> int:
        return len(self.ids)


def check_text(text: Text) -> None:
    """Refuse what is not a text, before any work is done.

    Raises
    ------
    ProbeError
        For anything but a string or a pair of strings, for an empty text or one of spaces only, for text that
        is not valid Unicode (a lone surrogate), and for more than ``MAX_CHARACTERS`` characters.
    """
    parts = text if isinstance(text, tuple) else (text,)
    if not all(isinstance(part, str) for part in parts) or (isinstance(text, tuple) and len(parts) != 2):
        kinds = ", ".join(type(part).__name__ for part in parts)
        given = f"({kinds})" if isinstance(text, tuple) else kinds
        raise ProbeError(
            f"A text must be a string, or a tuple of two strings for a sentence pair, not {given}."
        )
    for part in parts:
        if len(part) > MAX_CHARACTERS:
            raise ProbeError(
                f"The text has {len(part):,} characters; at most {MAX_CHARACTERS:,} are read. Shorten it."
            )
        if not part.strip():
            found = "holds only spaces" if part else "is empty"
            raise ProbeError(f"The text {found}: give at least one word.")
        try:
            part.encode()
        except UnicodeEncodeError as error:
            code = ord(part[error.start])
            raise ProbeError(
                f"The text is not valid Unicode: character {error.start} is the lone surrogate U+{code:04X}. "
                "Remove it, or read the text with its right encoding (usually UTF-8)."
            ) from None


def encode(
    tokenizer: PreTrainedTokenizerBase,
    text: Text,
    max_tokens: int | None,
    vocab_size: int,
    *,
    truncate: bool,
    as_target: bool = False,
) -> Encoding:
    """Tokenise ``text`` for a model of ``max_tokens`` positions; None is no limit.

    With ``as_target`` it is tokenised as a decoder's text, which some tokenizers do otherwise (Marian's).

    Raises
    ------
    ProbeError
        As ``check_text``; if the text needs more than ``max_tokens`` tokens and ``truncate`` is False; if a
        token id is not in the model's vocabulary; if no token is left.
    """
    check_text(text)
    arguments = text if isinstance(text, tuple) else (text,)
    options: dict[str, Any] = {
        **dict(zip(("text_target",) if as_target else ("text", "text_pair"), arguments, strict=False)),
        "return_special_tokens_mask": True,
        "return_offsets_mapping": tokenizer.is_fast,
    }
    batch = tokenizer(truncation=False, padding=False, verbose=False, **options)
    _check_words(batch, len(arguments), tokenizer)
    full = len(batch["input_ids"])
    truncated = None
    if max_tokens is not None and full > max_tokens:
        if not truncate:
            raise ProbeError(
                f"The text has {full:,} tokens, special tokens included; this model takes at most "
                f"{max_tokens:,}.",
                "cut",
            )
        batch = tokenizer(truncation=True, max_length=max_tokens, padding=False, verbose=False, **options)
        # Of a pair the longer text loses its end first, and then both do.
        side = "last" if tokenizer.truncation_side == "left" else "first"
        which = "" if isinstance(text, tuple) else f"the {side} "
        kept = len(batch["input_ids"])
        truncated = f"Cut to {which}{kept:,} of {full:,} tokens, all that this model takes."

    ids = tuple(batch["input_ids"])
    if max(ids) >= vocab_size:
        raise ProbeError(
            f"Token id {max(ids):,} is outside the model's vocabulary of {vocab_size:,}: "
            "the tokenizer belongs to another model."
        )

    # Tokenizers that keep no offsets ignore the request for them: the key is then simply absent.
    offsets: Sequence[Span] | None = batch.get("offset_mapping")
    sequences = batch.sequence_ids() if tokenizer.is_fast else [None] * len(ids)
    added = [bool(flag) for flag in batch["special_tokens_mask"]]
    sources = [arguments[sequence or 0] for sequence in sequences]
    names = tokenizer.convert_ids_to_tokens(list(ids))
    spans = None
    if offsets is not None:
        offsets = _without_prefixes(names, sources, offsets)
        spans = _cover_combining_marks(sources, sequences, offsets)
    special_ids = set(tokenizer.all_special_ids)
    special = tuple(
        is_added
        or (
            token_id in special_ids
            and _is_typed(tokenizer, token_id, None if spans is None else source[slice(*spans[i])])
        )
        for i, (is_added, token_id, source) in enumerate(zip(added, ids, sources, strict=True))
    )
    return Encoding(
        text=text,
        ids=ids,
        tokens=_labels(tokenizer, ids, names, sources, sequences, spans, special),
        spans=spans,
        special=special,
        words=tuple(batch.word_ids()) if tokenizer.is_fast else None,
        segments=tuple(batch.get("token_type_ids", [0] * len(ids))),
        segment_ids_used="token_type_ids" in batch,
        truncated=truncated,
    )


def _check_words(batch: Any, parts: int, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a text of which nothing is left but what the tokenizer adds (a BERT's drops U+200B and NUL)."""
    if tokenizer.is_fast:
        found = len(set(batch.sequence_ids()) - {None})
    else:
        found = parts if not all(batch["special_tokens_mask"]) else 0
    if found < parts:
        which = "this text" if parts == 1 else "one of these texts"
        raise ProbeError(
            f"The tokenizer finds no token in {which}, only characters that it drops: give at least one word."
        )


def _is_typed(tokenizer: PreTrainedTokenizerBase, token_id: int, typed: str | None) -> bool:
    """Whether the text itself names this special token, as ``[MASK]`` or ``<|endoftext|>`` does.

    The unknown token stands for ordinary text, unless its own name was typed.
    """
    return token_id != tokenizer.unk_token_id or typed == tokenizer.unk_token


_SPACE = "\u2581"  # as SentencePiece writes it


def _without_prefixes(names: Sequence[str], sources: Sequence[str], offsets: Sequence[Span]) -> list[Span]:
    """The spans, empty for a space that a tokenizer puts before a text that begins with none.

    It is given the span of the character behind it, which another token has.
    """
    spans = []
    for name, source, (start, end) in zip(names, sources, offsets, strict=True):
        covered = source[start:end].strip()
        of_nothing = name and not name.strip(_SPACE) and covered and not covered.startswith(_SPACE)
        spans.append((start, start) if of_nothing else (start, end))
    return spans


def _cover_combining_marks(
    sources: Sequence[str], sequences: Sequence[int | None], offsets: Sequence[Span]
) -> tuple[Span, ...]:
    """Let a span reach over accents that follow it, where no other token covers them.

    Tokenizers that strip accents end the span of a decomposed letter before its combining mark.
    """
    covered = [set[int](), set[int]()]
    for sequence, (start, end) in zip(sequences, offsets, strict=True):
        covered[sequence or 0].update(range(start, end))
    spans = []
    for source, sequence, (start, end) in zip(sources, sequences, offsets, strict=True):
        if end > start:
            while (
                end < len(source)
                and end not in covered[sequence or 0]
                and unicodedata.category(source[end]).startswith("M")
            ):
                end += 1
        spans.append((start, end))
    return tuple(spans)


def _labels(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    names: Sequence[str],
    sources: Sequence[str],
    sequences: Sequence[int | None],
    spans: Sequence[Span] | None,
    special: Sequence[bool],
) -> tuple[str, ...]:
    if spans is None:
        return tuple(
            visible(name if is_special else _decoded(tokenizer, token_id, name))
            for name, token_id, is_special in zip(names, ids, special, strict=True)
        )
    labels = []
    pieces = _pieces(spans, sequences)
    unknown = tokenizer.unk_token_id
    for i, (start, end) in enumerate(spans):
        if special[i] or ids[i] == unknown:
            labels.append(visible(names[i]))
            continue
        if start == end:  # a token that the tokenizer made of nothing, or of a space that it leaves out
            labels.append(visible(_decoded(tokenizer, ids[i], names[i])))
            continue
        piece, count = pieces[i]
        label = visible(sources[i][start:end])
        # Several tokens that share one character each hold some of its bytes.
        labels.append(label if count == 1 else f"{label} {piece + 1}/{count}")
    return tuple(labels)


def _decoded(tokenizer: PreTrainedTokenizerBase, token_id: int, name: str) -> str:
    """The text of a token without a span; its name in the vocabulary where it is only part of a character."""
    decoded = tokenizer.decode([token_id])
    text = decoded if isinstance(decoded, str) else "".join(decoded)
    if text and "\ufffd" not in text:
        return text
    # A byte-level vocabulary names a byte by the code point of the same number.
    return f"byte {ord(name):02X}" if len(name) == 1 else name


def _pieces(spans: Sequence[Span], sequences: Sequence[int | None]) -> list[tuple[int, int]]:
    """For each token (index in its group, size of the group); a group is a chain of overlapping spans."""
    groups: list[list[int]] = [[0]]
    for i, (left, right) in enumerate(pairwise(spans), start=1):
        overlaps = sequences[i - 1] == sequences[i] and right[0] < left[1]
        if overlaps and right[1] > right[0] and left[1] > left[0]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [(index, len(group)) for group in groups for index in range(len(group))]


_NAMED = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}
# Joiners and variation selectors belong inside an emoji or a word; alone they would be invisible.
_JOINERS = {"\u200c", "\u200d", "\ufe0e", "\ufe0f"}


def visible(text: str) -> str:
    """``text`` without the spaces around it, and with a shape for every character that has none.

    Spaces that are all there is become open boxes, control characters the control pictures of Unicode, and
    other characters that would not show (or would reorder the line) their code point.

    >>> visible(" cat"), visible("  "), visible("\\n"), visible("\\x00")
    ('cat', '␣␣', '⏎', '␀')
    """
    stripped = text.strip(" \n\t\r\u00a0") or text
    if len(stripped) == 1 and unicodedata.category(stripped).startswith("M"):
        return f"\u25cc{stripped}"  # a lone accent needs something to sit on
    keep = set() if stripped in _JOINERS else _JOINERS
    return "".join(character if character in keep else _shape(character) for character in stripped)


def _shape(character: str) -> str:
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    shapeless = unicodedata.category(character) in {"Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs"}
    return f"U+{code:04X}" if shapeless or character in _JOINERS else character
