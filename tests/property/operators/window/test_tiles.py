"""Windows of several lengths over random epochs: what is emitted is what operators of one length
each would emit, and readers see what plain Python finds in all rows.
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
from millrace.operators.window.emission import FINAL, NONE, UPDATE, Emission
from millrace.operators.window.panes import Windows, in_words, tiles_of
from millrace.reading.reader import open_location
from millrace.reading.tables import main_table
from millrace.state import merging

TILES = st.sampled_from(
    [
        tiles_of([10 * SECOND, 2 * SECOND, 6 * SECOND], 2 * SECOND),
        tiles_of([3 * SECOND, 9 * SECOND], 3 * SECOND, -SECOND),
        tiles_of([5 * SECOND], 5 * SECOND),
    ]
)
NAMES = [f"{function}_v" for function, _ in FUNCTIONS]


@given(
    tiles=TILES,
    emission=EMISSIONS | st.just(Emission(NONE)),
    epochs=st.lists(EPOCH, min_size=2, max_size=6),
    data=st.data(),
)
def test_every_length_is_as_if_it_were_alone(
    tiles: tuple[Windows, ...], emission: Emission, epochs: list[Any], data: st.DataObject
) -> None:
    operator = make_operator(tiles[-1], emission, tuple(w.size_us for w in tiles))
    oracles = {w.size_us: Oracle(w, emission) for w in tiles}
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
    ):
        driven = Windowed(f"memory://tiles-{clock.fresh_id()}", operator)
        watermark = START
        for partitions, step, passed in epochs:
            driven.shards = data.draw(st.integers(1, 3), "parallelism")
            driven.watermark_us = watermark
            driven.processing_us += passed
            emitted = driven.send(partial_table(operator, partitions))
            rows = [row for partition in partitions for row in partition]
            expected = {
                (in_words(size), *window): shown(values)
                for size, oracle in oracles.items()
                for window, values in oracle.send(rows, watermark, driven.processing_us).items()
            }
            if emission.mode == NONE:
                expected = {}
            found = {}
            for row in emitted:
                start, end = (micros(row["window"][side]) for side in ("start", "end"))
                assert in_words(end - start) == row["window_length"]
                is_final = row.get("is_final", emission.mode == FINAL)
                found[row["window_length"], row["k"], end, is_final] = [row[n] for n in NAMES]
            assert found.keys() == expected.keys()
            assert len(found) == len(emitted) or emission.mode == UPDATE
            for window, wanted in expected.items():
                assert all(map(same, found[window], wanted)), (window, found[window], wanted)
            longest = oracles[tiles[-1].size_us]
            assert driven.counters.get("late", 0) == longest.late
            assert driven.rows == len(longest.rows)
            watermark += step
        check_readers(driven, longest, tiles)


def check_readers(driven: Windowed, oracle: Oracle, tiles: tuple[Windows, ...]) -> None:
    """The newest window of each key and length in the table; every whole window by look-up."""
    slide = tiles[-1].slide_us
    newest = max([oracle.late_us, *(pane for _, pane in oracle.rows)])
    now = tiles[-1].end_after(newest)
    assert now - slide <= newest < now
    keys = {key for key, _ in oracle.rows} | {"a", None, "nobody"}

    def values(key: str | None, start: int, size: int) -> list[Any]:
        panes = range(start, start + size, slide)
        return [value for pane in panes for _, value in oracle.rows.get((key, pane), ())]

    there = {
        (key, size): shown(found)
        for key in keys
        for size in (w.size_us for w in tiles)
        if (found := values(key, now - size, size))
    }
    reader = open_location(driven.journal.store.url, lease=False)
    table = main_table(reader.snapshot, reader.snapshot.description(None))
    table.fingerprints = prints_of  # type: ignore[method-assign]

    def check(rows: pa.Table, wanted: dict[tuple[str | None, int], list[Any]]) -> None:
        found = {}
        for row in rows.to_pylist():
            start, end = (micros(row["window"][side]) for side in ("start", "end"))
            assert end == now
            assert row["window_length"] == in_words(end - start)
            found[row["k"], end - start] = [row[name] for name in NAMES]
        assert rows.num_rows == len(found)
        assert found.keys() == wanted.keys()
        assert all(all(map(same, found[w], wanted[w])) for w in wanted)

    every = list(table.schema.names)
    check(pa.Table.from_batches(list(table.scan(every)), table.schema), there)
    assert sum(batch.num_rows for batch in table.scan(["_key_group"])) == len(there)
    for key in keys:
        of_key = pa.Table.from_batches([table.find(every, prints_of([pa.array([key])]))])
        check(of_key, {w: v for w, v in there.items() if w[0] == key})
    limit = tiles[-1].over_before(oracle.late_us)
    asked = [
        (key, size, start)
        for key in keys
        for size in (w.size_us for w in tiles)
        for start in [None, *range(limit - slide, now, slide), limit + 1]
    ]
    columns, is_there = table.look_up(
        ["k", "window", *NAMES],
        [
            pa.array([key for key, _, _ in asked], pa.string()),
            pa.array([in_words(size) for _, size, _ in asked]),
            pa.array([start for _, _, start in asked], pa.timestamp("us", "UTC")),
        ],
    )
    for i, (key, size, start) in enumerate(asked):
        since = now - size if start is None else start
        whole = since >= limit and (since - limit) % slide == 0
        wanted = values(key, since, size) if whole else []
        assert bool(is_there[i]) == bool(wanted), (asked[i], wanted)
        if wanted:
            assert columns[0][i].as_py() == key
            window = columns[1][i].as_py()
            assert (micros(window["start"]), micros(window["end"])) == (since, since + size)
            assert all(map(same, (c[i].as_py() for c in columns[2:]), shown(wanted)))
