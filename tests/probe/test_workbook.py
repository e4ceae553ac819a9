"""The workbook recalculated by LibreOffice, against torch, the models and the documents' numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import torch
from openpyxl.utils import column_index_from_string, get_column_letter
from texts import eager_maps
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import probe
import tiny
from attention.examples import DRAW_A_MAP, THE_CAT_SAT_ON
from probe import Model, ProbeError
from probe.display.workbook import MAX_TOKENS
from probe.files.workbook import to_workbook

soffice = shutil.which("soffice")


def needs_libreoffice(test: Any) -> Any:
    """A test that takes as long as LibreOffice does, and is skipped where there is none."""
    reason = "needs LibreOffice: none on the PATH"
    return pytest.mark.slow(pytest.mark.skipif(soffice is None, reason=reason)(test))


TEXT = "=1+1 said the girl"
PLACE = {"bert": (3, 1), "gpt2": (4, 5)}
# Always recalculate what is opened, whatever values are stored in it.
SETTING = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema">
<item oor:path="/org.openoffice.Office.Calc/Formula/Load"><prop oor:name="OOXMLRecalcMode" oor:op="fuse">
<value>0</value></prop></item></oor:items>"""


def poison(path: Path, cell: tuple[str, str, object] | None = None) -> None:
    """Replace the stored value of every formula by 12345, so that only a recalculation gives right ones.

    ``cell`` is one to type something else into: its sheet, its address, and the value.
    """
    source = path.with_suffix(".old")
    path.rename(source)
    poisoned = 0
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        sheets = re.findall(rb'<sheet name="([^"]*)"', old.read("xl/workbook.xml"))
        for name in old.namelist():
            content = old.read(name)
            if name.startswith("xl/worksheets/sheet"):
                content, count = re.subn(rb"(</f><v>)[^<]*(</v>)", rb"\g<1>12345\g<2>", content)
                poisoned += count
            if cell and name == f"xl/worksheets/sheet{sheets.index(cell[0].encode()) + 1}.xml":
                content = typed(content, *cell[1:])
            new.writestr(name, content)
    source.unlink()
    assert poisoned > 50


def typed(sheet: bytes, address: str, value: object) -> bytes:
    """A sheet with another value in a cell that holds one."""
    text = f't="inlineStr"><is><t>{value}</t></is>' if isinstance(value, str) else f"><v>{value}</v>"
    cell = rf'<c r="{address}"[^>]*>.*?</c>'.encode()
    changed, count = re.subn(cell, f'<c r="{address}" {text}</c>'.encode(), sheet)
    assert count == 1
    return changed


def edit(path: Path, name: str, row: int, column: int, value: object) -> None:
    """Type a value into a cell of a named block."""
    with zipfile.ZipFile(path) as archive:
        names = archive.read("xl/workbook.xml").decode()
    found = re.search(rf'<definedName name="{name}">([^!]*)!\$([A-Z]+)\$(\d+)', names)
    assert found is not None
    first = column_index_from_string(found[2])
    poison(path, (found[1], f"{get_column_letter(first + column)}{int(found[3]) + row}", value))


def named_cells(book: Any, name: str) -> Any:
    ((sheet, area),) = book.defined_names[name].destinations
    cells = book[sheet][area.replace("$", "")]
    return cells if isinstance(cells, tuple) else ((cells,),)


def block(book: Any, name: str) -> Tensor:
    return torch.tensor(
        [[cell.value for cell in row] for row in named_cells(book, name)], dtype=torch.float64
    )


def recalculate(paths: list[Path], folder: Path) -> dict[str, Any]:
    """Open all files in LibreOffice, let it calculate, save, and read the values it stored."""
    assert soffice is not None
    profile = folder / "profile"
    (profile / "user").mkdir(parents=True)
    (profile / "user" / "registrymodifications.xcu").write_text(SETTING)
    out = folder / "recalculated"
    subprocess.run(
        [
            soffice,
            f"-env:UserInstallation=file://{profile}",
            "--headless",
            "--convert-to",
            "xlsx",
            "--outdir",
            str(out),
            *map(str, paths),
        ],
        check=True,
        capture_output=True,
        timeout=600,
    )
    return {path.stem: openpyxl.load_workbook(out / path.name, data_only=True) for path in paths}


