"""The endpoints, called as a program calls them. No browser is needed, but the running app is."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from typing import Any

import numpy as np
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from numbers_in_text import alike, close

import probe
from probe.analyses.result import RESULTS
from probe.ui import endpoints
from probe.ui.limits import MAX_CHARACTERS, MAX_TEXTS

TEXT = "The cat sat on"


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    connected = Client(address, verbose=False)
    yield connected
    connected.close()


def test_attend(client: Client) -> None:
    answer = client.predict(TEXT, "gpt2", 4, 5, api_name="/attend")
    run = probe.attend("gpt2", TEXT)
    assert close(answer["weights"], run.weights(4, 5).tolist())
    assert answer["tokens"] == list(run.tokens)


def test_attend_takes_a_pair(client: Client) -> None:
    answer = client.predict(TEXT, "bert", 0, 0, "the mat.", api_name="/attend")
    assert answer["tokens"] == list(probe.attend("bert", (TEXT, "the mat.")).tokens)


def test_verify(client: Client) -> None:
    answer = client.predict([TEXT, "draw a map"], "bert", api_name="/verify")
    assert answer["passed"] is True
    assert len(answer["heads"]) == 72
    assert alike(answer["verdict"], probe.verify("bert", [TEXT, "draw a map"]).verdict)


def test_verify_in_float64(client: Client) -> None:
    answer = client.predict(TEXT, "gpt2", "float64", api_name="/verify")
    assert answer["passed"] is True and answer["max_abs_error"] < 1e-13


def test_compare_masks(client: Client) -> None:
    answer = client.predict(TEXT, "gpt2", 4, 5, api_name="/compare_masks")
    expected = probe.compare_masks("gpt2", TEXT, 4, 5).bidirectional
    assert close(answer["bidirectional"], expected.tolist())


def test_trace(client: Client) -> None:
    answer = client.predict(TEXT, 2, "gpt2", 4, 5, api_name="/trace")
    assert close(answer["weights"], probe.trace("gpt2", TEXT, 4, 5, 2).weights.tolist())


def test_find_heads(client: Client) -> None:
    text = "The trophy doesn't fit in the suitcase because it is too big."
    answer = client.predict(text, "it", "trophy", "bert", "suitcase", api_name="/find_heads")
    found = probe.find_heads("bert", text, "it", "trophy", "suitcase")
    assert alike(answer["summary"], found.summary)
    assert [(one["layer"], one["head"]) for one in answer["heads"]] == [
        (h.layer, h.head) for h in found.heads
    ]


def test_a_text_that_is_too_long_is_cut_if_asked(client: Client) -> None:
    text = ("the cat and the dog " * 60).strip()  # 300 words, where gpt2-stories takes 256 tokens
    with pytest.raises(AppError, match="at most 256\\. Shorten it, or have it cut: truncate=True"):
        client.predict(text, "gpt2", api_name="/attend")
    run = probe.attend("gpt2", text, [(4, 5)], truncate=True)
    cut = "Cut to the first 256 of 300 tokens, all that this model takes."
    assert run.truncated == cut
    for endpoint, more in (
        ("/attend", {"layer": 4, "head": 5}),
        ("/compare_masks", {"layer": 4, "head": 5}),
        ("/trace", {"layer": 4, "head": 5, "query": 255}),
        ("/find_heads", {"from_word": "cat", "to_word": "dog"}),
    ):
        answer = client.predict(text, model="gpt2", truncate=True, **more, api_name=endpoint)
        assert answer["truncated"] == cut, endpoint
        if endpoint == "/attend":
            assert close(answer["weights"], run.weights(4, 5).tolist())
        elif endpoint == "/trace":
            expected = probe.trace("gpt2", text, 4, 5, 255, truncate=True).weights
            assert close(answer["weights"], expected.tolist())
    report = client.predict([TEXT, text], "gpt2", truncate=True, api_name="/verify")
    assert report["truncated"] == [None, cut] and report["passed"] is True


def test_every_endpoint_is_documented(client: Client) -> None:
    described = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(described) == {f"/{kind.analysis.__name__}" for kind in RESULTS.values()}
    # What programs send by position stays at its place.
    for name, order in {
        "/attend": ["text", "model", "layer", "head", "second", "truncate"],
        "/verify": ["texts", "model", "dtype", "truncate"],
        "/compare_masks": ["text", "model", "layer", "head", "truncate"],
        "/trace": ["text", "query", "model", "layer", "head", "truncate"],
        "/find_heads": ["text", "from_word", "to_word", "model", "versus", "second", "truncate"],
    }.items():
        names = [parameter["parameter_name"] for parameter in described[name]["parameters"]]
        assert names[: len(order)] == order
    for endpoint in described.values():
        assert all(parameter["python_type"]["type"] != "Any" for parameter in endpoint["parameters"])


ASKED: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "distances": ({}, ()),
    "measure_heads": ({}, ()),
    "rollout": ({}, ()),
    "predict": ({"k": 3}, (3,)),
    "ablate": ({"heads": [[3, 5], 1], "how": "mean"}, ([(3, 5), 1], "mean")),
    "rank_heads": ({"how": "zero"}, ("zero",)),
    "compare": ({}, ()),
    "run_from_scratch": ({}, ()),
}


@pytest.mark.parametrize("name", ASKED)
def test_an_analysis_over_the_network_is_the_one_in_python(client: Client, name: str) -> None:
    sent, given = ASKED[name]
    answer = client.predict(text=TEXT, model="gpt2", **sent, api_name=f"/{name}")
    result = getattr(probe, name)("gpt2", TEXT, *given)
    assert set(answer) == set(result.to_dict())
    for one in ("model", "text", "dtype", "backend"):
        assert answer.get(one) == result.to_dict().get(one)
    assert answer["summary" if "summary" in answer else "tokens"]


def test_two_texts_over_the_network(client: Client) -> None:
    answer = client.predict(
        first=TEXT, second="the dog sat", model="gpt2", layer=3, head=5, api_name="/compare_texts"
    )
    result = probe.compare_texts("gpt2", TEXT, "the dog sat", 3, 5)
    assert answer["pairs"] == [list(pair) for pair in result.pairs]
    assert np.allclose(answer["moved"], result.moved.tolist(), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "endpoint", "message"),
    [
        (("x" * 10_000_000, "bert"), "/attend", f"at most {MAX_CHARACTERS:,}"),
        (("a b " * 50_000, "gpt2"), "/attend", f"at most {MAX_CHARACTERS:,}"),
        (("word " * 1500, "bert"), "/attend", "at most 512"),
        (([TEXT] * 1000, "bert"), "/verify", f"at most {MAX_TEXTS}"),
        ((["x" * 200_000], "bert"), "/verify", f"at most {MAX_CHARACTERS:,}"),
        ((TEXT, "bert", 6, 0), "/attend", "counted from 0 to 5"),
        ((TEXT, "bert", 0, 12), "/attend", "counted from 0 to 11"),
        ((TEXT, "bert", None, 0), "/attend", "whole number"),
        ((TEXT, "x" * 5000), "/attend", "at most 300"),
        ((TEXT, "</script><script>alert(1)</script>"), "/attend", "There is no"),
        (("", "bert"), "/attend", "empty"),
        ((TEXT, 99), "/trace", "counted from 0 to 3"),
        ((TEXT, "zebra", "cat", "bert"), "/find_heads", "not in the text"),
        ((TEXT, "x" * 200_000, "cat", "bert"), "/find_heads", f"at most {MAX_CHARACTERS:,}"),
    ],
)
def test_limits_are_named_and_the_app_answers_after(
    client: Client, arguments: tuple[object, ...], endpoint: str, message: str
) -> None:
    with pytest.raises(AppError, match=message):
        client.predict(*arguments, api_name=endpoint)
    assert client.predict(TEXT, "gpt2", 4, 5, api_name="/attend")["tokens"] == ["The", "cat", "sat", "on"]


def test_a_space_runs_listed_models_only(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "someone/something")
    with pytest.raises(AppError, match="runs only these models"):
        client.predict(TEXT, "/etc", api_name="/attend")
    assert client.predict(TEXT, "gpt2", 4, 5, api_name="/attend")["tokens"] == ["The", "cat", "sat", "on"]


def test_sessions_at_once_get_their_own_answers(address: str) -> None:
    texts = [f"The cat sat on {number} mats" for number in ("one", "two", "three", "four")]

    def ask(text: str) -> list[list[str]]:
        mine = Client(address, verbose=False)
        answers = [mine.predict(text, "gpt2", 4, 5, api_name="/attend")["tokens"] for _ in range(3)]
        mine.close()
        return answers

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, texts)) == [[list(probe.attend("gpt2", text).tokens)] * 3 for text in texts]


def test_the_endpoints_are_tools_of_an_mcp_server_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    from probe.ui import build, launch_options

    assert launch_options()["mcp_server"] is False
    monkeypatch.setenv("GRADIO_MCP_SERVER", "True")
    demo = build()
    demo.queue(max_size=64).launch(prevent_thread_lock=True, quiet=True, **launch_options())

    async def ask() -> tuple[list[Any], Any, Any]:
        where = f"{demo.local_url}gradio_api/mcp/"
        async with streamable_http_client(where) as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            asked = {"text": TEXT, "model": "gpt2", "layer": 4, "head": 5}
            answer = await session.call_tool("attend", asked)
            return tools, answer, await session.call_tool("attend", {**asked, "layer": 6})

    try:
        with ThreadPoolExecutor(1) as pool:  # a browser that was started before has this thread's event loop
            tools, answer, refused = pool.submit(asyncio.run, ask()).result()
    finally:
        demo.close()
    assert {tool.name for tool in tools} == {kind.analysis.__name__ for kind in RESULTS.values()}
    assert all(tool.description and tool.inputSchema["required"] for tool in tools)
    # Gradio writes the answer as a Python literal.
    weights = ast.literal_eval(answer.content[0].text)["weights"]
    assert close(weights, probe.attend("gpt2", TEXT).weights(4, 5).tolist())
    assert refused.isError and "counted from 0 to 5" in refused.content[0].text


def test_without_its_package_an_mcp_server_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("probe.ui.endpoints.version", missing)
    assert endpoints.asked_for_mcp() is False
    monkeypatch.setenv("GRADIO_MCP_SERVER", "True")
    with pytest.raises(
        probe.ProbeError, match=r'needs the package mcp, version 1: pip install "mcp>=1\.21,<2"'
    ):
        endpoints.asked_for_mcp()
