"""Hold every head of a model against attention computed from the queries and keys that the model made.

For models whose weights are not described in ``probe/models/families``. The model runs once on its eager
backend, the one that computes its maps itself. Each attention is seen on the way: its queries, keys and
values, and the weights and contexts that the backend makes of them. The same queries, keys and values then go
through ``attention``, with the model's own softcap and sinks, and with the mask, the scale and T5's biases
that belong there as far as they are known without the model (``expected.py``); the rest is taken from the
model.

What such a check can't see, in principle:

- queries, keys or values that are wrong already: a wrong weight or bias of a projection, rotary positions
  turned otherwise, keys shared among the wrong heads before they are handed over, two heads exchanged in all
  three. Both sides start from them.
- what comes after a head's context: heads merged in another order, the output projection.
- a scale, a bias or a mask that the network hands over wrong, for kinds of network that ``expected.py`` does
  not know; a scale that is multiplied into the queries beforehand (Whisper's); a softcap or sinks that are
  wrong or missing in what is handed over.
- maps that are exchanged after the backend has returned them, on their way out of the network.

How far sound computations may differ follows as in ``weights.Bounds``, whose terms for projections fall
away, because both sides have the same queries, keys and values. With u the unit roundoff, T the number of
keys, and |v| and |bias| the largest norm of a value and the largest bias of a head:

weights
    The partial sums of a score are at most s = scale (|q_1 k_1| + |q_2 k_2| + ...). A softcap c rounds twice
    more what is then c at most, and adding a bias rounds the sum once more: s + 2 min(c, s) + |bias|. That
    times u is how far the two sides' scores are apart. What becomes of it is known, as the softmax is: the
    derivative of a weight w_i is w_i (1 - w_i) by its own score, and -w_i w_j by another. So
    A = w_i ((1 - w_i) s_i + the sum of w_j s_j over the others), the largest of any row, is what the weights
    can be off by because of scores. Exponentials and divisions add 8 units, the sum over the keys sqrt(T):
    u (A + 8 + sqrt(T)).
loops
    Both sides of the weights take their products in the same way, and much of what is rounded cancels. The
    loops are exact, and it doesn't: u (2 A + 8 + sqrt(T)).
row sums
    u (8 + 2 sqrt(T)) from 1. Rows of a model with sinks must have the sum that ours have, and may be off by
    the weight of the sink besides, which is bounded as any weight.
context
    The measured difference of the weights, summed over a row, times |v|; and u (8 + sqrt(T)) |v| for the sum.

On the models of the README's table, with texts of up to 60 tokens, the worst error of a weight is 6 u, and
the largest tolerance 52 u; a scale that is off by 1% moves weights by thousands of u.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any

import torch
from torch import Tensor

from attention import attention_by_loops, combine_masks
from probe.analyses.checks.expected import expected, unit_roundoff
from probe.analyses.checks.measuring import (
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
from probe.analyses.checks.report import FROM_QUERY_AND_KEY, Findings, Report
from probe.errors import ProbeError
from probe.models import backend
from probe.models.kinds import sides
from probe.models.loading import Model
from probe.running.inputs import batch_inputs, batches, encode_tensors, unfit_explained
from probe.running.tokens import Encoding

# Takes each attention of a batch: which it is, what it was given as it must be, and our weights and the
# model's, (B, H, Tq, Tk).
Keep = Callable[[backend.Attention, backend.Call, Tensor, Tensor], None]


def check_possible(model: Model) -> None:
    """Refuse a model that shows no queries and keys.

    Raises
    ------
    ProbeError
        If it doesn't compute its attention through transformers' interface.
    """
    if not backend.uses_interface(model.hf):
        raise ProbeError(
            f"{model.name} computes its attention in code of its own, not through transformers' attention "
            "interface, so its maps can be shown, but there is nothing to check them against."
        )


def check_texts(
    model: Model,
    encodings: Sequence[Encoding],
    targets: Sequence[Encoding] = (),
    keep: Keep | None = None,
) -> Report:
    """Check every head on texts, and on as many targets for a model with a decoder beside an encoder.

    ``keep`` is shown every attention of every batch.
    """
    findings = Findings(model, FROM_QUERY_AND_KEY, encodings, targets)
    for batch in batches(model, encodings, sum(one.num_heads for one in model.attentions)):
        decoded = [targets[index] for index in batch] if targets else []
        inputs, real = batch_inputs(model, [encodings[index] for index in batch], decoded)
        target = inputs["decoder_attention_mask"].bool() if targets else None
        _run(findings, batch, inputs, real, target, keep)
    return findings.report()


def check_tensors(model: Model, inputs: dict[str, Any], keep: Keep | None = None) -> Report:
    """Check every head on what a processor made of one image or recording; ``keep`` as for texts."""
    findings = Findings(model, FROM_QUERY_AND_KEY, ())
    target = torch.ones_like(inputs["decoder_input_ids"], dtype=torch.bool) if model.has_target else None
    with unfit_explained(model):
        _run(findings, [0], inputs, None, target, keep)
    return findings.report()


def _run(
    findings: Findings,
    texts: Sequence[int],
    inputs: dict[str, Any],
    source: Tensor | None,
    target: Tensor | None,
    keep: Keep | None,
) -> None:
    """One forward pass of a batch, checked while it goes on.

    ``source`` (B, T) and ``target`` (B, S) are True at real tokens. Without ``source`` the network makes
    positions of something else than tokens, and how many it makes is seen in its first attention.
    """
    model = findings.model
    seen = 0

    def see(call: backend.Call) -> Tensor:
        nonlocal seen, source
        if source is None:
            source = torch.ones(1, call.shape[3], dtype=torch.bool, device=model.device)
            encoding, decoded = encode_tensors(model, inputs, call.shape[3])
            findings.encodings, findings.targets = (encoding,), (decoded,) if decoded else ()
        if seen == len(model.attentions):
            raise ProbeError(_altered(f"more than {seen}"))
        here = model.attentions[seen]
        queries, keys = sides(here.kind, source, target)
        assert queries is not None and keys is not None
        if call.shape != (*queries.shape[:1], here.num_heads, queries.shape[1], keys.shape[1]):
            raise ProbeError(
                f"The {here.kind} attention of layer {here.layer} is over {call.shape[2]} x {call.shape[3]} "
                f"positions where {queries.shape[1]} x {keys.shape[1]} were expected: such maps are not "
                "supported."
            )
        seen += 1
        output, weights = call.own()
        if weights is None:
            raise ProbeError(f"The eager attention of {model.name} returns no weights: it can't be checked.")
        _add(findings, _Attention(here, call, queries, keys, weights, output.transpose(1, 2)), texts, keep)
        return output

    with backend.running(model.hf, inputs), backend.eager(model.hf), backend.listening(model.hf, see):
        model.hf.base_model(**inputs)
    if seen != len(model.attentions):
        raise ProbeError(_altered(f"{seen} of {len(model.attentions)}"))


def _altered(count: str) -> str:
    return f"The run showed {count} attention layers: the network has been altered. Load it again."


@dataclass(frozen=True, eq=False)
class _Attention:
    """One attention of a run: which it is, and what the model made of its queries, keys and values.

    ``queries`` and ``keys`` are True at real positions, (B, Tq) and (B, Tk); ``weights`` (B, H, Tq, Tk) and
    ``context`` (B, H, Tq, value_dim) are the model's.
    """

    here: backend.Attention
    call: backend.Call
    queries: Tensor
    keys: Tensor
    weights: Tensor
    context: Tensor


def _add(findings: Findings, one: _Attention, texts: Sequence[int], keep: Keep | None) -> None:
    """Compare one attention on one batch; ``texts`` are the indices of the batch's texts."""
    here, call = one.here, one.call
    must = expected(findings.model, here, call, one.queries, one.keys)
    mask = must.allowed if must.whole else combine_masks(must.allowed, call.mask)
    bias = call.bias if must.bias is None else must.bias.to(call.query.dtype)
    scale = call.scale if must.scale is None else must.scale
    call = replace(
        call, attention_mask=mask, options={**call.options, "scaling": scale, "position_bias": bias}
    )
    steps = call.steps()
    if keep is not None:
        keep(here, call, steps.weights, one.weights)
    real = None if one.queries.all() else one.queries
    sums = None if call.sinks is None else steps.weights.sum(-1, keepdim=True)
    numbers, worst = compare_maps(
        steps.weights, one.weights, real, forbidden=forbidden_keys(must.allowed, real), sums=sums
    )
    numbers["context"] = largest_entry(difference(steps.output, one.context, real))
    numbers |= _sizes(call, steps.weights, one, real)
    found = fetched(numbers)
    u, cells = unit_roundoff(findings.model), count_cells(mask, one.queries, call.shape[3])
    rows, columns = sides(here.kind, findings.encodings, findings.targets)
    for head, (place, query, key) in enumerate(places(worst)):
        text, limits, loops = texts[place], _bounds(call, found, head, u), None
        if head == here.layer % here.num_heads:
            # Without a worst row the last one, which sees every key.
            row = query if found["weights"][head] else len(rows[text]) - 1
            loops = _loops_error(call, one.weights, head, place, row, len(columns[text]))
        findings.judge((here.kind, here.layer, head), found, (text, query, key), cells, limits, loops)


