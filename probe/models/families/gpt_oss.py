"""gpt-oss: sinks and, in every other layer, a window; checked from query and key.

OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.2. The sinks are taken from the network.
"""

from __future__ import annotations

from probe.models.families.family import Family, causal_unless_told, window_by_kind

FAMILY = Family(("gpt_oss",), causal_unless_told, window=window_by_kind, float32_inside=True)
