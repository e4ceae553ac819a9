"""The likeliest words, against the softmax of transformers' own logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import probe
from probe import Model, ProbeError

TEXT = "The little girl went to the"


def test_next_tokens_of_a_causal_model(gpt2: Model) -> None:
    ids = gpt2.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        probabilities = gpt2.hf(ids).logits[0, -1].double().softmax(-1)
    best = probabilities.topk(3)
    (prediction,) = probe.predict(gpt2, TEXT, 3)
    assert prediction.position == ids.shape[1]
    assert [text for text, _ in prediction.candidates] == [
        gpt2.tokenizer.decode([one]).strip() for one in best.indices.tolist()
    ]
    assert [p for _, p in prediction.candidates] == pytest.approx(best.values.tolist(), rel=1e-4)


@pytest.mark.parametrize("k", [0, -1, "3", 2.0, True])
def test_a_number_of_words_that_is_none(gpt2: Model, k: Any) -> None:
    with pytest.raises(ProbeError, match="a whole number from 1"):
        probe.predict(gpt2, TEXT, k)


def test_without_a_head_for_words_nothing_is_run(bert: Model) -> None:
    ran: list[object] = []
    with (
        bert.hf.base_model.register_forward_hook(lambda *call: ran.append(call)),
        pytest.raises(ProbeError, match="no head for words"),
    ):
        probe.predict(bert, "A [MASK] sat.")
    assert ran == []
