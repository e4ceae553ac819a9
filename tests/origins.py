"""The origin of results that are made up for a test."""

from __future__ import annotations

from probe.analyses.result import Origin

MADE_UP = Origin("made-up", "here", None, None, "float32", "cpu", "eager", {})
