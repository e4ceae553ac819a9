"""Hold every head of a model against attention computed from scratch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from probe.analyses.asking import analysis
from probe.analyses.checks import query_key
from probe.analyses.checks.report import Report
from probe.analyses.checks.weights import Tally, recompute
from probe.models.loading import Model, resolve
from probe.running.inputs import batches, encode_all, encode_targets, tensors_for
from probe.running.recording import record
from probe.running.tokens import Text


@analysis(Report)
def verify(
    model: Model | str,
    text_or_texts: Text | Sequence[Text] | Mapping[str, Tensor],
    target: str | Sequence[str] | None = None,
    *,
    truncate: bool = False,
) -> Report:
    """Check every head of every layer on one or more texts.

    Of a model whose weights are described in ``probe/models/families``, each layer's own captured input goes
    through ``attention.MultiHeadAttention`` holding a copy of that layer's weights: ``Report.check`` is "from
    the weights". Any other that uses transformers' attention interface is checked "from query and key": those
    the model itself made go through ``attention``. Texts of different length are run together, padded; padded
    positions are left out of every comparison, as queries, and must get no weight as keys.

    Parameters
    ----------
    model : a loaded model, or a name as for ``load``.
    text_or_texts : a text, a (first, second) tuple for a model that takes pairs, or a list of either. For a
        model of images or sound, what its processor returns for one of them, as for ``attend``.
    target : for a model with an encoder and a decoder, what it is to produce, or one for each text.
    truncate : cut texts that are longer than the model's positions; the report then says so.

    Raises
    ------
    ProbeError
        If there is no such model or a text can't be taken; if the model computes its attention in code of
        its own, which shows nothing to compare with. A check that fails is no error: see ``Report.passed``.

    Notes
    -----
    How large a difference may be is derived, not chosen: see ``Bounds``, and ``query_key`` for what that
    check can't see.

    Examples
    --------
    >>> verify("gpt2", "The cat sat on the mat.").passed
    True
    """
    model = resolve(model)
    if not model.has_sites:
        query_key.check_possible(model)
    if isinstance(text_or_texts, Mapping):
        return query_key.check_tensors(model, tensors_for(model, text_or_texts))
    encodings = encode_all(model, text_or_texts, truncate=truncate)
    targets = encode_targets(model, text_or_texts, target, truncate=truncate)
    if not model.has_sites:
        return query_key.check_texts(model, encodings, targets)
    tally = Tally(model, encodings)
    for batch in batches(model, encodings, model.num_layers * model.num_heads):
        recording = record(model, [encodings[index] for index in batch])
        for again in recompute(recording):
            tally.add(recording, again, batch)
    return tally.report()
