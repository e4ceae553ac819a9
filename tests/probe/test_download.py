"""Downloads from a Hub on this machine: what is fetched, and what is left of one that ends early."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from fake_hub import COMMIT, FakeHub, instead_of_the_hub
from huggingface_hub.utils import WeakFileLock

import probe
from probe import ProbeError
from probe.models import checkpoint, hub
from probe.models.names import is_here
from tiny import GPT2_STORIES

REPO = "some-owner/some-model"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


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
    assert not is_here(REPO)
    model = probe.load(REPO)
    assert (model.name, model.source, model.revision) == (REPO, "Hub", COMMIT)
    assert model.sha256 == probe.load("gpt2-stories").sha256
    assert set(fake.asked) == {path.name for path in GPT2_STORIES.iterdir()} - {"README.md"}
    assert hub.arrived(REPO) == sum((GPT2_STORIES / name).stat().st_size for name in fake.asked)
    fake.asked.clear()
    assert is_here(REPO)
    assert probe.load(REPO).source == "Hub cache" and fake.asked == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_that_is_listed_for_everyone(fake: FakeHub, status: int) -> None:
    fake.gated = status
    with pytest.raises(ProbeError, match=r'is gated: accept its terms on its page .* "hf auth login"\.$'):
        probe.load(REPO)
    fake.gated = 0
    assert probe.load(REPO).revision == COMMIT


def test_a_branch_that_moves_meanwhile(fake: FakeHub, tmp_path: Path) -> None:
    fake.head = "f" * 40
    assert probe.load(REPO).revision == COMMIT
    (repo,) = (tmp_path / "hub").glob("models--*")
    assert [path.name for path in (repo / "snapshots").iterdir()] == [COMMIT]
    assert [path.name for path in (repo / "refs").iterdir()] == ["main"]
    assert is_here(REPO) and probe.load(REPO).revision == COMMIT


STEP = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture
def steps(fake: FakeHub, tiny_gpt2: Callable[..., Path]) -> Path:
    """The Hub has another network as the branch "step1000", the tag "v0.1" and a pull request."""
    folder = tiny_gpt2()
    fake.revisions = dict.fromkeys(("step1000", "v0.1", "refs/pr/1"), (STEP, folder))
    return folder


@pytest.mark.parametrize("revision", ["step1000", "v0.1", "refs/pr/1", STEP])
def test_a_revision_is_fetched_and_kept(fake: FakeHub, steps: Path, revision: str) -> None:
    name = f"{REPO}@{revision}"
    assert not is_here(name)
    model = probe.load(REPO, revision=revision)
    assert (model.name, model.source, model.revision) == (name, "Hub", STEP)
    assert model.sha256 == probe.load(str(steps)).sha256
    assert is_here(name) and not is_here(REPO)  # which is the newest
    fake.asked.clear()
    again = probe.attend(name, "a cat", [(0, 0)])
    assert fake.asked == [] and (again.origin.model, again.origin.revision) == (name, STEP)
    assert torch.equal(again.weights(0, 0), probe.attend(str(steps), "a cat", [(0, 0)]).weights(0, 0))
    assert probe.load(REPO).revision == COMMIT


def test_a_file_is_made_again_with_its_revision(fake: FakeHub, steps: Path, tmp_path: Path) -> None:
    path = probe.export(probe.attend(f"{REPO}@step1000", "a cat", [(0, 0)]), tmp_path / "map.json")
    probe.load(REPO)  # the newest, whose weights are others, lies beside it
    assert json.loads(path.read_text("utf-8"))["manifest"]["model"] == f"{REPO}@step1000"
    assert probe.reproduce(path, load=True).holds


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        (REPO, "step9", 'has no revision "step9" on the Hub: give a branch, a tag or a whole commit'),
        (f"{REPO}@step9", None, 'has no revision "step9"'),
        (f"{REPO}@v1", "v1", "given once"),
        (REPO, "", "given once"),
        (REPO, "../../x", "There is no model"),
        ("gpt2", "main", r'"gpt2" has no revisions here.*openai-community/gpt2@main'),
        ("gpt2-stories@main", None, "has no revisions here"),
        (str(GPT2_STORIES), "main", "has no revisions here"),
    ],
)
def test_revisions_that_are_not_there(
    fake: FakeHub, steps: Path, name: str, revision: str | None, message: str
) -> None:
    with pytest.raises(ProbeError, match=message):
        probe.load(name, revision=revision)
    assert fake.asked == []


def test_a_network_has_no_revision(gpt2: probe.Model) -> None:
    with pytest.raises(ProbeError, match="leave it out"):
        probe.load(gpt2.hf, tokenizer=gpt2.tokenizer, revision="main")


def test_weights_in_shards_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_gpt2: Callable[..., Path]
) -> None:
    folder = tiny_gpt2(save={"max_shard_size": "300KB"})
    shards = {path.name for path in folder.glob("*.safetensors")}
    assert len(shards) > 1
    for other in ("consolidated.safetensors", "adapter_model.safetensors", "model.fp16.safetensors"):
        (folder / other).write_bytes(b"something else")
    with instead_of_the_hub(monkeypatch, FakeHub(REPO, folder), tmp_path / "hub") as fake:
        model = probe.load(REPO)
        assert model.folder is not None
        assert {name for name in fake.asked if name.endswith(".safetensors")} == shards
        assert {path.name for path in checkpoint.weight_files(model.folder)} == shards


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": {"a": [1]}}', '{"weight_map": {"a": "../b"}}'])
def test_a_damaged_index_on_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in {"config.json": "{}", INDEX: index, "model-1.safetensors": ""}.items():
        (folder / name).write_text(text)
    with (
        instead_of_the_hub(monkeypatch, FakeHub(REPO, folder), tmp_path / "hub"),
        pytest.raises(ProbeError, match=r"index\.json is damaged: copy or download"),
    ):
        probe.load(REPO)


def test_which_files_are_wanted() -> None:
    small = ["config.json", "tokenizer.json", "merges.txt", "spiece.model"]
    more = ["README.md", "pytorch_model.bin", "onnx/model.onnx", "unet/config.json"]
    others = ["adapter_model.safetensors", "consolidated.safetensors", "unet/model.safetensors"]
    assert hub.wanted(REPO, [WEIGHTS, *others, *more, *small]) == [*small, WEIGHTS]
    assert hub.wanted(REPO, [*others, INDEX, WEIGHTS, *small]) == [INDEX, *small, WEIGHTS]
    # Which of them are shards is in the index.
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert hub.wanted(REPO, [*shards, *others, *small, INDEX]) == [*small, INDEX, *shards, *others[:2]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["config.json", "pytorch_model.bin"], "no weights as safetensors on the Hub, only formats that can"),
        ([], "no weights as safetensors"),
        (
            ["unet/model.safetensors", "model_index.json"],
            "no model.safetensors or its index at the top level",
        ),
        (["adapter_model.safetensors", "adapter_config.json"], "this may be an adapter"),
        (["consolidated.safetensors", "params.json"], "no model.safetensors or its index"),
        ([f"unet/{name}" for name in ("model.safetensors", "model.safetensors.index.json")], "no model.safe"),
    ],
)
def test_repositories_without_a_whole_model(names: list[str], message: str) -> None:
    with pytest.raises(ProbeError, match=f'^"{REPO}" has .*{message}'):
        hub.wanted(REPO, names)


def test_files_that_another_process_is_writing_are_left_to_it(fake: FakeHub, tmp_path: Path) -> None:
    """Begun after ours, and so not told apart from it by when it was there."""
    blobs = tmp_path / "hub" / f"models--{REPO.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    theirs, ours = blobs / "e1.0a1b2c3d.incomplete", blobs / "e2.0a1b2c3d.incomplete"
    for path in (theirs, ours):
        path.touch()
    locks = tmp_path / "hub" / ".locks" / blobs.parent.name
    locks.mkdir(parents=True)
    with WeakFileLock(locks / "e1.lock"):
        hub._clear_up([theirs, ours])
        assert list(blobs.iterdir()) == [theirs]
    hub._clear_up([theirs])
    assert list(blobs.iterdir()) == []


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
    assert not is_here(REPO) and hub.cached_snapshot(REPO) is None
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


@pytest.mark.slow
def test_a_download_that_breaks_off(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    fake.broken = True
    with pytest.raises(ProbeError, match=rf'^Downloading "{REPO}" failed \(\w+\): try again to go on\.$'):
        probe.load(REPO)
    assert not is_here(REPO)
    fake.broken = False
    assert probe.load(REPO).source == "Hub"
