"""What results show of themselves in a notebook: HTML without scripts, all text escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from functools import partial
from html import escape
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.image import imsave
from torch import Tensor

from probe.analyses.checks.report import Report
from probe.analyses.compare import Comparison
from probe.analyses.masks import MaskComparison
from probe.analyses.trace import Trace
from probe.display import picture as figures
from probe.display.page import coarse
from probe.display.terminal import digits
from probe.running.capture import Run

_SMALL, _SHOWN = 48, 34  # sides of a small picture: the largest in cells, and as shown in pixels
_ROWS = 64
_CELL = 'style="padding:2px 8px;text-align:right"'


def run_html(run: Run) -> str:
    """One head as a figure, several as small pictures."""
    about = [*_about(run.model_name, run.source, run.text, len(run.tokens), run.truncated)]
    if len(run.maps) == 1 and len(run.heads) == 1:
        ((_, layer, head),) = run.maps
        return "".join([*about, _figure(figures.draw_head(run, layer, head))])
    for kind in run.heads:
        places = {(layer, head) for of, layer, head in run.maps if of == kind}
        title = f"{kind} attention, " if len(run.heads) > 1 else ""
        about.append(_small(places, lambda layer, head, kind=kind: run.maps[kind, layer, head], title))  # type: ignore[misc]
    return "".join(about)


def report_html(report: Report) -> str:
    """The verdict, and every head's error as a figure."""
    what = f"{report.given}; {report.source}; {report.device}, {report.dtype}"
    return _line(report.verdict, bold=True) + _line(what) + _figure(figures.draw_errors(report))


def masks_html(masks: MaskComparison) -> str:
    """The head under both masks."""
    return _line(masks.summary) + _figure(figures.draw_masks(masks))


def comparison_html(comparison: Comparison) -> str:
    """The verdict, every head's error, and all heads as small pictures."""
    encoding, model = comparison.encoding, comparison.model
    tables = []
    for kind in model.kinds:
        places = {(check.layer, check.head) for check in comparison.report.heads if check.kind == kind}
        title = "from scratch, " if len(model.kinds) == 1 else f"{kind} attention from scratch, "
        tables.append(_small(places, partial(comparison.from_scratch, kind=kind), title))
    return "".join(
        [
            _line(comparison.report.verdict, bold=True),
            *_about(model.name, model.source, encoding.text, len(encoding), encoding.truncated),
            *tables,
            _figure(figures.draw_errors(comparison.report)),
        ]
    )


def trace_html(trace: Trace) -> str:
    """The way from dot products to weights, a row for each key."""
    about = _about(trace.model_name, trace.source, trace.text, len(trace.tokens), trace.truncated)
    made = {
        "normalised": trace.query_gain is not None,
        "turned by their positions": trace.frequencies is not None,
    }
    done = " and ".join(what for what, is_done in made.items() if is_done)
    turned = f"; query and keys are {done}" if done else ""
    title = (
        f"Layer {trace.layer}, head {trace.head}; query {trace.query} {trace.tokens[trace.query]}. It sees "
        f"{trace.mask}{turned}. Scale "
        f"{digits(trace.scale)}, largest masked score {digits(trace.maximum)}, sum of the exponentials "
        f"{digits(trace.exponential_sum)}; largest difference from the model {trace.max_abs_error:.1e}."
    )
    heads = ("key", "token", "query · key", "times scale", "exp(− largest)", "weight", "model's weight")
    parts = trace.dot_products, trace.scaled, trace.exponentials, trace.weights, trace.model_weights
    rows = [
        [str(key), token, *(digits(part[key]) for part in parts)]
        if trace.allowed[key]
        else [str(key), token, digits(parts[0][key]), "masked", "0", "0", digits(parts[-1][key])]
        for key, token in enumerate(trace.tokens[:_ROWS])
    ]
    more = len(trace.tokens) - len(rows)
    return "".join(
        [*about, _line(title), _table(heads, rows), *([_line(f"... and {more} more keys.")] if more else [])]
    )


def _about(model: str, source: str, text: Any, count: int, truncated: str | None) -> Iterable[str]:
    given = text if isinstance(text, str) else " | ".join(text)
    shown = given if len(given) <= 300 else f"{given[:300]}…"
    yield _line(f"{model} ({source}), {count} tokens: {shown}")
    if truncated:
        yield _line(truncated)


def _line(text: str, *, bold: bool = False) -> str:
    weight = "font-weight:600;" if bold else ""
    return f'<div style="{weight}margin:2px 0;overflow-wrap:anywhere">{escape(text)}</div>'


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first = "".join(f"<th {_CELL}>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td {_CELL}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"


def _figure(figure: Figure) -> str:
    title = figure.get_label()
    width = round(figure.get_size_inches()[0] * 80)
    return _image(figures.figure_bytes(figure, "png"), width, str(title))


def _image(content: bytes, width: int, words: str) -> str:
    data = base64.b64encode(content).decode()
    return (
        f'<img src="data:image/png;base64,{data}" alt="{escape(words)}" title="{escape(words)}" '
        f'style="width:{width}px;max-width:100%">'
    )


def _small(places: set[tuple[int, int]], weights: Callable[[int, int], Tensor], title: str) -> str:
    """A table of small pictures: a row for each layer, a column for each head."""
    layers, heads = sorted({layer for layer, _ in places}), sorted({head for _, head in places})
    pad = 'style="padding:1px;text-align:center"'
    first = "".join(f"<th {pad}>{head}</th>" for head in heads)
    rows = []
    for layer in layers:
        cells = "".join(
            f"<td {pad}>{_thumbnail(weights(layer, head), f'layer {layer}, head {head}')}</td>"
            if (layer, head) in places
            else "<td></td>"
            for head in heads
        )
        rows.append(f"<tr><th {pad}>{layer}</th>{cells}</tr>")
    name = f"{title}a row for each layer, a column for each head; darker is more weight"
    return f"{_line(name)}<table><tr><th></th>{first}</tr>{''.join(rows)}</table>"


def _thumbnail(weights: Tensor, words: str) -> str:
    values = coarse(weights, _SMALL).numpy()
    buffer = io.BytesIO()
    # By the square root, as on the page of a run, so that small weights show.
    imsave(buffer, colormaps["YlGnBu"](np.sqrt(np.clip(np.nan_to_num(values), 0.0, 1.0))), format="png")
    return _image(buffer.getvalue(), _SHOWN, words)
