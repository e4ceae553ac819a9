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

from attention import MultiHeadAttention, attention_by_loops, combine_masks, padding_mask
from attention.modules import MultiHeadSteps
from probe.capture import LayerRecord, Recording, batches, encode_all, record
from probe.families import Site
from probe.models import Model, resolve
from probe.precision import precise
from probe.tokens import Encoding, Text
from probe.visibility import allowed_keys


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
    failed : which of these are not within their bounds: "weights" (max_abs_error), "query", "key", "value",
        "context", "forbidden weight", "row sums", "loops".
    passed : whether none has failed.
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
    failed: tuple[str, ...]
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
        failed = [head for head in self.heads if not head.passed]
        worst = max(failed or self.heads, key=lambda head: _nan_is_worst(head.max_abs_error))
        where = f"largest difference {worst.max_abs_error:.1e} (layer {worst.layer}, head {worst.head})"
        if self.passed:
            return (
                f"All {len(self.heads)} heads of {self.model} agree: {where}, tolerance {self.tolerance:.1e}."
            )
        layers = sorted({check.layer for check in self.failures})
        named = ", ".join(map(str, layers[:8])) + (", ..." if len(layers) > 8 else "")
        named = f"in layer{'s' if len(layers) > 1 else ''} {named}"
        if not failed:
            output = max((layer for layer in self.layers if not layer.passed), key=_severity)
            return (
                f"All {len(self.heads)} heads of {self.model} agree, but the attention's output does "
                f"NOT, {named}: largest difference {output.output_error:.1e} (layer {output.layer}), "
                f"tolerance {output.tolerance:.1e}."
            )
        what = ", ".join(dict.fromkeys(name for head in failed for name in head.failed))
        return (
            f"{len(failed)} of {len(self.heads)} heads of {self.model} do NOT agree, {named}: {where}, "
            f"tolerance {worst.tolerance:.1e}. Not within bounds: {what}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain numbers, strings and lists; a number that isn't finite becomes its name."""
        plain: dict[str, Any] = finite({**asdict(self), "verdict": self.verdict})
        return plain

    def to_json(self) -> str:
        """``to_dict`` as strict JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=2)

    def __str__(self) -> str:
        from probe.tables import report_table

        return report_table(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from probe.notebook import report_html

        return report_html(self)


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
    for batch in batches(model, encodings, model.num_layers * model.num_heads):
        recording = record(model, [encodings[index] for index in batch])
        for again in recompute(recording):
            tally.add(recording, again, batch)
    return tally.report()


def allowed_mask(recording: Recording, window: int | None = None) -> Tensor | None:
    """Which keys each query may attend to, by the run's mask and the padding: (B, 1, T, T), or None: all."""
    mask = recording.attention_mask
    length = mask.shape[1]
    allowed = allowed_keys(length, causal=recording.causal, window=window, device=mask.device)
    padding = None if mask.all() else padding_mask(mask)
    combined = combine_masks(allowed, padding)
    return None if combined is None else combined.expand(mask.shape[0], 1, length, length)


@dataclass(frozen=True)
class Recomputed:
    """One layer of a recording, from scratch.

    Attributes
    ----------
    layer : which layer.
    mask : (B, 1, T, T), bool, which keys each query may attend to; None if all.
    cells : how many cells of one head's maps count: real queries with the keys they may attend to.
    steps : what ``attention.MultiHeadAttention`` computed, holding a copy of the layer's weights.
    sizes : of those weights, what ``Bounds`` needs: "query", "key", "value" and "output" are the largest norm
        of a row of the matrix, "query bias" and so on the largest entry.
    """

    layer: int
    mask: Tensor | None
    cells: int
    steps: MultiHeadSteps
    sizes: dict[str, Tensor]


def recompute(recording: Recording) -> Iterator[Recomputed]:
    """Each layer's attention from scratch, on its recorded input, with a copy of its weights."""
    masks: dict[int | None, tuple[Tensor | None, int]] = {}
    module = None
    for layer, (site, seen) in enumerate(zip(recording.model.sites, recording.layers, strict=True)):
        if site.window not in masks:
            mask = allowed_mask(recording, site.window)
            masks[site.window] = mask, _allowed_cells(mask, recording.attention_mask)
        mask, cells = masks[site.window]
        with precise(recording.model.device), torch.no_grad():
            module = from_scratch(site, module)
            steps = module.steps(seen.input, mask=mask, keep_steps=False)
            again = Recomputed(layer, mask, cells, steps, _sizes(module))
        yield again


def from_scratch(site: Site, reuse: MultiHeadAttention | None = None) -> MultiHeadAttention:
    """An ``attention.MultiHeadAttention`` holding a copy of one layer's weights.

    ``reuse`` is one that this function made for another layer of the same shape, and that may be changed.
    """
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
    module = reuse
    if module is None:
        d_out, d_in = state["W_query.weight"].shape
        module = MultiHeadAttention(
            d_in,
            d_out,
            site.num_heads,
            num_key_value_heads=site.num_key_value_heads,
            out_width=state["out_proj.weight"].shape[0],
            bias="W_query.bias" in state,
            out_bias="out_proj.bias" in state,
            device="meta",  # shapes only: no random numbers for weights that are replaced at once
        ).eval()
    module.scale = site.scale
    module.rotary_frequencies = site.rotary_frequencies
    module.load_state_dict(state, assign=True)
    return module


def _sizes(module: MultiHeadAttention) -> dict[str, Tensor]:
    sizes: dict[str, Tensor] = {}
    maps = {"query": module.W_query, "key": module.W_key, "value": module.W_value, "output": module.out_proj}
    for name, linear in maps.items():
        # In float32 at least, as squares can be too large for half precision; a weight that is a transposed
        # view is summed over much faster than norm() does it.
        weight = linear.weight.to(torch.promote_types(linear.weight.dtype, torch.float32))
        sizes[name] = weight.square().sum(1).amax().sqrt()
        bias = linear.bias
        sizes[f"{name} bias"] = sizes[name].new_zeros(()) if bias is None else bias.abs().amax()
    return sizes


@dataclass(frozen=True)
class Bounds:
    """How far two sound computations of one layer can differ through rounding alone.

    Both sides do the same mathematics in another order (other blocks of a sum, softmax fused or written out),
    so they differ by a few units in the last place. Rounding errors have either sign and mostly cancel: those
    of a sum of n terms grow like sqrt(n), not like n (Higham and Mary 2019, "A New Approach to Probabilistic
    Rounding Error Analysis"). With u the unit roundoff of the dtype (2^-24 in float32), T the number of
    tokens, and |...| the largest norm over all positions:

    query, key, value
        A projected number is a sum of d_model products, and a bias. |x| |w| + |b|, the norms of
        an input and of a row of the weight matrix, bounds every partial sum: 8 u times that.
    weights
        This is the tolerance that is reported, one number a head. A scaled score is a sum of head_dim
        products. S = |q| |k| scale is the largest that it can be, and half a unit of S its error on
        each side. The two sides' queries and keys differ already, by dq and dk: measured, but counted only
        as far as the bounds above allow. That moves a score by D = (|dq| |k| + |q| |dk|) scale
        if both point the same way; as they have nothing to do with each other, by D / sqrt(head_dim). By the
        softmax, scores that are wrong by e make a weight wrong by at most e / 2 (its derivative is w (1 - w),
        at most 1/4, and other scores may be wrong the other way). Exponentials and divisions add 8 units, the
        sum over the keys sqrt(T): u (S / 2 + 8 + sqrt(T)) + D / (2 sqrt(head_dim)).
    row_sum
        A row of the model's weights sums to 1 but for its two sums over T keys: u (8 + 2 sqrt(T)).
    context
        A mean of values: the measured difference of its weights, summed over a row, times |v|; the
        measured difference of the values; and u (8 + sqrt(T)) |v| for the sum. So a wrong weight or value
        is not reported a second time as a wrong context, and the bound for the context proper stays tight.
    output
        Likewise: the norm of the measured difference of the contexts times |w|, and the rounding of a
        projection.

    On the bundled models the worst error of a weight is 7 to 15 u and the largest tolerance 47 to 95 u, so
    no sound head comes near it, while a scale that is off by 1% moves weights by thousands of u.
    """

    query: float
    key: float
    value: float
    weights: tuple[float, ...]
    row_sum: float
    context: tuple[float, ...]
    output: float


@dataclass(frozen=True)
class _Errors:
    """Measured differences of one layer on one batch; a tuple has a number a head.

    ``query`` to ``forbidden`` are largest entries, ``query_error_norm`` and ``key_error_norm`` the largest
    norms of a difference of vectors. ``row`` is the largest sum over a row of differences of weights,
    ``total`` their sum over all rows. ``worst`` is the place of the largest as (text, query, key), ``ours``
    and ``theirs`` the two weights there. ``query_norm`` to ``value_norm`` are the largest norms of our
    vectors. The rest are of all heads together: the largest norms of an input of the layer, of our contexts
    and of their difference, and the largest difference of an output.
    """

    query: tuple[float, ...]
    key: tuple[float, ...]
    value: tuple[float, ...]
    weights: tuple[float, ...]
    row_sum: tuple[float, ...]
    context: tuple[float, ...]
    forbidden: tuple[float, ...] | None
    query_error_norm: tuple[float, ...]
    key_error_norm: tuple[float, ...]
    row: tuple[float, ...]
    total: tuple[float, ...]
    worst: tuple[tuple[int, int, int], ...]
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    query_norm: tuple[float, ...]
    key_norm: tuple[float, ...]
    value_norm: tuple[float, ...]
    input_norm: float
    context_norm: float
    context_error_norm: float
    output: float


class Tally:
    """Collects what every batch shows about every head, and makes the report of it."""

    def __init__(self, model: Model, encodings: Sequence[Encoding]) -> None:
        self.model = model
        self.encodings = tuple(encodings)
        # A float64 model whose code goes through float32 somewhere is no more exact than that.
        through_float32 = model.dtype == torch.float64 and model.known_family.float32_inside
        self.unit = torch.finfo(torch.float32 if through_float32 else model.dtype).eps / 2
        self.heads: dict[tuple[int, int], HeadCheck] = {}
        self.cells: dict[tuple[int, int], int] = {}
        self.layers: dict[int, LayerCheck] = {}

    def add(self, recording: Recording, again: Recomputed, texts: Sequence[int]) -> None:
        """Compare one layer on one batch; ``texts`` are the indices of the batch's texts."""
        seen, real = recording.layers[again.layer], recording.attention_mask
        scale = self.model.sites[again.layer].scale
        with precise(self.model.device), torch.no_grad():
            errors = _measure(seen, again, real)
            bounds = _bounds(seen, again, errors, scale, self.unit)
            places = range(len(errors.worst))
            sampled = again.layer % len(places)
            text, query, _ = errors.worst[sampled]
            if errors.weights[sampled] == 0.0:  # no worst row: the last one sees every key
                query = len(recording.encodings[text]) - 1
            loops = _loops_error(seen, again, sampled, text, query, scale, recording)

        for head in places:
            error_and_bound = {
                "weights": (errors.weights[head], bounds.weights[head]),
                "query": (errors.query[head], bounds.query),
                "key": (errors.key[head], bounds.key),
                "value": (errors.value[head], bounds.value),
                "context": (errors.context[head], bounds.context[head]),
                "row sums": (errors.row_sum[head], bounds.row_sum),
            }
            if head == sampled:
                error_and_bound["loops"] = (loops, bounds.weights[head])
            if errors.forbidden is not None:
                error_and_bound["forbidden weight"] = (errors.forbidden[head], 0.0)
            # Written so that a NaN fails.
            failed = tuple(name for name, (error, bound) in error_and_bound.items() if not error <= bound)
            text, query, key = errors.worst[head]
            encoding = self.encodings[texts[text]]
            check = HeadCheck(
                layer=again.layer,
                head=head,
                max_abs_error=errors.weights[head],
                mean_abs_error=errors.total[head] / again.cells,
                tolerance=bounds.weights[head],
                worst=Cell(
                    text=texts[text],
                    query=query,
                    key=key,
                    query_token=encoding.tokens[query],
                    # A model that looks at padding can be worst there.
                    key_token=encoding.tokens[key] if key < len(encoding) else "padding",
                    from_scratch=errors.ours[head],
                    model=errors.theirs[head],
                ),
                query_error=errors.query[head],
                key_error=errors.key[head],
                value_error=errors.value[head],
                context_error=errors.context[head],
                forbidden_weight=None if errors.forbidden is None else errors.forbidden[head],
                row_sum_error=errors.row_sum[head],
                loops_error=loops if head == sampled else None,
                failed=failed,
                passed=not failed,
            )
            self._merge(check, again.cells)
        output = LayerCheck(again.layer, errors.output, bounds.output, errors.output <= bounds.output)
        known_output = self.layers.get(again.layer, output)
        self.layers[again.layer] = max(known_output, output, key=_severity)

    def _merge(self, check: HeadCheck, cells: int) -> None:
        """Over several batches: the worst of each error, the mean over all cells."""
        place = check.layer, check.head
        known = self.heads.get(place)
        if known is None:
            self.heads[place], self.cells[place] = check, cells
            return
        total = self.cells[place] + cells
        self.heads[place] = replace(
            max(known, check, key=_severity),
            mean_abs_error=(known.mean_abs_error * self.cells[place] + check.mean_abs_error * cells) / total,
            query_error=_largest(known.query_error, check.query_error),
            key_error=_largest(known.key_error, check.key_error),
            value_error=_largest(known.value_error, check.value_error),
            context_error=_largest(known.context_error, check.context_error),
            forbidden_weight=_largest(known.forbidden_weight, check.forbidden_weight),
            row_sum_error=_largest(known.row_sum_error, check.row_sum_error),
            loops_error=_largest(known.loops_error, check.loops_error),
            failed=(*known.failed, *(name for name in check.failed if name not in known.failed)),
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


def _measure(seen: LayerRecord, again: Recomputed, real: Tensor) -> _Errors:
    """Differences between the model and the computation from scratch; padding is left out as queries."""
    steps, mask = again.steps, again.mask
    padding = None if real.all() else ~real  # (B, T)
    num_heads, length = seen.weights.shape[1], seen.weights.shape[-1]
    every_head = torch.arange(num_heads, device=real.device)

    def real_only(values: Tensor) -> Tensor:
        """0 in place of what belongs to padding: (..., B, anything, T, n)."""
        return values if padding is None else values.masked_fill(padding[:, None, :, None], 0.0)

    def difference(ours: Tensor, theirs: Tensor) -> Tensor:
        return real_only((ours - theirs).abs_())

    def largest(values: Tensor) -> Tensor:
        return values.amax(dim=(0, 2, 3))  # (B, H, T, n) -> (H,)

    def longest(vectors: Tensor) -> Tensor:
        """The largest norm: (..., B, H, T, n) -> (..., H)."""
        # In half precision the square of a number can be too large for its dtype.
        wide = torch.promote_types(vectors.dtype, torch.float32)
        return vectors.norm(dim=-1, dtype=wide).amax(dim=(-3, -1))

    weights = difference(steps.heads.weights, seen.weights)
    of_rows = weights.amax(-1).transpose(0, 1).flatten(1)  # (B, H, T, T) -> (H, B * T)
    worst_of_head, worst_row = of_rows.max(dim=1)
    texts, queries = worst_row // length, worst_row % length
    keys = weights[texts, every_head, queries].argmax(-1)  # (H, T) -> (H,)
    worst = texts, every_head, queries, keys

    row_sums = weights.sum(-1, keepdim=True)
    model_sums = seen.weights.sum(-1, keepdim=True)
    ours = torch.stack([steps.query, steps.key, steps.value])  # (3, B, H, T, head_dim)
    projected = difference(ours, torch.stack([seen.query, seen.key, seen.value]))
    query, key, value = projected.amax(dim=(1, 3, 4))
    query_error_norm, key_error_norm, _ = longest(projected)
    query_norm, key_norm, value_norm = longest(real_only(ours))
    context = difference(steps.context[:, None], seen.context[:, None])  # (B, 1, T, H * head_dim)
    by_head = context.squeeze(1).unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (B, H, T, head_dim)
    of_heads = {
        "query": query,
        "key": key,
        "value": value,
        "weights": worst_of_head,
        "row_sum": largest(difference(model_sums, torch.ones_like(model_sums))),
        "context": largest(by_head),
        "query_error_norm": query_error_norm,
        "key_error_norm": key_error_norm,
        "row": largest(row_sums),
        "total": row_sums.sum(dim=(0, 2, 3)),
        "ours": steps.heads.weights[worst],
        "theirs": seen.weights[worst],
        "query_norm": query_norm,
        "key_norm": key_norm,
        "value_norm": value_norm,
    }
    if mask is not None:
        forbidden = ~mask if padding is None else ~(mask | padding[:, None, :, None])
        # A product, being much faster than masked_fill; where a weight is NaN the head fails either way.
        of_heads["forbidden"] = largest(seen.weights * forbidden)
    of_all = {
        "input_norm": longest(real_only(seen.input[:, None]))[0],
        "context_norm": longest(real_only(steps.context[:, None]))[0],
        "context_error_norm": longest(context)[0],
        "output": difference(steps.output[:, None], seen.output[:, None]).amax(),
    }
    return _Errors(
        **{"forbidden": None, **_numbers(of_heads), **_numbers(of_all)},
        worst=tuple(zip(texts.tolist(), queries.tolist(), keys.tolist(), strict=True)),
    )


def _bounds(seen: LayerRecord, again: Recomputed, errors: _Errors, scale: float, u: float) -> Bounds:
    sqrt_length, sqrt_width = math.sqrt(seen.weights.shape[-1]), math.sqrt(seen.query.shape[-1])
    sizes = _numbers(again.sizes)

    def projection(name: str, size: float) -> float:
        return 8 * u * (size * sizes[name] + sizes[f"{name} bias"])

    query, key, value = (projection(name, errors.input_norm) for name in ("query", "key", "value"))
    weights, context = [], []
    norms = zip(errors.query_norm, errors.key_norm, errors.value_norm, strict=True)
    for head, (q, k, v) in enumerate(norms):
        dq = min(sqrt_width * query, errors.query_error_norm[head])
        dk = min(sqrt_width * key, errors.key_error_norm[head])
        moved = (dq * k + q * dk) * scale / sqrt_width
        weights.append(u * (q * k * scale / 2 + 8 + sqrt_length) + moved / 2)
        context.append(errors.row[head] * v + errors.value[head] + u * (8 + sqrt_length) * v)
    return Bounds(
        query=query,
        key=key,
        value=value,
        weights=tuple(weights),
        row_sum=u * (8 + 2 * sqrt_length),
        context=tuple(context),
        output=projection("output", errors.context_norm) + errors.context_error_norm * sizes["output"],
    )


def _numbers(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors of one shape as Python numbers, (H,) as tuples; all are fetched from the device at once."""
    values = torch.stack(list(tensors.values())).tolist()
    plain = [tuple(value) if isinstance(value, list) else value for value in values]
    return dict(zip(tensors, plain, strict=True))


def _allowed_cells(mask: Tensor | None, real: Tensor) -> int:
    if mask is None:
        return int(real.sum()) * real.shape[1]
    return int((mask[:, 0] & real[:, :, None]).sum())


def _loops_error(
    seen: LayerRecord,
    again: Recomputed,
    head: int,
    text: int,
    query: int,
    scale: float,
    recording: Recording,
) -> float:
    """One row of a head by nested loops in float64, against the model's weights.

    From the model's own query and keys, so that nothing is shared with the computation from scratch.
    """
    length = len(recording.encodings[text])
    rows = slice(query, query + 1)
    weights, _ = attention_by_loops(
        seen.query[text, head, rows],
        seen.key[text, head, :length],
        seen.value[text, head, :length, :1],  # one column of it, as only the weights are wanted
        mask=None if again.mask is None else again.mask[text, 0, rows, :length].cpu(),
        scale=scale,
    )
    return float((weights - seen.weights[text, head, rows, :length].cpu().double()).abs().max())


def _severity(check: HeadCheck | LayerCheck) -> tuple[bool, float]:
    """Failed before passed, then by the error; NaN is the worst."""
    error = check.max_abs_error if isinstance(check, HeadCheck) else check.output_error
    return not check.passed, _nan_is_worst(error)


def _nan_is_worst(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _largest(*values: Any) -> Any:
    """The largest number; NaN if there is one, None if there are only Nones."""
    numbers = [value for value in values if value is not None]
    return max(numbers, key=_nan_is_worst) if numbers else None


def _device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def finite(value: Any) -> Any:
    """Plain numbers, strings and lists for strict JSON: a number that isn't finite becomes its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value
