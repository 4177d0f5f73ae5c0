"""A location's state as tables: which there are, their columns, and how they are read.

* a *main* table per operator: a row per key, with its values, and its lists, maps and sets as
  nested values;
* a table per list, map and set: a row per entry, with the key it belongs to;
* a table of an operator's timers;
* a table per broadcast and task state: these belong to no key;
* a table per stream of a join: the rows that wait for partners;
* a table of a pattern's partial matches, and one of the rows that they hold;
* a table of the neighbours of vertices.

Every table is read by `scan`: some columns, some key groups, or the rows of some keys. Only what is
asked for is read: no other columns and no other key groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.keygroups import groups_of
from millrace.log.segment import HI, LO, OWNER_HI, OWNER_LO
from millrace.operators.graph.layout import NEIGHBOURS
from millrace.operators.operator import MAIN, ResultColumn
from millrace.operators.pattern.layout import MATCHED, PARTIAL
from millrace.operators.process.kinds import Place
from millrace.operators.process.layout import EXPIRES
from millrace.operators.registry import MainRows
from millrace.reading.description import Collection, Description
from millrace.reading.graph_tables import NeighbourTable
from millrace.reading.join_table import JoinTable
from millrace.reading.owned_table import OwnedTable
from millrace.reading.pattern_tables import PartialMatches, TakenRows
from millrace.reading.replicas import gathered, scan
from millrace.reading.sessions import SessionTable
from millrace.reading.snapshot import Snapshot
from millrace.reading.state_table import KEY_GROUP, SYSTEM, Fingerprints, StateTable, followed
from millrace.reading.tiles import TileTable
from millrace.reading.windows import WindowTable

if TYPE_CHECKING:
    from millrace.state.replica import Replica


class MainTable(StateTable):
    """A row per key."""

    def _schema(self) -> pa.Schema:
        self._shown: dict[str, ResultColumn] = {
            shown.name: shown for shown in self.description.shown(self.moment)
        }
        self._nested = {c.name: c for c in self.description.collections}
        self._sweep = self.description.sweep(MAIN, self.moment)
        fields = [pa.field(shown.name, shown.type) for shown in self._shown.values()]
        fields += [pa.field(c.name, c.type) for c in self._nested.values()]
        return pa.schema(fields)

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        replica = self.snapshot.replica(self.description, MAIN, groups)
        needs = self._needs(columns)
        for rows in scan(replica, groups, needs):
            yield self._made(columns, rows)

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        replica = followed(self, MAIN, keys)
        addresses = replica.find(*keys)
        return self._made(
            columns, gathered(replica, addresses[addresses != 0], self._needs(columns))
        )

    @property
    def look_up_schema(self) -> pa.Schema:
        """The columns of a key to look up."""
        return self.description.key_schema

    def _look_up(
        self, columns: list[str], keys: Sequence[pa.Array]
    ) -> tuple[list[pa.Array], BoolArray]:
        """Columns of the rows of some keys, in their order, and which of them there are."""
        prints = self.fingerprints(keys)
        replica = followed(self, MAIN, prints)
        addresses = replica.find(*prints)
        if self._sweep is not None:
            addresses = self._alive(replica, addresses)
        found: BoolArray = addresses != 0
        rows = self._made(columns, gathered(replica, addresses[found], self._needs(columns)))
        if found.all():
            return rows.columns, found
        where = pa.array(np.cumsum(found) - 1, mask=~found)
        return [column.take(where) for column in rows.columns], found

    def _alive(self, replica: Replica, addresses: UInt64Array) -> UInt64Array:
        """Addresses, 0 where a row's time is over."""
        sweep = self._sweep
        assert sweep is not None
        found = np.flatnonzero(addresses)
        over = sweep(gathered(replica, addresses[found], replica.schema.names))
        if over is not None:
            addresses[found[over]] = 0
        return addresses

    def _needs(self, columns: list[str]) -> list[str]:
        """The stored columns that some shown ones are computed from."""
        if self._sweep is not None:
            return list(self.snapshot.replica(self.description, MAIN, _NONE).schema.names)
        needs: dict[str, None] = {}
        for name in columns:
            if name in self._shown:
                needs |= dict.fromkeys(self._shown[name].needs)
            else:
                needs |= dict.fromkeys([HI, LO])
        return list(needs) or [HI]

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        over = self._sweep(rows) if self._sweep is not None else None
        if over is not None and over.any():
            rows = rows.filter(pa.array(~over))
        return (
            self._batch(columns, [self._column(name, rows) for name in columns])
            if columns
            else rows
        )

    def _column(self, name: str, rows: pa.RecordBatch) -> pa.Array:
        shown = self._shown.get(name)
        if shown is not None:
            return shown.make([rows.column(need) for need in shown.needs])
        hi, lo = _words(rows, HI), _words(rows, LO)
        if name in SYSTEM:
            return self._groups(hi) if name == KEY_GROUP else rows.column(name)
        return _whole(self.snapshot, self.description, self._nested[name], (hi, lo))


