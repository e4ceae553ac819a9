"""Many visitors at once: is what each of them sees their own, and how much memory does the server take?

Starts ``app.py`` as a person would. Half of the visitors have the page open in headless Chromium: each types
sentences of their own, all press Enter before anyone is answered, and then each looks at another head. The
other half ask the endpoint ``/attend`` meanwhile, and hold the answers against the toolkit. Linux only: the
server's memory is read from /proc.

    python benchmarks/visitors.py [--visitors 20] [--rounds 3] [--words 60]
"""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gradio_client import Client
from page import app, browser_path, opened
from playwright.sync_api import Page, sync_playwright

import probe

NOUNS = ("cat", "dog", "girl", "boy", "bird", "tree", "house", "ball", "car", "fish", "mom", "cake")
VERBS = ("saw", "liked", "found", "took", "heard", "helped")
HEAD = (4, 5)


def sentence(seed: str, words: int) -> str:
    """Words that differ from visitor to visitor and from round to round."""
    chosen = random.Random(seed)
    parts = []
    while len(parts) < words:
        parts += ["the", chosen.choice(NOUNS), chosen.choice(VERBS)]
    return " ".join(parts[:words])


def memory(process: int, what: str) -> float:
    """Megabytes of a process: VmRSS now, VmHWM at most so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def shown(page: Page) -> list[str]:
    """The words that are seen above the maps of the second model."""
    return [chip.strip() for chip in page.locator("#compare-b .af-chip > span").all_text_contents()]


def looks(page: Page, text: str) -> bool:
    """Wait for a sentence, look at another head of it and back, and say whether it is still that sentence."""
    words = text.split()
    page.wait_for_function(
        "words => [...document.querySelectorAll('#compare-b .af-chip > span')]"
        ".map((chip) => chip.textContent.trim()).join(' ') === words.join(' ')",
        arg=words,
    )
    for key in ("ArrowLeft", "ArrowRight"):
        painted = page.get_attribute("#compare-b [data-painted]", "data-painted")
        page.locator("#head-b input[type=range]").press(key)
        page.locator(f'#compare-b [data-painted]:not([data-painted="{painted}"])').wait_for()
    return shown(page) == words


def ask(address: str, seed: str, rounds: int, words: int) -> int:
    """Answers of the endpoint that are not the toolkit's."""
    client, wrong = Client(address, verbose=False), 0
    for turn in range(rounds):
        text = sentence(f"{seed} {turn}", words)
        answer = client.predict(text, "gpt2", *HEAD, api_name="/attend")
        wrong += answer["weights"] != probe.attend("gpt2", text, [HEAD]).weights(*HEAD).tolist()
    client.close()
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=60)
    options = parser.parse_args()
    half = options.visitors // 2
    with sync_playwright() as driver, app() as (address, server):
        browser = driver.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox", "--disable-gpu"]
        )
        pages = [browser.new_context().new_page() for _ in range(options.visitors - half)]
        for page in pages:
            page.set_default_timeout(300_000)
            opened(page, address)
        print(f"server with {len(pages)} pages open: {memory(server.pid, 'VmRSS'):.0f} MB")
        wrong = 0
        with ThreadPoolExecutor(half) as pool:
            asking = [
                pool.submit(ask, address, f"asks {i}", options.rounds, options.words) for i in range(half)
            ]
            for turn in range(options.rounds):
                texts = [sentence(f"types {i} {turn}", options.words) for i in range(len(pages))]
                for page, text in zip(pages, texts, strict=True):
                    page.locator("#sentence textarea").fill(text)
                for page in pages:
                    page.locator("#sentence textarea").press("Enter")
                wrong += sum(not looks(page, text) for page, text in zip(pages, texts, strict=True))
            wrong += sum(answer.result() for answer in asking)
        print(
            f"{options.visitors} visitors, {options.rounds} texts of {options.words} words each: "
            f"{wrong} answers that were not their own or not the toolkit's"
        )
        print(
            f"server: {memory(server.pid, 'VmRSS'):.0f} MB now, {memory(server.pid, 'VmHWM'):.0f} MB at most"
        )
        browser.close()


if __name__ == "__main__":
    main()
