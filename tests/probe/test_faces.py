"""What every kind of result shows of itself: text, HTML, captions, JSON, DataFrames; and how to ask again.

One result of each kind in ``RESULTS``; a kind without a way to be made here fails the first test.
"""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt2 import modeling_gpt2

import probe
from probe import Model, ProbeError
from probe.analyses.distances import distances
from probe.analyses.result import RESULTS, Result

TEXT = "the cat and the dog and the big red cat"
POSITIONS = 12
LONG = f"{TEXT} and a bird"
Frame = pandas.DataFrame

# How each kind is asked for: the arguments that are no defaults, for a text.
ASKED: dict[str, Callable[[str], dict[str, Any]]] = {
    "run": lambda text: {"text_or_texts": text},
    "report": lambda text: {"text_or_texts": [text]},
    "comparison": lambda text: {"text": text},
    "masks": lambda text: {"text": text, "layer": 1, "head": 2, "whole_model": True},
    "trace": lambda text: {"text": text, "layer": 1, "head": 2, "query": 3},
    "measures": lambda text: {"text": text},
    "distances": lambda text: {"text": text},
    "rollout": lambda text: {"text": text},
    "found": lambda text: {"text": text, "from_word": "cat", "to_word": "the", "versus": "dog"},
    "ablation": lambda text: {"text": text, "heads": [(0, 1), (1, 2)], "how": "mean"},
    "ranking": lambda text: {"text": text, "how": "mean"},
    "predictions": lambda text: {"text": text, "k": 3},
    "texts": lambda text: {"first": text, "second": f"so {text}", "layer": 1, "head": 2},
    "from scratch": lambda text: {"text": text},
}
ANALYSES: dict[str, Callable[..., Any]] = {
    "run": probe.attend,
    "report": probe.verify,
    "comparison": probe.compare,
    "masks": probe.compare_masks,
    "trace": probe.trace,
    "measures": probe.measure_heads,
    "distances": distances,
    "rollout": probe.rollout,
    "found": probe.find_heads,
    "ablation": probe.ablate,
    "ranking": probe.rank_heads,
    "predictions": probe.predict,
    "texts": probe.compare_texts,
    "from scratch": probe.run_from_scratch,
}
# Those that need every map as the model itself computed it, or every input: recorded on eager.
RECORDED = {"report", "comparison", "masks", "trace", "predictions"}
# Those that compare outputs: with numbers that are none there is nothing to compare.
REFUSE = {"ablation", "ranking", "predictions"}
# Bidirectional, and with special tokens; the tables that have a row for each head are of GPT-2's 36.
ON_BERT = {"masks", "texts", "rollout"}

every_kind = pytest.mark.parametrize("what", ASKED)


def ask(what: str, model: Model, text: str, **more: Any) -> Result:
    result: Result = ANALYSES[what](model, **ASKED[what](text), **more)
    assert type(result) is RESULTS[what]
    return result


@pytest.fixture(scope="module")
def folder(tiny_gpt2: Callable[..., Path]) -> Path:
    return tiny_gpt2(n_positions=POSITIONS)


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Model:
    return probe.load(str(folder))


@pytest.fixture(scope="module")
def shown(bert: Model, gpt2: Model) -> dict[str, Result]:
    return {what: ask(what, bert if what in ON_BERT else gpt2, TEXT) for what in ASKED}


@pytest.fixture(scope="module")
def cut(tiny: Model) -> dict[str, Result]:
    """Of a text that has more tokens than the model has positions."""
    return {what: ask(what, tiny, LONG, truncate=True) for what in ASKED}


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for part in inside for one in strings(part)]


def alike(ours: Any, theirs: Any) -> None:
    """The same numbers up to rounding, which may differ from one run to the next; NaN where NaN is."""
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=2e-6)


def test_every_kind_of_result_is_here() -> None:
    assert set(RESULTS) == set(ASKED) == set(ANALYSES)
    assert {what: kind.analysis for what, kind in RESULTS.items()} == ANALYSES


# ---- text


@every_kind
def test_the_text_names_the_model_and_is_short(shown: dict[str, Result], what: str) -> None:
    result = shown[what]
    name = "all-MiniLM-L6-v2" if what in ON_BERT else "gpt2-stories"
    assert result.model_name == name and name in str(result) and name in result.summary
    vectors = 0
    if isinstance(result, probe.Trace):
        # To be followed by hand it holds every vector of the row: 14 characters a number.
        of_row = (result.input, result.query_vector, result.context, result.output_share)
        vectors = 14 * sum(one.numel() for one in (*of_row, result.keys, result.values))
    assert len(str(result)) < 6_000 + vectors
    assert repr(result) == f"<{type(result).__name__}: {result.summary}>" and "\n" not in result.summary


