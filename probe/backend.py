"""Take part in a model's own forward pass: see every attention as the backend sees it, or compute it.

transformers lets an attention function be registered under a name, with the function that makes its masks
beside it. The one registered here hands each call on to the backend the model runs on (sdpa, eager ...), so
that the model computes what it always computes, bit for bit, and shows the call to whoever listens; or it
answers the call itself, with ``attention``. Which of the two, and for whom, is kept apart for each thread.

This file and ``capture.py`` are the only ones that know how transformers calls attention.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attention import causal_mask, scaled_dot_product_attention
from probe.errors import ProbeError

_NAME = "attention_probe"
# Backends whose masks are tensors, so that a map can be computed beside them.
BACKENDS = ("sdpa", "eager")
# Rows of a map that are computed at once; a long text never needs T x T for more than the heads that are
# kept.
_QUERY_BLOCK = 1024


@dataclass(frozen=True)
class Call:
    """One attention of a forward pass, as transformers hands it to a backend.

    Attributes
    ----------
    module : the network's module that is calling.
    query : (B, H, Tq, head_dim), after rotary positions and normalisation, if the model has them.
    key, value : (B, H_kv, Tk, head_dim), after the cache. With fewer key heads than query heads, query head
        h reads key head h // (H / H_kv) (Ainslie et al. 2023, "GQA").
    mask : bool, True = may attend, broadcastable to (B, H, Tq, Tk); None for all.
    bias : added to the scaled scores, broadcastable likewise (T5's relative positions, say); None for none.
    scale : what the scores are multiplied with.
    softcap : scores are squashed to softcap * tanh(score / softcap) (Gemma 2); None for not at all.
    sinks : (H,), a score a head that takes part in the softmax and gives nothing (gpt-oss); None for none.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    bias: Tensor | None
    scale: float
    softcap: float | None
    sinks: Tensor | None

    @property
    def num_heads(self) -> int:
        return self.query.shape[1]

    def weights(self, heads: Sequence[int]) -> Tensor:
        """The attention weights of some heads, from scratch: (B, len(heads), Tq, Tk)."""
        chosen = list(heads)
        group = self.num_heads // self.key.shape[1]
        query = self.query[:, chosen]
        key = self.key[:, [head // group for head in chosen]]
        maps = query.new_empty(*query.shape[:-1], key.shape[-2])
        for start in range(0, query.shape[2], _QUERY_BLOCK):
            rows = slice(start, start + _QUERY_BLOCK)
            # Values of width 0: only the weights are wanted.
            maps[:, :, rows] = self._attend(query[:, :, rows], key, key[..., :0], chosen, rows).weights
        return maps

    def output(self) -> Tensor:
        """What a backend returns, from scratch: (B, Tq, H, value_dim)."""
        every = list(range(self.num_heads))
        group = self.num_heads // self.key.shape[1]
        key, value = (part.repeat_interleave(group, dim=1) for part in (self.key, self.value))
        output = self._attend(self.query, key, value, every, slice(None)).output
        return output.transpose(1, 2).contiguous()  # (B, H, Tq, value_dim) -> (B, Tq, H, value_dim)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, heads: list[int], rows: slice) -> Any:
        def part(tensor: Tensor | None) -> Tensor | None:
            """The heads and rows in use of something that broadcasts to (B, H, Tq, Tk)."""
            if tensor is None:
                return None
            tensor = tensor if tensor.shape[1] == 1 else tensor[:, heads]
            return tensor if tensor.shape[2] == 1 else tensor[:, :, rows]

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


@dataclass(frozen=True)
class _Session:
    backend: str
    see: Callable[[Call], None] | None


_session: ContextVar[_Session | None] = ContextVar("attention_probe_session", default=None)


@contextmanager
def undisturbed(hf: Any) -> Iterator[None]:
    """The network in evaluation mode, in full precision and not compiled; afterwards as it was before.

    TF32 and bfloat16 shortcuts of float32 products are switched off meanwhile: they are faster, not other
    mathematics, and would hide an error of 1e-3.
    """
    training = [module for module in hf.modules() if module.training]
    precision = torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        if training:
            hf.eval()
            stack.callback(_train, training)
        if precision != "highest":
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, precision)
        if any(getattr(module, "_compiled_call_impl", None) is not None for module in hf.modules()):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.autocast(hf.device.type, enabled=False))
        yield


def _train(modules: Collection[nn.Module]) -> None:
    for module in modules:
        module.training = True


@contextmanager
def eager(hf: Any) -> Iterator[None]:
    """The network on the eager backend, the only one that returns its maps; afterwards on its own again."""
    implementation = hf.config._attn_implementation
    if implementation == "eager":
        yield
        return
    hf.set_attn_implementation("eager")
    try:
        yield
    finally:
        hf.set_attn_implementation(implementation)


def heads_per_layer(hf: PreTrainedModel) -> tuple[int, ...]:
    """How many heads each attention of a forward pass has, found by running the network on two tokens.

    Raises
    ------
    ProbeError
        As ``listening``; if the network makes no attention call.
    """
    counts: list[int] = []
    with undisturbed(hf), torch.no_grad(), listening(hf, lambda call: counts.append(call.num_heads)):
        hf.base_model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=hf.device))
    if not counts:
        raise ProbeError(f"{type(hf).__name__} shows no attention: its maps can't be captured.")
    return tuple(counts)


