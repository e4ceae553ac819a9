"""The README's table of model families: a tiny random model of each, captured and run from scratch.

Each model has random weights that make its maps peaky, because a mistake hardly shows in rows that are
nearly uniform. Its maps are captured while it runs on its own backend, and compared with what its eager copy
returns with ``output_attentions=True``; then it runs with ``attention`` as its backend, and its outputs are
compared with its own, as a share of the largest. Texts are run without padding, with padding on the left and
on the right; rows of padded positions are left out, as every backend makes something else of them. Where that
can be done, ``verify`` checks every head, from the weights or from query and key. Last, the scale is put off
by 5%: the error has to be at least a hundred times what is allowed, or the comparison would prove nothing.

    python scripts/families.py            # print the table
    python scripts/families.py --write    # put it into README.md
"""

from __future__ import annotations

import argparse
import copy
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import probe
from probe import ProbeError, Report
from probe.models import backend

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"

# The largest error of a weight that counts as rounding.
TOLERANCE = 1e-5
VOCABULARY, LENGTH, SHORT = 99, 12, 7

Inputs = dict[str, Tensor]
Key = tuple[str, int]  # kind and layer


@dataclass(frozen=True)
class Family:
    """A small random model: three layers of four heads, the decoder two where there is one."""

    name: str
    build: Callable[[], PreTrainedModel]
    takes: str = "text"  # or "images", "audio", "text pairs" of a source and a target
    unlike: str = ""
    gain: float = 2.5  # what queries and keys are larger by than what they are made from

    @property
    def paddings(self) -> tuple[str, ...]:
        return ("none", "left", "right") if self.takes.startswith("text") else ("none",)


