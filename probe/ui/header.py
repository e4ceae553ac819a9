"""What is always in sight: sentence, the two models, layer and head of each, and the verdict."""

from __future__ import annotations

from typing import Any

import gradio as gr

from probe import Comparison
from probe.models.names import available
from probe.ui import limits, widgets
from probe.ui.screen import Half, Screen
from probe.ui.state import DEFAULT_HEADS, DEFAULT_MODELS, DEFAULT_TEXT

EXAMPLES = (
    ("trophy and suitcase", DEFAULT_TEXT),
    ("coffee and laptop", "I spilled the coffee on my laptop, and it stopped working."),
    ("draw a map", "draw a map"),
    ("The cat sat on", "The cat sat on"),
    ("a repetition", "the cat and the dog and the cat"),
    ("German", "Der Fluss ist tief, und die Bank am Ufer ist nass."),
)
"""What a button says, and the sentence it runs."""

_MASTHEAD = """
<div class="mast"><h1>Attention, <i>checked head by head</i></h1>
<p>What one head of a real model does with your sentence,
and whether arithmetic from scratch gives the same.</p>
</div>
"""


_OPENING = "Running both models on the sentence; right after a start they are loaded first …"


def verdict(screen: Screen) -> dict[str, Any]:
    """One line for each model: do all heads agree, and by how much; more where its weights aren't sound."""
    lines = []
    for half in screen.halves:
        if half.comparison is None:
            lines.append(("none", f"{half.title}: {half.problem}"))
        else:
            lines += verdict_lines(half.comparison)
    return widgets.verdict(lines, screen.stamp(screen.halves[0]))


def verdict_lines(comparison: Comparison) -> list[tuple[str, str]]:
    """The verdict on a model, and what is wrong with its weights."""
    report = comparison.report
    verdict = "good" if report.passed else "bad", report.verdict
    more = (one for one in comparison.model.weight_warnings if one not in report.leftover)
    return [verdict, *(("bad", warning) for warning in more)]


class HalfControls:
    """Model, layer and head of one of the two models."""

    def __init__(self, slot: int, choices: list[tuple[str, str]]) -> None:
        letter = "ab"[slot]
        with gr.Column(min_width=300, elem_classes="half"), gr.Row(equal_height=True):
            self.model = gr.Dropdown(
                choices,
                value=DEFAULT_MODELS[slot],
                label=f"Model {letter.upper()}",
                allow_custom_value=not limits.on_space(),
                min_width=200,
                scale=5,
                elem_id=f"model-{letter}",
            )
            self.layer = gr.Slider(
                0,
                5,
                DEFAULT_HEADS[slot][0],
                step=1,
                label=f"Layer of {letter.upper()}",
                buttons=[],
                min_width=110,
                scale=3,
                elem_id=f"layer-{letter}",
            )
            self.head = gr.Slider(
                0,
                11,
                DEFAULT_HEADS[slot][1],
                step=1,
                label=f"Head of {letter.upper()}",
                buttons=[],
                min_width=110,
                scale=3,
                elem_id=f"head-{letter}",
            )

    def ranges(self, half: Half) -> list[Any]:
        """Updates of the two sliders: the ranges of the model, and the place within them."""
        if half.comparison is None:
            return [gr.skip(), gr.skip()]
        return [
            gr.Slider(maximum=half.comparison.model.num_layers - 1, value=half.layer),
            gr.Slider(maximum=half.comparison.model.num_heads - 1, value=half.head),
        ]


class Header:
    """The components above the views."""

    def __init__(self) -> None:
        gr.HTML(_MASTHEAD, elem_id="masthead", apply_default_css=False)
        with gr.Column(elem_id="controls"):
            with gr.Row(elem_id="sentence-row"):
                self.sentence = gr.Textbox(
                    DEFAULT_TEXT,
                    label="Sentence",
                    lines=1,
                    max_lines=4,
                    scale=6,
                    min_width=260,
                    elem_id="sentence",
                )
                self.second = gr.Textbox(
                    "",
                    label="Second sentence, for models trained on pairs",
                    placeholder="optional",
                    lines=1,
                    max_lines=3,
                    scale=3,
                    min_width=220,
                    elem_id="second",
                )
                self.run = gr.Button("Run", variant="primary", scale=0, min_width=96, elem_id="run")
            with gr.Row(elem_id="below-sentence"):
                with gr.Row(elem_id="examples"):
                    self.examples = [
                        gr.Button(label, size="sm", variant="secondary") for label, _ in EXAMPLES
                    ]
                with gr.Row(elem_id="options"):
                    self.words = gr.Checkbox(
                        label="Words instead of tokens", container=False, min_width=0, elem_id="words"
                    )
                    self.hide_special = gr.Checkbox(
                        label="Hide special tokens", container=False, min_width=0, elem_id="hide-special"
                    )
                    self.truncate = gr.Checkbox(
                        label="Cut texts that are too long", container=False, min_width=0, elem_id="truncate"
                    )
            choices = model_choices()
            with gr.Row(elem_id="models"):
                self.halves = [HalfControls(slot, choices) for slot in (0, 1)]
            self.verdict = widgets.widget("verdict", widgets.verdict([("none", _OPENING)], "opening"))
            self.give_up = gr.Button("Give up loading", size="sm", visible=False, elem_id="give-up")


def model_choices() -> list[tuple[str, str]]:
    """The models offered in the lists, by their full names, and the names they are loaded by."""
    seen: dict[str, tuple[str, str]] = {}
    for row in available():
        seen.setdefault(row["model"], (f"{row['model']} ({row['source']})", row["name"]))
    return list(seen.values())
