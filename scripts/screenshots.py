"""Pictures of every view: the light ones for the README, by hand also the dark ones and those of a phone.

    python scripts/screenshots.py [--out FOLDER] [--kinds light dark phone] [--model MODEL]

Needs playwright and an installed Chromium or Chrome. Writes ``<view>-<kind>.png``. The view of models with
an encoder and a decoder needs one that is on this machine (google-t5/t5-small, say, or a folder); without it
that view is left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
VIEWS = ("compare", "masks", "steps", "verify", "heads", "sentences", "effect", "bertviz", "learn")
PAIR = "source-target"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KINDS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1360, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1360, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 1.5},
}
TALLEST = 1800  # pixels of the page that go into a picture


def picture(browser: Browser, address: str, view: str, kind: str, path: Path, model: str) -> None:
    """One view, painted, from the top of the page; ``model`` is for the view that has one of its own."""
    settings = KINDS[kind]
    context = browser.new_context(**settings)
    page = context.new_page()
    page.goto(f"{address}?{urlencode({'view': view, **({'pair': model} if view == PAIR else {})})}")
    page.locator(f"#tab-{view} [data-painted]:not([data-painted=''])").last.wait_for()
    height = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    width = settings["viewport"]["width"]
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["light"])
    parser.add_argument("--model", default="", help='for the view "Source and target"')
    options = parser.parse_args()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path.insert(0, str(ROOT))
    from probe.ui import build, launch_options

    options.out.mkdir(parents=True, exist_ok=True)
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        raise SystemExit("No Chromium or Chrome is installed.")
    demo = build()
    demo.queue().launch(prevent_thread_lock=True, quiet=True, **launch_options())
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for view in (*VIEWS, *([PAIR] if options.model else [])):
            for kind in options.kinds:
                path = options.out / f"{view}-{kind}.png"
                picture(browser, demo.local_url, view, kind, path, options.model)
                print(path)
        browser.close()
    demo.close()


if __name__ == "__main__":
    main()
