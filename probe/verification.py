"""Hold every head of a model against attention computed from scratch, and say by how much they differ.

Each layer is checked by itself, on its own captured input: the layer's weights are copied into
``attention.MultiHeadAttention``, that module is run, and its projections, weights, contexts and output are
compared with what the model computed in its forward pass. Which mask belongs there is worked out here from
the text, not taken from the model, so a mask that the model got wrong shows.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor

from attention import MultiHeadAttention, attention_by_loops, causal_mask, combine_masks, padding_mask
from attention.modules import MultiHeadSteps
from probe.capture import LayerRecord, Recording, batches, encode_all, record
from probe.families import Site
from probe.models import Model, resolve
from probe.tokens import Encoding, Text


@dataclass(frozen=True)
class Cell:
    """One entry of one attention map: where it is, what its tokens are called, and what both sides say."""

    text: int
    query: int
    key: int
    query_token: str
    key_token: str
    from_scratch: float
    model: float


@dataclass(frozen=True)
class HeadCheck:
    """One head, over all texts. Errors are absolute differences between the model and the computation from
    scratch.

    Attributes
    ----------
    layer, head : counted from 0.
    max_abs_error, mean_abs_error : of the attention weights; the mean is over the cells a query may attend
        to.
    tolerance : what max_abs_error may be; see ``Bounds``.
    worst : the cell with the largest error.
    query_error, key_error, value_error : of the projected vectors, largest entry.
    context_error : of the head's output before the output projection, largest entry.
    forbidden_weight : the largest weight the model put on a key that the query may not attend to (a later
        token of a causal model, padding of a shorter text); None where nothing is forbidden. It must be
        exactly 0.
    row_sum_error : how far the model's rows are from summing to 1.
    loops_error : largest difference of the model's weights from ``attention_by_loops`` in float64, on a few
        rows; None for heads outside the sample.
    passed : every one of these within its bound.
    """

    layer: int
    head: int
    max_abs_error: float
    mean_abs_error: float
    tolerance: float
    worst: Cell
    query_error: float
    key_error: float
    value_error: float
    context_error: float
    forbidden_weight: float | None
    row_sum_error: float
    loops_error: float | None
    passed: bool


@dataclass(frozen=True)
class LayerCheck:
    """One layer's attention output, after the output projection and before the residual connection."""

    layer: int
    output_error: float
    tolerance: float
    passed: bool


