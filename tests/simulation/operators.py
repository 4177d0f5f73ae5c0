"""Operators whose oracle is a dict: counts that start over, and switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from tests.unit.driving import Fingerprint, Row, State, changed_batch, words

from millrace.arrays import Int64Array
from millrace.ids import OperatorName
from millrace.log.segment import HI, LO
from millrace.operators.operator import MAIN, Change, Moment, TableChange, TableLayout
from millrace.state.replica import Replica

Rows = Mapping[Fingerprint, int]
"""How often each key occurs in a batch."""

OVER = 6
"""Counts are modulo this, and a count of zero has no row: so the result does not depend on how the
rows of an epoch are divided into steps."""


def encode_rows(rows: Rows) -> pa.Table:
    """A batch as shards get it: a row per key and occurrence, the keys taking turns."""
    turns = range(max(rows.values(), default=0))
    keys = [key for turn in turns for key, count in rows.items() if count > turn]
    return pa.table(
        {
            HI: pa.array([hi for hi, _ in keys], pa.uint64()),
            LO: pa.array([lo for _, lo in keys], pa.uint64()),
        }
    )


def decode_rows(table: pa.Table) -> Counter[Fingerprint]:
    return Counter(zip(table.column(HI).to_pylist(), table.column(LO).to_pylist(), strict=True))


class Tally:
    """Counts per key in one table, or in two; a count of zero is deleted."""

    runs_without_rows = False

    def __init__(self, name: str, tables: tuple[str, ...]) -> None:
        self.name = OperatorName(name)
        self.tables = {table: TableLayout(pa.schema([("n", pa.int64())])) for table in tables}

    def spec(self) -> dict[str, Any]:
        return {"kind": "tally", "tables": list(self.tables)}

    def apply(
        self,
        replicas: dict[str, Replica],
        table: pa.Table,
        groups: Int64Array,
        moment: Moment,
    ) -> Change:
        rows = decode_rows(table)
        changes = {}
        for name, replica in replicas.items():
            keys = sorted(rows)
            found = replica.find(words(hi for hi, _ in keys), words(lo for _, lo in keys))
            counts = replica.gather(found, ["n"])[0].to_pylist()
            before = {key: n for key, n in zip(keys, counts, strict=True) if n is not None}
            after = {key: next_count(name, before.get(key), rows[key]) for key in keys}
            batch = changed_batch(self.tables[name].schema, after)
            added = sum(after[key] is not None and key not in before for key in keys)
            removed = sum(after[key] is None and key in before for key in keys)
            changes[name] = TableChange(batch, added, removed)
        return Change(changes, pa.RecordBatch.from_pydict({}))

    def sweep(self, table: str, moment: Moment) -> None:
        return None


def next_count(table: str, before: int | None, more: int) -> Row | None:
    """The value of a key after a batch; None for no row."""
    after = ((before or 0) + (more if table == MAIN else 2 * more)) % OVER
    return (after,) if after else None


def next_state(table: str, state: State, rows: Rows) -> State:
    """The oracle: a table after a batch."""
    after = dict(state)
    for key, more in rows.items():
        row = next_count(table, after[key][0] if key in after else None, more)
        if row is None:
            after.pop(key, None)
        else:
            after[key] = row
    return after
