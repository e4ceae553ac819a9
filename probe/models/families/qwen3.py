"""Qwen3: Llama's layout, with each head's queries and keys normalised before they are turned.

Yang et al. 2025, section 2. Some layers may see a window of the last tokens only, as in Qwen2.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.llama import like_llama
from probe.models.families.site import Norm


def norm(module: Any) -> Norm:
    return Norm(module, module.variance_epsilon, "head")


FAMILY = like_llama(("qwen3",), norm=norm)
