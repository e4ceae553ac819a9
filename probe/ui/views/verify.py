"""Verify: the errors of all heads of a model, as a picture, a table and a report to keep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr
import torch

import probe
from probe import HeadCheck, Report
from probe.analyses.checks.report import FROM_WEIGHTS
from probe.display.data import Sheet, heads_panel
from probe.ui import limits, widgets
from probe.ui.figure import figure, figure_component, message
from probe.ui.offers import Offer, Offered
from probe.ui.screen import Half, Screen
from probe.ui.state import Session
from probe.ui.store import STORE, explain, full_name
from probe.ui.views.view import Page, View, cut_of, offer

DTYPES = {"float32": torch.float32, "float64": torch.float64}

_LEAD = """
<p class="lead">Every head of every layer is computed a second time from the model's own weights (or from its
queries and keys, where it isn't known where those lie), by code that shares nothing with the model's. A cell
is the largest difference between the two over all pairs of tokens.</p>
"""
_COLUMNS = (
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
)


Reports = Mapping[int, Report]
"""Reports of one model by the number of their text, counted from 1; a text that was refused has none."""


def worst_checks(reports: Reports) -> list[tuple[int, HeadCheck]]:
    """For each head the text on which it does worst, with what was found there; failures first."""
    by_head: dict[tuple[str, int, int], tuple[int, HeadCheck]] = {}
    for text, report in reports.items():
        for check in report.heads:
            place = (check.kind, check.layer, check.head)
            if place not in by_head or _badness(check) > _badness(by_head[place][1]):
                by_head[place] = (text, check)
    return sorted(by_head.values(), key=lambda found: _badness(found[1]), reverse=True)


def _badness(check: HeadCheck) -> tuple[bool, float]:
    # A difference that is not a number is worse than any number.
    error = check.max_abs_error
    return not check.passed, float("inf") if error != error else error


def picture(
    reports: Reports,
    stamp: str,
    chosen: tuple[int, int] | None,
    note: str,
    offer: Offered | None = None,
) -> dict[str, Any]:
    """The layer x head picture of the reports of one model.

    Raises
    ------
    ValueError
        If they are of several kinds of attention, whose heads would share a cell.
    """
    checks = worst_checks(reports)
    if len(kinds := {check.kind for _, check in checks}) > 1:
        raise ValueError(f"A picture is of one kind of attention, not of {', '.join(sorted(kinds))}.")
    _, worst = max(checks, key=lambda found: _badness(found[1]))
    cell, passed = worst.worst, all(report.passed for report in reports.values())
    loosest = max(reports.values(), key=lambda report: report.tolerance)
    name = loosest.model
    panel = heads_panel(
        "Largest difference of each head",
        {(check.layer, check.head): check.max_abs_error for _, check in checks},
        f"each has a tolerance of its own, at most {loosest.tolerance:.1e}{note}",
        kind="difference",
        crossed={(check.layer, check.head): not check.passed for _, check in checks},
        crossed_means="did not pass",
    )
    return figure(
        Sheet(name, (replace(panel, short="largest difference", ends=loosest.difference_ends),)),
        notice=_cuts(reports),
        badge=("all heads agree", "good") if passed else ("not all agree", "bad"),
        subtitle=f"they agree least at layer {worst.layer}, head {worst.head}: query {cell.query_token} "
        f"({cell.query}), key {cell.key_token} ({cell.key}), {worst.max_abs_error:.2e}",
        selected=chosen,
        stamp=stamp,
        label=f"Largest difference of each head of {name}. Rows are layers, columns are heads.",
        offer=offer,
    )


def _cuts(reports: Reports) -> str:
    """What was cut of which text."""
    cuts = [(number, cut) for number, report in reports.items() for cut in report.truncated if cut]
    return " ".join(f"Text {number}: {cut}" if len(reports) > 1 else cut for number, cut in cuts)


def listing(reports: Reports, title: str, report: str) -> dict[str, Any]:
    """The table of the reports of one model, and ``report``, their JSON, to be saved."""
    several = len(reports) > 1
    rows: list[tuple[bool, list[str | int]]] = []
    for text, check in worst_checks(reports):
        forbidden = "–" if check.forbidden_weight is None else f"{check.forbidden_weight:.2g}"
        cell = check.worst
        cells: list[str | int] = [check.layer, check.head, "agrees" if check.passed else "differs"]
        cells += [
            "–" if error is None else f"{error:.2e}"
            for error in (
                check.max_abs_error,
                check.mean_abs_error,
                check.query_error,
                check.key_error,
                check.value_error,
                check.context_error,
            )
        ]
        place = f"{cell.query_token} ({cell.query}) → {cell.key_token} ({cell.key})"
        cells += [forbidden, f"{check.row_sum_error:.2e}", f"text {text}: {place}" if several else place]
        rows.append((not check.passed, cells))
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", next(iter(reports.values())).model).strip("-")[-60:]
    lines = ["\t".join(map(str, cells)) for cells in (_COLUMNS, *(cells for _, cells in rows))]
    return widgets.table(title, list(_COLUMNS), rows, "\n".join(lines), report, f"report-{name}.json")


class Verify(View):
    """The view's components, and what fills them."""

    id, label = "verify", "Verify"

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.figures, self.tables = _pair(self.id)
            with gr.Accordion("Check more sentences", open=False, elem_id="more"):
                self.texts = gr.Textbox(
                    label=f"Sentences, one a line, at most {limits.MAX_TEXTS}",
                    lines=5,
                    max_lines=12,
                    elem_id="texts",
                )
                with gr.Row(elem_id="more-actions"):
                    self.upload = gr.UploadButton(
                        "Open a text file", file_types=[".txt", "text"], type="binary", size="sm", scale=0
                    )
                    self.dtype = gr.Radio(
                        list(DTYPES),
                        value="float32",
                        label="Precision",
                        show_label=False,
                        container=False,
                        elem_classes="choice",
                        elem_id="dtype",
                    )
                    self.start = gr.Button("Check", variant="primary", size="sm", scale=0, elem_id="check")
                    self.stop = gr.Button("Stop", size="sm", scale=0, elem_id="stop")
                self.progress = widgets.widget("batch-progress")
                self.batch_figures, self.batch_tables = _pair("batch")
                self.code = widgets.widget("batch-code")

    @property
    def outputs(self) -> list[Any]:
        return [*self.figures, *self.tables]

    @property
    def batch_outputs(self) -> list[gr.HTML]:
        return [self.progress, self.code, *self.batch_figures, *self.batch_tables]

    def render(self, screen: Screen) -> list[Any]:
        figures: list[Any] = []
        tables: list[Any] = []
        for half in screen.halves:
            if half.comparison is None:
                figures.append(message(half.title, half.problem, screen.stamp(half)))
                tables.append(widgets.no_table())
                continue
            report = half.comparison.report
            chosen = (half.layer, half.head)
            saying = "; choose a cell to see that head"
            figures.append(picture({1: report}, screen.stamp(half), chosen, saying, offer_of(half)))
            title = f"All {len(report.heads)} heads of {report.model}"
            tables.append(listing({1: report}, title, report.to_json()))
        return [*figures, *tables]

    def listen(self, page: Page) -> None:
        for slot, drawn in enumerate(self.figures):
            page.opens_heads(drawn, slot)
        private: dict[str, Any] = {"api_visibility": "private"}
        self.upload.upload(read_file, self.upload, self.texts, **private)
        checking = self.start.click(
            self.check,
            [page.session, self.texts, self.dtype],
            self.batch_outputs,
            show_progress="hidden",
            concurrency_id="check",
            trigger_mode="multiple",
            **private,
        )
        stop = self.stop.click(None, cancels=[checking], **private)
        stop.then(stopped, None, self.progress, show_progress="hidden", **private)

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        yield offer_of(half)

    def lines(self, screen: Screen, half: Half) -> list[str]:
        assert half.comparison is not None
        return [f"print(probe.verify(model, {half.comparison.encoding.text!r}{cut_of(screen)}))"]

    def check(self, session: Session, texts: str, dtype: str) -> Iterator[list[Any]]:
        """Check both models on every line, one after the other; what is done so far is shown."""
        shown: list[Any] = [message("", "", ""), message("", "", ""), widgets.no_table(), widgets.no_table()]
        try:
            lines = limits.check_texts(sentences(texts))
        except probe.ProbeError as error:
            yield [widgets.verdict([("none", explain(error))], ""), widgets.code(""), *shown]
            return
        verdicts: list[tuple[str, str]] = []
        checked: list[tuple[str, list[int]]] = []
        for slot, name in enumerate(session.models):
            title = full_name(name)
            reports: dict[int, Report] = {}
            refused: list[str] = []
            yield [widgets.verdict([*verdicts, ("none", f"{title} …")], ""), widgets.code(""), *shown]
            try:
                model = STORE.model(name, *lines, dtype=DTYPES.get(dtype, torch.float32))
            except Exception as error:
                verdicts.append(("none", f"{title}: {explain(error)}"))
                continue
            for number, line in enumerate(lines, 1):
                doing = ("none", f"{title}: text {number} of {len(lines)} …")
                yield [widgets.verdict([*verdicts, doing], ""), widgets.code(""), *shown]
                try:
                    reports[number] = probe.verify(model, line, truncate=session.truncate)
                except Exception as error:
                    refused.append(f"text {number}: {explain(error)}")
            if reports:
                plain = [report.to_dict() for report in reports.values()]
                together = json.dumps(plain, ensure_ascii=False, indent=2)
                one, on = next(iter(reports.values())), _count(len(reports))
                every = f"All {len(one.heads)} heads of {one.model} on {on}"
                stamp = f"batch {slot} {len(reports)} {dtype}"
                shown[slot] = picture(reports, stamp, None, f"; {on}, {one.dtype}")
                shown[2 + slot] = listing(reports, every, together)
                verdicts.append(_verdict(reports))
                checked.append((name, list(reports)))
            verdicts += [("none", f"{title}, {sentence}") for sentence in refused]
        code = python(checked, lines, dtype, session.truncate)
        yield [widgets.verdict(verdicts, "done"), widgets.code(code), *shown]


