"""A whole model run with ``attention`` as its attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.result import Origin, Result, named
from probe.display.data import Axis, Column, Numbers, Panel, Sheet, Table, array
from probe.display.nonfinite import nonfinite
from probe.models import backend
from probe.models.loading import Model, resolve
from probe.running.inputs import batch_inputs, cuts, encode_for, encode_targets
from probe.running.tokens import Text


@dataclass(frozen=True, eq=False, repr=False)
class FromScratchRun(Result, what="from scratch"):
    """What a model gives with its attention computed from scratch in every layer, beside what it gives by
    itself.

    Attributes
    ----------
    text, truncated : as in a ``Run``.
    target : the decoder's text, for a model with an encoder and a decoder.
    tokens : T tokens, of the target if there is one.
    what : "logits" for a model with a head for words, else "last hidden state".
    from_scratch, model : (T, vocabulary) or (T, d_model), on the CPU.
    """

    # Every word's score at every token is for a file, not for reading.
    not_in_dict = ("from_scratch", "model")
    also_in_dict = ("max_abs_error", "by_token", "summary")

    text: Text
    target: str | None
    tokens: tuple[str, ...]
    truncated: str | None
    what: str
    from_scratch: Tensor
    model: Tensor

    @property
    def max_abs_error(self) -> float:
        """The largest absolute difference of the two; rounding in one layer grows in the next."""
        return float((self.from_scratch - self.model).abs().max())

    @property
    def summary(self) -> str:
        """By how much the two differ, in one line."""
        problem = nonfinite(self.model_name, (self.from_scratch, self.model))
        return problem or (
            f"{self.model_name} ({self.source}) with its attention from scratch: {self.what} of "
            f"{len(self.tokens)} tokens differ by at most {self.max_abs_error:.1e} from the model's own, "
            f"whose largest is {float(self.model.abs().max()):.1f}."
        )

    def blocks(self) -> Numbers:
        """Both outputs."""
        return {"from_scratch": array(self.from_scratch), "model": array(self.model)}

    @property
    def by_token(self) -> Tensor:
        """(T,), the largest absolute difference at each token."""
        return (self.from_scratch - self.model).abs().amax(-1)

    def table(self) -> Table:
        """A row for each token: by how much the two differ there, and how large the model's numbers are."""
        return Table(
            (
                Column("token", named(self.tokens)),
                Column("max_abs_error", self.by_token.tolist(), "largest difference", ".1e"),
                Column("largest", self.model.abs().amax(-1).tolist(), "model's largest", ".2f"),
            )
        )

    def _sheet(self) -> Sheet:
        """The largest difference at each token."""
        axes = Axis("", ("largest difference",)), Axis("token", self.tokens)
        panel = Panel(
            "Largest difference at each token", "difference", self.by_token[None], *axes, "difference"
        )
        return Sheet(f"{self.model_name} ({self.source})", (panel,), (self.summary,))


@analysis(FromScratchRun, command="from-scratch")
def run_from_scratch(
    model: Model | str, text: Text, *, target: str | None = None, truncate: bool = False
) -> FromScratchRun:
    """Run a model twice: on its own backend, and with ``attention`` in place of it in every layer.

    ``target`` is the decoder's text, for a model with an encoder and a decoder; the result is then about it.

    Raises
    ------
    ProbeError
        If there is no such model, the text can't be taken, or its attention is code of its own.
    """
    model = resolve(model)
    encoding = encode_for(model, text, truncate=truncate)
    targets = encode_targets(model, text, target, truncate=truncate)
    inputs, _ = batch_inputs(model, [encoding], targets)
    shown = targets[0] if targets else encoding
    network = model.hf if model.predicts_words else model.hf.base_model

    def output() -> Tensor:
        result: Any = network(**inputs)
        values: Tensor = result.logits if model.predicts_words else result.last_hidden_state
        return values[0].cpu()

    with backend.running(model.hf, inputs):
        own = output()
        with backend.from_scratch_backend(model.hf):
            from_scratch = output()
    return FromScratchRun(
        text=text,
        target=target,
        tokens=shown.tokens,
        truncated=cuts(encoding, targets[0] if targets else None),
        what="logits" if model.predicts_words else "last hidden state",
        from_scratch=from_scratch,
        model=own,
        origin=Origin.of(model),
    )
