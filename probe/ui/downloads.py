"""What the view in sight shows, as files that say what they were made from and can be made again.

``probe.export`` writes them, into a folder that is gone before the answer is sent: a file goes to the one
visitor who asked for it, and nothing of it stays on the server.
"""

from __future__ import annotations

import base64
import io
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import probe
from attention.examples import DRAW_A_MAP, THE_CAT_SAT_ON, MaskedScores, ProjectedSentence
from probe import (
    Ablation,
    Comparison,
    FoundHeads,
    HeadMeasures,
    MaskComparison,
    Report,
    Rollout,
    Run,
    TextComparison,
    Trace,
)
from probe.analyses.result import Result
from probe.files.formats import FORMATS, formats_of
from probe.ui import effect, heads, learn, masks, sentences, source_target, widgets
from probe.ui.state import STORE, Half, Screen, explain

MAX_BYTES = 25_000_000
"""Of one file; the page takes it whole."""
_OF_BOTH = ("compare", "masks", "verify", "bertviz")
"""The views of both models."""
_ALL_HEADS = ("compare", "heads", "bertviz")
"""The views that offer the page of all heads."""


@dataclass(frozen=True)
class Offer:
    """A result that can be had as a file.

    Attributes
    ----------
    key : tells it from the others of the same screen.
    label : what it is called.
    kind : of the result.
    name : of the file, without its ending.
    make : gives the result; called when it is asked for.
    model : whose result it is.
    head : layer and head, where the result holds several and the file one.
    """

    key: str
    label: str
    kind: type[Result]
    name: str
    make: Callable[[], Result]
    model: probe.Model
    head: tuple[int, int] | None = None

    @property
    def formats(self) -> tuple[str, ...]:
        """The endings that are offered; of all heads only the page, which stays small."""
        if self.kind is Run:
            return ("html",)
        whole = self.kind is Comparison and self.head is None
        return tuple(name for name in formats_of(self.kind) if not (whole and FORMATS[name].one_head))


@dataclass(frozen=True)
class WorkedExample:
    """An example of the course as a workbook that computes: of no model, so nothing is made again."""

    key: str
    label: str
    name: str
    example: ProjectedSentence | MaskedScores
    formats = ("xlsx",)


_WORKED = [
    WorkedExample("draw-a-map", 'worked example "draw a map"', "draw-a-map", DRAW_A_MAP),
    WorkedExample("the-cat-sat-on", 'worked example "The cat sat on"', "the-cat-sat-on", THE_CAT_SAT_ON),
]


def offers(screen: Screen) -> list[Offer] | list[WorkedExample]:
    """What the view in sight has to offer."""
    if screen.view == learn.ID:
        return _WORKED
    if screen.view == source_target.ID:
        return list(_of_pair(screen))
    shown = screen.halves if screen.view in _OF_BOTH else (screen.halves[screen.focus.slot],)
    return [offer for half in shown if screen.shows(half) for offer in _of_half(screen, half)]


def _of_half(screen: Screen, half: Half) -> Iterator[Offer]:
    assert half.comparison is not None
    comparison, model, text = half.comparison, half.comparison.model, half.comparison.encoding.text
    place, cut = (half.layer, half.head), screen.session.truncate
    one = f"layer {half.layer}, head {half.head}"

    def offer(
        kind: type[Result],
        what: str,
        file: str,
        make: Callable[[], Result],
        head: tuple[int, int] | None = None,
    ) -> Offer:
        name = f"{_slug(model)}-{file}"
        return Offer(f"{half.slot} {file}", f"{model.name}, {what}", kind, name, make, model, head)

    named = f"layer-{half.layer}-head-{half.head}"
    if screen.view == "compare" and screen.options.average == "head":
        yield offer(Comparison, one, f"{named}-comparison", lambda: comparison, place)
    elif screen.view == "masks":
        where = "-in-every-layer" if screen.options.whole_model else ""
        yield offer(MaskComparison, one, f"{named}-masks{where}", partial(masks.compared, screen, half))
    elif screen.view == "steps":
        query = half.shown_query
        trace = partial(comparison.trace, *place, query)
        yield offer(Trace, f"{one}, query {query}", f"{named}-query-{query}-steps", trace)
    elif screen.view == "verify":
        yield offer(Report, "errors of all heads", "report", lambda: comparison.report)
    elif screen.view == "sentences":
        pair = sentences.place_of(screen)
        yield offer(TextComparison, one, f"{named}-two-sentences", lambda: sentences.compared(pair)[0])
    elif screen.view == "effect":
        yield from _changed(screen, half, offer)
    elif screen.view == "heads":
        yield offer(
            HeadMeasures, "measures", "measures", partial(probe.measure_heads, model, text, truncate=cut)
        )
        yield from _found(screen, comparison, offer)
        yield offer(Rollout, "rollout", "rollout", partial(probe.rollout, model, text, truncate=cut))
    if screen.view in _ALL_HEADS:
        count = model.num_layers * model.num_heads
        attend = partial(probe.attend, model, text, truncate=cut)
        yield offer(Run, f"all {count} heads", "all-heads", attend)


