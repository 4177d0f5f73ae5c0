"""What changed between two epochs: the change feed of a state, and the difference of two epochs.

The changes of an epoch are in the segments that it added, in the sections that end with it; the
feed reads those and nothing else. A key that changed several times has, by default, one row: its
newest. Rows that a merge left out because they had expired are not in the feed, because no epoch
changed them; `difference` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.errors import MissingFileError, UnknownEpochError, UsageError
from millrace.ids import Epoch, table_name
from millrace.keygroups import groups_of
from millrace.log.journal import Journal
from millrace.log.manifest import Manifest
from millrace.log.segment import DELETED, HI, LO, OWNER_HI, OWNER_LO, open_segment
from millrace.operators.operator import MAIN
from millrace.reading.description import Description
from millrace.reading.snapshot import Snapshot
from millrace.reading.state_table import StateTable
from millrace.reading.tables import EntryTable, MainTable

Pair = tuple[UInt64Array, UInt64Array]

CHANGE, EPOCH = "_change", "_epoch"
UPSERT, DELETE = "upsert", "delete"
BEFORE, AFTER = "before", "after"

FEED_FIELDS = (pa.field(CHANGE, pa.string()), pa.field(EPOCH, pa.int64()))


def feed_schema(table: StateTable, *, every: bool = False) -> pa.Schema:
    """The columns of a table's change feed."""
    return pa.schema([*(table.schema.field(n) for n in _columns(table, every)), *FEED_FIELDS])


def changes(
    table: StateTable,
    since: int,
    *,
    groups: Int64Array | None = None,
    every: bool = False,
) -> pa.Table:
    """Changes of a table after epoch `since`, up to its snapshot's, in order of their epoch.

    With `every`, a row for each epoch that changed a key, with the values it had then; else one
    row per key, with its values now. Values of a deleted row are NULL, its key is not.
    """
    snapshot, description = table.snapshot, table.description
    _check_rows(table)
    _check_range(snapshot, since)
    stored = MAIN if isinstance(table, MainTable) else table.state
    rows = _ChangedRows.read(snapshot.journal, description, stored, since, snapshot.epoch, groups)
    # Afterwards: epochs of another history are written when the snapshot's own is gone.
    snapshot.check_history()
    if not every:
        rows = rows.newest()
    rows = rows.in_order()
    schema = feed_schema(table, every=every)
    names = [field.name for field in schema if field.name not in (CHANGE, EPOCH)]
    if isinstance(table, EntryTable):
        columns = _entry_columns(table, names, rows, since, groups)
    elif isinstance(table, MainTable) and not every:
        columns = _current_columns(table, names, rows)
    else:
        columns = _stored_columns(table, names, rows)
    change = pc.if_else(rows.column(DELETED), DELETE, UPSERT)
    epoch = pa.array(rows.epochs, pa.int64())
    return pa.Table.from_arrays([*columns, change, epoch], schema=schema)


def _columns(table: StateTable, every: bool) -> list[str]:
    if not every or not isinstance(table, MainTable):
        return list(table.schema.names)
    # The whole list or map at an epoch in between is not stored; its own feed has the changes.
    nested = {collection.name for collection in table.description.collections}
    return [name for name in table.schema.names if name not in nested]


def _check_rows(table: StateTable) -> None:
    if table.description.eviction(table.state, table.moment) is not None:
        raise UsageError(
            f"{table.title} has rows that leave it when time passes them and not by a change, as "
            "windows do. Read it with SQL. Windows and sessions can emit their changes: "
            "emit='update'."
        )


def _check_range(snapshot: Snapshot, since: int) -> None:
    if type(since) is not int or since < 0 or since > snapshot.epoch:
        raise UsageError(
            f"changes since epoch {since!r}: give a number from 0 to {snapshot.epoch}, the epoch "
            "that is read."
        )


def manifests_between(journal: Journal, since: int, until: int) -> Iterator[Manifest]:
    """The manifests of epochs (since, until]; all of them must be retained."""
    for epoch in range(since + 1, until + 1):
        try:
            yield journal.read(Epoch(epoch))[0]
        except MissingFileError as error:
            raise UnknownEpochError(
                f"the changes of epoch {epoch} are no longer available. {journal.retained()} Read "
                "the whole state and continue from its epoch, or raise retain_epochs of the query."
            ) from error


