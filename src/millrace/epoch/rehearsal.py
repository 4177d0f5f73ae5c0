"""A few epochs of tiny operators, so that the kernels of every epoch are loaded.

Loading compiled kernels takes about a second, and compiling one for the first time on a machine
takes as long again. If that happens before a process is forked, its children have the kernels from
the start: a new executor, or a worker that replaces a dead one, is as quick as any other. That
includes kernels that a steady query never needs: the first epoch after a move must not be the one
that waits for a compiler.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace.arrays import Int64Array, UInt64Array
from millrace.epoch.commit import Commit
from millrace.epoch.local import LocalShards
from millrace.epoch.rehearsed import parts
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.keygroups.hashing import digests, entry_digests
from millrace.keygroups.scheme import UNSALTED
from millrace.log import Journal, open_store
from millrace.log.segment import DELETED, HI, LO
from millrace.operators import Change, Moment, Operator, TableChange, TableLayout
from millrace.operators.operator import MAIN
from millrace.state.base import merge_addresses
from millrace.state.index import MIN_SLOTS, DeltaIndex
from millrace.state.replica import Replica
from millrace.state.sorting import count_groups, sort_order

_GROUPS = 2
_SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
_NO_BUDGET = 1
"""An index budget so small that every epoch merges."""


class _Rehearsed:
    """Writes the rows it gets."""

    name = OperatorName("rehearsal")
    tables = {MAIN: TableLayout(_SCHEMA)}  # noqa: RUF012
    output_schema = T.StructType()
    side_schemas: dict[str, T.StructType] = {}  # noqa: RUF012
    runs_without_rows = False

    def spec(self) -> dict[str, Any]:
        return {"kind": "rehearsal"}

    def output_watermark(self, watermark_us: int | None) -> int | None:
        return watermark_us

    def no_rows(self) -> pa.Table:
        raise NotImplementedError

    def sweep(self, table: str, moment: Moment) -> None:
        return None

    def apply(
        self, replicas: dict[str, Replica], rows: pa.Table, groups: Int64Array, moment: Moment
    ) -> Change:
        replica = replicas[MAIN]
        # Operators look for keys that they have put in order, which is a copy of what came.
        hi: UInt64Array = rows.column(HI).to_numpy().copy()
        replica.gather(replica.find(hi, hi), _SCHEMA.names)
        columns = {HI: hi, LO: hi, DELETED: [False, False], "n": [1, None], "s": ["a", None]}
        arrays = [pa.array(columns[f.name], f.type) for f in replica.schema]
        changed = pa.RecordBatch.from_arrays(arrays, schema=replica.schema)
        return Change({MAIN: TableChange(changed, 0)}, pa.RecordBatch.from_pydict({}))


def rehearse() -> None:
    """Write, follow, find, read and merge a few rows, and have other kinds of operators do so."""
    _run(_Rehearsed(), [([_rows(1), _rows(2)], None), ([_rows(2), _rows(3)], None)])
    _rehearse_the_rest()
    for part in parts():
        _run(part.operator, [([rows], us) for rows, us in part.epochs])


def _rows(first: int) -> pa.Table:
    return pa.table({HI: pa.array([first, 1 << 63], pa.uint64())})


def _run(operator: Operator, epochs: Sequence[tuple[Sequence[Any], int | None]]) -> None:
    """Epochs of an operator, each with the rows of its steps and a watermark; then a look at all
    that is left."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        journal = Journal.create(open_store(folder), _GROUPS)
        assignment = Assignment.even(_GROUPS, 1)
        shards = LocalShards(journal, operator, assignment, index_budget=_NO_BUDGET)
        for steps, watermark_us in epochs:
            times = shards.times(watermark_us=watermark_us)
            (ran,) = shards.run(times, [steps])
            commit = Commit("rehearsal", shards.trail.epoch, full=False)
            shards.commit(times, [ran.report], commit)
        (last,) = shards.open(shards.times())
        for replica in last.replicas.values():
            replica.read(np.arange(_GROUPS))
            replica.changed(0)


def _rehearse_the_rest() -> None:
    """An index that grows, single rows of a page, input in one piece or in several, and entries of
    collections."""
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
        merge_addresses(given, given, np.uint64(1), none, none, none)
    entry_digests((hi[:1], hi[:1]), [b"entry"], UNSALTED)
    digests([b"entry"], UNSALTED)
