"""What the model predicts: the next token of a causal model, the word behind each ``[MASK]`` of a BERT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention import softmax
from probe.analyses.asking import analysis
from probe.analyses.result import Origin, Result, of_text
from probe.display.data import Axis, Column, Numbers, Panel, Sheet, Table, array
from probe.display.nonfinite import nonfinite
from probe.errors import ProbeError
from probe.models.loading import Model, resolve
from probe.running.inputs import encode_for
from probe.running.recording import Recording, record
from probe.running.tokens import Encoding, Text, visible


@dataclass(frozen=True)
class Prediction:
    """The likeliest tokens at one place.

    ``position`` is where the token would stand: the position of the ``[MASK]``, or the number of tokens for
    the next one. ``candidates`` are (text, probability), likeliest first; the probabilities are of the whole
    vocabulary, so the few that are shown sum to less than 1.
    """

    position: int
    candidates: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "candidates": [
                {"text": text, "probability": probability} for text, probability in self.candidates
            ],
        }


@dataclass(frozen=True, repr=False)
class Predictions(Result, what="predictions"):
    """What a model predicts for one text: a ``Prediction`` for each place. Made by ``predict``.

    Attributes
    ----------
    text, tokens, truncated : as in a ``Run``.
    k : how many candidates were asked for.
    places : in the order of their positions; the predictions themselves can be indexed and iterated over.
    """

    also_in_dict = ("predictions",)
    not_in_dict = ("places",)

    text: Text
    tokens: tuple[str, ...]
    truncated: str | None
    k: int
    places: tuple[Prediction, ...]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Prediction:
        return self.places[index]

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.places)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """The places, as ``to_dict`` calls them."""
        return self.places

    @property
    def summary(self) -> str:
        """The likeliest word of each place, in one line."""
        likeliest = ", ".join(
            f'"{one.candidates[0][0]}" {one.candidates[0][1]:.1%} (position {one.position})' for one in self
        )
        return f"{self.model_name} predicts: {likeliest}"

    def blocks(self) -> Numbers:
        """The probability of each candidate, which is named with its place."""
        return {
            f"position_{one.position}_{rank}_{text}": array(probability)
            for one in self
            for rank, (text, probability) in enumerate(one.candidates)
        }

    def table(self) -> Table:
        """A row for each candidate."""
        rows = [
            (one.position, rank, text, probability)
            for one in self
            for rank, (text, probability) in enumerate(one.candidates)
        ]
        names, digits = ("position", "rank", "text", "probability"), ("", "", "", ".4f")
        columns = zip(names, zip(*rows, strict=True), digits, strict=True)
        return Table(tuple(Column(name, cells, digits=written) for name, cells, written in columns))

    def _sheet(self) -> Sheet:
        """A column of bars for each place."""
        return Sheet(
            f"{self.model_name} ({self.source})", tuple(map(prediction_panel, self)), (self.summary,)
        )


def prediction_panel(prediction: Prediction) -> Panel:
    """The likeliest words at one place as bars."""
    words, shares = zip(*prediction.candidates, strict=True)
    title = f"Predicted at position {prediction.position}"
    axes = Axis("word", words), Axis("", ("probability",))
    return Panel(title, "probability", torch.tensor(shares, dtype=torch.float64), *axes, "bars")


@analysis(Predictions, command="predict")
def predict(model: Model | str, text: Text, k: int = 5, *, truncate: bool = False) -> Predictions:
    """Name the likeliest next tokens; for a masked language model, the likeliest words for each ``[MASK]``.

    Parameters
    ----------
    k : how many to name.

    Raises
    ------
    ProbeError
        If ``k`` isn't a number from 1, if the model has no head for words, if a masked language model gets a
        text without its mask token, if its numbers are not finite, or as ``attend``.
    """
    model = resolve(model)
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ProbeError(f"k is how many tokens to name, a whole number from 1; not {k!r}.")
    if not model.predicts_words:
        raise ProbeError(
            f"{model.name} has no head for words, so it predicts none; its attention can be looked at."
        )
    encoding = encode_for(model, text, truncate=truncate)
    places = predictions_of(record(model, [encoding], logits=True), k)
    if not places:
        raise ProbeError(f"There is nothing to predict: put {model.tokenizer.mask_token} in the text.")
    problem = nonfinite(model.name, (share for place in places for _, share in place.candidates))
    if problem:
        raise ProbeError(problem)
    return Predictions(**of_text(encoding), k=k, places=places, origin=Origin.of(model, "eager"))


def predictions_of(recording: Recording, k: int = 5) -> tuple[Prediction, ...]:
    """``predict`` for a run of a single text that kept its logits; empty where nothing is to predict."""
    if recording.logits is None:
        return ()
    model, (encoding,) = recording.model, recording.encodings
    return tuple(
        prediction_at(model, row + int(model.causal), recording.logits[0, row], k)
        for row in predicted_rows(model, encoding)
    )


def predicted_rows(model: Model, encoding: Encoding) -> list[int]:
    """The positions whose logits predict a word: the last one, or those of the mask token."""
    if model.causal:
        return [len(encoding) - 1]
    mask = model.tokenizer.mask_token_id
    return [position for position, token_id in enumerate(encoding.ids) if token_id == mask]


def prediction_at(model: Model, position: int, logits: Tensor, k: int = 5) -> Prediction:
    """The likeliest words at one place, from its logits: (vocabulary,)."""
    probabilities, ids = softmax(logits.double()).topk(min(k, len(logits)))
    texts = [visible(str(model.tokenizer.decode([token_id]))) for token_id in ids.tolist()]
    return Prediction(position, tuple(zip(texts, probabilities.tolist(), strict=True)))
