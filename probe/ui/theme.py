"""How the page looks, and what it needs beside Gradio's own files. Nothing is loaded from outside."""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr

import probe.display
from probe.display import colors

ASSETS = Path(__file__).parent / "assets"
# What the scripts of the page have in common with those of a page of all heads that stands alone.
SHARED = Path(probe.display.__file__).parent / "assets" / "shared.js"

SANS = (
    "ui-sans-serif",
    "system-ui",
    "Segoe UI",
    "Roboto",
    "Helvetica Neue",
    "Noto Sans",
    "Liberation Sans",
    "sans-serif",
)
MONO = ("ui-monospace", "SF Mono", "Cascadia Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

INK = {"light": "#17212b", "dark": "#e8edf1"}
FAINT = {"light": "#55616c", "dark": "#a7b3bd"}
PAPER = {"light": "#f6f5f1", "dark": "#10151a"}
SURFACE = {"light": "#ffffff", "dark": "#182027"}
LINE = {"light": "#d9d9d2", "dark": "#2d3841"}
ACCENT = {"light": "#0b5d7a", "dark": "#7fd0e3"}
ON_ACCENT = {"light": "#ffffff", "dark": "#0b1a20"}
# The border of a control is what tells where it is, so it keeps a contrast of 3 to 1.
EDGE = {"light": "#878f96", "dark": "#6c7a86"}
# The cell or the head that is chosen.
MARK = {"light": "#c2410c", "dark": "#fb923c"}
GOOD_FILL, GOOD_INK = {"light": "#d6eedf", "dark": "#173c29"}, {"light": "#0d4f2d", "dark": "#a8e6c3"}
BAD_FILL, BAD_INK = {"light": "#f9dcd8", "dark": "#4c1c18"}, {"light": "#7c1812", "dark": "#ffc0b8"}


def _both(name: str, colours: dict[str, str]) -> dict[str, str]:
    return {name: colours["light"], f"{name}_dark": colours["dark"]}


def theme() -> gr.themes.Base:
    """The Gradio theme: system fonts, one accent, text with a contrast of at least 4.5 to 1."""
    deeper = {"light": "#084a61", "dark": "#a5e0ee"}
    soft = {"light": "#e3eff3", "dark": "#20323b"}
    settings: dict[str, str] = {
        "color_accent": ACCENT["light"],
        "block_border_width": "1px",
        "block_shadow": "none",
        "input_shadow": "none",
    }
    for names, colours in (
        (("body_background_fill",), PAPER),
        (
            (
                "background_fill_primary",
                "block_background_fill",
                "input_background_fill",
                "checkbox_background_color",
                "panel_background_fill",
            ),
            SURFACE,
        ),
        (
            ("background_fill_secondary", "block_label_background_fill", "checkbox_label_background_fill"),
            SURFACE,
        ),
        (
            (
                "body_text_color",
                "block_title_text_color",
                "block_label_text_color",
                "checkbox_label_text_color",
                "button_secondary_text_color",
                "button_cancel_text_color",
                "accordion_text_color",
            ),
            INK,
        ),
        (("body_text_color_subdued", "block_info_text_color", "input_placeholder_color"), FAINT),
        (("border_color_primary", "block_border_color", "panel_border_color"), LINE),
        (("input_border_color", "button_secondary_border_color", "checkbox_border_color"), EDGE),
        (
            (
                "input_border_color_focus",
                "border_color_accent",
                "button_primary_background_fill",
                "slider_color",
                "link_text_color",
                "link_text_color_active",
                "link_text_color_visited",
                "loader_color",
                "checkbox_background_color_selected",
                "checkbox_border_color_selected",
                "checkbox_border_color_focus",
                "button_primary_border_color",
            ),
            ACCENT,
        ),
        (("button_primary_background_fill_hover", "link_text_color_hover"), deeper),
        (("color_accent_soft", "button_secondary_background_fill_hover"), soft),
        (("button_secondary_background_fill",), SURFACE),
        (("button_primary_text_color", "button_primary_text_color_hover"), ON_ACCENT),
    ):
        for name in names:
            settings |= _both(name, colours)
    return gr.themes.Base(
        font=SANS,
        font_mono=MONO,
        radius_size=gr.themes.sizes.radius_sm,
        spacing_size=gr.themes.sizes.spacing_sm,
    ).set(**settings)


def style() -> str:
    """The page's style sheet, with the colours of this module as variables."""
    variables = {
        "ink": INK,
        "faint": FAINT,
        "paper": PAPER,
        "surface": SURFACE,
        "line": LINE,
        "accent": ACCENT,
        "on-accent": ON_ACCENT,
        "edge": EDGE,
        "mark": MARK,
        "good-fill": GOOD_FILL,
        "good-ink": GOOD_INK,
        "bad-fill": BAD_FILL,
        "bad-ink": BAD_INK,
    }
    light = "".join(f"--af-{name}:{colours['light']};" for name, colours in variables.items())
    dark = "".join(f"--af-{name}:{colours['dark']};" for name, colours in variables.items())
    rules = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in ("style.css", "heads.css"))
    return f":root{{{light}}}\n.dark{{{dark}}}\n{rules}"


def head() -> str:
    """The page's style and scripts, inline: the palette, then what draws the figures and the small parts.

    The style goes here and not to Gradio's ``css``, which puts its own prefix before each rule: those inside
    a media query would no longer find the outer containers.
    """
    scripts = [f"window.attentionPalette = {json.dumps(colors.palette())};"]
    ours = ("figure.js", "page.js", "heads.js", "downloads.js", "steps.js")
    scripts += [path.read_text(encoding="utf-8") for path in (SHARED, *(ASSETS / name for name in ours))]
    return f"<style>\n{style()}</style>\n" + "".join(f"<script>\n{script}</script>\n" for script in scripts)
