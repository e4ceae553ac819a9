"""A network that someone wrote, beside the one whose weights it has: where the two first part."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from probe.analyses.causes import cause_of
from probe.analyses.result import strictly_plain
from probe.display import terminal
from probe.display.data import Column, Table
from probe.errors import ProbeError
from probe.models.computing import computing
from probe.models.loading import Model, resolve
from probe.running.inputs import encode_for
from probe.running.places import Own, Reference, order
from probe.running.tokens import Text

# Rounding differs with the order of sums. In float64 it is far below what float32 loses; code that goes
# through float32 somewhere loses about as much again as the model itself does.
_TIMES = 16


@dataclass(frozen=True)
class Place:
    """One place of a forward pass, where both networks have a tensor.

    Attributes
    ----------
    name : what it is, in words: "layer 3, attention output".
    layer : counted from 0; None before the first layer and after the last.
    shape : of the tensor, as both have it; of the one that is other where ``problem`` says so.
    error : the largest absolute difference of any number; None where the shapes are not the same.
    tolerance : what it may be: 16 times what the model itself is off there in float32, against float64.
    largest : the largest absolute number of the model's.
    position : the token where the error is largest.
    passed : whether it is within the tolerance.
    problem : what is wrong with it beside the numbers, or "".
    """

    name: str
    layer: int | None
    shape: tuple[int, ...]
    error: float | None
    tolerance: float
    largest: float
    position: int | None
    passed: bool
    problem: str = ""


@dataclass(frozen=True)
class ModelCheck:
    """What ``check_model`` found, from the embeddings to the logits. Printing it shows a table.

    Attributes
    ----------
    passed : whether every place is within its tolerance.
    model_name, source : the model it was held against, and where its weights were taken from.
    text, tokens : what both were given.
    dtype : what the network that was checked computed in.
    places : in the order in which they are computed.
    cause : what makes the first wrong place right, in a sentence; None where nothing was found, or needed.
    notes : what was not looked at, and why.
    """

    passed: bool
    model_name: str
    source: str
    text: Text
    tokens: tuple[str, ...]
    dtype: str
    places: tuple[Place, ...]
    cause: str | None
    notes: tuple[str, ...]

    @property
    def first(self) -> Place | None:
        """The first place that is wrong; None if there is none. What comes after it follows from it."""
        return next((place for place in self.places if not place.passed), None)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        against = f"{self.model_name} ({self.source}), {len(self.tokens)} tokens"
        wrong = self.first
        if wrong is None:
            last = self.places[-1]
            return (
                f"PASSED: the same as {against}, at {len(self.places)} places from the {self.places[0].name} "
                f"to the {last.name}, which differ by at most {last.error:.1e} (tolerance "
                f"{last.tolerance:.1e})."
            )
        found = wrong.problem or (
            f"is off by {wrong.error:.1e} at position {wrong.position} "
            f"{self.tokens[wrong.position or 0]!r} (tolerance {wrong.tolerance:.1e}, largest number "
            f"{wrong.largest:.1e})"
        )
        before = self.places.index(wrong)
        right = f"after {before} places that agree" if before else "at the first place that was looked at"
        return f"FAILED: other than {against}. They part {right}: the {wrong.name} {found}."

    @property
    def _lines(self) -> list[str]:
        return [self.verdict, *([self.cause] if self.cause else []), *self.notes]

    def table(self) -> Table:
        """A row for each place."""
        rows = self.places
        return Table(
            (
                Column("place", [one.name for one in rows]),
                Column("shape", [" x ".join(map(str, one.shape)) for one in rows]),
                Column("error", [one.error for one in rows], "largest difference", ".1e"),
                Column("tolerance", [one.tolerance for one in rows], "", ".1e"),
                Column("largest", [one.largest for one in rows], "largest number", ".1e"),
                Column("position", [one.position for one in rows]),
                Column("passed", ["ok" if one.passed else "OFF" for one in rows], " "),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings and lists."""
        names = ("passed", "verdict", "cause", "model_name", "source", "text", "tokens", "dtype", "places")
        plain: dict[str, Any] = strictly_plain({one: getattr(self, one) for one in (*names, "notes")})
        return plain

    def __str__(self) -> str:
        return terminal.text(self._lines, [self.table()])

    def __repr__(self) -> str:
        return f"<ModelCheck: {self.verdict}>"

    def _repr_html_(self) -> str:
        from probe.display import notebook

        return notebook.html(self._lines, texts=(self.text,), map_sets=(), sheet=None, tables=(self.table(),))


