"""CSV files, read back with Python's own csv module."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pandas
import pytest
import torch

import probe
from probe.analyses.result import Result
from probe.display.data import Axis, Panel, Sheet, grid
from probe.files.csv_tables import csv_bytes, sheet_csv, table_csv
from probe.running.inputs import encode_for
from probe.running.words import Words, group_words, single_tokens

FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠")


def csv_of(weights: torch.Tensor, shown: Words, keys: Words | None = None) -> bytes:
    return csv_bytes(grid(weights, shown, keys))


def read(content: bytes) -> list[list[str]]:
    assert content.startswith(b"\xef\xbb\xbf")
    return list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize(
    "text",
    [
        "=1+1 @sum -2 +3",
        'say "hi", then\nleave; a\tb',
        "Café 中文 \U0001f642",
        "May 1/2 12:30 -5 1e5 ＝1",
        "a\r\nb\u2028c\x0bd\x0ce",
    ],
)
def test_a_map_comes_back_as_it_was(name: str, text: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    run = probe.attend(model, text, [(1, 1)])
    table = read(csv_of(run.weights(1, 1), single_tokens(run)))
    size = len(run.tokens)
    assert [len(row) for row in table] == [size + 1] * (size + 1)
    names = [f"[{position}] {token}" for position, token in enumerate(run.tokens)]
    assert table[0] == ["query \\ key", *names] and [row[0] for row in table[1:]] == names
    numbers = [[float(cell) for cell in row[1:]] for row in table[1:]]
    assert numbers == run.weights(1, 1).tolist()  # to the last bit
    cells = [cell for row in table for cell in row]
    assert not any(cell.startswith(FORMULA_STARTS) or "\n" in cell or "\r" in cell for cell in cells)


def test_the_file_has_one_line_a_row(gpt2: probe.Model) -> None:
    run = probe.attend(gpt2, 'say "hi"\n\nthen\r\nleave', [(0, 0)])
    content = csv_of(run.weights(0, 0), single_tokens(run)).decode("utf-8-sig")
    assert content.count("\r\n") == len(content.splitlines()) == len(run.tokens) + 1
    assert "Ġ" not in content and "⏎" in content


def test_differences_keep_sign_and_digits(gpt2: probe.Model) -> None:
    shown = single_tokens(probe.attend(gpt2, "a b", [(0, 0)]))
    difference = torch.tensor([[-1e-9, 0.1], [float("nan"), -3.0]])
    cells = [row[1:] for row in read(csv_of(difference, shown))[1:]]
    # 0.1 in float32 is 0.100000001490116...: all of it is written.
    assert cells == [[repr(difference[0, 0].item()), "0.10000000149011612"], ["nan", "-3.0"]]


def test_words_without_special_tokens(bert: probe.Model) -> None:
    text = "Unbelievably, begonias"
    weights = probe.attend(bert, text, [(2, 2)]).weights(2, 2)
    words = group_words(encode_for(bert, text)).without_special()
    table = read(csv_of(weights, words))
    assert table[0][1:] == ["[1] Unbelievably", "[2] ,", "[3] begonias"]
    assert [[float(cell) for cell in row[1:]] for row in table[1:]] == words.weights(weights).tolist()


def test_keys_of_another_text(gpt2: probe.Model) -> None:
    queries, keys = (single_tokens(probe.attend(gpt2, text, [(0, 0)])) for text in ("a b", "the cat sat"))
    cross = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    assert read(csv_of(cross, queries, keys)) == [
        ["query \\ key", "[0] the", "[1] cat", "[2] sat"],
        ["[0] a", "0.5", "0.25", "0.25"],
        ["[1] b", "0.0", "1.0", "0.0"],
    ]


def test_other_tables() -> None:
    header = ["=head", "number"]
    rows: list[list[str | float | None]] = [
        ["+1", -0.5],
        ["-", None],
        ["@x\ny", 1],
        ["", 2.5e-8],
        ["it's", 3],
    ]
    assert read(table_csv(header, rows)) == [
        ["'=head", "number"],
        ["'+1", "-0.5"],
        ["'-", ""],
        ["'@x⏎y", "1"],
        ["", "2.5e-08"],
        ["it's", "3"],
    ]
    with pytest.raises(ValueError, match="1 cells under a header of 2"):
        table_csv(header, [["alone"]])


def test_text_that_is_none() -> None:
    assert table_csv(["a"], [["中\udc80"]]) == b"\xef\xbb\xbfa\r\n\xe4\xb8\xad\\udc80\r\n"


def test_a_map_of_another_text_is_refused(gpt2: probe.Model) -> None:
    shown = single_tokens(probe.attend(gpt2, "a b", [(0, 0)]))
    with pytest.raises(probe.ProbeError, match="take both from the same text"):
        csv_of(torch.eye(3), shown)


def test_a_sheet_has_panels_over_the_same_axes_side_by_side() -> None:
    """And those over others below them; bars have their number beside each of a query's keys."""
    queries, keys = Axis("query", ("=1+1", "b")), Axis("key", ("@x", "y\nz"), (3, 5))
    both = Axis("query in both", ("b",), (1,)), Axis("key in both", ("-c",), (5,))
    tenth = torch.tensor([[0.1, 0.9], [float("nan"), 1.0]])
    sheet = Sheet(
        "of two texts",
        (
            Panel("From scratch", "+ours", tenth, queries, keys),
            Panel("Weight that moved", "moved", torch.tensor([0.25, 0.5]), queries, keys, "bars"),
            Panel("Change", "change", torch.tensor([[-1e-9]], dtype=torch.float64), *both, "change"),
        ),
        ("said beside the picture",),
    )
    # 0.1 and 0.9 in float32, all their digits.
    assert read(sheet_csv(sheet)) == [
        ["query", "query label", "key", "key label", "'+ours", "moved", "change"],
        ["0", "'=1+1", "3", "'@x", "0.10000000149011612", "0.25", ""],
        ["0", "'=1+1", "5", "y⏎z", "0.8999999761581421", "0.25", ""],
        ["1", "b", "3", "'@x", "nan", "0.5", ""],
        ["1", "b", "5", "y⏎z", "1.0", "0.5", ""],
        ["1", "b", "5", "'-c", "", "", "-1e-09"],
    ]


