"""bertviz: its head view and its model view of the kept maps, in a frame without origin or network."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from torch import Tensor

import probe
from probe.running.words import Words
from probe.ui import widgets
from probe.ui.figure import group_of, grouping
from probe.ui.offers import Offered
from probe.ui.screen import Half, Screen, look
from probe.ui.state import Options, Param, Session, digest
from probe.ui.store import explain
from probe.ui.views.compare import all_heads, comparison_lines
from probe.ui.views.view import Page, View

KINDS = {
    "head": "Head view: one layer, all its heads over each other",
    "model": "Model view: every head of every layer",
}
ASSETS = Path(__file__).parents[1] / "assets" / "bertviz"
REQUIRE = '<script src="https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js"></script>'
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"

SHAPES = 35_000
"""Shapes that a browser draws in about a second, so that both models' frames are there after two."""
NUMBERS = 150_000
"""Weights sent to one frame: a megabyte, at four decimals."""

_LEAD = """
<p class="lead">The same weights as bertviz draws them (Vig 2019, "A Multiscale Visualization of Attention in
the Transformer Model"). In the head view, point at a token to see where it looks; a click on a coloured
square turns that head off or on, a double click leaves it alone. In the model view, click a picture to
enlarge it. bertviz's third view, the neuron view, knows only models of 2019: here <b>Steps</b> is the neuron
view for every model.</p>
"""

_GRID = """
.bz { display: grid; gap: 14px; align-items: start; }
.bz-head { grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); }
.bz-model { grid-template-columns: repeat(auto-fit, minmax(min(100%, 760px), 1fr)); }
"""


# ---- how much of a map is drawn


@dataclass(frozen=True)
class Plan:
    """What of a model's maps goes into one drawing.

    Attributes
    ----------
    layers : the layers that are drawn.
    start, end : the tokens that are drawn, as a range of those shown.
    """

    layers: tuple[int, ...]
    start: int
    end: int


