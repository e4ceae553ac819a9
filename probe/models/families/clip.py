"""The two halves of CLIP: a causal network of text and one of images; checked from query and key.

Radford et al. 2021.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from probe.models.families.family import Family


def causal(config: PretrainedConfig) -> bool:
    return config.model_type == "clip_text_model"


FAMILY = Family(("clip_text_model", "clip_vision_model"), causal, float32_inside=True)
