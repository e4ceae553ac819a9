"""The command line: results on stdout, messages on stderr, exit code 0, 1 or 2, and never a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forking import Command
from numbers_in_text import alike, close, says
from safetensors.torch import load_file, save_file
from texts import STORY

import probe
from probe import cli
from probe.analyses.checks import weights
from probe.models.families import Projection

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = "The cat sat on the mat because it was warm."
Run = Callable[..., tuple[int, str, str]]
TEXT_COMMANDS = (
    *("verify", "attend", "masks", "trace", "heads", "find", "effect", "export"),
    *("compare", "distances", "from-scratch", "predict", "rollout"),
)
COMMANDS = (*TEXT_COMMANDS, "texts", "reproduce", "models")


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("verify", "gpt2", "Hi")` in this process: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["probe", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfdbinary.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, out.decode(), err.decode()

    return call


def strict(text: str) -> Any:
    """The one JSON value that the text is; NaN and Infinity are none."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def elsewhere(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "probe", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=120,
    )


def test_verify_prints_a_table(run: Run) -> None:
    code, out, err = run("verify", "gpt2", SENTENCE)
    assert code == 0 and "Traceback" not in err
    assert out.startswith("All 36 heads of gpt2-stories agree")
    assert len(re.findall(r"ok$", out, re.MULTILINE)) == 36 + 6


def test_verify_as_json(run: Run) -> None:
    code, out, _ = run("verify", "bert", SENTENCE, "One day", "--json")
    report = strict(out)
    assert code == 0
    assert report["passed"] is True and report["texts"] == [SENTENCE, "One day"]
    assert len(report["heads"]) == 72 and report["model"] == "all-MiniLM-L6-v2"


def test_json_of_weights_that_are_no_numbers(run: Run, tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2()
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("h.0.attn.c_attn.weight"))
    weights[name][:] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _, out, _ = run("attend", str(folder), "a b", "--json")
    assert strict(out)["weights"][0]["weights"][0][0] == "nan"
    _, out, _ = run("masks", str(folder), "a b", "--json")
    assert strict(out)["moved"][0] == "nan"
    _, out, _ = run("trace", str(folder), "a b", "--query", "1", "--json")
    assert strict(out)["maximum"] == "nan" and strict(out)["masked"][0] == "nan"
    assert strict(probe.trace(str(folder), "a b", 0, 0, 0).to_json())["maximum"] == "nan"


def test_a_failed_check_is_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Projection, "bias", lambda self: torch.zeros(len(self.weight())))
    code, out, _ = run("verify", "gpt2", SENTENCE)
    assert code == 1
    assert "heads of gpt2-stories do NOT agree" in out and "FAILED" in out
    code, out, _ = run("verify", "gpt2", SENTENCE, "--json")
    assert code == 1 and strict(out)["passed"] is False


def test_numbers_that_are_none_stay_strict_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = weights.from_scratch

    def broken(*arguments: Any) -> Any:
        module = sound(*arguments)
        module.scale = float("nan")
        return module

    monkeypatch.setattr(weights, "from_scratch", broken)
    code, out, _ = run("verify", "gpt2", SENTENCE, "--json")
    report = strict(out)
    assert code == 1 and report["passed"] is False
    assert report["max_abs_error"] == report["heads"][0]["max_abs_error"] == "nan"


def test_verify_a_file_and_a_pair(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes("\ufeffCafé\r\n\r\n  \nform\x0cfeed\n".encode())
    code, out, _ = run("verify", "gpt2", "--file", str(file), "--json")
    assert code == 0 and strict(out)["texts"] == ["Café", "form\x0cfeed"]
    code, out, _ = run("verify", "bert", "Who sat?", "--pair", "The cat sat.", "--json")
    assert code == 0 and strict(out)["texts"] == [["Who sat?", "The cat sat."]]


def test_attend(run: Run) -> None:
    code, out, _ = run("attend", "gpt2", SENTENCE, "--layer", "4", "--head", "5", "--json")
    shown = strict(out)
    expected = probe.attend("gpt2", SENTENCE)
    assert code == 0 and shown["tokens"] == list(expected.tokens)
    (kept,) = shown["weights"]
    assert (kept["layer"], kept["head"]) == (4, 5)
    torch.testing.assert_close(torch.tensor(kept["weights"]), expected.weights(4, 5), rtol=0, atol=1e-6)
    code, out, _ = run("attend", "gpt2", SENTENCE, "--all", "--json")
    assert code == 0 and len(strict(out)["weights"]) == 36
    code, out, _ = run("attend", "gpt2", SENTENCE)
    assert code == 0 and "query \\ key" in out and "layer 0, head 0" in out


def test_masks(run: Run) -> None:
    code, out, _ = run("masks", "bert", SENTENCE, "--layer", "2", "--head", "1", "--json")
    shown = strict(out)
    assert code == 0 and shown["trained_with"] == "bidirectional"
    assert (shown["layer"], shown["head"]) == (2, 1)
    causal = torch.tensor(shown["causal"])
    assert not causal.triu(1).any()
    code, out, _ = run("masks", "gpt2", SENTENCE)
    assert code == 0 and "trained with the causal mask" in out


def test_effect(run: Run) -> None:
    code, out, _ = run("effect", "gpt2", SENTENCE, "--layer", "4", "--head", "5", "--how", "mean", "--json")
    expected = probe.ablate("gpt2", SENTENCE, [(4, 5)], "mean").to_dict()
    assert code == 0 and close(strict(out), json.loads(json.dumps(expected)))
    code, out, _ = run("effect", "gpt2", SENTENCE, "--layer", "4")
    assert code == 0 and alike(out, probe.ablate("gpt2", SENTENCE, [4]).summary)
    code, out, _ = run("effect", "gpt2", SENTENCE, "--top", "2")
    ranking = probe.rank_heads("gpt2", SENTENCE)
    assert code == 0 and alike(out, ranking.told(2))
    largest = sorted((one.effect for one in ranking.ablations), reverse=True)[:2]
    rows = [line.split() for line in out.splitlines()[-2:]]
    assert all(says(row[2], effect) for row, effect in zip(rows, largest, strict=True))


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"attention-probe {probe.__version__}\n", "")