class _ChangedRows:
    """Changed rows of one stored table."""

    def __init__(self, rows: pa.Table, epochs: Int64Array) -> None:
        self.rows = rows
        self.epochs = epochs
        self.hi: UInt64Array = rows.column(HI).to_numpy()
        self.lo: UInt64Array = rows.column(LO).to_numpy()

    @staticmethod
    def read(
        journal: Journal,
        description: Description,
        table: str,
        since: int,
        until: int,
        groups: Int64Array | None,
    ) -> _ChangedRows:
        layout = description.tables[table]
        names = [HI, LO, DELETED, *([OWNER_HI, OWNER_LO] if layout.owned else [])]
        types = [pa.uint64(), pa.uint64(), pa.bool_(), pa.uint64(), pa.uint64()]
        schema = pa.schema([*zip(names, types, strict=False), *layout.schema])
        found, epochs = [], []
        for manifest in manifests_between(journal, since, until):
            for batch in _delta(journal, manifest, table_name(description.name, table), groups):
                found.append(_fitted(batch, schema))
                epochs.append(np.full(batch.num_rows, manifest.epoch, np.int64))
        return _ChangedRows(
            pa.Table.from_batches(found, schema).combine_chunks(),
            np.concatenate(epochs) if epochs else np.empty(0, np.int64),
        )

    def column(self, name: str) -> pa.Array:
        column = self.rows.column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def take(self, order: Int64Array) -> _ChangedRows:
        return _ChangedRows(self.rows.take(pa.array(order)).combine_chunks(), self.epochs[order])

    def newest(self) -> _ChangedRows:
        """The last change of each fingerprint."""
        order = np.lexsort((self.epochs, self.lo, self.hi))
        hi, lo = self.hi[order], self.lo[order]
        last = np.ones(len(order), np.bool_)
        last[:-1] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
        return self.take(order[last])

    def in_order(self) -> _ChangedRows:
        return self.take(np.lexsort((self.lo, self.hi, self.epochs)))


def _delta(
    journal: Journal, manifest: Manifest, table: Any, groups: Int64Array | None
) -> Iterator[pa.RecordBatch]:
    """The rows that an epoch changed."""
    commit = manifest.operators.get(table)
    for entry in commit.segments if commit is not None else ():
        segment = None
        for number, section in enumerate(entry.sections):
            # Merges and runs end with the epoch before; no epoch changed their rows.
            if section.last != entry.epoch or not section.rows:
                continue
            segment = segment or open_segment(journal.store, entry)
            index = segment.group_index(number)
            chosen = np.arange(len(index.groups))
            if groups is not None:
                chosen = np.flatnonzero(np.isin(index.groups, groups))
            pages = np.unique(index.pages[chosen]) + section.first_page
            segment.prefetch(pages.tolist())
            for page in pages.tolist():
                batch = segment.page(page)
                if groups is not None:
                    own = groups_of(batch.column(HI).to_numpy(), journal.identity.key_groups)
                    batch = batch.filter(pa.array(np.isin(own, groups)))
                yield batch


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows in the columns and types of today."""
    known = set(batch.schema.names)
    arrays = [
        batch.column(f.name).cast(f.type) if f.name in known else pa.nulls(batch.num_rows, f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _current_columns(table: MainTable, names: list[str], rows: _ChangedRows) -> list[pa.Array]:
    """Keys as they were written, values as they are now."""
    found = table.find([HI, LO, *names], (rows.hi, rows.lo))
    where = _positions((rows.hi, rows.lo), _fingerprints_of(found))
    keys = set(table.keys)
    return [rows.column(n) if n in keys else found.column(n).take(where) for n in names]


def _positions(wanted: Pair, known: Pair) -> pa.Array:
    """Where each of some fingerprints is among others; NULL if it is not."""
    order = np.lexsort((known[1], known[0]))
    hi, lo = known[0][order], known[1][order]
    at = np.searchsorted(hi, wanted[0])
    rest = np.arange(len(at))
    found = np.full(len(at), -1, np.int64)
    # Fingerprints that agree in one half are rare: mostly one round.
    while len(rest):
        rest = rest[at[rest] < len(hi)]
        rest = rest[hi[at[rest]] == wanted[0][rest]]
        same = lo[at[rest]] == wanted[1][rest]
        found[rest[same]] = order[at[rest[same]]]
        rest = rest[~same]
        at[rest] += 1
    return pa.array(found, mask=found < 0)


def _stored_columns(table: StateTable, names: list[str], rows: _ChangedRows) -> list[pa.Array]:
    """Keys and values as they were written."""
    keys = set(table.keys)
    shown = {s.name: s for s in table.description.shown(table.moment)}
    deleted = rows.column(DELETED)
    columns = []
    for name in names:
        if name in keys or not isinstance(table, MainTable):
            columns.append(rows.column(name))
            continue
        needs = shown[name].needs
        value = shown[name].make([rows.column(need) for need in needs])
        value = value.cast(shown[name].type)
        columns.append(pc.if_else(deleted, pa.scalar(None, value.type), value))
    return columns


def _entry_columns(
    table: EntryTable, names: list[str], rows: _ChangedRows, since: int, groups: Int64Array | None
) -> list[pa.Array]:
    """An entry's own columns, and its key: of keys that are gone, as their deletion has it."""
    hi, lo = rows.column(OWNER_HI).to_numpy(), rows.column(OWNER_LO).to_numpy()
    snapshot, description = table.snapshot, table.description
    main = snapshot.replica(description, MAIN, np.unique(groups_of(hi, snapshot.trail.key_groups)))
    addresses = main.find(hi, lo)
    keys = dict(zip(table.keys, main.gather(addresses, table.keys), strict=True))
    if (addresses == 0).any():
        arguments = (snapshot.journal, description, MAIN, since, snapshot.epoch, groups)
        gone = _ChangedRows.read(*arguments).newest()
        where = _positions((hi, lo), (gone.hi, gone.lo))
        missing = pa.array(addresses == 0)
        for name in table.keys:
            keys[name] = pc.if_else(missing, gone.column(name).take(where), keys[name])
    own = {name: rows.column(stored) for name, stored in table.own.items()}
    return [keys[name] if name in keys else own[name] for name in names]


