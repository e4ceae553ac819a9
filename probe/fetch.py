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
    """Download ``files`` of ``repo_id`` at ``revision``, one after the other, and return their folder.

    Only then does the cache learn which revision is the newest, so that nobody takes a part for the whole.
    """
    from huggingface_hub import hf_hub_download

    where: dict[str, Any] = {"cache_dir": asked["cache_dir"], "endpoint": asked["endpoint"]}
    paths = [
        hf_hub_download(asked["repo_id"], name, revision=asked["revision"], **where)
        for name in asked["files"]
    ]
    hf_hub_download(asked["repo_id"], asked["files"][0], **where)
    return os.path.dirname(paths[0])


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