def test_a_warning_is_one_line(run: Run, tiny_gpt2: Callable[..., Path]) -> None:
    folder = tiny_gpt2()
    weights = load_file(folder / "model.safetensors")
    weights["transformer.wte.weight"][7] = float("inf")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    code, out, err = run("attend", str(folder), "a b", "--json")
    assert code == 0 and strict(out)["tokens"]
    err = err[err.index("Warning: ") :]  # behind the progress bar of saving
    assert err.startswith(f"Warning: {folder} in torch.float32 has weights that are NaN or infinite")
    assert err.endswith(".\n") and err.count("\n") == 1


def test_the_home_folder_in_quotes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "texts.txt").write_text("One day\n")
    code, out, _ = run("verify", "gpt2", "--file", "~/texts.txt", "--json")
    assert code == 0 and strict(out)["texts"] == ["One day"]
    code, _, err = run("export", "gpt2", "One day", "~/map.json", "--layer", "0", "--head", "1")
    assert code == 0 and err == f"Wrote {tmp_path / 'map.json'}.\n"
    assert run("reproduce", "~/map.json")[0] == 0
    assert (
        "There is no file ~nobody-of-this-name/map.json: check"
        in run("reproduce", "~nobody-of-this-name/map.json")[2]
    )


def test_models(run: Run) -> None:
    code, out, _ = run("models", "--json")
    rows = {row["name"]: row for row in strict(out)}
    assert code == 0
    assert rows["bert"] == {"name": "bert", "model": "all-MiniLM-L6-v2", "source": "bundled"}
    assert rows["gpt2"]["model"] == "gpt2-stories"
    code, out, _ = run("models")
    assert code == 0 and "all-MiniLM-L6-v2" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "gpt2", ""), "The text is empty: give at least one word."),
        (("verify", "gpt2", "  "), "The text holds only spaces: give at least one word."),
        (("verify", "bert", ""), "The text is empty"),
        (("attend", "gpt2", "x\udce9y"), "not valid Unicode"),
        (("verify", "gpt2", STORY * 20), "at most 256. Shorten it, or have it cut: --truncate."),
        (("verify", "bert", STORY * 20), "this model takes at most 512."),
        (("attend", "gpt2", "Hi", "--layer", "6"), "no layer 6 in gpt2-stories: it has 6 layers"),
        (("masks", "gpt2", "Hi", "--head", "6"), "no head 6 in gpt2-stories: it has 6 heads"),
        (("masks", "gpt2", "Hi", "--layer", "-7"), "no layer -7"),
        (("verify", "no-such-model", "Hi"), 'There is no model "no-such-model"'),
        (("verify", "./no/such/folder", "Hi"), 'There is no folder "./no/such/folder"'),
        (("verify", "owner/model", "Hi"), "HF_HUB_OFFLINE is set"),
        (("verify", "gpt2", "Hi", "--pair", "Ho"), "takes one text, not a sentence pair"),
        (("verify", "gpt2", "Hi", "--device", "tpu9"), 'There is no device "tpu9": give cpu'),
        (("verify", "gtp2", "Hi"), 'There is no model "gtp2": do you mean "gpt2"? Otherwise give'),
        (("verify", "gpt2", "--file", "/no/such/file"), "can't be read: No such file"),
        (("verify", "gpt2", "--file", "/"), "can't be read: Is a directory"),
        (("verify", "gpt2"), "give a text, or --file"),
        (("verify", "bert", "a", "b", "--pair", "c"), "--pair goes with exactly one text"),
        (("verify", "gpt2", "Hi", "--dtype", "load"), "--dtype is one of float32"),
        (("attend", "gpt2", "Hi", "--all"), "--all goes with --json"),
        (("attend", "gpt2", "Hi", "--layer", "x"), "Invalid value for '--layer'"),
        (("attend", "gpt2", "Hi", "--colour"), "No such option"),
        (("attend", "gpt2", "-5 degrees"), 'goes last, behind two dashes: ... -- "-5 degrees"'),
        (("verify", "gpt2", "Hi", "--hope is a word"), 'behind two dashes: ... -- "--hope is a word"'),
        (("attend", "gpt2"), "Missing argument"),
        (("explain", "gpt2"), "No such command"),
        (("verify", "GPT2", "Hi"), 'There is no model "GPT2": do you mean "gpt2"? Otherwise give'),
        (("verify", "distilgpt2", "Hi"), 'do you mean "distilbert/distilgpt2"?'),
        (("verify", "bert", "\u200b"), "finds no token in this text, only characters that it drops"),
        (("effect", "gpt2", "Hi", "--head", "1"), "--head goes with --layer"),
        (("effect", "gpt2", "Hi", "--how", "half"), "There is no way 'half' to change a head"),
    ],
)
def test_bad_input_is_exit_code_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    if "Usage:" not in err:
        assert err.startswith("Error: ") and err.count("\n") == 1, err


