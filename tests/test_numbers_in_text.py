"""The comparison of printed numbers itself."""

from __future__ import annotations

import pytest
from numbers_in_text import ROUNDING_FLOAT64, alike, close, says, tells, value_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.25", 0.25),
        ("−1.5", -1.5),
        ("+1.5e-3", 0.0015),
        ("2e−7", 2e-7),
        ("37.5%", 0.375),
        ("1,234.5", 1234.5),
        ("exactly 0", 0.0),
    ],
)
def test_numbers_as_they_are_written(text: str, value: float) -> None:
    assert value_of(text) == pytest.approx(value, rel=1e-12)


def test_what_is_no_number() -> None:
    with pytest.raises(AssertionError, match="is no number"):
        says("1.2.3", 1.2)


def test_a_printed_number_is_right_to_half_its_last_place() -> None:
    assert says("0.62", 0.6249) and says("0.62", 0.615) and not says("0.62", 0.6251)
    # What was printed as ...259 there is ...2585 here, and the next would print it as ...258.
    assert says("0.622259", 0.62225844) and not says("0.622259", 0.622255)
    assert says("12%", 0.1249) and not says("12%", 0.1251)
    assert says("1.2e3", 1249.0) and not says("1.2e3", 1251.0)
    assert says("exactly 0", 1e-7) and not says("exactly 0", 1e-3)
    assert not says("0.62", float("nan"))


def test_float64_is_compared_to_its_own_places() -> None:
    assert says("1.23e-12", 1.2345e-12, ROUNDING_FLOAT64)
    assert not says("1.23e-12", 2.2e-12, ROUNDING_FLOAT64)


def test_texts_have_the_same_words_and_counts() -> None:
    said = 'All 36 heads agree: largest difference 1.2e-07, most for "it" (37.5%).'
    assert alike(said, said.replace("1.2e-07", "1.8e-07").replace("37.5", "37.6"))
    for other in ("35 heads", "heads differ", "40.0%"):
        old = {"35 heads": "36 heads", "heads differ": "heads agree", "40.0%": "37.5%"}[other]
        assert not alike(said, said.replace(old, other))
    assert not alike(None, said) and not alike(said + " More.", said) and tells(f"✓{said} More.", said)
    assert not tells("", said)


def test_where_rounding_is_largest_is_chance() -> None:
    said = "All heads agree: largest difference 6.0e-08 (layer 0, head 0), tolerance 6.2e-07."
    other = "All heads agree: largest difference 1.2e-07 (layer 3, head 1), tolerance 6.9e-07."
    assert alike(said, other) and tells(f"x {said}", other) and not alike(said, other.replace("e-07", "e-02"))
    assert close({"worst": {"query": 1}}, {"worst": {"query": 2}}) and not close({"best": 1}, {"best": 2})


def test_columns_may_be_of_another_width() -> None:
    assert alike("a   0.1\nb  12.0", "a  0.1\nb 12.0") and not alike("a 0.1", "a0.1")


def test_text_around_numbers_is_text() -> None:
    assert alike("f(x) = [2.50] *", "f(x) = [2.50] *") and not alike("f(x) = [2.50] *", "f(x) = [2.50]")


def test_values_of_json() -> None:
    first = {"a": [0.5, 1, None, True], "b": "at most 0.622258", "c": {"d": float("inf")}}
    second = {"a": [0.5000005, 1, None, True], "b": "at most 0.622259", "c": {"d": float("inf")}}
    assert close(first, second)
    for wrong in ({"a": [0.6, 1, None, True]}, {"a": [0.5, 2, None, True]}, {"a": [0.5, 1, None]}, {"e": 1}):
        assert not close(first, {**second, **wrong})
    assert not close(1, 1.0) and not close(float("nan"), 0.0)
