"""Gemma 3, its networks of text: Llama's layout, queries and keys normalised, two sorts of layers.

Gemma Team 2025, section 2. Most layers see a window of the last tokens and turn queries and keys faster than
those that see everything. The norm is each head's own, and multiplies with its weight and 1. Scores may be
scaled by another width than the head's. Some are set to look both ways, within their windows too
(EmbeddingGemma).
"""

from __future__ import annotations

from typing import Any

from probe.models.families.family import by_query_scalar, causal_unless_told
from probe.models.families.llama import like_llama
from probe.models.families.site import Norm


def norm(module: Any) -> Norm:
    return Norm(module, module.eps, "head", one_more=True, heads_first=True)


def causal(config: Any) -> bool:
    return not getattr(config, "use_bidirectional_attention", False) and causal_unless_told(config)


FAMILY = like_llama(("gemma3_text",), norm=norm, scale=by_query_scalar, causal=causal)
