"""Result objects as text for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from probe.display.nonfinite import nonfinite

if TYPE_CHECKING:
    from torch import Tensor

    from probe.analyses.checks.report import HeadCheck, LayerCheck, Report
    from probe.analyses.find import FoundHeads
    from probe.analyses.masks import MaskComparison
    from probe.analyses.measures import HeadMeasure, HeadMeasures, Rollout
    from probe.analyses.texts import TextComparison, TextMap
    from probe.analyses.trace import Trace
    from probe.running.capture import Run


def report_table(report: Report) -> str:
    """The whole report: one line a head, one a layer, and what was checked."""
    several = len(report.kinds) > 1
    heads = _table(
        *(["kind"] if several else []),
        "layer",
        "head",
        "max error",
        "mean error",
        "tolerance",
        "worst at query, key",
        "forbidden",
        "loops",
        "",
    )
    for check in report.heads:
        heads.add_row(*([check.kind] if several else []), *_head_cells(check))
    layers = _table("layer", "output error", "tolerance", "")
    for layer in report.layers:
        layers.add_row(str(layer.layer), f"{layer.output_error:.1e}", f"{layer.tolerance:.1e}", _mark(layer))
    lines = [
        report.verdict,
        f"{report.given}; {report.source}; {report.device}, {report.dtype}, {report.backend}; "
        + ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        *(f"Text {index}: {cut}" for index, cut in enumerate(report.truncated) if cut),
    ]
    return "\n".join(lines) + "\n\n" + render(heads) + (render(layers) if report.layers else "")


def _head_cells(check: HeadCheck) -> list[str | Line]:
    worst = check.worst
    return [
        str(check.layer),
        str(check.head),
        f"{check.max_abs_error:.1e}",
        f"{check.mean_abs_error:.1e}",
        f"{check.tolerance:.1e}",
        Line(f"{worst.query} {worst.query_token}, {worst.key} {worst.key_token}"),
        ""
        if check.forbidden_weight is None
        else f"{check.forbidden_weight:.1e}"
        if check.forbidden_weight
        else "0",
        "" if check.loops_error is None else f"{check.loops_error:.1e}",
        _mark(check),
    ]


def _mark(check: HeadCheck | LayerCheck) -> str:
    return "ok" if check.passed else "FAILED"


def masks_table(comparison: MaskComparison) -> str:
    """How much weight each query has on later tokens once it may look at them."""
    table = _table("query", "token", "weight moved", "on later tokens", "largest without the mask on")
    for query, token in enumerate(comparison.tokens):
        key = int(comparison.bidirectional[query].argmax())
        table.add_row(
            str(query),
            Line(token),
            f"{float(comparison.moved[query]):.4f}",
            f"{float(comparison.later[query]):.4f}",
            Line(f"{key} {comparison.tokens[key]} ({float(comparison.bidirectional[query, key]):.3f})"),
        )
    return f"{comparison.summary}\n\n" + render(table)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(
            # As a Text, for a name in brackets would be taken for markup.
            Line(name),
            justify="left" if name in {"", "kind", "token"} or "," in name or " on" in name else "right",
        )
    return table


def render(table: Table) -> str:
    """A table as plain text, as wide as it needs to be."""
    console = Console(file=io.StringIO(), width=100_000, color_system=None, legacy_windows=False)
    console.print(table)
    output = console.file
    assert isinstance(output, io.StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def weights_table(run: Run, layer: int, head: int, kind: str | None = None) -> str:
    """One head's map: a row for each query, a column for each key; as wide as the text is long."""
    weights = run.weights(layer, head, kind)
    queries, keys = run.labels(kind)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("query \\ key")
    for position, token in enumerate(keys):
        table.add_column(Line(f"{position} {token}"), justify="right", no_wrap=True)
    for position, (token, row) in enumerate(zip(queries, weights.tolist(), strict=True)):
        table.add_row(Line(f"{position} {token}", style=""), *(f"{weight:.3f}" for weight in row))
    of = "" if kind is None else f"{kind} attention, "
    # The share of a model's sinks stands in no column.
    has_sinks = bool((weights.float().sum(-1) < 0.99).any())
    sums = "what a row lacks to 1 is its sink's" if has_sinks else "each row sums to 1"
    title = f"{run.model_name} ({run.source}), {of}layer {layer}, head {head}"
    problem = nonfinite(run.model_name, [weights])
    lines = [title, problem] if problem else [f"{title}; {sums}"]
    return "\n".join([*lines, *([run.truncated] if run.truncated else [])]) + "\n\n" + render(table)


def models_table(rows: list[dict[str, str]]) -> str:
    """What each name stands for."""
    table = _table("name", "model", "source")
    for row in rows:
        table.add_row(*(Line(row[key]) for key in ("name", "model", "source")))
    return render(table)


