"""What results show of themselves in a notebook: HTML without scripts, all text escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from probe.display import colors, picture
from probe.display.data import MapSet, Sheet, Table
from probe.display.page import coarse
from probe.running.tokens import Text

_SMALL, _SHOWN = 48, 34  # sides of a small picture: the largest in cells, and as shown in pixels
_ROWS, _TEXTS, _CHARACTERS = 64, 3, 300
_CELL = 'style="padding:2px 8px;text-align:right"'


def html(
    lines: Iterable[str],
    *,
    texts: Sequence[Text],
    map_sets: Sequence[MapSet],
    sheet: Sheet | None,
    tables: Sequence[Table],
) -> str:
    """Sentences, the text, and what there is to see: small pictures of many heads, the sheet, else tables."""
    summary, *others = lines
    parts = [_line(summary, bold=True), *map(_text, texts[:_TEXTS])]
    if len(texts) > _TEXTS:
        parts.append(_line(f"... and {len(texts) - _TEXTS} more texts."))
    parts += map(_line, others)
    if sum(len(one.weights) for one in map_sets) > 1:
        parts += [_small(one, len(map_sets) > 1) for one in map_sets]
    if sheet is not None:
        parts.append(_figure(picture.draw(sheet)))
    elif not map_sets:
        parts += map(_table, tables)
    return "".join(parts)


def _text(text: Text) -> str:
    given = text if isinstance(text, str) else " | ".join(text)
    return _line(given if len(given) <= _CHARACTERS else f"{given[:_CHARACTERS]}…")


def _line(text: str, *, bold: bool = False) -> str:
    weight = "font-weight:600;" if bold else ""
    return f'<div style="{weight}margin:2px 0;overflow-wrap:anywhere">{escape(text)}</div>'


def _table(table: Table) -> str:
    shown = table.head(_ROWS)
    first = "".join(f"<th {_CELL}>{escape(column.heading)}</th>" for column in shown.columns)
    rows = zip(*(column.written() for column in shown.columns), strict=True)
    body = "".join(
        "<tr>" + "".join(f"<td {_CELL}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    more = len(table) - len(shown)
    notes = [*([f"... and {more} more rows."] if more else []), *table.notes]
    title = _line(table.title) if table.title else ""
    made = f"{title}<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"
    return made + "".join(map(_line, notes))


def _figure(figure: Figure) -> str:
    title = figure.get_label()
    width = round(figure.get_size_inches()[0] * 80)
    return _image(picture.figure_bytes(figure, "png"), width, str(title))


def _image(content: bytes, width: int, words: str) -> str:
    data = base64.b64encode(content).decode()
    return (
        f'<img src="data:image/png;base64,{data}" alt="{escape(words)}" title="{escape(words)}" '
        f'style="width:{width}px;max-width:100%">'
    )


def _small(maps: MapSet, several: bool) -> str:
    """A table of small pictures: a row for each layer, a column for each head."""
    layers, heads = (sorted({place[side] for place in maps.weights}) for side in (0, 1))
    pad = 'style="padding:1px;text-align:center"'
    first = "".join(f"<th {pad}>{head}</th>" for head in heads)
    rows = []
    for layer in layers:
        cells = "".join(
            f"<td {pad}>{_thumbnail(maps.weights[layer, head], f'layer {layer}, head {head}')}</td>"
            if (layer, head) in maps.weights
            else "<td></td>"
            for head in heads
        )
        rows.append(f"<tr><th {pad}>{layer}</th>{cells}</tr>")
    parts = [
        *([maps.whose] if maps.whose else []),
        *([f"{maps.kind} attention"] if several else []),
        "a row for each layer, a column for each head; darker is more weight",
    ]
    name = ", ".join(parts)
    return f"{_line(name)}<table><tr><th></th>{first}</tr>{''.join(rows)}</table>"


def _thumbnail(weights: Tensor, words: str) -> str:
    values = coarse(weights, _SMALL).numpy()
    buffer = io.BytesIO()
    # By the square root, as on the page of a run, so that small weights show.
    roots = np.sqrt(np.clip(np.nan_to_num(values), 0.0, 1.0))
    scale = np.array(colors.WEIGHT["light"].colours, dtype=np.uint8)
    Image.fromarray(scale[np.rint(roots * (len(scale) - 1)).astype(int)]).save(buffer, "PNG")
    return _image(buffer.getvalue(), _SHOWN, words)
