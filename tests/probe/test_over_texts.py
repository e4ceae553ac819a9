"""Several texts: each answer as for that text alone, means and spreads by numpy, and by hand on paper."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from forking import Command
from safetensors.torch import load_file, save_file

import probe
from probe import Model, OverTexts, ProbeError, cli
from probe.analyses.over_texts import Mean
from probe.analyses.result import RESULTS, Result, strictly_plain
from probe.files.formats import FORMATS, formats_of
from probe.ui.endpoints import of_analysis

TEXTS = [
    "the cat and the dog",
    "a cat saw the cat that sat on the mat",
    "see the cat and the very big red dog",
]
LONG = " ".join(["the cat"] * 40)
POSITIONS = 20
Ask = Callable[..., Any]
ASKED: dict[str, tuple[Ask, dict[str, Any]]] = {
    "measures": (probe.measure_heads, {}),
    "distances": (probe.distances, {}),
    "rollout": (probe.rollout, {}),
    "found": (probe.find_heads, {"from_word": "cat", "to_word": "the"}),
    "ablation": (probe.ablate, {"heads": [(0, 1), (1, 2)], "how": "mean"}),
    "ranking": (probe.rank_heads, {"how": "mean"}),
}
every_kind = pytest.mark.parametrize("what", ASKED)


def ask(what: str, model: Model, texts: Any, **more: Any) -> Any:
    function, arguments = ASKED[what]
    return function(model, texts, **arguments, **more)


@pytest.fixture(scope="module")
def folder(tiny_bert: Callable[..., Path]) -> Path:
    return tiny_bert(max_position_embeddings=POSITIONS)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return probe.load(str(folder))


@pytest.fixture(scope="module")
def several(model: Model) -> dict[str, OverTexts[Any]]:
    return {what: ask(what, model, TEXTS) for what in ASKED}


@pytest.fixture(scope="module")
def alone(model: Model) -> dict[str, list[Any]]:
    return {what: [ask(what, model, text) for text in TEXTS] for what in ASKED}


def of_head(result: Any, layer: int, head: int, name: str) -> float | None:
    """A number of one text's result, by its own attributes."""
    if isinstance(result, probe.Rollout):
        shares, length = result.maps[layer].tolist(), len(result.tokens)
        if name == "on_self":
            return sum(shares[i][i] for i in range(length)) / length
        if name == "on_first":
            return sum(shares[i][0] for i in range(1, length)) / (length - 1)
        if name == "on_special":
            special = [key for key in range(length) if result.special[key]]
            return sum(shares[i][key] for i in range(length) for key in special) / length
        return sum(shares[i][j] * abs(i - j) for i in range(length) for j in range(length)) / length
    if isinstance(result, probe.Ablation):
        value = result.hidden_change.mean() if name == "hidden_change" else getattr(result, name)
        return None if value is None else float(value)
    if isinstance(result, probe.Ranking):
        (one,) = (one for one in result.ablations if one.heads == ((layer, head),))
    else:
        (one,) = (one for one in result.heads if (one.layer, one.head) == (layer, head))
    value = getattr(one, name)
    return None if value is None else float(value)


NUMBERS = {
    "measures": "entropy distance on_self on_previous on_next on_first on_special induction",
    "distances": "distance uniform",
    "rollout": "on_self on_first on_special distance",
    "found": "weight versus difference",
    "ablation": "effect logit_change hidden_change",
    "ranking": "effect logit_change",
}


# ---- the numbers


