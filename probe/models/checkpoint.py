"""A checkpoint's folder: which files it should have, and what is wrong where it doesn't hold a sound model.

transformers fills what is missing with random numbers, converts what it finds to the dtype asked for, and
says so in a log at most. Here each of these is one sentence that names the file and the field.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

from probe.errors import ProbeError
from probe.models.offload import held

# Names of fields as transformers knows them; a config.json may have others, see ``_field``.
_COUNTS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")
_SIZES = ("vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_size", "intermediate_size")
_ACTIVATIONS = ("hidden_act", "activation_function", "activation")
# Dtypes of weights, as safetensors calls them; the others hold codes that need a scale to be numbers.
_FLOATS = ("F64", "F32", "F16", "BF16")
_VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# What a file may hold, and the network leave out, without any change to attention: tensors that networks used
# to save and now make themselves (ids of positions, causal masks and what they put there, frequencies).
_MADE_ANEW = re.compile(r"(^|\.)(position_ids|token_type_ids|(attn|attention)\.bias|masked_bias|inv_freq)$")
# What stands behind attention in a network's base; its heads for words or labels are outside of that.
_BEHIND = ("pooler",)
# How the parts of a network are called that attention is computed in.
_OF_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
# How the names of the files end that a model and its tokenizer are read from.
_READ = (".json", ".txt", ".model", ".spm", ".safetensors")

Files = tuple[tuple[str, int, int, int, int], ...]
"""Name, device, inode, bytes and time of the last change (ns) of each file."""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, by name: one, or the shards that its index lists.

    Raises
    ------
    ProbeError
        If the index is damaged, or a shard is missing.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            damaged = not names or not all(map(_is_plain, names))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            damaged = True
        if damaged:
            raise ProbeError(f"{index} is damaged: copy or download the checkpoint again.")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ProbeError(
                f"The checkpoint in {folder} is incomplete: {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing. Copy or download it again."
            )
        return [folder / name for name in names]
    return []


def _is_plain(name: object) -> bool:
    """Whether a name is that of a file in the same folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def has_vocabulary(folder: Path) -> bool:
    """Whether there is a file that a tokenizer could have its vocabulary from."""
    return any((folder / name).is_file() for name in _VOCABULARIES)


def check_folder(folder: Path) -> None:
    """Say what is wrong with a folder before transformers looks at it."""
    if (folder / "adapter_config.json").is_file():
        raise ProbeError(
            f"{folder} holds an adapter (adapter_config.json), not a whole model: merge it with its base "
            "model (peft's merge_and_unload, then save_pretrained) and give that folder."
        )
    if not (folder / "config.json").is_file():
        raise ProbeError(f"{folder} holds no config.json: give the folder that save_pretrained wrote.")
    if not weight_files(folder):
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        if pickles:
            raise ProbeError(
                f"{folder} has its weights only as {pickles[0]}, a pickle, which can run code when opened. "
                "If you trust its source, convert it to safetensors: load it once in transformers and call "
                "save_pretrained, which writes model.safetensors."
            )
        raise ProbeError(f"{folder} holds no weights: model.safetensors is missing.")


def check_config(config: PreTrainedConfig, network_class: Any, path: Path) -> None:
    """Refuse a configuration that would load, or fail in words of the inside."""
    if getattr(config, "quantization_config", None) is not None:
        raise ProbeError(
            f"{path} has a quantization_config: its weights are quantised, and attention is checked in full "
            "precision. Give the checkpoint that it was made from, or load it in transformers, call "
            "dequantize and save_pretrained, and give that folder."
        )
    expected = getattr(network_class, "config_class", None)
    if expected is not None and not isinstance(config, expected):
        raise ProbeError(
            f"{path} names {network_class.__name__} under architectures, which is no network of its "
            f'model_type, "{config.model_type}": correct the one or the other.'
        )
    for name in _COUNTS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value < 1:
            raise ProbeError(f"{path} says {_field(config, name)} = {value}: it must be at least 1.")


def blamed(config: PreTrainedConfig, path: Path) -> str | None:
    """What in a configuration keeps a network from being built, in a sentence; None if nothing is known."""
    for name in _ACTIVATIONS:
        value = getattr(config, name, None)
        if isinstance(value, str) and value not in ACT2FN:
            return f'{path} says {_field(config, name)} = "{value}", which is no activation of transformers.'
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    if isinstance(width, int) and isinstance(heads, int) and width % heads:
        return (
            f"{path} says {_field(config, 'num_attention_heads')} = {heads}, which doesn't divide "
            f"{_field(config, 'hidden_size')} = {width}."
        )
    entries, padding = getattr(config, "vocab_size", None), getattr(config, "pad_token_id", None)
    if isinstance(entries, int) and isinstance(padding, int) and padding >= entries:
        return f"{path} says pad_token_id = {padding}, which is outside vocab_size = {entries}."
    return None


