"""Starts the page: ``python app.py``. The parts of the page are in ``probe/ui``."""

from __future__ import annotations

import os
import sys
import threading

# Gradio reads this when it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

try:
    import spaces  # on a ZeroGPU Space it must come before torch
except ImportError:
    spaces = None

from probe import ProbeError
from probe.ui import build, launch_options, warm_up

if spaces is not None:
    # A ZeroGPU Space does not start without one such function; the models run on its CPU.
    spaces.GPU(lambda: None)

demo = build()

if __name__ == "__main__":
    try:
        options = launch_options()
    except ProbeError as error:
        sys.exit(f"Error: {error}")
    threading.Thread(target=warm_up, daemon=True).start()
    demo.queue(max_size=64).launch(**options)
