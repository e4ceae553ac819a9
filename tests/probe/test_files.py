"""Exported files: what is in them, and whether another process gets the same numbers from them."""

from __future__ import annotations

import base64
import csv
import importlib.util
import io
import json
import re
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow
import pytest
import torch
import transformers
from forking import Command
from pyarrow import parquet
from safetensors.torch import load_file, save_file

import probe
import tiny
from probe import Model, ProbeError
from probe.analyses.result import RESULTS, Result, strictly_plain
from probe.display import page
from probe.files import formats
from probe.files.numbers import digest

ROOT = Path(__file__).parents[2]
TEXT = "=1+1 said the girl </script>"
PICTURES = ["png", "svg", "pdf"]
FORMATS = {
    "run": ["json", "npz", "html", "parquet"],
    "one head": ["json", "npz", "csv", "html", "parquet", *PICTURES],
    "trace": ["json", "npz", "csv", "parquet", "xlsx"],
    "comparison": ["json", "npz", "csv", "parquet", "html", *PICTURES],
    **{
        what: ["json", "npz", "csv", "parquet", *PICTURES]
        for what in ("masks", "report", "texts", "measures", "rollout", "found", "ablation", "ranking")
    },
    **{
        what: ["json", "npz", "csv", "parquet", *PICTURES]
        for what in ("distances", "predictions", "from scratch")
    },
}
# One kind of picture for each kind of result, and all of them for two.
CASES = [
    (what, suffix)
    for what, suffixes in FORMATS.items()
    for suffix in suffixes
    if suffix not in ("png", "pdf") or what in ("one head", "masks")
]


@pytest.fixture(scope="module")
def results(bert: Model, gpt2: Model) -> dict[str, Any]:
    return {
        "run": probe.attend(gpt2, TEXT),
        "one head": probe.attend(bert, ("a pair", TEXT), [(1, 2)]),
        "trace": probe.trace(gpt2, TEXT, 3, 1, 2),
        "masks": probe.compare_masks(gpt2, TEXT, 4, 5, whole_model=True),
        "comparison": probe.compare(gpt2, TEXT),
        "report": probe.verify(gpt2, [TEXT, "another text"]),
        "texts": probe.compare_texts(gpt2, TEXT, "the girl said", 1, 2),
        "measures": probe.measure_heads(gpt2, TEXT),
        "rollout": probe.rollout(bert, TEXT),
        "found": probe.find_heads(bert, TEXT, "girl", "said", versus="the"),
        "ablation": probe.ablate(gpt2, TEXT, [(4, 5), (1, 2)], "mean"),
        "ranking": probe.rank_heads(gpt2, TEXT, "mean"),
        "distances": probe.distances(gpt2, TEXT),
        "predictions": probe.predict(gpt2, TEXT, 7),
        "from scratch": probe.run_from_scratch(bert, TEXT),
    }


def test_everything_that_a_function_returns_can_be_exported(results: dict[str, Any]) -> None:
    named = {getattr(probe, name) for name in probe.__all__}
    public = {kind for kind in named if isinstance(kind, type) and issubclass(kind, Result)}
    # Of several texts the results are those of each (test_over_texts.py).
    assert public - {probe.OverTexts} == set(RESULTS.values()) == {type(one) for one in results.values()}
    exported = {kind for kinds in FORMATS.values() for kind in kinds}
    assert exported == set(formats.FORMATS)
    for what, suffixes in FORMATS.items():
        if what not in ("run", "one head"):
            assert set(suffixes) == set(formats.formats_of(RESULTS[what]))


@pytest.fixture(scope="module")
def exported(
    results: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Path]:
    folder = tmp_path_factory.mktemp("exported")
    paths = {}
    for what, suffix in CASES:
        one = {"layer": 4, "head": 5} if what == "comparison" else {}
        paths[what, suffix] = probe.export(results[what], folder / f"{what}.{suffix}", **one)
    return paths


@pytest.mark.parametrize(("what", "suffix"), CASES)
def test_numbers_hold(exported: dict[tuple[str, str], Path], what: str, suffix: str) -> None:
    result = probe.reproduce(exported[what, suffix])
    assert result.holds and result.reasons == ()
    assert result.max_difference <= 1e-15  # the same machine: bit for bit, but for a workbook's 16 digits
    assert result.tolerance == (2 * page.PRECISION if suffix == "html" else 1e-5)
    assert (TEXT in result.manifest.texts) or (("a pair", TEXT) in result.manifest.texts)


@pytest.mark.slow
def test_another_process_makes_them_again(command: Command, exported: dict[tuple[str, str], Path]) -> None:
    # A file of the fewest libraries and one of the most, by processes that never saw the results.
    for what, suffix in (("run", "html"), ("trace", "xlsx")):
        done = command("reproduce", exported[what, suffix], "--json")
        assert done.returncode == 0, done.stderr
        printed = json.loads(done.stdout)
        assert printed["holds"] and printed["reasons"] == []