def check_complete(hf: PreTrainedModel, info: Mapping[str, Any], folder: Path) -> None:
    """Refuse a checkpoint without the weights that attention depends on; they would be random numbers."""
    _check_layers(hf, info, folder)
    prefix = hf.base_model_prefix + "." if hf.base_model is not hf else ""
    needed = [
        key
        for key in sorted(info["missing_keys"])
        if key.startswith(prefix) and not key.startswith(f"{prefix}pooler.")
    ]
    # (key, shape in the file, shape in the network), those first whose size is a field of the configuration
    mismatched = sorted(
        info.get("mismatched_keys", ()), key=lambda one: (_size_field(hf.config, *one[1:]) is None, one[0])
    )
    if not needed and not mismatched:
        return
    if getattr(hf.config, "pruned_heads", None):
        raise ProbeError(
            f"Heads of the checkpoint in {folder} were pruned (pruned_heads in its config.json). Such "
            "networks are not supported: take the checkpoint that it was made from."
        )
    what = (
        f"lacks {needed[0]}" if needed else f"has {mismatched[0][0]} in another shape than config.json says"
    )
    others = len(needed or mismatched) - 1
    more = f" and {others} more" if others else ""
    reason = "" if needed else f" ({_sizes(hf.config, *mismatched[0][1:])})"
    raise ProbeError(
        f"The checkpoint in {folder} {what}{reason}{more}: without all weights its attention would be partly "
        "random. Copy or download it again."
    )


def check_positions(hf: PreTrainedModel, where: str) -> None:
    """Refuse a configuration that asks for positions which the network doesn't compute.

    transformers 4 had relative positions for BERT and its like; transformers 5 reads over the field.
    """
    asked = getattr(hf.config, "position_embedding_type", None)
    if not isinstance(asked, str) or asked == "absolute":
        return
    turns = any(name.endswith("inv_freq") for name, _ in hf.named_buffers())
    code = {sys.modules[type(module).__module__] for module in hf.modules()}
    if not (turns and asked in ("rope", "rotary")) and not any(
        "position_embedding_type" in inspect.getsource(file)
        for file in code
        if file.__name__.startswith("transformers.")
    ):
        raise ProbeError(
            f'{where} says position_embedding_type = "{asked}", which {type(hf).__name__} of transformers '
            f"{transformers.__version__} doesn't compute: its attention would be another than it was trained "
            "with. It needs the code that it was trained with."
        )


