"""Deduplication over random rows, delays, epochs, steps and parallelism, against a plain dict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from tests.unit.operators.window.driving import KEY, NAME, Windowed, fingerprint_of

from millrace import clock
from millrace.epoch import rows as wire
from millrace.log.segment import HI, LO, encoding
from millrace.operators.dedup.layout import EVENT, NEVER, PROCESSING
from millrace.operators.dedup.operator import DedupOperator
from millrace.operators.dedup.spec import DedupDefinition
from millrace.operators.operator import Column
from millrace.reading.reader import open_location
from millrace.state import merging

SECOND = 1_000_000
START = 1_000 * SECOND
FIELDS = [KEY, Column("at", T.LongType()), Column("v", T.LongType())]

Row = tuple[str | None, int | None, int]

TIMES = st.none() | st.integers(-3, 12).map(lambda seconds: START + seconds * SECOND)
ROW = st.tuples(st.none() | st.sampled_from("abcde"), TIMES)
EPOCH = st.tuples(
    st.lists(st.lists(ROW, max_size=8), max_size=3),
    st.sampled_from([0, 1, 2, 5]).map(lambda seconds: seconds * SECOND),  # The watermark's step.
    st.integers(0, 4).map(lambda seconds: seconds * SECOND),  # The clock's.
)


@dataclass
class Oracle:
    """Keys and when they are forgotten."""

    definition: DedupDefinition
    keys: dict[str | None, int] = field(default_factory=dict)
    before_us: int = 0
    late: int = 0

    def send(self, partitions: list[list[Row]], watermark_us: int, now_us: int) -> list[int]:
        """The numbers of the rows that go on."""
        time, ttl = self.definition.time, self.definition.ttl_us
        if time == PROCESSING:
            self.keys = {k: at for k, at in self.keys.items() if at > now_us}
        passed, self.late = [], 0
        for key, at, number in (row for partition in partitions for row in partition):
            if time == EVENT and at is not None and at <= self.before_us:
                self.late += 1
            elif key not in self.keys:
                self.keys[key] = ((at or 0) if time == EVENT else now_us) + ttl
                if time == EVENT:
                    self.keys[key] = max(self.keys[key], self.before_us + 1)
                passed.append(number)
        if time == EVENT:
            self.keys = {k: at for k, at in self.keys.items() if at > watermark_us}
        self.before_us = watermark_us
        return passed


def table_of(partitions: list[list[Row]]) -> pa.Table:
    """What Spark's exchange would send."""
    listed = []
    for part, rows in enumerate(partitions):
        for key, at, number in rows:
            hi, lo = np.asarray(fingerprint_of(key), np.uint64).view(np.int64).tolist()
            listed.append((hi, lo, part, at, key, at, number))
    names = [HI, LO, wire.PART, wire.EVENT, *(wire.column(i) for i in range(3))]
    kinds = [pa.int64(), pa.int64(), pa.int32(), pa.int64(), pa.string(), pa.int64(), pa.int64()]
    arrays = [pa.array([row[i] for row in listed], kind) for i, kind in enumerate(kinds)]
    return pa.Table.from_arrays(arrays, names=names)


@settings(max_examples=settings().max_examples // 2)
@given(
    definition=st.sampled_from(
        [
            DedupDefinition((KEY,), EVENT, 0),
            DedupDefinition((KEY,), EVENT, 3 * SECOND),
            DedupDefinition((KEY,), PROCESSING, 5 * SECOND),
            DedupDefinition((KEY,), NEVER),
        ]
    ),
    epochs=st.lists(EPOCH, min_size=2, max_size=8),
    data=st.data(),
)
def test_every_first_row_passes_and_nothing_else(
    definition: DedupDefinition, epochs: list[Any], data: st.DataObject
) -> None:
    oracle = Oracle(definition)
    operator = DedupOperator(NAME, definition, FIELDS)
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
    ):
        driven = Windowed(f"memory://dedup-{clock.fresh_id()}", operator)
        watermark, number = START, 0
        for partitions, step, passed in epochs:
            driven.shards = data.draw(st.integers(1, 3), "parallelism")
            if data.draw(st.booleans(), "restart"):
                driven.restart()
            driven.watermark_us = watermark
            driven.processing_us += passed
            rows: list[list[Row]] = []
            for partition in partitions:
                rows.append([(*row, number + i) for i, row in enumerate(partition)])
                number += len(partition)
            table = table_of(rows)
            cut = data.draw(st.integers(0, table.num_rows), "cut")
            steps = [table] if cut == 0 else [table.slice(0, cut), table.slice(cut)]
            emitted = sorted(row["v"] for row in driven.send(*steps))
            assert emitted == oracle.send(rows, watermark, driven.processing_us)
            assert driven.counters.get("late", 0) == oracle.late
            dropped = table.num_rows - len(emitted) - oracle.late
            assert driven.counters.get("duplicates", 0) == dropped
            assert driven.rows == len(oracle.keys)
            watermark += step
        with open_location(driven.journal.store.url, lease=False) as reader:
            state = reader.to_arrow().to_pylist()
        assert len(state) == len(oracle.keys)
        found = {row["k"]: row.get("expires_at") for row in state}
        assert found.keys() == oracle.keys.keys()
        if definition.time != NEVER:
            micros = {k: round(at.timestamp() * SECOND) for k, at in found.items()}
            assert micros == oracle.keys
