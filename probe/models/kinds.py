"""The kinds of attention: "self", or in a network with an encoder and a decoder one of three names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from probe.errors import ProbeError

Side = TypeVar("Side")


def which_kind(name: str, kinds: Iterable[str], kind: str | None) -> str:
    """The kind that is meant: by default the only one that the model called ``name`` has.

    Raises
    ------
    ProbeError
        If there are several and none was named.
    """
    if kind is not None:
        return kind
    first, *others = kinds
    if others:
        named = " or ".join(f'kind="{one}"' for one in (first, *others))
        raise ProbeError(f"{name} has several kinds of attention: say {named}.")
    return first


def sides(kind: str, source: Side, target: Side) -> tuple[Side, Side]:
    """Whose the queries and the keys of a kind of attention are: of the source or of the target.

    >>> sides("cross", "source", "target")
    ('target', 'source')
    """
    return {"decoder": (target, target), "cross": (target, source)}.get(kind, (source, source))