@every_kind
def test_mean_and_spread_are_those_of_the_texts_alone(
    several: dict[str, OverTexts[Any]], alone: dict[str, list[Any]], what: str
) -> None:
    over, frame = several[what], several[what].to_frame()
    by = {"rollout": ["layer"], "ablation": []}.get(what, ["layer", "head"])
    places = {"rollout": [(0, 0), (1, 0)], "ablation": [(0, 0)]}.get(
        what, [(layer, head) for layer in range(2) for head in range(3)]
    )
    assert len(frame) == len(over.rows) == len(places)
    assert frame[by].to_numpy().tolist() == [list(place[: len(by)]) for place in places]
    some = 0
    for name in NUMBERS[what].split():
        for index, place in enumerate(places):
            given = [of_head(one, *place, name) for one in alone[what]]
            values = [value for value in given if value is not None]
            row = over.at(**dict(zip(by, place, strict=False)))
            assert frame[f"{name}_count"][index] == row[name].count == len(values)
            if not values:
                assert row[name].mean is None and row[name].spread is None
                continue
            some += 1
            assert row[name].mean == pytest.approx(np.mean(values), rel=1e-4, abs=1e-6)
            assert frame[f"{name}_mean"][index] == row[name].mean
            if len(values) > 1:
                assert row[name].spread == pytest.approx(np.std(values, ddof=1), rel=1e-2, abs=1e-6)
                assert frame[f"{name}_spread"][index] == row[name].spread
    assert some


