"""Texts of every kind, and transformers' own maps of them, for tests to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from probe import Model
from probe.running.tokens import Text

STORY = (
    "Once upon a time there was a little girl named Lily who lived near a big green forest. One day she "
    "found a small bird under a tree, and its wing was hurt, so she took it home and gave it water. "
)

# Languages, code, numbers, emoji, repetition, odd spacing.
SHORT_TEXTS = (
    "Hello",
    "The cat sat on the mat.",
    "the cat and the dog and the cat and the dog and the cat and the dog",
    "Unbelievably, the photosynthesizing begonias flourished!",
    "Le cœur a ses raisons que la raison ne connaît point.",
    "Die Würde des Menschen ist unantastbar; sie zu achten ist Verpflichtung aller staatlichen Gewalt.",
    "Все счастливые семьи похожи друг на друга.",
    "千里之行，始于足下。",
    "كان يا ما كان في قديم الزمان",
    "İstanbul'da naïve bir café",
    "def add(a: int, b: int) -> int:\n    return a + b  # 1 + 1 == 2\n",
    '{"name": "Ada", "born": 1815, "tags": ["x", null, 3.5e-4]}',
    "3.14159 26535 89793 23846 26433 83279",
    "a \U0001f468\u200d\U0001f469\u200d\U0001f467 b \U0001f642\U0001f642 \U0001f1e9\U0001f1f0 c",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "  two  spaces\tand a tab \n\n and line ends ",
)


def varied_texts(model: Model) -> list[Text]:
    """20 texts, some of 64, 96 and 128 tokens, half the model's limit and the limit; also pairs for BERT."""
    assert model.max_tokens is not None
    texts: list[Text] = [*SHORT_TEXTS]
    texts += [fitted(model, STORY * 20, count) for count in (64, 96, 128, model.max_tokens // 2)]
    # No sentence repeated: other words, and another spread of attention, up to the last position.
    squares = " ".join(f"{n} is {n * n} squared." for n in range(200))
    texts.append(fitted(model, squares, model.max_tokens))
    if model.has_pairs:
        texts += [("Who sat on the mat?", "The cat sat on the mat."), ("Où est le chat ?", STORY), ("a", "b")]
    return texts


def fitted(model: Model, text: str, num_tokens: int) -> str:
    """The start of ``text`` that has exactly ``num_tokens`` tokens, special tokens included."""
    spans = model.tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    added = 2 if model.has_pairs else 0
    assert len(spans) >= num_tokens
    cut = text[: spans[num_tokens - 1 - added // 2][1]]
    assert len(model.tokenizer(cut)["input_ids"]) == num_tokens
    return cut


def eager_maps(
    folder: Path, text: Text, dtype: torch.dtype = torch.float32, attention_mask: Any = None
) -> torch.Tensor:
    """(layers, heads, T, T), from a network loaded here by transformers alone, with output_attentions.

    ``attention_mask`` is given to it in place of the tokenizer's: a 4-D one, or one for each kind of layer.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()
    texts = text if isinstance(text, tuple) else (text,)
    inputs = tokenizer(*texts, return_tensors="pt")
    if attention_mask is not None:
        inputs["attention_mask"] = attention_mask
    with torch.no_grad():
        output = network(**inputs, output_attentions=True)
    return torch.cat(output.attentions)
