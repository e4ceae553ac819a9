"""ViT, which sees: every patch of an image attends to every other; checked from query and key.

Dosovitskiy et al. 2021.
"""

from __future__ import annotations

from probe.models.families.family import Family, both_ways

FAMILY = Family(("vit",), both_ways, float32_inside=True)
