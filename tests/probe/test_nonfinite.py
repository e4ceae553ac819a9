"""Models whose numbers are NaN or infinite: every result says so in words, and none praises them."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch

import probe
from probe import Model, ProbeError
from probe.analyses.measures import measures_of
from probe.display.nonfinite import descending, nonfinite

TEXT = "The cat sat on the cat"
SAYS = r"computes numbers here that are not finite \(NaN or infinity\)"


@pytest.fixture(params=[torch.nan, torch.inf], ids=["nan", "inf"], scope="module")
def broken(request: pytest.FixtureRequest, gpt2: Model) -> Model:
    """One weight of layer 2's queries is no number."""
    network = copy.deepcopy(gpt2.hf)
    with torch.no_grad():
        network.transformer.h[2].attn.c_attn.weight[0, 0] = request.param
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return probe.load(network, tokenizer=gpt2.tokenizer)


def test_one_sentence_or_none() -> None:
    assert nonfinite("m", [torch.ones(3), 0.0, None]) is None
    for values in ([torch.tensor([1.0, torch.nan])], [math.inf], [1.0, -math.inf], [torch.nan, None]):
        problem = nonfinite("The model", values)
        assert problem is not None and problem.startswith("The model computes") and problem.count(".") == 1


def test_what_is_not_finite_is_last() -> None:
    values = [0.5, math.nan, 2.0, math.inf, -1.0, math.nan, 3.0]
    assert sorted(values, key=descending)[:4] == [3.0, 2.0, 0.5, -1.0]


def test_in_words(broken: Model, gpt2: Model) -> None:
    run = probe.attend(broken, TEXT)
    shown = {
        "all maps": str(run),
        "all maps, in one line": repr(run),
        "all maps in a notebook": run._repr_html_(),
        "a map": str(run.only(2, 0)),
        "masks": str(probe.compare_masks(broken, TEXT, 2, 0)),
        "masks in every layer": str(probe.compare_masks(broken, TEXT, 2, 0, whole_model=True)),
        "trace": str(probe.trace(broken, TEXT, 2, 0, 3)),
        "rollout": str(probe.rollout(broken, TEXT)),
        "found": str(probe.find_heads(broken, TEXT, "sat", "cat")),
        "texts": str(probe.compare_texts(broken, TEXT, "a cat sat", 2, 0)),
        "verdict": probe.verify(broken, TEXT).verdict,
        "measures": str(probe.measure_heads(broken, TEXT)),
        "measures of a kept run": measures_of(probe.compare(broken, TEXT)).notice or "",
        "rerun": str(probe.run_from_scratch(broken, TEXT)),
    }
    for what, text in shown.items():
        assert "not finite (NaN or infinity)" in text, what
        assert "nan%" not in text and "sums to 1" not in text, what
    # Of what is sound the same is said as ever.
    assert "each row sums to 1" in str(run.only(1, 0))
    assert "not finite" not in str(probe.attend(broken, TEXT, [0, 1]))
    sound = probe.measure_heads(gpt2, TEXT)
    assert sound.notice is None and "not finite" not in str(sound)
    assert "% of the weight moves" in probe.compare_masks(broken, TEXT, 1, 0).summary
    with pytest.raises(ProbeError, match=SAYS):
        probe.predict(broken, TEXT)


def test_a_broken_output_projection(gpt2: Model) -> None:
    network = copy.deepcopy(gpt2.hf)
    with torch.no_grad():
        network.transformer.h[5].attn.c_proj.weight[0, 0] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = probe.load(network, tokenizer=gpt2.tokenizer)
    report = probe.verify(model, TEXT)
    assert not report.passed and "but the attention's output does NOT, in layer 5" in report.verdict
    assert "not finite (NaN or infinity)" in report.verdict

    assert "not finite" not in probe.verify(gpt2, TEXT).verdict


def test_broken_values_of_the_last_layer(gpt2: Model) -> None:
    """Every weight is sound then, but the values and contexts of one head are NaN, and so are the bounds."""
    network = copy.deepcopy(gpt2.hf)
    width = network.config.n_embd
    with torch.no_grad():
        network.transformer.h[5].attn.c_attn.weight[0, 2 * width + 2 * (width // 6)] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = probe.load(network, tokenizer=gpt2.tokenizer)
    report = probe.verify(model, TEXT)
    assert {head.layer for head in report.heads if not head.passed} == {5}
    assert all(math.isfinite(head.max_abs_error) for head in report.heads)
    assert report.verdict.count("not finite (NaN or infinity)") == 1


def test_a_ranking_with_an_effect_that_is_no_number(gpt2: Model) -> None:
    ranking = probe.rank_heads(gpt2, "The cat")
    assert ranking.remarks == ()
    last = ranking.ablations[-1]
    broken = replace(last, changes=(replace(last.changes[0], divergence=math.nan),))
    ranking = replace(ranking, ablations=(*ranking.ablations[:-1], broken))
    for face in (str(ranking), ranking.told(1), ranking._repr_html_()):
        assert "with some heads changed computes numbers here that are not finite" in face
