"""What a stranger can ask of the server: anything, and gets a sentence; much, and nobody waits long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import gradio as gr
import pytest
import torch
from gradio.state_holder import SessionState

import probe
from probe.models.pauses import pausing
from probe.ui import limits, turns
from probe.ui.state import DEFAULT_TEXT
from probe.ui.store import UNEXPECTED
from probe.ui.turns import Left, Question, Turns

HOSTILE: dict[str, Any] = {
    "nothing": None,
    "a huge number": 10**30,
    "not a number": float("nan"),
    "below": -7,
    "a list": [[[1], "x"], {}],
    "nested": json.loads("[" * 50 + "]" * 50),
    "a dictionary": {"a": {"b": [None]}},
    "a model": "bert-large-uncased",
    "a path": "/etc/passwd",
    "a file": {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
    "an address": {"path": "http://127.0.0.1:9/x", "meta": {"_type": "gradio.FileData"}},
    "long": "x" * 20_000,
}


@pytest.fixture
def on_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "someone/here")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The models that are loaded meanwhile."""
    names: list[str] = []
    load = probe.load

    def listed(name: Any, **options: Any) -> probe.Model:
        names.append(str(name))
        return load(name, **options)

    monkeypatch.setattr(probe, "load", listed)
    yield names


@pytest.mark.parametrize("what", HOSTILE)
def test_every_route_answers_anything_with_a_sentence(
    app: gr.Blocks, on_a_space: None, loaded: list[str], what: str
) -> None:
    """Also those that only the page uses: each question is one value, wherever there is a place for one."""

    value = HOSTILE[what]
    request = SimpleNamespace(query_params={"view": str(value), "text": str(value)}, headers={}, client=None)

    async def ask(function: Any, event: object) -> str | None:
        values = {"state": SessionState(app), "event_data": gr.EventData(None, event)}
        try:
            await app.process_api(
                function, [value] * len(function.inputs), request=request, session_hash="h", **values
            )
        except gr.Error as error:
            return str(error.message)
        return None

    said, workers = [], ThreadPoolExecutor(1)
    for function in app.fns.values():
        if function.fn is not None:
            event = {"row": value, "col": -1, "key": "x"} if function.inputs else {}
            # In a thread, for the browser of other tests may have a loop running here.
            said.append(workers.submit(asyncio.run, ask(function, event)).result())
    assert len(said) > 30
    assert all(one is None or (one and one != UNEXPECTED) for one in said)
    assert {name for name in loaded} <= set(limits.SPACE_MODELS)


def test_the_older_route_says_what_is_wrong_too(address: str) -> None:
    body = json.dumps({"data": ["the cat", "gpt2", 99, 0, "", False]}).encode()
    asked = Request(f"{address}gradio_api/call/attend", body, {"Content-Type": "application/json"})
    with urlopen(asked, timeout=30) as answer:
        number = json.load(answer)["event_id"]
    with urlopen(f"{address}gradio_api/call/attend/{number}", timeout=30) as answer:
        told = answer.read().decode()
    assert told.startswith("event: error") and "There is no layer 99 in gpt2-stories" in told


# ---- how much one may ask


def test_a_space_counts_the_work(gpt2: probe.Model, on_a_space: None) -> None:
    """6 layers of 6 heads of 32 numbers; a run counts as four, a ranking as one more for four heads."""
    assert limits.check_work(gpt2, ["the cat"]) == 2 * 36 * 32 * 4
    assert limits.check_work(gpt2, ["the cat", "the cat"], each_head=True) == 4 * 36 * 32 * 13
    long = "the cat " * 128  # 256 tokens, which is all that it takes
    assert limits.check_work(gpt2, [long] * 16) == 16 * 256 * 36 * 32 * 4
    with pytest.raises(probe.ProbeError) as error:
        limits.check_work(gpt2, [long] * 17)
    assert f"{17 * 256:,} tokens x 36 heads of 6 layers" in str(error.value)
    assert f"{17 * 256 * 36 * 32 * 4:,}" in str(error.value) and f"{limits.MAX_WORK:,}" in str(error.value)


