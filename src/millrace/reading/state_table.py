"""What every table of a location's state has, whatever its rows are.

A table is read by `scan`, all rows of some key groups, or by `find`, the rows of some keys; either
way some columns. Only what is asked for is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.errors import CorruptSegmentError
from millrace.ids import OperatorName
from millrace.keygroups import groups_of
from millrace.keygroups.keys import is_computable
from millrace.log.layout import SEGMENTS
from millrace.log.segment import HI, LO
from millrace.operators.operator import Moment
from millrace.reading.description import Description
from millrace.reading.replicas import fingerprints
from millrace.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from millrace.state.replica import Replica

Fingerprints = tuple[UInt64Array, UInt64Array]

KEY_GROUP = "_key_group"
"""The key group of a row, on request; no other column may have this name."""

SYSTEM = {
    KEY_GROUP: pa.field(KEY_GROUP, pa.int32()),
    HI: pa.field(HI, pa.uint64()),
    LO: pa.field(LO, pa.uint64()),
}
"""Columns that every table has on request."""


class StateTable:
    """One table of one operator at a snapshot's epoch."""

    def __init__(self, snapshot: Snapshot, description: Description, state: str = "") -> None:
        self.snapshot = snapshot
        self.description = description
        self.state = state
        """The list, map, set, or other state; empty for the main table."""
        self.schema: pa.Schema = self._schema()

    @property
    def operator(self) -> OperatorName:
        return self.description.name

    @property
    def moment(self) -> Moment:
        return self.snapshot.moment(self.operator)

    @property
    def title(self) -> str:
        """Its name in messages."""
        what = f"state {self.state!r} of " if self.state else ""
        return f"{what}operator {self.operator!r}"

    @property
    def keys(self) -> list[str]:
        """Its key columns."""
        return self.description.key_names

    @property
    def can_find(self) -> bool:
        """Whether rows can be found by their key."""
        return all(is_computable(key.type) for key in self.description.keys)

    @property
    def optional(self) -> frozenset[str]:
        """Columns of a key to look up that may be left out, or NULL."""
        return frozenset()

    def warm(self) -> None:
        """Read ahead what look-ups need, so that none of them waits for it or changes anything."""
        self.snapshot.replica(self.description, self.state).touch(self.snapshot.every)

    def fingerprints(self, keys: Sequence[pa.Array]) -> Fingerprints:
        """Of keys given as columns in the types of the state."""
        return fingerprints(keys, self.snapshot.journal.identity.scheme)

    def scan(
        self, columns: Sequence[str], groups: Int64Array | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All rows of some key groups, in no order."""
        wanted = self.snapshot.every if groups is None else groups
        with self._plausible():
            for batch in self._scan(list(columns), wanted):
                if batch.num_rows:
                    yield batch

    def find(self, columns: Sequence[str], keys: Fingerprints) -> pa.RecordBatch:
        """The rows of some keys, in no order."""
        with self._plausible():
            return self._find(list(columns), keys)

    def look_up(
        self, columns: list[str], keys: Sequence[pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        """Columns of what some keys have, in their order, and which of them have something.

        Main tables only. What a key to look up consists of is the table's `look_up_schema`.
        """
        with self._plausible():
            return self._look_up(columns, keys)

    @contextmanager
    def _plausible(self) -> Iterator[None]:
        """Rows may have the right checksums and types, and be none that an operator writes."""
        try:
            yield
        except pa.ArrowException as error:
            raise CorruptSegmentError(
                f"a segment of {self.title} at epoch {self.snapshot.trail.epoch} of "
                f"{self.snapshot.journal.store.url} is whole but has rows that no operator writes: "
                f"{error}. Restore {SEGMENTS} from a backup, or open an earlier epoch."
            ) from error

    def _look_up(
        self, columns: list[str], keys: Sequence[pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        raise NotImplementedError

    def _schema(self) -> pa.Schema:
        raise NotImplementedError

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        raise NotImplementedError

    def _batch(self, columns: list[str], arrays: list[pa.Array]) -> pa.RecordBatch:
        fields = [self.field(name) for name in columns]
        fitted = [
            a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(fitted, schema=pa.schema(fields))

    def field(self, name: str) -> pa.Field:
        """A column, the key group among them."""
        return SYSTEM.get(name) or self.schema.field(name)

    def _groups(self, hi: UInt64Array) -> pa.Array:
        return pa.array(groups_of(hi, self.snapshot.trail.key_groups).astype(np.int32))


def followed(table: StateTable, stored: str, keys: Fingerprints) -> Replica:
    """The replica of a table with the key groups of some keys."""
    groups = np.unique(groups_of(keys[0], table.snapshot.trail.key_groups))
    return table.snapshot.replica(table.description, stored, groups)
