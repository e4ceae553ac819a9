"""One error, in the words of where it is read."""

from __future__ import annotations

import pickle
import re
from typing import Any, get_args

import pytest

import probe
from probe import ProbeError
from probe.errors import Remedy

PYTHON = re.compile(r"\w+=|torch\.|probe\.")
OPTION = re.compile(r"--\w+")


def test_each_place_has_its_words(gpt2: probe.Model) -> None:
    text = "word " * 300
    with pytest.raises(ProbeError) as caught:
        probe.attend(gpt2, text)
    tokens = len(gpt2.tokenizer(text)["input_ids"])
    problem = f"The text has {tokens} tokens, special tokens included; this model takes at most 256."
    assert str(caught.value) == f"{problem} Shorten it, or have it cut: truncate=True."
    assert caught.value.told("command") == f"{problem} Shorten it, or have it cut: --truncate."
    assert caught.value.told("page") == f'{problem} Shorten it, or tick "Cut texts that are too long".'
    with pytest.raises(ProbeError) as caught:
        probe.verify(gpt2, ["Hi", text])
    assert caught.value.told("command") == f"Text 1 of 2: {problem} Shorten it, or have it cut: --truncate."
    with pytest.raises(ProbeError, match=r"^The second text: .*truncate=True\.$"):
        probe.compare_texts(gpt2, "Hi", text, 0, 0)


@pytest.mark.parametrize("remedy", get_args(Remedy))
def test_nobody_is_told_of_what_they_lack(remedy: Any) -> None:
    error = ProbeError("It is so.", remedy)
    for surface in ("command", "page"):
        told = error.told(surface)  # type: ignore[arg-type]
        assert told.startswith("It is so.") and told.endswith(".")
        assert not PYTHON.search(told)
    assert not OPTION.search(str(error)) and not OPTION.search(error.told("page"))


def test_it_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(ProbeError("It is so.", "cut").about("Text 1")))
    assert error.told("command") == "Text 1: It is so. Shorten it, or have it cut: --truncate."
