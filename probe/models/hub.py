"""The Hugging Face Hub: look in the cache first, go to the network only for a full Hub id, and never hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

from probe.errors import ProbeError
from probe.models.background import in_background

# Seconds until a Hub that doesn't answer is given up, and until a download is.
ANSWER_SECONDS = 6.0
DOWNLOAD_SECONDS = 3600.0
_KEPT = "files that had arrived whole are kept: try again to go on from there"
# How long a download that is to end may take to clear up.
_END_SECONDS = 3.0
# Everything at the top level but weights.
_FILES = (".json", ".txt", ".model")


def parted(name: str) -> tuple[str, str | None]:
    """A model's id and its revision from its name: "owner/model@revision"; None is the newest."""
    repo_id, _, revision = name.partition("@")
    return repo_id, revision or None


def cached_snapshot(name: str) -> Path | None:
    """The folder of a model in the Hub cache, or None; never goes to the network."""
    repo_id, revision = parted(name)
    try:
        folder = huggingface_hub.snapshot_download(repo_id, revision=revision, local_files_only=True)
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None
    path = Path(folder)
    return path if (path / "config.json").is_file() else None


def arrived(name: str) -> int:
    """Bytes of a model, in all its revisions, that lie in the Hub cache; unfinished files are counted too."""
    return sum(path.stat().st_size for path in _blobs(name).glob("*") if path.is_file())


def _blobs(name: str) -> Path:
    repo_id, _ = parted(name)
    return Path(constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}" / "blobs"


def download(name: str, stop: threading.Event | None = None) -> Path:
    """Download a model into the Hub cache, with a progress bar on stderr, and return its folder.

    Parameters
    ----------
    name
        "owner/model", or "owner/model@revision": a branch, a tag or a commit.
    stop
        When it is set the download ends. Files that have arrived whole are kept, and are not fetched again.

    Raises
    ------
    ProbeError
        If the Hub is out of reach or doesn't answer within ``ANSWER_SECONDS``, has no such model or
        revision, doesn't let the caller have it, or has it only as a pickle; if the download fails, takes
        longer than ``DOWNLOAD_SECONDS``, or was stopped.
    """
    # huggingface_hub reads the variable once, when it is imported.
    if (
        constants.HF_HUB_OFFLINE
        or os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES
    ):
        raise ProbeError(
            f'"{name}" is not in the Hub cache, or not all of it, and HF_HUB_OFFLINE is set: unset it to '
            'download, or use the bundled "bert" and "gpt2".'
        )
    unreachable = (
        f'"{name}" is not in the Hub cache, and the Hugging Face Hub can\'t be reached: check the '
        'network, give a local folder, or use the bundled "bert" and "gpt2".'
    )
    repo_id, revision = parted(name)

    def ask() -> huggingface_hub.ModelInfo:
        return huggingface_hub.HfApi().model_info(repo_id, revision=revision, timeout=ANSWER_SECONDS)

    try:
        # The library's own limit doesn't cover a silent server that accepts.
        info = in_background(ask).result(ANSWER_SECONDS)
    except GatedRepoError:
        raise _gated(repo_id) from None
    except RevisionNotFoundError:
        raise ProbeError(
            f'"{repo_id}" has no revision "{revision}" on the Hub: give a branch, a tag or a whole commit '
            'that stands on its page under "Files and versions".'
        ) from None
    except RepositoryNotFoundError:
        raise ProbeError(
            f'The Hub has no public model "{repo_id}": check the spelling, owner included.'
        ) from None
    except Exception:  # every HTTP stack has its own errors for a network that is down
        raise ProbeError(unreachable) from None
    files = wanted(repo_id, [str(sibling.rfilename) for sibling in info.siblings or []])
    assert info.sha is not None  # the Hub always says
    return _fetch(name, info.sha, files, stop or threading.Event())


def wanted(repo_id: str, names: list[str]) -> list[str]:
    """Which of a repository's files a model needs, in the order to fetch them.

    Weights come last: what ends in the middle of them has the rest. They are model.safetensors alone; or,
    where its index is listed, all at the top level that may be its shards, of which ``fetch.py`` takes those
    that the index names.

    Raises
    ------
    ProbeError
        If there are no weights of a whole model as safetensors.
    """
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights:
        raise ProbeError(
            f'"{repo_id}" has no weights as safetensors on the Hub, only formats that can run code when '
            "opened: use another revision or model, or convert it yourself and give the folder."
        )
    if "model.safetensors" in names:
        weights = ["model.safetensors"]
    elif "model.safetensors.index.json" in names:
        weights = [name for name in weights if "/" not in name]
    else:
        raise ProbeError(
            f'"{repo_id}" has weights as safetensors on the Hub, but no model.safetensors or its index at '
            "the top level, as a whole transformers model has: give one that has (this may be an adapter, a "
            "pipeline of several models, or in another format)."
        )
    return [name for name in names if "/" not in name and name.endswith(_FILES)] + weights


def _fetch(name: str, commit: str, files: list[str], stop: threading.Event) -> Path:
    """The files of one commit, fetched by a process of their own, which can be ended."""
    repo_id, revision = parted(name)
    asked = {
        "repo_id": repo_id,
        "commit": commit,
        "revision": revision or "main",
        "files": files,
        "cache_dir": str(constants.HF_HUB_CACHE),
        "endpoint": constants.ENDPOINT,
    }
    unfinished = set(_blobs(name).glob("*.incomplete"))
    program = [sys.executable, str(Path(__file__).with_name("fetch.py")), json.dumps(asked)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        until = time.monotonic() + DOWNLOAD_SECONDS
        try:
            while process.poll() is None and not stop.wait(0.1):
                if time.monotonic() > until:
                    raise ProbeError(
                        f'Downloading "{name}" took more than {DOWNLOAD_SECONDS / 60:.0f} minutes and was '
                        f"given up; {_KEPT}."
                    )
            if process.poll() is None:
                raise ProbeError(f'Downloading "{name}" was given up; {_KEPT}.')
        finally:
            if process.poll() is None and not _ended(process):
                _clear_up(set(_blobs(name).glob("*.incomplete")) - unfinished)
        assert process.stdout is not None
        lines = process.stdout.read().decode().splitlines()
    answer = json.loads(lines[-1]) if lines else {"error": f"exit code {process.returncode}"}
    if answer.get("error") == GatedRepoError.__name__:
        raise _gated(repo_id)
    if "error" in answer:
        raise ProbeError(f'Downloading "{name}" failed ({answer["error"]}): try again to go on.')
    return Path(answer["folder"])


def _gated(repo_id: str) -> ProbeError:
    """Of a model whose files, or whose page too, are for those alone who have accepted its terms."""
    return ProbeError(
        f'"{repo_id}" is gated: accept its terms on its page on the Hub, then log in with "hf auth login".'
    )


def _clear_up(unfinished: Iterable[Path]) -> None:
    """Take away unfinished files that nobody is writing any more.

    The library gives each download a file of its own, "<etag>.<random>.incomplete", which nobody takes up
    again; and whoever writes one, here or in another process, holds the lock of its etag.
    """
    for path in unfinished:
        locks = Path(constants.HF_HUB_CACHE) / ".locks" / path.parent.parent.name
        locks.mkdir(parents=True, exist_ok=True)
        with suppress(TimeoutError), WeakFileLock(locks / f"{path.name.split('.')[0]}.lock", timeout=0.1):
            path.unlink(missing_ok=True)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """End a process; whether it cleared up after itself."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True