@every_kind
def test_the_html_says_what_the_text_says_first(shown: dict[str, Result], what: str) -> None:
    assert shown[what].summary in unescape(shown[what]._repr_html_())


@every_kind
def test_every_remark_is_said_once_in_the_text_and_in_the_html(shown: dict[str, Result], what: str) -> None:
    result = shown[what]
    faces = str(result), result.told(1), unescape(result._repr_html_())
    for sentence in (result.summary, *result.remarks):
        assert [face.count(sentence) for face in faces] == [1, 1, 1]


# ---- what was cut


@every_kind
def test_what_was_cut_is_said_everywhere(cut: dict[str, Result], tiny: Model, what: str) -> None:
    result, length = cut[what], len(tiny.tokenizer(LONG)["input_ids"])
    assert length > POSITIONS
    said = f"Cut to the first {POSITIONS} of {length} tokens"
    both = [said, f"Cut to the first {POSITIONS} of {length + 1} tokens"] if what == "texts" else [said]
    assert len(result.cuts) == len(both)
    one = result.only(1, 2) if result.holds_many else result
    sheet = one.sheet()
    assert (sheet is None) == (what == "trace")
    faces = {
        "text": str(result),
        "first rows": result.told(1),
        "HTML": unescape(result._repr_html_()),
        "dict": "\n".join(strings(result.to_dict())),
        "JSON": result.to_json(),
        "captions": said if sheet is None else "\n".join(sheet.captions),
    }
    for face, content in faces.items():
        assert said in content, face
    for sentence, whole in zip(both, result.cuts, strict=True):
        assert sentence in whole and all(whole in faces[face] for face in ("text", "HTML"))
        assert sheet is None or whole in sheet.captions
    if what == "texts":
        assert [whole.split(":")[0] for whole in result.cuts] == ["The first text", "The second text"]
        assert both[1] in faces["dict"] and both[1] in faces["JSON"]


@every_kind
def test_nothing_is_said_where_nothing_was_cut(shown: dict[str, Result], what: str) -> None:
    assert shown[what].cuts == () and "Cut to" not in str(shown[what]) + shown[what].to_json()


@every_kind
def test_a_text_that_is_too_long_is_refused_unless_it_may_be_cut(tiny: Model, what: str) -> None:
    with pytest.raises(ProbeError, match=f"at most {POSITIONS}"):
        ask(what, tiny, LONG)


# ---- JSON


@every_kind
def test_json_is_strict_and_says_where_it_is_from(shown: dict[str, Result], what: str) -> None:
    result = shown[what]
    plain = strict(result.to_json())
    assert plain == result.to_dict()
    model = "all-MiniLM-L6-v2" if what in ON_BERT else "gpt2-stories"
    assert (plain["model"], plain["dtype"], plain["source"]) == (model, "float32", "bundled")
    assert plain["versions"]["torch"] == torch.__version__
    assert TEXT in strings(plain)


