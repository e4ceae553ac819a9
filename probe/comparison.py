"""One run of a model beside the from-scratch computation of every head, for looking at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from probe.capture import Recording, encode_for, record
from probe.masking import MaskComparison, masks_of
from probe.models import Model, resolve
from probe.prediction import Prediction, predictions_of
from probe.report import Report
from probe.tokens import Encoding, Text
from probe.tracing import Trace, trace_of
from probe.verification import Tally, recompute


@dataclass(frozen=True, eq=False)
class Comparison:
    """All heads of one run on one text, twice. Made by ``compare``; asking it anything runs no model.

    ``report`` is what ``verify`` says of the same run; ``predictions`` are the model's likeliest words,
    where it has a head for words and the text leaves something to predict.
    """

    report: Report
    predictions: tuple[Prediction, ...]
    recording: Recording = field(repr=False)
    recomputed: tuple[Tensor, ...] = field(repr=False)

    @property
    def model(self) -> Model:
        return self.recording.model

    @property
    def encoding(self) -> Encoding:
        """The text's tokens, spans and special tokens."""
        return self.recording.encodings[0]

    def from_scratch(self, layer: int, head: int) -> Tensor:
        """The head's weights as ``attention`` computes them: (T, T) on the CPU, [query, key]."""
        self.model.check_head(layer, head)
        return self.recomputed[layer][0, head].cpu()

    def from_model(self, layer: int, head: int) -> Tensor:
        """The head's weights as the model computed them: (T, T) on the CPU."""
        self.model.check_head(layer, head)
        return self.recording.layers[layer].weights[0, head].cpu()

    def difference(self, layer: int, head: int) -> Tensor:
        """Absolute difference of the two: (T, T)."""
        return (self.from_scratch(layer, head) - self.from_model(layer, head)).abs()

    def compare_masks(self, layer: int, head: int, *, other: Recording | None = None) -> MaskComparison:
        """The head under the causal and the bidirectional mask; ``other`` as for ``masking.masks_of``."""
        return masks_of(self.recording, layer, head, other=other)

    def trace(self, layer: int, head: int, query: int) -> Trace:
        """One row of one head, number by number."""
        return trace_of(self.recording, layer, head, query)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from probe.notebook import comparison_html

        return comparison_html(self)


def compare(model: Model | str, text: Text, *, truncate: bool = False) -> Comparison:
    """Run a model once on a text and compute every head again from scratch.

    Raises
    ------
    ProbeError
        If there is no such model or the text can't be taken.
    """
    model = resolve(model)
    encoding = encode_for(model, text, truncate=truncate)
    recording = record(model, [encoding], logits=True)
    tally = Tally(model, [encoding])
    recomputed = []
    for again in recompute(recording):
        tally.add(recording, again, [0])
        recomputed.append(again.steps.heads.weights)
    predictions = predictions_of(recording)
    # The scores of the whole vocabulary at every position would be most of what a comparison keeps.
    return Comparison(tally.report(), predictions, replace(recording, logits=None), tuple(recomputed))