def sized(config: type, **more: Any) -> Any:
    """A configuration with the usual names for its sizes."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "pad_token_id": 1,
    }
    return config(**(sizes | more))


def bart_like(config: type, **more: Any) -> Any:
    sizes = {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 64,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    }
    return config(**(sizes | more))


def gpt2_config(**more: Any) -> Any:
    return hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
        **more,
    )


def encoder_decoder() -> PreTrainedModel:
    decoder = gpt2_config(add_cross_attention=True)
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(sized(hf.BertConfig), decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 1
    return hf.EncoderDecoderModel(config=config)


def clip_vision() -> PreTrainedModel:
    return hf.CLIPVisionModel(sized(hf.CLIPVisionConfig, image_size=16, patch_size=4))


GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
GEMMA = {**GROUPED, "query_pre_attn_scalar": 8, "sliding_window": 4}
KINDS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

FAMILIES = (
    Family("bert", lambda: hf.BertModel(sized(hf.BertConfig))),
    Family("roberta", lambda: hf.RobertaModel(sized(hf.RobertaConfig))),
    Family(
        "distilbert",
        lambda: hf.DistilBertModel(
            hf.DistilBertConfig(vocab_size=VOCABULARY, dim=32, n_layers=3, n_heads=4, hidden_dim=48)
        ),
    ),
    Family("electra", lambda: hf.ElectraModel(sized(hf.ElectraConfig, embedding_size=16))),
    Family(
        "albert", lambda: hf.AlbertModel(sized(hf.AlbertConfig, embedding_size=16)), unlike="one shared layer"
    ),
    Family("xlm-roberta", lambda: hf.XLMRobertaModel(sized(hf.XLMRobertaConfig))),
    Family(
        "modernbert",
        lambda: hf.ModernBertModel(
            sized(
                hf.ModernBertConfig,
                local_attention=6,
                global_attn_every_n_layers=2,
                cls_token_id=2,
                sep_token_id=3,
            )
        ),
        unlike="rotary, local windows",
    ),
    Family("mpnet", lambda: hf.MPNetModel(sized(hf.MPNetConfig)), unlike="relative positions"),
    Family(
        "deberta-v2",
        lambda: hf.DebertaV2Model(
            sized(
                hf.DebertaV2Config, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
            )
        ),
        unlike="disentangled positions",
    ),
    Family("gpt2", lambda: hf.GPT2LMHeadModel(gpt2_config())),
    Family(
        "gpt_neo",
        lambda: hf.GPTNeoForCausalLM(
            sized(
                hf.GPTNeoConfig,
                num_layers=3,
                num_heads=4,
                attention_types=[[["global", "local", "global"], 1]],
                window_size=4,
            )
        ),
        unlike="unscaled, local windows",
        gain=1.5,
    ),
    Family(
        "gptj",
        lambda: hf.GPTJForCausalLM(
            hf.GPTJConfig(
                vocab_size=VOCABULARY,
                n_embd=32,
                n_layer=3,
                n_head=4,
                n_positions=64,
                rotary_dim=4,
                eos_token_id=0,
            )
        ),
        unlike="rotary",
    ),
    Family("gpt_neox", lambda: hf.GPTNeoXForCausalLM(sized(hf.GPTNeoXConfig)), unlike="rotary"),
    Family(
        "opt",
        lambda: hf.OPTForCausalLM(sized(hf.OPTConfig, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0)),
        unlike="query scaled beforehand",
    ),
    Family(
        "bloom",
        lambda: hf.BloomForCausalLM(
            hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=3, n_head=4)
        ),
        unlike="ALiBi",
    ),
    Family("llama", lambda: hf.LlamaForCausalLM(sized(hf.LlamaConfig, **GROUPED)), unlike="rotary, grouped"),
    Family(
        "mistral",
        lambda: hf.MistralForCausalLM(sized(hf.MistralConfig, **GROUPED, sliding_window=4)),
        unlike="grouped, window of 4",
    ),
    Family(
        "qwen2", lambda: hf.Qwen2ForCausalLM(sized(hf.Qwen2Config, num_key_value_heads=2)), unlike="grouped"
    ),
    Family(
        "qwen3",
        lambda: hf.Qwen3ForCausalLM(sized(hf.Qwen3Config, **GROUPED)),
        unlike="grouped, normalised queries and keys",
    ),
    Family(
        "gemma2",
        lambda: hf.Gemma2ForCausalLM(sized(hf.Gemma2Config, **GEMMA, **KINDS, attn_logit_softcapping=10.0)),
        unlike="softcap, windows",
    ),
    Family(
        "gemma3",
        lambda: hf.Gemma3ForCausalLM(sized(hf.Gemma3TextConfig, **GEMMA, **KINDS)),
        unlike="normalised queries and keys, windows",
    ),
    Family("phi3", lambda: hf.Phi3ForCausalLM(sized(hf.Phi3Config, num_key_value_heads=2)), unlike="grouped"),
    Family("olmo2", lambda: hf.Olmo2ForCausalLM(sized(hf.Olmo2Config)), unlike="normalised queries and keys"),
    Family(
        "gpt_oss",
        lambda: hf.GptOssForCausalLM(
            sized(
                hf.GptOssConfig,
                **GROUPED,
                **KINDS,
                sliding_window=4,
                num_local_experts=2,
                num_experts_per_tok=1,
            )
        ),
        unlike="sinks, windows, grouped",
    ),
    Family(
        "t5",
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=VOCABULARY,
                d_model=32,
                d_kv=8,
                d_ff=48,
                num_layers=3,
                num_decoder_layers=2,
                num_heads=4,
                relative_attention_num_buckets=8,
                relative_attention_max_distance=16,
                decoder_start_token_id=0,
                tie_word_embeddings=False,
            )
        ),
        takes="text pairs",
        unlike="unscaled, position bias",
        gain=1.5,
    ),
    Family("bart", lambda: hf.BartForConditionalGeneration(bart_like(hf.BartConfig)), takes="text pairs"),
    Family("marian", lambda: hf.MarianMTModel(bart_like(hf.MarianConfig)), takes="text pairs"),
    Family(
        "whisper",
        lambda: hf.WhisperForConditionalGeneration(
            bart_like(hf.WhisperConfig, num_mel_bins=8, max_source_positions=20, max_target_positions=64)
        ),
        takes="audio",
        unlike="query scaled beforehand",
    ),
    Family("vit", lambda: hf.ViTModel(sized(hf.ViTConfig, image_size=16, patch_size=4)), takes="images"),
    Family("clip (text)", lambda: hf.CLIPTextModel(sized(hf.CLIPTextConfig)), unlike="causal"),
    Family("clip (images)", clip_vision, takes="images"),
    Family("EncoderDecoder", encoder_decoder, takes="text pairs", unlike="BERT, GPT-2"),
)


# What makes queries and keys; maps that are stored transposed.
QUERY_OR_KEY = re.compile(r"query|key|qkv|c_attn|q_attn|\b[qk](_proj|_lin)?\b")
CONV1D = re.compile(r"\b(c_attn|q_attn|c_proj|c_fc)\.weight")


def build(family: Family) -> PreTrainedModel:
    """The family's model with the same peaky weights every time."""
    torch.manual_seed(0)
    model = family.build().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            lower = name.lower()
            if "norm" in lower or "ln_" in lower or "layer_norm" in lower:
                own = parameter.clone()  # weights of 1 (of 0 where the model adds the 1), biases of 0
                parameter.copy_(own + 0.2 * drawn)
                if "q_norm" in lower or "k_norm" in lower:  # here the projections' size is normalised away
                    parameter.add_(1.0)
            elif parameter.dim() == 1:
                parameter.copy_(0.3 * drawn)
            elif "embed" in lower or "wte" in lower or "wpe" in lower or "shared" in lower:
                parameter.copy_(drawn)
            else:
                fan_in = len(parameter) if CONV1D.search(name) else parameter[0].numel()
                gain = family.gain if QUERY_OR_KEY.search(lower) else 1.0
                parameter.copy_(gain * drawn / math.sqrt(fan_in))
    return model


