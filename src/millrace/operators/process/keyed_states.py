"""A processor's states, bound to the keys of one shard in one epoch.

`KeyedStates` replaces every declaration by a handle, on a copy of the processor; `close` takes the
handles away again, and `changes` gives the rows that the epoch changed, table by table.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrays import BoolArray, Int64Array
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.arrays import replaced
from millrace.operators.operator import MAIN, Moment, TableChange
from millrace.operators.process.convert import to_arrow, to_python
from millrace.operators.process.cursor import Cursor, Keys, Outside
from millrace.operators.process.declarations import (
    ON_READ_AND_WRITE,
    Aggregating,
    List,
    Map,
    Pickled,
    Reducing,
    Set,
    StateDeclaration,
    Value,
)
from millrace.operators.process.handles import (
    NO_ENTRY,
    AggregatingHandle,
    CollectionHandle,
    ListHandle,
    MapHandle,
    PickledHandle,
    ReducingHandle,
    SetHandle,
    ValueHandle,
)
from millrace.operators.process.layout import EXPIRES, MIXED, TIMER_TABLES
from millrace.operators.process.processor import Processor, fresh_copy, states, timers
from millrace.operators.process.tables import (
    FOREVER,
    CollectionTable,
    Lifetime,
    ListTable,
    fitted,
    sorted_changes,
)
from millrace.operators.process.timers import TimerHandle, TimerTable
from millrace.state.replica import Replica


class _Lazy:
    """A state's values that are read when the first key asks for one."""

    def __init__(self, load: Callable[[], list[Any]]) -> None:
        self._load = load

    def __getitem__(self, i: int) -> Any:
        return self._load()[i]

    def __setitem__(self, i: int, value: Any) -> None:
        self._load()[i] = value


