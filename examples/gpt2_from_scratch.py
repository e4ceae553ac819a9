"""GPT-2 in a hundred lines on ``attention.MultiHeadAttention``, with a real model's weights, held against it.

    python examples/gpt2_from_scratch.py [MODEL] [TEXT]

MODEL is a name that ``probe.load`` knows, of a GPT-2: "gpt2" by default.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import probe
from attention import MultiHeadAttention


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them, for each token by itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, width)."""
        return self.down(nn.functional.gelu(self.up(x), approximate="tanh"))


class Layer(nn.Module):
    """Attention, then the feed-forward network; each after a norm, and added to what came in."""

    def __init__(self, width: int, num_heads: int, context_length: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(
            width, width, num_heads, bias=True, causal=True, context_length=context_length
        )
        self.before_feed_forward = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, width)."""
        x = x + self.attention(self.before_attention(x))
        return x + self.feed_forward(self.before_feed_forward(x))


class GPT2(nn.Module):
    """Radford et al. 2019: token and position embeddings, layers, a last norm, and the embeddings again."""

    def __init__(
        self, vocabulary: int, context_length: int, width: int, num_layers: int, num_heads: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context_length, width)
        self.layers = nn.ModuleList(Layer(width, num_heads, context_length) for _ in range(num_layers))
        self.last_norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) token ids -> (B, T, vocabulary) logits."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.last_norm(x) @ self.tokens.weight.T


def translated(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of transformers' GPT-2 under the names above. Its maps, stored (in, out), are turned."""
    names = {
        "transformer.wte.": "tokens.",
        "transformer.wpe.": "positions.",
        "transformer.ln_f.": "last_norm.",
        "transformer.h.": "layers.",
        ".ln_1.": ".before_attention.",
        ".ln_2.": ".before_feed_forward.",
        ".attn.c_proj.": ".attention.out_proj.",
        ".mlp.c_fc.": ".feed_forward.up.",
        ".mlp.c_proj.": ".feed_forward.down.",
    }
    mine = {}
    for name, tensor in weights.items():
        stored_in_out = name.endswith("weight") and ".c_" in name
        tensor = tensor.T if stored_in_out else tensor
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        if ".attn.c_attn." in name:  # query, key and value side by side
            for role, part in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                mine[name.replace(".attn.c_attn.", f".attention.W_{role}.")] = part
        elif not name.startswith("lm_head"):  # which is the embeddings again
            mine[name] = tensor
    return mine


def gpt2(model: probe.Model) -> GPT2:
    """The network above with the weights of a loaded GPT-2."""
    config = model.hf.config
    network = GPT2(config.vocab_size, config.n_positions, config.n_embd, config.n_layer, config.n_head)
    network.load_state_dict(translated(model.hf.state_dict()))
    return network.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A GPT-2 of one's own, held against a real one.")
    parser.add_argument("model", nargs="?", default="gpt2")
    parser.add_argument("text", nargs="?", default="The cat sat on the mat.")
    given = parser.parse_args()
    loaded = probe.load(given.model)
    check = probe.check_model(gpt2(loaded), loaded, given.text)
    print(check)
    sys.exit(0 if check.passed else 1)
