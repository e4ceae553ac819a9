"""Files that were made to harm: refused in a sentence, before much is read, unpacked, computed or loaded."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import FakeHub, instead_of_the_hub
from forking import Command

import probe
from probe import ProbeError
from probe.files import disk
from probe.files.formats import tables
from tiny import GPT2_STORIES

MOST = 200 * 2**20  # bytes at once


def refused(path: Path) -> str:
    """What is said of a file, which must not take much memory to say."""
    tracemalloc.start()
    try:
        with pytest.raises(ProbeError) as error:
            probe.reproduce(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST
    return str(error.value)


@pytest.fixture(scope="module")
def exported(gpt2: probe.Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file of each kind that the tests below change."""
    folder = tmp_path_factory.mktemp("exported")
    text = "a cat"
    results: dict[str, Any] = {
        "run.json": probe.attend(gpt2, text, [(0, 0)]),
        "run.npz": probe.attend(gpt2, text, [(0, 0)]),
        "report.json": probe.verify(gpt2, [text]),
        "trace.xlsx": probe.trace(gpt2, text, 0, 0, 1),
        "measures.parquet": probe.measure_heads(gpt2, text),
    }
    return {name: probe.export(result, folder / name).read_bytes() for name, result in results.items()}


# ---- what is no file, or a large one


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("where", ["the file", "the file beside it", "behind a link"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, where: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "x.csv"
    if where == "behind a link":
        path.symlink_to(tmp_path / "pipe")
    elif where == "the file":
        (tmp_path / "pipe").rename(path)
    else:
        path.write_text("a\n1\n")
        (tmp_path / "pipe").rename(tmp_path / "x.csv.json")
    # A file beside it that is none is as good as not there.
    assert "is no regular file" in (said := refused(path)) or "which is not there" in said


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there are no devices here")
def test_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").symlink_to("/dev/zero")
    assert "x.json is no regular file" in refused(tmp_path / "x.json")


def test_a_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    assert "x.json can't be read: Is a directory" in refused(tmp_path / "x.json")


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """Half a gigabyte, of which nothing is on the disk."""
    with (tmp_path / "x.npz").open("wb") as file:
        file.truncate(disk.MAX_FILE + 1)
    assert "x.npz has more than 512 MB, the most that is read" in refused(tmp_path / "x.npz")


def test_a_file_that_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"x" * 20)
    small = os.stat_result((*path.stat()[:6], 5, *path.stat()[7:]))
    monkeypatch.setattr("os.fstat", lambda number: small)
    with pytest.raises(ProbeError, match="grew while it was read"):
        disk.content_of(path)


# ---- what asks for much


def with_argument(content: bytes, name: str, value: object) -> bytes:
    found = json.loads(content)
    found["manifest"]["arguments"][name] = value
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    ("name", "argument", "value", "said"),
    [
        ("report.json", "text_or_texts", ["a cat"] * 100_000, "100,000 entries of text_or_texts"),
        ("run.json", "heads", [[0, 0]] * 100_000, "100,000 entries of heads"),
        ("run.json", "text_or_texts", "a " * 5_000_001, "10,000,002 characters"),
        ("report.json", "text_or_texts", ["a " * 1000] * 5_001, "10,002,000 characters"),
    ],
)
def test_a_manifest_that_asks_for_much(
    exported: dict[str, bytes], tmp_path: Path, name: str, argument: str, value: object, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(with_argument(exported[name], argument, value))
    assert said in refused(path)


# ---- what unpacks to much


def zipped(content: bytes, changes: dict[str, bytes]) -> bytes:
    """A ZIP archive with some of its parts changed or added."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", 8) as new:
        for name in dict.fromkeys((*old.namelist(), *changes)):
            new.writestr(name, changes[name] if name in changes else old.read(name))
    return buffer.getvalue()


def npy(shape: tuple[int, ...], dtype: str, data: bytes = b"") -> bytes:
    """An array that says it has a shape, whatever it holds."""
    buffer = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + data


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (npy((2**27, 2), "<f4"), "says that it has 268,435,"),
        (npy((500_000_000,), "|i1", bytes(10_000_000)), "is damaged"),  # eight times as large as numbers
        (npy((10,), "|O"), "is damaged"),
        (npy((2, 2), "<f4", bytes(50_000_000)), "is damaged"),  # more than it says
        (npy((10,), "<f2"), "is damaged"),
    ],
)
def test_an_npz_that_unpacks_to_much(
    exported: dict[str, bytes], tmp_path: Path, array: bytes, said: str
) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(zipped(exported["run.npz"], {"another.npy": array}))
    assert said in refused(path)


def names(count: int) -> bytes:
    one = "<definedName name=\"n{}\">'About'!$A$1</definedName>"
    return "".join(one.format(index) for index in range(count)).encode()


XLSX: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "names": lambda old: {
        "xl/workbook.xml": old["xl/workbook.xml"].replace(
            b"</definedNames>", names(200_000) + b"</definedNames>"
        )
    },
    "shared strings": lambda old: {"xl/sharedStrings.xml": b"<sst>" + bytes(40_000_000) + b"</sst>"},
    "styles": lambda old: {"xl/styles.xml": bytes(10_000_000)},
}


@pytest.mark.parametrize("what", XLSX)
def test_a_workbook_that_unpacks_to_much(exported: dict[str, bytes], tmp_path: Path, what: str) -> None:
    content = exported["trace.xlsx"]
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    path = tmp_path / "trace.xlsx"
    path.write_bytes(zipped(content, XLSX[what](old)))
    assert path.stat().st_size < 10_000_000
    assert "unpacks to more than is read of one" in refused(path)


def test_a_table_of_many_rows(
    exported: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of one number over and over takes no room."""
    monkeypatch.setattr(tables, "_MAX_CELLS", 100)
    path = tmp_path / "measures.parquet"
    path.write_bytes(exported["measures.parquet"])  # 36 heads
    assert "cells; at most 100 are read" in refused(path)


# ---- what names a model


def test_a_model_is_loaded_only_if_it_may_be(
    tiny_gpt2: Callable[..., Path], tmp_path: Path, command: Command
) -> None:
    folder = tiny_gpt2()
    path = probe.export(probe.attend(str(folder), "a cat", [(0, 0)]), tmp_path / "run.json")
    said = refused(path)
    assert f'run.json: The file names the model "{folder}", which would be loaded from this machine.' in said
    assert "load=True" in said
    assert probe.reproduce(path, load=True).holds
    assert probe.reproduce(path, model=str(folder)).holds
    done = command("reproduce", path)
    assert done.returncode == 2 and "say so: --load" in done.stderr
    assert command("reproduce", path, "--load").returncode == 0


def test_nothing_is_downloaded_because_a_file_says_so(
    exported: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads(exported["run.json"])
    found["manifest"]["model"] = "some-owner/some-model"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(found))
    fake = FakeHub("some-owner/some-model", GPT2_STORIES)
    with instead_of_the_hub(monkeypatch, fake, tmp_path / "hub"):
        assert "which would be downloaded from the Hub and loaded" in refused(path)
        assert fake.asked == [] and not list((tmp_path / "hub").iterdir())
        assert not probe.reproduce(path, load=True).holds  # its name is another
        assert "model.safetensors" in fake.asked
