"""How long a text may be, where positions count from the row after that of padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import probe

PADDING, ROWS = 1, 20
NETWORKS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "BERT": (hf.BertConfig, hf.BertModel, {}),  # whose positions count from the first row
    "CamemBERT": (hf.CamembertConfig, hf.CamembertModel, {}),
    "Data2Vec": (hf.Data2VecTextConfig, hf.Data2VecTextModel, {}),
    "ESM": (hf.EsmConfig, hf.EsmModel, {"position_embedding_type": "absolute"}),
    "I-BERT": (hf.IBertConfig, hf.IBertModel, {}),
    "LUKE": (hf.LukeConfig, hf.LukeModel, {"entity_vocab_size": 5}),
    "MarkupLM": (hf.MarkupLMConfig, hf.MarkupLMModel, {}),
    "MPNet": (hf.MPNetConfig, hf.MPNetModel, {}),
    "RoBERTa with norms first": (hf.RobertaPreLayerNormConfig, hf.RobertaPreLayerNormModel, {}),
    "X-MOD": (hf.XmodConfig, hf.XmodModel, {"languages": ["en_XX"], "default_language": "en_XX"}),
    "XLM-RoBERTa XL": (hf.XLMRobertaXLConfig, hf.XLMRobertaXLModel, {}),
}


@pytest.fixture(scope="module")
def tokenizer() -> hf.PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({"<s>": 0, "<pad>": PADDING, "<unk>": 2, "word": 3}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_longest_text_is_the_longest_that_the_network_takes(
    name: str, tokenizer: hf.PreTrainedTokenizerFast
) -> None:
    kind, network, other = NETWORKS[name]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = kind(vocab_size=8, max_position_embeddings=ROWS, pad_token_id=PADDING, **sizes, **other)
    made = network(config).eval()
    model = probe.load(made, tokenizer=tokenizer)
    longest = model.max_tokens
    assert longest is not None
    with torch.no_grad():
        made(torch.full((1, longest), 3))
        with pytest.raises((IndexError, RuntimeError)):
            made(torch.full((1, longest + 1), 3))
    run = probe.attend(model, "word " * 40, truncate=True)
    assert len(run.tokens) == longest and run.truncated is not None
    assert torch.allclose(run.weights(0, 0).sum(-1), torch.ones(longest), atol=1e-6)
    with pytest.raises(probe.ProbeError, match=f"takes at most {longest}"):
        probe.attend(model, "word " * (longest + 1))
