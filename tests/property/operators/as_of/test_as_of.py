"""The as-of join over random rows, delays, epochs, steps, parallelism and orders of arrival.

Each epoch is compared with plain Python, and all of them together with DuckDB's ASOF JOIN.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import duckdb
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operators.join.driving import (
    Emission,
    Row,
    TwoStreams,
    in_order,
    make_as_of,
    sided,
    table_of,
)

from millrace import clock
from millrace.log.segment import encoding
from millrace.state import merging, time_index

SECOND = 1_000_000
START = 1_000 * SECOND

TIMES = st.none() | st.integers(0, 25).map(lambda seconds: START + seconds * SECOND)
ROWS = st.lists(st.tuples(st.none() | st.sampled_from(["a", "b", ""]), TIMES), max_size=8)
BLOCKS = st.permutations([0, 1, 2])
"""In which order the blocks of a shuffle arrive."""
EPOCH = st.tuples(
    st.lists(st.tuples(ROWS, ROWS), max_size=3),
    st.sampled_from([0, 1, 2, 5, 10, 17]).map(lambda seconds: seconds * SECOND),
)


@given(
    tolerance=st.none() | st.sampled_from([0, 3, 10]).map(lambda seconds: seconds * SECOND),
    epochs=st.lists(EPOCH, min_size=3, max_size=7),
    data=st.data(),
)
def test_every_epoch_emits_what_it_should(
    tolerance: int | None, epochs: list[Any], data: st.DataObject
) -> None:
    operator = make_as_of(tolerance)
    total: Emission = []
    number = late_us = 0
    in_time: tuple[list[Row], list[Row]] = ([], [])
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
        patch.object(time_index, "SCANS", data.draw(st.integers(0, 2), "scans")),
    ):
        driven = TwoStreams(f"memory://as-of-{clock.fresh_id()}", operator)
        watermark = START
        # The last epoch lets everything out.
        for steps, passed in [*epochs, ([], 1000 * SECOND), ([], 0)]:
            driven.shards = data.draw(st.integers(1, 3), "parallelism")
            if data.draw(st.booleans(), "restart"):
                driven.restart()
            driven.watermark_us = watermark
            tables = []
            for step in steps:
                sides = []
                for side, rows in enumerate(step):
                    sides.append([(*row, number + i) for i, row in enumerate(rows)])
                    number += len(rows)
                    in_time[side].extend(
                        row for row in sides[-1] if row[1] is None or row[1] > late_us
                    )
                tables.append(table_of(*sides, data.draw(BLOCKS, "blocks")))
            emitted = driven.emit(*tables)
            times = {row: time for _, time, row in in_time[0]}
            for _, row, _ in emitted:
                time = times[row]  # type: ignore[index]
                assert time is None or late_us < time <= watermark or is_alone(row, in_time[0])
            total += emitted
            waiting = [
                row for row in in_time[0] if row[0] is not None and (row[1] or 0) > watermark
            ]
            assert driven.rows_of("left") == len(waiting)
            assert driven.rows_of() == len(newest(in_time[1], watermark, tolerance))
            late_us = watermark
            watermark += passed
    assert in_order(total) == in_duckdb(in_time, tolerance)


def is_alone(row: int | None, rows: list[Row]) -> bool:
    return any(key is None for key, _, number in rows if number == row)


def newest(rows: list[Row], watermark: int, tolerance: int | None) -> set[str]:
    """The keys that have a row that may still count."""
    least = 0 if tolerance is None else watermark + 1 - tolerance
    return {
        key
        for key, time, _ in rows
        if key is not None and time is not None and least <= time <= watermark
    }


def in_duckdb(rows: tuple[list[Row], list[Row]], tolerance: int | None) -> Emission:
    """The as-of join of all rows that were in time."""
    left, right = sided(rows)
    near = "" if tolerance is None else f"and l.t - r.t <= {tolerance}"
    with duckdb.connect() as connection:
        connection.register("left_rows", left)
        connection.register("right_rows", right)
        # Of rows of one time the last one counts: DuckDB takes any.
        found = connection.execute(
            "with r as (select k, t, max(i) as i from right_rows group by k, t), "
            "m as (select l.k, l.t, l.i, r.t as rt, r.i as ri "
            "from left_rows l asof left join r on l.k = r.k and l.t >= r.t) "
            f"select k, i, case when true {near.replace('l.t - r.t', 't - rt')} then ri end from m"
        ).fetchall()
        return in_order(found)
