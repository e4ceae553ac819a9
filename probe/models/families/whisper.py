"""Whisper, which hears: an encoder and a decoder; checked from query and key.

Radford et al. 2022. Queries are scaled before they are handed over. An encoder alone has the configuration
of both, which doesn't say which it is.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from probe.models.families.family import Family, unscaled


def causal(config: PretrainedConfig) -> bool | None:
    return None


FAMILY = Family(("whisper",), causal, scale=unscaled)
