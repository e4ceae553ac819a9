"""Hold every head of a model against attention computed from scratch, and say by how much they differ.

Each layer is checked by itself, on its own captured input: the layer's weights are copied into
``attention.MultiHeadAttention``, that module is run, and its projections, weights, contexts and output are
compared with what the model computed in its forward pass. Which mask belongs there is worked out here from
the text, not taken from the model, so a mask that the model got wrong shows.

Where it isn't known where a model's weights lie, ``query_key.py`` begins a step later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention import MultiHeadAttention, attention_by_loops, combine_masks, padding_mask
from attention.modules import MultiHeadSteps
from probe.analyses.checks.expected import unit_roundoff
from probe.analyses.checks.measuring import (
    Places,
    compare_maps,
    count_cells,
    difference,
    fetched,
    forbidden_keys,
    largest_entry,
    largest_norm,
    places,
    real_only,
)
from probe.analyses.checks.report import FROM_WEIGHTS, Findings, LayerCheck
from probe.models.computing import computing
from probe.models.families import ROLES, Site
from probe.models.loading import Model
from probe.models.pauses import pause
from probe.models.visibility import allowed_keys
from probe.running.recording import LayerRecord, Recording
from probe.running.tokens import Encoding


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
    layer, site : which layer, and where it is in the network.
    mask : (B, 1, T, T), bool, which keys each query may attend to; None if all.
    cells : how many cells of one head's maps count: real queries with the keys they may attend to.
    steps : what ``attention.MultiHeadAttention`` computed, holding a copy of the layer's weights.
    sizes : of those weights, what ``Bounds`` needs: "query", "key", "value" and "output" are the largest norm
        of a row of the matrix, "query bias" and so on the largest entry. Where queries and keys are
        normalised, "query norm" and "key norm" are the largest factor that the norm takes a number by, and
        "query norm root" and "key norm root" the root of how many numbers it is over.
    """

    layer: int
    site: Site
    mask: Tensor | None
    cells: int
    steps: MultiHeadSteps
    sizes: dict[str, Tensor]


def recompute(recording: Recording) -> Iterator[Recomputed]:
    """Each layer's attention from scratch, on its recorded input, with a copy of its weights."""
    real = recording.attention_mask
    masks: dict[int | None, tuple[Tensor | None, int]] = {}
    module = None
    for layer, (site, seen) in enumerate(zip(recording.model.sites, recording.layers, strict=True)):
        if site.window not in masks:
            mask = allowed_mask(recording, site.window)
            masks[site.window] = mask, count_cells(mask, real, real.shape[1])
        mask, cells = masks[site.window]
        pause()
        with computing(recording.model.device, tuple(real.shape)):
            module = from_scratch(site, module)
            steps = module.steps(seen.input, mask=mask, keep_steps=False)
            again = Recomputed(layer, site, mask, cells, steps, _sizes(site, module, seen.input, real))
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
    norms = {role: norm for role in ROLES if (norm := site.norm(role)) is not None}
    for role, norm in norms.items():
        state[f"{role}_norm.weight"] = norm.gain()
    module = reuse
    if module is None:
        d_out, d_in = state["W_query.weight"].shape
        module = MultiHeadAttention(
            d_in,
            d_out,
            site.num_heads,
            num_key_value_heads=site.num_key_value_heads,
            query_key_norm=norms["query"].over if norms else None,
            out_width=state["out_proj.weight"].shape[0],
            bias="W_query.bias" in state,
            out_bias="out_proj.bias" in state,
            device="meta",  # shapes only: no random numbers for weights that are replaced at once
        ).eval()
    module.scale = site.scale
    module.rotary_frequencies = site.rotary_frequencies
    module.rotary_interleaved = site.rotary_interleaved
    for role, norm in norms.items():
        getattr(module, f"{role}_norm").eps = norm.eps
    module.load_state_dict(state, assign=True)
    return module