def long_text(model: Model, tokens: int) -> str:
    """A text of exactly that many tokens, special tokens included."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "the", "dog", "ran", "to", "it"] * 20
    for count in range(1, len(words)):
        text = " ".join(words[:count])
        if len(model.tokenizer(text)["input_ids"]) == tokens:
            return text
    raise AssertionError(f"no text of {tokens} tokens")


# In float64, as a spreadsheet computes: what is left of a difference is the formulas' own.
@pytest.fixture(scope="module")
def bert() -> Model:
    return probe.load("bert", dtype=torch.float64)


@pytest.fixture(scope="module")
def gpt2() -> Model:
    return probe.load("gpt2", dtype=torch.float64)


@pytest.fixture(scope="module")
def wide(tiny_gpt2: Callable[..., Path]) -> Model:
    """Heads of 64, in float64, as its scores are large."""
    return probe.load(str(tiny_gpt2(n_head=2, n_embd=128, n_layer=2)), dtype=torch.float64)


# Which model of `tiny.ROTARY`, layer and head: shared keys, also of real widths, and windows of 7, which
# Qwen2 has in its later layers alone.
ROTARY = {
    "llama32": ("llama, heads of 32", 1, 3),
    "llama64": ("llama, heads of 64", 2, 4),
    "mistral": ("mistral", 1, 5),
    "qwen2": ("qwen2", 1, 4),
}
WINDOWED = ("mistral", "qwen2")


@pytest.fixture(scope="module")
def rotary(rotary_folders: dict[str, Path]) -> dict[str, Model]:
    return {
        name: probe.load(str(rotary_folders[which]), dtype=torch.float64)
        for name, (which, _, _) in ROTARY.items()
    }


# Normalised head by head, in a window, scaled by another width; all heads as one; neighbours turn, half of
# each head. And which layer and head.
OTHERS = {"gemma3_text": (0, 4), "olmo2": (1, 3), "gptj": (1, 2)}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tiny.family_saver(name, lambda: tmp_path_factory.mktemp("others"))() for name in OTHERS}


@pytest.fixture(scope="module")
def books(
    bert: Model,
    gpt2: Model,
    wide: Model,
    rotary: dict[str, Model],
    others: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Every workbook that the tests below look at, recalculated in one go."""
    folder = tmp_path_factory.mktemp("workbooks")
    paths = []

    def add(stem: str, what: Any) -> Path:
        path = to_workbook(what, folder / f"{stem}.xlsx")
        paths.append(path)
        return path

    for name, model in (("bert", bert), ("gpt2", gpt2)):
        place = PLACE[name]
        poison(add(f"{name}-short", probe.trace(model, long_text(model, 5), *place, 2)))
        poison(add(f"{name}-long", probe.trace(model, long_text(model, 64), *place, 2)))
        other = "causal" if name == "bert" else "bidirectional"
        edit(add(f"{name}-switched", probe.trace(model, TEXT, *place, 0)), "mask_in_use", 0, 0, other)
    poison(add("wide-short", probe.trace(wide, long_text(wide, 5), 1, 1, 2)))
    poison(add("wide-long", probe.trace(wide, long_text(wide, 20), 1, 1, 2)))
    edit(add("gpt2-edited", probe.trace(gpt2, TEXT, *PLACE["gpt2"], 0)), "inputs", 1, 7, 2.5)
    for name, model in rotary.items():
        place = ROTARY[name][1:]
        poison(add(f"{name}-short", probe.trace(model, long_text(model, 5), *place, 2)))
        poison(add(f"{name}-long", probe.trace(model, long_text(model, 20), *place, 2)))
    for name, folder_of in others.items():
        model = probe.load(str(folder_of), dtype=torch.float64)
        trace = probe.trace(model, long_text(model, 20), *OTHERS[name], 0)
        poison(add(name, trace))
        if name == "gemma3_text":
            edit(add("gemma3_text-inputs", trace), "inputs", 1, 7, 2.5)
            edit(add("gemma3_text-epsilon", trace), "epsilon", 0, 0, 2.0)
    changes: list[tuple[str, str, int, int, object]] = [
        ("llama32", "mask_in_use", 0, 0, "bidirectional"),
        ("mistral", "mask_in_use", 0, 0, "bidirectional"),
        ("mistral", "inputs", 1, 7, 2.5),
        ("mistral", "window", 0, 0, 3),
        ("llama32", "inputs", 1, 7, 2.5),
        ("llama32", "position", 12, 0, 40),
    ]
    for name, *change in changes:
        trace = probe.trace(rotary[name], long_text(rotary[name], 20), *ROTARY[name][1:], 0)
        edit(add(f"{name}-{change[0]}", trace), *change)  # type: ignore[arg-type]
    poison(add("draw", DRAW_A_MAP))
    edit(add("draw-causal", DRAW_A_MAP), "mask_in_use", 0, 0, "causal")
    poison(add("cat", THE_CAT_SAT_ON))
    return recalculate(paths, folder)


