"""The functions of the public API: what they take, before there is a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millrace as mr
from millrace.errors import AggregateParameterError, UsageError
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


OUT_OF_RANGE: dict[str, Callable[[], mr.Aggregate]] = {
    "lg_k=3": lambda: mr.approx_distinct("s", lg_k=3),
    "lg_k=27": lambda: mr.distinct_sketch("s", lg_k=27),
    "lg_k='12'": lambda: mr.approx_distinct("s", lg_k="12"),  # type: ignore[arg-type]
    "1.5": lambda: mr.quantile("d", 1.5),
    "-0.1": lambda: mr.quantile("d", [0.5, -0.1]),
    "nan": lambda: mr.quantile("d", float("nan")),
    "at least one rank": lambda: mr.quantile("d", []),
    "True": lambda: mr.quantile("d", True),
    "accuracy=1": lambda: mr.quantile("d", 0.5, accuracy=1),
    "k=0": lambda: mr.heavy_hitters("s", 0),
    "track=5": lambda: mr.heavy_hitters("s", 10, track=5),
}


@pytest.mark.parametrize("named", OUT_OF_RANGE)
def test_parameters_out_of_range_are_refused(named: str) -> None:
    with pytest.raises(AggregateParameterError) as raised:
        OUT_OF_RANGE[named]()
    assert named in str(raised.value)


def test_a_function_of_two_columns_is_described_by_both() -> None:
    assert mr.max_by("url", "ms").describe() == "url, ms"
    assert mr.covar_pop("x", "y").options == {"sample": False}


def test_what_is_not_a_column_is_refused() -> None:
    with pytest.raises(UsageError, match="max_by"):
        mr.max_by("url", 5)  # type: ignore[arg-type]


def test_one_rank_gives_a_number_and_several_an_array() -> None:
    assert mr.quantile("ms", 0.99).options["single"]
    assert not mr.quantile("ms", [0.99]).options["single"]
