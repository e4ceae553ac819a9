"""How two sets of numbers in named blocks differ, and their digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from probe.display.data import Numbers

_TEXT = re.compile(r"(.*) \(text [0-9a-f]{16}\)", re.DOTALL)


def digest(manifest: Mapping[str, Any], numbers: Numbers) -> str:
    """SHA-256 of a manifest and its numbers: it changes with any of them, and with nothing else."""
    total = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(numbers):
        block = np.ascontiguousarray(numbers[name], dtype="<f8")
        block = np.where(np.isnan(block), np.nan, block)  # one NaN of the many that there are
        total.update(f"\n{name} {block.shape}\n".encode(errors="surrogatepass"))
        total.update(block.tobytes())
    return total.hexdigest()


def differences(stored: Numbers, again: Numbers, agreement: float) -> tuple[float, list[str]]:
    """The largest difference of two sets of numbers, and a sentence for each block that doesn't hold.

    A difference is measured as a share of the largest number of its block, or of 1 if that is less. NaN
    equals NaN and nothing else.
    """
    worst, reasons = 0.0, _other_texts(stored, again)
    for name in [*again, *(name for name in stored if name not in again)]:
        if _TEXT.fullmatch(name):
            continue
        if name not in stored or name not in again or stored[name].shape != again[name].shape:
            reasons.append(f"{name}: {_shape(stored, name)} in the file, {_shape(again, name)} made again.")
            continue
        ours, theirs = again[name].astype(np.float64), stored[name].astype(np.float64)
        if not ours.size:
            continue
        finite = np.abs(ours[np.isfinite(ours)])
        size = max(1.0, float(finite.max(initial=0.0)))
        with np.errstate(invalid="ignore"):
            share = np.abs(ours - theirs) / size
        share = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, share)
        share = np.where(np.isnan(share), np.inf, share)
        place = np.unravel_index(int(share.argmax()), share.shape)
        found = float(share[place])
        worst = max(worst, found)
        if found > agreement:
            where = f" at {', '.join(map(str, map(int, place)))}" if place else ""
            reasons.append(f"{name}{where}: {theirs[place]:.9g} in the file, {ours[place]:.9g} made again.")
    return worst, reasons


def _other_texts(stored: Numbers, again: Numbers) -> list[str]:
    """A sentence for each text block that the two don't have alike."""
    changed = (found[1] for name in [*again, *stored] if (found := _TEXT.fullmatch(name)))
    alike = {found[1] for name in again if name in stored and (found := _TEXT.fullmatch(name))}
    titles = [title for title in dict.fromkeys(changed) if title not in alike]
    return [f"{title}: the text in the file is not the one made again." for title in titles]


def _shape(numbers: Numbers, name: str) -> str:
    if name not in numbers:
        return "nothing"
    return " x ".join(map(str, numbers[name].shape)) or "one number"
