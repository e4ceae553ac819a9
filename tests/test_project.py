"""The project as a whole: what a Space reads, what may import what, and what must not be committed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
# What the Hub's documentation of Space settings lists.
SPACE_COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
SET_BY_A_SPACE = {"gradio", "spaces", "huggingface-hub", "torch"}
HUB_MODELS = ["google-bert/bert-base-uncased", "openai-community/gpt2"]


@cache
def front_matter() -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found, "README.md does not begin with a front matter"
    loaded = yaml.safe_load(found[1])
    assert isinstance(loaded, dict)
    return loaded


def requirements(name: str) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text("utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def canonical(requirement: Requirement) -> str:
    return requirement.name.lower().replace("_", "-")


def committed_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of committed files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


class TestSpace:
    def test_fields_are_strings(self) -> None:
        # python_version and sdk_version without quotes would be read as numbers: 3.10 as 3.1.
        for field in (
            "title",
            "emoji",
            "colorFrom",
            "colorTo",
            "sdk",
            "sdk_version",
            "python_version",
            "app_file",
            "short_description",
            "license",
            "suggested_hardware",
        ):
            assert isinstance(front_matter()[field], str), field

    def test_lists_of_strings(self) -> None:
        for field in ("tags", "models", "preload_from_hub"):
            values = front_matter()[field]
            assert values and all(isinstance(value, str) for value in values), field

    def test_values(self) -> None:
        matter = front_matter()
        assert matter["sdk"] == "gradio"
        assert re.fullmatch(r"\d+\.\d+\.\d+", matter["sdk_version"])
        assert re.fullmatch(r"3\.\d+(\.\d+)?", matter["python_version"])
        assert {matter["colorFrom"], matter["colorTo"]} <= SPACE_COLOURS
        assert not re.search(r"[\w\s]", matter["emoji"])
        assert len(matter["short_description"]) <= 60
        assert (ROOT / matter["app_file"]).is_file()
        assert matter["license"] == "mit"
        assert "MIT License" in (ROOT / "LICENSE").read_text("utf-8")

    def test_the_default_pair_is_preloaded(self) -> None:
        # An entry may name the files to fetch, else the whole repository is, in all its formats.
        entries = [entry.split(" ") for entry in front_matter()["preload_from_hub"]]
        assert [repository for repository, _ in entries] == HUB_MODELS
        for _, files in entries:
            assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files.split(","))
        assert set(HUB_MODELS) <= set(front_matter()["models"])

    def test_hardware_is_one_that_the_hub_knows(self) -> None:
        from huggingface_hub import SpaceHardware

        assert front_matter()["suggested_hardware"] in [flavour.value for flavour in SpaceHardware]


class TestRequirements:
    def test_nothing_is_pinned_that_a_space_sets(self) -> None:
        for requirement in requirements("requirements.txt"):
            if canonical(requirement) in SET_BY_A_SPACE:
                operators = {specifier.operator for specifier in requirement.specifier}
                assert operators <= {">=", "<", "!="}, requirement

    @pytest.mark.parametrize(
        ("name", "versions"),
        [
            ("torch", ["2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.13.0", "2.14.1"]),
            ("transformers", ["5.24.0"]),
            ("gradio", ["6.31.0"]),
        ],
    )
    def test_ranges_admit(self, name: str, versions: list[str]) -> None:
        (requirement,) = (r for r in requirements("requirements.txt") if r.name == name)
        assert [v for v in versions if not requirement.specifier.contains(v)] == []

    def test_the_tested_set_lies_in_the_ranges(self) -> None:
        pins = requirements("constraints.txt")
        for requirement in requirements("requirements.txt") + requirements("requirements-dev.txt"):
            versions = [
                specifier.version
                for pin in pins
                if canonical(pin) == canonical(requirement)
                for specifier in pin.specifier
            ]
            assert versions, f"{requirement} has no tested version"
            assert all(requirement.specifier.contains(version) for version in versions), requirement

    def test_the_space_runs_the_tested_gradio(self) -> None:
        (gradio,) = (pin for pin in requirements("constraints.txt") if pin.name == "gradio")
        assert str(gradio.specifier) == f"=={Version(front_matter()['sdk_version'])}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports: `from a.b import c` gives `a.b`, or `a.b.c` if c is a module.

    An import in a function or under TYPE_CHECKING is an import too.
    """
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    pending: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                stem = ROOT.joinpath(*source.split("."), alias.name)
                is_module = stem.with_suffix(".py").is_file() or (stem / "__init__.py").is_file()
                yield f"{source}.{alias.name}" if is_module else source
        pending.extend(ast.iter_child_nodes(node))


def python_files(folder: str) -> list[Path]:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, folder
    return files


# Lowest first; each may import from those below it, and from itself. `probe` is its __init__.py.
FLOORS = (
    ("attention", "probe.errors", "probe.version"),
    ("probe.models",),
    ("probe.running",),
    ("probe.display",),
    ("probe.analyses",),
    ("probe.files",),
    ("probe",),
    ("probe.cli", "probe.ui"),
    ("probe.__main__", "app"),
)


