"""From texts, or from what a processor makes of an image or a sound, to what a network is run on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from probe.errors import ProbeError
from probe.models.loading import Model
from probe.running.tokens import Encoding, Text, encode, visible

# Texts are run together until their padded maps would hold this many numbers (64 MB in float32).
_NUMBERS_AT_ONCE = 16 * 2**20


def encode_all(
    model: Model, text_or_texts: Text | Sequence[Text], *, truncate: bool = False
) -> list[Encoding]:
    """Tokenise one text or a list of them; an error names the text it is about."""
    if isinstance(text_or_texts, (str, tuple)):
        return [encode_for(model, text_or_texts, truncate=truncate)]
    texts = listed(text_or_texts)
    encodings = []
    for index, text in enumerate(texts):
        try:
            encodings.append(encode_for(model, text, truncate=truncate))
        except ProbeError as error:
            which = f"Text {index} of {len(texts)}" if len(texts) > 1 else ""
            raise (error.about(which) if which else error) from None
    return encodings


def listed(texts: Any) -> list[Any]:
    """Several texts as a list: a list, or what stands for one, a column of a table, an array, a generator.

    Raises
    ------
    ProbeError
        If it is nothing of the kind, or empty.
    """
    columns = isinstance(getattr(texts, "shape", None), tuple) and hasattr(texts, "tolist")
    if columns and len(texts.shape) == 1:
        texts = texts.tolist()
    if isinstance(texts, Iterator):
        texts = list(texts)
    if isinstance(texts, bytes | bytearray) or not isinstance(texts, Sequence) or not texts:
        given = (
            "an empty list" if isinstance(texts, list) and not texts else f"of type {type(texts).__name__}"
        )
        raise ProbeError(f"Give a text or a list of texts; this is {given}.")
    return list(texts)


def encode_for(model: Model, text: Text, *, truncate: bool = False) -> Encoding:
    """Tokenise a text, or a pair, for a model; see ``tokens.encode`` for the errors."""
    if isinstance(text, tuple) and not model.has_pairs:
        raise ProbeError(f"{model.name} takes one text, not a sentence pair: give a single string.")
    if not model.takes_text:
        raise ProbeError(
            f"{model.name} takes no text: give what its processor returns, "
            f'{{"{model.hf.main_input_name}": ...}}.'
        )
    embeddings: Any = model.hf.get_input_embeddings()
    with model.lock:  # a tokenizer keeps its truncation settings on itself
        return encode(model.tokenizer, text, model.max_tokens, len(embeddings.weight), truncate=truncate)


def encode_targets(
    model: Model,
    sources: Text | Sequence[Text],
    targets: str | Sequence[str] | None,
    *,
    truncate: bool = False,
) -> list[Encoding]:
    """What the decoder is given for each source; empty for a model without one.

    Raises
    ------
    ProbeError
        If the model has a decoder and there isn't one target for each source, or none and there is one.
    """
    if not model.has_target:
        if targets is not None:
            raise ProbeError(f"{model.name} has no decoder beside an encoder: it takes no target.")
        return []
    if targets is None:
        raise ProbeError(f"{model.name} has an encoder and a decoder.", "target")
    alone = isinstance(sources, (str, tuple))
    if alone != isinstance(targets, str):
        raise ProbeError("Give one target for each text.")
    several = [targets] if isinstance(targets, str) else listed(targets)
    if not alone and len(several) != len(listed(sources)):
        raise ProbeError("Give one target for each text.")
    return [_encode_target(model, target, truncate=truncate) for target in several]


def _encode_target(model: Model, text: str, *, truncate: bool) -> Encoding:
    """A text shifted by one: the start token, and then the text without the token that ends it.

    At each position the decoder is to produce the token of the next (Vaswani et al. 2017, section 3.1).
    """
    settings = (model.hf.config, getattr(model.hf, "generation_config", None))
    starts = [getattr(one, "decoder_start_token_id", None) for one in settings]
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise ProbeError(
            f"{model.name} doesn't say which token its decoder starts with: set decoder_start_token_id in "
            "its configuration."
        )
    decoder: Any = model.hf.get_decoder()
    size = len(decoder.get_input_embeddings().weight)
    limit = model.max_target_tokens

    def encoded(limit: int | None) -> Encoding:
        return encode(model.tokenizer, text, limit, size, truncate=truncate, as_target=True)

    with model.lock:
        given = encoded(limit)
        if limit is not None and len(given) == limit and not given.special[-1]:
            given = encoded(limit - 1)  # no token at the end makes room for the start token
    end = len(given) - 1 if given.special[-1] else len(given)
    return replace(
        given,
        ids=(start, *given.ids[:end]),
        tokens=(visible(str(model.tokenizer.convert_ids_to_tokens(start))), *given.tokens[:end]),
        spans=None if given.spans is None else ((0, 0), *given.spans[:end]),
        special=(True, *given.special[:end]),
        words=None if given.words is None else (None, *given.words[:end]),
        segments=(0, *given.segments[:end]),
    )


def cuts(source: Encoding, target: Encoding | None) -> str | None:
    """What was cut of a text, and of the decoder's text; None if nothing was."""
    of_target = target and target.truncated and f"The target: {target.truncated}"
    return " ".join(cut for cut in (source.truncated, of_target) if cut) or None


