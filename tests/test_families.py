"""The README's table of model families, made again and compared."""

from __future__ import annotations

import dataclasses

import pytest
import transformers

from probe import Model, verify
from probe.models.families import FAMILIES as DESCRIBED
from scripts import families
from scripts.families import FAMILIES, HEADINGS, README, Family, Row


def stated() -> dict[str, tuple[str, ...]]:
    """The rows of the README's table, by model."""
    _, _, rest = README.read_text("utf-8").partition(families.BEGIN)
    lines = rest.partition(families.END)[0].strip().splitlines()
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert cells[0] == HEADINGS
    return {row[0]: row for row in cells[2:]}


def test_every_family_has_a_row() -> None:
    assert list(stated()) == [family.name for family in FAMILIES]


# Which models go through the attention interface, and which backend heeds a softcap, changes with releases.
TABLE_IS_OF = "5.24.0"


@pytest.mark.skipif(
    transformers.__version__ != TABLE_IS_OF,
    reason=f"the table is of transformers {TABLE_IS_OF}, this is {transformers.__version__}",
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_row_still_holds(family: Family) -> None:
    row = families.measure(family)
    families.check(row)
    # An error is stated as a power of ten that it lies below, and may come out in another way elsewhere.
    errors = {
        HEADINGS.index("Weights below"): row.capture_error,
        HEADINGS.index("Outputs below"): row.from_scratch_error,
        HEADINGS.index("Errors below"): row.report and row.report.max_abs_error,
    }
    for index, (found, said) in enumerate(zip(row.cells(), stated()[family.name], strict=True)):
        error = errors.get(index)
        if error is None:
            assert found == said
        else:
            assert error <= float(said) <= families.TOLERANCE * 10


def row(**more: object) -> Row:
    return dataclasses.replace(Row(FAMILIES[0], True, 2e-6, 3e-2, 0.3, 1e-6, None, None), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capture_error": 2e-5}, "maps differ by 2.0e-05"),
        ({"capture_error": float("nan")}, "maps differ by nan"),
        ({"from_scratch_error": 2e-5}, "outputs differ"),
        ({"control_error": 9e-4}, "5% off in scale"),
        ({"peakiness": 0.51}, "51% of the largest entropy"),
    ],
)
def test_a_row_that_proves_nothing_is_refused(wrong: dict[str, object], message: str) -> None:
    families.check(row())
    with pytest.raises(AssertionError, match=message):
        families.check(row(**wrong))


def test_a_check_that_fails_is_refused(gpt2: Model) -> None:
    report = verify(gpt2, "The cat sat on the mat.")
    families.check(row(report=report))
    head = dataclasses.replace(report.heads[3], passed=False)
    failed = dataclasses.replace(report, passed=False, heads=(*report.heads[:3], head, *report.heads[4:]))
    with pytest.raises(AssertionError, match="bert: 1 of 36 heads of gpt2-stories do NOT agree"):
        families.check(row(report=failed))


def test_checks_from_the_weights_are_of_the_families_that_are_described() -> None:
    checks = {name: cells[HEADINGS.index("Check")] for name, cells in stated().items()}
    types = {model_type for family in DESCRIBED if family.sites for model_type in family.model_types}
    # CamemBERT is RoBERTa under another name, and has no row; Gemma 3's networks of text have another type.
    named = types - {"camembert", "gemma3_text"} | {"gemma3"}
    assert {name for name, check in checks.items() if check == "from the weights"} == named
    assert {name for name, check in checks.items() if check == "none"} == {
        name for name, cells in stated().items() if cells[HEADINGS.index("Capture")] != "yes"
    }
    assert set(checks.values()) == {"from the weights", "from query and key", "none"}


def test_texts_of_numbers_are_their_ids() -> None:
    for text in families.drawn(12, 7):
        assert families.numbers()(text)["input_ids"] == [int(word) for word in text.split()]


def test_bounds_leave_room() -> None:
    for error, expected in ((4e-7, "1e-06"), (6e-7, "1e-05"), (1e-5, "1e-04"), (0.0, "0")):
        assert families.bound(error) == expected


def test_only_the_block_is_replaced() -> None:
    readme = f"before\n{families.BEGIN}\nold\n{families.END}\nafter\n"
    made = families.block([row()])
    assert families.replaced(readme, made) == f"before\n{made}\nafter\n"
    with pytest.raises(SystemExit, match="has no"):
        families.replaced("nothing here", made)