def _sizes(call: backend.Call, weights: Tensor, one: _Attention, real: Tensor | None) -> dict[str, Tensor]:
    """What the bounds need, (H,) each: A as above, from our weights, and the largest norm of a value."""
    group = call.shape[1] // call.key.shape[1]
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query, key = (part.to(wide).abs() for part in (call.query, call.key))
    sizes = query @ key.repeat_interleave(group, dim=1).transpose(-1, -2) * abs(call.scale)
    if call.softcap is not None:
        sizes = sizes + 2 * sizes.clamp_max(call.softcap)
    if call.bias is not None:
        sizes = sizes + call.bias.abs()
    shares = weights * sizes
    moved = shares + weights * (shares.sum(-1, keepdim=True) - 2 * shares)
    value = largest_norm(real_only(call.value, one.keys)).repeat_interleave(group)
    return {"moved": largest_entry(real_only(moved, real)), "value_norm": value}


def _bounds(call: backend.Call, found: dict[str, Any], head: int, u: float) -> dict[str, float]:
    """How far one head's numbers may be off, by their names in ``HeadCheck.failed``; see above."""
    sqrt_length, value = math.sqrt(call.shape[3]), found["value_norm"][head]
    weights = u * (found["moved"][head] + 8 + sqrt_length)
    return {
        "weights": weights,
        "loops": weights + u * found["moved"][head],
        "row sums": u * (8 + 2 * sqrt_length) + (0.0 if call.sinks is None else weights),
        "context": found["row"][head] * value + u * (8 + sqrt_length) * value,
    }


