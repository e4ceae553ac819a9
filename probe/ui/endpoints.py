"""The same questions over the network: typed, documented endpoints for ``gradio_client`` and plain HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import gradio as gr

import probe
from probe.ui import limits
from probe.ui.state import STORE, explain
from probe.ui.verify import DTYPES

Result = TypeVar("Result")


def _answer(question: Callable[[], Result]) -> Result:
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


def compare_masks(
    text: str, model: str = "gpt2", layer: int = 0, head: int = 0, truncate: bool = False
) -> dict[str, Any]:
    """The same trained head under the causal and under the bidirectional mask.

    Parameters:
        text: the sentence.
        model: "bert", "gpt2", or another name this server accepts.
        layer: counted from 0.
        head: counted from 0.
        truncate: cut a text that is longer than the model takes, instead of refusing it.
    Returns:
        tokens, truncated, the weights under each mask, the weight that moved per query, and the mask the
        model was trained with.
    """

    def question() -> dict[str, Any]:
        loaded = STORE.model(model, text)
        place = _number("layer", layer), _number("head", head)
        return probe.compare_masks(loaded, text, *place, truncate=truncate).to_dict()

    return _answer(question)


def trace(
    text: str, query: int, model: str = "gpt2", layer: int = 0, head: int = 0, truncate: bool = False
) -> dict[str, Any]:
    """One row of one head, number by number, from the layer's input to the head's share of the output.

    Parameters:
        text: the sentence.
        query: position of the query token, counted from 0, special tokens included.
        model: "bert", "gpt2", or another name this server accepts.
        layer: counted from 0.
        head: counted from 0.
        truncate: cut a text that is longer than the model takes, instead of refusing it.
    Returns:
        input, query_vector, keys, values, dot_products, scaled, masked, exponentials, weights, context, ...
    """

    def question() -> dict[str, Any]:
        loaded = STORE.model(model, text)
        place = _number("layer", layer), _number("head", head)
        return probe.trace(loaded, text, *place, _number("query", query), truncate=truncate).to_dict()

    return _answer(question)


def find_heads(
    text: str,
    from_word: str,
    to_word: str,
    model: str = "bert",
    versus: str = "",
    second: str = "",
    truncate: bool = False,
) -> dict[str, Any]:
    """Rank the heads of a model by the weight that links two words of a text.

    Parameters:
        text: the sentence.
        from_word: the word that attends; "it#2" names the second occurrence.
        to_word: the word that is attended to.
        model: "bert", "gpt2", or another name this server accepts.
        versus: a second target, to see which heads prefer the first; empty for none.
        second: a second sentence, for models trained on pairs; empty for none.
        truncate: cut a text that is longer than the model takes, instead of refusing it.
    Returns:
        heads with layer, head, weight, versus and difference, largest weight first; the tokens of each word;
        truncated; a summary.
    """

    def question() -> dict[str, Any]:
        loaded = STORE.model(model, text, second, from_word, to_word, versus)
        words = from_word, to_word, versus or None
        return probe.find_heads(loaded, _text(text, second), *words, truncate=truncate).to_dict()

    return _answer(question)


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
    """Add the endpoints to the Blocks being built."""
    for function in (attend, verify, compare_masks, trace, find_heads):
        gr.events.api(function, api_name=function.__name__, concurrency_id="run", concurrency_limit=1)
