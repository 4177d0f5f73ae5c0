"""A tiny table taken through two epochs, so that the kernels of every epoch are loaded.

Loading compiled kernels takes about a second, compiling one of them for the first time on a machine
as long. Done before a process is forked, its children have them from the start: a new executor, or
a worker that replaces a dead one, is as quick as any. That includes what a steady query never
needs: the first epoch after a move must not be the one that waits for a compiler.
"""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa

from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.log import Journal, OperatorCommit, open_store
from millrace.log.segment import DELETED, HI, LO, segment_path
from millrace.state.base import merge_addresses
from millrace.state.index import MIN_SLOTS, DeltaIndex
from millrace.state.replica import Replica
from millrace.state.sorting import count_groups, sort_order
from millrace.state.writing import compose_segment

_NAME = OperatorName("rehearsal")
_SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
_GROUPS = 2


def rehearse() -> None:
    """Write, follow, find, read and merge a few rows."""
    every = np.arange(_GROUPS)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        store = open_store(folder)
        journal = Journal.create(store, _GROUPS)
        trail = journal.trail(Epoch(0))
        replica = Replica(store, _SCHEMA, _GROUPS)
        for epoch in (1, 2):
            replica.follow(trail.operator(_NAME), trail.epoch, every)
            hi = np.asarray([epoch, 1 << 63], np.uint64)
            replica.gather(replica.find(hi, hi), _SCHEMA.names)
            rows = _rows(replica, hi)
            path = segment_path(_NAME, Epoch(epoch), 0, "rehearsal")
            written = compose_segment(replica, path, rows, every, index_budget=0)
            store.put(path, memoryview(written.buffer))
            commit = OperatorCommit(Assignment.even(_GROUPS, 1), (written.entry,), epoch)
            journal.commit(
                trail,
                run="rehearsal",
                batch_id=epoch,
                watermark_ms=None,
                operators={_NAME: commit},
                specs={},
                full=False,
            )
        replica.follow(trail.operator(_NAME), trail.epoch, every)
        replica.read(every)
    _rehearse_the_rest()


def _rehearse_the_rest() -> None:
    """An index that grows, single rows of a page, and input in one piece or in many."""
    index = DeltaIndex(_GROUPS)
    for rows in (1, MIN_SLOTS):
        hi = np.arange(rows, dtype=np.uint64)
        index.reserve(np.zeros(1, np.int64), np.asarray([rows]))
        index.upsert(hi, hi, hi + np.uint64(1), 63)
    none = np.empty(0, np.uint64)
    for given in (hi.copy(), hi):
        # Pages and input in one piece cannot be written to; what was put together can.
        hi.flags.writeable = False
        sort_order(given, given)
        count_groups(given, np.uint64(63), _GROUPS)
        merge_addresses(given, given, np.uint64(1), none, none, none, False)


def _rows(replica: Replica, hi: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> pa.RecordBatch:
    columns = {HI: hi, LO: hi, DELETED: [False, False], "n": [1, None], "s": ["a", None]}
    arrays = [pa.array(columns[f.name], f.type) for f in replica.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=replica.schema)