@contextmanager
def listening(hf: PreTrainedModel, see: Callable[[Call], None]) -> Iterator[None]:
    """Run ``hf`` on its own backend and show every attention call to ``see``, in the order they are made.

    Raises
    ------
    ProbeError
        If the model doesn't compute its attention through transformers' interface, or on a backend without
        masks that can be read.
    """
    with _taking_part(hf, see):
        yield


@contextmanager
def from_scratch_backend(hf: PreTrainedModel) -> Iterator[None]:
    """Run ``hf`` with ``attention`` as its attention. Raises as ``listening``."""
    with _taking_part(hf, None):
        yield


@contextmanager
def _taking_part(hf: PreTrainedModel, see: Callable[[Call], None] | None) -> Iterator[None]:
    backend = hf.config._attn_implementation
    if not type(hf)._can_set_attn_implementation():
        raise ProbeError(
            f"{type(hf).__name__} computes its attention in code of its own, not through transformers' "
            "attention interface: its maps can't be captured."
        )
    if backend not in BACKENDS:
        raise ProbeError(
            f'The model runs on the "{backend}" backend, whose maps can\'t be captured: load it with '
            f'attn_implementation="{BACKENDS[0]}".'
        )
    token = _session.set(_Session(backend, see))
    try:
        hf.set_attn_implementation(_NAME)
        yield
    finally:
        hf.set_attn_implementation(backend)
        _session.reset(token)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The registered attention function."""
    session = _session.get()
    assert session is not None
    call = _call(session, module, query, key, value, attention_mask, kwargs)
    if session.see is None:
        return call.output(), None
    output, weights = _own_backend(session, module)(module, query, key, value, attention_mask, **kwargs)
    session.see(call)
    return output, weights


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The registered mask function: the mask of the backend that is listened to."""
    session = _session.get()
    assert session is not None
    mask: Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS[session.backend](*args, **kwargs)
    return mask


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, _mask)


_Function = Callable[..., tuple[Tensor, Tensor | None]]


def _own_backend(session: _Session, module: nn.Module) -> _Function:
    if session.backend == "eager":
        # Every modeling file has its own.
        own: _Function = vars(sys.modules[type(module).__module__])["eager_attention_forward"]
    else:
        own = ALL_ATTENTION_FUNCTIONS[session.backend]
    return own


def _call(
    session: _Session,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    kwargs: dict[str, Any],
) -> Call:
    scale = kwargs.get("scaling")
    mask, bias = _read_mask(session, module, query, key, attention_mask, kwargs)
    position_bias = kwargs.get("position_bias")
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    return Call(
        module=module,
        query=query,
        key=key,
        value=value,
        mask=mask,
        bias=bias,
        scale=1.0 / math.sqrt(query.shape[-1]) if scale is None else scale,
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
    )


def _read_mask(
    session: _Session,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor | None, Tensor | None]:
    """A backend's mask as (which keys may be attended to, what is added to the scores)."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if attention_mask is None:
        # Without a mask sdpa goes by a flag, given with the call or kept on the module; eager attends to
        # everything.
        flag = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if flag is None else flag
        if session.backend == "eager" or not causal or num_queries == 1:
            return None, None
        # sdpa aligns its triangle with the first key: keys beyond the queries are the empty end of a static
        # cache.
        mask = torch.zeros(num_queries, num_keys, dtype=torch.bool, device=query.device)
        mask[:, :num_queries] = causal_mask(num_queries, device=query.device)
        return mask[None, None], None
    mask = attention_mask[..., :num_keys]
    if mask.dtype == torch.bool:
        return mask, None
    # An additive mask forbids with -inf or with the lowest number of its dtype; anything else is a bias.
    allowed = mask > torch.finfo(mask.dtype).min / 2
    bias = mask.masked_fill(~allowed, 0.0)
    return allowed, bias if bias.any() else None
