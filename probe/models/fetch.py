"""Fetches files from the Hub into its cache. ``hub.download`` starts this as a process, which can be ended.

A thread can't be, and huggingface_hub has no call that stops a download. This file imports nothing of the
project, so that it starts fast. What is wanted comes as JSON in the first argument; the last line on stdout
is the answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def fetch(asked: dict[str, Any]) -> str:
    """Download ``files`` of ``repo_id`` at ``commit``, one after the other, and return their folder.

    Of files of weights only those that an index names, if there is one among the files before them. When all
    have arrived, and not before, the cache learns that ``revision`` is at this commit, so that nobody takes a
    part for the whole.
    """
    from huggingface_hub import hf_hub_download

    folder, shards = "", None
    for name in asked["files"]:
        if shards is not None and name.endswith(".safetensors") and name not in shards:
            continue
        path = hf_hub_download(
            asked["repo_id"],
            name,
            revision=asked["commit"],
            cache_dir=asked["cache_dir"],
            endpoint=asked["endpoint"],
        )
        folder = os.path.dirname(path)
        if name == "model.safetensors.index.json" and "model.safetensors" not in asked["files"]:
            shards = _named(path)
    if asked["revision"] != asked["commit"]:
        _set_revision(folder, asked["revision"])
    return folder


def _named(index: str) -> set[str]:
    """The files that an index names; none if it is damaged, which is said when the folder is loaded."""
    try:
        with open(index, encoding="utf-8") as file:
            return set(json.load(file)["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return set()


def _set_revision(folder: str, revision: str) -> None:
    """Write down in the cache that a branch or tag is at this folder's commit.

    The library writes what the Hub says at the time, and a branch may have moved since the download began.
    """
    snapshots, commit = os.path.split(folder)
    reference = os.path.join(os.path.dirname(snapshots), "refs", *revision.split("/"))
    os.makedirs(os.path.dirname(reference), exist_ok=True)
    unfinished = f"{reference}.{os.getpid()}.tmp"
    with open(unfinished, "w", encoding="ascii") as file:
        file.write(commit)
    os.replace(unfinished, reference)


def _end_with_parent() -> None:
    """Whoever started this holds the other end of stdin."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    # As an exception, so that huggingface_hub takes away the file it was writing.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        print(json.dumps({"folder": fetch(json.loads(sys.argv[1]))}))
    except Exception as error:  # every HTTP stack has its own
        print(json.dumps({"error": type(error).__name__}))
        return 1
    return 0


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules are not meant to be found by their bare names
    sys.exit(main())