@needs_libreoffice
@pytest.mark.parametrize("size", ["short", "long"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "wide"])
def test_weights_equal_the_models(
    books: dict[str, Any], bert: Model, gpt2: Model, wide: Model, name: str, size: str
) -> None:
    model = {"bert": bert, "gpt2": gpt2, "wide": wide}[name]
    layer, head = PLACE.get(name, (1, 1))
    tokens = 5 if size == "short" else 20 if name == "wide" else 64
    book = books[f"{name}-{size}"]
    expected = probe.attend(model, long_text(model, tokens), [(layer, head)]).weights(layer, head).double()
    assert expected.shape == (tokens, tokens)
    assert (block(book, "weights") - expected).abs().max() < 1e-6
    assert (block(book, "model_weights") - expected).abs().max() < 1e-6
    assert block(book, "difference").abs().max() < 1e-6
    context = expected @ block(book, "value")
    assert (block(book, "context") - context).abs().max() < 1e-5


@needs_libreoffice
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_mask_cell_switches_to_the_other_mask(
    books: dict[str, Any], bert: Model, gpt2: Model, name: str
) -> None:
    comparison = probe.compare_masks({"bert": bert, "gpt2": gpt2}[name], TEXT, *PLACE[name])
    other = comparison.causal if name == "bert" else comparison.bidirectional
    assert comparison.moved.max() > 0.01
    assert (block(books[f"{name}-switched"], "weights") - other.double()).abs().max() < 1e-6


@needs_libreoffice
def test_an_edited_input_changes_everything_after_it(books: dict[str, Any], gpt2: Model) -> None:
    layer, head = PLACE["gpt2"]
    numbers = probe.trace(gpt2, TEXT, layer, head, 0).numbers
    assert numbers.inputs is not None
    inputs = numbers.inputs.clone()
    inputs[1, 7] = 2.5
    # GPT-2's own layer on the edited input, run by transformers.
    attention = gpt2.hf.base_model.h[layer].attn
    query, key, _ = attention.c_attn(inputs).split(attention.embed_dim, dim=-1)
    columns = slice(head * gpt2.head_dim, (head + 1) * gpt2.head_dim)
    scores = query[:, columns] @ key[:, columns].T / gpt2.head_dim**0.5
    expected = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
    found = block(books["gpt2-edited"], "weights")
    assert (found - expected.detach().double()).abs().max() < 1e-6
    assert block(books["gpt2-edited"], "difference").abs().max() > 1e-3


@needs_libreoffice
@pytest.mark.parametrize("tokens", [5, 20], ids=["short", "long"])
@pytest.mark.parametrize("name", ROTARY)
def test_weights_with_rotary_positions_equal_the_models(
    books: dict[str, Any],
    rotary: dict[str, Model],
    rotary_folders: dict[str, Path],
    name: str,
    tokens: int,
) -> None:
    which, layer, head = ROTARY[name]
    book = books[f"{name}-{'short' if tokens == 5 else 'long'}"]
    text = long_text(rotary[name], tokens)
    expected = eager_maps(rotary_folders[which], text, torch.float64)[layer, head].double()
    assert expected.shape == (tokens, tokens)
    assert (block(book, "weights") - expected).abs().max() < 1e-6
    assert (block(book, "model_weights") - expected).abs().max() < 1e-6
    assert block(book, "difference").abs().max() < 1e-6
    assert (block(book, "context") - expected @ block(book, "value")).abs().max() < 1e-5
    # The rotation counts: without it other weights would come out.
    scores = block(book, "projected_query") @ block(book, "projected_key").T * block(book, "scale")
    unturned = scores.masked_fill(expected == 0, -torch.inf).softmax(-1)
    assert (unturned - expected).abs().max() > 0.05


@needs_libreoffice
@pytest.mark.parametrize("name", OTHERS)
def test_weights_with_norms_and_other_turns_equal_the_models(
    books: dict[str, Any], others: dict[str, Path], name: str
) -> None:
    layer, head = OTHERS[name]
    model, book = probe.load(str(others[name])), books[name]
    expected = eager_maps(others[name], long_text(model, 20), torch.float64)[layer, head].double()
    # Norms and the softmax are computed in float32.
    assert (block(book, "weights") - expected).abs().max() < 1e-6
    assert block(book, "difference").abs().max() < 1e-6
    assert (block(book, "context") - expected @ block(book, "value")).abs().max() < 1e-5


