"""How long the page takes, from the key that is pressed until the pixels of that very result are painted.

Starts ``app.py`` as a person would, opens it in headless Chromium, then measures a new sentence each time,
another head each time, and the click that opens all heads of a network as large as the smallest GPT-2 over
128 tokens. Wanted on two idle cores: usable within 12 s of the start, 1 s for a sentence, 0.3 s for a head,
1 s for all heads.

    python benchmarks/page.py [--rounds 10] [--words 18]
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from capture import HEADS, LAYERS, TOKENIZER, network, text_of
from playwright.sync_api import Error, Page, sync_playwright
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TEXT = "the small grey cat sat on a warm red mat near an old house while it slowly drank some cold milk today"
PAUSE = 400  # milliseconds, for what a change sets off in the background
PAINTED = """([first, second]) => {
    const [a, b] = ["a", "b"].map((slot) => document.querySelector(`#compare-${slot} [data-painted]`));
    return a && b && a.dataset.painted !== first && b.dataset.painted !== second;
}"""


MAPS_PAINTED = """(before) => {
    const maps = document.querySelector("#heads-maps [data-painted]");
    return maps && maps.dataset.painted !== before;
}"""
FIRST_WORDS = ("one", "so", "the", "and", "in", "it")  # each one token, so that each text is another


def stamps(page: Page) -> list[str | None]:
    return [page.get_attribute(f"#compare-{slot} [data-painted]", "data-painted") for slot in "ab"]


def timed(page: Page, before: list[str | None], act: Callable[[], None]) -> float:
    """Seconds from an act until other results than those before it are painted."""
    start = time.perf_counter()
    act()
    page.wait_for_function(PAINTED, arg=before, polling=5)
    seconds = time.perf_counter() - start
    page.wait_for_timeout(PAUSE)
    return seconds


def opened(page: Page, address: str, limit: float = 120.0) -> None:
    """Open the page as soon as the server answers, and wait for its first result."""
    deadline = time.perf_counter() + limit
    while True:
        try:
            page.goto(address)
            break
        except Error:
            if time.perf_counter() > deadline:
                raise
            page.wait_for_timeout(100)
    page.locator("#compare-b [data-painted]").wait_for(timeout=limit * 1000)


def all_heads(page: Page, address: str, folder: str) -> list[float]:
    """Seconds from the click on "Heads" until all heads of such a network are painted, text by text."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    network("cpu").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    page.goto(f"{address}?{urlencode({'b': folder, 'on': 'b', 'text': 'one day'})}")
    page.locator("#compare-b [data-painted]").wait_for(timeout=120_000)
    maps, seconds = page.locator("#heads-maps [data-painted]"), []
    for first in FIRST_WORDS:
        text = text_of(128).replace("one", first, 1)
        assert len(tokenizer(text)["input_ids"]) == 128
        page.get_by_role("tab", name="Compare").click()
        before = stamps(page)
        page.locator("#sentence textarea").fill(text)
        timed(page, before, lambda: page.locator("#sentence textarea").press("Enter"))
        old = maps.get_attribute("data-painted") if maps.count() else ""
        start = time.perf_counter()
        page.get_by_role("tab", name="Heads", exact=True).click()
        page.wait_for_function(MAPS_PAINTED, arg=old, polling=5)
        seconds.append(time.perf_counter() - start)
        assert page.locator(".hd-title").text_content().startswith(f"All {LAYERS * HEADS} heads")
        page.wait_for_timeout(PAUSE)
    return seconds


def browser_path() -> str:
    """Chromium or Chrome."""
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        raise SystemExit("No Chromium or Chrome is installed.")
    return program


@contextmanager
def app() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """``python app.py``: where it will answer, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port)}
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "app.py")], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}/", server
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--words", type=int, default=18)
    options = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        start = time.perf_counter()
        with app() as (address, _):
            opened(page, address)
            print(f"from python app.py to the first result: {time.perf_counter() - start:.1f} s")
            page.wait_for_timeout(PAUSE)
            box, slider = page.locator("#sentence textarea"), page.locator("#head-a input[type=range]")
            words = TEXT.split()
            sentences, heads = [], []
            for turn in range(options.rounds):
                shift = turn % len(words)
                box.fill(" ".join((words[shift:] + words[:shift])[: options.words]) + f" {turn}.")
                sentences.append(timed(page, stamps(page), lambda: box.press("Enter")))
            for turn in range(options.rounds):
                key = "ArrowLeft" if turn % 2 else "ArrowRight"
                # Only the first model's head changes, so only its figure must be another one.
                before = [stamps(page)[0], ""]
                heads.append(timed(page, before, lambda key=key: slider.press(key)))  # type: ignore[misc]
            with tempfile.TemporaryDirectory() as folder:
                opening = all_heads(page, address, folder)
            results = (
                ("a new sentence", sentences),
                ("another head", heads),
                (f"all {LAYERS} x {HEADS} heads at 128 tokens", opening),
            )
            for what, seconds in results:
                print(
                    f"{what}: median {statistics.median(seconds):.2f} s of {len(seconds)}, "
                    f"{min(seconds):.2f} to {max(seconds):.2f} s"
                )
        browser.close()


if __name__ == "__main__":
    main()
