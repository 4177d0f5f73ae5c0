"""The rows of event time of a soak: whatever the watermark does, each has one fate."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from millrace_lab.soak import timed as t
from millrace_lab.soak.state_check import Comparison, create_input
from millrace_lab.soak.timed_check import check_timed_outputs

BATCHES = 30


@pytest.fixture
def check() -> Iterator[Comparison]:
    with duckdb.connect(":memory:") as db:
        create_input(db, BATCHES, chosen_keys=False)
        yield Comparison(db)


def marks(behind: int = 0) -> list[int]:
    """The watermark of each batch: that of the batches before, or of some more before."""
    newest = [t.BASE_S * 1000 + (batch * t.ROWS - 1) * t.MS_PER_ROW for batch in range(BATCHES)]
    return [
        max(0, newest[batch - behind] - t.DELAY_S * 1000 if batch > behind else 0)
        for batch in range(BATCHES)
    ]


def nothing() -> dict[str, pa.Table]:
    """Outputs without a row."""
    batch = ("batch", pa.int64())
    time = pa.timestamp("us", "UTC")
    columns = {
        t.UNIQUE: [("id", pa.int64()), ("at", time)],
        t.LATE: [("value", pa.int64())],
        t.HOPS: [("g", pa.int64()), ("n", pa.int64())],
        t.BOUTS: [("who", pa.string()), ("n", pa.int64())],
        t.PAIRS: [("id", pa.int64()), ("value", pa.int64())],
    }
    return {name: pa.schema([*fields, batch]).empty_table() for name, fields in columns.items()}


@pytest.mark.parametrize("behind", [0, 1, 4])
def test_a_row_is_late_by_far_or_not_at_all(check: Comparison, behind: int) -> None:
    check_timed_outputs(check, nothing(), marks(behind))
    assert not [text for text in check.mismatches if text.startswith("late rows")]


def test_a_watermark_that_is_ahead_is_noticed(check: Comparison) -> None:
    check_timed_outputs(check, nothing(), [mark + 20_000 for mark in marks()])
    assert [text for text in check.mismatches if text.startswith("late rows")]


def test_every_output_has_something_to_compare(check: Comparison) -> None:
    check_timed_outputs(check, nothing(), marks())
    missing = [text.partition(":")[0] for text in check.mismatches]
    assert missing == [f"output of {name}" for name in nothing()]


@pytest.mark.parametrize(
    "of",
    [
        "events where at_ms is null",
        "events where g is null",
        "events where who is null",
        "events where is_far",
        "events e join uniques u using (id) where e.value <> u.value and not e.is_far",
        "rights",
    ],
)
def test_there_are_rows_of_every_kind(check: Comparison, of: str) -> None:
    check_timed_outputs(check, nothing(), marks())
    [(count,)] = check.query(f"select count(*) from {of}")
    assert count > 20
