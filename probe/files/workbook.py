"""A head as a spreadsheet that computes it again, in a file."""

from __future__ import annotations

import os
from pathlib import Path

from attention.examples import MaskedScores, ProjectedSentence
from probe.analyses.result import Result
from probe.analyses.trace import Trace
from probe.display.workbook import example_numbers, workbook_bytes
from probe.errors import ProbeError
from probe.files.disk import expanded, save
from probe.running.head_numbers import HeadNumbers


def to_workbook(
    what: Trace | HeadNumbers | ProjectedSentence | MaskedScores, path: str | os.PathLike[str]
) -> Path:
    """Write an .xlsx file in which a head's attention is computed again, by formulas, from its inputs and
    weights.

    For a trace it holds the whole head, all queries, not only the traced one; for a worked example of
    ``attention.examples``, ``DRAW_A_MAP`` or ``THE_CAT_SAT_ON``, all of that. Change an input, and
    everything follows; the cell ``mask_in_use`` on the first sheet switches between the causal and the
    bidirectional mask. Every block of numbers has a defined name: inputs, W_query, query, scores, scaled,
    mask, masked, row_maximum, exponentials, row_sum, weights, context, model_weights, difference and so on.

    With rotary positions, query and key are turned by formulas too, from projected_query and projected_key,
    position and frequency; a sliding window is a cell of the first sheet, and stays under either mask. A head
    that shares its keys and values with others is given those it reads. Queries and keys that are normalised
    are divided by formulas by query_size and key_size; where these are over all heads together, whose weights
    are not in the workbook, they are numbers.

    Raises
    ------
    ProbeError
        If it is of nothing of the kind, there are more than ``MAX_TOKENS`` tokens, a number is NaN or
        infinite, which a spreadsheet can't hold, or the file can't be written.
    """
    numbers: object = what
    if isinstance(what, Result):
        numbers = what.workbook()
    elif isinstance(what, ProjectedSentence | MaskedScores):
        numbers = example_numbers(what)
    if not isinstance(numbers, HeadNumbers):
        raise ProbeError(
            f"A workbook is made of a trace or of a worked example, not of type {type(what).__name__}: "
            "probe.trace gives one."
        )
    if Path(path).suffix.lower() != ".xlsx":
        raise ProbeError(f'A workbook is an .xlsx file, and "{path}" has another ending.')
    return save(expanded(path), workbook_bytes(numbers))