@needs_libreoffice
@pytest.mark.parametrize("changed", ["inputs", "epsilon"])
def test_the_norm_is_live(books: dict[str, Any], others: dict[str, Path], changed: str) -> None:
    """Against Gemma 3's own layer, given other inputs, or set to another epsilon."""
    layer, head = OTHERS["gemma3_text"]
    model = probe.load(str(others["gemma3_text"]), dtype=torch.float64)
    inputs = probe.trace(model, long_text(model, 20), layer, head, 0).numbers.inputs
    assert inputs is not None
    network: Any = model.hf.base_model
    attention = network.layers[layer].self_attn
    if changed == "inputs":
        inputs[1, 7] = 2.5
    else:
        attention.q_norm.eps = attention.k_norm.eps = 2.0
    back = torch.arange(20)[:, None] - torch.arange(20)
    mask = torch.zeros(20, 20, dtype=torch.float64).masked_fill((back < 0) | (back >= 7), -torch.inf)
    turns = network.rotary_emb(inputs[None], torch.arange(20)[None], "sliding_attention")
    network.set_attn_implementation("eager")
    with torch.no_grad():
        weights = attention(inputs[None], turns, mask[None, None])[1][0, head]
    assert (block(books[f"gemma3_text-{changed}"], "weights") - weights.double()).abs().max() < 1e-6
    assert block(books[f"gemma3_text-{changed}"], "difference").abs().max() > 1e-3


@needs_libreoffice
@pytest.mark.parametrize("name", ["llama32", "mistral"])
def test_the_mask_cell_leaves_the_window(books: dict[str, Any], rotary: dict[str, Model], name: str) -> None:
    _, layer, head = ROTARY[name]
    comparison = probe.compare_masks(rotary[name], long_text(rotary[name], 20), layer, head)
    found = block(books[f"{name}-mask_in_use"], "weights")
    assert (found - comparison.bidirectional.double()).abs().max() < 1e-6
    distance = (torch.arange(20)[:, None] - torch.arange(20)).abs()
    assert torch.equal(found > 0, distance < (7 if name in WINDOWED else 20))


def turned_by_hand(
    model: Model, layer: int, head: int, inputs: Tensor, position: Tensor, window: int
) -> Tensor:
    """A head's weights from given inputs and positions: transformers' projections and its rotation."""
    network: Any = model.hf.base_model
    attention = network.layers[layer].self_attn
    cosine, sine = network.rotary_emb(inputs, position[None])
    query, key = (
        projection(inputs).unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)[None]
        for projection in (attention.q_proj, attention.k_proj)
    )
    query, key = apply_rotary_pos_emb(query, key, cosine, sine)
    key_head = head // (query.shape[1] // key.shape[1])
    scores = query[0, head] @ key[0, key_head].T / attention.head_dim**0.5
    back = torch.arange(len(inputs))[:, None] - torch.arange(len(inputs))
    weights: Tensor = scores.masked_fill((back < 0) | (back >= window), -torch.inf).softmax(-1)
    return weights.detach().double()


@needs_libreoffice
@pytest.mark.parametrize(
    ("name", "changed"),
    [("llama32", "inputs"), ("llama32", "position"), ("mistral", "inputs"), ("mistral", "window")],
)
def test_inputs_positions_and_the_window_are_live(
    books: dict[str, Any], rotary: dict[str, Model], name: str, changed: str
) -> None:
    _, layer, head = ROTARY[name]
    model = rotary[name]
    inputs = probe.trace(model, long_text(model, 20), layer, head, 0).numbers.inputs
    assert inputs is not None
    position, window = torch.arange(20), 7 if name in WINDOWED else 20
    before = turned_by_hand(model, layer, head, inputs, position, window)
    inputs, position = inputs.clone(), position.clone()
    if changed == "inputs":
        inputs[1, 7] = 2.5
    elif changed == "position":
        position[12] = 40
    else:
        window = 3
    expected = turned_by_hand(model, layer, head, inputs, position, window)
    assert (expected - before).abs().max() > 1e-3
    assert (block(books[f"{name}-{changed}"], "weights") - expected).abs().max() < 1e-6


