"""The Hugging Face Hub: look in the cache first, go to the network only for a full Hub id, and never hang."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from probe.errors import ProbeError

# Seconds until a Hub that doesn't answer is given up, and until a download is.
ANSWER_SECONDS = 6.0
DOWNLOAD_SECONDS = 3600.0
# Everything at the top level but weights in other formats.
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]

_YES = {"1", "ON", "YES", "TRUE"}

Result = TypeVar("Result")


def cached_snapshot(repo_id: str) -> Path | None:
    """The folder of a model in the Hub cache, or None; never goes to the network."""
    try:
        folder = huggingface_hub.snapshot_download(repo_id, local_files_only=True)
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None
    path = Path(folder)
    return path if (path / "config.json").is_file() else None


def revision_of(snapshot: Path) -> str:
    """The commit a snapshot folder is of: the cache names the folder by it."""
    return snapshot.name


def download(repo_id: str) -> Path:
    """Download a model into the Hub cache, with a progress bar on stderr, and return its folder.

    Raises
    ------
    ProbeError
        If the Hub is out of reach or doesn't answer within ``ANSWER_SECONDS``, has no such model, doesn't let
        the caller have it, or has it only as a pickle; if the download takes longer than
        ``DOWNLOAD_SECONDS``.
    """
    # huggingface_hub reads the variable once, when it is imported.
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in _YES:
        raise ProbeError(
            f'"{repo_id}" is not in the Hub cache, or not all of it, and HF_HUB_OFFLINE is set: unset it to '
            'download, or use the bundled "bert" and "gpt2".'
        )
    unreachable = (
        f'"{repo_id}" is not in the Hub cache, and the Hugging Face Hub can\'t be reached: check the '
        'network, give a local folder, or use the bundled "bert" and "gpt2".'
    )
    try:
        info = _within(
            ANSWER_SECONDS, lambda: huggingface_hub.HfApi().model_info(repo_id, timeout=ANSWER_SECONDS)
        )
    except GatedRepoError:
        raise ProbeError(
            f'"{repo_id}" is gated: accept its terms on its page on the Hub, then log in with '
            '"hf auth login".'
        ) from None
    except RepositoryNotFoundError:
        raise ProbeError(
            f'The Hub has no public model "{repo_id}": check the spelling, owner included.'
        ) from None
    except Exception:  # every HTTP stack has its own errors for a network that is down
        raise ProbeError(unreachable) from None
    if not any(str(sibling.rfilename).endswith(".safetensors") for sibling in info.siblings or []):
        raise ProbeError(
            f'"{repo_id}" has no weights as safetensors on the Hub, only formats that can run code when '
            "opened: use another revision or model, or convert it yourself and give the folder."
        )
    try:
        folder = _within(
            DOWNLOAD_SECONDS,
            lambda: huggingface_hub.snapshot_download(
                repo_id, allow_patterns=_FILES, ignore_patterns=["*/*"]
            ),
        )
    except _GivenUp:
        raise ProbeError(
            f'Downloading "{repo_id}" took more than {DOWNLOAD_SECONDS / 60:.0f} minutes and was given up; '
            "what has arrived is kept: try again to go on from there."
        ) from None
    except Exception as error:  # again, of every HTTP stack
        raise ProbeError(
            f'Downloading "{repo_id}" failed ({type(error).__name__}): try again to go on.'
        ) from None
    return Path(folder)


class _GivenUp(Exception):
    """It took too long."""


def _within(seconds: float, call: Callable[[], Result]) -> Result:
    """``call()``, or ``_GivenUp``; the libraries' own limits don't cover a silent server that accepts."""
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["result"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _GivenUp
    if "error" in outcome:
        raise outcome["error"]
    result: Result = outcome["result"]
    return result
