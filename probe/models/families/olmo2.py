"""OLMo 2: Llama's layout, with the queries of all heads normalised as one vector, and so the keys.

OLMo Team 2024, "2 OLMo 2 Furious", section 3.3. The norm stands between projection and heads.
"""

from __future__ import annotations

from typing import Any

from probe.models.families.llama import like_llama
from probe.models.families.site import Norm


def norm(module: Any) -> Norm:
    return Norm(module, module.variance_epsilon, "all")


FAMILY = like_llama(("olmo2",), norm=norm)