@pytest.mark.parametrize("arguments", [("attend", "gpt2", "Hi", "--colour"), ("attend", "--", "gpt2")])
def test_dashes_are_spoken_of_where_a_text_begins_with_one(run: Run, arguments: tuple[str, ...]) -> None:
    code, _, err = run(*arguments)
    assert code == 2 and "dashes" not in err


def test_a_text_behind_two_dashes_may_begin_with_one(run: Run) -> None:
    code, out, _ = run("attend", "gpt2", "--json", "--", "-5 degrees")
    assert code == 0 and strict(out)["text"] == "-5 degrees"


def test_a_file_that_is_no_text(run: Run, tmp_path: Path) -> None:
    for content, message in (
        (b"caf\xe9", "is not UTF-8 text: save it as UTF-8"),
        (b"\n \n", "holds no text"),
    ):
        (tmp_path / "file").write_bytes(content)
        code, out, err = run("verify", "gpt2", "--file", str(tmp_path / "file"))
        assert code == 2 and out == "" and message in err


@pytest.mark.slow
def test_truncate(run: Run) -> None:
    code, out, _ = run("attend", "gpt2", STORY * 20, "--truncate")
    assert code == 0 and "Cut to the first 256 of" in out
    code, out, _ = run("verify", "gpt2", STORY * 20, "--truncate", "--json")
    assert code == 0 and strict(out)["num_tokens"] == [256]


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help(run: Run, command: tuple[str, ...]) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0 and "Usage:" in out
    if not command:
        listed = re.findall(r"^  ([a-z-]+) ", out[out.index("Commands:") :], re.MULTILINE)
        assert sorted(listed) == sorted(COMMANDS)
        assert "0: all is well; 1: a check failed; 2: bad input" in out
    elif command[0] in TEXT_COMMANDS:
        assert "MODEL" in out and "TEXT" in out
        for option in ("--pair", "--device", "--dtype", "--truncate"):
            assert option in out
        if command[0] != "export":
            assert "--json" in out
    assert "[[" not in out


# --- in a process of its own --------------------------------------------------------------------------------


@pytest.mark.slow
def test_k02_json_is_all_there_is_on_stdout() -> None:
    done = elsewhere(
        "verify",
        "gpt2",
        "a",
        "--json",
        PYTHONWARNINGS="always",
        TRANSFORMERS_VERBOSITY="debug",
        PYTHONDEVMODE="1",
    )
    assert done.returncode == 0, done.stderr
    report = strict(done.stdout.decode())
    assert report["passed"] is True
    assert report["texts"] == ["a"] and report["num_tokens"] == [1]


@pytest.mark.slow
def test_nothing_of_transformers_own_on_stderr(command: Command, tiny_gpt2: Callable[..., Path]) -> None:
    """It reports on a checkpoint whose configuration is wrong, and on one without its head for words."""
    folder = tiny_gpt2()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 3}))
    done = command("verify", folder, "a b")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("Error: The checkpoint in ") and done.stderr.count("\n") == 1
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    done = command("verify", folder, "a b")
    assert (done.returncode, done.stderr) == (0, "")


PLAIN = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}


@pytest.mark.slow
def test_a_terminal_that_is_not_utf8() -> None:
    done = elsewhere("attend", "gpt2", "Café \U0001f642 中文", **PLAIN)
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    shown = done.stdout.decode()
    assert "é 1/2" in shown and "\U0001f642" in shown and "中" in shown


@pytest.mark.slow
def test_t09_an_argument_in_latin_1() -> None:
    # The model's name is not ASCII either, and would break a message written without care.
    done = elsewhere("verify", "中文", b"caf\xe9 au lait", **PLAIN)
    assert done.returncode == 2 and done.stdout == b"" and b"Traceback" not in done.stderr
    done = elsewhere("verify", "gpt2", b"caf\xe9 au lait", LC_ALL="C.UTF-8")
    assert done.returncode == 2 and done.stdout == b"" and b"Traceback" not in done.stderr
    assert b"not valid Unicode: character 3 is the lone surrogate U+DCE9" in done.stderr
    assert b"usually UTF-8" in done.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "probe", "attend", "gpt2", STORY, "--all", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 0
    assert b"Traceback" not in errors and b"BrokenPipe" not in errors
