"""Take part in a model's own forward pass: see every attention as the backend sees it, or compute it.

transformers lets an attention function be registered under a name, with the function that makes its masks
beside it. Those registered here hand each call on to the backend the model runs on (sdpa or eager), so that
the model computes what it always computes, bit for bit, and show it to a listener, which may answer in the
backend's place. The listener is kept apart for each thread: a model that another thread runs meanwhile runs
as ever.

This file, ``capture.py`` and ``recording.py`` are the only ones that know how transformers calls attention.
"""

from __future__ import annotations

import copy
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attention import AttentionSteps, scaled_dot_product_attention
from probe.errors import ProbeError
from probe.models.computing import computing
from probe.models.offload import check_numbers, device_of
from probe.models.pauses import locked, pause, watched

# Backends whose masks are tensors, so that a map can be computed beside them.
BACKENDS = ("sdpa", "eager")
# What is registered is called after the backend behind it, so that a call finds its way by the name alone.
_PREFIX = "attention_probe_"
# Weights that are computed at once, 1 MB in float32: few enough to stay in a processor's cache from one step
# to the next, and a long text never needs more than the maps that are kept.
AT_ONCE = 2**18
# Held during every run, because some of what ``running`` sets belongs to the whole process.
LOCK = threading.RLock()


@dataclass(frozen=True, eq=False)
class Call:
    """One attention of a forward pass, as transformers hands it to a backend.

    Attributes
    ----------
    module : the network's module that is calling.
    query : (B, H, Tq, head_dim), after rotary positions and normalisation, if the model has them.
    key, value : (B, H_kv, Tk, head_dim), after the cache. With fewer key heads than query heads, query head
        h reads key head h // (H / H_kv) (Ainslie et al. 2023, "GQA").
    backend, attention_mask, options : the backend's name, its mask and the rest of its arguments.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    backend: str
    attention_mask: Tensor | None
    options: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Tq, Tk), of all its maps."""
        return (*self.query.shape[:3], self.key.shape[2])

    @property
    def scale(self) -> float:
        """What the scores are multiplied with."""
        scale: float | None = self.options.get("scaling")
        return 1.0 / math.sqrt(self.query.shape[-1]) if scale is None else scale

    @property
    def softcap(self) -> float | None:
        """Scores are squashed to softcap * tanh(score / softcap) (Gemma 2); None for not at all."""
        return self.options.get("softcap")

    @property
    def sinks(self) -> Tensor | None:
        """(H,), a score a head that takes part in the softmax and gives nothing (gpt-oss); None for none."""
        return self.options.get("s_aux")

    @property
    def mask(self) -> Tensor | None:
        """bool, True = may attend, broadcastable to (B, H, Tq, Tk); None for all."""
        return self._mask_and_bias[0]

    @property
    def bias(self) -> Tensor | None:
        """Added to the scaled scores, broadcastable likewise (T5's relative positions, say), or None."""
        return self._mask_and_bias[1]

    @cached_property
    def _mask_and_bias(self) -> tuple[Tensor | None, Tensor | None]:
        mask, bias = self._read_mask()
        position_bias: Tensor | None = self.options.get("position_bias")
        if position_bias is None or bias is None:
            return mask, bias if position_bias is None else position_bias
        return mask, bias + position_bias

    @property
    def _triangular(self) -> bool:
        """Whether query i sees the keys up to i, without a mask that says so.

        Without a mask sdpa goes by a flag, given with the call or kept on the module; eager attends to
        everything. sdpa aligns its triangle with the first key, also when there are more keys than queries:
        those beyond are the empty end of a static cache.
        """
        flag = self.options.get("is_causal")
        causal = getattr(self.module, "is_causal", True) if flag is None else flag
        return bool(
            self.attention_mask is None and self.backend != "eager" and causal and self.query.shape[2] > 1
        )

    def _read_mask(self) -> tuple[Tensor | None, Tensor | None]:
        """The backend's mask as (which keys may be attended to, what is added to the scores)."""
        if self._triangular:
            shape = (1, 1, self.query.shape[2], self.key.shape[2])
            return torch.ones(shape, dtype=torch.bool, device=self.query.device).tril(), None
        if self.attention_mask is None:
            return None, None
        mask = self.attention_mask[..., : self.key.shape[2]]
        if mask.dtype == torch.bool:
            return mask, None
        # An additive mask forbids with -inf or with the lowest number of its dtype; anything else is a bias.
        allowed = mask > torch.finfo(mask.dtype).min / 2
        bias = mask.masked_fill(~allowed, 0.0)
        return allowed, bias if bias.any() else None

    def weights(self, heads: Sequence[int]) -> Tensor:
        """The attention weights of some heads, from scratch: (B, len(heads), Tq, Tk)."""
        chosen = list(heads)
        group = self.shape[1] // self.key.shape[1]
        query = _heads(self.query, chosen)
        key = _heads(self.key, [head // group for head in chosen])
        num_keys = key.shape[2]
        maps = query.new_empty(*query.shape[:3], num_keys)
        block = max(1, AT_ONCE // (len(query) * len(chosen) * num_keys))
        for start in range(0, query.shape[2], block):
            rows = slice(start, start + block)
            # Later keys than the block's last query are not worth a look where each sees its past alone.
            seen = slice(0, min(rows.stop, num_keys) if self._triangular else num_keys)
            # Values of width 0: only the weights are wanted.
            part = self._attend(query[:, :, rows], key[:, :, seen], key[:, :, seen, :0], chosen, rows, seen)
            maps[:, :, rows, seen] = part.weights
            maps[:, :, rows, seen.stop :] = 0.0
        return maps

    def steps(self) -> AttentionSteps:
        """All heads from scratch: weights (B, H, Tq, Tk) and output (B, H, Tq, value_dim)."""
        every = list(range(self.shape[1]))
        group = self.shape[1] // self.key.shape[1]
        key, value = (part.repeat_interleave(group, dim=1) for part in (self.key, self.value))
        return self._attend(self.query, key, value, every, slice(None), slice(None))

    def output(self) -> Tensor:
        """What a backend returns, from scratch: (B, Tq, H, value_dim)."""
        return self.steps().output.transpose(1, 2).contiguous()  # (B, H, Tq, value_dim) before

    def own(self) -> tuple[Tensor, Tensor | None]:
        """What the backend itself computes: (B, Tq, H, value_dim), and on eager the weights."""
        return _own(self.backend, self.module)(
            self.module, self.query, self.key, self.value, self.attention_mask, **self.options
        )

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, heads: list[int], rows: slice, columns: slice
    ) -> AttentionSteps:
        def part(tensor: Tensor | None) -> Tensor | None:
            """The heads, rows and columns in use of something that broadcasts to (B, H, Tq, Tk)."""
            if tensor is None:
                return None
            tensor = tensor if tensor.shape[1] == 1 else _heads(tensor, heads)
            tensor = tensor if tensor.shape[2] == 1 else tensor[:, :, rows]
            return tensor if tensor.shape[3] == 1 else tensor[:, :, :, columns]

        return scaled_dot_product_attention(
            query,
            key,
            value,
            mask=part(self.mask),
            scale=self.scale,
            bias=part(self.bias),
            softcap=self.softcap,
            sinks=None if self.sinks is None else self.sinks[heads],
            keep_steps=False,
        )


def _heads(tensor: Tensor, heads: list[int]) -> Tensor:
    """Some heads of (B, H, ...), at least one, counted from 0: neighbours as a view, others as a copy."""
    first, last = heads[0], heads[-1]
    return tensor[:, first : last + 1] if heads == list(range(first, last + 1)) else tensor[:, heads]


Listener = Callable[[Call], Tensor | None]
_Function = Callable[..., tuple[Tensor, Tensor | None]]
_listener: ContextVar[Listener | None] = ContextVar("attention_probe_listener", default=None)


@contextmanager
def running(hf: Any, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Every run of a network goes through this: one after the other, computed precisely, without gradients.

    The network is in evaluation mode and not compiled, because compiled code would be run without what
    listens to it; afterwards it is as it was before.

    Raises
    ------
    ProbeError
        If the device's memory doesn't suffice, for the run or for what is done with it in the block; if some
        of its weights have no numbers.
    """
    check_numbers(hf)
    pause()
    with ExitStack() as stack:
        stack.enter_context(computing(device_of(hf), tuple(inputs[hf.main_input_name].shape)))
        stack.enter_context(LOCK)
        stack.enter_context(locked())
        if watched():
            for layer in _layers(hf):
                hook = layer.register_forward_pre_hook(lambda module, args: pause())
                stack.callback(hook.remove)
        for module in hf.modules():
            if module.training:
                stack.callback(setattr, module, "training", True)
        hf.eval()
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _layers(hf: nn.Module) -> list[nn.Module]:
    """The modules that a network calls one after the other."""
    return [one for part in hf.modules() if isinstance(part, nn.ModuleList) for one in part]


@contextmanager
def eager(hf: PreTrainedModel) -> Iterator[None]:
    """The network on the eager backend, the only one that returns its maps; afterwards on its own again."""
    with _backends(hf, lambda own: "eager"):
        yield


@contextmanager
def listening(hf: PreTrainedModel, listener: Listener) -> Iterator[None]:
    """Run ``hf`` on its own backend and show every attention call to ``listener``, in the order of the calls.

    What the listener returns, (B, Tq, H, value_dim), is the call's output; None leaves it to the backend.

    Raises
    ------
    ProbeError
        If the model doesn't compute its attention through transformers' interface, or on a backend without
        masks that can be read.
    """
    if not uses_interface(hf):
        raise ProbeError(
            f"{type(hf).__name__} computes its attention in code of its own, not through transformers' "
            "attention interface: nothing can take part in it."
        )
    token = _listener.set(listener)
    try:
        with _backends(hf, _registered):
            yield
    finally:
        _listener.reset(token)


@contextmanager
def from_scratch_backend(hf: PreTrainedModel) -> Iterator[None]:
    """Run ``hf`` with ``attention`` as its attention. Raises as ``listening``."""
    with listening(hf, Call.output):
        yield


@contextmanager
def _backends(hf: PreTrainedModel, renamed: Callable[[str], str]) -> Iterator[None]:
    """Rename the backends that the network's configurations give; afterwards they are as before.

    A network in parts has a configuration for each, with a backend of its own perhaps.
    """
    own = [(config, config._attn_implementation) for config in _configurations(hf)]
    with LOCK:
        try:
            for config, backend in own:
                config._attn_implementation = renamed(backend)
            yield
        finally:
            # From the outside in, because a configuration passes its backend on to those it holds.
            for config, backend in own:
                config._attn_implementation = backend


def _configurations(hf: PreTrainedModel) -> list[PretrainedConfig]:
    """Every configuration that a part of the network goes by, the network's own first."""
    found: dict[int, PretrainedConfig] = {}
    pending: list[Any] = [getattr(module, "config", None) for module in hf.modules()]
    while pending:
        config = pending.pop(0)
        if isinstance(config, PretrainedConfig) and id(config) not in found:
            found[id(config)] = config
            pending += [getattr(config, name) for name in config.sub_configs]
    return [config for config in found.values() if config._attn_implementation is not None]


def _registered(backend: str) -> str:
    if backend.removeprefix(_PREFIX) not in BACKENDS:
        raise ProbeError(
            f'The model runs on the "{backend}" backend, whose maps can\'t be captured: load it with '
            f'attn_implementation="{BACKENDS[0]}".'
        )
    return _PREFIX + backend.removeprefix(_PREFIX)


def _attention(
    backend: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function registered for a backend."""
    call = Call(module, query, key, value, backend, attention_mask, options)
    listener = _listener.get()
    output = None if listener is None else listener(call)
    return call.own() if output is None else (output, None)


def _own(backend: str, module: nn.Module) -> _Function:
    """The backend's own attention function."""
    if backend != "eager":
        function: _Function = ALL_ATTENTION_FUNCTIONS[backend]
        return function
    # Every modeling file has its own, and some have two: take the one that the module's code names.
    forward: Any = inspect.unwrap(type(module).forward)
    for name in forward.__code__.co_names:
        if name.endswith("eager_attention_forward"):
            own: _Function = forward.__globals__[name]
            return own
    raise ProbeError(
        f"The eager attention of {type(module).__name__} can't be found: load the model with "
        f'attn_implementation="{BACKENDS[0]}".'
    )


for _backend in BACKENDS:
    AttentionInterface.register(_PREFIX + _backend, partial(_attention, _backend))
    AttentionMaskInterface.register(_PREFIX + _backend, ALL_MASK_ATTENTION_FUNCTIONS[_backend])


@dataclass(frozen=True)
class Attention:
    """One attention of a network's forward pass.

    Attributes
    ----------
    kind : "self"; in a network with an encoder and a decoder "encoder", "decoder" or "cross".
    layer : counted from 0 among those of its kind, in the order they are computed.
    num_heads : how many heads it has.
    """

    kind: str
    layer: int
    num_heads: int


_INPUTS = ("input_ids", "pixel_values", "input_features")


def check_kind(network_class: Any, config: PretrainedConfig) -> None:
    """ProbeError if it can be told from its class that a network's attention won't be seen."""
    if not issubclass(network_class, PreTrainedModel):
        return
    name = network_class.main_input_name
    if name not in _INPUTS:
        raise ProbeError(f'{network_class.__name__} takes "{name}", which is not supported.')
    plain = name == "input_ids" and not config.is_encoder_decoder
    if not plain and not network_class._can_set_attn_implementation():
        raise ProbeError(
            f"{network_class.__name__} computes its attention in code of its own, not through transformers' "
            "attention interface, and isn't a network of one stack that takes text: it is not supported."
        )


# Positions in the run that finds a network's attentions: different, so that they tell which one it is.
_SOURCE, _TARGET = 3, 2


def attentions(hf: PreTrainedModel) -> tuple[Attention, ...]:
    """The attentions of a network, in the order it computes them, found by running it on very little.

    Raises
    ------
    ProbeError
        If the network can't be run on a text, an image or a recording alone; if it makes no attention call
        that can be seen; if it attends to something else than positions of the input (windows, say); if it
        shows another number of attention layers than its configuration says there are.
    """
    check_kind(type(hf), hf.config)
    try:
        inputs = _little_input(hf)
    except AttributeError as error:
        raise ProbeError(
            f"The configuration of {type(hf).__name__} doesn't say how large its input is ({error}): it is "
            "not supported."
        ) from None
    shapes: list[tuple[int, ...]] = []  # (B, H, Tq, Tk)
    try:
        with running(hf, inputs):
            if uses_interface(hf):
                with listening(hf, lambda call: shapes.append(call.shape)):
                    hf.base_model(**inputs)
            else:
                shapes += [tuple(weights.shape) for weights in own_maps(hf, inputs)]
    except ProbeError:
        raise
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ProbeError(
            f"{type(hf).__name__} can't be run on {' and '.join(inputs)} alone ({reason}): give the part of "
            "it that can."
        ) from None
    if not shapes:
        raise ProbeError(f"{type(hf).__name__} shows no attention: its maps can't be captured.")

    found: list[Attention] = []
    for batch, heads, queries, keys in shapes:
        if "decoder_input_ids" not in inputs:
            kind, regular = "self", queries == keys and ("input_ids" not in inputs or keys == _SOURCE)
        elif queries == keys:
            kind, regular = "decoder" if keys == _TARGET else "encoder", True
        else:
            kind, regular = "cross", queries == _TARGET
        if batch != 1 or not regular:
            raise ProbeError(
                f"{type(hf).__name__} computes attention over something else than the positions of its input "
                "(windows or pools of them), which is not supported."
            )
        layer = sum(attention.kind == kind for attention in found)
        found.append(Attention(kind, layer, heads))
    _check_every_layer(hf, found)
    return tuple(found)


def _check_every_layer(hf: PreTrainedModel, found: Sequence[Attention]) -> None:
    """Refuse a network that shows the attention of a part of its layers.

    The others have none, or code of their own for it (LongT5's encoder), and would be missing without a word.
    """
    one_stack = all(attention.kind == "self" for attention in found)
    for kind in ("self",) if one_stack else ("encoder", "decoder", "cross"):
        shown = sum(attention.kind == kind for attention in found)
        said = _layers_said(hf.base_model.config, kind)
        what = f"layers of {kind} attention"
        if not said:
            raise ProbeError(
                f"The configuration of {type(hf).__name__} doesn't say how many {what} there are, so that "
                "nobody would notice if some were missing: it is not supported."
            )
        if shown not in said:
            raise ProbeError(
                f"By its configuration {type(hf).__name__} has {max(said)} {what}, and {shown} can be seen: "
                "a layer without attention, or with code of its own for it, is not supported."
            )


def _layers_said(config: Any, kind: str) -> set[int]:
    """How many layers a configuration says that a kind of attention has.

    A single stack of a network that could have two is an encoder or a decoder, and may have either's number.
    """
    names = {"num_hidden_layers", "decoder_layers", "num_decoder_layers"}
    if kind == "self":
        part = config.get_text_config()
    else:
        part = getattr(config, "encoder" if kind == "encoder" else "decoder", None)
        of_encoder = kind == "encoder" or isinstance(part, PretrainedConfig)
        names = {"num_hidden_layers"} if of_encoder else names - {"num_hidden_layers"}
    part = part if isinstance(part, PretrainedConfig) else config
    counts = [getattr(part, name, None) for name in names]
    return {count for count in counts if isinstance(count, int)}


def _little_input(hf: PreTrainedModel) -> dict[str, Tensor]:
    """The smallest input that a network can be run on."""
    name: str = hf.main_input_name
    encoder = getattr(hf.config, "encoder", None)
    config: Any = encoder if isinstance(encoder, PretrainedConfig) else hf.config
    dtype, device = hf.dtype, device_of(hf)
    shape: tuple[int, ...]
    if name == "input_ids":
        shape, dtype = (1, _SOURCE), torch.long
    elif name == "pixel_values":
        size = config.image_size
        shape = (1, config.num_channels, *((size, size) if isinstance(size, int) else size))
    else:  # spectra, of which Whisper's encoder makes half as many positions
        shape = (1, config.num_mel_bins, 2 * config.max_source_positions)
    inputs = {name: torch.zeros(shape, dtype=dtype, device=device)}
    # An encoder alone may have the configuration of a network of two stacks.
    takes = inspect.signature(hf.base_model.forward).parameters
    if hf.config.is_encoder_decoder and "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = torch.zeros(1, _TARGET, dtype=torch.long, device=device)
    return inputs


def uses_interface(hf: PreTrainedModel) -> bool:
    """Whether all of the network computes its attention where ``listening`` hears it."""
    parts = {type(module) for module in hf.modules() if isinstance(module, PreTrainedModel)}
    return all(part._can_set_attn_implementation() for part in parts)


def own_maps(hf: PreTrainedModel, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
    """All maps of a network with attention code of its own, as it returns them: (B, H, T, T) a layer.

    It is a copy that runs, with the same weights: transformers leaves hooks in a network whose maps have been
    asked for, and only the eager backend has them.

    Raises
    ------
    ProbeError
        If the network doesn't return a (B, H, T, T) map for every layer.
    """
    same = {id(tensor): tensor for tensor in (*hf.parameters(), *hf.buffers())}
    twin: Any = copy.deepcopy(hf.base_model, same)
    for config in _configurations(twin):
        config._attn_implementation = "eager"
    maps = getattr(twin(**inputs, output_attentions=True), "attentions", None)
    batch, size = inputs["input_ids"].shape if "input_ids" in inputs else (0, 0)
    if not maps or not all(
        isinstance(weights, Tensor)
        and weights.dim() == 4
        and (weights.shape[0], *weights.shape[2:]) == (batch, size, size)
        for weights in maps
    ):
        raise ProbeError(
            f"{type(hf).__name__} computes its attention in code of its own, and doesn't return a map of all "
            "queries and keys for each layer: it is not supported."
        )
    return tuple(maps)
