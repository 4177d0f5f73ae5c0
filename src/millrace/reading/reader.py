"""Reading state from outside: a snapshot of a committed epoch, without Spark.

A reader sees one committed epoch across all shards and operators for as long as it is open, while
the stream continues. Only `refresh` takes it to another epoch.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.errors import (
    LocationError,
    MalformedError,
    MissingEpochError,
    StoreError,
    UnknownColumnError,
    UnknownEpochError,
    UnknownOperatorError,
    UsageError,
)
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import listed_ranges
from millrace.log import Journal, Trail, open_store
from millrace.log.leases import Holder, acquire
from millrace.log.spark_logs import last_committed
from millrace.operators.operator import MAIN
from millrace.reading import changes as feeds
from millrace.reading import results
from millrace.reading.epochs import epoch_at, no_epoch_yet
from millrace.reading.keys import key_columns
from millrace.reading.snapshot import Snapshot
from millrace.reading.state_table import StateTable
from millrace.reading.tables import main_table, tables

if TYPE_CHECKING:
    from millrace.reading.sql import SqlConnection

FOUND = "_found"

_log = logging.getLogger("millrace")


class Reader:
    """The state of a location at one epoch."""

    def __init__(
        self, snapshot: Snapshot, lease: Holder | None = None, threads: int | None = None
    ) -> None:
        self.location = snapshot.journal.store.url
        self._snapshot = snapshot
        self._lease = lease
        self._threads = threads
        self._connection: SqlConnection | None = None
        self._busy = threading.RLock()
        """Held while a query runs, so that the epoch does not change under it."""
        if lease is not None:
            weakref.finalize(self, _release, lease)

    @property
    def snapshot(self) -> Snapshot:
        """The epoch itself, for modules that read it in other ways."""
        return self._snapshot

    @property
    def lease_id(self) -> str | None:
        return self._lease.id if self._lease is not None else None

    @property
    def is_leased(self) -> bool:
        """Whether the epoch's files are kept as long as this reader is open."""
        return self._lease is not None

    @property
    def epoch(self) -> Epoch:
        return self._snapshot.epoch

    @property
    def batch_id(self) -> int | None:
        """The Spark batch that made this epoch."""
        return self._snapshot.trail.batch_id

    @property
    def watermark_ms(self) -> int | None:
        return self._snapshot.trail.watermark_ms

    @property
    def committed_at(self) -> dt.datetime:
        """When the epoch was committed."""
        return dt.datetime.fromtimestamp(self._snapshot.trail.time_ms / 1000, dt.UTC)

    @property
    def key_groups(self) -> int:
        """How many key groups the location has."""
        return self._snapshot.trail.key_groups

    @property
    def operators(self) -> list[str]:
        return [str(name) for name in self._snapshot.operators]

    def tables(self, operator: str | None = None) -> list[str]:
        """What `state=` may be: an operator's lists, maps, sets, timers and shared states."""
        name = self._snapshot.description(operator).name
        return [state for state in tables(self._snapshot, name) if state != MAIN]

    def schema(self, operator: str | None = None, *, state: str | None = None) -> pa.Schema:
        """The columns of a state."""
        return self._table(operator, state).schema

    def keys(self, operator: str | None = None) -> list[str]:
        """An operator's key columns."""
        return list(self._snapshot.description(operator).key_names)

    def to_arrow(
        self,
        operator: str | None = None,
        *,
        state: str | None = None,
        columns: Sequence[str] | None = None,
        key_groups: str | Sequence[int] | None = None,
    ) -> pa.Table:
        """An operator's state: its key columns and values, one row per key.

        The operator may be left out if there is only one. `state` names a list, map, set or the
        timers of a processor: then there is one row per entry, with the key it belongs to. Of a
        broadcast state there is one row per entry, of a task state one per shard. `columns` and
        `key_groups`, such as `"0-15"`, restrict what is read.
        """
        table = self._table(operator, state)
        names = _chosen(table, columns)
        batches = list(self._batches(table, names, key_groups))
        return pa.Table.from_batches(batches, pa.schema([table.field(n) for n in names]))

    def to_batches(
        self,
        operator: str | None = None,
        *,
        state: str | None = None,
        columns: Sequence[str] | None = None,
        key_groups: str | Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as `to_arrow`, a page at a time."""
        table = self._table(operator, state)
        return self._batches(table, _chosen(table, columns), key_groups)

    def _batches(
        self, table: StateTable, names: list[str], key_groups: str | Sequence[int] | None
    ) -> Iterator[pa.RecordBatch]:
        at = self.epoch
        for batch in table.scan(names, self._groups(key_groups)):
            yield batch
            if self.epoch != at:
                raise UsageError(
                    f"this reader went from epoch {at} to {self.epoch} while epoch {at} was being "
                    "read. Refresh between reads, or use a reader of its own."
                )

    def get(
        self,
        keys: pa.Table | Sequence[Any],
        operator: str | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Look up keys: a row for each that was given, in their order.

        A key is its value, or a tuple or a dict if it has several columns; a table with the key
        columns works as well. `_found` says whether the key exists; if not, its values are NULL.
        A key of a window operator ends with the start of the window, `window_start`. If it has
        windows of several lengths, `window_length` is before it; without a start the newest is
        meant.
        """
        table = main_table(self._snapshot, self._snapshot.description(operator))
        given = key_columns(keys, table.description, table.look_up_schema, table.optional)
        names = [name for name in _chosen(table, columns) if name not in table.keys]
        with self._busy, self._snapshot.lock:
            arrays, found = table.look_up(names, given)
        fields = [*table.look_up_schema, *(table.field(name) for name in names)]
        return pa.Table.from_arrays(
            [*given, *arrays, pa.array(found)], schema=pa.schema([*fields, (FOUND, pa.bool_())])
        )

    def changes(
        self,
        since: int,
        until: int | None = None,
        operator: str | None = None,
        *,
        state: str | None = None,
        key_groups: str | Sequence[int] | None = None,
        every: bool = False,
    ) -> pa.Table:
        """What changed after epoch `since`, up to `until` or else to the epoch that is open.

        One row per key that changed, with its values at the end, `_change` (`upsert` or `delete`)
        and `_epoch`, that of its last change. With `every`, a row for each epoch that changed it.
        """
        snapshot = self._snapshot
        if until is not None and until != self.epoch:
            if type(until) is not int or not 0 < until < self.epoch:
                raise UsageError(
                    f"changes up to epoch {until!r}: this reader is at epoch {self.epoch}."
                )
            snapshot = self._earlier(until)
        table = _table_of(snapshot, operator, state)
        with self._busy, snapshot.lock:
            return feeds.changes(table, since, groups=self._groups(key_groups), every=every)

    def changes_schema(
        self, operator: str | None = None, *, state: str | None = None, every: bool = False
    ) -> pa.Schema:
        """The columns of `changes`."""
        return feeds.feed_schema(self._table(operator, state), every=every)

    def diff(self, epoch: int, operator: str | None = None) -> pa.Table:
        """Keys whose values at an earlier epoch differ from those at this one.

        `_change` is `added`, `removed` or `changed`; `before` and `after` hold the values.
        """
        earlier = self._earlier(epoch)
        with self._busy, self._snapshot.lock:
            return feeds.difference(_table_of(earlier, operator, None), self._table(operator, None))

    def _earlier(self, epoch: int) -> Snapshot:
        """Another epoch of the same history."""
        journal = self._snapshot.journal
        trail = journal.trail(Epoch(epoch))
        # In this order: epochs of another history are written after this one is gone.
        self._snapshot.check_history()
        return Snapshot(journal, trail)

    def sql(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> pa.Table:
        """The result of a query in DuckDB's SQL; `?` and `$name` stand for parameters.

        Every operator is a table with its keys, values and whole collections; the entries of a
        list, map or set are one too, as `operator.state`. `millrace_tables` lists them.
        """
        return self.sql_at(query, None, parameters)[1]

    def sql_at(
        self,
        query: str,
        epoch: Epoch | None,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    ) -> tuple[Epoch, pa.Table]:
        """The result of a query, and its epoch; with `epoch`, first go to that one."""
        with self._busy:
            if epoch is not None:
                self.refresh(epoch)
            if self._connection is None or not self._connection.is_current:
                self._drop_connection()
                self._connection = _connection(self._snapshot, self._threads)
            return self.epoch, self._connection.run(query, parameters)

    def views(self) -> list[str]:
        """The views that have a result."""
        return results.names(self._snapshot.journal.store)

    def view(self, name: str) -> results.ViewResult:
        """The last result of a view up to this reader's epoch; `.rows` and `.epoch`."""
        return results.read(self._snapshot.journal.store, name, self.epoch)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def refresh(self, epoch: int | None = None) -> Epoch:
        """Go to the last committed epoch, or to a later one; what was read before stays warm."""
        with self._busy:
            if epoch is None or epoch > self.epoch:
                self._snapshot.advance(None if epoch is None else Epoch(epoch))
            while self._lease is not None and self.epoch and self._lease.hold(self.epoch):
                at = self.epoch
                if self._snapshot.journal.has(at):
                    break
                # It was collected before the lease was there, so there are later ones.
                if self._snapshot.advance() == at:
                    raise UnknownEpochError(
                        f"epoch {at} of {self.location} is gone: "
                        f"{self._snapshot.journal.retained()}"
                    )
            return self.epoch

    def _table(self, operator: str | None, state: str | None) -> StateTable:
        return _table_of(self._snapshot, operator, state)

    def _groups(self, key_groups: str | Sequence[int] | None) -> Int64Array | None:
        if key_groups is None:
            return None
        try:
            groups = (
                listed_ranges(key_groups)
                if isinstance(key_groups, str)
                else np.asarray(list(key_groups), np.int64)
            )
        except (ValueError, MalformedError) as error:
            raise UsageError(
                f"key_groups={key_groups!r}: give numbers, or text such as '0-15,31'."
            ) from error
        if len(groups) and not 0 <= groups.min() <= groups.max() < self.key_groups:
            raise UsageError(
                f"key_groups={key_groups!r}: {self.location} has key groups 0 to "
                f"{self.key_groups - 1}."
            )
        return np.unique(groups)

    def close(self) -> None:
        """Release the epoch. What was read stays valid; reading more may fail from now on."""
        with self._busy:
            self._drop_connection()
            if self._lease is not None:
                self._lease.release()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Reader {self.location} epoch={self.epoch} operators={self.operators}>"


def _connection(snapshot: Snapshot, threads: int | None) -> SqlConnection:
    # DuckDB and what it needs of Arrow are loaded with the first query.
    from millrace.reading.sql import SqlConnection

    return SqlConnection(snapshot, threads)


def _table_of(snapshot: Snapshot, operator: str | None, state: str | None) -> StateTable:
    name = snapshot.description(operator).name
    found = tables(snapshot, name)
    if (state or MAIN) not in found:
        listed = ", ".join(repr(known) for known in found if known != MAIN) or "none"
        raise UnknownOperatorError(
            f"operator {name!r} has no collection {state!r}; it has {listed}."
        )
    return found[state or MAIN]


def _chosen(table: StateTable, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(table.schema.names)
    for name in columns:
        if name not in table.schema.names:
            raise UnknownColumnError(
                f"{table.title} has no column {name!r}; it has "
                f"{', '.join(map(repr, table.schema.names))}."
            )
    return list(columns)


def _newest(journal: Journal) -> Trail:
    """The trail of the last committed epoch."""
    # In this order: Spark commits a batch after its manifest is there.
    done = last_committed(journal.store)
    trail = journal.newest()
    if done is not None and (trail.batch_id is None or trail.batch_id < done):
        raise MissingEpochError(
            f"Spark has committed batch {done} at {journal.store.url}, but the last manifest, of "
            f"epoch {trail.epoch}, is of batch {trail.batch_id}: manifests are missing, and this "
            "would not be the newest state. Restore them from a backup, or open an epoch by number."
        )
    if trail.epoch == 0:
        raise no_epoch_yet(journal.store.url)
    return trail


def _hold(journal: Journal, look: Callable[[], Trail]) -> tuple[Trail, Holder | None]:
    """A trail, and a lease on its epoch if one can be had."""
    while True:
        trail = look()
        lease = acquire(journal.store, trail.epoch)
        if lease is None or journal.has(trail.epoch):
            return trail, lease
        # It was collected before the lease was there: look again, for a newer one or an error.
        lease.release()


def _release(lease: Holder) -> None:
    try:
        lease.release()
    except (StoreError, LocationError) as error:
        # Nobody is left to inform, and the lease expires soon.
        _log.info("a lease on epoch %s was not released: %s", lease.epoch, error)


def open_location(
    location: str,
    *,
    epoch: int | None = None,
    as_of: dt.datetime | str | None = None,
    lease: bool = True,
) -> Reader:
    """Open a location's state: at its last committed epoch, at an earlier one, or as of a time.

    The epoch stays readable until the reader is closed, whatever is collected meanwhile: a lease,
    a small file in the location, protects it. `lease=False` takes none, for callers that hold one.
    """
    if epoch is not None and as_of is not None:
        raise UsageError("epoch= and as_of= both name an epoch: give one of them.")
    journal = Journal.open(open_store(location))
    if as_of is not None:
        epoch = epoch_at(journal, as_of)
    if epoch is not None and (type(epoch) is not int or epoch < 1):
        raise UnknownEpochError(
            f"epoch={epoch!r}: epochs are numbered from 1. {journal.retained()}"
        )

    def look() -> Trail:
        return _newest(journal) if epoch is None else journal.trail(Epoch(epoch))

    if not lease:
        return Reader(Snapshot(journal, look()))
    trail, holder = _hold(journal, look)
    snapshot = Snapshot(journal, trail)
    if epoch is None:
        # One open after another, each at a newer epoch, would leave the copies of all of them.
        snapshot.prune_copies()
    is_held = holder is not None and holder.is_written
    if not is_held and journal.store.local_path("") is not None:
        snapshot.hold_all()
    return Reader(snapshot, holder)


def follow_live(journal: Journal, specs: dict[OperatorName, dict[str, Any]]) -> Reader:
    """A reader of a query that is being run here; empty tables before its first epoch.

    Its lease lapses when it is not used: nobody closes it before the query ends.
    One thread of DuckDB's, because the stream needs the others.
    """
    trail = journal.newest()
    if trail.epoch == 0:
        trail.specs = dict(specs)
    holder = acquire(journal.store, Epoch(max(trail.epoch, 1)), lapses=True)
    return Reader(Snapshot(journal, trail), holder, threads=1)