def batches(model: Model, encodings: Sequence[Encoding], heads: int) -> Iterator[list[int]]:
    """Indices of texts to run together: of similar length, as many as memory allows for so many heads."""
    order = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
    batch: list[int] = []
    for index in order:
        numbers = (len(batch) + 1) * heads * len(encodings[index]) ** 2
        if batch and (numbers > _NUMBERS_AT_ONCE or not model.pads_safely):
            yield batch
            batch = []
        batch.append(index)
    yield batch


def batch_inputs(
    model: Model, encodings: Sequence[Encoding], targets: Sequence[Encoding] = ()
) -> tuple[dict[str, Any], Tensor]:
    """Model inputs (B, T), and (B, S) for targets, padded on the right, and the mask of real tokens."""
    inputs, mask = _padded(model, encodings)
    if encodings[0].segment_ids_used:
        segments = [[*one.segments, *[0] * (mask.shape[1] - len(one))] for one in encodings]
        inputs["token_type_ids"] = torch.tensor(segments, device=model.device)
    if targets:
        inputs |= {f"decoder_{name}": value for name, value in _padded(model, targets)[0].items()}
    if "use_cache" in inspect.signature(model.hf.base_model.forward).parameters:
        inputs["use_cache"] = False
    return inputs, mask


def _padded(model: Model, encodings: Sequence[Encoding]) -> tuple[dict[str, Any], Tensor]:
    longest = max(map(len, encodings))
    # Padding is masked out, so any id of the vocabulary will do where a tokenizer has none for it (GPT-2).
    padding = model.tokenizer.pad_token_id if model.tokenizer.pad_token_id is not None else 0
    ids = [[*one.ids, *[padding] * (longest - len(one))] for one in encodings]
    lengths = torch.tensor([len(one) for one in encodings], device=model.device)
    mask = torch.arange(longest, device=model.device) < lengths[:, None]
    return {"input_ids": torch.tensor(ids, device=model.device), "attention_mask": mask.long()}, mask


