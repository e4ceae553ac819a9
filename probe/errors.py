"""The one error that is meant for people."""

from __future__ import annotations

from typing import Literal

Surface = Literal["python", "command", "page"]
Remedy = Literal["cut", "cpu", "float32", "tokenizer", "model", "place", "target", "library", "load"]

# What can be done, in the words of whoever asks: a caller in Python, the command line, the page. One that has
# no such means gets what is left, or nothing.
_REMEDIES: dict[Remedy, dict[Surface, str]] = {
    "cut": {
        "python": "Shorten it, or have it cut: truncate=True.",
        "command": "Shorten it, or have it cut: --truncate.",
        "page": 'Shorten it, or tick "Cut texts that are too long".',
    },
    "cpu": {"python": 'Try device="cpu".', "command": "Try --device cpu.", "page": ""},
    "float32": {
        "python": "Load it with dtype=torch.float32.",
        "command": "Give --dtype float32.",
        "page": "Choose float32.",
    },
    "tokenizer": {
        "python": "Save one there with tokenizer.save_pretrained, or pass tokenizer=.",
        "command": "Save one there with tokenizer.save_pretrained.",
        "page": "Save one there with tokenizer.save_pretrained.",
    },
    "model": {
        "python": "Give the model they were made with, model=..., as it was then.",
        "command": "Make the result again with the model as it is now.",
        "page": "Make the result again with the model as it is now.",
    },
    "place": {
        "python": "Give layer and head.",
        "command": "Give --layer and --head.",
        "page": "Choose a layer and a head.",
    },
    "target": {
        "python": 'Give what the decoder is to produce too: target="...".',
        "command": "Give what the decoder is to produce too: --target TEXT.",
        "page": "It has a view of its own, Source and target.",
    },
    "load": {
        "python": "If you trust the file, say so: load=True. Or give the model, model=...",
        "command": "If you trust the file, say so: --load.",
        "page": "",
    },
    "library": {
        "python": "Install it (pip install pyarrow), or choose .csv.",
        "command": "Install it (pip install pyarrow), or choose .csv.",
        "page": "Choose .csv.",
    },
}


class ProbeError(ValueError):
    """Something the caller can put right: what is wrong and what to do.

    The command line prints it and exits with 2, the app shows it in the page; neither shows a traceback.

    Parameters
    ----------
    problem : what is wrong, and what to do where that is the same for everyone.
    remedy : what to do where the words depend on where it is read; ``str(error)`` has those for Python.
    """

    def __init__(self, problem: str, remedy: Remedy | None = None) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(problem, remedy)

    def __str__(self) -> str:
        return self.told("python")

    def told(self, surface: Surface) -> str:
        """The message in the words of where it is read."""
        if self.remedy is None:
            return self.problem
        return f"{self.problem} {_REMEDIES[self.remedy][surface]}".rstrip()

    def about(self, what: str) -> ProbeError:
        """The same error with what it is about in front: ``error.about("Text 2 of 3")``."""
        return ProbeError(f"{what}: {self.problem}", self.remedy)