def _sizes(site: Site, module: MultiHeadAttention, x: Tensor, real: Tensor) -> dict[str, Tensor]:
    sizes: dict[str, Tensor] = {}
    maps = {
        "query": (site.query, module.W_query),
        "key": (site.key, module.W_key),
        "value": (site.value, module.W_value),
        "output": (site.output, module.out_proj),
    }
    for name, (projection, linear) in maps.items():
        # In float32 at least, as squares can be too large for half precision; a weight that is a transposed
        # view is summed over much faster than norm() does it.
        weight = linear.weight.to(torch.promote_types(linear.weight.dtype, torch.float32))
        sizes[name] = torch.maximum(weight.square().sum(1).amax().sqrt(), projection.detour().amax())
        bias = linear.bias
        sizes[f"{name} bias"] = sizes[name].new_zeros(()) if bias is None else bias.abs().amax()
    if module.query_key_norm is not None:
        norms = {"query": (module.W_query, module.query_norm), "key": (module.W_key, module.key_norm)}
        for name, (linear, norm) in norms.items():
            # (B, T, ...) of real tokens alone -> (tokens, vectors, n)
            vectors = linear(x)[real].unflatten(-1, (-1, len(norm.weight)))
            square = vectors.to(torch.promote_types(vectors.dtype, torch.float32)).square().mean(-1)
            sizes[f"{name} norm root"] = square.new_tensor(math.sqrt(len(norm.weight)))
            sizes[f"{name} norm"] = norm.weight.abs().amax() * (square.amin() + norm.eps).rsqrt()
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
        an input and of a row of the weight matrix, bounds every partial sum: e = 8 u times that.
        Where queries and keys are normalised, a vector x of n numbers becomes g x / r, r being its root mean
        square and g the gains. An error d of x moves that by (g / r) (d - x (x . d) / (n r^2)): what points
        along x is taken out again. x / (sqrt(n) r) is no longer than 1, so that its product with d, whose
        entries are below e and of either sign, is about e, and any number's share of that no more: 2 e times
        the largest g / r of all vectors. The mean of n squares is off by u sqrt(n) of itself, and so, half of
        that, its root; root, division and products add less than 8 units: u (8 + sqrt(n)) |q| or |k|.
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


class Tally(Findings):
    """What every batch shows about every head, computed from the weights."""

    def __init__(self, model: Model, encodings: Sequence[Encoding]) -> None:
        super().__init__(model, FROM_WEIGHTS, encodings)
        self.unit = unit_roundoff(model)

    def add(self, recording: Recording, again: Recomputed, texts: Sequence[int]) -> None:
        """Compare one layer on one batch; ``texts`` are the indices of the batch's texts."""
        seen, real = recording.layers[again.layer], recording.attention_mask
        scale = again.site.scale
        with computing(self.model.device, tuple(real.shape)):
            found, spots = _measure(seen, again, real)
            bounds = _bounds(seen, again, found, scale, self.unit)
            sampled = again.layer % len(spots)
            text, query, _ = spots[sampled]
            if found["weights"][sampled] == 0.0:  # no worst row: the last one sees every key
                query = len(recording.encodings[text]) - 1
            loops = _loops_error(seen, again, sampled, text, query, scale, recording)

        for head, (text, query, key) in enumerate(spots):
            limits = {
                "weights": bounds.weights[head],
                "query": bounds.query,
                "key": bounds.key,
                "value": bounds.value,
                "context": bounds.context[head],
                "row sums": bounds.row_sum,
                "loops": bounds.weights[head],
            }
            place, spot = ("self", again.layer, head), (texts[text], query, key)
            self.judge(place, found, spot, again.cells, limits, loops if head == sampled else None)
        error = found["output"]
        self.add_layer(LayerCheck(again.layer, error, bounds.output, error <= bounds.output))


