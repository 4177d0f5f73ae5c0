"""The window operator over random rows, delays, epochs, steps and parallelism, against lists of all
rows of every open window.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.operators.window.strategies import EMISSIONS, EPOCH, SECOND, START
from tests.unit.operators.window.driving import (
    FUNCTIONS,
    Oracle,
    Windowed,
    make_operator,
    micros,
    partial_table,
    prints_of,
    same,
    shown,
)

from millrace import clock
from millrace.log.segment import encoding
from millrace.operators.window.emission import FINAL, UPDATE, Emission
from millrace.operators.window.panes import Windows
from millrace.reading.reader import open_location
from millrace.reading.tables import main_table
from millrace.state import merging

WINDOWS = st.sampled_from(
    [
        Windows(10 * SECOND, 10 * SECOND),
        Windows(10 * SECOND, 10 * SECOND, 3 * SECOND),
        Windows(10 * SECOND, 2 * SECOND),
        Windows(10 * SECOND, 4 * SECOND, -1 * SECOND),
        Windows(7 * SECOND, 3 * SECOND, SECOND),
    ]
)


@given(
    windows=WINDOWS,
    emission=EMISSIONS,
    epochs=st.lists(EPOCH, min_size=3, max_size=7),
    data=st.data(),
)
def test_every_epoch_emits_what_it_should(
    windows: Windows, emission: Emission, epochs: list[Any], data: st.DataObject
) -> None:
    operator = make_operator(windows, emission)
    oracle = Oracle(windows, emission)
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
    ):
        driven = Windowed(f"memory://windows-{clock.fresh_id()}", operator)
        watermark = START
        for partitions, step, passed in epochs:
            driven.shards = data.draw(st.integers(1, 3), "parallelism")
            if data.draw(st.booleans(), "restart"):
                driven.restart()
            driven.watermark_us = watermark
            driven.processing_us += passed
            table = partial_table(operator, partitions)
            cut = data.draw(st.integers(0, table.num_rows), "cut")
            # Rows of one key and pane may come in any order and in several steps, but with `first`
            # and `last` not from one input partition after the other.
            steps = [table] if cut == 0 else [table.slice(0, cut), table.slice(cut)]
            emitted = driven.send(*steps)
            rows = [row for partition in partitions for row in partition]
            expected = oracle.send(rows, watermark, driven.processing_us)
            found = {}
            for row in emitted:
                end = micros(row["window"]["end"])
                assert micros(row["window"]["start"]) == end - windows.size_us
                is_final = row.get("is_final", emission.mode == FINAL)
                key = row["k"], end, is_final
                # In several steps, a window may be updated more than once.
                assert emission.mode == UPDATE or key not in found
                found[key] = [row[f"{function}_v"] for function, _ in FUNCTIONS]
            assert found.keys() == expected.keys()
            for key, values in expected.items():
                wanted = shown(values)
                assert all(map(same, found[key], wanted)), (key, found[key], wanted)
            assert driven.counters.get("late", 0) == oracle.late
            assert driven.rows == len(oracle.rows)
            watermark += step
        check_readers(driven, oracle)


def check_readers(driven: Windowed, oracle: Oracle) -> None:
    """What is left is what readers see, all of it, by key and by window."""
    left: dict[tuple[str | None, int], list[Any]] = {}
    for key, pane in oracle.rows:
        for end in oracle.window_ends(pane):
            if end > oracle.late_us:
                left[key, end] = shown(oracle.values(key, end))
    # Its fingerprints are not those of a query, so it is told how to find a key.
    reader = open_location(driven.journal.store.url, lease=False)
    table = main_table(reader.snapshot, reader.snapshot.description(None))
    table.fingerprints = prints_of  # type: ignore[method-assign]
    names = [f"{function}_v" for function, _ in FUNCTIONS]

    def check(rows: pa.Table, wanted: dict[tuple[str | None, int], list[Any]]) -> None:
        found = {
            (row["k"], micros(row["window"]["end"])): [row[name] for name in names]
            for row in rows.to_pylist()
        }
        assert found.keys() == wanted.keys()
        assert rows.num_rows == len(wanted)
        assert all(all(map(same, found[w], wanted[w])) for w in wanted)

    every = list(table.schema.names)
    batches = list(table.scan(every))
    check(pa.Table.from_batches(batches, table.schema), left)
    counted = sum(batch.num_rows for batch in table.scan(["_key_group"]))
    assert counted == len(left)
    for key in {"a", None, *(key for key, _ in left)}:
        of_key = table.find(every, prints_of([pa.array([key], pa.string())]))
        rows = pa.Table.from_batches([of_key])
        check(rows, {w: values for w, values in left.items() if w[0] == key})
    asked = [*left, ("a", 0), ("nobody", oracle.late_us)]
    starts = pa.array([end - oracle.windows.size_us for _, end in asked], pa.int64())
    keys = [
        pa.array([key for key, _ in asked], pa.string()),
        starts.cast(pa.timestamp("us", "UTC")),
    ]
    columns, is_there = table.look_up(["k", *names], keys)
    assert is_there.tolist() == [w in left for w in asked]
    for i, window in enumerate(left):
        assert columns[0][i].as_py() == window[0]
        assert all(map(same, (c[i].as_py() for c in columns[1:]), left[window]))
