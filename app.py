"""Starts the page: ``python app.py``. The parts of the page are in ``probe/ui``."""

from __future__ import annotations

import os
import sys

# Gradio reads this when it is imported.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

try:
    import spaces  # on a ZeroGPU Space it must come before torch
except ImportError:
    spaces = None

from probe import ProbeError
from probe.ui import build, start

if spaces is not None:
    # A ZeroGPU Space does not start without one such function; the models run on its CPU.
    spaces.GPU(lambda: None)

demo = build()

if __name__ == "__main__":
    try:
        start(demo)
    except ProbeError as error:
        sys.exit(f"Error: {error}")
