"""The demonstration's verdict: it must notice whatever differs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace_lab.demo.compare import TOLERANCE, differences

ROWS = [
    {"device": "a", "metric": "heat", "n": 2, "total": 0.3, "low": 0.1},
    {"device": "a", "metric": None, "n": 1, "total": 5.0, "low": 5.0},
    {"device": "b", "metric": "heat", "n": 7, "total": 1e12, "low": None},
]
SCHEMA = pa.schema(
    [
        ("device", pa.string()),
        ("metric", pa.string()),
        ("n", pa.int64()),
        ("total", pa.float64()),
        ("low", pa.float64()),
    ]
)


def table(rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def compare(rows: list[dict[str, object]]) -> list[str]:
    return differences(table(rows), table(ROWS), ("device", "metric"), inexact=("total",))


def test_order_does_not_matter() -> None:
    assert compare(ROWS[::-1]) == []


def test_sums_may_differ_by_rounding() -> None:
    assert compare([{**ROWS[0], "total": 0.1 + 0.2}, *ROWS[1:]]) == []
    assert compare([*ROWS[:2], {**ROWS[2], "total": 1e12 * (1 + TOLERANCE / 2)}]) == []


@pytest.mark.parametrize(
    ("position", "column", "value"),
    [
        (0, "n", 3),
        (0, "total", 0.31),
        (2, "total", 1e12 * (1 + 3 * TOLERANCE)),
        (0, "low", 0.1 + 1e-15),
        (2, "low", 0.0),
        (1, "low", None),
        (1, "total", None),
        (1, "metric", "heat2"),
        (2, "device", "c"),
    ],
)
def test_a_wrong_value_is_named(position: int, column: str, value: object) -> None:
    rows = [dict(row) for row in ROWS]
    rows[position][column] = value
    found = compare(rows)
    assert found
    assert found[0].startswith(column)


def test_missing_and_additional_keys() -> None:
    assert compare(ROWS[:2]) == ["there are 2 keys, not 3"]
    assert compare([*ROWS, {**ROWS[0], "device": "z"}]) == ["there are 4 keys, not 3"]


def test_other_columns() -> None:
    found = differences(table(ROWS).drop(["low"]), table(ROWS), ("device", "metric"), ())
    assert len(found) == 1
    assert "columns" in found[0]