def check_model(
    mine: nn.Module,
    model: Model | str,
    text: Text,
    *,
    layers: str | None = None,
    attention: str | None = None,
    truncate: bool = False,
) -> ModelCheck:
    """Hold a network of one's own against the model whose weights it was given, place by place.

    Both are run on the same token ids, in float64 where yours can (a copy; yours stays as it is), and
    compared at the input of the first layer, at each layer's attention (its input, its weights if the module
    returns them as the second of a tuple, its output before the residual connection) and output, and at the
    logits. Nothing after the first place that is wrong says anything new.

    Parameters
    ----------
    mine
        Called with token ids, (1, T) of int64; returns logits (1, T, vocabulary), or a tuple that begins
        with them, or an object that has them as ``.logits``. Logits of the last position alone will do.
    model
        A name or ``Model``, as for ``verify``, of a family whose attention is known; or a network with its
        weights in memory (``probe.load(network, tokenizer=...)``).
    layers
        The name of the list of layers in ``mine``, such as "transformer.h"; by default the list with as many
        modules as the model has layers.
    attention
        The name of the attention in a layer, such as "attn"; by default the usual ones are looked for.

    Returns
    -------
    ModelCheck
        ``passed``, ``verdict``, ``first``, and a table of all places.

    Raises
    ------
    ProbeError
        If the model or text can't be taken, ``mine`` can't be called so, or has no such layers.

    Examples
    --------
    >>> check = probe.check_model(MyGPT2(), "gpt2", "The cat sat on the mat.")  # doctest: +SKIP
    >>> print(check.verdict)  # doctest: +SKIP
    """
    if not isinstance(mine, nn.Module):
        raise ProbeError(f"Give your network as a torch.nn.Module; this is of type {type(mine).__name__}.")
    model = resolve(model)
    encoding = encode_for(model, text, truncate=truncate)
    exact = replace(model, hf=copy.deepcopy(model.hf).double())
    single = model if model.dtype == torch.float32 else replace(exact, hf=copy.deepcopy(exact.hf).float())
    right, rounded = Reference.run(exact, encoding), Reference.run(single, encoding)
    own = Own.run(mine, model, encoding, layers, attention)
    places, notes = _comparable(tuple(_places(right, rounded, own)))
    first = next((place for place in places if not place.passed), None)
    cause = None
    if first is not None and first.error is not None:
        mine_there = own.found[first.name]
        with computing(exact.device, (1, len(encoding))):
            cause = cause_of(first.name, first.layer, mine_there, right, 2 * first.tolerance)
    return ModelCheck(
        passed=first is None,
        model_name=model.name,
        source=model.source,
        text=text,
        tokens=encoding.tokens,
        dtype=str(own.dtype).removeprefix("torch."),
        places=places,
        cause=cause,
        notes=(*own.notes, *notes),
    )


def _places(right: Reference, rounded: Reference, own: Own) -> Iterator[Place]:
    for name, layer in order(right.model.num_layers):
        if name not in own.found or name not in right.found:
            continue
        exact, single, mine = right.found[name], rounded.found[name], own.found[name]
        tolerance = _TIMES * max(
            float((single.double() - exact).abs().max()),
            float(exact.abs().max()) * torch.finfo(torch.float32).eps / 2,
        )
        largest = float(exact.abs().max())
        if name == "logits" and mine.dim() == 3 and mine.shape[1] < exact.shape[1]:
            exact = exact[:, -mine.shape[1] :]
        if name == "logits" and mine.shape[:-1] == exact.shape[:-1] and mine.shape[-1] > exact.shape[-1]:
            mine = mine[..., : exact.shape[-1]]  # a vocabulary that was padded
        if mine.shape != exact.shape:
            problem = f"has the shape {tuple(mine.shape)}, where the model's is {tuple(exact.shape)}"
            yield Place(name, layer, tuple(mine.shape), None, tolerance, largest, None, False, problem)
            continue
        off = (mine.double() - exact).abs()
        error = float(off.max())
        by_token = off.amax([side for side in range(off.dim()) if side != off.dim() - 2]).nan_to_num(
            torch.inf
        )
        position = int(by_token.argmax()) + right.recording.attention_mask.shape[1] - len(by_token)
        problem = "" if error == error else "is not a number (NaN) somewhere"
        yield Place(
            name, layer, tuple(mine.shape), error, tolerance, largest, position, error <= tolerance, problem
        )


def _comparable(places: tuple[Place, ...]) -> tuple[tuple[Place, ...], tuple[str, ...]]:
    """Without those that mean something else in your network: they are off, and their layer is right."""
    right = {place.layer for place in places if place.name.endswith(", output") and place.passed}
    other = [
        place
        for place in places
        if not place.passed
        and place.layer in right
        and place.name.endswith(("attention input", "attention output"))
    ]
    if not other:
        return places, ()
    names = dict.fromkeys(place.name.split(", ")[1] for place in other)
    note = (
        f"Not compared, for your layers are right: the {' and the '.join(names)}. Your attention "
        "module takes or gives something else than the model's, perhaps with a norm or the sum inside."
    )
    return tuple(place for place in places if place not in other), (note,)
