"""The join over random rows, delays, epochs, steps and parallelism.

Each epoch is compared with plain Python, and all of them together with DuckDB.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import duckdb
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operators.join.driving import (
    HOWS,
    Emission,
    Oracle,
    Row,
    TwoStreams,
    in_order,
    make_operator,
    sided,
    table_of,
)

from millrace import clock
from millrace.log.segment import encoding
from millrace.state import merging, time_index

SECOND = 1_000_000
START = 1_000 * SECOND

INTERVALS = st.sampled_from(
    [(-10, 0), (0, 10), (-3, 5), (0, 0), (2, 6), (-6, -2), (-2_000, 3)]
).map(lambda seconds: (seconds[0] * SECOND, seconds[1] * SECOND))
# Whole seconds, so that bounds are met.
TIMES = st.none() | st.integers(0, 25).map(lambda seconds: START + seconds * SECOND)
ROWS = st.lists(st.tuples(st.none() | st.sampled_from(["a", "b", "c", ""]), TIMES), max_size=8)
STEP = st.tuples(ROWS, ROWS)
EPOCH = st.tuples(
    st.lists(STEP, max_size=3),
    st.sampled_from([0, 1, 2, 5, 10, 17, 3_000]).map(lambda seconds: seconds * SECOND),
)


@given(
    interval=INTERVALS,
    how=st.sampled_from(HOWS),
    epochs=st.lists(EPOCH, min_size=3, max_size=7),
    data=st.data(),
)
def test_every_epoch_emits_what_it_should(
    interval: tuple[int, int], how: str, epochs: list[Any], data: st.DataObject
) -> None:
    operator = make_operator(*interval, how)
    oracle = Oracle(*interval, how)
    total: Emission = []
    number = 0
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
        patch.object(time_index, "SCANS", data.draw(st.integers(0, 2), "scans")),
    ):
        driven = TwoStreams(f"memory://join-{clock.fresh_id()}", operator)
        watermark = START
        for steps, passed in epochs:
            driven.shards = data.draw(st.integers(1, 3), "parallelism")
            if data.draw(st.booleans(), "restart"):
                driven.restart()
            driven.watermark_us = watermark
            tables = []
            both: tuple[list[Row], list[Row]] = ([], [])
            for step in steps:
                sides = []
                for side, rows in enumerate(step):
                    sides.append([(*row, number + i) for i, row in enumerate(rows)])
                    number += len(rows)
                    both[side].extend(sides[-1])
                tables.append(table_of(*sides))
            emitted = driven.emit(*tables)
            assert emitted == oracle.send(*both, watermark)
            assert driven.counters.get("late", 0) == oracle.late
            if how not in ("semi", "anti"):
                assert driven.rows_of() == len(oracle.left)
            assert driven.rows_of("right") == len(oracle.right)
            total += emitted
            watermark += passed
        driven.watermark_us = START + 1_000_000 * SECOND
        total += driven.emit()
    assert driven.rows_of() == 0
    for table in operator.tables:
        assert driven.rows_of(table) == 0, table
    assert in_order(total) == in_duckdb(oracle, interval, how)


def in_duckdb(oracle: Oracle, interval: tuple[int, int], how: str) -> Emission:
    """The join of all rows that were in time."""
    left, right = sided(oracle.everything)
    other = "null" if how in ("semi", "anti") else "r.i"
    key = "l.k" if how in ("semi", "anti") else "coalesce(l.k, r.k)"
    with duckdb.connect() as connection:
        connection.register("left_rows", left)
        connection.register("right_rows", right)
        found = connection.execute(
            f"select {key}, l.i, {other} from left_rows l {how} join right_rows r "
            f"on l.k = r.k and r.t - l.t between {interval[0]} and {interval[1]}"
        ).fetchall()
        return in_order(found)