@dataclass(frozen=True)
class Report:
    """What ``verify`` found, head by head. Printing it shows a table.

    ``tolerance`` is the largest tolerance of any head; ``max_abs_error`` the largest error of any attention
    weight.
    """

    passed: bool
    max_abs_error: float
    tolerance: float
    heads: tuple[HeadCheck, ...]
    layers: tuple[LayerCheck, ...]
    texts: tuple[Text, ...]
    num_tokens: tuple[int, ...]
    truncated: tuple[str | None, ...]
    model: str
    source: str
    revision: str | None
    sha256: str | None
    device: str
    dtype: str
    backend: str
    matmul_precision: str
    versions: dict[str, str]

    @property
    def failures(self) -> list[HeadCheck | LayerCheck]:
        """The heads and layers that did not pass."""
        checks: list[HeadCheck | LayerCheck] = [*self.heads, *self.layers]
        return [check for check in checks if not check.passed]

    @property
    def verdict(self) -> str:
        """The result in one line."""
        worst = max(self.heads, key=lambda head: _nan_is_worst(head.max_abs_error))
        where = f"largest difference {worst.max_abs_error:.1e} (layer {worst.layer}, head {worst.head})"
        if self.passed:
            return (
                f"All {len(self.heads)} heads of {self.model} agree: {where}, tolerance {self.tolerance:.1e}."
            )
        heads = sum(not head.passed for head in self.heads)
        layers = sorted({check.layer for check in self.failures})
        named = ", ".join(map(str, layers[:8])) + (", ..." if len(layers) > 8 else "")
        return (
            f"{heads} of {len(self.heads)} heads of {self.model} do NOT agree, in "
            f"layer{'s' if len(layers) > 1 else ''} {named}: {where}, tolerance {self.tolerance:.1e}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain numbers, strings and lists; a number that isn't finite becomes its name."""
        plain: dict[str, Any] = _plain({**asdict(self), "verdict": self.verdict})
        return plain

    def to_json(self) -> str:
        """``to_dict`` as strict JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=2)

    def __str__(self) -> str:
        from probe.tables import report_table

        return report_table(self)


def verify(
    model: Model | str,
    text_or_texts: Text | Sequence[Text],
    *,
    truncate: bool = False,
) -> Report:
    """Check every head of every layer on one or more texts.

    Each layer's own captured input goes through ``attention.MultiHeadAttention`` holding a copy of that
    layer's weights. Texts of different length are run together, padded; padded positions are left out of
    every comparison, as queries, and must get no weight as keys.

    Parameters
    ----------
    model : a loaded model, or a name as for ``load``.
    text_or_texts : a text, a (first, second) tuple for a model that takes pairs, or a list of either.
    truncate : cut texts that are longer than the model's positions; the report then says so.

    Raises
    ------
    ProbeError
        If there is no such model or a text can't be taken. A check that fails is no error: see
        ``Report.passed``.

    Notes
    -----
    How large a difference may be is derived, not chosen: see ``Bounds``.

    Examples
    --------
    >>> verify("gpt2", "The cat sat on the mat.").passed
    True
    """
    model = resolve(model)
    encodings = encode_all(model, text_or_texts, truncate=truncate)
    tally = Tally(model, encodings)
    for batch in batches(encodings, model.num_layers * model.num_heads):
        recording = record(model, [encodings[index] for index in batch])
        for layer, steps, module in recompute(recording):
            tally.add(layer, recording, steps, module, batch)
    return tally.report()


def allowed_mask(recording: Recording) -> Tensor | None:
    """Which keys each query may attend to, by the run's mask and the padding: (B, 1, T, T), or None: all."""
    mask = recording.attention_mask
    length = mask.shape[1]
    causal = causal_mask(length, device=mask.device) if recording.causal else None
    padding = None if mask.all() else padding_mask(mask)
    combined = combine_masks(causal, padding)
    return None if combined is None else combined.expand(mask.shape[0], 1, length, length)


def recompute(recording: Recording) -> Iterator[tuple[int, MultiHeadSteps, MultiHeadAttention]]:
    """Each layer's attention from scratch, on its recorded input, with a copy of its weights."""
    mask = allowed_mask(recording)
    for layer, (site, seen) in enumerate(zip(recording.model.sites, recording.layers, strict=True)):
        module = from_scratch(site)
        with torch.no_grad():
            steps = module.steps(seen.input, mask=mask, keep_steps=False)
        yield layer, steps, module


def from_scratch(site: Site) -> MultiHeadAttention:
    """An ``attention.MultiHeadAttention`` holding a copy of one layer's weights."""
    state = {}
    for name, projection in (
        ("W_query", site.query),
        ("W_key", site.key),
        ("W_value", site.value),
        ("out_proj", site.output),
    ):
        state[f"{name}.weight"] = projection.weight()
        bias = projection.bias()
        if bias is not None:
            state[f"{name}.bias"] = bias
    width = state["W_query.weight"].shape
    with torch.device(
        "meta"
    ):  # shapes only: no random numbers are drawn for weights that are replaced at once
        module = MultiHeadAttention(
            width[1],
            width[0],
            site.num_heads,
            bias="W_query.bias" in state,
            out_bias="out_proj.bias" in state,
            scale=site.scale,
        )
    module.load_state_dict(state, assign=True)
    return module.eval()


@dataclass(frozen=True)
class Bounds:
    """How far two sound computations of one layer can differ through rounding alone.

    Both sides do the same mathematics in another order (other blocks of a sum, softmax fused or written out),
    so they differ by a few units in the last place. With u the unit roundoff of the dtype (2^-24 in float32):

    - A projected vector is a sum of d_model products plus a bias. Its rounding error is a few u times |x| |w|
      + |b|, the largest norms of an input and of a row of the weight matrix: they bound every partial sum,
      and errors of either sign cancel (Higham and Mary 2019, "A New Approach to Probabilistic Rounding Error
      Analysis"). "A few" is 8.
    - A scaled score is a sum of head_dim products: its error is about u |q| |k| / sqrt(head_dim) on each
      side, the largest scaled score there can be. Softmax turns an error e in a score into an error of weight
      (1 - weight) e, at most e / 4 (its Jacobian), so the two sides' errors come to half of that score;
      exponentials, division and the sum over T keys add 4 + log2(T) units. This is ``weights``, one number a
      head, and the tolerance that is reported.
    - A context vector is a mean of values: the measured difference of its weights, summed over a row, times
      the largest value, the measured error of the values, and 8 u for the sum. So a wrong weight is not
      reported a second time as a wrong context, and the bound for the context proper stays tight. The layer's
      output likewise: the norm of the measured difference of the contexts times |w|, and the rounding of the
      projection.

    On the bundled models the worst error of a weight is 6 to 11 u where ``weights`` is 17 to 70 u: no sound
    head comes near it, and it stays below ten times the worst error seen.
    """

    query: float
    key: float
    value: float
    weights: Tensor
    context: Tensor
    output: float


@dataclass(frozen=True)
class _Errors:
    """Measured differences of one layer on one batch; a tensor of (H,) has a number a head."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor
    weights_sum: Tensor
    weights_row: Tensor
    worst: Tensor
    context: Tensor
    context_norm: Tensor
    output: float
    row_sum: Tensor
    forbidden: Tensor | None


class Tally:
    """Collects what every batch shows about every head, and makes the report of it."""

    def __init__(self, model: Model, encodings: Sequence[Encoding]) -> None:
        self.model = model
        self.encodings = tuple(encodings)
        self.heads: dict[tuple[int, int], HeadCheck] = {}
        self.cells: dict[tuple[int, int], int] = {}
        self.layers: dict[int, LayerCheck] = {}

    @torch.no_grad()
    def add(
        self,
        layer: int,
        recording: Recording,
        steps: MultiHeadSteps,
        module: MultiHeadAttention,
        texts: Sequence[int],
    ) -> None:
        """Compare one layer on one batch; ``texts`` are the indices of the batch's texts."""
        seen, mask = recording.layers[layer], allowed_mask(recording)
        real = recording.attention_mask
        errors = _measure(seen, steps, mask, real)
        bounds = _bounds(self.model.sites[layer], module, seen, steps, errors, real)
        cells = int(_allowed_cells(mask, real))
        sampled = layer % self.model.num_heads
        length = real.shape[1]

        for head in range(self.model.num_heads):
            text, query, key = _unravel(int(errors.worst[head]), length)
            encoding = self.encodings[texts[text]]
            loops = None
            if head == sampled:
                loops = _loops_error(
                    seen, mask, text, head, sorted({query, len(encoding) - 1}), len(encoding), module.scale
                )
            within = [
                (errors.weights[head], bounds.weights[head]),
                (errors.query[head], bounds.query),
                (errors.key[head], bounds.key),
                (errors.value[head], bounds.value),
                (errors.context[head], bounds.context[head]),
                (errors.row_sum[head], bounds.weights[head]),
            ]
            if loops is not None:
                within.append((loops, bounds.weights[head]))
            if errors.forbidden is not None:
                within.append((errors.forbidden[head], 0.0))
            check = HeadCheck(
                layer=layer,
                head=head,
                max_abs_error=float(errors.weights[head]),
                mean_abs_error=float(errors.weights_sum[head]) / cells,
                tolerance=float(bounds.weights[head]),
                worst=Cell(
                    text=texts[text],
                    query=query,
                    key=key,
                    query_token=encoding.tokens[query],
                    # A model that looks at padding can be worst there.
                    key_token=encoding.tokens[key] if key < len(encoding) else "padding",
                    from_scratch=float(steps.heads.weights[text, head, query, key]),
                    model=float(seen.weights[text, head, query, key]),
                ),
                query_error=float(errors.query[head]),
                key_error=float(errors.key[head]),
                value_error=float(errors.value[head]),
                context_error=float(errors.context[head]),
                forbidden_weight=None if errors.forbidden is None else float(errors.forbidden[head]),
                row_sum_error=float(errors.row_sum[head]),
                loops_error=loops,
                # Written so that a NaN fails.
                passed=all(float(error) <= float(bound) for error, bound in within),
            )
            self._merge(check, cells)
        output = LayerCheck(layer, errors.output, bounds.output, errors.output <= bounds.output)
        known = self.layers.get(layer)
        if known is None or _worse(output.output_error, known.output_error):
            self.layers[layer] = replace(output, passed=output.passed and (known is None or known.passed))
        elif not output.passed:
            self.layers[layer] = replace(known, passed=False)

    def _merge(self, check: HeadCheck, cells: int) -> None:
        """Over several batches: the worst of each error, the mean over all cells."""
        place = check.layer, check.head
        known = self.heads.get(place)
        if known is None:
            self.heads[place], self.cells[place] = check, cells
            return
        worse, other = (check, known) if _worse(check.max_abs_error, known.max_abs_error) else (known, check)
        total = self.cells[place] + cells
        self.heads[place] = replace(
            worse,
            mean_abs_error=(known.mean_abs_error * self.cells[place] + check.mean_abs_error * cells) / total,
            query_error=_largest(known.query_error, check.query_error),
            key_error=_largest(known.key_error, check.key_error),
            value_error=_largest(known.value_error, check.value_error),
            context_error=_largest(known.context_error, check.context_error),
            forbidden_weight=_largest(known.forbidden_weight, check.forbidden_weight),
            row_sum_error=_largest(known.row_sum_error, check.row_sum_error),
            loops_error=_largest(known.loops_error, check.loops_error),
            passed=worse.passed and other.passed,
        )
        self.cells[place] = total

    def report(self) -> Report:
        heads = tuple(self.heads[place] for place in sorted(self.heads))
        layers = tuple(self.layers[layer] for layer in sorted(self.layers))
        model = self.model
        return Report(
            passed=all(head.passed for head in heads) and all(layer.passed for layer in layers),
            max_abs_error=_largest(*(head.max_abs_error for head in heads)),
            tolerance=_largest(*(head.tolerance for head in heads)),
            heads=heads,
            layers=layers,
            texts=tuple(encoding.text for encoding in self.encodings),
            num_tokens=tuple(len(encoding) for encoding in self.encodings),
            truncated=tuple(encoding.truncated for encoding in self.encodings),
            model=model.name,
            source=model.source,
            revision=model.revision,
            sha256=model.sha256,
            device=_device_name(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            backend="eager",
            matmul_precision="highest",
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        )


def _measure(seen: LayerRecord, steps: MultiHeadSteps, mask: Tensor | None, real: Tensor) -> _Errors:
    """Differences between the model and the from-scratch computation; padded query positions are left out."""
    rows = None if real.all() else ~real[:, None, :, None]  # (B, 1, T, 1), True at padding

    def largest(values: Tensor) -> Tensor:
        return values.amax(dim=(0, 2, 3))  # (B, H, T, n) -> (H,)

    def difference(ours: Tensor, theirs: Tensor) -> Tensor:
        distance = (ours - theirs).abs_()
        return distance if rows is None else distance.masked_fill_(rows, 0.0)

    weights = difference(steps.heads.weights, seen.weights)
    row_sums = weights.sum(-1, keepdim=True)  # (B, H, T, 1)
    model_sums = seen.weights.sum(-1, keepdim=True)
    context = difference(steps.context[:, None], seen.context[:, None])  # (B, 1, T, d)
    num_heads = weights.shape[1]
    by_head = context.squeeze(1).unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (B, H, T, head_dim)
    forbidden = None
    if mask is not None:
        open_cells = mask if rows is None else mask | rows
        forbidden = largest(seen.weights.masked_fill(open_cells, 0.0))
    return _Errors(
        query=largest(difference(steps.query, seen.query)),
        key=largest(difference(steps.key, seen.key)),
        value=largest(difference(steps.value, seen.value)),
        weights=largest(weights),
        weights_sum=row_sums.sum(dim=(0, 2, 3), dtype=torch.float64),
        weights_row=largest(row_sums),
        worst=weights.transpose(0, 1).flatten(1).argmax(1),  # (H, B * T * T) -> (H,)
        context=largest(by_head),
        context_norm=context.norm(dim=-1).amax(),
        output=float(difference(steps.output[:, None], seen.output[:, None]).amax()),
        row_sum=largest(difference(model_sums, torch.ones_like(model_sums))),
        forbidden=forbidden,
    )


def _bounds(
    site: Site,
    module: MultiHeadAttention,
    seen: LayerRecord,
    steps: MultiHeadSteps,
    errors: _Errors,
    real: Tensor,
) -> Bounds:
    u = torch.finfo(seen.weights.dtype).eps / 2
    length = seen.weights.shape[-1]

    def norm(vectors: Tensor) -> Tensor:
        """Largest norm of (B, ..., T, n) vectors over batch and real positions."""
        norms = vectors.norm(dim=-1)
        shape = (real.shape[0], *[1] * (norms.dim() - 2), real.shape[1])
        return norms.masked_fill(~real.view(shape), 0.0).amax(dim=(0, -1))

    def projection(vectors: Tensor, linear: torch.nn.Linear) -> float:
        largest = float(norm(vectors)) * float(linear.weight.norm(dim=1).amax())
        bias = 0.0 if linear.bias is None else float(linear.bias.abs().amax())
        return 8 * u * (largest + bias)

    scores = norm(steps.query) * norm(steps.key) * site.scale  # (H,), a bound of every scaled score
    value = norm(steps.value)
    return Bounds(
        query=projection(seen.input, module.W_query),
        key=projection(seen.input, module.W_key),
        value=projection(seen.input, module.W_value),
        weights=u * (scores / 2 + 4 + math.log2(length)),
        context=errors.weights_row * value + errors.value + 8 * u * value,
        output=projection(steps.context, module.out_proj)
        + float(errors.context_norm) * float(module.out_proj.weight.norm(dim=1).amax()),
    )


def _allowed_cells(mask: Tensor | None, real: Tensor) -> Tensor:
    """How many cells of one head's maps count: real queries with the keys they may attend to."""
    length = real.shape[1]
    if mask is None:
        return real.sum() * length
    return (mask[:, 0] & real[:, :, None]).sum()


def _loops_error(
    seen: LayerRecord,
    mask: Tensor | None,
    text: int,
    head: int,
    rows: list[int],
    length: int,
    scale: float | None,
) -> float:
    """Some rows of a head by nested loops in float64, from the model's query and key, against its weights."""
    allowed = None
    if mask is not None:
        allowed = mask[text, 0, rows, :length].cpu()
    weights, _ = attention_by_loops(
        seen.query[text, head, rows].cpu(),
        seen.key[text, head, :length].cpu(),
        seen.value[text, head, :length].cpu(),
        mask=allowed,
        scale=scale,
    )
    return float((weights - seen.weights[text, head, rows, :length].cpu().double()).abs().max())


def _unravel(index: int, length: int) -> tuple[int, int, int]:
    """Position in a flattened (B, T, T) as (text, query, key)."""
    rest, key = divmod(index, length)
    text, query = divmod(rest, length)
    return text, query, key


def _nan_is_worst(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _worse(value: float, than: float) -> bool:
    return _nan_is_worst(value) > _nan_is_worst(than)


def _largest(*values: Any) -> Any:
    """The largest number; NaN if there is one, None if there are only Nones."""
    numbers = [value for value in values if value is not None]
    return max(numbers, key=_nan_is_worst) if numbers else None


def _device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
