"""Verify: the errors of all heads of a model, as a picture, a table and a report to keep."""

from __future__ import annotations

import re
from typing import Any

import gradio as gr
import torch

from probe.ui import widgets
from probe.ui.figure import Axis, Panel, difference_range, figure, figure_component, message
from probe.ui.state import Half, Screen

ID, LABEL = "verify", "Verify"


def describe(screen: Screen, half: Half) -> dict[str, Any]:
    """The layer x head picture of one model's report."""
    if half.comparison is None:
        return message(half.name, half.problem, screen.stamp(half))
    report, model = half.comparison.report, half.comparison.model
    errors = torch.zeros(model.num_layers, model.num_heads, dtype=torch.float64)
    for check in report.heads:
        errors[check.layer, check.head] = check.max_abs_error
    worst = max(report.heads, key=lambda check: check.max_abs_error)
    cell = worst.worst
    return figure(
        half.comparison.model.name,
        Axis("layer", [str(i) for i in range(model.num_layers)], range(model.num_layers)),
        Axis("head", [str(i) for i in range(model.num_heads)], range(model.num_heads)),
        [
            Panel(
                "Largest difference of each head",
                "largest difference",
                errors,
                "difference",
                ends=difference_range(report),
                note=f"tolerance {report.tolerance:.1e}; choose a cell to see that head",
            )
        ],
        badge=("all heads agree", "good") if report.passed else ("some heads differ", "bad"),
        subtitle=f"they agree least at layer {worst.layer}, head {worst.head}: query "
        f"{cell.query_token} ({cell.query}), key {cell.key_token} ({cell.key}), {worst.max_abs_error:.2e}",
        selected=(half.layer, half.head),
        stamp=screen.stamp(half),
        label=f"Largest difference of each head of {model.name}. Rows are layers, columns are heads.",
    )


def listing(half: Half) -> dict[str, Any]:
    """The table of one model's report; failed heads first, then the largest errors."""
    if half.comparison is None:
        return widgets.no_table()
    report = half.comparison.report
    columns = [
        "layer",
        "head",
        "result",
        "largest difference",
        "mean difference",
        "query error",
        "key error",
        "value error",
        "context error",
        "weight where forbidden",
        "row sums off by",
        "worst cell",
    ]
    rows: list[tuple[bool, list[str | int]]] = []
    for check in sorted(report.heads, key=lambda check: (check.passed, -check.max_abs_error)):
        forbidden = "–" if check.forbidden_weight is None else f"{check.forbidden_weight:.2g}"
        cell = check.worst
        rows.append(
            (
                not check.passed,
                [
                    check.layer,
                    check.head,
                    "agrees" if check.passed else "differs",
                    *(
                        f"{error:.2e}"
                        for error in (
                            check.max_abs_error,
                            check.mean_abs_error,
                            check.query_error,
                            check.key_error,
                            check.value_error,
                            check.context_error,
                        )
                    ),
                    forbidden,
                    f"{check.row_sum_error:.2e}",
                    f"{cell.query_token} ({cell.query}) → {cell.key_token} ({cell.key})",
                ],
            )
        )
    name = half.comparison.model.name
    return widgets.table(
        f"All {len(rows)} heads of {name}",
        columns,
        rows,
        str(report),
        report.to_json(),
        f"report-{re.sub(r'[^A-Za-z0-9.-]+', '-', name).strip('-')[-60:]}.json",
    )


class Verify:
    """The view's components, and what fills them."""

    id = ID

    def __init__(self) -> None:
        with gr.Tab(LABEL, id=ID, elem_id=f"tab-{ID}") as self.tab:
            gr.HTML(
                '<p class="lead">Every head of every layer is computed a second time from the model\'s own '
                "weights, by code that shares nothing with the model's. A cell is the largest difference "
                "between the two over all pairs of tokens.</p>",
                apply_default_css=False,
            )
            self.figures, self.tables = [], []
            with gr.Row():
                for slot in "ab":
                    with gr.Column(min_width=320):
                        self.figures.append(figure_component(f"{ID}-{slot}"))
                        self.tables.append(widgets.widget(f"{ID}-table-{slot}"))

    @property
    def outputs(self) -> list[gr.HTML]:
        return [*self.figures, *self.tables]

    def render(self, screen: Screen) -> list[Any]:
        return [
            *(describe(screen, half) for half in screen.halves),
            *(listing(half) for half in screen.halves),
        ]