def _loops_error(
    call: backend.Call, weights: Tensor, head: int, text: int, query: int, num_keys: int
) -> float:
    """One row of a head by nested loops in float64, against the model's weights.

    The loops know neither softcap nor bias nor sinks. So the scores are made here, in Python's numbers, and
    go in as products of 1 and themselves; a sink is one score more, whose weight nobody gets.
    """

    def row_of(tensor: Tensor) -> list[float]:
        """The row of something that broadcasts to (B, H, Tq, Tk)."""
        row = tensor.expand(*call.shape)[text, head, query, :num_keys]
        return row.double().tolist()

    key_head = head // (call.shape[1] // call.key.shape[1])
    vector = call.query[text, head, query].double().tolist()
    keys = call.key[text, key_head, :num_keys].double().tolist()
    scores = [call.scale * sum(map(mul, vector, key)) for key in keys]
    if call.softcap is not None:
        scores = [call.softcap * math.tanh(score / call.softcap) for score in scores]
    if call.bias is not None:
        scores = [score + bias for score, bias in zip(scores, row_of(call.bias), strict=True)]
    allowed = [True] * num_keys if call.mask is None else [bool(may) for may in row_of(call.mask)]
    if call.sinks is not None:
        scores.append(float(call.sinks[head]))
        allowed.append(True)
    column = torch.tensor(scores, dtype=torch.float64)[:, None]
    shares, _ = attention_by_loops(
        column.new_ones(1, 1), column, column, mask=torch.tensor([allowed]), scale=1.0
    )
    theirs = weights[text, head, query, :num_keys].cpu().double()
    return float((shares[0, :num_keys] - theirs).abs().max())