def test_a_space_ranks_the_heads_of_the_opening_sentence(on_a_space: None) -> None:
    """Also of the real BERT and GPT-2, which a Space runs: 12 layers of 12 heads of 64 numbers."""
    real = SimpleNamespace(
        max_tokens=512,
        lock=threading.RLock(),
        tokenizer=lambda text, **_: {"input_ids": [0] * 20},
        heads_per_layer=(12,) * 12,
        num_layers=12,
        head_dim=64,
        dtype=torch.float32,
    )
    assert limits.check_work(real, [DEFAULT_TEXT], each_head=True) == 20 * 144 * 64 * 40  # type: ignore[arg-type]
    real.tokenizer = lambda text, **_: {"input_ids": [0] * 512}
    assert limits.check_work(real, [DEFAULT_TEXT]) <= limits.MAX_WORK  # type: ignore[arg-type]


def test_elsewhere_nobody_counts(gpt2: probe.Model) -> None:
    assert limits.check_work(gpt2, ["the cat " * 500] * 32, each_head=True) == 0


# ---- turns


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_whoever_has_had_the_least_is_next() -> None:
    """One question of ten seconds in ten pieces, and two of one second that come meanwhile."""
    clock = Clock()
    place = Turns(clock)
    heavy, light, third = (Question(f"address {one}", "page") for one in "abc")
    order: list[str] = []
    waiting = []

    def short(name: str, question: Question) -> None:
        place.take(question)
        order.append(name)
        clock.now += 1.0
        place.give(question)

    place.take(heavy)
    for piece in range(10):
        order.append("heavy")
        clock.now += 1.0
        if piece == 1:
            for name, question in (("light", light), ("third", third)):
                waiting.append(threading.Thread(target=short, args=(name, question)))
                waiting[-1].start()
                while len(place._waiting) < len(waiting):
                    pass
        place.pause(heavy)
    place.give(heavy)
    for one in waiting:
        one.join()
    # They come in after the piece that was under way, and not at the end.
    assert order == ["heavy"] * 2 + ["light", "third"] + ["heavy"] * 8


def test_many_questions_of_one_visitor_don_t_keep_another_out() -> None:
    clock = Clock()
    place = Turns(clock)
    mine = [Question("a", "one") for _ in range(5)]
    other = Question("b", "two")
    place.take(mine[0])
    clock.now += 1.0
    order: list[Question] = []

    def short(question: Question) -> None:
        place.take(question)
        order.append(question)
        clock.now += 1.0
        place.give(question)

    threads = []
    for question in (*mine[1:], other):
        threads.append(threading.Thread(target=short, args=(question,)))
        threads[-1].start()
        while len(place._waiting) < len(threads):
            pass
    place.give(mine[0])
    for one in threads:
        one.join()
    assert order.index(other) <= 1


def test_work_that_nobody_waits_for_ends_at_the_next_layer(gpt2: probe.Model) -> None:
    seen: list[bool] = []
    gone = threading.Event()
    question = Question("a", "one", gone.is_set)

    def between(free: bool) -> None:
        seen.append(free)
        if len(seen) == 3:
            gone.set()
        turns.TURNS.pause(question, free)

    turns.TURNS.take(question)
    try:
        with contextlib.suppress(Left), pausing(between):
            probe.verify(gpt2, ["the cat sat"] * 8)
            pytest.fail("it went on to the end")
    finally:
        turns.TURNS.give(question)
    assert len(seen) == 3 and seen[0]  # before the run, then within it
    # The network is as it was, and anyone can run it.
    assert probe.verify(gpt2, "the cat sat").passed
    assert not any(one._forward_pre_hooks for one in gpt2.hf.base_model.h)


def test_pauses_change_no_number(gpt2: probe.Model) -> None:
    alone = probe.attend(gpt2, "the cat sat", [(3, 1)]).weights(3, 1)
    with pausing(lambda free: None):
        paused = probe.attend(gpt2, "the cat sat", [(3, 1)]).weights(3, 1)
    assert torch.equal(alone, paused)


def test_what_is_kept_is_bounded_whatever_it_is(gpt2: probe.Model) -> None:
    from probe.ui.store import Store

    first = Store()
    size = first.comparison("gpt2", "the cat sat").nbytes
    store = Store(kept_bytes=3 * size)
    for text in ("the cat sat", "the dog ran", "the cow ate"):
        store.comparison("gpt2", text)
        store.masked("gpt2", text)
        assert store.held_bytes <= 3 * size