def leftover(hf: PreTrainedModel, info: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """The weights of the file that the network leaves out, of those that could matter to its attention.

    Raises
    ------
    ProbeError
        If some are of an attention.
    """
    base, prefix = hf.base_model, f"{hf.base_model_prefix}."
    parts = {name for name, _ in (*base.named_children(), *base.named_parameters(recurse=False))}
    turns = any(name.endswith("inv_freq") for name, _ in hf.named_buffers())

    def matters(key: str) -> bool:
        first = key.removeprefix(prefix).split(".")[0]
        if first in _BEHIND or not (key.startswith(prefix) or first in parts):
            return False
        return not _MADE_ANEW.search(key) or (key.endswith("inv_freq") and not turns)

    keys = tuple(key for key in sorted(info["unexpected_keys"]) if matters(key))
    of_attention = [key for key in keys if any(map(_OF_ATTENTION.search, key.split(".")[:-1]))]
    if of_attention:
        raise ProbeError(
            f"The checkpoint in {folder} holds {_first_of(of_attention)}, which {type(hf).__name__} of "
            f"transformers {transformers.__version__} leaves out: its attention would be another than it was "
            "trained with. Correct config.json if that says that there is no such weight; else it needs the "
            "code that it was trained with."
        )
    return keys


def leftover_warning(name: str, keys: Sequence[str]) -> str:
    """What there is to say of weights that were left out."""
    return (
        f"{name} leaves out weights of its file, {_first_of(keys)}: what its attention is given may be other "
        "than what it was trained with."
    )


def _first_of(keys: Sequence[str]) -> str:
    return keys[0] + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")


def _check_layers(hf: PreTrainedModel, info: Mapping[str, Any], folder: Path) -> None:
    """Where the weights are of more or fewer layers than the configuration says, that is what is wrong."""
    config = hf.config.get_text_config()
    said = getattr(config, "num_hidden_layers", None)
    if not isinstance(said, int) or hf.config.is_encoder_decoder:
        return
    missing = set(info["missing_keys"])
    whole = {layer for key in hf.state_dict() if key not in missing for layer in _layers(key)}
    lost = {layer for key in missing for layer in _layers(key)} - whole
    extra = {layer for key in info["unexpected_keys"] for layer in _layers(key) if layer >= said}
    there = max(extra) + 1 if extra else min(lost, default=said)
    if there != said and (extra or lost == set(range(there, said))):
        raise ProbeError(
            f"{folder / 'config.json'} says {_field(config, 'num_hidden_layers')} = {said}, and the weights "
            f"beside it are of {there} layers: put the right number there, or copy the checkpoint again."
        )


def _layers(key: str) -> list[int]:
    """The layer that a weight is of: the first number in its name."""
    found = re.search(r"\.(\d+)\.", f".{key}")
    return [int(found[1])] if found else []


def _sizes(config: PreTrainedConfig, stored: Any, expected: Any) -> str:
    """ "4096 x 24 in the file, 3 x 24 by vocab_size = 3"."""
    name = _size_field(config, stored, expected)
    by = "config.json" if name is None else f"{_field(config, name)} = {getattr(config, name)}"
    return f"{' x '.join(map(str, stored))} in the file, {' x '.join(map(str, expected))} by {by}"


def _size_field(config: PreTrainedConfig, stored: Any, expected: Any) -> str | None:
    """The field that says a size in which two shapes differ, if there is one."""
    if len(stored) != len(expected):
        return None
    wrong = [there for here, there in zip(stored, expected, strict=True) if here != there]
    return next((name for name in _SIZES if getattr(config, name, None) in wrong), None)


def _field(config: PreTrainedConfig, name: str) -> str:
    """What a field is called in the file: "n_layer" in a GPT-2's."""
    return str(config.attribute_map.get(name, name))


def check_dtypes(hf: PreTrainedModel, folder: Path) -> None:
    """Refuse weights stored as integers or in 8 bits: without their scales they are not the model's."""
    names = {name for name, _ in hf.named_parameters()}
    prefix = f"{hf.base_model_prefix}."
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            dtypes = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
        for key, stored in dtypes.items():
            if stored not in _FLOATS and {key, prefix + key, key.removeprefix(prefix)} & names:
                raise ProbeError(
                    f"{path} holds {key} as {stored}, a quantised or whole-number dtype, whose numbers are "
                    "not the model's weights. Give the checkpoint in float32, float16 or bfloat16 that it "
                    "was made from."
                )


def value_warnings(hf: PreTrainedModel, name: str) -> Iterator[str]:
    """What there is to say of weights that are no numbers, and of a network whose matrices are all zero."""
    paths = {key: key.rpartition(".") for key, _ in hf.named_parameters()}
    parameters = {key: held(hf.get_submodule(path), last) for key, (path, _, last) in paths.items()}
    broken = [key for key, weight in parameters.items() if not bool(torch.isfinite(weight).all())]
    if broken:
        yield (
            f"{name} in {hf.dtype} has weights that are NaN or infinite, in {_first_of(broken)}: what is "
            "computed with them is NaN too. The checkpoint is damaged or its training diverged, or the dtype "
            "is too small for it."
        )
    if not any(bool(weight.any()) for weight in parameters.values() if weight.ndim > 1):
        yield (
            f"All weight matrices of {name} are zero: every head then attends uniformly, and agreement says "
            "nothing. The checkpoint is empty."
        )


def fingerprint(hf: PreTrainedModel) -> int:
    """What tells a network from one with other weights or modules, or told to compute otherwise."""
    modules = [f"{name} {type(module)}" for name, module in hf.named_modules()]
    config = {**hf.config.to_dict(), "_name_or_path": None}  # the same from another folder
    told = [repr(config), str(hf.config._attn_implementation), *modules]
    found = zlib.crc32("\n".join(told).encode())
    for name, tensor in (*hf.named_parameters(), *hf.named_buffers()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode(), found)
        if not tensor.is_meta and tensor.numel():
            numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            found = zlib.crc32(numbers.numpy().data, found)
    return found


def files(folder: Path) -> Files:
    """The state of every file in a folder that a model could be read from; empty for no such folder."""
    found = []
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.suffix in _READ:
                with suppress(OSError):
                    status = path.stat()
                    place = status.st_dev, status.st_ino
                    found.append((path.name, *place, status.st_size, status.st_mtime_ns))
    return tuple(found)


def check_unchanged(folder: Path, before: Files) -> None:
    """Refuse a folder that somebody wrote to since its files were in this state.

    Files that came meanwhile count where weights are looked for in them.
    """
    names = {name for name, *_ in before}
    changed = {name for name, *_ in set(before) ^ set(files(folder))}
    wrong = sorted(name for name in changed if name in names or name.startswith("model.safetensors"))
    if wrong:
        raise ProbeError(
            f"{folder / wrong[0]} was changed while the model was loaded, which may have become a mixture of "
            "two: load it again when nobody writes there."
        )


def sha256(folder: Path) -> str:
    """SHA-256 of a checkpoint's weights, in hexadecimal.

    For weights in several files, of the lines ``<sha256>  <file name>`` in the order of their names, as the
    command sha256sum prints them.
    """
    digests = {}
    for path in weight_files(folder):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        digests[path.name] = digest.hexdigest()
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{one}  {name}\n" for name, one in digests.items())
    return hashlib.sha256(lines.encode()).hexdigest()
