"""A Hugging Face Hub of one model, on this machine, as slow as a test wants it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECE = 100_000


class FakeHub:
    """Serves a folder as a repository.

    Attributes
    ----------
    asked : the files that were sent, wholly or in part, in order.
    sending : how many are being sent now.
    flow : while it is not set, all but the first ``PIECE`` bytes of each file of weights are held back.
    broken : weights end after the first piece, before their time.
    gated : 0, or the status that files are refused with: 401 without a login, 403 with one.
    head : the commit that the branch main is at, for whoever asks for a file of it.
    revisions : the commit and the folder of each other branch or tag.
    """

    def __init__(self, repo_id: str, folder: Path) -> None:
        self.repo_id, self.folder = repo_id, folder
        self.asked: list[str] = []
        self.sending = 0
        self.flow = threading.Event()
        self.flow.set()
        self.broken = False
        self.gated = 0
        self.head = COMMIT
        self.revisions: dict[str, tuple[str, Path]] = {}
        self._count = threading.Lock()

    def send(self, request: BaseHTTPRequestHandler, with_body: bool) -> None:
        path = unquote(request.path.split("?")[0]).strip("/")
        if path.startswith(f"api/models/{self.repo_id}"):
            revision = path.partition("/revision/")[2]
            found = self._at(revision or "main")
            if found is None:
                self._answer(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
                return
            commit, folder = found
            names = sorted(file.name for file in folder.iterdir())
            info = {"id": self.repo_id, "sha": commit, "siblings": [{"rfilename": name} for name in names]}
            self._answer(request, 200, json.dumps(info).encode(), {"Content-Type": "application/json"})
            return
        at, _, name = path.partition("/resolve/")[2].rpartition("/")
        _, folder = self._at(at) or (COMMIT, self.folder)
        file = folder / name
        if not path.startswith(f"{self.repo_id}/resolve/") or not file.is_file():
            self._answer(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        if self.gated:
            self._answer(request, self.gated, b"", {"X-Error-Code": "GatedRepo"})
            return
        commit = self.head if at == "main" else at
        body = file.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        self._answer(
            request, 200, body if with_body else len(body), {"X-Repo-Commit": commit, "ETag": tag}, file
        )

    def _at(self, revision: str) -> tuple[str, Path] | None:
        """The commit and folder of a branch, tag or commit."""
        known = {"main": (COMMIT, self.folder), **self.revisions}
        return known.get(revision) or {commit: (commit, folder) for commit, folder in known.values()}.get(
            revision
        )

    def _answer(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes | int,
        headers: dict[str, str],
        file: Path | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(body if isinstance(body, int) else len(body)))
        request.end_headers()
        if isinstance(body, int):
            return
        if file is None or file.suffix != ".safetensors":
            request.wfile.write(body)
            self.asked += [file.name] if file else []
            return
        with self._count:
            self.sending += 1
            self.asked.append(file.name)
        try:
            self._trickle(request, body)
        finally:
            with self._count:
                self.sending -= 1

    def _trickle(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """The first piece at once, then a byte now and then until the flow is let go."""
        request.wfile.write(body[:PIECE])
        sent = PIECE
        while not self.flow.wait(0.05):
            request.wfile.write(body[sent : sent + 1])  # fails when nobody listens any more
            sent += 1
        if self.broken:
            request.close_connection = True
            return
        request.wfile.write(body[sent:])


@contextmanager
def serving(hub: FakeHub) -> Iterator[str]:
    """The address of a fake Hub."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            hub.send(self, with_body=False)

        def do_GET(self) -> None:
            with suppress(ConnectionError):
                hub.send(self, with_body=True)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    hub.flow.set()
    server.shutdown()
    server.server_close()


@contextmanager
def instead_of_the_hub(monkeypatch: pytest.MonkeyPatch, hub: FakeHub, cache: Path) -> Iterator[FakeHub]:
    """While this lasts, this fake is the Hub, and an empty folder its cache."""
    cache.mkdir(exist_ok=True)
    with serving(hub) as address:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        yield hub
