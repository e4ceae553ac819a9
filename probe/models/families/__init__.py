"""What is known about a model family: where its attention sits and where the weights of it are stored.

A family is one small file beside this one, listed in ``FAMILIES``. It answers four questions about a network:
which modules compute attention, layer by layer (``sites``), whether a query may look ahead (``causal``), how
many positions fit (``max_tokens``) and whether a second sentence can be given (``pairs``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.models.families import albert, bert, distilbert, gpt2, llama, opt
from probe.models.families.site import Family, Projection, Site

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["FAMILIES", "Family", "Projection", "Site", "find_family", "supported_types"]

FAMILIES: tuple[Family, ...] = (
    bert.FAMILY,
    albert.FAMILY,
    distilbert.FAMILY,
    gpt2.FAMILY,
    opt.FAMILY,
    llama.FAMILY,
)


def supported_types() -> list[str]:
    """The ``model_type`` of every configuration that a family is known for."""
    return [model_type for family in FAMILIES for model_type in family.model_types]


def find_family(config: PretrainedConfig) -> Family | None:
    """The family that describes a model, by its configuration; None if none does."""
    for family in FAMILIES:
        if config.model_type in family.model_types and family.describes(config):
            return family
    return None
