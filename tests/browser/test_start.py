"""A start that comes up: on a busy machine, and where a proxy is set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import gradio as gr
import pytest
from gradio_client import Client

from probe import ProbeError
from probe.ui.serving import around_proxies, start

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


@pytest.fixture
def little() -> Iterator[gr.Blocks]:
    """A page with nothing in it, that doesn't keep whoever starts it."""
    with gr.Blocks(analytics_enabled=False) as demo:
        gr.Markdown("here")
    demo.block_thread = lambda: None  # type: ignore[method-assign]
    yield demo
    demo.close()


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.ui.serving.warm_up", lambda: None)


def answer(address: str) -> str:
    """What is answered to a browser that knows of no proxy."""
    with build_opener(ProxyHandler({})).open(address, timeout=60) as page:
        content: bytes = page.read()
    return content.decode()


def test_a_page_that_answers_late_is_no_reason_to_end(
    little: gr.Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio's own check gives the page 3 s and then says that localhost is not accessible."""
    monkeypatch.setattr("gradio.networking.url_ok", lambda url: False)
    start(little)
    assert little.local_url and "here" in answer(little.local_url)


@pytest.mark.parametrize("excepted", [None, "example.org"])
def test_the_page_is_not_asked_for_through_a_proxy(
    little: gr.Blocks, monkeypatch: pytest.MonkeyPatch, excepted: str | None
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        if excepted is not None:
            monkeypatch.setenv(name, excepted)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")  # where nothing answers
    start(little)
    assert little.local_url and "here" in answer(little.local_url)
    # What was excepted before still is.
    assert os.environ["no_proxy"].startswith("localhost" if excepted is None else "example.org,localhost")


def test_without_a_proxy_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    around_proxies()
    assert "NO_PROXY" not in os.environ


def test_a_port_that_is_taken_is_named(little: gr.Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]
        # As GRADIO_SERVER_PORT does, which Gradio reads when it is imported.
        monkeypatch.setattr("gradio.http_server.INITIAL_PORT_VALUE", port)
        monkeypatch.setattr("gradio.http_server.TRY_NUM_PORTS", 1)
        with pytest.raises(ProbeError, match=f"{port}.*GRADIO_SERVER_PORT"):
            start(little)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes can't be kept on one core here")
def test_the_app_comes_up_on_one_busy_core(tmp_path: Path) -> None:
    """`python app.py` on one core that it shares with a busy loop, behind a proxy that is not there."""
    core, address = min(os.sched_getaffinity(0)), f"http://127.0.0.1:{free_port()}/"
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    environment |= {"GRADIO_SERVER_PORT": address[17:-1], "HTTP_PROXY": "http://127.0.0.1:9"}
    said = tmp_path / "said"
    with said.open("w") as output:

        def begin(*command: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )

        loop = begin("-c", "while True: pass")
        app = begin("app.py")
    try:
        page, patience = "", time.monotonic() + 300
        while not page and app.poll() is None and time.monotonic() < patience:
            try:
                page = answer(address)
            except OSError:
                time.sleep(0.2)
        assert "right after a start they are loaded first" in page, said.read_text()
        told = Client(address, verbose=False).predict("the cat", "gpt2", 4, 5, api_name="/attend")
        assert len(told["tokens"]) == 2 and app.poll() is None
    finally:
        for one in (app, loop):
            one.kill()
            one.wait()
