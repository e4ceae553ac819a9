"""The page: ``build`` makes it, launching it needs ``launch_options``, and ``warm_up`` can run meanwhile."""

from probe.ui.app import build
from probe.ui.screen import warm_up
from probe.ui.theme import launch_options

__all__ = ["build", "launch_options", "warm_up"]
