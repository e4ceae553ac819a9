"""What a sequence classifier gives in the end: a number for each of its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from attention import softmax
from probe.errors import ProbeError
from probe.models.loading import Model

Unit = Literal["probability", "value"]
_CLASSIFIERS = set(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values())


@dataclass(frozen=True)
class LabelChange:
    """One label of a classifier, before and after.

    Attributes
    ----------
    label : its name, from the model's configuration.
    before, after : its probability, or its value.
    unit : "probability", or "value" of a regression.
    """

    label: str
    before: float
    after: float
    unit: Unit

    @property
    def change(self) -> float:
        """after - before."""
        return self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        return {**asdict(self), "change": self.change}

    def __str__(self) -> str:
        before, after = (written(number, self.unit) for number in (self.before, self.after))
        return f'"{self.label}" goes from {before} to {after}'


def written(number: float, unit: Unit) -> str:
    """A probability in per cent, a value with four digits."""
    return f"{number:.1%}" if unit == "probability" else f"{number:.4g}"


def classifies(model: Model) -> bool:
    """Whether the model ends in a number for each label of a whole text."""
    return any(one.__name__ in _CLASSIFIERS for one in type(model.hf).__mro__)


def label_names(model: Model) -> tuple[str, ...]:
    """What a classifier's labels are called, in order."""
    config: Any = model.hf.config
    return tuple(str(config.id2label.get(index, index)) for index in range(config.num_labels))


def label_changes(model: Model, before: Tensor, after: Tensor) -> tuple[LabelChange, ...]:
    """Each label of a classifier, from its logits in two runs: (num_labels,).

    As transformers' pipeline for text classification has it: softmax over the labels, a sigmoid of each where
    several may hold or there is only one, the logits themselves for a regression.
    """
    problem = model.hf.config.problem_type
    unit: Unit = "probability"
    if problem == "regression":
        unit = "value"
    elif problem == "multi_label_classification" or len(before) == 1:
        before, after = before.sigmoid(), after.sigmoid()
    else:
        before, after = softmax(before), softmax(after)
    pairs = zip(label_names(model), before.tolist(), after.tolist(), strict=True)
    return tuple(LabelChange(*one, unit) for one in pairs)


def label_in_question(changes: Sequence[LabelChange]) -> int:
    """The number of the likeliest label of the run as it is; of values, of the one that changes most."""
    sizes = [abs(one.change) if one.unit == "value" else one.before for one in changes]
    return max(range(len(sizes)), key=sizes.__getitem__)


def label_number(model: Model, label: str | int) -> int:
    """Which label is meant, by its name or its number.

    Raises
    ------
    ProbeError
        If the model gives no labels, it has no such label, or several are called so.
    """
    if not classifies(model):
        raise ProbeError(f"{model.name} is no sequence classifier: it gives no labels. Leave label out.")
    names = label_names(model)
    found = [index for index, name in enumerate(names) if name == label]
    if len(found) > 1:
        raise ProbeError(
            f"{len(found)} labels of {model.name} are called {label!r}: give the label's number."
        )
    if found:
        return found[0]
    digits = isinstance(label, str) and label.isascii() and label.isdigit()
    number = int(label) if digits else label
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(names):
        return number
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if names[20:] else "")
    raise ProbeError(
        f"There is no label {label!r} in {model.name}: it has {listed}, numbered 0 to {len(names) - 1}."
    )
