"""The compiled part of reading, loaded when rows are first read.

Opening a location and describing its tables needs no Numba, whose import takes longer than both.
So the other modules of this package reach the state layer through these functions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.keygroups.scheme import Scheme
from millrace.log.store import Store
from millrace.operators.operator import TableLayout

if TYPE_CHECKING:
    from millrace.state.replica import Replica


def new_replica(store: Store, layout: TableLayout, key_groups: int) -> Replica:
    """A replica of a table, which follows nothing yet."""
    from millrace.state.replica import Replica

    return Replica(store, layout.schema, key_groups, owned=layout.owned, by_column=True)


def scan(replica: Replica, groups: Int64Array, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of some key groups, a page at a time."""
    from millrace.state import scanning

    return scanning.scan(replica, groups, names)


def gathered(replica: Replica, addresses: UInt64Array, names: Sequence[str]) -> pa.RecordBatch:
    """Columns of the rows at some addresses."""
    from millrace.state import scanning

    return scanning.gathered(replica, addresses, names)


def fingerprints(keys: Sequence[pa.Array], scheme: Scheme) -> tuple[UInt64Array, UInt64Array]:
    """The fingerprints of keys, given as columns in the types of the state."""
    from millrace.keygroups import hashing

    return hashing.fingerprints(keys, scheme)