def inputs_of(family: Family, model: PreTrainedModel, padding: str) -> tuple[Inputs, dict[str, Tensor]]:
    """Inputs for two texts (images, recordings); which query rows of each kind of map are real, (B, T)."""
    generator = torch.Generator().manual_seed(1)

    def texts() -> tuple[Tensor, Tensor]:
        ids = torch.randint(3, VOCABULARY, (2, LENGTH), generator=generator)
        mask = torch.ones(2, LENGTH, dtype=torch.long)
        if padding != "none":
            mask[1] = torch.arange(LENGTH) < SHORT
            if padding == "left":
                mask[1] = mask[1].flip(0)
        return ids, mask

    if family.takes == "text":
        ids, mask = texts()
        return {"input_ids": ids, "attention_mask": mask}, {"self": mask.bool()}
    if family.takes == "text pairs":
        ids, mask = texts()
        target_ids, target_mask = (part[:, 1:-1] for part in texts())  # of another length
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "decoder_input_ids": target_ids,
            "decoder_attention_mask": target_mask,
        }
        return inputs, {"encoder": mask.bool(), "decoder": target_mask.bool(), "cross": target_mask.bool()}
    if family.takes == "images":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}, {}
    ids, _ = texts()
    return {"input_features": torch.randn(2, 8, 40, generator=generator), "decoder_input_ids": ids}, {}


def eager_maps(model: PreTrainedModel, inputs: Inputs) -> dict[Key, Tensor]:
    """What the model's eager copy returns itself: (B, H, Tq, Tk) for each kind and layer."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    twin: Any = type(model)(config=config)
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        result = twin.eval()(**inputs, output_attentions=True)
    names = {"encoder_attentions": "encoder", "decoder_attentions": "decoder", "cross_attentions": "cross"}
    if not model.config.is_encoder_decoder:
        names = {"attentions": "self"}
    return {
        (kind, layer): weights
        for name, kind in names.items()
        for layer, weights in enumerate(getattr(result, name))
    }


class SoftmaxWatch(TorchFunctionMode):
    """Keeps what goes into every softmax over 4-D scores, to see into attention code of a model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "softmax" and args[0].dim() == 4:
            self.scores.append(args[0])
        return func(*args, **(kwargs or {}))