def _fingerprints_of(rows: pa.RecordBatch | pa.Table) -> Pair:
    return rows.column(HI).to_numpy(), rows.column(LO).to_numpy()


def difference(before: StateTable, after: StateTable) -> pa.Table:
    """Keys that differ between two epochs of a main table, with their values at both.

    `_change` is added, removed or changed; `before` and `after` are structs of the values.
    """
    _check_rows(after)
    columns = list(after.schema.names)
    values = [name for name in columns if name not in after.keys]
    candidates = _candidates(before, after)
    known = [name for name in columns if name in before.schema.names]
    left = _read(before, [HI, LO, *known], candidates)
    right = _read(after, [HI, LO, *columns], candidates)
    old, new = _fingerprints_of(left), _fingerprints_of(right)
    only_new = np.asarray(_positions(new, old).is_null())
    both = tuple(np.concatenate((o, n[only_new])) for o, n in zip(old, new, strict=True))
    order = np.lexsort((both[1], both[0]))
    pairs = (both[0][order], both[1][order])
    at_left, at_right = _positions(pairs, old), _positions(pairs, new)
    differs = np.zeros(len(order), np.bool_)
    was, now = [], []
    for name in values:
        field = after.schema.field(name)
        new_values = right.column(name).take(at_right)
        if name in before.schema.names:
            old_values = left.column(name).take(at_left).cast(field.type)
        else:
            old_values = pa.nulls(len(order), field.type)
        differs |= _differ(old_values, new_values)
        was.append(old_values)
        now.append(new_values)
    added = np.asarray(at_left.is_null())
    removed = np.asarray(at_right.is_null())
    kind = np.where(added, "added", np.where(removed, "removed", "changed"))
    keys = [
        pc.if_else(pa.array(added), right.column(k).take(at_right), left.column(k).take(at_left))
        for k in after.keys
    ]
    fields = [after.schema.field(name) for name in values]
    arrays = [
        *keys,
        pa.array(kind.tolist(), pa.string()),
        _struct(was, fields, added),
        _struct(now, fields, removed),
    ]
    found = pa.Table.from_arrays(arrays, names=[*after.keys, CHANGE, BEFORE, AFTER])
    return found.filter(pa.array(added | removed | differs))


def _candidates(before: StateTable, after: StateTable) -> Pair | None:
    """Fingerprints that may differ; None for all there are."""
    low, high = sorted((int(before.snapshot.epoch), int(after.snapshot.epoch)))
    if after.description.expires:
        return None
    journal = after.snapshot.journal
    try:
        rows = _ChangedRows.read(journal, after.description, MAIN, low, high, None).newest()
        after.snapshot.check_history()
    except UnknownEpochError:
        # Both can be opened, but not all between them.
        return None
    return rows.hi, rows.lo


def _read(table: StateTable, columns: Sequence[str], keys: Pair | None) -> pa.Table:
    batches = list(table.scan(columns)) if keys is None else [table.find(columns, keys)]
    schema = pa.schema([table.field(name) for name in columns])
    return pa.Table.from_batches(batches, schema).combine_chunks()


def _differ(old: Any, new: Any) -> BoolArray:
    """Where two columns differ; NULL equals NULL, and NaN equals NaN."""
    data_type = new.type
    if pa.types.is_nested(data_type):
        left, right = old.to_pylist(), new.to_pylist()
        pairs = zip(left, right, strict=True)
        return np.asarray([repr(a) != repr(b) for a, b in pairs], np.bool_)
    unequal = pc.fill_null(pc.not_equal(old, new), True)
    both = pc.and_(old.is_null(), new.is_null())
    if pa.types.is_floating(data_type):
        nan = pc.and_(pc.fill_null(pc.is_nan(old), False), pc.fill_null(pc.is_nan(new), False))
        both = pc.or_(both, nan)
    return np.asarray(pc.and_not(unequal, both)).astype(np.bool_)


def _struct(columns: list[Any], fields: list[pa.Field], absent: BoolArray) -> pa.Array:
    arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
    arrays = [pa.concat_arrays(a.chunks) if isinstance(a, pa.ChunkedArray) else a for a in arrays]
    if not fields:
        return pa.array([None if gone else {} for gone in absent], pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(absent))