def _changed(screen: Screen, half: Half, offer: Callable[..., Offer]) -> Iterator[Offer]:
    assert half.comparison is not None
    how = effect.how_of(screen.asked)
    try:
        changed = effect.chosen_heads(half, screen.asked)
    except probe.ProbeError:
        return
    written = screen.asked.heads.strip() or f"{half.layer}.{half.head}"
    make = partial(
        probe.ablate,
        half.comparison.model,
        half.comparison.encoding.text,
        changed,
        how,
        truncate=screen.session.truncate,
    )
    named = re.sub(r"[^0-9.]+", "-", written)[:60]
    yield offer(
        Ablation, f"heads {written}: {effect.HOW[how]}", f"heads-{named}-{how.replace(' ', '-')}", make
    )


def _of_pair(screen: Screen) -> Iterator[Offer]:
    """Of the model with an encoder and a decoder, once it is loaded."""
    place = source_target.place_of(screen)
    model = STORE.loaded(place.asked.pair_model.strip())
    if model is None or not model.has_target:
        return
    makers: dict[type[Result], tuple[str, Callable[[], Result]]] = {
        Report: ("errors of all heads", lambda: source_target.compared(place).report),
        Comparison: ("maps of all heads, twice", lambda: source_target.compared(place)),
        Run: ("all heads", lambda: source_target.run(place)),
    }
    slug = _slug(model)
    for kind, (what, make) in makers.items():
        file = f"{slug}-{kind.__name__.lower()}"
        yield Offer(f"pair {what}", f"{model.name}, {what}", kind, file, make, model)


def _slug(model: probe.Model) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", model.name).strip("-")[-60:]


def _found(screen: Screen, comparison: Comparison, offer: Callable[..., Offer]) -> Iterator[Offer]:
    words = heads.words_of(screen.asked)
    try:
        found = heads.find(comparison, words)
    except probe.ProbeError:
        return
    yield offer(FoundHeads, f"heads that link {words[0]} and {words[1]}", "found-heads", lambda: found)


def listing(screen: Screen) -> dict[str, Any]:
    """The offers as data for ``assets/downloads.js``."""
    found = offers(screen)
    again = any(isinstance(offer, Offer) for offer in found)
    return {
        "widget": "downloads",
        "title": "Download, with everything needed to make it again" if again else "Download",
        "offers": [
            {"key": offer.key, "label": offer.label, "formats": list(offer.formats)} for offer in found
        ],
    }


def write(offer: Offer | WorkedExample, suffix: str) -> tuple[str, bytes]:
    """Name and content of a file; of a format whose manifest lies beside it both, in a ZIP archive.

    Raises
    ------
    ProbeError
        If the result can't be had in this format, or is too large.
    """
    with tempfile.TemporaryDirectory(prefix="attention-") as folder:
        path = Path(folder) / f"{offer.name}.{suffix}"
        if isinstance(offer, WorkedExample):
            probe.to_workbook(offer.example, path)
        else:
            layer, head = offer.head or (None, None)
            probe.export(offer.make(), path, layer=layer, head=head, model=offer.model)
        files = {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}
    name, content = path.name, files[path.name]
    if len(files) > 1:
        name, content = f"{offer.name}-{suffix}.zip", _zipped(files)
    if len(content) > MAX_BYTES:
        raise probe.ProbeError(
            f"The file would have {len(content) / 1e6:.1f} MB; the page gives at most "
            f"{MAX_BYTES / 1e6:.0f} MB. Take a shorter text, or write it with probe.export at home."
        )
    return name, content


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def answer(
    screen: Screen, key: object, suffix: object
) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any]]]:
    """The file that was asked for, as data for the page, and what is said about it meanwhile."""
    offer = next((offer for offer in offers(screen) if offer.key == key), None)
    if offer is None or suffix not in offer.formats:
        yield None, widgets.progress("This is not on the page any more.", "gone")
        return
    yield None, widgets.progress(f"Writing {offer.label} …", "writing")
    try:
        name, content = write(offer, str(suffix))
    except Exception as error:
        yield None, widgets.progress(explain(error), "refused")
        return
    file = {"widget": "file", "name": name, "content": base64.b64encode(content).decode()}
    told = f"{name}, {len(content) / 1e6:.2f} MB."
    if isinstance(offer, Offer):
        unpacked = "unpacked, " if name.endswith(".zip") else ""
        told += f" Whether its numbers hold: {unpacked}python -m probe reproduce FILE"
    yield file, widgets.progress(told, f"saved {name}")