def captured(model: PreTrainedModel, inputs: Inputs, off: float = 1.0) -> dict[Key, Tensor]:
    """All maps, captured from the model's own run; with the scale multiplied by ``off``."""
    order = iter(backend.attentions(model))
    found: dict[Key, Tensor] = {}

    def see(call: backend.Call) -> None:
        here = next(order)
        call = replace(call, options={**call.options, "scaling": call.scale * off})
        found[here.kind, here.layer] = call.weights(range(here.num_heads))

    with backend.running(model, inputs), backend.listening(model, see):
        model(**inputs)
    return found


def own(
    model: PreTrainedModel, inputs: Inputs, off: float = 1.0
) -> tuple[dict[Key, Tensor], dict[Key, Tensor]]:
    """The maps that a model with code of its own returns, and the softmax of the scores seen on the way."""
    with backend.running(model, inputs):
        returned = backend.own_maps(model, inputs)
        with SoftmaxWatch() as watch:
            copy.deepcopy(model)(**inputs)
    seen = [(scores.double() * off).softmax(-1) for scores in watch.scores]
    assert len(seen) == len(returned)
    return (
        {("self", layer): weights for layer, weights in enumerate(returned)},
        {("self", layer): weights for layer, weights in enumerate(seen)},
    )


def outputs(model: PreTrainedModel, inputs: Inputs) -> Tensor:
    """The logits, or else the last hidden state: (B, T, ...)."""
    with torch.no_grad():
        result = model(**inputs)
    return result.logits if "logits" in result else result.last_hidden_state


def worst(first: dict[Key, Tensor], second: dict[Key, Tensor], real: dict[str, Tensor]) -> float:
    """The largest difference of two sets of maps in rows of real queries."""
    assert first.keys() == second.keys()
    errors = [
        (first[key].double() - second[key].double()).abs().amax((1, 3))[real.get(key[0], ...)].max()
        for key in first
    ]
    return float(torch.stack(errors).max())


def peakiness(maps: dict[Key, Tensor], real: dict[str, Tensor]) -> float:
    """The median entropy of a row with a choice, as a share of the largest that it could have."""
    shares = []
    for (kind, _), weights in maps.items():
        rows = weights.transpose(1, 2)[real.get(kind, ...)].double()
        count = (rows > 0).sum(-1)
        entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1)
        shares += (entropy / count.clamp_min(2).log())[count > 1].flatten().tolist()
    return statistics.median(shares)


def checked(family: Family, model: PreTrainedModel) -> Report | None:
    """What ``verify`` says of every head, on two texts run together; None where nothing can be checked."""
    if not backend.uses_interface(model):
        return None
    loaded = probe.load(model, tokenizer=numbers())
    if not loaded.takes_text:
        return probe.verify(
            loaded, {key: value[:1] for key, value in inputs_of(family, model, "none")[0].items()}
        )
    texts = drawn(LENGTH, SHORT)
    return probe.verify(loaded, texts, drawn(LENGTH - 2, SHORT - 2, seed=3) if loaded.has_target else None)


def drawn(*sizes: int, seed: int = 2) -> list[str]:
    """Texts of random numbers, one for each size."""
    generator = torch.Generator().manual_seed(seed)
    ids = (torch.randint(3, VOCABULARY, (size,), generator=generator) for size in sizes)
    return [" ".join(map(str, one.tolist())) for one in ids]


@lru_cache
def numbers() -> PreTrainedTokenizerFast:
    """A tokenizer whose words are token ids: "17 4" is tokens 17 and 4."""
    # Special tokens are found inside words too, so that these two can't be called 0 and 1.
    vocabulary = {"[UNK]": 0, "[PAD]": 1, **{str(index): index for index in range(2, VOCABULARY)}}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")