def offer_of(half: Half) -> Offer:
    """The report, as a file."""
    comparison = half.comparison
    assert comparison is not None
    return offer(half, Report, "errors of all heads", "report", lambda: comparison.report)


def python(
    checked: Sequence[tuple[str, Sequence[int]]], texts: Sequence[str], dtype: str, truncate: bool
) -> str:
    """Lines that check models on texts as ``Verify.check`` does.

    ``checked`` are the models' names, each with the numbers of the texts that it took.
    """
    load, needs = "", ["import probe"]
    if dtype != "float32":
        load, needs = f", dtype=torch.{dtype}", ["import torch", "", "import probe"]
    verify = f"probe.verify(model, text{', truncate=True' if truncate else ''})"
    lines = [*needs, "", "texts = [", *(f"    {text!r}," for text in texts), "]"]
    for name, numbers in checked:
        taken = "texts"
        if len(numbers) < len(texts):
            taken = f"[{', '.join(f'texts[{number - 1}]' for number in numbers)}]"
        lines += ["", f"model = probe.load({name!r}{load})", f"for text in {taken}:", f"    print({verify})"]
    return "\n".join([*lines, ""])


def sentences(pasted: str | None) -> list[str]:
    """One sentence a line.

    Not ``splitlines``, which also cuts at form feeds and other characters that a sentence may hold.
    """
    return [line.strip() for line in (pasted or "").split("\n") if line.strip()]


