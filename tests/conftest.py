"""What every test shares: no network, the two bundled models, tiny random ones, and the rule about skips."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forking import Command

    from probe import Model

# `pytest -m hub`. Read from the command line: a conftest further down may import transformers, which takes
# its settings from the environment, before pytest has a configuration to ask.
HUB_ASKED_FOR = "hub" in sys.argv

# torch reads this when it is imported. The models here are small: more threads only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["MPLBACKEND"] = "Agg"
if not HUB_ASKED_FOR:
    # No network, and an empty cache: "bert" and "gpt2" are the bundled models, whatever lies on this machine.
    empty_cache = tempfile.TemporaryDirectory(prefix="empty-hub-cache-")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_CACHE"] = empty_cache.name

# These may be skipped wherever there is no such thing; with NO_SKIPS=1 every other skip is a failure.
MAY_SKIP = ("gpu", "hub")
CHROMIUM_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


@pytest.hookimpl(trylast=True)  # after a folder's conftest has set its markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    reasons = {
        "hub": None if HUB_ASKED_FOR else "needs models from the Hub: make test-hub",
        "gpu": None if torch.cuda.is_available() else "needs a CUDA device",
        "browser": None if chromium_path() else "needs Chromium or Chrome: none on the PATH",
    }
    # What takes long to set up comes first: at the end the other process would take half of its tests, and
    # begin with the same.
    items.sort(key=lambda item: item.path.name != "test_workbook.py")
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("NO_SKIPS") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped ({reason}), and NO_SKIPS is set"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not any(item.get_closest_marker(name) for name in MAY_SKIP):
        forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    forbid_skip(report)
    return report


def chromium_path() -> str | None:
    """The Chromium, or else Chrome, that is installed here."""
    for name in CHROMIUM_NAMES:
        if path := shutil.which(name):
            return path
    return None


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the Chromium, for playwright's `executable_path`; its tests carry the `browser` marker."""
    path = chromium_path()
    assert path is not None, "no Chromium on the PATH; mark the test with pytest.mark.browser"
    return path


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Generator[Command]:
    """`command("verify", "gpt2", "Hi")` in a process of its own; see `forking`."""
    from forking import commands

    with commands(tmp_path_factory.mktemp("commands")) as command:
        yield command


@pytest.fixture(scope="session")
def bert() -> Model:
    """The bundled BERT: all-MiniLM-L6-v2, 6 layers of 12 heads."""
    import probe

    return probe.load("bert")


@pytest.fixture(scope="session")
def gpt2() -> Model:
    """The bundled GPT-2: gpt2-stories, 6 layers of 6 heads."""
    import probe

    return probe.load("gpt2")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_bert(seed=0, dtype=torch.float32, save={}, **config)` saves a tiny BERT and returns its folder.

    `save` goes to `save_pretrained` (say `{"max_shard_size": "20KB"}`), the rest to `BertConfig`. Each call
    makes a new folder, which the test may change.
    """
    import tiny

    return tiny.saver(tiny.bert, tiny.minilm_folder(), lambda: tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Like `tiny_bert`, for GPT-2: `tiny_gpt2(n_head=5, n_embd=35, n_layer=3, scale_attn_weights=False)`."""
    import tiny

    return tiny.saver(tiny.gpt2, tiny.GPT2_STORIES, lambda: tmp_path_factory.mktemp("tiny-gpt2"))


@pytest.fixture(scope="session")
def tiny_roberta(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Like `tiny_bert`, for RoBERTa: no segment ids, positions from 2 on, a byte-level tokenizer."""
    import tiny

    tokenizer = tiny.save_roberta_tokenizer(tmp_path_factory.mktemp("roberta-tokenizer"))
    return tiny.saver(tiny.roberta, tokenizer, lambda: tmp_path_factory.mktemp("tiny-roberta"))


@pytest.fixture(scope="session")
def rotary_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models of `tiny.ROTARY`, saved: Llama, Mistral and Qwen2 with random weights and peaky maps."""
    import tiny

    return {
        name: tiny.family_saver(family, lambda: tmp_path_factory.mktemp("rotary"))(**config)
        for name, (family, config) in tiny.ROTARY.items()
    }


@pytest.fixture(scope="session")
def rotary_models(rotary_folders: dict[str, Path]) -> dict[str, Model]:
    """The same, loaded."""
    import probe

    return {name: probe.load(str(folder)) for name, folder in rotary_folders.items()}
