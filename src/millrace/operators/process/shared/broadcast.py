"""Broadcast state in one epoch: the table as it was, and the epoch's broadcast rows on top.

Every shard follows all key groups of the table and gets all broadcast rows of the epoch, so all see
the same map. Each shard writes the changes of its own key groups only: the table has one writer
per key group, as every other. Of several rows with the same key the last one counts, in order of
input partition and arrival; a row without a value removes its entry.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.arrays import Int64Array, UInt64Array
from millrace.errors import StateAccessError
from millrace.keygroups.hashing import digests
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.operator import TableChange
from millrace.operators.process.arrivals import unite
from millrace.operators.process.convert import encode_key, to_python
from millrace.operators.process.keys import freeze_loaded, key_freezer, key_thawer
from millrace.operators.process.shared.readonly import read_only
from millrace.state.columns import words
from millrace.state.replica import Replica
from millrace.state.sorting import sort_order

KEY, VALUE = "key", "value"
SMALL = 4096
"""A map with at most this many rows is read whole; of a larger one, only what is asked for."""

_MISSING: Any = object()


class Decoded:
    """The entries as Python objects, kept between epochs for as long as the log stays the same."""

    def __init__(self) -> None:
        self._segments: frozenset[str] | None = None
        self._entries: dict[Any, Any] = {}

    def entries(self, table: BroadcastTable) -> dict[Any, Any]:
        """What the replica holds, by frozen key; not to be changed."""
        segments = table.replica.segments()
        if segments != self._segments:
            self._entries = table.stored_entries()
            self._segments = segments
        return self._entries


class BroadcastTable:
    """The map at one epoch."""

    def __init__(
        self, name: str, replica: Replica, rows: pa.StructArray | None, decoded: Decoded
    ) -> None:
        """`rows` are the epoch's, in order: structs of a key and a value."""
        self.name = name
        self.replica = replica
        self._decoded = decoded
        self._every = np.arange(replica.key_groups)
        self._key_type = replica.schema.field(KEY).type
        self.freeze = key_freezer(self._key_type, f"broadcast state {name!r}")
        self.thaw = key_thawer(self._key_type)
        self._looked_up: dict[Any, Any] = {}
        self._take(rows)

    def _take(self, rows: pa.StructArray | None) -> None:
        """The last row of each key, in order of fingerprint."""
        value_type = self.replica.schema.field(VALUE).type
        if rows is None:
            rows = pa.array([], pa.struct([(KEY, self._key_type), (VALUE, value_type)]))
        keys = types.conform(rows.field(0), self._key_type)
        values = types.conform(rows.field(1), value_type)
        frozen = freeze_loaded(to_python(keys), self._key_type, self.freeze)
        last = {key: i for i, key in enumerate(frozen)}
        hi, lo = self._fingerprints(list(last))
        order = sort_order(hi, lo)
        self._hi, self._lo = hi[order], lo[order]
        chosen = pa.array(np.asarray(list(last.values()), np.int64)[order])
        self._keys, self._values = keys.take(chosen), values.take(chosen)
        ordered = [list(last)[i] for i in order.tolist()]
        objects = map(read_only, to_python(self._values))
        self._news: dict[Any, Any] = dict(zip(ordered, objects, strict=True))

    def _fingerprints(self, keys: list[Any]) -> tuple[UInt64Array, UInt64Array]:
        """The fingerprints of frozen keys."""
        scheme = self.replica.scheme
        assert scheme is not None
        return digests(map(encode_key, keys), scheme)

    def changes(self, groups: Int64Array) -> TableChange | None:
        """The entries of some key groups that the epoch's rows set or remove."""
        mine = np.isin((self._hi >> np.uint64(self.replica.shift)).astype(np.int64), groups)
        hi, lo = self._hi[mine], self._lo[mine]
        gone = self._values.is_null().to_numpy(zero_copy_only=False)[mine]
        existing = self.replica.find(hi, lo) != 0
        wanted = ~gone | existing
        if not wanted.any():
            return None
        picked = pa.array(np.flatnonzero(mine)[wanted])
        columns = {
            HI: pa.array(hi[wanted]),
            LO: pa.array(lo[wanted]),
            DELETED: pa.array(gone[wanted]),
            KEY: self._keys.take(picked),
            VALUE: self._values.take(picked),
        }
        rows = pa.RecordBatch.from_arrays(
            [columns[name] for name in self.replica.schema.names], schema=self.replica.schema
        )
        added, removed = (~gone & ~existing).sum(), (gone & existing).sum()
        return TableChange(rows, int(added), int(removed))

    @functools.cached_property
    def table(self) -> pa.Table:
        """All entries, in order of fingerprint: columns `key` and `value`."""
        stored = self.replica.read(self._every)
        stored_hi, stored_lo = words(stored, HI), words(stored, LO)
        _, _, position = unite([stored_hi, self._hi], [stored_lo, self._lo])
        # Written in this order, an epoch's row takes the place of the stored one.
        source = np.zeros(int(position.max(initial=-1)) + 1, np.int64)
        source[position] = np.arange(len(position))
        entries = pa.Table.from_batches([stored.select([KEY, VALUE])])
        news = pa.table({KEY: self._keys, VALUE: self._values}, schema=entries.schema)
        merged = pa.concat_tables([entries, news]).combine_chunks().take(pa.array(source))
        return merged.filter(merged.column(VALUE).is_valid())

    def stored_entries(self) -> dict[Any, Any]:
        """What the replica holds as objects, by frozen key."""
        stored = self.replica.read(self._every)
        keys = freeze_loaded(to_python(stored.column(KEY)), self._key_type, self.freeze)
        return dict(zip(keys, map(read_only, to_python(stored.column(VALUE))), strict=True))

    @functools.cached_property
    def _whole(self) -> dict[Any, Any] | None:
        """The stored entries, if they are few."""
        if self.replica.most_rows > SMALL:
            return None
        return self._decoded.entries(self)

    def lookup(self, key: Any, otherwise: Any) -> Any:
        """The value of a key."""
        frozen = self.freeze(key)
        value = self._news.get(frozen, _MISSING)
        if value is _MISSING:
            whole = self._whole
            value = self._stored(frozen) if whole is None else whole.get(frozen)
        return otherwise if value is None else value

    def _stored(self, frozen: Any) -> Any:
        value = self._looked_up.get(frozen, _MISSING)
        if value is _MISSING:
            address = self.replica.find(*self._fingerprints([frozen]))
            (column,) = self.replica.gather(address, [VALUE])
            value = self._looked_up[frozen] = read_only(to_python(column)[0])
        return value