def stopped() -> dict[str, Any]:
    """What is said when a check was stopped."""
    return widgets.verdict([("none", "Stopped.")], "stopped")


def _pair(prefix: str) -> tuple[list[gr.HTML], list[gr.HTML]]:
    """Figure and table for each of the two models, side by side."""
    figures, tables = [], []
    with gr.Row():
        for slot in "ab":
            with gr.Column(min_width=320):
                figures.append(figure_component(f"{prefix}-{slot}"))
                tables.append(widgets.widget(f"{prefix}-table-{slot}"))
    return figures, tables


def _count(texts: int) -> str:
    return f"{texts} text{'s' * (texts > 1)}"


def _verdict(reports: Reports) -> tuple[str, str]:
    one = next(iter(reports.values()))
    # The usual one goes without saying.
    how = "" if one.check == FROM_WEIGHTS else f" Checked {one.check}."
    failed = [number for number, report in reports.items() if not report.passed]
    errors = [report.max_abs_error for report in reports.values()]
    largest = max(errors, key=lambda error: float("inf") if error != error else error)
    if failed:
        numbers = ", ".join(map(str, failed))
        return "bad", f"{one.model}: heads differ on texts {numbers}; at most {largest:.1e}.{how}"
    return "good", (
        f"All {len(one.heads)} heads of {one.model} agree on {_count(len(reports))}: "
        f"largest difference {largest:.1e}.{how}"
    )


def read_file(content: bytes | None) -> str:
    """The text of an uploaded file."""
    if content is None:
        return ""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        problem = "This file is not UTF-8 text. Save it as UTF-8, or paste the sentences."
        raise gr.Error(problem, print_exception=False) from None