def test_columns_of_bars_have_names_of_their_own() -> None:
    """Each panel's numbers have a name of their own, and an axis that has none has no column."""
    words, tokens = Axis("word", ("a", "b")), Axis("token", ("x",))
    shares = torch.tensor([0.5, 0.25])
    probability: dict[str, Any] = {"rows": words, "columns": Axis("", ("probability",)), "kind": "bars"}
    panels = (
        Panel("Change", "hidden state", torch.tensor([2.0]), tokens, Axis("", ("change",)), "bars"),
        Panel("Predicted, as it is", "probability", shares, **probability),
        Panel("Predicted, changed", "probability", shares * 2, **probability),
        Panel("Again", "again", shares, **probability),
        Panel("Again", "again", shares, **probability),
    )
    content = sheet_csv(Sheet("bars", panels))
    assert read(content) == [
        [
            *("token or word", "token or word label", "hidden state", "Predicted, as it is"),
            *("Predicted, changed", "Again, panel 4", "Again, panel 5"),
        ],
        ["0", "x", "2.0", "", "", "", ""],
        ["0", "a", "", "0.5", "1.0", "0.5", "0.5"],
        ["1", "b", "", "0.25", "0.5", "0.25", "0.25"],
    ]
    mixed = Sheet("mixed", (panels[0], Panel("Map", "map", shares[None], tokens, words)))
    assert read(sheet_csv(mixed)) == [
        ["token", "token label", "word", "word label", "hidden state", "map"],
        ["0", "x", "", "", "2.0", ""],
        ["0", "x", "0", "a", "", "0.5"],
        ["0", "x", "1", "b", "", "0.25"],
    ]


@pytest.mark.parametrize("what", ["ablation", "masks", "texts", "from scratch"])
def test_no_column_of_a_sheet_is_called_as_another(gpt2: probe.Model, what: str) -> None:
    asked: dict[str, Callable[[], Result]] = {
        "ablation": lambda: probe.ablate(gpt2, "a cat", [(0, 0)]),
        "masks": lambda: probe.compare_masks(gpt2, "a cat", 0, 0),
        "texts": lambda: probe.compare_texts(gpt2, "a cat", "the cat", 0, 0),
        "from scratch": lambda: probe.run_from_scratch(gpt2, "a cat"),
    }
    sheet = asked[what]().sheet()
    assert sheet is not None
    frame = pandas.read_csv(io.BytesIO(sheet_csv(sheet)))
    assert not [name for name in frame.columns if re.search(r"\.\d+$|^Unnamed|^ ", name)]


def test_a_sheet_of_a_head_comes_back_as_it_was(gpt2: probe.Model) -> None:
    text = "=1+1 @sum the cat"
    comparison = probe.compare(gpt2, text).only(1, 2)
    sheet = comparison.sheet()
    assert sheet is not None
    header, *rows = read(sheet_csv(sheet))
    assert header == ["query", "query label", "key", "key label", "from scratch", "model", "difference"]
    tokens = probe.attend(gpt2, text, [(1, 2)]).tokens
    length = len(tokens)
    assert [(int(row[0]), int(row[2])) for row in rows] == [
        (i, j) for i in range(length) for j in range(length)
    ]
    assert not any(cell.startswith(FORMULA_STARTS) for row in rows for cell in row)
    assert [row[1].removeprefix("'") for row in rows[::length]] == list(tokens)
    assert [row[3].removeprefix("'") for row in rows[:length]] == list(tokens)
    sides = comparison.from_scratch(1, 2), comparison.from_model(1, 2), comparison.difference(1, 2)
    for place, side in enumerate(sides, start=4):
        assert [float(row[place]) for row in rows] == side.flatten().tolist()  # to the last bit