@pytest.fixture(scope="module")
def broken(tiny_gpt2: Callable[..., Path]) -> Model:
    """One weight of the first head of the last layer is NaN."""
    folder = tiny_gpt2(n_positions=POSITIONS)
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("h.1.attn.c_attn.weight"))
    weights[name][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return probe.load(str(folder))


def ask_of_first_head(what: str, model: Model) -> Result:
    arguments = ASKED[what](TEXT) | ({"head": 0} if what in ("masks", "trace", "texts") else {})
    result: Result = ANALYSES[what](model, **arguments)
    return result


@every_kind
def test_json_is_strict_where_weights_are_no_numbers(broken: Model, what: str) -> None:
    if what in REFUSE:
        with pytest.raises(ProbeError, match=r"not finite \(NaN or infinity\)"):
            ask_of_first_head(what, broken)
        return
    result = ask_of_first_head(what, broken)
    plain = strict(result.to_json())
    assert plain == result.to_dict()
    if what in ("measures", "distances"):  # nothing to measure
        mine = [head for head in plain["heads"] if (head["layer"], head["head"]) == (1, 0)]
        assert mine[0]["distance"] is None and "not finite" in plain["notice"]
    else:
        assert "nan" in strings(plain)
    assert len(result.to_frame()) == len(result.table())


@pytest.mark.parametrize("what", [what for what in ASKED if what not in REFUSE])
def test_the_text_says_that_numbers_are_none(broken: Model, what: str) -> None:
    result = ask_of_first_head(what, broken)
    said = "not finite (NaN or infinity)"
    assert said in str(result) and said in result._repr_html_()
    assert "nan%" not in str(result) and "sums to 1" not in str(result)


@pytest.mark.parametrize(
    "what",
    [
        "run",
        "comparison",
    ],
)
def test_one_head_of_many_says_that_its_numbers_are_none(broken: Model, what: str) -> None:
    one = ask_of_first_head(what, broken).only(1, 0)
    assert "not finite (NaN or infinity)" in str(one)


@pytest.mark.parametrize(
    "what",
    ["run", "comparison"],
)
def test_one_head_of_many_names_the_model(shown: dict[str, Result], what: str) -> None:
    one = shown[what].only(1, 2)
    assert "gpt2-stories" in str(one) and "layer 1, head 2" in str(one)


# ---- DataFrames


def column(frame: Frame, name: str) -> np.ndarray:
    return frame[name].to_numpy(dtype=np.float64)


def same(frame: Frame, name: str, values: Any) -> None:
    """A column is these numbers, each of them to the last bit."""
    flat = values.double().flatten().numpy() if isinstance(values, Tensor) else np.array(values, float)
    np.testing.assert_array_equal(column(frame, name), flat)


def check_run(run: probe.Run, frame: Frame) -> None:
    places = sorted(run.maps)
    assert len(frame) == 36 * 100
    same(frame, "weight", torch.stack([run.maps[place] for place in places]))
    rows = [
        (layer, head, query, key) for _, layer, head in places for query in range(10) for key in range(10)
    ]
    assert list(frame[["layer", "head", "query", "key"]].itertuples(index=False, name=None)) == rows
    assert list(frame["key_token"][:10]) == list(frame["query_token"][:100:10]) == list(run.tokens)


def check_heads(names: tuple[str, ...]) -> Callable[[Any, Frame], None]:
    def check(result: Any, frame: Frame) -> None:
        assert len(frame) == len(result.heads)
        heads = sorted(result.heads, key=lambda one: (one.layer, one.head))
        for name in ("layer", "head", *names):
            values = [getattr(one, name) for one in heads]
            same(frame, name, [np.nan if value is None else value for value in values])

    return check


def check_comparison(comparison: probe.Comparison, frame: Frame) -> None:
    places = [(layer, head) for layer in range(6) for head in range(6)]
    assert len(frame) == 36 * 100
    for name, side in (("from scratch", comparison.from_scratch), ("model", comparison.from_model)):
        same(frame, name, torch.stack([side(*place) for place in places]))


def check_masks(masks: probe.MaskComparison, frame: Frame) -> None:
    assert list(frame["query"][:: len(masks.tokens)]) == list(frame["key"][: len(masks.tokens)])
    same(frame, "causal", masks.causal)
    same(frame, "bidirectional", masks.bidirectional)


def check_trace(trace: probe.Trace, frame: Frame) -> None:
    same(frame, "dot product", trace.dot_products)
    same(frame, "scaled", trace.scaled)
    same(frame, "exponential", trace.exponentials)
    same(frame, "weight", trace.weights)
    same(frame, "model's weight", trace.model_weights)
    same(frame, "allowed", trace.allowed)


def check_rollout(rolled: probe.Rollout, frame: Frame) -> None:
    names = [f"[{position}] {token}" for position, token in enumerate(rolled.tokens)]
    assert list(frame.columns) == ["query \\ key", *names] and list(frame["query \\ key"]) == names
    np.testing.assert_array_equal(frame[names].to_numpy(), rolled.maps[-1].numpy())


def check_ablation(ablation: probe.Ablation, frame: Frame) -> None:
    assert len(frame) == len(ablation.tokens)
    same(frame, "hidden change", ablation.hidden_change)


def check_ranking(ranking: probe.Ranking, frame: Frame) -> None:
    by_place = {one.heads[0]: one for one in ranking.ablations}
    assert list(zip(frame["layer"], frame["head"], strict=True)) == sorted(by_place)
    same(frame, "effect", [by_place[place].effect for place in sorted(by_place)])
    same(frame, "logit_change", [by_place[place].logit_change for place in sorted(by_place)])


def check_predictions(predictions: probe.Predictions, frame: Frame) -> None:
    (one,) = predictions
    assert list(zip(frame["text"], frame["probability"], strict=True)) == list(one.candidates)
    assert list(frame["rank"]) == [0, 1, 2] and set(frame["position"]) == {one.position}


def check_texts(compared: probe.TextComparison, frame: Frame) -> None:
    first = [f"[{row}] {compared.first.tokens[row]}" for row, _ in compared.pairs]
    second = [f"[{row}] {compared.second.tokens[row]}" for _, row in compared.pairs]
    assert (list(frame["first"]), list(frame["second"])) == (first, second)
    same(frame, "moved", compared.moved)


def check_from_scratch(run: probe.FromScratchRun, frame: Frame) -> None:
    same(frame, "max_abs_error", (run.from_scratch - run.model).abs().max(dim=1).values)
    same(frame, "largest", run.model.abs().max(dim=1).values)


FRAMES: dict[str, Callable[[Any, Frame], None]] = {
    "run": check_run,
    "report": check_heads(("max_abs_error", "mean_abs_error", "tolerance", "context_error", "passed")),
    "comparison": check_comparison,
    "masks": check_masks,
    "trace": check_trace,
    "measures": check_heads(("entropy", "distance", "on_self", "on_first", "on_special", "induction")),
    "distances": check_heads(("distance", "uniform")),
    "rollout": check_rollout,
    "found": check_heads(("weight", "versus", "difference")),
    "ablation": check_ablation,
    "ranking": check_ranking,
    "predictions": check_predictions,
    "texts": check_texts,
    "from scratch": check_from_scratch,
}


@every_kind
def test_the_frame_holds_the_numbers_of_the_result(shown: dict[str, Result], what: str) -> None:
    result = shown[what]
    frame = result.to_frame()
    assert isinstance(frame, Frame) and len(frame) == len(result.table()) > 0
    assert list(frame.columns) == [one.name for one in result.table().columns]
    FRAMES[what](result, frame)


# ---- asking again


@every_kind
def test_the_arguments_are_those_that_were_given(
    shown: dict[str, Result], cut: dict[str, Result], what: str
) -> None:
    assert shown[what].arguments == ASKED[what](TEXT)
    assert cut[what].arguments == ASKED[what](LONG) | {"truncate": True}


@every_kind
def test_the_same_arguments_give_the_same_numbers(cut: dict[str, Result], tiny: Model, what: str) -> None:
    result = cut[what]
    inspect.signature(type(result).analysis).bind(tiny, **result.arguments)
    again = type(result).analysis(tiny, **result.arguments)
    ours, theirs = result.blocks(), again.blocks()
    assert list(ours) == list(theirs) and any(block.size for block in ours.values())
    for name, block in ours.items():
        alike(block, theirs[name])
    assert again.arguments == result.arguments


# ---- the origin


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """The backends that transformers' attention is computed on from here on, each with its dtype."""
    seen: set[tuple[str, str]] = set()

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, query: Tensor, *rest: Any, **options: Any) -> Any:
            seen.add((name, str(query.dtype).removeprefix("torch.")))
            return function(module, query, *rest, **options)

        return call

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", watched("sdpa", ALL_ATTENTION_FUNCTIONS["sdpa"]))
    eager = watched("eager", modeling_gpt2.eager_attention_forward)
    monkeypatch.setattr(modeling_gpt2, "eager_attention_forward", eager)
    return seen


