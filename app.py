"""Starts the page: ``python app.py``. The parts of the page are in ``probe/ui``."""

from __future__ import annotations

import os

# Gradio reads this when it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from probe.ui import build, launch_options

demo = build()

if __name__ == "__main__":
    demo.queue(max_size=64).launch(**launch_options())