@needs_libreoffice
def test_draw_a_map(books: dict[str, Any]) -> None:
    output = torch.tensor(DRAW_A_MAP.output, dtype=torch.float64)
    causal = torch.tensor(DRAW_A_MAP.causal_output, dtype=torch.float64)
    book = books["draw"]
    assert block(book, "query")[0, 0].item() == pytest.approx(DRAW_A_MAP.first_query_entry, abs=5e-5)
    first = torch.tensor(DRAW_A_MAP.first_weights, dtype=torch.float64)
    assert (block(book, "weights")[0] - first).abs().max() < 5e-4
    # The weights are printed with four decimals, so the outputs agree to about three.
    assert (block(book, "context") - output).abs().max() < 1e-3
    assert (block(books["draw-causal"], "context") - causal).abs().max() < 1e-3


@needs_libreoffice
def test_the_cat_sat_on(books: dict[str, Any]) -> None:
    percentages = torch.tensor(THE_CAT_SAT_ON.percentages, dtype=torch.float64)
    # Every percentage is rounded to a whole one.
    assert (block(books["cat"], "weights") * 100 - percentages).abs().max() <= 0.5


def test_text_stays_text(gpt2: Model, tmp_path: Path) -> None:
    path = to_workbook(probe.trace(gpt2, "=1+1 = cmd @sum -2 +3", 0, 0, 0), tmp_path / "book.xlsx")
    book = openpyxl.load_workbook(path)
    names = [book["weights"].cell(4 + i, 2) for i in range(book["weights"].max_row - 3)]
    assert any(cell.value.startswith("=") for cell in names)
    assert all(cell.data_type == "s" for cell in names)
    texts = [cell for row in book["About"].iter_rows() for cell in row if isinstance(cell.value, str)]
    assert any("cmd" in cell.value for cell in texts) and all(cell.data_type == "s" for cell in texts)


def test_control_characters_are_written_visibly(gpt2: Model, tmp_path: Path) -> None:
    text = "page\x0cbreak \x0b and \x07"
    book = openpyxl.load_workbook(to_workbook(probe.trace(gpt2, text, 0, 0, 0), tmp_path / "book.xlsx"))
    tokens = [book["weights"].cell(4 + i, 2).value for i in range(book["weights"].max_row - 3)]
    assert "\u240c" in tokens and "\u240b" in tokens and "\u2407" in tokens


def test_the_sheets_say_which_key_head_is_read(rotary: dict[str, Model], tmp_path: Path) -> None:
    trace = probe.trace(rotary["llama32"], "the cat sat", 1, 3, 0)  # six heads, three key heads
    book = openpyxl.load_workbook(to_workbook(trace, tmp_path / "book.xlsx"))
    assert book["W_key"]["A1"].value.startswith("Key and value head 1's key weights (2 heads read it)")
    assert book["W_query"]["A1"].value.startswith("The head's query weights:")
    about = {row[0]: row[1] for row in book["About"].iter_rows(max_col=2, values_only=True)}
    assert about["key and value head"] == "1, which 2 heads read"


def test_numbers_that_no_cell_can_hold_are_refused(gpt2: Model, tmp_path: Path) -> None:
    numbers = probe.trace(gpt2, "the cat", 0, 0, 0).numbers
    assert numbers.inputs is not None and numbers.value_weight is not None
    for broken in ({"inputs": numbers.inputs / 0.0}, {"value_weight": numbers.value_weight * torch.nan}):
        with pytest.raises(ProbeError, match=r"A workbook can't be made: .* not finite"):
            to_workbook(replace(numbers, **broken), tmp_path / "book.xlsx")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_too_many_tokens_and_bad_paths_are_refused(gpt2: Model, tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=rf"{MAX_TOKENS + 2} tokens.*at most {MAX_TOKENS}"):
        to_workbook(probe.trace(gpt2, long_text(gpt2, MAX_TOKENS + 2), 0, 0, 0), tmp_path / "book.xlsx")
    with pytest.raises(ProbeError, match="can't be written"):
        to_workbook(DRAW_A_MAP, tmp_path / "missing" / "book.xlsx")
    with pytest.raises(ProbeError, match=r'an \.xlsx file, and ".*book\.txt" has another ending'):
        to_workbook(DRAW_A_MAP, tmp_path / "book.txt")
    with pytest.raises(ProbeError, match="not of type Run: "):
        to_workbook(probe.attend(gpt2, "a cat"), tmp_path / "book.xlsx")  # type: ignore[arg-type]
