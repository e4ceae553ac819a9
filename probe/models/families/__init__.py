"""What is known about each kind of network: one small file a family, listed in ``FAMILIES``.

A family says what of a network's attention can be known without running it: which queries see which keys
(``causal``, ``window``), what scores are multiplied with and what is added (``scale``, ``bias``). If it also
says where the weights of each layer's attention lie (``sites``), the network can be taken apart: checked from
its weights, traced, put under another mask. ``Family`` names all that a file can say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.models.families import (
    albert,
    bart,
    bert,
    clip,
    distilbert,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    gpt_oss,
    gptj,
    llama,
    modernbert,
    olmo2,
    opt,
    phi3,
    qwen3,
    t5,
    vit,
    whisper,
)
from probe.models.families.family import Family
from probe.models.families.site import ROLES, Norm, Projection, Role, Site

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = [
    "FAMILIES",
    "ROLES",
    "Family",
    "Norm",
    "Projection",
    "Role",
    "Site",
    "find_family",
    "supported_types",
]

FAMILIES: tuple[Family, ...] = (
    bert.FAMILY,
    albert.FAMILY,
    distilbert.FAMILY,
    modernbert.FAMILY,
    gpt2.FAMILY,
    gptj.FAMILY,
    gpt_neox.FAMILY,
    opt.FAMILY,
    llama.FAMILY,
    qwen3.FAMILY,
    olmo2.FAMILY,
    phi3.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    gpt_oss.FAMILY,
    t5.FAMILY,
    bart.FAMILY,
    whisper.FAMILY,
    vit.FAMILY,
    clip.FAMILY,
)
_BY_TYPE = {model_type: family for family in FAMILIES for model_type in family.model_types}


def supported_types() -> list[str]:
    """The ``model_type`` of every configuration whose networks can be taken apart."""
    return [model_type for model_type, family in _BY_TYPE.items() if family.sites is not None]


def find_family(config: PretrainedConfig) -> Family | None:
    """What is known about a kind of network, by its configuration; None if nothing is."""
    return _BY_TYPE.get(config.model_type)