def _measure(seen: LayerRecord, again: Recomputed, attention_mask: Tensor) -> tuple[dict[str, Any], Places]:
    """Differences between the model and the computation from scratch; padding is left out as queries.

    Returns
    -------
    What ``compare_maps`` finds, and a number a head each: "query", "key", "value" and "context", the largest
    entry of a difference; "query_error_norm" and "key_error_norm", the largest norm of a difference of
    vectors; "query_norm" to "value_norm", that of our vectors. Of all heads together: "input_norm",
    "context_norm" and "context_error_norm", the largest norms of an input of the layer, of our contexts and
    of their difference; "output", the largest difference of an output. And where weights differ most.
    """
    steps = again.steps
    real = None if attention_mask.all() else attention_mask  # (B, T)
    of_heads, worst = compare_maps(
        steps.heads.weights, seen.weights, real, forbidden=forbidden_keys(again.mask, real)
    )
    ours = torch.stack([steps.query, steps.key, steps.value])  # (3, B, H, T, head_dim)
    projected = difference(ours, torch.stack([seen.query, seen.key, seen.value]), real)
    for name, error in zip(("query", "key", "value"), projected.amax(dim=(1, 3, 4)), strict=True):
        of_heads[name] = error
    of_heads["query_error_norm"], of_heads["key_error_norm"], _ = largest_norm(projected)
    norms = largest_norm(real_only(ours, real))
    of_heads["query_norm"], of_heads["key_norm"], of_heads["value_norm"] = norms
    context = difference(steps.context[:, None], seen.context[:, None], real)  # (B, 1, T, H * head_dim)
    by_head = context.squeeze(1).unflatten(-1, (seen.weights.shape[1], -1)).transpose(1, 2)
    of_heads["context"] = largest_entry(by_head)  # (B, H, T, head_dim) -> (H,)
    of_all = {
        "input_norm": largest_norm(real_only(seen.input[:, None], real))[0],
        "context_norm": largest_norm(real_only(steps.context[:, None], real))[0],
        "context_error_norm": largest_norm(context)[0],
        "output": difference(steps.output[:, None], seen.output[:, None], real).amax(),
    }
    return {**fetched(of_heads), **fetched(of_all)}, places(worst)


def _bounds(seen: LayerRecord, again: Recomputed, found: dict[str, Any], scale: float, u: float) -> Bounds:
    sqrt_length, sqrt_width = math.sqrt(seen.weights.shape[-1]), math.sqrt(seen.query.shape[-1])
    sizes = fetched(again.sizes)

    def projection(name: str, size: float) -> float:
        return 8 * u * (size * sizes[name] + sizes[f"{name} bias"])

    def normalised(name: str, norms: tuple[float, ...]) -> float:
        """After the norm, if there is one, over vectors of which the largest have these norms."""
        error = projection(name, found["input_norm"])
        if f"{name} norm" not in sizes:
            return error
        return 2 * sizes[f"{name} norm"] * error + u * (8 + sizes[f"{name} norm root"]) * max(norms)

    query, key = normalised("query", found["query_norm"]), normalised("key", found["key_norm"])
    value = projection("value", found["input_norm"])
    weights, context = [], []
    norms = zip(found["query_norm"], found["key_norm"], found["value_norm"], strict=True)
    for head, (q, k, v) in enumerate(norms):
        dq = min(sqrt_width * query, found["query_error_norm"][head])
        dk = min(sqrt_width * key, found["key_error_norm"][head])
        moved = (dq * k + q * dk) * scale / sqrt_width
        weights.append(u * (q * k * scale / 2 + 8 + sqrt_length) + moved / 2)
        context.append(found["row"][head] * v + found["value"][head] + u * (8 + sqrt_length) * v)
    return Bounds(
        query=query,
        key=key,
        value=value,
        weights=tuple(weights),
        row_sum=u * (8 + 2 * sqrt_length),
        context=tuple(context),
        output=projection("output", found["context_norm"]) + found["context_error_norm"] * sizes["output"],
    )


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
