"""What a kind of network says of itself, and the answers that many of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from probe.models.families.site import Site

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def by_width(config: Any, head_dim: int, layer: int) -> float:
    """One over the root of the head's width (Vaswani et al. 2017, equation 1)."""
    return float(head_dim**-0.5)


def unscaled(config: Any, head_dim: int, layer: int) -> float:
    """Not at all, or the queries are scaled before they are handed over."""
    return 1.0


def by_query_scalar(config: Any, head_dim: int, layer: int) -> float:
    """One over the root of a width that may be another than the head's (Gemma Team 2024, "Gemma 2")."""
    return float(config.query_pre_attn_scalar**-0.5)


def no_window(config: Any, layer: int) -> None:
    """Every layer sees as far as its mask lets it."""


def window_by_kind(config: Any, layer: int) -> int | None:
    """The configuration's window, in all layers but those that it calls layers of full attention.

    Where a decoder is told to look both ways, transformers doesn't count the position itself.
    """
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or (kinds and kinds[layer] == "full_attention"):
        return None
    return window if causal_unless_told(config) else window + 1


def causal_unless_told(config: Any) -> bool:
    """A decoder; transformers lets any look both ways whose configuration says ``is_causal=False``."""
    return bool(getattr(config, "is_causal", True))


def both_ways(config: Any) -> bool:
    return False


def causal_as_decoder(config: Any) -> bool:
    """Where the configuration makes a decoder of it."""
    return bool(getattr(config, "is_decoder", False))


def not_said(config: Any) -> None:
    """An encoder or a decoder alone has the configuration of both."""


def positions_of_table(hf: Any) -> int:
    """For positions that are learnt: how many rows their table has."""
    positions = hf.base_model.embeddings.position_embeddings
    # Where padding has a row (RoBERTa), positions count from the next, and those before are never used.
    unused = 0 if positions.padding_idx is None else positions.padding_idx + 1
    return int(positions.num_embeddings) - unused


def positions_of_config(hf: Any) -> int:
    """For positions that are computed: how many the configuration admits."""
    return int(hf.config.max_position_embeddings)


def turns_steadily(config: Any) -> bool:
    """Whether rotary frequencies are the same for every text, and sines and cosines aren't stretched."""
    parameters = config.rope_parameters
    by_kind = [one for one in parameters.values() if isinstance(one, dict)]
    return all(
        one.get("rope_type", "default") in {"default", "linear", "llama3"} for one in by_kind or [parameters]
    )


def turning(hf: Any, layer: int) -> Tensor:
    """A copy of the frequencies that a layer turns by; some networks have others for each kind of layer."""
    rotary = hf.base_model.rotary_emb
    kinds = getattr(hf.config, "layer_types", None)
    frequencies: Tensor | None = getattr(rotary, f"{kinds[layer]}_inv_freq", None) if kinds else None
    return (rotary.inv_freq if frequencies is None else frequencies).detach().clone()


@dataclass(frozen=True)
class Family:
    """All that is known beforehand about kinds of network that compute their attention alike.

    Attributes
    ----------
    model_types : the ``model_type`` of their configurations.
    causal
        Whether no query sees a later key, by the configuration; None if that doesn't say. For networks of one
        stack, and for stacks in a network made of two. (One that has both an encoder and a decoder of its own
        hides later tokens in the decoder.)
    sites
        Every layer's attention, in the order they are computed: its weights, and what is done with them. None
        if that can't be described: then the network is checked from query and key.
    describes
        Whether that holds for a configuration; some make another network of it.
    scale
        What a layer's dot products are multiplied with, as it is handed to the backend: of the configuration,
        the head's width and the layer. None if the network's word has to do.
    window
        How many of the last positions a layer sees, its own included: of the configuration and the layer.
    bias
        What is added to the scaled scores, (1, H or 1, Tq, Tk): of the network, the calling module, the kind
        of attention, and the numbers of queries and keys.
    max_tokens : how many positions fit; by default, what the configuration says.
    pairs : whether a second sentence can be given.
    float32_inside
        Whether its code computes something in float32 where everything else is float64.
    """

    model_types: tuple[str, ...]
    causal: Callable[[PretrainedConfig], bool | None]
    sites: Callable[[PreTrainedModel], tuple[Site, ...]] | None = None
    describes: Callable[[PretrainedConfig], bool] = lambda config: True
    scale: Callable[[Any, int, int], float | None] = by_width
    window: Callable[[Any, int], int | None] = no_window
    bias: Callable[[PreTrainedModel, nn.Module, str, int, int], Tensor] | None = None
    max_tokens: Callable[[PreTrainedModel], int] | None = None
    pairs: bool = False
    float32_inside: bool = False

    def takes_apart(self, config: PretrainedConfig) -> bool:
        """Whether it is known where the weights of such a network's attention lie."""
        return self.sites is not None and self.describes(config)