def trace_table(trace: Trace) -> str:
    """A trace to be followed with a pocket calculator: seven significant digits a number."""
    keys = _table(
        "key", "token", "dot product", "scaled", "masked", "exponential", "weight", "model's weight"
    )
    for position, token in enumerate(trace.tokens):
        keys.add_row(
            str(position),
            Line(token),
            digits(trace.dot_products[position]),
            digits(trace.scaled[position]),
            digits(trace.masked[position]) if trace.allowed[position] else "-inf",
            digits(trace.exponentials[position]),
            digits(trace.weights[position]),
            digits(trace.model_weights[position]),
        )
    named = list(enumerate(trace.tokens))
    row = f"query {trace.query} {trace.tokens[trace.query]}"
    parts = [
        f"{trace.model_name} ({trace.source}), layer {trace.layer}, head {trace.head}, {row}"
        + "".join(f"\n{line}" for line in (trace.problem, trace.truncated) if line),
        f"Input at this position:\n{_vector(trace.input)}",
        *_query_and_keys(trace),
        f"Dot product = query vector . key vector.  Scaled = dot product x {digits(trace.scale)}.  "
        "Masked = -inf for keys the mask forbids.\n"
        f"The mask lets this query see {trace.mask}.\n"
        f"Exponential = exp(masked - {digits(trace.maximum)}), the largest.  Their sum is "
        f"{digits(trace.exponential_sum)}.  Weight = exponential / sum.",
        render(keys).rstrip(),
        f"Largest difference from the model's own weights: {trace.max_abs_error:.1e}",
        f"Value vectors{trace.shared}:\n"
        + "\n".join(f"{i} {token}:\n{_vector(trace.values[i])}" for i, token in named),
        f"Context vector = sum of weight x value vector:\n{_vector(trace.context)}",
        f"This head's share of the layer's output = context x its output weights:\n"
        f"{_vector(trace.output_share)}",
    ]
    return "\n\n".join(parts) + "\n"


def _query_and_keys(trace: Trace) -> list[str]:
    """The vectors that the dot products are of, how they were normalised, and how they were turned."""
    named = list(enumerate(trace.tokens))
    title = f"Key vectors, likewise{trace.shared}:"
    query, keys = trace.projected_query, trace.projected_keys
    if query is None or keys is None:
        return [
            f"Query vector = input x query weights + bias:\n{_vector(trace.query_vector)}",
            f"{title}\n" + "\n".join(f"{i} {token}:\n{_vector(trace.keys[i])}" for i, token in named),
        ]
    # What comes first of each key, and of the query.
    of_keys = [f"{i} {token}, before it is turned:\n{_vector(keys[i])}" for i, token in named]
    of_query = [f"Query vector before it is turned = input x query weights + bias:\n{_vector(query)}"]
    if trace.query_size is not None:
        assert trace.query_gain is not None and trace.normalised_query is not None
        assert trace.key_gain is not None and trace.normalised_keys is not None
        norm = trace.numbers.query_norm
        assert trace.key_sizes is not None and norm is not None
        of_what = "its numbers" if norm.of_all_heads is None else "all heads' numbers"
        of_query = [
            f"Query vector before it is normalised = input x query weights + bias:\n{_vector(query)}",
            f"Gains of query vectors:\n{_vector(trace.query_gain)}",
            f"Gains of key vectors:\n{_vector(trace.key_gain)}",
            f"Query vector, normalised = divided by {digits(trace.query_size)}, the root of (the mean square "
            f"of {of_what} + {norm.eps:g}), times gain:\n"
            f"{_vector(trace.normalised_query)}",
        ]
        of_keys = [
            f"{i} {token}, before it is normalised:\n{_vector(keys[i])}\n"
            f"normalised, divided by {digits(trace.key_sizes[i])}:\n"
            f"{_vector(trace.normalised_keys[i])}"
            for i, token in named
        ]
        query, keys = trace.normalised_query, trace.normalised_keys
    if trace.frequencies is None or trace.angles is None:
        return [*of_query, f"{title}\n" + "\n".join(of_keys)]
    pairs = [trace.numbers.pair(pair) for pair in range(len(trace.frequencies))]
    which = "2 i" if trace.interleaved else "i"
    other = "2 i + 1" if trace.interleaved else f"i + {len(pairs)}"
    stay = "" if 2 * len(pairs) == len(query) else f"  Numbers from {2 * len(pairs)} on stay."
    turned = _table("pair", "frequency", "angle", "a", "b", "a cos - b sin", "b cos + a sin")
    for pair, places in enumerate(pairs):
        turned.add_row(
            str(pair),
            _angle(trace.frequencies[pair]),
            _angle(trace.angles[trace.query, pair]),
            *(digits(vector[i]) for vector in (query, trace.query_vector) for i in places),
        )
    return [
        *of_query,
        f"Turned by its position: pair i is number {which}, called a, and number {other}, called b.  Angle = "
        f"position x frequency = {trace.query} x frequency, in radians.{stay}\n\n{render(turned).rstrip()}",
        f"Query vector, turned:\n{_vector(trace.query_vector)}",
        f"{title}\n"
        + "\n".join(
            f"{of_keys[i]}\n"
            f"angles = {i} x frequency:\n{_lines([f'{_angle(angle):>15}' for angle in trace.angles[i]])}\n"
            f"turned:\n{_vector(trace.keys[i])}"
            for i, token in named
        ),
    ]


