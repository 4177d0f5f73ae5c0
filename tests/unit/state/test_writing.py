"""A segment's merges leave out what has expired, count it, and need little memory."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.stress import few
from tests.unit.driving import (
    OPERATOR,
    UNLIMITED,
    Location,
    State,
    changed_batch,
    fingerprint,
    updated,
)

from millrace.arrays import BoolArray, UInt64Array
from millrace.ids import Epoch
from millrace.log.segment import encode_segment, encoding, segment_path
from millrace.state import merging
from millrace.state.replica import Replica
from millrace.state.sections import merged
from millrace.state.writing import compose_segment

SCHEMA = pa.schema([("expires", pa.int64())])


def over_at(now: int) -> object:
    def sweep(rows: pa.RecordBatch) -> BoolArray:
        return rows.column("expires").to_numpy() <= now

    return sweep


@pytest.mark.parametrize("seed", few(range(4), 0))
def test_expired_rows_disappear_and_are_counted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MERGE_RATIO", 0.5)
    monkeypatch.setattr(merging, "RUN_PIECES", 5)
    monkeypatch.setattr(merging, "LOG_PIECES", 0)
    chance = random.Random(seed)
    location = Location(f"memory://sweep-{seed}", SCHEMA)
    replica = location.replica()
    logical: State = {}
    rows = swept = 0
    keys = [fingerprint(n) for n in range(80)]
    for now in range(40):
        location.follow(replica)
        changes: dict[tuple[int, int], tuple[int] | None] = {}
        stored = location.state()
        for key in chance.sample(keys, 12):
            gone = chance.random() < 0.2 and key in stored
            changes[key] = None if gone else (now + chance.randrange(1, 10),)
        epoch = Epoch(location.epoch + 1)
        path = segment_path(OPERATOR, epoch, 0, f"{epoch:012x}")
        written = compose_segment(
            replica,
            path,
            changed_batch(SCHEMA, changes),
            location.every,
            UNLIMITED,
            over_at(now),  # type: ignore[arg-type]
        )
        location.store.put(path, memoryview(written.buffer))
        location.commit([written.entry])
        added = sum(1 for k, row in changes.items() if row is not None and k not in stored)
        removed = sum(1 for k, row in changes.items() if row is None and k in stored)
        rows += added - removed - written.swept_rows
        swept += written.swept_rows
        logical = updated(logical, changes)
        after = location.state()
        assert len(after) == rows
        # Nothing that is alive is lost, and nothing that is not there appears.
        assert {k: r for k, r in after.items() if r[0] > now} == {
            k: r for k, r in logical.items() if r[0] > now
        }
        assert after.items() <= logical.items()
    assert swept > 0


def test_a_row_that_is_changed_in_the_same_epoch_is_not_swept() -> None:
    location = Location("memory://sweep-fresh", SCHEMA)
    key, other = fingerprint(1), (fingerprint(1)[0], 5)
    location.step({key: (1,), other: (1,)})
    for n in range(4):
        location.step({key: (1 + n,), other: (1,)})
    replica = location.follow(location.replica())
    path = segment_path(OPERATOR, Epoch(6), 0, "0" * 12)
    changed = changed_batch(SCHEMA, {key: (99,)})
    written = compose_segment(replica, path, changed, location.every, 0, over_at(50))  # type: ignore[arg-type]
    assert written.swept_rows == 1
    location.store.put(path, memoryview(written.buffer))
    location.commit([written.entry])
    assert location.state() == {key: (99,)}


def test_a_merge_collects_its_rows_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is written is what it would be if they were all there."""
    monkeypatch.setattr(encoding, "PAGE_ROWS", 4)
    location = Location("memory://gathered", SCHEMA)
    for epoch in range(3):
        location.step({fingerprint(n): (n,) for n in range(epoch, 40, epoch + 1)})
    replica = location.follow(location.replica())
    lazy = merged(replica, location.every)
    eager = replace(lazy, rows=lazy.rows.slice(0, lazy.rows.num_rows))
    asked: list[int] = []

    def batch(parts: list[UInt64Array]) -> tuple[pa.RecordBatch, Any]:
        asked.append(len(parts[0]))
        return Replica.batch(replica, parts)

    monkeypatch.setattr(replica, "batch", batch)
    buffer, entry = encode_segment("path", Epoch(4), [lazy])
    assert len(asked) == len(entry.pages) > 5
    assert sum(asked) == eager.rows.num_rows == 40
    again, same = encode_segment("path", Epoch(4), [eager])
    assert entry.sections == same.sections
    pages, others = (pa.ipc.open_file(b).read_all().to_batches() for b in (buffer, again))
    assert pages == others