class KeyedStates:
    """All states of one processor for one shard's keys."""

    def __init__(
        self,
        processor: Processor,
        replicas: dict[str, Replica],
        keys: Keys,
        moment: Moment,
    ) -> None:
        self.processor = fresh_copy(processor)
        self.cursor = Cursor()
        self.keys = keys
        self.timers: dict[str, CollectionHandle] = {}
        self._states = states(processor)
        self._replicas = replicas
        self._main = replicas[MAIN]
        self._moment = moment
        self._arrays: dict[str, pa.Array] = {}
        self._expired_values = 0
        self._handles: dict[str, Any] = {}
        self._timer_handles: dict[str, TimerHandle] = {}
        self._tables: dict[str, CollectionTable | ListTable] = {}
        for name, declaration in self._states.items():
            handle = self._bind(name, declaration)
            self._handles[name] = handle
            setattr(self.processor, name, handle)
        for name, timer in timers(processor).items():
            collection = self.timers.get(timer.time)
            if collection is None:
                collection = self.timers[timer.time] = self._timer_collection(timer.time)
            timer_handle = TimerHandle(name, timer.time, collection, moment.of(timer.time))
            self._timer_handles[name] = timer_handle
            setattr(self.processor, name, timer_handle)

    def _array(self, column: str) -> pa.Array:
        """A column of the main table for all keys; NULL where a key has no row."""
        if column not in self._arrays:
            (self._arrays[column],) = self._main.gather(self.keys.addresses, [column])
        return self._arrays[column]

    def _alive(self, name: str, declaration: StateDeclaration) -> BoolArray | None:
        """Which keys' state has not expired; None if the state has no TTL."""
        if declaration.ttl_us is None:
            return None
        now = self._moment.of(declaration.ttl_time)
        if now is None:
            return None
        expires = self._array(f"{name}.{EXPIRES}")
        alive: BoolArray = expires.fill_null(np.iinfo(np.int64).max).to_numpy() > now
        return alive

    def _lifetime(self, declaration: StateDeclaration) -> Lifetime:
        if declaration.ttl_us is None:
            return FOREVER
        return Lifetime(declaration.ttl_us, self._moment.of(declaration.ttl_time))

    def _bind(self, name: str, declaration: StateDeclaration) -> Any:
        if isinstance(declaration, Value):
            return self._bind_value(name, declaration)
        table: CollectionTable | ListTable
        handle: CollectionHandle | ListHandle
        if isinstance(declaration, List):
            table = ListTable(
                self._replicas[name],
                self.keys,
                f"list state {name!r}",
                lambda: (
                    self._numbers(f"{name}.start", None),
                    self._numbers(f"{name}.end", None),
                ),
                self._mixed(name) if declaration.ttl_us is not None else None,
                self._lifetime(declaration),
            )
            handle = ListHandle(self.cursor)
        else:
            is_map = isinstance(declaration, Map)
            table = CollectionTable(
                self._replicas[name],
                self.keys,
                f"{declaration.kind} state {name!r}",
                lambda: self._numbers(f"{name}.size", self._alive(name, declaration)),
                (["key"], "value") if is_map else (["member"], None),
                self._lifetime(declaration),
            )
            expires = declaration.ttl_us is not None
            refreshes = expires and declaration.ttl_refresh == ON_READ_AND_WRITE
            assert isinstance(declaration, Map | Set)
            handle = (MapHandle if is_map else SetHandle)(self.cursor, refreshes, expires)
            handle.freeze, handle.thaw = table.freeze, table.thaw
        self._tables[name] = table
        handle.entries = table.entries
        handle.loader = table
        return handle

    def _bind_value(self, name: str, declaration: Value) -> ValueHandle:
        handle: ValueHandle
        if isinstance(declaration, Pickled):
            handle = PickledHandle(declaration, self.cursor, len(self.keys))
        elif isinstance(declaration, Reducing):
            handle = ReducingHandle(declaration, self.cursor, len(self.keys))
        elif isinstance(declaration, Aggregating):
            handle = AggregatingHandle(declaration, self.cursor, len(self.keys))
        else:
            handle = ValueHandle(declaration, self.cursor, len(self.keys))

        def load() -> list[Any]:
            values = to_python(self._array(name))
            alive = self._alive(name, declaration)
            if alive is not None:
                values = [v if ok else None for v, ok in zip(values, alive.tolist(), strict=True)]
            handle.values = values
            return values

        handle.values = _Lazy(load)
        return handle

    def _mixed(self, name: str) -> Callable[[], list[bool]]:
        def load() -> list[bool]:
            listed: list[bool] = self._array(f"{name}.{MIXED}").fill_null(False).to_pylist()
            return listed

        return load

    def _numbers(self, column: str, alive: BoolArray | None) -> list[int]:
        values = self._array(column).fill_null(0).to_numpy()
        if alive is not None:
            values = np.where(alive, values, 0)
        listed: list[int] = values.tolist()
        return listed

    def _timer_collection(self, time: str) -> CollectionHandle:
        name = TIMER_TABLES[time]
        table = TimerTable(
            self._replicas[name],
            self.keys,
            f"the {time}-time timers",
            lambda: self._numbers(f"{name}.size", None),
            (["timer", "label"], "time"),
        )
        self._tables[name] = table
        handle = CollectionHandle(self.cursor, False)
        handle.entries = table.entries
        handle.loader = table
        return handle

    def close(self) -> None:
        """The last key is done: using a state is an error from here on."""
        self._values = {n: h.values for n, h in self._handles.items() if isinstance(h, ValueHandle)}
        for name, handle in self._handles.items():
            if isinstance(handle, ValueHandle):
                handle.values = Outside(name)
            else:
                handle.entries = Outside(name)
        for time, collection in self.timers.items():
            collection.entries = Outside(TIMER_TABLES[time])
        for name, timer in self._timer_handles.items():
            timer.noted = Outside(name)

    def release(self) -> None:
        """Release everything that was loaded, after `changes`.

        Handles, tables and this object refer to each other: without this, an epoch's objects would
        stay until Python collects garbage, which would take as long as the epoch.
        """
        for handle in [*self._handles.values(), *self.timers.values()]:
            if not isinstance(handle, ValueHandle):
                handle.loader = None
        self._handles, self._tables, self._values = {}, {}, {}
        self._arrays = {}

    @property
    def expired(self) -> int:
        """Values, entries and elements that were found expired and are now removed."""
        return self._expired_values + sum(table.expired for table in self._tables.values())

    def changes(self) -> dict[str, TableChange]:
        """Changed rows by table."""
        found: dict[str, TableChange] = {}
        for name, table in self._tables.items():
            changed = table.changes()
            if changed is not None:
                found[name] = changed
        main = self._main_changes()
        if main is not None:
            found[MAIN] = main
        return found

    def _main_changes(self) -> TableChange | None:
        dirty = np.zeros(len(self.keys), np.bool_)
        for handle in self._handles.values():
            if isinstance(handle, ValueHandle):
                dirty |= handle.touched
        for table in self._tables.values():
            dirty[table.touched] = True
        if not dirty.any():
            return None
        numbers = np.flatnonzero(dirty)
        columns: dict[str, pa.Array] = {}
        filled = np.zeros(len(numbers), np.bool_)
        for name, declaration in self._states.items():
            if isinstance(declaration, Value):
                filled |= self._value_columns(name, declaration, numbers, columns)
            else:
                filled |= self._size_columns(name, numbers, columns)
                if declaration.ttl_us is not None:
                    self._write_expiry(name, numbers, self._may_expire(name, numbers), columns)
        for time in self.timers:
            filled |= self._size_columns(TIMER_TABLES[time], numbers, columns)
        existing = self.keys.addresses[numbers] != 0
        wanted = np.flatnonzero(filled | existing)
        if not len(wanted):
            return None
        chosen = numbers[wanted]
        rows: dict[str, pa.Array] = {
            HI: pa.array(self.keys.hi[chosen]),
            LO: pa.array(self.keys.lo[chosen]),
            DELETED: pa.array(~filled[wanted]),
        }
        picked = pa.array(wanted)
        for field in self._main.schema:
            if field.name in columns:
                rows[field.name] = columns[field.name].take(picked)
        key_names = [n for n in self._main.schema.names if n not in rows]
        keys = [self.keys.keys[i] for i in chosen.tolist()]
        for n, name in enumerate(key_names):
            values = list(map(operator.itemgetter(n), keys))
            rows[name] = to_arrow(values, self._main.schema.field(name).type, f"key {name!r}")
        return TableChange(
            sorted_changes(self._main, rows),
            added=int((filled & ~existing).sum()),
            removed=int((existing & ~filled).sum()),
        )

    def _value_columns(
        self,
        name: str,
        declaration: Value,
        numbers: Int64Array,
        columns: dict[str, pa.Array],
    ) -> BoolArray:
        handle: ValueHandle = self._handles[name]
        stored = self._array(name).take(pa.array(numbers))
        alive = self._alive(name, declaration)
        if alive is not None and not alive[numbers].all():
            over = pa.array(~alive[numbers])
            self._expired_values += pc.sum(pc.and_(over, stored.is_valid())).as_py() or 0
            stored = pc.if_else(over, pa.scalar(None, stored.type), stored)
        # Only what was set is written: a value that was changed in place, or that reads back
        # differently, leaves the stored one alone.
        changed = np.frombuffer(handle.dirty, np.bool_)[numbers]
        columns[name] = stored
        if changed.any():
            owners = numbers[changed].tolist()
            values = self._values[name]
            what = f"{declaration.kind} state {name!r}"
            new = fitted([values[i] for i in owners], owners, self.keys, stored.type, what)
            columns[name] = replaced(stored, changed, new)
        if declaration.ttl_us is not None:
            self._write_expiry(name, numbers, handle.touched[numbers], columns)
        filled: BoolArray = columns[name].is_valid().to_numpy(zero_copy_only=False)
        return filled

    def _write_expiry(
        self, name: str, numbers: Int64Array, refreshed: BoolArray, columns: dict[str, pa.Array]
    ) -> None:
        """When a value expires, or the last entry of a collection, at the latest."""
        old = self._array(f"{name}.{EXPIRES}").take(pa.array(numbers))
        until = pa.scalar(self._lifetime(self._states[name]).until_us, pa.int64())
        columns[f"{name}.{EXPIRES}"] = pc.if_else(pa.array(refreshed), until, old)

    def _may_expire(self, name: str, numbers: Int64Array) -> BoolArray:
        """Which collections were touched, and hold no entry that may never expire."""
        refreshed = np.zeros(len(self.keys), np.bool_)
        refreshed[self._tables[name].touched] = True
        has_no_end = self._array(f"{name}.{EXPIRES}").is_null().to_numpy(zero_copy_only=False)
        may: BoolArray = (refreshed & ~(self._had_any(name) & has_no_end))[numbers]
        return may

    def _had_any(self, name: str) -> BoolArray:
        """Which keys' collection had entries before the epoch."""
        if isinstance(self._tables[name], ListTable):
            start, end = self._array(f"{name}.start"), self._array(f"{name}.end")
            longer: BoolArray = end.fill_null(0).to_numpy() > start.fill_null(0).to_numpy()
            return longer
        filled: BoolArray = self._array(f"{name}.size").fill_null(0).to_numpy() > 0
        return filled

    def _size_columns(
        self, name: str, numbers: Int64Array, columns: dict[str, pa.Array]
    ) -> BoolArray:
        table = self._tables[name]
        picked = pa.array(numbers)
        if isinstance(table, ListTable):
            start = self._array(f"{name}.start").take(picked).fill_null(0).to_pylist()
            end = self._array(f"{name}.end").take(picked).fill_null(0).to_pylist()
            for n, i in enumerate(numbers.tolist()):
                elements = table.entries[i]
                if elements is not None:
                    start[n], end[n] = elements.start, elements.end
            columns[f"{name}.start"] = pa.array(start, pa.int64())
            columns[f"{name}.end"] = pa.array(end, pa.int64())
            if table.expires:
                columns[f"{name}.{MIXED}"] = self._mixed_column(name, table, numbers)
            return np.asarray(end) > np.asarray(start)
        before = self._array(f"{name}.size").take(picked).fill_null(0).to_pylist()
        size = table.sizes_after(before, numbers.tolist())
        columns[f"{name}.size"] = pa.array(size, pa.int64())
        return np.asarray(size) > 0

    def _mixed_column(self, name: str, table: ListTable, numbers: Int64Array) -> pa.Array:
        """Which lists have elements that expire before one in front of them does."""
        picked = pa.array(numbers)
        mixed = self._array(f"{name}.{MIXED}").take(picked).fill_null(False).to_pylist()
        before = self._array(f"{name}.{EXPIRES}").take(picked).to_pylist()
        until = self._lifetime(self._states[name]).until_us
        for n, i in enumerate(numbers.tolist()):
            elements = table.entries[i]
            if elements is None or not elements.touched:
                continue
            wrote = any(value is not NO_ENTRY for value in elements.changed.values())
            # No event time yet, or a TTL that is shorter than it was.
            odd = until is None or (before[n] is not None and before[n] > until)
            filled = elements.start < elements.end
            mixed[n] = filled and (elements.mixed or (wrote and odd))
        return pa.array(mixed, pa.bool_())
