"""What an analysis is asked, read from its signature and its docstring.

From these follow the manifest of a file, making a result again, lines of Python, the commands and the
endpoints: none of them lists what an analysis takes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

# Arguments that say how a call goes on, not what is asked.
_BY_THE_WAY = ("progress",)
# What the text is called.
_TEXT = ("text", "text_or_texts")


Function = TypeVar("Function", bound=Callable[..., Any])


def analysis(result: type[Any], command: str = "") -> Callable[[Function], Function]:
    """Mark a function as the one that gives a kind of result. Its first parameter is the model.

    Parameters
    ----------
    result : the kind of result.
    command : what it is called on the command line; "" where a command of another shape asks for it.
    """

    def mark(function: Function) -> Function:
        result.analysis = staticmethod(function)
        result.command = command
        return function

    return mark


def asked(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What an analysis is asked beside the model, by name and in order."""
    _model, *others = inspect.signature(function).parameters.values()
    return {one.name: one for one in others if one.name not in _BY_THE_WAY}


def takes_several(function: Callable[..., Any]) -> bool:
    """Whether an analysis takes a list of texts in place of one."""
    parameters = asked(function)
    return any("Sequence" in str(one.annotation) for name, one in parameters.items() if name in _TEXT)


def call_text(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """A call of an analysis as Python: ``probe.trace(model, 'The cat', layer=3, head=5, query=2)``.

    Texts and words stand at their places, everything else by its name.

    Raises
    ------
    ValueError
        If it doesn't take one of the arguments.
    """
    parameters = asked(function)
    unknown = set(arguments) - set(parameters)
    if unknown:
        raise ValueError(f"{function.__name__} has no {', '.join(sorted(unknown))}")
    written, in_place = ["model"], True
    for name, parameter in parameters.items():
        if name not in arguments:
            in_place = False
            continue
        value, positional = arguments[name], parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        in_place = in_place and positional and not isinstance(value, (int, float, torch.dtype))
        written.append(repr(value) if in_place else f"{name}={value!r}")
    return f"probe.{function.__name__}({', '.join(written)})"


def first_line(function: Callable[..., Any]) -> str:
    """What an analysis does, in a sentence."""
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")


def parameter_docs(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of an analysis says of each parameter, in one line."""
    doc = inspect.getdoc(function) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", doc, re.MULTILINE | re.DOTALL)
    docs: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        began = re.match(r"([a-z_]+(?:, [a-z_]+)*)(?: :|$)(.*)", line)
        if began:
            names = began[1].split(", ")
            docs |= dict.fromkeys(names, began[2].strip())
        elif line.startswith(" ") and names:
            docs |= {name: f"{docs[name]} {line.strip()}".strip() for name in names}
    return docs
