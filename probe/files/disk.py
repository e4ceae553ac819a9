"""Reading and writing files, with errors in a sentence."""

from __future__ import annotations

import os
import stat
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


MAX_FILE = 2**29
"""Bytes of a file that is read: all heads of a text of 512 tokens in the largest of usual models, as text."""


def content_of(path: Path, most: int = MAX_FILE) -> bytes:
    """Read a file, if it is one and not larger than ``most`` bytes; its size is looked at before.

    Raises
    ------
    ProbeError
        If it isn't there, is too large, is no regular file (a folder, a device, a pipe), or can't be read.
    """
    try:
        # Without waiting: a pipe keeps whoever opens it until someone writes.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _AS_BYTES), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ProbeError(f"{path} is no regular file, and nothing else is read.")
            if about.st_size > most:
                raise ProbeError(f"{path.name} has more than {most / 2**20:,.0f} MB, the most that is read.")
            content = file.read(about.st_size + 1)
    except FileNotFoundError:
        taken = "" if path.is_absolute() else f"; it is taken from {Path.cwd()}"
        raise ProbeError(f"There is no file {path}: check the path{taken}.") from None
    except OSError as error:
        raise ProbeError(f"{path} can't be read: {error.strerror}.") from None
    if len(content) > about.st_size:
        raise ProbeError(f"{path.name} grew while it was read: try again when it is whole.")
    return content


_AS_BYTES: int = getattr(os, "O_BINARY", 0)  # on Windows