class BroadcastHandle:
    """What `self.rules` is while an epoch runs: a map to read."""

    __slots__ = ("_name", "_table")

    def __init__(self, table: BroadcastTable) -> None:
        self._name = table.name
        self._table: BroadcastTable | None = table

    def _open(self) -> BroadcastTable:
        if self._table is None:
            raise StateAccessError(
                f"broadcast state {self._name!r} was used after the epoch it belongs to. Use it "
                "only inside of process() and on_timer()."
            )
        return self._table

    def close(self) -> None:
        self._table = None

    def get(self, key: Any, default: Any = None) -> Any:
        return self._open().lookup(key, default)

    def __getitem__(self, key: Any) -> Any:
        value = self._open().lookup(key, _MISSING)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def contains(self, key: Any) -> bool:
        return self._open().lookup(key, _MISSING) is not _MISSING

    __contains__ = contains

    def to_arrow(self) -> pa.Table:
        """All entries as columns `key` and `value`."""
        return self._open().table

    def items(self) -> list[tuple[Any, Any]]:
        table = self.to_arrow()
        keys, values = (to_python(types.conform(c, c.type)) for c in table.columns)
        return list(zip(keys, map(read_only, values), strict=True))

    def keys(self) -> list[Any]:
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        return [value for _, value in self.items()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StateAccessError(
            f"broadcast state {self._name!r} is read-only in a processor: it must be the same on "
            "all shards. It changes by the rows of the stream given as "
            f"broadcast={{{self._name!r}: ...}}."
        )

    set = add = delete = update = clear = pop = setdefault = _refuse
    __setitem__ = __delitem__ = _refuse
