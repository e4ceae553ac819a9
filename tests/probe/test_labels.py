"""What heads do to a classifier's labels: against transformers' own pipeline, with heads removed by hand."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forking import Command
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
    TextClassificationPipeline,
)

import probe
import tiny
from probe import Model, ProbeError
from probe.ui.endpoints import of_analysis

TEXT = "the cat and the dog"
TEXTS = [TEXT, "a cat saw the cat that sat on the mat", "see the big red dog"]
NAMES = {0: "calm", 1: "glad", 2: "sad"}
SIZES: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 32}


def bert(**config: Any) -> PreTrainedModel:
    return BertForSequenceClassification(BertConfig(num_attention_heads=3, **SIZES, **config))


def distilbert(**config: Any) -> PreTrainedModel:
    sizes = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 32}
    return DistilBertForSequenceClassification(DistilBertConfig(**sizes, **config))


def gpt2(**config: Any) -> PreTrainedModel:
    sizes = {"vocab_size": 4_096, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64}
    return GPT2ForSequenceClassification(GPT2Config(**sizes, pad_token_id=1, **config))


def llama(**config: Any) -> PreTrainedModel:
    sizes = SIZES | {"num_attention_heads": 3, "num_key_value_heads": 3, "vocab_size": 4_096}
    return LlamaForSequenceClassification(LlamaConfig(**sizes, pad_token_id=1, **config))


BUILDERS = {"bert": bert, "distilbert": distilbert, "gpt2": gpt2, "llama": llama}
KINDS: dict[str, dict[str, Any]] = {
    "one of three": {"id2label": NAMES},
    "any of three": {"id2label": NAMES, "problem_type": "multi_label_classification"},
    "values": {"id2label": NAMES, "problem_type": "regression"},
    "one value": {"num_labels": 1, "problem_type": "regression"},
    "one label": {"num_labels": 1},
}


def made(name: str, kind: str) -> Model:
    network = BUILDERS[name](**KINDS[kind]).eval()
    tiny.draw_weights(network, 3)
    folder = tiny.GPT2_STORIES if name in ("gpt2", "llama") else tiny.minilm_folder()
    return probe.load(network, tokenizer=AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="module")
def models() -> Callable[[str, str], Model]:
    kept: dict[tuple[str, str], Model] = {}

    def model(name: str, kind: str) -> Model:
        if (name, kind) not in kept:
            kept[name, kind] = made(name, kind)
        return kept[name, kind]

    return model


def by_pipeline(model: Model, text: str, heads: list[tuple[int, int]]) -> dict[str, float]:
    """What transformers' pipeline says of each label, with the heads' output columns set to zero."""
    network = copy.deepcopy(model.hf)
    for layer, head in heads:
        output = model.known_family.sites(network)[layer].output.module  # type: ignore[misc]
        columns = slice(head * 8, (head + 1) * 8)
        with torch.no_grad():
            weight: Any = output.weight
            # GPT-2 stores (in, out), the others (out, in).
            (weight[columns] if "GPT2" in type(network).__name__ else weight[:, columns]).zero_()
    pipeline = TextClassificationPipeline(model=network, tokenizer=model.tokenizer, device="cpu")
    found: Any = pipeline(text, top_k=None)
    return {one["label"]: one["score"] for one in found}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BUILDERS)
def test_each_label_is_as_the_pipeline_has_it(
    models: Callable[[str, str], Model], name: str, kind: str
) -> None:
    model, heads = models(name, kind), [(0, 1), (1, 2)]
    before, after = by_pipeline(model, TEXT, []), by_pipeline(model, TEXT, heads)

    ablation = probe.ablate(model, TEXT, heads)

    assert [one.label for one in ablation.labels] == list(model.hf.config.id2label.values())
    assert {one.label: one.before for one in ablation.labels} == pytest.approx(before, rel=1e-4, abs=1e-6)
    assert {one.label: one.after for one in ablation.labels} == pytest.approx(after, rel=1e-4, abs=1e-6)
    moved = {name: after[name] - before[name] for name in before}
    assert max(map(abs, moved.values())) > 1e-3
    values = KINDS[kind].get("problem_type") == "regression"
    assert {one.unit for one in ablation.labels} == {"value" if values else "probability"}
    sizes = {name: abs(change) for name, change in moved.items()} if values else before
    first = max(sizes, key=sizes.__getitem__)
    assert ablation.shown_label is not None and ablation.labels[ablation.shown_label].label == first
    assert ablation.change == pytest.approx(moved[first], rel=1e-3, abs=1e-6)
    assert ablation.effect == abs(ablation.change or 0.0)
    assert ablation.changes == () and ablation.hidden_change.max() > 1e-3
    assert f'label "{first}" goes from' in ablation.summary


@pytest.mark.parametrize("label", ["sad", 2, "2"])
def test_the_label_that_is_asked_for(models: Callable[[str, str], Model], label: str | int) -> None:
    model = models("bert", "one of three")
    before, after = by_pipeline(model, TEXT, []), by_pipeline(model, TEXT, [(1, 0)])
    ablation = probe.ablate(model, TEXT, [(1, 0)], label=label)
    assert ablation.shown_label == 2
    assert ablation.effect == pytest.approx(abs(after["sad"] - before["sad"]), rel=1e-3, abs=1e-6)
    assert ablation.arguments["label"] == label


@pytest.mark.parametrize("label", [None, "glad"])
def test_heads_are_ranked_by_how_much_the_label_changes(
    models: Callable[[str, str], Model], label: str | None
) -> None:
    model = models("bert", "one of three")
    before = by_pipeline(model, TEXT, [])
    name = label or max(before, key=before.__getitem__)
    places = [(layer, head) for layer in range(2) for head in range(3)]
    changes = {place: by_pipeline(model, TEXT, [place])[name] - before[name] for place in places}

    ranking = probe.rank_heads(model, TEXT, label=label)

    order = sorted(places, key=lambda place: -abs(changes[place]))
    assert [one.heads[0] for one in ranking.ablations] == order
    frame = ranking.to_frame()
    for place, effect, change in zip(places, frame["effect"], frame["change"], strict=True):
        assert effect == pytest.approx(abs(changes[place]), rel=1e-3, abs=1e-6)
        assert change == pytest.approx(changes[place], rel=1e-3, abs=1e-6)
    assert len(set(map(abs, changes.values()))) == 6
    sheet = ranking.sheet()
    assert sheet is not None and f'change of the probability of "{name}"' in sheet.panels[0].note
    assert ranking.arguments == {"text": TEXT, **({"label": label} if label else {})}


def test_a_classifier_that_takes_one_text_at_a_time() -> None:
    network = gpt2(**KINDS["one of three"]).eval()
    network.config.pad_token_id = None  # it can't tell where rows of several texts end
    tiny.draw_weights(network, 3)
    model = probe.load(network, tokenizer=AutoTokenizer.from_pretrained(tiny.GPT2_STORIES))
    for found in probe.rank_heads(model, TEXT).ablations:
        alone = probe.ablate(model, TEXT, found.heads)
        assert found.change == pytest.approx(alone.change, rel=1e-3, abs=1e-6)


def by_hand(seen: torch.Tensor) -> Model:
    """A classifier of one head that matters: the label's logits are what the first token's context adds."""
    network = BertForSequenceClassification(
        BertConfig(num_attention_heads=3, id2label={0: "no", 1: "yes"}, num_labels=2, **SIZES)
    ).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.fill_(1.0 if "LayerNorm.weight" in name else 0.0)
        last = network.bert.encoder.layer[-1]
        last.attention.self.value.bias[8:16] = seen  # head 1 says the same of every key
        last.attention.output.dense.weight.copy_(torch.eye(24))
        network.bert.pooler.dense.weight.copy_(torch.eye(24))
        network.classifier.weight[1] = torch.eye(24)[8]
    return probe.load(network, tokenizer=AutoTokenizer.from_pretrained(tiny.minilm_folder()))


def test_a_head_that_alone_makes_the_label_on_paper() -> None:
    seen = torch.zeros(8)
    seen[0] = 1.0
    # One of 24 numbers is 1, the norm makes it (1 - 1/24) / (sqrt(23) / 24) = sqrt(23); then tanh.
    logit = np.tanh(np.sqrt(23.0))
    likely = 1 / (1 + np.exp(-logit))
    model = by_hand(seen)
    ranking = probe.rank_heads(model, TEXT)
    first, *others = ranking.ablations
    assert first.heads == ((1, 1),) and [one.effect for one in others] == [0.0] * 5
    yes = first.labels[1]
    assert (yes.before, yes.after) == (pytest.approx(likely, abs=1e-6), pytest.approx(0.5, abs=1e-6))
    assert first.change == pytest.approx(0.5 - likely, abs=1e-6)
    over = probe.rank_heads(model, TEXTS, label="yes")  # the same in every text
    row = over.at(layer=1, head=1)
    assert row["change"].mean == pytest.approx(0.5 - likely, abs=1e-6)
    assert row["change"].spread == pytest.approx(0.0, abs=1e-6) and row["change"].count == 3


def test_means_over_texts_are_of_each_label(models: Callable[[str, str], Model]) -> None:
    model = models("gpt2", "one of three")
    over = probe.ablate(model, TEXTS, [(0, 1)])
    for index, name in NAMES.items():
        pairs = [(by_pipeline(model, text, []), by_pipeline(model, text, [(0, 1)])) for text in TEXTS]
        changes = [after[name] - before[name] for before, after in pairs]
        found = over.at()[f"label_{index}_change"]
        assert found.mean == pytest.approx(np.mean(changes), rel=1e-3, abs=1e-6)
        assert found.spread == pytest.approx(np.std(changes, ddof=1), rel=1e-3, abs=1e-6)
    assert "change of glad" in str(over)


def test_what_there_is_no_label_for(models: Callable[[str, str], Model], bert: Model) -> None:
    model = models("bert", "one of three")
    for ask in (
        lambda **more: probe.ablate(model, TEXT, [0], **more),
        lambda **more: probe.rank_heads(model, TEXT, **more),
    ):
        for label in ("angry", 3, -1, "3", True, ""):
            with pytest.raises(ProbeError, match="it has calm, glad, sad, numbered 0 to 2"):
                ask(label=label)
    with pytest.raises(ProbeError, match="is no sequence classifier"):
        probe.ablate(bert, TEXT, [0], label="glad")


def test_two_labels_of_one_name() -> None:
    network = bert_of({0: "other", 1: "other", 2: "sad"})
    with pytest.raises(ProbeError, match=r"2 labels of .* are called 'other': give the label's number"):
        probe.ablate(network, TEXT, [0], label="other")
    assert probe.ablate(network, TEXT, [0], label=1).shown_label == 1
    over = probe.ablate(network, TEXTS[:2], [0])
    assert {"label_0_change", "label_1_change"} <= set(over.rows[0].means)


def bert_of(names: dict[int, str]) -> Model:
    network = bert(id2label=names).eval()
    tiny.draw_weights(network, 3)
    return probe.load(network, tokenizer=AutoTokenizer.from_pretrained(tiny.minilm_folder()))


@pytest.mark.parametrize("kind", ["one of three", "values"])
def test_every_face(models: Callable[[str, str], Model], kind: str, tmp_path: Path) -> None:
    """Of a classifier that lies in a folder, as its class was saved: made again by another load."""
    folder = tmp_path / "classifier"
    given = models("bert", kind)
    given.hf.save_pretrained(folder)
    given.tokenizer.save_pretrained(folder)
    model = probe.load(str(folder))
    ablation = probe.ablate(model, TEXT, [(0, 1)], label="glad")
    frame = ablation.to_frame()
    assert list(frame["label"]) == list(NAMES.values())
    assert list(frame["change"]) == [one.after - one.before for one in ablation.labels]
    assert [one["label"] for one in ablation.to_dict()["labels"]] == list(NAMES.values())
    assert all(name in str(ablation) for name in NAMES.values()) and "<img" in ablation._repr_html_()
    sheet = ablation.sheet()
    assert sheet is not None and sum(panel.rows.name == "label" for panel in sheet.panels) == (
        2 if kind == "one of three" else 1
    )
    ranking = probe.rank_heads(model, TEXT, label="glad")
    assert len(ranking.to_dict()["heads"][0]["labels"]) == 3
    over = probe.rank_heads(model, TEXTS[:2], label="glad")
    for result in (ablation, ranking, over):
        for suffix in ("json", "npz", "csv", "parquet", "svg"):
            found = probe.reproduce(probe.export(result, tmp_path / f"x.{suffix}"), load=True)
            assert found.holds, found.reasons
            assert found.manifest.arguments["label"] == "glad"


def test_a_label_that_was_changed_in_a_file_is_found(
    models: Callable[[str, str], Model], tmp_path: Path
) -> None:
    model = models("bert", "one of three")
    path = probe.export(probe.ablate(model, TEXT, [(0, 1)]), tmp_path / "x.json", model=model)
    content = json.loads(path.read_text())
    content["numbers"]["label_1_glad_after"] += 0.01
    path.write_text(json.dumps(content))
    found = probe.reproduce(path, model=model)
    assert not found.numbers_hold and "label_1_glad_after" in found.reasons[0]


def test_on_the_command_line_and_over_the_network(
    command: Command, models: Callable[[str, str], Model], tmp_path: Path
) -> None:
    given = models("bert", "one of three")
    given.hf.save_pretrained(tmp_path)
    given.tokenizer.save_pretrained(tmp_path)
    expected = probe.rank_heads(given, TEXT, label="sad").ablations
    done = command("effect", tmp_path, TEXT, "--label", "sad", "--json")
    assert done.returncode == 0, done.stderr
    answer = of_analysis(probe.Ranking)(TEXT, model=str(tmp_path), label="sad")
    for heads in (json.loads(done.stdout)["heads"], answer["heads"]):
        assert [one["effect"] for one in heads] == pytest.approx([one.effect for one in expected], rel=1e-4)
    done = command("effect", tmp_path, TEXT, "--label", "angry")
    assert done.returncode == 2 and re.search("There is no label 'angry'", done.stderr)
    path = tmp_path / "x.json"
    done = command("export", tmp_path, TEXT, path, "--what", "ablation", "--label", "sad")
    assert done.returncode == 0, done.stderr
    assert probe.reproduce(path, load=True).manifest.arguments["label"] == "sad"
