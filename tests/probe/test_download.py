"""Downloads from a Hub on this machine: what is fetched, and what is left of one that ends early."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub, instead_of_the_hub

import probe
from probe import ProbeError, hub, models
from tiny import GPT2_STORIES

REPO = "some-owner/some-model"
WEIGHTS = "model.safetensors"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with instead_of_the_hub(monkeypatch, FakeHub(REPO, GPT2_STORIES), tmp_path / "hub") as started:
        yield started


def wait_for(what: object) -> None:
    """Until ``what()`` is true, or a minute has passed."""
    assert callable(what)
    for _ in range(600):
        if what():
            return
        time.sleep(0.1)
    pytest.fail("it never came to that")


def test_a_download_is_taken_from_the_hub(fake: FakeHub, tmp_path: Path) -> None:
    assert not models.is_here(REPO)
    model = probe.load(REPO)
    assert (model.name, model.source, model.revision) == (REPO, "Hub", COMMIT)
    assert model.sha256 == probe.load("gpt2-stories").sha256
    assert set(fake.asked) == {path.name for path in GPT2_STORIES.iterdir()} - {"README.md"}
    assert hub.arrived(REPO) == sum((GPT2_STORIES / name).stat().st_size for name in fake.asked)
    fake.asked.clear()
    assert models.is_here(REPO)
    assert probe.load(REPO).source == "Hub cache" and fake.asked == []


def test_a_download_that_is_given_up_ends(fake: FakeHub, tmp_path: Path) -> None:
    fake.flow.clear()
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        download = pool.submit(hub.download, REPO, stop)
        wait_for(lambda: fake.sending)
        stop.set()
        with pytest.raises(ProbeError, match="was given up; files that had arrived whole are kept: "):
            download.result(30)
    wait_for(lambda: not fake.sending)  # the connection is closed: nothing goes on in the background
    assert list((tmp_path / "hub").rglob("*.incomplete")) == []
    assert not models.is_here(REPO) and hub.cached_snapshot(REPO) is None
    before = set(fake.asked)
    assert WEIGHTS in before and "config.json" in before
    fake.asked.clear()
    fake.flow.set()
    assert probe.load(REPO).sha256 == probe.load("gpt2-stories").sha256
    assert fake.asked == [WEIGHTS]  # the others were there


def test_a_download_that_does_not_clear_up_is_cleared_up_after(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_END_SECONDS", 0.0)  # no time for it to do so itself
    fake.flow.clear()
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        download = pool.submit(hub.download, REPO, stop)
        wait_for(lambda: fake.sending)
        stop.set()
        with pytest.raises(ProbeError, match="given up"):
            download.result(30)
    wait_for(lambda: not fake.sending)
    assert list((tmp_path / "hub").rglob("*.incomplete")) == []


def test_a_download_that_takes_too_long_is_given_up(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "DOWNLOAD_SECONDS", 0.0)
    with pytest.raises(ProbeError, match="more than 0 minutes and was given up; files that had arrived"):
        probe.load(REPO)
    wait_for(lambda: not fake.sending)


def test_a_download_that_breaks_off(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    fake.broken = True
    with pytest.raises(ProbeError, match=rf'^Downloading "{REPO}" failed \(\w+\): try again to go on\.$'):
        probe.load(REPO)
    assert not models.is_here(REPO)
    fake.broken = False
    assert probe.load(REPO).source == "Hub"