class EntryTable(OwnedTable):
    """A row per entry of a list, map or set, with its key's columns."""

    def _schema(self) -> pa.Schema:
        collection = next(c for c in self.description.collections if c.name == self.state)
        layout = self.description.tables[self.state].schema
        taken = set(self.keys)
        # A key column that is called as the entry's own keeps its name.
        self.own = {
            (name if name not in taken else f"{self.state}_{name}"): name
            for name in collection.columns
        }
        own = [pa.field(shown, layout.field(name).type) for shown, name in self.own.items()]
        return pa.schema([*self.description.key_schema, *own])

    def _needs(self, columns: list[str]) -> list[str]:
        needs = [self.own[name] for name in columns if name in self.own]
        needs += [OWNER_HI, OWNER_LO]
        if EXPIRES in self.description.tables[self.state].schema.names:
            needs.append(EXPIRES)
        return needs

    def _made(self, columns: list[str], rows: pa.RecordBatch) -> pa.RecordBatch:
        sweep = self.description.sweep(self.state, self.moment)
        over = sweep(rows) if sweep is not None else None
        if over is not None and over.any():
            rows = rows.filter(pa.array(~over))
        own = {name: rows.column(self.own[name]) for name in columns if name in self.own}
        return self._batch(columns, _with_owners(self, columns, rows, own))


