"""Reading and writing files, with errors in a sentence."""

from __future__ import annotations

import os
from pathlib import Path

from probe.errors import ProbeError


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path; ``~`` is the home folder, in quotes too, which keep a shell from saying so."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # of an unknown user
        return Path(path)


def save(path: Path, content: bytes) -> Path:
    """Write a file.

    Raises
    ------
    ProbeError
        If it can't be written.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ProbeError(f"{path} can't be written: {error.strerror}.") from None
    return path


def content_of(path: Path) -> bytes:
    """Read a file.

    Raises
    ------
    ProbeError
        If it isn't there, or can't be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        taken = "" if path.is_absolute() else f"; it is taken from {Path.cwd()}"
        raise ProbeError(f"There is no file {path}: check the path{taken}.") from None
    except OSError as error:
        raise ProbeError(f"{path} can't be read: {error.strerror}.") from None
