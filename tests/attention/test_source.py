"""Nothing is borrowed: the package imports torch alone, and computes its softmax and attention itself."""

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import attention

FILES = sorted(Path(attention.__file__).parent.glob("*.py"))
MODULES = ["functional", "masks", "modules", "norms", "reference", "rotary", "examples"]

# What would compute in our place. Two of the names are also our own, but then they are written bare.
BORROWED = {
    "softmax",
    "log_softmax",
    "softmin",
    "Softmax",
    "LogSoftmax",
    "Softmin",
    "Softmax2d",
    "gumbel_softmax",
    "_softmax",
    "logsumexp",
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "multi_head_attention_forward",
    "MultiheadAttention",
    "flex_attention",
    "Transformer",
    "TransformerEncoderLayer",
    "TransformerDecoderLayer",
}
ALLOWED_IMPORTS = {"torch", "__future__", "dataclasses", "functools", "math", "operator", "typing"}


def borrowings(source):
    """Where the source reaches for an attention or a softmax that isn't its own, or imports too much."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in BORROWED:
            found.append(node.attr)
        elif isinstance(node, ast.Constant) and node.value in BORROWED:  # getattr(torch, "softmax")
            found.append(node.value)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] not in ALLOWED_IMPORTS]
            found += [alias.name for alias in node.names if alias.name.startswith("torch.")]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module.split(".")[0] not in ALLOWED_IMPORTS:
                found.append(node.module)
            if node.module.startswith("torch."):  # torch.nn.functional and the like: nothing there is needed
                found.append(node.module)
            found += [alias.name for alias in node.names if alias.name in BORROWED]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_borrowed(path):
    source = path.read_text(encoding="utf-8")
    if path.name == "__init__.py":
        source = source.partition("__all__")[0]  # the names of our own, as strings
    assert borrowings(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "torch.softmax(x, -1)",
        "x.softmax(-1)",
        "torch.special.softmax(x, -1)",
        "torch.ops.aten._softmax(x, -1, False)",
        "x.log_softmax(-1).exp()",
        "getattr(torch, 'softmax')(x, -1)",
        "nn.Softmax(dim=-1)",
        "nn.MultiheadAttention(8, 2)",
        "import torch.nn.functional as F",
        "from torch.nn.functional import softmax",
        "from torch.nn import MultiheadAttention as M",
        "from torch.nn.functional import scaled_dot_product_attention as attend",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v)",
        "(x - x.logsumexp(-1, keepdim=True)).exp()",
        "import transformers",
        "from scipy.special import expit",
    ],
)
def test_borrowing_would_be_found(source):
    assert borrowings(source)


def test_files_are_the_ones_expected():
    assert {path.stem for path in FILES} == {"__init__", *MODULES}


def test_the_reference_shares_nothing_with_what_it_checks():
    tree = ast.parse(Path(attention.__file__).with_name("reference.py").read_text(encoding="utf-8"))
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level > 0]
    assert relative == []
    products = [node for node in ast.walk(tree) if isinstance(node, ast.MatMult)]
    assert products == []


def test_importing_brings_in_torch_alone():
    code = """
import sys, attention
others = {"transformers", "gradio", "probe", "huggingface_hub", "tokenizers"} & set(sys.modules)
print(sorted(others), "torch" in sys.modules)
"""
    root = Path(attention.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"attention.{name}")
    results = doctest.testmod(module)
    assert results.failed == 0
    if name in ("functional", "masks", "modules"):
        assert results.attempted > 0


@pytest.mark.parametrize("name", attention.__all__)
def test_every_public_name_is_documented(name):
    thing = getattr(attention, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing) and issubclass(thing, attention.MultiHeadAttention.__mro__[1]):
        assert inspect.getdoc(thing.forward)
        assert inspect.getdoc(thing.steps)