class TimerTable(StateTable):
    """A row per timer that is set, with its key's columns."""

    NAME = "timers"

    def _schema(self) -> pa.Schema:
        fields = [
            pa.field("clock", pa.string()),
            pa.field("timer", pa.string()),
            pa.field("label", pa.string()),
            pa.field("fires_at", pa.timestamp("us", "UTC")),
        ]
        return pa.schema([*self.description.key_schema, *fields])

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        for table in self.description.timers:
            replica = self.snapshot.replica(self.description, table, groups)
            for rows in scan(replica, groups, _TIMER_NEEDS):
                yield self._made(columns, table, rows)

    def _find(self, columns: list[str], keys: Fingerprints) -> pa.RecordBatch:
        found = []
        for table in self.description.timers:
            replica = followed(self, table, keys)
            addresses, _ = replica.entries(*keys)
            found.append(self._made(columns, table, gathered(replica, addresses, _TIMER_NEEDS)))
        return pa.concat_batches(found)

    def _made(self, columns: list[str], table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        clock = table.rpartition(".")[2]
        own = {
            "clock": pa.array([clock] * rows.num_rows, pa.string()),
            "timer": rows.column("timer"),
            "label": rows.column("label"),
            "fires_at": rows.column("time")
            .cast(pa.timestamp("us"))
            .cast(pa.timestamp("us", "UTC")),
        }
        return self._batch(columns, _with_owners(self, columns, rows, own))


_TIMER_NEEDS = [OWNER_HI, OWNER_LO, "timer", "label", "time"]


class SharedTable(StateTable):
    """A broadcast state's entries, or what each shard has of a task state."""

    def _schema(self) -> pa.Schema:
        return self.description.tables[self.state].schema

    @property
    def keys(self) -> list[str]:
        return []

    @property
    def can_find(self) -> bool:
        return False

    def _scan(self, columns: list[str], groups: Int64Array) -> Iterator[pa.RecordBatch]:
        # These are small, and those of one shard after the other read well.
        rows = self.snapshot.replica(self.description, self.state, groups).read(groups)
        own = {name: rows.column(name) for name in rows.schema.names}
        own[KEY_GROUP] = self._groups(_words(rows, HI))
        yield self._batch(columns, [own[name] for name in columns])


_AnyMain: TypeAlias = MainTable | WindowTable | SessionTable | JoinTable


def main_table(snapshot: Snapshot, description: Description) -> _AnyMain:
    """The main table of an operator."""
    return _MAIN_TABLES[description.main_rows](snapshot, description)


def tables(snapshot: Snapshot, operator: str) -> dict[str, StateTable]:
    """All tables of an operator by state; the main one is called ""."""
    description = snapshot.description(operator)
    found: dict[str, StateTable] = {MAIN: main_table(snapshot, description)}
    entries = {collection.name for collection in description.collections}
    shared = set(description.shared)
    for spec in description.states:
        name = spec["name"]
        if name in entries:
            found[name] = EntryTable(snapshot, description, name)
        elif name in shared:
            found[name] = SharedTable(snapshot, description, name)
    for name in description.waiting:
        found[name] = JoinTable(snapshot, description, name)
    for name in description.owned:
        found[name] = _OWNED_TABLES[name](snapshot, description, name)
    if description.timers and TimerTable.NAME not in found:
        found[TimerTable.NAME] = TimerTable(snapshot, description, TimerTable.NAME)
    return found


_OWNED_TABLES: dict[str, type[StateTable]] = {
    PARTIAL: PartialMatches,
    MATCHED: TakenRows,
    NEIGHBOURS: NeighbourTable,
}
_NONE: Int64Array = np.empty(0, np.int64)


def _windows(snapshot: Snapshot, description: Description) -> WindowTable:
    several = "lengths" in description.spec
    return (TileTable if several else WindowTable)(snapshot, description)


_MAIN_TABLES: dict[MainRows, Callable[[Snapshot, Description], _AnyMain]] = {
    MainRows.KEYS: MainTable,
    MainRows.WINDOWS: _windows,
    MainRows.SESSIONS: SessionTable,
    MainRows.WAITING: JoinTable,
}


def _with_owners(
    table: StateTable, columns: list[str], rows: pa.RecordBatch, own: dict[str, Any]
) -> list[pa.Array]:
    """A row's own columns, and those of the key it belongs to."""
    hi, lo = _words(rows, OWNER_HI), _words(rows, OWNER_LO)
    keys = [name for name in columns if name in table.keys]
    if keys:
        main = followed(table, MAIN, (hi, lo))
        own |= dict(zip(keys, main.gather(main.find(hi, lo), keys), strict=True))
    if KEY_GROUP in columns:
        own[KEY_GROUP] = table._groups(hi)
    return [own[name] for name in columns]


def _whole(
    snapshot: Snapshot, description: Description, collection: Collection, keys: Fingerprints
) -> pa.Array:
    """The collections of some keys, each as one value."""
    hi, lo = keys
    groups = np.unique(groups_of(hi, snapshot.trail.key_groups))
    replica = snapshot.replica(description, collection.name, groups)
    addresses, offsets = replica.entries(hi, lo)
    sweep = description.sweep(collection.name, snapshot.moment(description.name))
    needs = list(collection.columns)
    if sweep is not None:
        needs.append(EXPIRES)
    if collection.kind.place is Place.ENTRIES:
        needs += [HI, LO]
    rows = gathered(replica, addresses, needs)
    owner = np.repeat(np.arange(len(hi)), np.diff(offsets))
    over = sweep(rows) if sweep is not None else None
    if over is not None and over.any():
        rows, owner = rows.filter(pa.array(~over)), owner[~over]
    # How rows lie in pages depends on what was merged when. What a user sees must not.
    if collection.kind.place is Place.POSITIONS:
        order = np.lexsort((rows.column("position").to_numpy(), owner))
    else:
        order = np.lexsort((_words(rows, LO), _words(rows, HI), owner))
    rows = rows.take(pa.array(order))
    ends = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(hi)))))
    cuts = pa.array(ends.astype(np.int32))
    if collection.kind.is_mapping:
        keys, items = rows.column("key"), rows.column("value")
        return pa.MapArray.from_arrays(cuts, keys, items).cast(collection.type)
    return pa.ListArray.from_arrays(cuts, rows.column(collection.columns[-1]))


def _words(rows: pa.RecordBatch, name: str) -> UInt64Array:
    found: UInt64Array = rows.column(name).to_numpy(zero_copy_only=False)
    return found