def tensors_for(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a processor returned for one image or recording, on the model's device and in its dtype.

    Beside tensors there may be flags of the model's forward pass, such as interpolate_pos_encoding.

    Raises
    ------
    ProbeError
        If the model takes text, or lacks a tensor.
    """
    if model.takes_text:
        raise ProbeError(f"{model.name} takes text: give the text itself, not tensors.")
    for key in (model.hf.main_input_name, *(["decoder_input_ids"] if model.has_target else [])):
        value = inputs.get(key)
        if not isinstance(value, Tensor) or not value.dim() or len(value) != 1:
            raise ProbeError(f'Give {model.name} "{key}" as a tensor of one item: its first dimension is 1.')
    with unfit_explained(model):
        return {key: _on_device(model, value) for key, value in inputs.items()}


def _on_device(model: Model, value: Any) -> Any:
    """A tensor on the model's device and in its dtype; a flag or a number as it is."""
    if not isinstance(value, Tensor):
        return value
    return value.to(model.device, model.dtype if value.is_floating_point() else None)


def encode_tensors(
    model: Model, inputs: Mapping[str, Tensor], count: int
) -> tuple[Encoding, Encoding | None]:
    """Names for the ``count`` positions that a network makes of tensors, and for its target's tokens."""
    name = model.hf.main_input_name
    tokens = _positions(model, inputs[name], count)
    special = [token.startswith("[") for token in tokens]
    source = _without_text(f"{name} {tuple(inputs[name].shape)}", [0] * count, tokens, special)
    target = _target_of_ids(model, inputs["decoder_input_ids"][0].tolist()) if model.has_target else None
    return source, target


def _positions(model: Model, tensor: Tensor, count: int) -> tuple[str, ...]:
    """What the positions are called that a network has made of an image or a recording."""
    if model.hf.main_input_name != "pixel_values":
        return tuple(f"frame {index}" for index in range(count))
    grid = patch_grid(model, tensor, count)
    if grid is None:
        return tuple(f"position {index}" for index in range(count))
    rows, columns = grid
    patches = [f"row {row}, column {column}" for row in range(rows) for column in range(columns)]
    after = _positions_after(model)
    names = [f"[{index}]" if index else "[CLS]" for index in range(count - len(patches) - after)]
    return (*names, *patches, *(f"[object {index}]" for index in range(after)))


def patch_grid(model: Model, tensor: Tensor, count: int) -> tuple[int, int] | None:
    """How many rows and columns of patches a network makes of one picture; None if ``count`` isn't those.

    A class token and its like stand before the patches: one or two, and registers.
    """
    config = _vision_config(model)
    size = getattr(config, "patch_size", None)
    if model.hf.main_input_name != "pixel_values" or size is None:
        return None
    sides = size if isinstance(size, Sequence) else (size, size)
    rows, columns = (length // side for length, side in zip(tensor.shape[-2:], sides, strict=True))
    extra = count - rows * columns - _positions_after(model)
    return (rows, columns) if 0 <= extra <= 2 + (getattr(config, "num_register_tokens", 0) or 0) else None


def _vision_config(model: Model) -> Any:
    return getattr(model.hf.config, "encoder", model.hf.config)


def _positions_after(model: Model) -> int:
    """What stands after the patches: a place for each object to be found (YOLOS)."""
    return int(getattr(_vision_config(model), "num_detection_tokens", 0) or 0)


def _target_of_ids(model: Model, ids: list[int]) -> Encoding:
    """Token ids that were given as such."""
    tokenizer: Any = model.tokenizer
    if tokenizer is None:
        tokens, special = [f"token {index}" for index in ids], [False] * len(ids)
    else:
        tokens = [visible(tokenizer.decode([index])) for index in ids]
        special = [index in tokenizer.all_special_ids for index in ids]
    return _without_text(" ".join(tokens), ids, tokens, special)


def _without_text(text: str, ids: list[int], tokens: Sequence[str], special: list[bool]) -> Encoding:
    """Positions that cover no part of a text; ``text`` is what is said of them."""
    return Encoding(
        text=text,
        ids=tuple(ids),
        tokens=tuple(tokens),
        spans=None,
        special=tuple(special),
        words=None,
        segments=(0,) * len(ids),
        segment_ids_used=False,
    )


@contextmanager
def unfit_explained(model: Model) -> Iterator[None]:
    """A ProbeError in place of what a network says of tensors that it can't be run on."""
    try:
        yield
    except ProbeError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ProbeError(
            f"{model.name} can't be run on these tensors ({reason}): give what its processor returns."
        ) from None
