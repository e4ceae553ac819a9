"""The page: ``build`` makes it and ``start`` has it answer; ``launch_options`` is what launching it needs."""

from probe.ui.app import build
from probe.ui.serving import launch_options, start, warm_up

__all__ = ["build", "launch_options", "start", "warm_up"]
