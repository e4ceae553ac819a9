"""What is on the page as files: results that can be made again, and figures as they are.

``probe.export`` writes results, into a folder that is gone before the answer is sent: a file goes to the one
visitor who asked for it, and nothing of it stays on the server.
"""

from __future__ import annotations

import base64
import io
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import probe
from probe.display import picture
from probe.files.csv_tables import sheet_csv
from probe.files.formats import FORMATS
from probe.models.names import BUNDLED
from probe.ui import widgets
from probe.ui.offers import SHEETS, Offer, Offered, Shown, WorkedExample
from probe.ui.state import Options
from probe.ui.store import explain

MAX_BYTES = 25_000_000
"""Of one file; the page takes it whole."""


def listing(offers: Sequence[Offered]) -> dict[str, Any]:
    """The offers of the view in sight as data for ``assets/downloads.js``."""
    again = any(isinstance(offer, Offer) for offer in offers)
    return {
        "widget": "downloads",
        "title": "Download, with everything needed to make it again" if again else "Download",
        "offers": [
            {"key": offer.key, "label": offer.label, "formats": list(offer.formats)} for offer in offers
        ],
    }


def write(offer: Offered, suffix: str, options: Options) -> tuple[str, bytes]:
    """Name and content of a file; of a format whose manifest lies beside it both, in a ZIP archive.

    Pictures show what the page shows: ``options`` says how tokens are shown.

    Raises
    ------
    ProbeError
        If the result can't be had in this format, or is too large.
    """
    name = f"{offer.name}.{suffix}"
    if isinstance(offer, Shown):
        files = {name: _of_sheet(offer, suffix)}
    else:
        with tempfile.TemporaryDirectory(prefix="attention-") as folder:
            path = Path(folder) / name
            if isinstance(offer, WorkedExample):
                probe.to_workbook(offer.example, path)
            else:
                drawn = FORMATS[suffix].draw is not None
                probe.export(
                    offer.make(),
                    path,
                    model=offer.model,
                    words=drawn and options.words,
                    hide_special=drawn and options.hide_special,
                )
            files = {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}
    content = files[name]
    if len(files) > 1:
        name, content = f"{offer.name}-{suffix}.zip", _zipped(files)
    if len(content) > MAX_BYTES:
        raise probe.ProbeError(
            f"The file would have {len(content) / 1e6:.1f} MB; the page gives at most "
            f"{MAX_BYTES / 1e6:.0f} MB. Take a shorter text, or write it with probe.export at home."
        )
    return name, content


def _of_sheet(offer: Shown, suffix: str) -> bytes:
    if suffix == "csv":
        return sheet_csv(offer.sheet)
    return picture.figure_bytes(picture.draw(offer.sheet), suffix)


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def answer(
    offers: Sequence[Offered], options: Options, key: object, suffix: object
) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any]]]:
    """The file that was asked for, as data for the page, and what is said about it meanwhile."""
    offer: Offered | None = next((one for one in offers if one.key == key), None)
    if offer is None and isinstance(key, str):
        offer = SHEETS.offer(key)
    if offer is None or suffix not in offer.formats:
        yield None, widgets.progress("This is not on the page any more: show it again.", "gone")
        return
    yield None, widgets.progress(f"Writing {offer.label} …", "writing")
    try:
        name, content = write(offer, str(suffix), options)
    except Exception as error:
        yield None, widgets.progress(explain(error), "refused")
        return
    file = {"widget": "file", "name": name, "content": base64.b64encode(content).decode()}
    told = f"{name}, {len(content) / 1e6:.2f} MB."
    if isinstance(offer, Offer):
        unpacked = "unpacked, " if name.endswith(".zip") else ""
        load = "" if offer.model.name in BUNDLED else " --load"
        told += f" Whether its numbers hold: {unpacked}python -m probe reproduce FILE{load}"
    elif isinstance(offer, Shown):
        told += " The figure as it is; it is of no single result, so reproduce can't check it."
    yield file, widgets.progress(told, f"saved {name}")