@every_kind
def test_each_text_has_its_own_result(
    several: dict[str, OverTexts[Any]], alone: dict[str, list[Any]], what: str
) -> None:
    over = several[what]
    assert len(over) == 3 and list(over) == list(over.results) and over[1] is over.results[1]
    for ours, theirs in zip(over, alone[what], strict=True):
        assert type(ours) is type(theirs) is RESULTS[what] and ours.text == theirs.text
        for name, block in theirs.blocks().items():
            np.testing.assert_allclose(ours.blocks()[name], block, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("values", "mean", "spread", "count"),
    [
        ([1.0, 2.0, 6.0], 3.0, math.sqrt(7.0), 3),  # (4 + 1 + 9) / 2
        ([1.0, None, 2.0], 1.5, math.sqrt(0.5), 2),
        ([4.0], 4.0, None, 1),
        ([None, 4.0], 4.0, None, 1),
        ([None, None], None, None, 0),
        ([-1.0, 1.0], 0.0, math.sqrt(2.0), 2),
    ],
)
def test_means_on_paper(values: list[float | None], mean: Any, spread: Any, count: int) -> None:
    found = Mean.of(values)
    assert found.count == count
    assert found.mean == mean and found.spread == (spread if spread is None else pytest.approx(spread))


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.inf, 1.0], [math.inf, -math.inf]])
def test_what_is_no_number_is_not_averaged_away(values: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Mean.of(values)
    assert found.mean is not None and not math.isfinite(found.mean) and found.count == 2


def uniform_gpt2(folder: Path) -> Model:
    """Every query looks at all keys it may see alike: its projection is zero."""
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if "attn.c_attn" in name:
            weights[name][..., :24] = 0.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return probe.load(str(folder))


def test_heads_that_look_at_everything_alike_on_paper(tiny_gpt2: Callable[..., Path]) -> None:
    model = uniform_gpt2(tiny_gpt2())
    texts, lengths = ["the cat", "the cat and the dog", "a b c d e f g"], []
    for text in texts:
        lengths.append(len(model.tokenizer(text)["input_ids"]))
    assert len(set(lengths)) == 3 and min(lengths) > 1

    def expected(of: Callable[[int], Fraction]) -> tuple[float, float]:
        """Mean and standard deviation, with n - 1, of exact numbers."""
        numbers = [of(length) for length in lengths]
        mean = sum(numbers, Fraction(0)) / 3
        return float(mean), math.sqrt(sum((number - mean) ** 2 for number in numbers) / 2)

    def on_first(length: int) -> Fraction:
        """Query q gives each of its q + 1 keys the same; the first query is left out."""
        return sum((Fraction(1, query + 1) for query in range(1, length)), Fraction(0)) / (length - 1)

    measured, far = probe.measure_heads(model, texts), probe.distances(model, texts)
    for layer in range(2):
        for head in range(3):
            row = measured.at(layer=layer, head=head)
            assert row["entropy"].mean == pytest.approx(1.0, abs=1e-6)
            assert row["entropy"].spread == pytest.approx(0.0, abs=1e-6)
            for name in ("on_first", "on_self"):
                mean, spread = expected(on_first)
                assert row[name].mean == pytest.approx(mean, rel=1e-5)
                assert row[name].spread == pytest.approx(spread, rel=1e-4)
            # Of the whole map: the mean of 0, 1/2, 2/2 ... is (length - 1) / 4.
            mean, spread = expected(lambda length: Fraction(length - 1, 4))
            assert far.at(layer=layer, head=head)["distance"].mean == pytest.approx(mean, rel=1e-5)
            assert far.at(layer=layer, head=head)["distance"].spread == pytest.approx(spread, rel=1e-4)


def test_texts_of_one_token_have_nothing_to_measure_and_are_not_counted(gpt2: Model) -> None:
    texts = ["a", "the cat sat", "I"]
    assert [len(gpt2.tokenizer(text)["input_ids"]) for text in texts] == [1, 3, 1]
    over, alone = probe.measure_heads(gpt2, texts), probe.measure_heads(gpt2, texts[1])
    for head in alone.heads:
        found = over.at(layer=head.layer, head=head.head)["entropy"]
        assert (found.count, found.spread) == (1, None)
        assert found.mean == pytest.approx(head.entropy, rel=1e-4)
    assert re.search(r"\d \(1\)", str(over))
    rolled = probe.rollout(gpt2, ["a", "I"])
    assert rolled.at(layer=0)["on_self"].mean == 1.0 and rolled.at(layer=0)["on_first"].count == 0
    sheet = rolled.sheet()
    assert sheet is not None and "on_first" not in " ".join(panel.title for panel in sheet.panels)
    for only in (probe.measure_heads(gpt2, ["a"]), rolled):
        assert only._repr_html_().count("<img") == 1 and "nan" not in str(only).lower()


# ---- ranking


@pytest.mark.parametrize(
    ("what", "name"), [("found", "weight"), ("ranking", "effect"), ("distances", "distance")]
)
def test_the_largest_mean_comes_first(several: dict[str, OverTexts[Any]], what: str, name: str) -> None:
    over = several[what]
    means = [row[name].mean for row in over.rows]
    assert means == sorted(means, reverse=True)
    first = over.rows[0]
    assert (
        f"layer {first.place['layer']}, head {first.place['head']}, {name} {means[0]:.4g} ±" in over.summary
    )


def test_ranked_by_any_measure_by_name_or_title(several: dict[str, OverTexts[Any]]) -> None:
    over = several["measures"]
    for name in ("on_previous", "previous"):
        means = [row["on_previous"].mean for row in over.ranked(name)]
        assert means == sorted(means, reverse=True)
        assert [row["on_previous"].mean for row in over.ranked(name, ascending=True)] == means[::-1]
    with pytest.raises(ProbeError, match="There is no measure 'size'; there are entropy, "):
        over.ranked("size")
    with pytest.raises(ProbeError, match="named by layer and head"):
        over.at(layer=7, head=0)


def test_a_mean_that_is_no_number_comes_last(several: dict[str, OverTexts[Any]]) -> None:
    over = several["ranking"]
    rows = list(over.rows)
    rows[0] = type(rows[0])(rows[0].place, {"effect": Mean(math.nan, math.nan, 3)})
    again = OverTexts(over.results, tuple(rows), origin=over.origin)
    for ascending in (False, True):
        assert again.ranked("effect", ascending=ascending)[-1] is rows[0]


# ---- what is taken for several texts


@pytest.mark.parametrize(
    "given",
    [
        tuple,
        np.array,
        pandas.Series,
        lambda texts: pandas.Series(texts, index=[7, 8, 9]),
        lambda texts: (text for text in texts),
    ],
    ids=["three in a tuple", "array", "column", "column with an index", "generator"],
)
@pytest.mark.parametrize("what", ["measures", "ranking"])
def test_what_stands_for_a_list(
    several: dict[str, OverTexts[Any]], model: Model, what: str, given: Callable[[Sequence[str]], Any]
) -> None:
    if given is tuple:  # a tuple is a pair
        with pytest.raises(ProbeError):
            ask(what, model, given(TEXTS))
        return
    again = ask(what, model, given(TEXTS))
    assert again.arguments == several[what].arguments and again.arguments["text"] == TEXTS
    np.testing.assert_allclose(
        again.to_frame().to_numpy(float), several[what].to_frame().to_numpy(float), rtol=1e-4, atol=2e-6
    )


@every_kind
def test_a_list_of_one_is_several_too(model: Model, alone: dict[str, list[Any]], what: str) -> None:
    over = ask(what, model, TEXTS[:1])
    assert isinstance(over, OverTexts) and len(over) == 1
    assert all(mean.spread is None for row in over.rows for mean in row.means.values())
    assert over.arguments["text"] == TEXTS[:1] and "Text 0" not in str(over)


def test_pairs_of_sentences(bert: Model) -> None:
    pairs = [("the cat", "sat"), ("a dog", "ran away")]
    over = probe.measure_heads(bert, pairs)
    alone = [probe.measure_heads(bert, pair) for pair in pairs]
    expected = [one.heads[5].on_special for one in alone]
    assert over.at(layer=0, head=5)["on_special"].mean == pytest.approx(np.mean(expected), rel=1e-4)


@every_kind
@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "an empty list"),
        (7, "of type int"),
        ([TEXTS[0], LONG, TEXTS[1]], f"Text 1 of 3: .* at most {POSITIONS}"),
        ([TEXTS[0], "", TEXTS[1]], "Text 1 of 3: "),
        ([TEXTS[0], TEXTS[1], 7], "Text 2 of 3: "),
        ([TEXTS[0], ["a"]], "Text 1 of 2: "),
    ],
)
def test_what_can_not_be_taken_is_said_of_its_text(model: Model, what: str, texts: Any, says: str) -> None:
    with pytest.raises(ProbeError, match=says):
        ask(what, model, texts)