@pytest.mark.slow
def test_one_process_exports_and_another_says_that_a_number_was_changed(
    command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "map.json"
    done = command("export", "gpt2", "The cat sat on", path, "--layer", "4", "--head", "5")
    assert (done.returncode, done.stdout) == (0, "")
    content = json.loads(path.read_text("utf-8"))
    content["numbers"]["layer_4_head_5"][2][1] += 1e-3
    path.write_text(json.dumps(content))
    done = command("reproduce", path)
    assert done.returncode == 1
    assert "do NOT hold" in done.stdout and "layer_4_head_5 at 2, 1" in done.stdout
    path.write_text("{}")
    done = command("reproduce", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds no manifest" in done.stderr and "Traceback" not in done.stderr


# ---- one changed number, the first or the last of the file


def change_json(path: Path, by: float, last: bool = False) -> None:
    content = json.loads(path.read_text("utf-8"))
    blocks = {name: np.array(one, dtype=np.float64) for name, one in content["numbers"].items()}
    name = one_of(blocks, last)
    change(blocks[name], by, last)
    content["numbers"][name] = strictly_plain(blocks[name].tolist())
    path.write_text(json.dumps(content))


def change_npz(path: Path, by: float, last: bool = False) -> None:
    with np.load(path) as archive:
        arrays = dict(archive)
    name = one_of({name: one for name, one in arrays.items() if name != "manifest"}, last)
    arrays[name] = arrays[name].copy()
    change(arrays[name], by, last)
    np.savez(path, **arrays)


def one_of(blocks: dict[str, np.ndarray], last: bool) -> str:
    """The first or last block that holds a number."""
    return sorted(name for name, block in blocks.items() if np.isfinite(block).any())[-last]


def change(block: np.ndarray, by: float, last: bool) -> None:
    """The first or last number of a block that is one."""
    flat = block.reshape(-1)
    places = np.flatnonzero(np.isfinite(flat))
    flat[places[-last]] += by


def change_csv(path: Path, by: float, last: bool = False) -> None:
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    row = rows[-1 if last else 1]
    numbers = [index for index, cell in enumerate(row) if re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell)]
    row[numbers[-last]] = repr(float(row[numbers[-last]]) + by)
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path.write_bytes(text.getvalue().encode("utf-8-sig"))


def change_parquet(path: Path, by: float, last: bool = False) -> None:
    table = parquet.read_table(path)
    numbers = [place for place, one in enumerate(table.schema) if not pyarrow.types.is_dictionary(one.type)]
    place = numbers[-last]
    column = table.column(place).cast(pyarrow.float64()).to_numpy(zero_copy_only=False).copy()
    change(column, by, last)
    column = pyarrow.array(column, from_pandas=True)
    parquet.write_table(table.set_column(place, table.column_names[place], column), path)


def change_html(path: Path, by: float, last: bool = False) -> None:
    """One bit of one code: less than a thousandth."""
    content = path.read_text("utf-8")
    maps = re.search(r'"maps": \[("[^\]]*")\]', content)
    assert maps is not None
    packed = maps[1].split(", ")[-last].strip('"')
    raw = bytearray(base64.b64decode(packed))
    raw[0] ^= 1
    path.write_text(content.replace(packed, base64.b64encode(raw).decode()), "utf-8")


def change_xlsx(path: Path, by: float, last: bool = False) -> None:
    change_sheet(path, by, "difference" if last else "query")


def change_sheet(path: Path, by: float, *names: str) -> None:
    """One stored value of each sheet, in a formula's cell as a spreadsheet program would have left it."""
    source = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(source)) as old, zipfile.ZipFile(path, "w") as new:
        sheets = openpyxl.load_workbook(io.BytesIO(source)).sheetnames
        wanted = {f"xl/worksheets/sheet{sheets.index(name) + 1}.xml" for name in names}
        for part in old.namelist():
            content = old.read(part)
            if part in wanted:
                # The fourth row and third column are the first of every block.
                found = re.search(rb'(<c r="C4".*?<v>)([^<]*)</v>', content)
                assert found is not None
                changed = b"%s%r</v>" % (found[1], float(found[2]) + by)
                content = content.replace(found[0], changed, 1)
            new.writestr(part, content)


def change_svg(path: Path, by: float, last: bool = False) -> None:
    path.write_text(with_changed_block(path.read_text("utf-8"), by, last), "utf-8")


def change_pdf(path: Path, by: float, last: bool = False) -> None:
    change_svg(path.with_name(path.name + ".json"), by, last)


def change_png(path: Path, by: float, last: bool = False) -> None:
    """In the chunk, whose length and checksum are made anew."""
    content = path.read_bytes()
    start = content.index(b"iTXtattention-probe")
    (length,) = struct.unpack(">I", content[start - 4 : start])
    head = b"attention-probe\0\0\0\0\0"
    text = content[start + 4 + len(head) : start + 4 + length].decode()
    body = head + with_changed_block(text, by, last).encode()
    chunk = struct.pack(">I", len(body)) + b"iTXt" + body + struct.pack(">I", zlib.crc32(b"iTXt" + body))
    path.write_bytes(content[: start - 4] + chunk + content[start + 8 + length :])


def with_changed_block(text: str, by: float, last: bool) -> str:
    found = re.findall(r'"dtype": "(?:<|&lt;)(f[48])", "zlib": "([^"]*)"', text)
    kind, packed = found[-last]
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed)), f"<{kind}").copy()
    change(values, by, last)
    changed = base64.b64encode(zlib.compress(values.tobytes())).decode()
    before, after = text.rsplit(packed, 1) if last else text.split(packed, 1)
    return before + changed + after


CHANGES: dict[str, Callable[..., None]] = {
    suffix: globals()[f"change_{suffix}"] for suffix in formats.FORMATS
}


@pytest.fixture
def copy(exported: dict[tuple[str, str], Path], tmp_path: Path) -> Callable[[str, str], Path]:
    def made(what: str, suffix: str) -> Path:
        original = exported[what, suffix]
        for path in (original, original.with_name(original.name + ".json")):
            if path.exists():
                (tmp_path / path.name).write_bytes(path.read_bytes())
        return tmp_path / original.name

    return made


