"""The page. ``build`` makes it, ``launch_options`` is what launching it needs."""

from probe.ui.app import build
from probe.ui.theme import launch_options

__all__ = ["build", "launch_options"]