def test_all_texts_are_looked_at_before_the_first_is_run(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(*_: Any, **__: Any) -> None:
        pytest.fail("the model was run")

    monkeypatch.setattr(type(model.hf), "forward", ran)
    for what in ASKED:
        with pytest.raises(ProbeError, match="Text 2 of 3"):
            ask(what, model, [TEXTS[0], TEXTS[1], LONG])


def test_a_word_that_one_text_lacks_is_said_of_it(model: Model) -> None:
    with pytest.raises(ProbeError, match='Text 1 of 2: "cat" is not in the text'):
        probe.find_heads(model, [TEXTS[0], "the dog sat"], "cat", "the")


@every_kind
def test_what_was_cut_is_said_of_its_text(model: Model, what: str) -> None:
    over = ask(what, model, [TEXTS[0], LONG], truncate=True)
    (said,) = over.cuts
    assert said.startswith(f"Text 1 of 2: Cut to the first {POSITIONS} of ")
    sheet = over.sheet()
    assert sheet is not None and said in sheet.captions
    for face in (str(over), unescape(over._repr_html_())):
        assert face.count(said) == 1
    assert over.arguments["truncate"] is True


@every_kind
def test_progress_says_how_much_is_done(model: Model, what: str) -> None:
    seen: list[tuple[int, int]] = []
    ask(what, model, TEXTS[:2], progress=lambda *now: seen.append(now))
    total = 12 if what == "ranking" else 2  # 6 heads of 2 texts
    assert seen == [(done, total) for done in range(1, total + 1)]


# ---- the faces


@every_kind
def test_the_text_says_what_it_is_of(several: dict[str, OverTexts[Any]], what: str) -> None:
    over = several[what]
    assert "3 texts" in over.summary and over.model_name in over.summary and "\n" not in over.summary
    assert over.summary in str(over) and over.summary in unescape(over._repr_html_())
    assert "±" in str(over) and "standard deviation over texts (with n - 1)" in str(over)
    for row in over.rows:
        for mean in row.means.values():
            assert mean.mean is None or f"{mean.mean:.4g}" in str(over)


@every_kind
def test_remarks_of_every_text_are_said_once(several: dict[str, OverTexts[Any]], what: str) -> None:
    over = several[what]
    for line in over.remarks:
        assert str(over).count(line) == 1
    if what == "rollout":
        assert over.remarks == (probe.Rollout.caveat,)
    if what == "found":  # a causal model leaves out another number of tokens in each text
        assert not over.remarks


@every_kind
def test_the_picture_has_the_means(several: dict[str, OverTexts[Any]], what: str) -> None:
    over = several[what]
    sheet = over.sheet()
    assert sheet is not None and sheet.panels
    panels = {panel.title: panel for panel in sheet.panels}
    if what == "ablation":
        effects = [one.effect for one in over]
        assert panels["effect"].values.tolist() == pytest.approx(effects)
    elif what == "rollout":
        means = [row["on_self"].mean for row in over.rows]
        assert panels["on_self, mean"].values.tolist() == pytest.approx(means)
    else:
        for row in over.rows:
            name = NUMBERS[what].split()[0]
            cell = row.place["layer"], row.place["head"]
            assert float(panels[f"{name}, mean"].values[cell]) == row[name].mean
            assert float(panels[f"{name}, spread"].values[cell]) == row[name].spread
    assert all(panel.values.isfinite().all() or panel.crossed is not None for panel in sheet.panels)


@every_kind
def test_json_is_strict_and_has_each_text(several: dict[str, OverTexts[Any]], what: str) -> None:
    over = several[what]
    plain = json.loads(over.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert plain == over.to_dict() and plain["model"] == over.model_name
    assert plain["results"] == [strictly_plain(one.to_dict()) for one in over]
    for row, found in zip(over.rows, plain["rows"], strict=True):
        for name, mean in row.means.items():
            assert found[name] == {"mean": mean.mean, "spread": mean.spread, "count": mean.count}
        assert {name: found[name] for name in row.place} == dict(row.place)


@every_kind
def test_the_arguments_give_the_same_again(
    several: dict[str, OverTexts[Any]], model: Model, what: str
) -> None:
    over = several[what]
    assert over.arguments == {"text": TEXTS, **ASKED[what][1]}
    again = over.kind.analysis(model, **over.arguments)
    assert list(again.blocks()) == list(over.blocks())


@every_kind
def test_every_format_is_made_again(several: dict[str, OverTexts[Any]], what: str, tmp_path: Path) -> None:
    over = several[what]
    assert set(formats_of(type(over))) == set(FORMATS) - {"html", "xlsx"}
    for suffix in ("json", "npz", "csv", "parquet", "svg", "pdf"):
        path = probe.export(over, tmp_path / f"x.{suffix}")
        found = probe.reproduce(path, load=True)
        assert found.holds, found.reasons
        assert found.manifest.texts == tuple(TEXTS) and found.manifest.what == what
    lines: dict[str, Any] = {}
    exec(found.manifest.python, lines)
    assert lines["result"].arguments == over.arguments


def test_a_number_of_one_text_that_was_changed_is_found(
    several: dict[str, OverTexts[Any]], tmp_path: Path
) -> None:
    path = probe.export(several["found"], tmp_path / "x.json")
    content = json.loads(path.read_text())
    content["numbers"]["text_1_weight"][0] += 0.01
    path.write_text(json.dumps(content))
    found = probe.reproduce(path, load=True)
    assert not found.numbers_hold and "text_1_weight" in found.reasons[0]


@every_kind
def test_pickled_and_back(several: dict[str, OverTexts[Any]], what: str) -> None:
    again = pickle.loads(pickle.dumps(several[what]))
    assert again.to_json() == several[what].to_json()


@pytest.fixture(scope="module")
def broken(tiny_gpt2: Callable[..., Path]) -> Model:
    folder = tiny_gpt2()
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("h.1.attn.c_attn.weight"))
    weights[name][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return probe.load(str(folder))


@pytest.mark.parametrize("what", ["measures", "distances", "rollout", "found"])
def test_a_model_whose_numbers_are_none(broken: Model, what: str) -> None:
    function, arguments = ASKED[what]
    arguments = {"from_word": "dog", "to_word": "cat"} if what == "found" else arguments
    over = function(broken, [TEXTS[0], "the cat and a dog"], **arguments)
    assert "not finite (NaN or infinity)" in str(over)
    assert "nan" not in str(over).lower().replace("nan or infinity", "").replace("(nan", "")
    json.loads(over.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert over._repr_html_()


# ---- what takes one text


@pytest.mark.parametrize(
    "ask_one",
    [
        lambda model, texts: probe.trace(model, texts, 0, 0, 0),
        lambda model, texts: probe.compare(model, texts),
        lambda model, texts: probe.compare_masks(model, texts, 0, 0),
        lambda model, texts: probe.run_from_scratch(model, texts),
    ],
)
def test_what_is_of_one_text_says_so(model: Model, ask_one: Callable[[Model, Any], Result]) -> None:
    with pytest.raises(ProbeError, match="text"):
        ask_one(model, TEXTS)


# ---- the command line and the endpoints


COMMANDS = {
    "measures": ["heads"],
    "distances": ["distances"],
    "rollout": ["rollout"],
    "found": ["find"],
    "ablation": ["effect", "--how", "mean", "--layer", "0", "--head", "1"],
    "ranking": ["effect", "--how", "mean"],
}


@every_kind
def test_several_texts_on_the_command_line(
    command: Command, model: Model, folder: Path, what: str, tmp_path: Path
) -> None:
    name, *options = COMMANDS[what]
    words = ["cat", "the"] if what == "found" else []
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS[1:]) + "\n\n")
    done = command(name, str(folder), TEXTS[0], *words, "--texts", str(file), *options, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    more = {"heads": [(0, 1)]} if what == "ablation" else {}
    expected = ASKED[what][0](model, TEXTS, **(ASKED[what][1] | more))
    assert [one["text"] for one in printed["results"]] == TEXTS
    for ours, theirs in zip(printed["rows"], expected.rows, strict=True):
        for number, mean in theirs.means.items():
            assert ours[number]["count"] == mean.count
            if mean.mean is not None:
                assert ours[number]["mean"] == pytest.approx(mean.mean, rel=1e-4, abs=1e-6)


def test_sorted_heads_of_several_texts_on_the_command_line(command: Command, folder: Path) -> None:
    done = command("heads", folder, *TEXTS, "--sort", "previous", "--top", "2", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 2 and rows[0]["on_previous"]["mean"] >= rows[1]["on_previous"]["mean"]


def test_an_export_of_several_texts_on_the_command_line(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    done = command("export", folder, *TEXTS, path, "--what", "measures")
    assert done.returncode == 0, done.stderr
    assert probe.reproduce(path, load=True).manifest.texts == tuple(TEXTS)
    for what in ("run", "trace"):
        done = command("export", folder, *TEXTS, tmp_path / "y.json", "--what", what)
        assert done.returncode == 2 and f"a {what} is of one text" in done.stderr


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("took", "screen", "expected"),
    [
        (0.5, Screen(), ""),
        (1.5, Screen(), "\r1 of 2 done\r2 of 2 done\r\033[K"),
        (1.5, io.StringIO(), ""),
    ],
    ids=["quick", "slow", "to a file"],
)
def test_who_waits_longer_than_a_second_sees_how_much_is_done(
    monkeypatch: pytest.MonkeyPatch, took: float, screen: io.StringIO, expected: str
) -> None:
    now = 0.0
    monkeypatch.setattr(cli.time, "monotonic", lambda: now)
    monkeypatch.setattr(cli.sys, "stderr", screen)
    with cli._progress() as progress:
        now = took
        progress(1, 2)
        progress(2, 2)
    assert screen.getvalue() == expected


def test_several_texts_over_the_network() -> None:
    answer = of_analysis(probe.HeadDistances)(TEXTS[:2], model="gpt2")
    assert [one["text"] for one in answer["results"]] == TEXTS[:2]
    expected = probe.distances("gpt2", TEXTS[:2])
    assert answer["rows"][0]["distance"]["mean"] == pytest.approx(expected.rows[0]["distance"].mean, rel=1e-5)
    with pytest.raises(Exception, match="at most 32"):
        of_analysis(probe.HeadDistances)(["a"] * 33, model="gpt2")
    with pytest.raises(Exception, match="single text"):
        of_analysis(probe.HeadDistances)(TEXTS[:2], model="gpt2", second="and")