@pytest.mark.parametrize(
    "last", [pytest.param(False, id="first"), pytest.param(True, id="last", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("what", "suffix"),
    [
        *(
            (what, suffix)
            for what, suffix in CASES
            if suffix in ("json", "csv") or what in ("one head", "trace")
        ),
        ("masks", "parquet"),
    ],
)
def test_one_changed_number_makes_it_fail(
    copy: Callable[[str, str], Path], what: str, suffix: str, last: bool
) -> None:
    path = copy(what, suffix)
    CHANGES[suffix](path, 2e-3, last)
    result = probe.reproduce(path)
    assert not result.holds
    if suffix == "html":  # one bit is less than the tolerance, and only the digest shows it
        assert CHANGED in result.reasons
    else:
        assert result.max_difference > result.tolerance
        assert not result.numbers_hold and "do NOT hold" in result.verdict and "in the file" in result.verdict


CHANGED = "The file was changed after it was written: its contents don't have their digest."


def test_a_table_is_compared_by_columns(copy: Callable[[str, str], Path]) -> None:
    """A distance of many tokens beside it makes nothing of a small change of an entropy."""
    path = copy("measures", "csv")
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    column = rows[0].index("entropy")
    entropy = float(rows[5][column])
    rows[5][column] = repr(entropy + 5e-5)
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path.write_bytes(text.getvalue().encode("utf-8-sig"))
    result = probe.reproduce(path)
    assert result.reasons == (f"entropy at 4: {entropy + 5e-5:.9g} in the file, {entropy:.9g} made again.",)


def test_each_block_of_a_workbook_is_looked_at(copy: Callable[[str, str], Path]) -> None:
    blocks = "inputs W_query query W_key key W_value value scores scaled mask masked row_maximum exponentials"
    path = copy("trace", "xlsx")
    names = [*blocks.split(), "row_sum", "weights", "context", "model_weights", "difference"]
    change_sheet(path, 1e-3, *names)
    result = probe.reproduce(path)
    assert not result.numbers_hold
    assert sorted(reason.split(" at 0, 0: ")[0] for reason in result.reasons) == sorted(names)


def test_text_of_a_table_is_looked_at(copy: Callable[[str, str], Path]) -> None:
    path = copy("one head", "parquet")
    table = parquet.read_table(path)
    tokens = table.column("query_token").to_pylist()
    tokens[0] = "[SEP]"
    parquet.write_table(table.set_column(3, "query_token", pyarrow.array(tokens)), path)
    assert any(reason.startswith("query_token: the text") for reason in probe.reproduce(path).reasons)
    path = copy("predictions", "csv")
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    rows[1][2] += "x"
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path.write_bytes(text.getvalue().encode("utf-8-sig"))
    assert not probe.reproduce(path).numbers_hold


@pytest.mark.parametrize(("what", "suffix"), [("one head", "csv"), ("trace", "xlsx"), ("masks", "json")])
def test_a_file_cant_choose_its_tolerance(
    copy: Callable[[str, str], Path], results: dict[str, Any], what: str, suffix: str
) -> None:
    path = copy(what, suffix)
    if suffix == "xlsx":
        fields = formats.FORMATS["xlsx"].unpack(path.read_bytes(), b"")["manifest"]
        path.write_bytes(formats.workbooks.pack(b"", results[what], fields | {"agreement": 10.0}, {}))
    else:
        place = path.with_name(f"{path.name}.json") if suffix == "csv" else path
        content = json.loads(place.read_text("utf-8"))
        content["manifest"]["agreement"] = 10.0
        place.write_text(json.dumps(content))
    CHANGES[suffix](path, 1e-3)
    if suffix == "json":
        sign(path)
    result = probe.reproduce(path)
    assert result.tolerance == 1e-5 and result.manifest.agreement == 10.0
    assert not result.numbers_hold and 1e-4 < result.max_difference < 1.1e-3


def test_a_coarser_dtype_is_said(
    copy: Callable[[str, str], Path], results: dict[str, Any], tmp_path: Path
) -> None:
    """Weights off by 0.03 hold in bfloat16, and in nothing else."""
    model = probe.load("gpt2", dtype=torch.bfloat16)
    path = probe.export(probe.attend(model, TEXT, [(4, 5)]), tmp_path / "coarse.csv", model=model)
    result = probe.reproduce(path)
    assert result.holds and result.only_in is None and "in bfloat16 hold: " in result.verdict
    change_csv(path, 0.03)
    change_csv(path, 0.03, last=True)
    result = probe.reproduce(path)
    assert result.holds and result.only_in == result.to_dict()["only_in"] == "bfloat16"
    assert result.tolerance == 0.05 and result.tolerance_float32 == 1e-5
    assert result.verdict == (
        "coarse.csv: the numbers of gpt2-stories hold in bfloat16 only: largest difference 3.0e-02, "
        "tolerance 5.0e-02, where float32 has 1.0e-05."
    )
    assert any("only because the file says bfloat16" in note for note in result.notes)


def test_weights_without_a_sha256_dont_hold(copy: Callable[[str, str], Path], gpt2: Model) -> None:
    path = copy("masks", "csv")
    beside = path.with_name(f"{path.name}.json")
    content = json.loads(beside.read_text("utf-8"))
    content["manifest"]["sha256"] = None
    beside.write_text(json.dumps(content))
    result = probe.reproduce(path)
    assert not result.holds and not result.numbers_hold
    assert "has no sha256" in result.verdict and gpt2.sha256 is not None and gpt2.sha256 in result.verdict


def sign(path: Path) -> None:
    """Make the digest of a JSON file anew, as anyone can."""
    content = json.loads(path.read_text("utf-8"))
    numbers = {name: np.array(one, dtype=np.float64) for name, one in content["numbers"].items()}
    del content["manifest"]["digest"]
    content["manifest"]["digest"] = digest(content["manifest"], numbers)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_the_digest_shows_a_change_below_the_tolerance(copy: Callable[[str, str], Path], suffix: str) -> None:
    path = copy("run", suffix)
    CHANGES[suffix](path, 1e-7)
    result = probe.reproduce(path)
    assert not result.holds and result.max_difference < result.tolerance
    assert result.numbers_hold and result.reasons == (CHANGED,)
    assert result.verdict == (
        f"{path.name}: the numbers of gpt2-stories hold (largest difference {result.max_difference:.1e}, "
        f"tolerance 1.0e-05), but something else does NOT. {CHANGED}"
    )


@pytest.mark.parametrize(
    ("field", "value", "numbers_hold", "reason"),
    [
        ("arguments.layer", 3, False, "causal at "),
        ("arguments.text", "=1+1 said the boy", False, "Its tokens are others than those made again."),
        ("max_abs_error", 5e-6, True, "max_abs_error: 5e-06 in the file, "),
        ("tolerance", 1.0, True, "tolerance: 1.0 in the file, "),
        ("mask", "bidirectional", True, "mask: bidirectional in the file, causal made again."),
        (
            "sha256",
            "0" * 64,
            False,
            "The weights of gpt2-stories here are others than the file says: sha256 ",
        ),
        ("passed", False, True, "The model did not pass verification then, and passed now."),
    ],
)
def test_a_changed_field_makes_it_fail(
    copy: Callable[[str, str], Path], field: str, value: object, numbers_hold: bool, reason: str
) -> None:
    path = copy("masks", "json")
    content = json.loads(path.read_text("utf-8"))
    *within, field = field.split(".")
    fields = content["manifest"][within[0]] if within else content["manifest"]
    assert fields[field] != value
    fields[field] = value
    path.write_text(json.dumps(content))
    sign(path)  # which doesn't help
    result = probe.reproduce(path)
    assert not result.holds and result.numbers_hold == numbers_hold
    assert result.reasons[0].startswith(reason)
    assert ("the numbers of gpt2-stories hold (largest" in result.verdict) == numbers_hold
    assert result.verdict.endswith(result.reasons[0])


def test_what_was_edited_is_named(copy: Callable[[str, str], Path]) -> None:
    path = copy("one head", "csv")
    beside = path.with_name(f"{path.name}.json")
    content = json.loads(beside.read_text("utf-8"))
    content["manifest"]["python"] = "print(1)"
    content["manifest"]["source"] = "elsewhere"
    beside.write_text(json.dumps(content))
    result = probe.reproduce(path)
    assert result.holds  # the numbers are those of the model that it names
    assert [note.split(" in the file")[0] for note in result.notes] == [
        "source: 'elsewhere'",
        "python: 'print(1)'",
    ]


def test_an_edited_input_of_a_workbook_fails(copy: Callable[[str, str], Path]) -> None:
    path = copy("trace", "xlsx")
    book = openpyxl.load_workbook(path)
    ((sheet, area),) = book.defined_names["inputs"].destinations
    book[sheet][area.replace("$", "")][1][1].value = 2.5
    book.save(path)
    result = probe.reproduce(path)
    # openpyxl drops what the formulas had come to, so these are missing too.
    assert any(reason.startswith("inputs at 1, 1: 2.5 in the file") for reason in result.reasons)
    assert any(reason.startswith("weights") and "nan" in reason for reason in result.reasons)


def test_a_workbook_with_rotary_positions_and_a_window(
    rotary_models: dict[str, Model], tmp_path: Path
) -> None:
    model = rotary_models["mistral"]
    path = probe.export(probe.trace(model, TEXT, 1, 4, 2), tmp_path / "head.xlsx")
    result = probe.reproduce(path, model=model)
    assert result.holds, result.reasons
    for name, value in (("window", 6), ("frequency", 0.5), ("position", 3)):
        changed = tmp_path / f"{name}.xlsx"
        book = openpyxl.load_workbook(path)
        ((sheet, area),) = book.defined_names[name].destinations
        cells = book[sheet][area.replace("$", "")]
        (cells[0][0] if isinstance(cells, tuple) else cells).value = value
        book.save(changed)
        reasons = probe.reproduce(changed, model=model).reasons
        assert any(reason.startswith(f"{name} at 0, 0: {value}") for reason in reasons), reasons


def test_another_picture_on_the_same_numbers_fails(copy: Callable[[str, str], Path]) -> None:
    path = copy("one head", "svg")
    content = path.read_text("utf-8")
    path.write_text(content.replace("<svg ", '<svg data-x="1" ', 1), "utf-8")
    assert probe.reproduce(path).reasons == ("What the file shows was changed after it was written.",)


@pytest.mark.parametrize(
    ("before", "after", "numbers_hold"),
    [
        ('["0 =", "1 1",', '["0 1", "1 =",', False),  # the labels of two keys, or queries
        (f'"text": {json.dumps(TEXT)}'.replace("<", "\\u003c"), '"text": "a text"', False),
        ('"gpt2-stories", "source": "bundled", "text"', '"gpt3", "source": "bundled", "text"', True),
        ("<title>gpt2-stories", "<title>gpt3", True),
        ("Numbers are within 0.001", "Numbers are within 0.1", True),
        ("<style>", "<style>main{display:none}", True),
        ("JSON.parse", "0||JSON.parse", True),
    ],
)
def test_a_page_that_shows_something_else_fails(
    copy: Callable[[str, str], Path], before: str, after: str, numbers_hold: bool
) -> None:
    path = copy("run", "html")
    content = path.read_text("utf-8")
    assert before in content
    path.write_text(content.replace(before, after), "utf-8")
    result = probe.reproduce(path)
    assert not result.holds and result.numbers_hold == numbers_hold
    assert "What the file shows was changed after it was written." in result.reasons


def rewritten(path: Path, change: Callable[[str], str]) -> None:
    """Every part of a workbook, changed as text."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old, zipfile.ZipFile(path, "w") as new:
        for part in old.namelist():
            new.writestr(part, change(old.read(part).decode("utf-8")))


@pytest.mark.parametrize(
    ("pattern", "after", "sheets"),
    [
        ("SUMPRODUCT", "SUM", {"query", "key", "value", "scores", "context"}),
        (">girl<", ">boy<", None),
        ("Layer 3, head 1 of", "Layer 4, head 1 of", {"About"}),
        ("Each row sums to 1.", "", {"About", "weights"}),
        ('"0.0E\\+00"', '"&quot;0&quot;"', {"difference"}),  # the digits that a cell shows
    ],
)
def test_formulas_and_titles_of_a_workbook_are_looked_at(
    copy: Callable[[str, str], Path], pattern: str, after: str, sheets: set[str] | None
) -> None:
    path = copy("trace", "xlsx")
    rewritten(path, lambda text: re.sub(pattern, after, text))
    result = probe.reproduce(path)
    assert not result.holds and result.max_difference <= result.tolerance
    changed = {reason.split(", formulas and titles: the text in the file")[0] for reason in result.reasons}
    assert changed == sheets if sheets else {"inputs", "query", "scores", "weights"} < changed


@pytest.mark.parametrize(
    ("pattern", "after"),
    [
        (r"weights!\$C\$4:\$\w+\$\d+", "weights!$A$1:$XFD$1048576"),  # a name
        ("</sheetData>", '</sheetData><mergeCells><mergeCell ref="A1:XFD1048576"/></mergeCells>'),
        ("</sheetData>", '<row r="99999999999"><c r="A99999999999"><v>1</v></c></row></sheetData>'),
        (
            "</sheetData>",
            "".join(f'<row r="{row}"><c r="XFD{row}"><v>1</v></c></row>' for row in range(900, 1500))
            + "</sheetData>",
        ),
    ],
    ids=["name", "merged cells", "far row", "far columns"],
)
def test_a_workbook_that_spans_too_much_is_not_spread_out(
    copy: Callable[[str, str], Path], pattern: str, after: str
) -> None:
    """Either refused, or what it claims is passed over; without a bound each of these takes all memory."""
    path = copy("trace", "xlsx")
    rewritten(path, lambda text: re.sub(pattern, after, text))
    if "mergeCell" in after:
        assert probe.reproduce(path).numbers_hold
    else:
        with pytest.raises(ProbeError, match=r"spans more than 8,388,608 cells"):
            probe.reproduce(path)


def test_a_column_may_not_stand_there_twice(copy: Callable[[str, str], Path]) -> None:
    path = copy("measures", "csv")
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    place = rows[0].index("entropy")
    text = io.StringIO()
    csv.writer(text).writerows(
        [[*row[:place], "entropy" if row is rows[0] else 1, *row[place:]] for row in rows]
    )
    path.write_bytes(text.getvalue().encode("utf-8-sig"))
    with pytest.raises(ProbeError, match="damaged"):
        probe.reproduce(path)


# ---- what is in the files


def test_the_manifest_says_where_it_comes_from(exported: dict[tuple[str, str], Path], gpt2: Model) -> None:
    manifest = json.loads(exported["masks", "json"].read_text("utf-8"))["manifest"]
    report = probe.verify(gpt2, TEXT)
    expected = {
        "what": "masks",
        "model": "gpt2-stories",
        "source": "bundled",
        "revision": None,
        "sha256": gpt2.sha256,
        "arguments": {"text": TEXT, "layer": 4, "head": 5, "whole_model": True},
        "only": None,
        "tokens": list(probe.attend(gpt2, TEXT, [(0, 0)]).tokens),
        "mask": "causal",
        "dtype": "float32",
        "device": "cpu",
        "backend": "eager",
        "max_abs_error": report.max_abs_error,
        "tolerance": report.tolerance,
        "passed": True,
    }
    assert {name: manifest[name] for name in expected} == expected
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["versions"]["attention-probe"] == probe.__version__


@pytest.mark.parametrize("what", FORMATS)
def test_the_python_in_the_manifest_gives_the_result(
    exported: dict[tuple[str, str], Path], results: dict[str, Any], what: str
) -> None:
    manifest = json.loads(exported[what, "json"].read_text("utf-8"))["manifest"]
    names: dict[str, Any] = {}
    exec(manifest["python"], names)
    again, result = names["result"], results[what]
    assert type(again) is type(result)
    if what == "comparison":  # the file holds one head of it
        result = result.only(4, 5)
    blocks = again.blocks()
    assert set(blocks) == set(result.blocks())
    for name, block in result.blocks().items():
        assert np.array_equal(blocks[name], block, equal_nan=True), name


def test_numbers_are_the_results(exported: dict[tuple[str, str], Path], results: dict[str, Any]) -> None:
    run = results["run"]
    numbers = json.loads(exported["run", "json"].read_text("utf-8"))["numbers"]
    assert len(numbers) == 36
    with np.load(exported["run", "npz"]) as archive:
        for layer in range(6):
            for head in range(6):
                weights, name = run.weights(layer, head), f"layer_{layer}_head_{head}"
                assert numbers[name] == weights.tolist()
                assert np.array_equal(archive[name], weights.numpy())
    rows = list(csv.reader(io.StringIO(exported["masks", "csv"].read_text("utf-8-sig"), newline="")))
    masks = results["masks"]
    length = len(masks.tokens)
    assert rows[0] == ["query", "key", "causal", "bidirectional"] and len(rows) == length**2 + 1
    assert rows[2][:2] == [f"[0] {masks.tokens[0]}", f"[1] {masks.tokens[1]}"]
    table = np.array([[float(cell) for cell in row[2:]] for row in rows[1:]])
    assert np.array_equal(table[:, 0].reshape(length, length), masks.causal.numpy())
    assert np.array_equal(table[:, 1].reshape(length, length), masks.bidirectional.numpy())


def test_pictures_are_still_pictures(exported: dict[tuple[str, str], Path]) -> None:
    from xml.etree import ElementTree

    from matplotlib.image import imread

    assert imread(exported["one head", "png"]).shape[2] == 4
    assert ElementTree.parse(exported["one head", "svg"]).getroot().tag.endswith("svg")
    assert exported["one head", "pdf"].read_bytes().startswith(b"%PDF")


def test_no_text_of_a_file_is_run(copy: Callable[[str, str], Path], tmp_path: Path) -> None:
    path, trap = copy("one head", "json"), tmp_path / "trap"
    content = json.loads(path.read_text("utf-8"))
    content["manifest"]["python"] = f"open({str(trap)!r}, 'w')"
    path.write_text(json.dumps(content))
    assert not probe.reproduce(path).holds  # the digest
    assert not trap.exists()
    # numpy would unpickle an array of objects, if it were let.
    arrays = {"manifest": np.array(json.dumps(content["manifest"])), "x": np.array([{}], dtype=object)}
    np.savez(tmp_path / "objects.npz", **arrays)
    with pytest.raises(ProbeError, match="damaged"):
        probe.reproduce(tmp_path / "objects.npz")
    # Brackets deeper than Python's stack.
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(ProbeError, match="damaged"):
        probe.reproduce(tmp_path / "deep.json")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIDAT",
        b"[]",
        b'{"manifest": 3, "numbers": {}}',
    ],
)
@pytest.mark.parametrize("suffix", list(formats.FORMATS))
def test_files_without_a_manifest_are_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(content)
    path.with_name(f"x.{suffix}.json").write_bytes(content)
    with pytest.raises(ProbeError):
        probe.reproduce(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("what", "everything"),
        ("arguments", {}),
        ("arguments", {"text_or_texts": []}),
        ("arguments", {"text_or_texts": {"pair": ["a"]}}),
        ("arguments", {"text_or_texts": "a", "heads": [[-1, 0]]}),
        ("arguments", {"text_or_texts": "a", "heads": [[True, 0]]}),
        ("arguments", {"text_or_texts": "a", "dtype": "int8"}),
        ("arguments", {"text_or_texts": "a", "layer": 1}),
        ("only", [1, 2]),
        ("dtype", "int8"),
        ("agreement", "1e-5"),
        ("format", 2),
        ("model", None),
    ],
)
def test_fields_that_make_no_sense_are_refused(
    copy: Callable[[str, str], Path], field: str, value: object
) -> None:
    path = copy("one head", "json")
    content = json.loads(path.read_text("utf-8"))
    content["manifest"][field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ProbeError, match=r"manifest|empty list"):
        probe.reproduce(path)


BIG = "1" + "0" * 400
HOSTILE_FIELDS = {
    **{
        f"{name} {value}": (name, value)
        for name in ("what", "dtype", "arguments", "only")
        for value in ("[]", "{}")
    },
    **{
        f"{name} {value}": (name, value)
        for name in ("max_abs_error", "tolerance", "agreement")
        for value in (BIG, "NaN", "Infinity", "true")
    },
    **{f"only {value}": ("only", f'["self", {value}, 1]') for value in (BIG, "-1", "1.5")},
    "heads": ("arguments", f'{{"text_or_texts": "a", "heads": [[{BIG}, 0]]}}'),
    "many texts": ("arguments", '{"text_or_texts": ["a", "b"]}'),
    "a surrogate in a text": ("arguments", '{"text_or_texts": "\\ud800"}'),
    "a surrogate in a model": ("model", '"\\ud800"'),
    "a null in a model": ("model", '"a\\u0000b"'),
    "source": ("source", "[" * 400 + "]" * 400),
    "versions": ("versions", '{"torch": NaN}'),
    "picture": ("picture", "[" * 400 + "]" * 400),
    "another field": ("more", "1"),
    "twice": ("what", '"run", "what": "run"'),
}


@pytest.mark.parametrize(("field", "value"), HOSTILE_FIELDS.values(), ids=HOSTILE_FIELDS)
def test_hostile_fields_are_refused(copy: Callable[[str, str], Path], field: str, value: str) -> None:
    path = copy("one head", "json")
    content = json.loads(path.read_text("utf-8"))
    content["manifest"][field] = "here"
    path.write_text(json.dumps(content).replace('"here"', value))
    assert refused(path)


def refused(path: Path) -> bool:
    """Whether it is in Python and, with exit code 2 and no traceback, on the command line."""
    from probe.cli import main

    with pytest.raises(ProbeError):
        probe.reproduce(path)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["probe", "reproduce", str(path)])
        main()
    return bool(ended.value.code == 2)


def zipped(content: bytes, **changed: int) -> bytes:
    """An archive with other flags or another method than its one entry has, in both of its headers."""
    body = bytearray(content)
    for mark, flag in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = body.index(mark)
        for name, value in changed.items():
            place = start + flag + (2 if name == "method" else 0)
            body[place : place + 2] = struct.pack("<H", value)
    return bytes(body)


def npz_of(name: str) -> bytes:
    buffer = io.BytesIO()
    if name == "complex":
        np.savez(buffer, manifest=np.array("{}"), x=np.zeros(2, complex))
        return buffer.getvalue()
    if name == "huge shape":
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }\n"
        entry = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    else:
        plain = io.BytesIO()
        np.save(plain, np.zeros(1000))
        entry = plain.getvalue()
    method = zipfile.ZIP_LZMA if name == "lzma" else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("x.npy", entry)
    content = buffer.getvalue()
    if name == "encrypted":
        return zipped(content, flags=1)
    if name == "method":
        return zipped(content, method=99)
    if name == "lzma":
        start = content.index(b"x.npy") + 9
        return content[:start] + bytes(8 * [255]) + content[start + 8 :]
    return content


@pytest.mark.parametrize("name", ["complex", "huge shape", "encrypted", "method", "lzma"])
def test_hostile_archives_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.npz").write_bytes(npz_of(name))
    assert refused(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "numbers", [f'{{"x": [{BIG}]}}', '{"x": [[1], [1, 2]]}', '{"x": {}}', "[]", '{"x": [1], "x": [2]}']
)
def test_hostile_numbers_are_refused(copy: Callable[[str, str], Path], numbers: str) -> None:
    path = copy("one head", "json")
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(content | {"numbers": "here"}).replace('"here"', numbers))
    assert refused(path)


def test_a_block_with_a_surrogate_in_its_name_doesnt_hold(copy: Callable[[str, str], Path]) -> None:
    path = copy("one head", "json")
    content = json.loads(path.read_text("utf-8"))
    content["numbers"]["\ud800"] = [1.0]
    path.write_text(json.dumps(content))
    result = probe.reproduce(path)
    assert not result.numbers_hold
    json.dumps(result.to_dict(), allow_nan=False)


# ---- what export refuses


def test_refusals(results: dict[str, Any], tmp_path: Path, gpt2: Model) -> None:
    cases: list[tuple[Any, str, dict[str, Any], str]] = [
        (results["run"], "x.docx", {}, r"as \.csv, .*, \.png, \.svg or \.pdf, not as \.docx\.$"),
        (
            results["run"],
            "x",
            {},
            r'in which format it is written, and ".*x" has none: add \.csv, .* or \.pdf',
        ),
        (results["run"], "x.xlsx", {}, r"not as \.xlsx"),
        (results["trace"], "x.png", {}, r"as \.csv, \.parquet, \.json, \.npz or \.xlsx, not as \.png"),
        (results["run"], "x.json", {"words": True}, r"for pictures: \.png, \.svg, \.pdf\.$"),
        (results["run"], "x.csv", {}, "holds one head. Give layer and head"),
        (results["comparison"], "x.png", {}, "holds one head. Give layer and head"),
        (results["run"], "x.png", {"layer": 1}, "together"),
        (results["run"], "x.png", {"layer": 9, "head": 0}, "not in this run"),
        (results["masks"], "x.png", {"layer": 1, "head": 1}, "has its own"),
        ([1], "x.json", {}, "What is of type list can't be exported"),
        (results["run"], "missing/x.json", {}, "can't be written"),
    ]
    for result, name, chosen, message in cases:
        with pytest.raises(ProbeError, match=message):
            probe.export(result, tmp_path / name, **chosen)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_isnt_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, message in (
        ("nofile", f"There is no file nofile: check the path; it is taken from {tmp_path}."),
        ("map.json", f"There is no file map.json: check the path; it is taken from {tmp_path}."),
        (str(tmp_path / "no.csv"), f"There is no file {tmp_path}/no.csv: check the path."),
        (".", ". can't be read: Is a directory."),
    ):
        with pytest.raises(ProbeError) as caught:
            probe.reproduce(name)
        assert str(caught.value) == message
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ProbeError, match=r"notes\.txt is not a file that export writes: .* \.csv, "):
        probe.reproduce("notes.txt")
    (tmp_path / "map.csv").write_text("1,2")
    with pytest.raises(
        ProbeError, match=r"lies beside it in map\.csv\.json, which is not there: keep the two"
    ):
        probe.reproduce("map.csv")


def test_without_pyarrow(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: Callable[[str, str], Path]
) -> None:
    path = copy("measures", "parquet")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "pyarrow" else find(name, *more)
    )
    with pytest.raises(ProbeError) as caught:
        probe.export(results["measures"], tmp_path / "x.parquet")
    missing = ".parquet files need the library pyarrow, which is not installed."
    assert str(caught.value) == f"{missing} Install it (pip install pyarrow), or choose .csv."
    assert caught.value.told("page") == f"{missing} Choose .csv."
    with pytest.raises(ProbeError, match="need the library pyarrow"):
        probe.reproduce(path)
    assert "parquet" not in formats.formats_of(probe.HeadMeasures)


def test_a_parquet_file_is_a_table(exported: dict[tuple[str, str], Path], results: dict[str, Any]) -> None:
    run, table = results["run"], parquet.read_table(exported["run", "parquet"])
    length = len(run.tokens)
    assert table.num_rows == 36 * length**2
    rows = [row for row in table.to_pylist() if (row["layer"], row["head"]) == (4, 5)]
    assert [(row["query"], row["key"]) for row in rows] == [
        (q, k) for q in range(length) for k in range(length)
    ]
    assert [row["query_token"] for row in rows[::length]] == list(run.tokens)
    assert [row["key_token"] for row in rows[:length]] == list(run.tokens)
    assert [row["weight"] for row in rows] == run.weights(4, 5).ravel().tolist()
    manifest = json.loads(table.schema.metadata[b"attention-probe"])
    assert manifest["arguments"] == {"text_or_texts": TEXT} and manifest["what"] == "run"
    measures = parquet.read_table(exported["measures", "parquet"]).to_pylist()
    for row, one in zip(measures, results["measures"].heads, strict=True):
        assert (row["layer"], row["head"], row["entropy"]) == (one.layer, one.head, one.entropy)
    ranked = parquet.read_table(exported["ranking", "parquet"]).to_pylist()
    assert [(row["layer"], row["head"]) for row in ranked] == [(i, j) for i in range(6) for j in range(6)]
    expected = {one.heads[0]: one.effect for one in results["ranking"].ablations}
    assert {(row["layer"], row["head"]): row["effect"] for row in ranked} == expected
    assert min(expected.values()) < max(expected.values())


def test_a_manifest_that_would_be_wrong_is_not_written(gpt2: Model, bert: Model, tmp_path: Path) -> None:
    run = probe.attend(gpt2, "a b", [(0, 0)])
    with pytest.raises(ProbeError, match=r"all-MiniLM-L6-v2 in float32 doesn't give these numbers again"):
        probe.export(run, tmp_path / "x.json", model=bert)
    run.maps["self", 0, 0][1, 0] += 0.01
    with pytest.raises(ProbeError, match="doesn't give these numbers again"):
        probe.export(run, tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_other_models_dtypes_and_cut_texts(
    tiny_bert: Callable[..., Path], tmp_path: Path, gpt2: Model
) -> None:
    model = probe.load(str(tiny_bert()), dtype=torch.float64)
    run = probe.attend(model, "the cat", [(0, 1)])
    result = probe.reproduce(probe.export(run, tmp_path / "wide.npz"), load=True)
    assert result.holds and result.tolerance == 1e-12 and result.manifest.dtype == "float64"
    run = probe.attend(gpt2, "word " * 300, [(0, 1)], truncate=True, dtype=torch.float16)
    result = probe.reproduce(probe.export(run, tmp_path / "half.npz"), load=True)
    assert result.holds and result.manifest.arguments["truncate"] and result.manifest.kept == "float16"
    assert result.tolerance == 1e-5 + 2**-10  # and one rounding to float16
    assert "the numbers of gpt2-stories in float16 hold: " in result.verdict


@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_a_model_whose_numbers_are_none(tiny_gpt2: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_gpt2()
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.attn.c_attn.weight"][:] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = probe.load(str(folder))
    results: list[tuple[Any, tuple[str, ...]]] = [
        (
            probe.attend(model, "a b c", [(1, 1)]),
            ("json", "npz", "csv", "parquet", "html", "png", "svg", "pdf"),
        ),
        (probe.verify(model, "a b c"), ("json", "csv", "parquet")),
        (probe.run_from_scratch(model, "a b c"), ("json", "npz")),
    ]
    for result, suffixes in results:
        for suffix in suffixes:
            again = probe.reproduce(probe.export(result, tmp_path / f"x.{suffix}", model=model), load=True)
            assert again.holds, (suffix, again.reasons)
            assert again.manifest.passed is False and again.manifest.max_abs_error is None


@pytest.mark.slow
def test_an_encoder_with_a_decoder(command: Command, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny.minilm_folder())
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    transformers.T5ForConditionalGeneration(config).eval().save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    model = probe.load(str(tmp_path / "t5"))
    run = probe.attend(model, "the cat sat on the mat", target="a cat sat")
    for suffix in ("json", "npz", "html"):
        result = probe.reproduce(probe.export(run, tmp_path / f"run.{suffix}"), load=True)
        assert result.holds, result.reasons
        assert result.manifest.arguments["target"] == "a cat sat" and result.manifest.mask is None
        assert result.manifest.passed  # a check from query and key
    for whole in (
        probe.verify(model, "the cat sat", "a cat"),
        probe.run_from_scratch(model, "the cat", target="a cat"),
        probe.compare(model, "the cat sat", "a cat"),
    ):
        result = probe.reproduce(probe.export(whole, tmp_path / "whole.json"), load=True)
        assert result.holds and result.manifest.arguments["target"] in ("a cat", ["a cat"])
    result = probe.reproduce(probe.export(run, tmp_path / "run.parquet"), load=True)
    assert result.holds
    rows = parquet.read_table(tmp_path / "run.parquet").to_pylist()
    of_cross = [row for row in rows if (row["kind"], row["layer"], row["head"]) == ("cross", 1, 3)]
    assert [row["weight"] for row in of_cross] == run.weights(1, 3, "cross").ravel().tolist()
    queries, keys = run.labels("cross")
    assert {row["query_token"] for row in of_cross} == set(queries)
    assert [row["key_token"] for row in of_cross[: len(keys)]] == list(keys)
    with np.load(tmp_path / "run.npz") as archive:
        cross = archive["cross_layer_1_head_3"]
    assert np.array_equal(cross, run.weights(1, 3, "cross").numpy()) and cross.shape[0] != cross.shape[1]
    numbers = page.page_numbers(run)
    assert abs(numbers["cross_layer_1_head_3"] - cross).max() < 1e-3
    chosen = probe.attend(model, "the cat", [("cross", 0, 1), ("decoder", 1, 2)], target="a cat")
    assert probe.reproduce(probe.export(chosen, tmp_path / "chosen.json"), load=True).manifest.arguments[
        "heads"
    ] == [
        ("cross", 0, 1),
        ("decoder", 1, 2),
    ]
    with pytest.raises(ProbeError, match="holds one head"):
        probe.export(run, tmp_path / "run.png")
    comparison = probe.compare(model, "the cat sat", "a cat")
    for whole in (run, comparison):
        with pytest.raises(ProbeError, match='several kinds of attention: say kind="encoder"'):
            probe.export(whole, tmp_path / "x.csv", layer=0, head=1)
        with pytest.raises(ProbeError, match=r"self.* attention"):
            probe.export(whole, tmp_path / "x.json", layer=0, head=1, kind="self")
        with pytest.raises(ProbeError, match="together"):
            probe.export(whole, tmp_path / "x.json", kind="cross")
        for suffix in ("json", "csv", "svg"):
            for kind in ("encoder", "decoder", "cross"):
                path = probe.export(whole, tmp_path / f"x.{suffix}", layer=0, head=1, kind=kind)
                result = probe.reproduce(path, load=True)
                assert result.holds, result.reasons
    # The rows of a map are the target's tokens, its columns the source's.
    probe.export(run, tmp_path / "x.csv", layer=0, head=1, kind="cross")
    rows = list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text("utf-8-sig"), newline="")))
    queries, keys = run.labels("cross")
    assert [row[0] for row in rows[1:]] == [f"[{index}] {token}" for index, token in enumerate(queries)]
    assert rows[0][1:] == [f"[{index}] {token}" for index, token in enumerate(keys)]
    assert [[float(cell) for cell in row[1:]] for row in rows[1:]] == run.weights(0, 1, "cross").tolist()
    probe.export(comparison, tmp_path / "x.csv", layer=0, head=1, kind="cross")
    rows = list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text("utf-8-sig"), newline="")))
    source, target = comparison.encoding.tokens, comparison.target
    assert target is not None and len(rows) == 1 + len(source) * len(target.tokens)
    assert rows[2][:2] == [f"[0] {target.tokens[0]}", f"[1] {source[1]}"]
    assert float(rows[2][3]) == float(comparison.from_model(0, 1, "cross")[0, 1])
    content = json.loads(
        probe.export(comparison, tmp_path / "x.json", layer=0, head=1, kind="cross").read_text("utf-8")
    )
    assert content["manifest"]["only"] == ["cross", 0, 1]
    assert set(content["numbers"]) == {"from_scratch_cross_layer_0_head_1", "model_cross_layer_0_head_1"}
    done = command(
        *("export", tmp_path / "t5", "the cat sat", tmp_path / "y.csv"),
        *("--target", "a cat", "--kind", "decoder", "--layer", "1", "--head", "2"),
    )
    assert done.returncode == 0, done.stderr
    assert probe.reproduce(tmp_path / "y.csv", load=True).manifest.arguments["heads"] == [("decoder", 1, 2)]


# ---- files of the version before

OLD = Path(__file__).parents[1] / "data" / "format-3"
OLD_FILES = sorted(path.name for path in OLD.iterdir() if not path.name.endswith((".csv.json", ".pdf.json")))


@pytest.mark.parametrize("name", OLD_FILES)
def test_a_file_of_the_version_before_is_made_again(name: str) -> None:
    result = probe.reproduce(OLD / name)
    assert result.numbers_hold and result.holds, result.reasons


def test_every_kind_of_result_had_such_a_file() -> None:
    stems = {name.rsplit(".", 1)[0] for name in OLD_FILES}
    assert stems == {what.replace(" ", "-") for what in (*RESULTS, "one head", "kept")} - {"distances"}
    assert {name.rsplit(".", 1)[1] for name in OLD_FILES} == set(formats.FORMATS)


@pytest.mark.parametrize("name", ["masks.json", "found.json", "ablation.json", "measures.npz", "texts.png"])
def test_a_changed_file_of_the_version_before_fails(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((OLD / name).read_bytes())
    if name.endswith("png"):  # whose chunk was compressed
        content = bytearray(path.read_bytes())
        content[content.index(b"IDAT") + 20] ^= 1
        path.write_bytes(bytes(content))
    else:
        CHANGES[path.suffix[1:]](path, 1e-2)
    assert not probe.reproduce(path).holds


def test_another_format_of_the_manifest_names_the_version_that_wrote_it(
    copy: Callable[[str, str], Path],
) -> None:
    path = copy("masks", "json")
    content = json.loads(path.read_text("utf-8"))
    content["manifest"] |= {"format": 9, "versions": {"attention-probe": "7.1"}}
    path.write_text(json.dumps(content))
    with pytest.raises(ProbeError) as caught:
        probe.reproduce(path)
    assert "is of format 9, written by attention-probe 7.1; read here are formats 3 and 4." in str(
        caught.value
    )


# ---- what a file says of the run


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_of_a_file_is_that_of_its_model(
    tiny_gpt2: Callable[..., Path], tmp_path: Path, dtype: torch.dtype
) -> None:
    """Also where the result holds no tensor of that dtype; made in float32 its numbers would be others."""
    model = probe.load(str(tiny_gpt2()), dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    made = {
        "measures": probe.measure_heads(model, "a b a c"),
        "rollout": probe.rollout(model, "a b a c"),
        "found": probe.find_heads(model, "a b a c", "c", "b"),
        "ablation": probe.ablate(model, "a b a c", [(0, 1)]),
        "ranking": probe.rank_heads(model, "a b a c"),
        "predictions": probe.predict(model, "a b a c"),
    }
    for what, result in made.items():
        again = probe.reproduce(probe.export(result, tmp_path / f"{what}.json"), load=True)
        assert again.holds and again.manifest.dtype == name
        with pytest.raises(ProbeError, match="doesn't give these numbers again"):
            probe.export(result, tmp_path / "x.json", model=probe.load(model.name))


def test_the_backend_of_a_file_is_the_one_that_ran(
    exported: dict[tuple[str, str], Path], results: dict[str, Any]
) -> None:
    eager = {"trace", "masks", "comparison", "report", "predictions"}
    for what in results:
        manifest = json.loads(exported[what, "json"].read_text("utf-8"))["manifest"]
        assert manifest["backend"] == ("eager" if what in eager else "sdpa"), what


def test_pictures_of_words(bert: Model, tmp_path: Path) -> None:
    run = probe.attend(bert, "Unbelievably, it works.", [(0, 1)])
    tokens = probe.export(run, tmp_path / "tokens.svg").read_text("utf-8")
    words = probe.export(run, tmp_path / "words.svg", words=True, hide_special=True).read_text("utf-8")
    assert "Words instead of tokens" in words and "Special tokens are left out" in words
    assert "Special tokens are left out" not in tokens
    again = probe.reproduce(tmp_path / "words.svg")
    assert again.holds and again.manifest.shown == ("words", "hide_special")


# ---- in a spreadsheet program

soffice = shutil.which("soffice")


def needs_libreoffice(test: Any) -> Any:
    """A test that takes as long as LibreOffice does, and is skipped where there is none."""
    reason = "needs LibreOffice: none on the PATH"
    return pytest.mark.slow(pytest.mark.skipif(soffice is None, reason=reason)(test))


def converted(paths: list[Path], folder: Path, *options: str) -> list[Path]:
    """Files opened in LibreOffice and saved as workbooks."""
    assert soffice is not None
    profile = f"-env:UserInstallation=file://{folder}/profile"
    where = ["--convert-to", "xlsx", "--outdir", str(folder / "saved")]
    subprocess.run(
        [soffice, profile, "--headless", *options, *where, *map(str, paths)],
        check=True,
        capture_output=True,
        timeout=240,
    )
    return [folder / "saved" / f"{path.stem}.xlsx" for path in paths]


@needs_libreoffice
@pytest.mark.slow
def test_opened_and_saved_in_libreoffice(
    gpt2: Model, exported: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    texts = ["=1+1 @sum -2 +3", 'say "hi", then\nleave; a\tb', "Café 中文"]
    runs = [probe.attend(gpt2, text, [(0, 0)]) for text in texts]
    maps = [probe.export(run, tmp_path / f"map{index}.csv") for index, run in enumerate(runs)]
    (book,) = converted([exported["trace", "xlsx"]], tmp_path)
    # The import dialog proposes comma, quotes and UTF-8, the last because of the byte order mark; without a
    # screen LibreOffice has to be told.
    sheets = converted(maps, tmp_path, "--infilter=CSV:44,34,76")
    # A workbook holds after a spreadsheet program has written all its numbers anew.
    result = probe.reproduce(book)
    assert result.holds, result.reasons
    for path, run in zip(sheets, runs, strict=True):
        rows = list(openpyxl.load_workbook(path).active.iter_rows())
        length = len(run.tokens)
        assert [len(row) for row in rows] == [length + 1] * (length + 1)
        names = [f"[{position}] {token}" for position, token in enumerate(run.tokens)]
        assert [cell.value for cell in rows[0][1:]] == names == [row[0].value for row in rows[1:]]
        assert {cell.data_type for row in rows[1:] for cell in row[1:]} == {"n"}
        numbers = [[cell.value for cell in row[1:]] for row in rows[1:]]
        assert np.abs(np.array(numbers) - run.weights(0, 0).numpy()).max() < 1e-12
