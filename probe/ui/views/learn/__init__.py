"""Learn: from a look-up to the attention of GPT-2, each step with an example that can be changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from attention.examples import DRAW_A_MAP, THE_CAT_SAT_ON
from probe.ui import widgets
from probe.ui.figure import figure_component
from probe.ui.offers import Offered, WorkedExample, slug
from probe.ui.screen import Screen
from probe.ui.store import explain
from probe.ui.views.learn import blocks, heads, layers, looking
from probe.ui.views.learn.chapter import Chapter, Field
from probe.ui.views.view import View

ID = "learn"
CHAPTERS: tuple[Chapter, ...] = (*looking.CHAPTERS, *layers.CHAPTERS, *heads.CHAPTERS)
TITLES = [f"{i} {chapter.title}" for i, chapter in enumerate(CHAPTERS, 1)]

_STYLE = (Path(__file__).parents[2] / "assets" / "learn.css").read_text(encoding="utf-8")
_LEAD = f"""
<style>{_STYLE}</style>
<p class="lead">Attention in {len(CHAPTERS)} steps, about twenty minutes. Every number is computed by this
project's own code from what stands in the fields: change it, and see what follows. Each step says what to
try.</p>
"""
_DELIMITERS: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "$", "right": "$", "display": False},
]
_TO_THE_TOP = "() => document.getElementById('learn-steps').scrollIntoView({block: 'start'})"
_LIGHT: dict[str, Any] = {
    "api_visibility": "private",
    "concurrency_id": "learn",
    "show_progress": "hidden",
    "trigger_mode": "always_last",
}


class _Part:
    """The components of one chapter."""

    def __init__(self, number: int, chapter: Chapter) -> None:
        self.chapter = chapter
        name = f"{ID}-{chapter.id}"
        with gr.Column(visible=number == 0, elem_id=name, elem_classes="learn-part") as self.column, gr.Row():
            with gr.Column(scale=2, min_width=300):
                gr.Markdown(
                    f"## {TITLES[number]}\n{chapter.text}",
                    latex_delimiters=_DELIMITERS,
                    elem_classes="learn-text",
                )
                tries = "\n".join(f"- {what}" for what in chapter.tries)
                gr.Markdown(f"**Try**\n\n{tries}", latex_delimiters=_DELIMITERS, elem_classes="learn-try")
            with gr.Column(scale=3, min_width=300):
                with gr.Row(elem_classes="learn-fields"):
                    self.fields = [_component(f"{name}-{field.name}", field) for field in chapter.fields]
                self.problem = gr.HTML("", apply_default_css=False, elem_id=f"{name}-problem")
                self.shown = gr.HTML("", apply_default_css=False, elem_id=f"{name}-shown")
                self.maps = [figure_component(f"{name}-map")] if chapter.has_map else []

    @property
    def outputs(self) -> list[Any]:
        return [self.problem, self.shown, *self.maps]

    def show(self, *values: Any) -> list[Any]:
        """Values for ``outputs``; if a value can't be used, a sentence, and the rest stays as it was."""
        try:
            given = [
                "" if value is None and field.range is None else value
                for field, value in zip(self.chapter.fields, values, strict=True)
            ]
            shown = self.chapter.show(*given)
        except Exception as error:
            return [_problem(explain(error)), *[gr.skip()] * (len(self.outputs) - 1)]
        return ["", blocks.marked(shown.html), *([shown.map] if self.maps else [])]


def _component(name: str, field: Field) -> Any:
    shared: dict[str, Any] = {"label": field.label, "min_width": 180, "elem_id": name, "interactive": True}
    if field.range is not None:
        low, high, step = field.range
        return gr.Slider(low, high, field.value, step=step, buttons=[], **shared)
    if field.choices:
        return gr.Radio(list(field.choices), value=field.value, **shared)
    return gr.Textbox(
        field.value, lines=field.lines, max_lines=max(field.lines, 8) if field.lines > 1 else 1, **shared
    )


def _problem(sentence: str) -> str:
    from html import escape

    return f'<p class="ln-problem" role="alert">{escape(sentence)}</p>'


class Learn(View):
    """The view: one chapter in sight, the others made when they are opened.

    The chapters are most of the page's components, and whoever opens the page waits for all that it has: so
    they come when the view is opened for the first time.
    """

    id, label = ID, "Learn"

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.opened = widgets.widget("learn-opened")
            gr.render(triggers=[self.opened.select], show_progress="hidden")(_course)

    @property
    def outputs(self) -> list[Any]:
        return [self.opened]

    def render(self, screen: Screen) -> list[Any]:
        """Nothing here depends on the text or the models above."""
        return [widgets.once(self.id)]

    def offers(self, screen: Screen) -> Iterator[Offered]:
        """The two worked examples as workbooks that compute."""
        for what, example in (("draw a map", DRAW_A_MAP), ("The cat sat on", THE_CAT_SAT_ON)):
            name = slug(what.lower())
            yield WorkedExample(name, f'worked example "{what}"', name, example)

    def python(self, screen: Screen) -> str:
        """Its examples are its own, and of no model."""
        return ""


def _course() -> None:
    """The chapters, the first in sight."""
    step = gr.Radio(
        TITLES,
        interactive=True,  # Gradio finds out by itself only for what comes with the page
        value=TITLES[0],
        label="Step",
        show_label=False,
        container=False,
        elem_id="learn-steps",
        elem_classes="choice",
    )
    parts = [_Part(i, chapter) for i, chapter in enumerate(CHAPTERS)]
    with gr.Row(elem_id="learn-turn"):
        back = gr.Button(
            "Back", size="sm", scale=0, min_width=120, interactive=False, elem_id="learn-previous"
        )
        on = gr.Button(
            "Next step", variant="primary", size="sm", scale=0, min_width=120, elem_id="learn-next"
        )
    first = parts[0]
    values = first.show(*(field.value for field in first.chapter.fields))
    for output, value in zip(first.outputs, values, strict=True):
        output.value = value
    everything = [field for part in parts for field in part.fields]
    shown = [step, *(part.column for part in parts)]
    shown += [*(output for part in parts for output in part.outputs), back, on]
    step.input(partial(_turn, parts, 0), [step, *everything], shown, **_LIGHT)
    for button, by in ((back, -1), (on, 1)):
        button.click(partial(_turn, parts, by), [step, *everything], shown, **_LIGHT).then(
            None, js=_TO_THE_TOP, api_visibility="private"
        )
    for part in parts:
        # Not input: Gradio has none for text that was pasted with the mouse.
        gr.on([field.change for field in part.fields], part.show, part.fields, part.outputs, **_LIGHT)


def _turn(parts: list[_Part], by: int, title: str, *values: Any) -> list[Any]:
    """Another chapter: it is shown with what its fields hold, and the one before is put away."""
    now = TITLES.index(title) if title in TITLES else 0
    chosen = min(max(now + by, 0), len(parts) - 1)
    updates: list[Any] = [TITLES[chosen], *(gr.Column(visible=i == chosen) for i in range(len(parts)))]
    start = 0
    for i, part in enumerate(parts):
        end = start + len(part.fields)
        updates += part.show(*values[start:end]) if i == chosen else [gr.skip()] * len(part.outputs)
        start = end
    return [*updates, gr.Button(interactive=chosen > 0), gr.Button(interactive=chosen < len(parts) - 1)]