@pytest.fixture(scope="module", params=["float64 sdpa", "bfloat16 sdpa", "float64 eager"])
def loaded(request: pytest.FixtureRequest, folder: Path, gpt2: Model) -> tuple[Model, str, str]:
    """A model with its dtype and its backend."""
    name, own = request.param.split()
    network = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, name), attn_implementation=own
    )
    return probe.load(network, tokenizer=gpt2.tokenizer), name, own


@every_kind
def test_the_origin_says_how_it_was_run(
    loaded: tuple[Model, str, str], called: set[tuple[str, str]], what: str
) -> None:
    model, dtype, own = loaded
    result = ask(what, model, TEXT)
    backend = "eager" if what in RECORDED else own
    assert called == {(backend, dtype)}
    assert (result.origin.backend, result.origin.dtype) == (backend, dtype)
    assert result.origin.device == "cpu"


def test_a_narrowed_result_keeps_its_origin(shown: dict[str, Result]) -> None:
    for what in ("run", "comparison"):
        result = shown[what]
        one = result.only(1, 2)
        assert one.origin is result.origin and one.holds_many is False
        assert replace(one, origin=replace(one.origin, model="another")).model_name == "another"


# ---- the rows of a table


def test_a_trace_told_in_two_rows_names_two_keys() -> None:
    trace = probe.trace("gpt2", "The cat sat on the mat", 4, 5, 5)
    whole, short = (trace.told(rows).splitlines() for rows in (None, 2))
    assert len(whole) - len(short) == len(trace.tokens) - 2


# ---- between processes


@every_kind
@pytest.mark.parametrize("way", ["pickled", "copied", "copied deeply"])
def test_it_is_the_same_after_a_round_trip(shown: dict[str, Result], what: str, way: str) -> None:
    result = shown[what]
    ways: dict[str, Callable[[Result], Result]] = {
        "pickled": lambda one: pickle.loads(pickle.dumps(one)),
        "copied": copy.copy,
        "copied deeply": copy.deepcopy,
    }
    again = ways[way](result)
    assert type(again) is type(result) and again is not result
    assert again.to_json() == result.to_json() and str(again) == str(result)
    assert again.arguments == result.arguments and again.origin == result.origin
    blocks = result.blocks()
    assert again.blocks().keys() == blocks.keys()
    for name, numbers in again.blocks().items():
        np.testing.assert_array_equal(numbers, blocks[name])
    assert len(pickle.dumps(result)) < 5_000_000  # the numbers, not the network
