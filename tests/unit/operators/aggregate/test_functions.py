"""What users write: `mr.sum("x")` and the others."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import UsageError
from millrace.operators.aggregate import functions

OF_A_COLUMN = ["sum", "min", "max", "mean", "variance", "stddev", "first", "last"]


@pytest.mark.parametrize("name", ["count", *OF_A_COLUMN])
def test_a_function_is_an_aggregate_of_its_column(name: str) -> None:
    made = getattr(functions, name)("price")
    assert (made.function, made.column, made.describe()) == (name, "price", "price")


def test_a_count_without_a_column_is_one_of_rows() -> None:
    assert functions.count().column is None
    assert functions.count().describe() == "*"


@pytest.mark.parametrize("column", [None, 5, ["price"]])
@pytest.mark.parametrize("name", OF_A_COLUMN)
def test_what_is_no_column_is_refused(name: str, column: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name}\(\) takes the name of a column"):
        getattr(functions, name)(column)


@pytest.mark.parametrize(
    ("name", "option", "default"),
    [
        ("variance", "sample", True),
        ("stddev", "sample", True),
        ("first", "ignore_nulls", False),
        ("last", "ignore_nulls", False),
    ],
)
def test_options_are_passed_on(name: str, option: str, default: bool) -> None:
    function = getattr(functions, name)
    assert function("x").options == {option: default}
    assert function("x", **{option: not default}).options == {option: not default}