def plan(
    kind: str, num_layers: int, num_heads: int, num_tokens: int, layer: int, query: int, *, copies: int = 1
) -> Plan:
    """All layers if they are drawn within a second, else one, else a part of one around a query.

    bertviz draws a line for each pair of tokens in each head, of all layers in the model view and of one in
    the head view; the head view draws two rectangles for each pair besides.

    Parameters
    ----------
    layer : the one that is drawn if one is.
    query : position of the token that stays in the middle, among those shown.
    copies : how many times each weight is sent; twice for a pair of sentences.
    """
    each = 3 if kind == "head" else 1
    drawn_layers = 1 if kind == "head" else num_layers
    pairs = num_heads * num_tokens**2
    if drawn_layers * each * pairs <= SHAPES and num_layers * pairs * copies <= NUMBERS:
        return Plan(tuple(range(num_layers)), 0, num_tokens)
    room = max(1, math.isqrt(SHAPES // (each * num_heads)))
    if num_tokens <= room:
        return Plan((layer,), 0, num_tokens)
    start = min(max(0, query - room // 2), num_tokens - room)
    return Plan((layer,), start, start + room)


# ---- the drawing itself


def drawing(
    kind: str,
    maps: Tensor,
    layers: tuple[int, ...],
    layer: int,
    tokens: list[str],
    second: int | None = None,
    keys: list[str] | None = None,
) -> str:
    """bertviz's own HTML, without its loader, and with text that can't be anything but text.

    Parameters
    ----------
    kind : "head" or "model".
    maps : (layers, heads, T, T); (layers, heads, S, T) where a target attends to a source.
    layers : the number of each layer in the model.
    layer : the one that the head view shows first.
    tokens : T labels; those of the target where a target attends to a source.
    second : position of the first token of a second sentence, or None.
    keys : the labels of the source, where a target attends to one.

    Raises
    ------
    ProbeError
        If bertviz writes its page in another way than the version this was made for.
    """
    import bertviz  # brings IPython along, so only here

    stand_ins, read = ([f"token {i}" for i in range(len(side))] for side in (tokens, keys or tokens))
    # float32 rounded to four decimals prints as eight, float64 as four
    maps = maps.double().round(decimals=4)
    # bertviz picks the layers by number out of a list of all of them; the others only have to be there
    attention = [maps[:1]] * (max(layers) + 1)
    for number, weights in zip(layers, maps, strict=True):
        attention[number] = weights[None]
    options: dict[str, Any] = {
        **(
            {"attention": attention, "tokens": stand_ins, "sentence_b_start": second}
            if keys is None
            else {"cross_attention": attention, "encoder_tokens": read, "decoder_tokens": stand_ins}
        ),
        "include_layers": list(layers),
        "html_action": "return",
        "prettify_tokens": False,
    }
    if kind == "head":
        page = bertviz.head_view(layer=layer, **options).data
    else:
        heads = list(range(maps.size(1)))
        page = bertviz.model_view(display_mode="light", include_heads=heads, **options).data
    return _cleaned(page, tokens, keys or tokens)


def _cleaned(page: str, queries: list[str], keys: list[str]) -> str:
    """bertviz's page without its loader; its parameters once, not twice, with the real tokens in them."""
    marker = "const params = "
    if page.count(REQUIRE) != 1 or page.count(marker) != 1:
        raise _changed()
    start = page.index(marker) + len(marker)
    try:
        params, end = json.JSONDecoder().raw_decode(page, start)
        written = page[start:end]
        for part in params["attention"]:
            for side, tokens in (("left_text", queries), ("right_text", keys)):
                part[side] = [tokens[int(stand_in.removeprefix("token "))] for stand_in in part[side]]
    except (ValueError, KeyError, TypeError, IndexError):
        raise _changed() from None
    # "<" as an escape, so that no token ends the script; the rest of what could is escaped by json already
    safe = json.dumps(params, separators=(",", ":")).replace("<", "\\u003c")
    # after its own use of them bertviz repeats the parameters in a comment
    rest = page[end:].replace(written, "…")
    return page[:start].replace(REQUIRE, "") + safe + rest


def _changed() -> probe.ProbeError:
    from importlib.metadata import version

    return probe.ProbeError(
        f"bertviz {version('bertviz')} writes its page in a way this view doesn't know: install bertviz 1.4."
    )


def surroundings(_asked: list[Any]) -> dict[str, str]:
    """For the page's script: what every frame starts with."""
    return {"head": _head()}


@cache
def _head() -> str:
    """A frame's rules, its style, the two libraries and what joins them to bertviz."""
    files = [*ASSETS.iterdir(), ASSETS.parents[2] / "display" / "assets" / "shared.js"]
    read = {file.name: file.read_text(encoding="utf-8") for file in files}
    scripts = "".join(
        f"<script>{read[name]}</script>"
        for name in (
            "d3-5.7.0.min.js",
            "jquery-3.7.1.min.js",
            "shared.js",
            "frame.js",
        )
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return f'<meta charset="utf-8">{policy}<style>{read["frame.css"]}</style>{scripts}'


def frames(elem_id: str) -> gr.HTML:
    """A component for drawings: {"kind": "head" or "model", "halves": cards}."""
    return gr.HTML(
        None,
        html_template="",
        js_on_load=(ASSETS / "frames.js").read_text(encoding="utf-8"),
        css_template=_GRID,
        apply_default_css=False,
        server_functions=[surroundings],
        elem_id=elem_id,
    )


# ---- one model's card


def describe(half: Half, options: Options, kind: str) -> dict[str, Any]:
    """One model's drawing as data for ``assets/bertviz/frames.js``."""
    if half.comparison is None:
        return _card(half, half.title, notice=half.problem)
    comparison, model = half.comparison, half.comparison.model
    whole, kept = grouping(comparison.encoding, options)
    second = _second_sentence(half, kept)
    middle = next((i for i, group in enumerate(kept.index) if group >= group_of(whole, half.shown_query)), 0)
    chosen = plan(
        kind,
        model.num_layers,
        model.num_heads,
        len(kept),
        half.layer,
        middle,
        copies=1 if second is None else 2,
    )
    part = slice(chosen.start, chosen.end)
    if chosen.end - chosen.start < len(kept):
        second = None
    tokens = list(kept.labels)[part]
    maps = torch.stack(
        [
            torch.stack([kept.weights(comparison.from_model(layer, head)) for head in range(model.num_heads)])
            for layer in chosen.layers
        ]
    )[:, :, part, part]
    layer = half.layer if kind == "head" else 0
    try:
        page = drawing(kind, maps, chosen.layers, half.layer, tokens, second)
    except Exception as error:
        return _card(half, model.name, notice=explain(error))
    notices = comparison.encoding.truncated, _reason(kind, half, kept, chosen), kept.notice
    which = "all layers" if len(chosen.layers) == model.num_layers else f"layer {chosen.layers[0]}"
    return _card(
        half,
        model.name,
        f"{len(tokens)} {'words' if options.words else 'tokens'} · {which} · {model.num_heads} heads",
        notice=" ".join(filter(None, notices)),
        kind=kind,
        drawing=page,
        label=f"bertviz {kind} view of {model.name}, {which}",
        stamp=_stamp(kind, half, options, chosen, layer),
    )


def _card(half: Half, title: str, subtitle: str = "", **rest: Any) -> dict[str, Any]:
    nothing = {"notice": "", "drawing": None, "stamp": f"bertviz {digest(half.name, rest.get('notice'))}"}
    return {"slot": half.slot, "title": title, "subtitle": subtitle, **nothing, **rest}


def _stamp(kind: str, half: Half, options: Options, chosen: Plan, layer: int) -> str:
    assert half.comparison is not None
    return f"bertviz {digest(kind, half.comparison.encoding.text, half.name, options, chosen, layer)}"


def _reason(kind: str, half: Half, kept: Words, chosen: Plan) -> str:
    """Why not everything is drawn, in words; empty if it is."""
    assert half.comparison is not None
    model, total = half.comparison.model, len(kept)
    if len(chosen.layers) == model.num_layers and chosen.end - chosen.start == total:
        return ""
    layers = 1 if kind == "head" else model.num_layers
    shapes = (3 if kind == "head" else 1) * layers * model.num_heads * total**2
    cause = f"bertviz would draw {shapes:,} shapes here, and a browser draws about {SHAPES:,} in a second"
    if shapes <= SHAPES:
        numbers = model.num_layers * model.num_heads * total**2
        cause = f"the weights of all layers are {numbers:,} numbers, too many to send"
    sentence = f"Only layer {half.layer} is drawn, because {cause}. The slider above chooses another layer."
    if chosen.end - chosen.start < total:
        sentence += (
            f" Of its {total} tokens you see {chosen.end - chosen.start}, from {chosen.start} to "
            f"{chosen.end - 1}, around the chosen query; what falls on the others is left out. "
            "Compare shows all of them."
        )
    return sentence


def _second_sentence(half: Half, kept: Words) -> int | None:
    """Where the second sentence of a pair starts among the tokens or words shown."""
    assert half.comparison is not None
    encoding = half.comparison.encoding
    if not isinstance(encoding.text, tuple):
        return None
    starts = [i for i, (start, _) in enumerate(kept.pieces) if encoding.segments[start] == 1]
    return starts[0] if starts and starts[0] > 0 else None


# ---- the view


@dataclass(frozen=True)
class Place:
    """What is to be drawn, in a few bytes that Gradio can keep for each visitor."""

    session: Session
    layers: tuple[int, int]
    queries: tuple[int | None, int | None]
    options: Options
    kind: str


class Bertviz(View):
    """The view's components, and what fills them."""

    id, label = "bertviz", "bertviz"
    params = (Param("drawing", "bertviz", "head", tuple(KINDS)),)

    def __init__(self) -> None:
        with gr.Tab(self.label, id=self.id, elem_id=f"tab-{self.id}") as self.tab:
            gr.HTML(_LEAD, apply_default_css=False)
            self.kind = gr.Radio(
                [(text, key) for key, text in KINDS.items()],
                value=self.params[0].default,
                label="View",
                show_label=False,
                container=False,
                elem_id="bertviz-kind",
                elem_classes="choice",
            )
            self.frames = frames(f"{self.id}-frames")
            # A drawing can be a megabyte: it is sent for another text, layer or kind, not at every look.
            self.place = widgets.watched_state()
        self.place.change(
            self.draw,
            self.place,
            self.frames,
            api_visibility="private",
            concurrency_id="bertviz",
            show_progress="hidden",
            trigger_mode="always_last",
        )

    @property
    def controls(self) -> list[Any]:
        return [self.kind]

    def listen(self, page: Page) -> None:
        page.asks(self.kind.input)

    def offers_of(self, screen: Screen, half: Half) -> Iterator[Offered]:
        yield all_heads(screen, half)

    def lines(self, screen: Screen, half: Half) -> list[str]:
        return comparison_lines(screen, half)

    @property
    def outputs(self) -> list[Any]:
        return [self.place]

    def render(self, screen: Screen) -> list[Any]:
        first, second = screen.halves
        layers, queries = (first.layer, second.layer), (first.query, second.query)
        return [Place(screen.session, layers, queries, screen.options, screen.asked.drawing)]

    def draw(self, place: Place | None) -> dict[str, Any] | None:
        """Both models' drawings, from the maps that are kept."""
        if place is None:
            return None
        halves = [look(place.session, slot, place.layers[slot], 0, place.queries[slot]) for slot in (0, 1)]
        return {
            "kind": place.kind,
            "halves": [describe(half, place.options, place.kind) for half in halves],
        }
