"""Error texts stay short, and numbers of every kind are checked."""

import math

import numpy as np
import pytest

from dimred.errors import ConfigError, DimredError, check_number, shown


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int8(1), np.float64(1), 2 - 1e-6])
def test_numbers_of_every_kind_are_accepted(value: object) -> None:
    check_number("rho", value, above=0)


OUT_OF_RANGE = [0, -1.5, math.nan, math.inf, -(10**400), -(10**5000)]
NO_NUMBERS = [True, "1", None, 1j, np.bool_(True), np.array(1.0)]


@pytest.mark.parametrize("value", OUT_OF_RANGE + NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_out_of_range_or_no_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^rho is .*; it must be a number above 0 \(0\.9 is usual\)$"):
        check_number("rho", value, above=0, usual="0.9 is usual")


def test_whole_numbers_are_checked() -> None:
    check_number("epochs", np.int64(3), at_least=3, whole=True)
    with pytest.raises(ConfigError, match=r"^epochs is 3\.0; it must be a whole number of at least 3$"):
        check_number("epochs", 3.0, at_least=3, whole=True)


def test_the_middle_of_a_long_message_is_left_out() -> None:
    said = str(DimredError("begin " + "x" * 100_000 + " end"))
    assert len(said) < 1.1 * DimredError.LONGEST
    assert said.startswith("begin x")
    assert said.endswith("x end")
    assert "[... 96,010 characters ...]" in said
    assert len(shown({"a": ["x" * 1000] * 1000})) < 1000


def test_what_is_shown_is_one_line() -> None:
    assert shown(np.ones((2, 2))) == "array([[1., 1.], [1., 1.]])"