@dataclass(frozen=True)
class Row:
    """What was measured on one family; the largest errors over all paddings.

    ``capture_error`` is of the weights; ``from_scratch_error`` of the outputs, as a share of the largest, or
    None where the model can't be run from scratch, for the reason in ``refusal``. ``report`` is what
    ``verify`` says of its heads, None where there is nothing to check them against.
    """

    family: Family
    listened: bool
    capture_error: float
    control_error: float
    peakiness: float
    from_scratch_error: float | None
    refusal: str | None
    report: Report | None

    def cells(self) -> tuple[str, ...]:
        capture = "yes" if self.listened else "as the model returns them"
        scratch = "no" if self.from_scratch_error is None else "yes"
        return (
            self.family.name,
            self.family.unlike,
            self.family.takes,
            capture,
            bound(self.capture_error),
            scratch,
            "" if self.from_scratch_error is None else bound(self.from_scratch_error),
            "none" if self.report is None else self.report.check,
            "" if self.report is None else bound(self.report.max_abs_error),
        )


def bound(error: float) -> str:
    """A power of ten that the error lies under, with room for another machine's rounding.

    >>> bound(4e-7), bound(6e-7), bound(0.0)
    ('1e-06', '1e-05', '0')
    """
    return f"{10.0 ** math.ceil(math.log10(2 * error)):.0e}" if error else "0"


def measure(family: Family) -> Row:
    model = build(family)
    listened = backend.uses_interface(model)
    capture, control, scratch, peaky, refusal = 0.0, 0.0, 0.0, 0.0, None
    for padding in family.paddings:
        inputs, real = inputs_of(family, model, padding)
        if listened:
            reference, maps = eager_maps(model, inputs), captured(model, inputs)
            control = max(control, worst(captured(model, inputs, off=1.05), reference, real))
            plain = outputs(model, inputs)
            with backend.from_scratch_backend(model):
                computed = outputs(model, inputs)
            rows = real.get("cross", real.get("self", ...))
            scratch = max(scratch, float((computed - plain)[rows].abs().max() / plain[rows].abs().max()))
        else:
            maps, reference = own(model, inputs)
            control = max(control, worst(maps, own(model, inputs, off=1.05)[1], real))
        capture = max(capture, worst(maps, reference, real))
        peaky = max(peaky, peakiness(reference, real))
    if not listened:
        try:
            with backend.from_scratch_backend(model):
                pass
        except ProbeError as error:
            refusal = str(error)
    report = checked(family, model)
    return Row(family, listened, capture, control, peaky, None if refusal else scratch, refusal, report)


def check(row: Row) -> None:
    """Refuse a row that would prove nothing, or whose error is no rounding."""
    name = row.family.name
    assert row.capture_error <= TOLERANCE, f"{name}: maps differ by {row.capture_error:.1e}"
    assert row.control_error >= 100 * TOLERANCE, f"{name}: 5% off in scale is {row.control_error:.1e}"
    if row.from_scratch_error is not None:
        assert row.from_scratch_error <= TOLERANCE, f"{name}: outputs differ by {row.from_scratch_error:.1e}"
    assert row.report is None or row.report.passed, f"{name}: {row.report and row.report.verdict}"
    assert row.peakiness < 0.5, f"{name}: the median row has {row.peakiness:.0%} of the largest entropy"


HEADINGS = (
    *("Model", "What is special", "Takes", "Capture", "Weights below", "From scratch", "Outputs below"),
    *("Check", "Errors below"),
)


def table(rows: list[Row]) -> str:
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def block(rows: list[Row]) -> str:
    return f"{BEGIN}\n{table(rows)}\n{END}"


def replaced(readme: str, new: str) -> str:
    """The README with the block between the two marks made anew."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md has no {BEGIN} and {END}")
    return before + new + after


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    hf.utils.logging.set_verbosity_error()
    for family in FAMILIES:
        row = measure(family)
        check(row)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    arguments = parser.parse_args()
    made = block(list(rows()))
    if arguments.write:
        README.write_text(replaced(README.read_text("utf-8"), made), "utf-8")
    else:
        print(made)


if __name__ == "__main__":
    main()