def measures_table(measures: HeadMeasures, heads: Iterable[HeadMeasure]) -> str:
    """Some heads of a model, a line each, and below what the columns mean."""
    from probe.analyses.measures import MEASURES

    table = _table("layer", "head", *(measure.title for measure in MEASURES))
    for head in heads:
        values = [getattr(head, measure.name) for measure in MEASURES]
        table.add_row(
            str(head.layer), str(head.head), *("" if value is None else f"{value:.3f}" for value in values)
        )
    lines = [
        f"{measures.model_name} ({measures.source}), {len(measures.tokens)} tokens; means over queries",
        *(line for line in (measures.notice, measures.truncated) if line),
    ]
    meanings = Table(box=None, show_header=False, pad_edge=False)
    for measure in MEASURES:
        meanings.add_row(measure.title, Line(f"{measure.definition} {measure.source}."))
    return "\n".join(lines) + "\n\n" + render(table) + "\n" + render(meanings)


def rollout_table(rollout: Rollout) -> str:
    """For each position after the last layer the three input tokens with the largest shares."""
    table = _table("position", "token", "may have drawn most on")
    for position, (token, row) in enumerate(
        zip(rollout.tokens, rollout.weights(len(rollout.maps) - 1), strict=True)
    ):
        top = row.topk(min(3, len(row)))
        named = (
            f"{key} {rollout.tokens[key]} ({share:.3f})"
            for share, key in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        )
        table.add_row(str(position), Line(token), Line(", ".join(named)))
    lines = [
        f"{rollout.model_name} ({rollout.source}), attention rollout over {len(rollout.maps)} layers",
        *(line for line in (nonfinite(rollout.model_name, rollout.maps), rollout.truncated) if line),
        rollout.caveat,
    ]
    return "\n".join(lines) + "\n\n" + render(table)


def found_table(found: FoundHeads, count: int) -> str:
    """The strongest links between two words, and with a second target those that tell the two apart."""
    lines = [found.summary, *(line for line in (found.notice, found.truncated) if line)]
    text = "\n".join(lines) + "\n"
    for title, links in (("", found.heads), ("By difference:", found.by_difference)):
        if not links:
            continue
        columns = [f"on {word.word}" for word in (found.to_word, found.versus) if word]
        table = _table("layer", "head", *columns, *(["difference"] if found.versus else []))
        for link in links[:count]:
            values = [value for value in (link.weight, link.versus) if value is not None]
            difference = [] if link.difference is None else [f"{link.difference:+.4f}"]
            table.add_row(str(link.layer), str(link.head), *(f"{value:.4f}" for value in values), *difference)
        text += f"\n{title}\n\n" if title else "\n"
        text += render(table)
    return text


def texts_table(comparison: TextComparison) -> str:
    """The tokens that both texts have, and how much of each one's weight moved."""
    table = _table("first", "second", "token", "weight moved", "largest in the first on", "in the second on")
    for (row, column), moved in zip(comparison.pairs, comparison.moved.tolist(), strict=True):
        table.add_row(
            str(row),
            str(column),
            Line(comparison.first.tokens[row]),
            f"{moved:.4f}",
            _largest_key(comparison.first, row),
            _largest_key(comparison.second, column),
        )
    both = (("first", comparison.first), ("second", comparison.second))
    cuts = [f"The {name} text: {one.truncated}" for name, one in both if one.truncated]
    rows = "\n" + render(table) if comparison.pairs else ""
    return "\n".join([comparison.summary, *cuts]) + "\n" + rows


def _largest_key(one: TextMap, query: int) -> Line:
    key = int(one.weights[query].argmax())
    return Line(f"{key} {one.tokens[key]} ({float(one.weights[query, key]):.3f})")


def _vector(values: Tensor) -> str:
    """Eight numbers a line, in columns."""
    return _lines([f" {digits(value):>13}" for value in values.tolist()])


def _lines(numbers: list[str]) -> str:
    return "\n".join("".join(numbers[start : start + 8]) for start in range(0, len(numbers), 8))


def digits(value: float | Tensor) -> str:
    """A number with seven significant digits."""
    return f"{float(value):#.7g}"


def _angle(value: float | Tensor) -> str:
    """Nine significant digits, all that a float32 has: what an angle is off by, its sine is too."""
    return f"{float(value):#.9g}"
