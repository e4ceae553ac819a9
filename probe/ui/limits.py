"""What the server accepts, for the page and the API alike. Checked before any text is tokenised."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

import torch

import probe

MAX_CHARACTERS = 10_000
"""Characters in one text."""
MAX_TEXTS = 32
"""Texts in one request."""
MAX_WORK = 20_000_000
"""Numbers of the heads' vectors that a Space computes for one request; about 10 s of its processor."""
MUCH_WORK = MAX_WORK // 5
"""Of requests with more than this, one at a time is worked on: they need memory too."""
RUNS = 4
"""A run of a model, what is computed again and what is told of it, in plain runs of the model."""
HEADS_A_RUN = 4
"""Heads whose change takes as long as a plain run: they are run as rows of one batch."""
MAX_NAME = 300
"""Characters in a model's name or folder."""
SPACE_MODELS = ("bert", "gpt2", "all-MiniLM-L6-v2", "gpt2-stories")
"""The models that a public Space runs; elsewhere any name, folder or Hub id is accepted."""


def on_space() -> bool:
    """Whether this process runs as a Hugging Face Space."""
    return bool(os.environ.get("SPACE_ID"))


def device() -> str | None:
    """Where models are put: None leaves it to the toolkit.

    A ZeroGPU Space has a GPU only inside decorated functions, in a process of their own, where nothing could
    be kept for the next question; the models here are small enough for its CPU.
    """
    return "cpu" if os.environ.get("SPACES_ZERO_GPU") else None


def _who() -> str:
    return "this server takes" if on_space() else "this app takes"


def _beyond() -> str:
    """Where a limit doesn't hold: not everyone runs the page on a machine of their own."""
    if on_space():
        return "Give less, or take the toolkit, which has no such limit, on your own machine."
    return "Give less, or use Python or the command line, which have no such limit: python -m probe --help."


def check_text(text: object) -> str:
    """The text, if it is one and not too long."""
    if not isinstance(text, str):
        raise probe.ProbeError(f"A text must be a string, not {type(text).__name__}.")
    if len(text) > MAX_CHARACTERS:
        raise probe.ProbeError(
            f"The text has {len(text):,} characters; {_who()} at most {MAX_CHARACTERS:,}. {_beyond()}"
        )
    return text


def check_texts(texts: object) -> list[str]:
    """The texts, if they are few enough and each is short enough; a single one is a list of one."""
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, Sequence):
        raise probe.ProbeError("The texts must be a list of strings.")
    if not texts:
        raise probe.ProbeError("The list of texts is empty: give at least one.")
    if len(texts) > MAX_TEXTS:
        raise probe.ProbeError(
            f"There are {len(texts):,} texts; {_who()} at most {MAX_TEXTS} at once. {_beyond()}"
        )
    return [check_text(text) for text in texts]


def check_work(model: probe.Model, texts: Sequence[str], *, each_head: bool = False) -> int:
    """How much work a model has with some texts, in numbers of its heads' vectors; only a Space counts it.

    Parameters
    ----------
    texts : each at most ``MAX_CHARACTERS`` long.
    each_head : whether the model is run once for each of its heads.

    Raises
    ------
    ProbeError
        If it is more than ``MAX_WORK``.
    """
    if not on_space():
        return 0
    most = model.max_tokens or MAX_CHARACTERS
    with model.lock:
        ids = [model.tokenizer(text, verbose=False)["input_ids"] for text in texts]
    tokens = sum(min(len(one), most) for one in ids)
    heads = sum(model.heads_per_layer)
    width = model.head_dim
    runs = RUNS + heads // HEADS_A_RUN if each_head else RUNS
    double = 2 if model.dtype == torch.float64 else 1
    work = tokens * heads * width * runs * double
    if work > MAX_WORK:
        twice = " x 2 for float64" if double == 2 else ""
        raise probe.ProbeError(
            f"This is too much at once: {tokens:,} tokens x {heads} heads of {model.num_layers} layers x "
            f"{width} numbers a head x {runs} runs of the model{twice} = {work:,}; this server takes at most "
            f"{MAX_WORK:,}. {_beyond()}"
        )
    return work


def check_model(name: object) -> str:
    """The model's name, if it may be loaded here."""
    if not isinstance(name, str) or not name.strip():
        raise probe.ProbeError("Name a model: bert, gpt2, a folder or a Hub id.")
    name = name.strip()
    if len(name) > MAX_NAME:
        raise probe.ProbeError(
            f"The model's name has {len(name):,} characters; at most {MAX_NAME} are accepted."
        )
    if on_space() and name not in SPACE_MODELS:
        raise probe.ProbeError(f"This server runs only these models: {', '.join(SPACE_MODELS)}.")
    return name


_M_ARENA_MAX = -8  # of glibc's malloc.h


def bound_heaps() -> None:
    """Have all threads of this process allocate from one heap, where the C library lets that be chosen.

    glibc gives threads heaps of their own, and each keeps what was freed in it: with many visitors, several
    times what is in use. Called before threads are started.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)


def return_memory() -> None:
    """Have the C library give back to the machine what was freed, where it can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
