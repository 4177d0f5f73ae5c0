"""The session operator over random rows, delays, epochs, steps and parallelism, against lists of
all rows of every open session.
"""

from __future__ import annotations

import statistics
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.operators.window.test_windows import micros, prints_of, same
from tests.unit.operators.session.driving import (
    ORDERED,
    UNORDERED,
    Functions,
    Oracle,
    make_operator,
    piece_table,
)
from tests.unit.operators.window.driving import Windowed

from millrace import clock
from millrace.log.segment import encoding
from millrace.operators.window.emission import EARLY, FINAL, UPDATE, Emission
from millrace.reading.reader import open_location
from millrace.reading.tables import main_table
from millrace.state import merging

SECOND = 1_000_000
START = 1_000 * SECOND
GAP = 4 * SECOND

EMISSIONS = st.sampled_from([Emission(FINAL), Emission(UPDATE), Emission(EARLY, 5 * SECOND)])
# Whole seconds, so that gaps are met exactly.
TIMES = st.none() | st.integers(0, 30).map(lambda seconds: START + seconds * SECOND)
ROW = st.tuples(st.none() | st.sampled_from(["a", "b", ""]), TIMES, st.none() | st.integers(-9, 9))
EPOCH = st.tuples(
    st.lists(st.lists(ROW, max_size=7), max_size=3),
    st.sampled_from([0, 1, 3, 4, 9]).map(lambda seconds: seconds * SECOND),  # The watermark's step.
    st.integers(0, 4).map(lambda seconds: seconds * SECOND),  # The clock's.
)


def shown(functions: Functions, values: list[Any]) -> list[Any]:
    known = [v for v in values if v is not None]
    results = {
        "count": len(known),
        "sum": sum(known) if known else None,
        "max": max(known, default=None),
        "mean": statistics.fmean(known) if known else None,
        "first": known[0] if known else None,
        "last": values[-1],
        "collect_list": known,
    }
    return [results[function] for function, _ in functions]


@settings(max_examples=settings().max_examples // 2)
@given(
    emission=EMISSIONS,
    functions=st.sampled_from([UNORDERED, ORDERED]),
    epochs=st.lists(EPOCH, min_size=2, max_size=7),
    data=st.data(),
)
def test_every_epoch_emits_what_it_should(
    emission: Emission, functions: Functions, epochs: list[Any], data: st.DataObject
) -> None:
    operator = make_operator(GAP, emission, functions)
    oracle = Oracle(GAP, emission)
    names = [f"{function}_v" for function, _ in functions]
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
    ):
        driven = Windowed(f"memory://sessions-{clock.fresh_id()}", operator)
        watermark = START
        for given_partitions, step, passed in epochs:
            driven.shards = data.draw(st.integers(1, 3), "parallelism")
            if data.draw(st.booleans(), "restart"):
                driven.restart()
            driven.watermark_us = watermark
            driven.processing_us += passed
            partitions = list(enumerate(given_partitions))
            cut = data.draw(st.integers(0, len(partitions)), "cut")
            steps = [partitions] if cut == 0 else [partitions[:cut], partitions[cut:]]
            tables = [piece_table(operator, rows, oracle.late_us) for rows in steps]
            emitted = driven.send(*tables)
            expected = oracle.send(steps, watermark, driven.processing_us)
            found = {}
            for row in emitted:
                start, end = (micros(row["session_window"][bound]) for bound in ("start", "end"))
                is_final = row.get("is_final", emission.mode == FINAL)
                key = row["k"], start, end, is_final
                assert emission.mode == UPDATE or key not in found
                found[key] = [row[name] for name in names]
            assert found.keys() == expected.keys()
            for key, values in expected.items():
                wanted = shown(functions, values)
                assert all(map(same, found[key], wanted)), (key, found[key], wanted)
            assert driven.counters.get("late", 0) == oracle.late
            assert driven.rows == len(oracle.rows)
            watermark += step
        check_readers(driven, oracle, functions, names)


def check_readers(driven: Windowed, oracle: Oracle, functions: Functions, names: list[str]) -> None:
    """What is left is what readers see, all of it, by key and by session."""
    left = {key: shown(functions, values) for key, values in oracle.rows.items()}
    reader = open_location(driven.journal.store.url, lease=False)
    table = main_table(reader.snapshot, reader.snapshot.description(None))
    # Its fingerprints are not those of a query, so it is told how to find a key.
    table.fingerprints = prints_of  # type: ignore[method-assign]

    def check(rows: pa.Table, wanted: dict[Any, list[Any]]) -> None:
        found = {}
        for row in rows.to_pylist():
            start, end = (micros(row["session_window"][bound]) for bound in ("start", "end"))
            found[row["k"], start, end] = [row[name] for name in names]
        assert rows.num_rows == len(wanted)
        assert found.keys() == wanted.keys()
        assert all(all(map(same, found[s], wanted[s])) for s in wanted)

    every = list(table.schema.names)
    check(pa.Table.from_batches(list(table.scan(every)), table.schema), left)
    assert sum(batch.num_rows for batch in table.scan(["_key_group"])) == len(left)
    for key in {"a", None, *(key for key, _, _ in left)}:
        rows = pa.Table.from_batches([table.find(every, prints_of([pa.array([key])]))])
        check(rows, {s: values for s, values in left.items() if s[0] == key})
    asked = [*left, ("a", 0, 0), ("nobody", START, 0)]
    starts = pa.array([start for _, start, _ in asked], pa.int64())
    keys = [
        pa.array([key for key, _, _ in asked], pa.string()),
        starts.cast(pa.timestamp("us", "UTC")),
    ]
    columns, is_there = table.look_up(["k", *names], keys)
    assert is_there.tolist() == [s in left for s in asked]
    for i, session in enumerate(left):
        assert columns[0][i].as_py() == session[0]
        assert all(map(same, (c[i].as_py() for c in columns[1:]), left[session]))
