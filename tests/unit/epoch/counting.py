"""An operator whose oracle is a Counter, and a location that is driven through its epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T
from tests.epochs import Epochs
from tests.unit.driving import Fingerprint, State, changed_batch, fingerprint, to_state, words

from millrace.arrays import Int64Array
from millrace.ids import OperatorName, table_name
from millrace.log.segment import HI, LO
from millrace.operators import Change, Moment, TableChange, TableLayout
from millrace.operators.operator import MAIN
from millrace.state.replica import Replica

NAME = OperatorName("counts")
KEY_GROUPS = 8
TWICE = "twice"
SCHEMA = pa.schema([("n", pa.int64())])


class Counting:
    """Counts the rows of each key modulo 5 in one table, twice that in another; 0 is no row."""

    name = NAME
    tables = {MAIN: TableLayout(SCHEMA), TWICE: TableLayout(SCHEMA)}  # noqa: RUF012
    output_schema = T.StructType()
    side_schemas: dict[str, T.StructType] = {}  # noqa: RUF012
    runs_without_rows = False

    def spec(self) -> dict[str, Any]:
        return {"kind": "counting"}

    def no_rows(self) -> pa.Table:
        return encode([])

    def sweep(self, table: str, moment: Moment) -> None:
        return None

    def apply(
        self, replicas: dict[str, Replica], rows: pa.Table, groups: Int64Array, moment: Moment
    ) -> Change:
        counted = Counter(
            zip(rows.column(HI).to_pylist(), rows.column(LO).to_pylist(), strict=True)
        )
        keys = sorted(counted)
        changes = {}
        for table, replica in replicas.items():
            found = replica.find(words(hi for hi, _ in keys), words(lo for _, lo in keys))
            before = [n or 0 for n in replica.gather(found, ["n"])[0].to_pylist()]
            weight = 1 if table == MAIN else 2
            after = {k: (n + weight * counted[k]) % 5 for k, n in zip(keys, before, strict=True)}
            rows_of = {k: (n,) if n else None for k, n in after.items()}
            added = sum(bool(n) and not b for n, b in zip(after.values(), before, strict=True))
            removed = sum(bool(b) and not n for n, b in zip(after.values(), before, strict=True))
            changes[table] = TableChange(changed_batch(SCHEMA, rows_of), added, removed)
        return Change(changes, pa.RecordBatch.from_pydict({}), {"rows": rows.num_rows})


def encode(keys: Iterable[int]) -> pa.Table:
    """Rows of some keys, as they reach a shard."""
    prints = [fingerprint(key) for key in keys]
    return pa.table(
        {
            HI: pa.array([hi for hi, _ in prints], pa.uint64()),
            LO: pa.array([lo for _, lo in prints], pa.uint64()),
        }
    )


class Driven(Epochs):
    """A location with one counting operator; rows are numbers of keys."""

    def __init__(self, url: str, shards: int = 1, index_budget: int = 1 << 30) -> None:
        super().__init__(
            url,
            Counting(),
            KEY_GROUPS,
            shards=shards,
            index_budget=index_budget,
            encode=encode,
            decode=lambda table: table,
        )

    def state(self, table: str = MAIN) -> State:
        replica = Replica(self.journal.store, SCHEMA, KEY_GROUPS)
        every = np.arange(KEY_GROUPS)
        trail = self.journal.newest()
        replica.follow(trail.operator(table_name(NAME, table)), trail.epoch, every)
        return to_state(replica.read(every))


def expected(keys: Iterable[int], table: str = MAIN) -> dict[Fingerprint, tuple[int]]:
    """The oracle: a table's rows after all these keys."""
    weight = 1 if table == MAIN else 2
    counts = {key: weight * n % 5 for key, n in Counter(keys).items()}
    return {fingerprint(key): (n,) for key, n in counts.items() if n}