def floor(name: str) -> tuple[int, str]:
    """How high a module of the project lies, and the part of it that it belongs to."""
    parts = {part: height for height, parts in enumerate(FLOORS) for part in parts}
    fitting = [part for part in parts if name == part or (part != "probe" and name.startswith(f"{part}."))]
    assert len(fitting) == 1, f"{name} is on no floor"
    return parts[fitting[0]], fitting[0]


def project_files() -> dict[str, Path]:
    """Every module of the project by its full name."""
    paths = [*python_files("attention"), *python_files("probe"), ROOT / "app.py"]
    return {module_name(path): path for path in paths}


class TestDependencyDirection:
    """One way, from app.py down to attention, as `FLOORS` says."""

    def test_attention_needs_torch_and_nothing_else(self) -> None:
        allowed = {"attention", "torch", *sys.stdlib_module_names}
        for path in python_files("attention"):
            assert {name.split(".")[0] for name in imports(path)} <= allowed, path

    def test_only_the_page_knows_gradio(self) -> None:
        for path in python_files("probe"):
            if (ROOT / "probe" / "ui") not in path.parents:
                found = {name.split(".")[0] for name in imports(path)}
                assert not found & {"gradio", "spaces"}, path

    def test_no_import_goes_up(self) -> None:
        files, wrong = project_files(), []
        for name, path in files.items():
            height, part = floor(name)
            for found in sorted(set(imports(path)) & set(files)):
                beneath, other = floor(found)
                if beneath > height or (beneath == height and other != part):
                    wrong.append(f"{name} imports {found}")
        assert wrong == []

    def test_no_import_runs_in_a_circle(self) -> None:
        files = project_files()
        graph = {name: (set(imports(path)) & set(files)) - {name} for name, path in files.items()}
        # Take away what needs nothing more, or what nothing needs, again and again: the circles are left.
        while free := {name for name in graph if not graph[name]} | graph.keys() - set().union(
            *graph.values()
        ):
            graph = {name: needed - free for name, needed in graph.items() if name not in free}
        assert graph == {}

    def test_an_import_is_found_wherever_it_stands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
        package = tmp_path / "a"
        package.mkdir()
        for name in ("__init__", "b", "c", "d", "e", "f"):
            (package / f"{name}.py").touch()
        (package / "b.py").write_text(
            "from typing import TYPE_CHECKING\nimport a.c\nif TYPE_CHECKING:\n    from a.d import One\n"
            "def work():\n    from a import e\n    return lambda: __import__\n"
            "class Two:\n    async def method(self):\n        from . import f\n"
        )
        assert set(imports(package / "b.py")) == {"typing", "a.c", "a.d", "a.e", "a.f"}

    def test_few_entries_lie_side_by_side(self) -> None:
        entries = sorted(path.name for path in (ROOT / "probe").iterdir() if path.name != "__pycache__")
        assert len(entries) <= 14, entries

    @pytest.mark.parametrize(
        ("package", "unwanted"),
        [("attention", ["transformers", "gradio"]), ("probe", ["gradio", "matplotlib.pyplot", "bertviz"])],
    )
    def test_importing_loads_no_more_than_needed(self, package: str, unwanted: list[str]) -> None:
        code = f"import sys, {package}; print([name for name in {unwanted} if name in sys.modules])"
        run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert (run.stdout.strip(), run.returncode) == ("[]", 0), run.stderr


class TestReadme:
    def test_links_within_the_project_lead_somewhere(self) -> None:
        targets = re.findall(r"\]\(([^)#\s]+)\)", (ROOT / "README.md").read_text("utf-8"))
        local = [target for target in targets if "://" not in target]
        assert local
        assert [target for target in local if not (ROOT / target).exists()] == []


class TestCommittedFiles:
    def test_none_is_over_ten_megabytes(self) -> None:
        # A Space refuses larger ones without LFS.
        assert [path for path in committed_files() if path.stat().st_size >= 10_000_000] == []

    def test_no_machine_path_is_written_down(self) -> None:
        # The brackets keep this line from finding itself.
        pattern = re.compile(r"(?<![\w.~/-])/(?:wor[k]|hom[e]|roo[t]|User[s]|tm[p]|op[t])/\w")
        found = []
        for path in committed_files():
            try:
                text = path.read_text("utf-8")
            except UnicodeDecodeError:
                continue
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
        assert found == []


def test_the_versions_that_are_warned_about_are_those_outside_what_is_tested() -> None:
    from probe.models.loading import TESTED_TRANSFORMERS

    def pinned(file: str, operator: str) -> tuple[int, ...]:
        found = re.search(
            rf"^transformers{operator}(\d+)\.(\d+)", (ROOT / file).read_text("utf-8"), re.MULTILINE
        )
        assert found is not None
        return tuple(map(int, found.groups()))

    lowest, beyond = TESTED_TRANSFORMERS
    assert lowest == pinned("requirements.txt", ">=")
    major, minor = pinned("constraints.txt", "==")
    assert beyond == (major, minor + 1)
