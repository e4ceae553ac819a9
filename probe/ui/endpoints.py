"""The same questions over the network: typed, documented endpoints for ``gradio_client`` and plain HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from inspect import Parameter, Signature
from typing import Any, TypeVar

import gradio as gr

import probe
from probe.analyses.asking import asked, first_line, parameter_docs, takes_several
from probe.analyses.result import RESULTS, Result
from probe.ui import limits
from probe.ui.store import STORE, explain
from probe.ui.views.verify import DTYPES

Answer = TypeVar("Answer")


def _answer(question: Callable[[], Answer]) -> Answer:
    """The answer, or an error in one sentence."""
    try:
        return question()
    except Exception as error:
        raise gr.Error(explain(error, "python"), print_exception=False) from None


def _number(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise probe.ProbeError(f"{name} must be a whole number, not {value!r:.50}.")
    return value


def _text(text: str, second: str) -> str | tuple[str, str]:
    if second and not isinstance(text, str):
        raise probe.ProbeError("second goes with a single text.")
    return (text, second) if second else text


def attend(
    text: str, model: str = "bert", layer: int = 0, head: int = 0, second: str = "", truncate: bool = False
) -> dict[str, Any]:
    """Attention weights of one head of a model on a text.

    Parameters:
        text: the sentence.
        model: "bert", "gpt2", or another name this server accepts.
        layer: counted from 0.
        head: counted from 0.
        second: a second sentence, for models trained on pairs; empty for none.
        truncate: cut a text that is longer than the model takes, instead of refusing it.
    Returns:
        model, source, layer, head, tokens, spans, special, truncated, and weights as one list per query.
    """

    def question() -> dict[str, Any]:
        place = _number("layer", layer), _number("head", head)
        run = probe.attend(
            STORE.model(model, text, second), _text(text, second), heads=[place], truncate=truncate
        )
        return {
            "model": run.model_name,
            "source": run.source,
            "layer": layer,
            "head": head,
            "tokens": list(run.tokens),
            "spans": None if run.spans is None else [list(span) for span in run.spans],
            "special": list(run.special),
            "truncated": run.truncated,
            "weights": run.weights(*place).tolist(),
        }

    return _answer(question)


def verify(
    texts: list[str] | str, model: str = "bert", dtype: str = "float32", truncate: bool = False
) -> dict[str, Any]:
    """Recompute every head of a model from scratch on one or more texts, and report the differences.

    Parameters:
        texts: the sentences, or one sentence.
        model: "bert", "gpt2", or another name this server accepts.
        dtype: "float32" or "float64".
        truncate: cut a text that is longer than the model takes, instead of refusing it.
    Returns:
        the report: verdict, passed, max_abs_error, tolerance, truncated, and an entry for each head and each
        layer.
    """

    def question() -> dict[str, Any]:
        checked = limits.check_texts(texts)
        if dtype not in DTYPES:
            raise probe.ProbeError(f"dtype must be {' or '.join(DTYPES)}, not {dtype!r:.50}.")
        return probe.verify(
            STORE.model(model, *checked, dtype=DTYPES[dtype]), checked, truncate=truncate
        ).to_dict()

    return _answer(question)


# What programs send by position must stay where it was; what is new stands at the end.
_ORDERS = {
    "compare_masks": ("text", "model", "layer", "head", "truncate", "whole_model", "second"),
    "trace": ("text", "query", "model", "layer", "head", "truncate", "second"),
    "ablate": ("text", "heads", "how", "truncate", "model", "second", "label"),
    "rank_heads": ("text", "how", "truncate", "model", "second", "label"),
    "find_heads": ("text", "from_word", "to_word", "model", "versus", "second", "truncate"),
}
_ABOUT = {
    "text": "the text.",
    "model": '"bert", "gpt2", or another name this server accepts.',
    "layer": "counted from 0.",
    "head": "counted from 0.",
    "query": "position of the query token, counted from 0, special tokens included.",
    "pair": "a second sentence, for models trained on pairs; empty for none.",
    "truncate": "cut a text that is longer than the model takes, instead of refusing it.",
    "target": "what a model with an encoder and a decoder is to produce; empty for none.",
    "how": '"zero", "mean" or "other mask".',
}
# Of another shape than their analysis: one head, or many texts and a choice of dtype.
_OWN = ("attend", "verify")


def of_analysis(kind: type[Result]) -> Callable[..., dict[str, Any]]:
    """The endpoint of an analysis, by its signature: its result as plain numbers, strings and lists."""
    analysis, name = kind.analysis, kind.analysis.__name__
    each_head = analysis is probe.rank_heads
    parameters = asked(analysis)
    about = {**parameter_docs(analysis), **_ABOUT}
    types: dict[str, tuple[Any, Any, str]] = {}  # type, default, what is said of it
    for one, parameter in parameters.items():
        needed = parameter.default is Parameter.empty
        hint, default = str(parameter.annotation), Parameter.empty if needed else parameter.default
        if one in ("layer", "head"):
            types[one] = int, 0, about[one]
        elif one == "text" and takes_several(analysis):
            types[one] = list[str] | str, default, "the text, or a list of texts."
        elif "Sequence" in hint:
            types[one] = list[Any], default, about.get(one, "")
        elif hint in ("int", "bool"):
            types[one] = {"int": int, "bool": bool}[hint], default, about.get(one, "")
        else:
            types[one] = str, "" if default is None else default, about.get(one, "")
    types["model"] = str, "bert" if name == "find_heads" else "gpt2", about["model"]
    if "text" in parameters:
        types["second"] = str, "", about["pair"]
    needed_first = sorted(types, key=lambda one: types[one][1] is not Parameter.empty)
    order = _ORDERS.get(name, tuple(needed_first))

    def endpoint(*values: Any, **named: Any) -> dict[str, Any]:
        def question() -> dict[str, Any]:
            given = bound.bind(*values, **named)
            given.apply_defaults()
            taken = dict(given.arguments)
            if isinstance(taken.get("text"), list):
                taken["text"] = limits.check_texts(taken["text"])
            model = STORE.model(taken.pop("model"), *_written(taken), each_head=each_head)
            if "text" in parameters:
                taken["text"] = _text(taken["text"], taken.pop("second"))
            for one in taken:
                if types[one][0] is int:
                    _number(one, taken[one])
                if parameters[one].default is None and taken[one] == "":
                    taken[one] = None
            if "heads" in taken:
                taken["heads"] = _heads(taken["heads"])
            result: Result = analysis(model, **taken)
            return result.to_dict()

        return _answer(question)

    bound = Signature(
        [
            Parameter(one, Parameter.POSITIONAL_OR_KEYWORD, default=types[one][1], annotation=types[one][0])
            for one in order
        ],
        return_annotation=dict[str, Any],
    )
    described = "".join(f"    {one}: {types[one][2]}\n" for one in order)
    endpoint.__name__ = endpoint.__qualname__ = name
    endpoint.__doc__ = (
        f"{first_line(analysis)}\n\nParameters:\n{described}Returns:\n"
        f"    what probe.{name} finds: the fields of a {kind.__name__}."
    )
    endpoint.__annotations__ = {**{one: types[one][0] for one in order}, "return": dict[str, Any]}
    endpoint.__signature__ = bound  # type: ignore[attr-defined]
    return endpoint


def _written(taken: Mapping[str, Any]) -> list[str]:
    """Every text among the arguments, also in lists."""
    lists = [value if isinstance(value, list) else [value] for value in taken.values()]
    return [one for values in lists for one in values if isinstance(one, str)]


def _heads(given: object) -> list[tuple[int, int] | int]:
    """Heads as [layer, head] and whole layers as numbers."""
    if not isinstance(given, list):
        raise probe.ProbeError("heads must be a list of [layer, head] pairs, or of numbers of layers.")
    return [tuple(one) if isinstance(one, list) else one for one in given]


def asked_for_mcp() -> bool:
    """Whether the endpoints are to be tools of an MCP server too: where GRADIO_MCP_SERVER is True.

    Raises
    ------
    ProbeError
        If they are, and the package for it is missing.
    """
    if os.environ.get("GRADIO_MCP_SERVER", "").lower() != "true":
        return False
    try:
        found = version("mcp")
    except PackageNotFoundError:
        found = ""
    if not found.startswith("1."):
        raise probe.ProbeError('An MCP server needs the package mcp, version 1: pip install "mcp>=1.21,<2".')
    return True


def add() -> None:
    """Add the endpoints to the Blocks being built: one for each analysis."""
    functions = {function.__name__: function for function in (attend, verify)}
    for kind in RESULTS.values():
        if kind.analysis.__name__ not in _OWN:
            function = of_analysis(kind)
            functions[function.__name__] = function
    for name, function in functions.items():
        gr.events.api(function, api_name=name)
