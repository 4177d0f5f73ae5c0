"""Whole-batch processors: logic over all keys of a shard at once, in Arrow or NumPy.

The rows come sorted by key, with the number of each row's key; a Value state is a column with one
entry per key. Gather, compute, scatter back: nothing runs per row in Python.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace import types
from millrace.arrays import Int64Array, UInt64Array
from millrace.errors import (
    MillraceError,
    MissingPackageError,
    ProcessorError,
    StateAccessError,
    StateTypeError,
)
from millrace.ids import OperatorName
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.arrays import replaced
from millrace.operators.input import Input
from millrace.operators.operator import MAIN, Change, Column, Moment, TableChange
from millrace.operators.process.arrivals import Arrivals, unite
from millrace.operators.process.context import Context
from millrace.operators.process.convert import as_array, to_arrow
from millrace.operators.process.declarations import ON_READ_AND_WRITE, Value
from millrace.operators.process.initial import check_single
from millrace.operators.process.keyed import KeyedOperator, Schemas
from millrace.operators.process.layout import EXPIRES
from millrace.operators.process.outputs import BatchOutlet, column_batch, side_outputs
from millrace.operators.process.processor import INITIAL, check_placement, declarations, fresh_copy
from millrace.operators.process.shared.broadcast import BroadcastHandle
from millrace.operators.process.shared.declarations import SharedDeclaration
from millrace.operators.process.shared.states import SharedHandles
from millrace.state.replica import Replica

Values: TypeAlias = Any
"""An Arrow array, a NumPy array, or a list."""


class BatchProcessor:
    """Logic per shard and epoch. States are class attributes: `mr.Value`, and shared ones."""

    def process(self, batch: Batch, state: States, ctx: Context) -> Any:
        """Return the output: an Arrow table, or a dict of columns, or None."""
        raise NotImplementedError

    def on_initial_state(self, batch: Batch, state: States, ctx: Context) -> Any:
        """Called once with the rows of the initial state, before `process`; may return output.

        By default, it takes one row per key and puts each column into the state of that name.
        """
        for number in np.flatnonzero(np.diff(batch.starts) > 1)[:1].tolist():
            (key,) = batch.keys.slice(number, 1).to_pylist()
            check_single(int(np.diff(batch.starts)[number]), key)
        for name in batch.table.column_names:
            if name not in batch.keys.column_names:
                state[name] = batch.table.column(name)


class Batch:
    """An epoch's rows of a shard, sorted by key; within a key in the order they came."""

    def __init__(self, table: pa.Table, keys: pa.Table, starts: Int64Array) -> None:
        self.table = table
        """The rows."""
        self.keys = keys
        """The key columns, one row per key."""
        self.starts = starts
        """Where each key's rows begin; the number of rows comes last."""

    @functools.cached_property
    def key_of_row(self) -> Int64Array:
        """The number of each row's key."""
        return np.repeat(np.arange(self.keys.num_rows), np.diff(self.starts))

    def numpy(self, column: str) -> npt.NDArray[Any]:
        """A column of the rows as NumPy; NULLs become NaN."""
        array: npt.NDArray[Any] = self.table.column(column).to_numpy()
        return array

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame; needs polars to be installed."""
        try:
            polars: Any = importlib.import_module("polars")
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "batch.to_polars() needs the package polars, which is not installed where this "
                "shard runs: pip install polars, on the executors too. batch.table has the same "
                "rows in Arrow."
            ) from error
        return polars.from_arrow(self.table)

    def __len__(self) -> int:
        return int(self.table.num_rows)


class States:
    """The Value states of the batch's keys, as columns: `state["mean"]` is one entry per key."""

    def __init__(
        self,
        columns: dict[str, pa.Array],
        types_: dict[str, pa.DataType],
        shared: SharedHandles,
    ) -> None:
        self._columns = columns
        self._types = types_
        self._shared = shared
        self.changed: set[str] = set()
        self.read: set[str] = set()

    def _check(self, name: str) -> None:
        if name not in self._columns:
            raise StateAccessError(
                f"there is no state {name!r}; the processor declares "
                f"{', '.join(map(repr, [*self._columns, *self._shared])) or 'none'}."
            )

    def __getitem__(self, name: str) -> Any:
        """An Arrow array; NULL where a key has no value yet.

        Of a broadcast state, an Arrow table with the columns `key` and `value`; of a task state,
        its value.
        """
        shared = self._shared.get(name)
        if shared is not None:
            return shared.to_arrow() if isinstance(shared, BroadcastHandle) else shared.get()
        self._check(name)
        self.read.add(name)
        return self._columns[name]

    def numpy(self, name: str, default: Any = None) -> npt.NDArray[Any]:
        """A NumPy array, with `default` where a key has no value yet."""
        column = self[name]
        if default is not None:
            column = column.fill_null(default)
        array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array.copy()

    def __setitem__(self, name: str, values: Values) -> None:
        """Replace the state of all keys of the batch, or a task state; NULL clears it."""
        shared = self._shared.get(name)
        if shared is not None:
            shared.set(values)
            return
        self._check(name)
        expected = len(self._columns[name])
        column = as_array(values, self._types[name], f"state {name!r}")
        if len(column) != expected:
            raise StateTypeError(
                f"state {name!r} was set to {len(column)} values; the batch has {expected} keys."
            )
        self._columns[name] = column
        self.changed.add(name)


class _Touched:
    """The states of an epoch's keys: as they are stored, without what has expired, then changed."""

    def __init__(
        self,
        main: Replica,
        addresses: UInt64Array,
        values: Mapping[str, Value],
        moment: Moment,
    ) -> None:
        self._keys = len(addresses)
        self._values = values
        self._moment = moment
        self.columns = dict(zip(values, main.gather(addresses, list(values)), strict=True))
        self.expires: dict[str, pa.Array] = {}
        """When the values of a state with a TTL expire."""
        self.expired = 0
        self.is_changed = False
        for name, declaration in values.items():
            if declaration.ttl_us is None:
                continue
            (self.expires[name],) = main.gather(addresses, [f"{name}.{EXPIRES}"])
            now = moment.of(declaration.ttl_time)
            if now is not None:
                column = self.columns[name]
                over = pc.fill_null(pc.less_equal(self.expires[name], now), False)
                self.expired += pc.sum(pc.and_(over, column.is_valid())).as_py() or 0
                self.columns[name] = pc.if_else(over, pa.scalar(None, column.type), column)

    def view(self, numbers: Int64Array, shared: SharedHandles) -> States:
        """What the processor sees of some keys: defaults instead of missing values."""
        columns = dict(self.columns)
        if len(numbers) < self._keys:
            columns = {name: column.take(pa.array(numbers)) for name, column in columns.items()}
        for name, declaration in self._values.items():
            if declaration.default is not None:
                what = f"the default of state {name!r}"
                default = to_arrow([declaration.default], columns[name].type, what)[0]
                columns[name] = pc.coalesce(columns[name], default)
        return States(columns, {name: column.type for name, column in columns.items()}, shared)

    def take_in(self, numbers: Int64Array, state: States) -> None:
        """Keep what the processor did with the states of some keys."""
        for name, declaration in self._values.items():
            # What was not set stays as it was stored: a default is not a value.
            is_set = name in state.changed
            if is_set:
                self.columns[name] = replaced(self.columns[name], numbers, state[name])
            is_read = name in state.read and declaration.ttl_refresh == ON_READ_AND_WRITE
            if declaration.ttl_us is not None and (is_set or is_read):
                now = self._moment.of(declaration.ttl_time)
                until = None if now is None else now + declaration.ttl_us
                fresh = pa.array([until] * len(numbers), pa.int64())
                self.expires[name] = replaced(self.expires[name], numbers, fresh)
                is_set = True
            self.is_changed |= is_set


class WholeBatchOperator(KeyedOperator):
    """Keys, a batch processor, and the schemas around it."""

    runs_without_rows = False

    def __init__(self, name: OperatorName, schemas: Schemas, processor: BatchProcessor) -> None:
        check_placement(processor)
        declared = declarations(processor)
        for state, declaration in declared.items():
            if type(declaration) is not Value and not isinstance(declaration, SharedDeclaration):
                raise StateAccessError(
                    f"{type(processor).__name__}.{state} is a {declaration.kind}; a BatchProcessor "
                    "has Value, Broadcast and TaskState states only. Use a mr.Processor for lists, "
                    "maps, sets and timers."
                )
        self._values: dict[str, Value] = {n: d for n, d in declared.items() if isinstance(d, Value)}
        super().__init__(name, schemas, processor)
        self.processor = processor

    def apply(
        self, replicas: dict[str, Replica], rows: Input, groups: Int64Array, moment: Moment
    ) -> Change:
        shared = self._shared.open(rows, replicas, groups, moment)
        arrived = self._arrived(rows, shared.is_broadcast, moment)
        initial, coming = arrived.initial, arrived.rows
        hi, lo, position = coming.hi, coming.lo, np.arange(len(coming.hi))
        if len(initial.hi):
            hi, lo, position = unite([initial.hi, hi], [initial.lo, lo])
        main = replicas[MAIN]
        addresses = main.find(hi, lo)
        touched = _Touched(main, addresses, self._values, moment)
        caller = _Caller(self, touched, shared.handles, Context(moment))
        first = len(initial.hi)
        before = caller.initial(initial, position[:first])
        keys = caller.process(coming, position[first:])
        output, emitted = caller.close()
        shared.close()
        changes = {}
        if touched.is_changed:
            keys = _united(before, keys, position)
            changes = self._changes(main, addresses, hi, lo, keys, touched)
        # Expired values are removed when their rows are written.
        counters = {"late": arrived.late_count, "expired": touched.expired if changes else 0}
        changes |= shared.changes()
        return Change(changes, output, counters, emitted | arrived.sides)

    def _changes(
        self,
        main: Replica,
        addresses: UInt64Array,
        hi: UInt64Array,
        lo: UInt64Array,
        keys: pa.Table,
        touched: _Touched,
    ) -> dict[str, TableChange]:
        columns: dict[str, pa.Array] = {HI: pa.array(hi), LO: pa.array(lo), **touched.columns}
        for name in keys.column_names:
            columns[name] = types.conform(keys.column(name), keys.schema.field(name).type)
        columns |= {f"{name}.{EXPIRES}": expires for name, expires in touched.expires.items()}
        filled = np.zeros(len(hi), np.bool_)
        for name in self._values:
            filled |= columns[name].is_valid().to_numpy(zero_copy_only=False)
        columns[DELETED] = pa.array(~filled)
        existing = addresses != 0
        rows = pa.RecordBatch.from_arrays(
            [columns[name] for name in main.schema.names], schema=main.schema
        )
        wanted = filled | existing
        if not wanted.all():
            rows = rows.filter(pa.array(wanted))
        added = int((filled & ~existing).sum())
        return {MAIN: TableChange(rows, added, int((existing & ~filled).sum()))}


class _Caller:
    """Calls the user's code over whole batches."""

    def __init__(
        self,
        operator: WholeBatchOperator,
        touched: _Touched,
        shared: SharedHandles,
        context: Context,
    ) -> None:
        self._operator = operator
        self._touched = touched
        self._shared = shared
        self._context = context
        self._processor = fresh_copy(operator.processor)
        self._outputs: list[pa.RecordBatch] = []
        self._outlets: dict[str, BatchOutlet] = {}
        for name, side in side_outputs(operator.processor).items():
            self._outlets[name] = BatchOutlet(name, side.schema, operator.name)
            setattr(self._processor, name, self._outlets[name])

    def initial(self, arrived: Arrivals, numbers: Int64Array) -> pa.Table:
        """Call the processor for the rows of the initial state, if any; returns their keys."""
        columns = arrived.input.initial
        return self._call(INITIAL, arrived, numbers, columns, self._operator.initial)

    def process(self, arrived: Arrivals, numbers: Int64Array) -> pa.Table:
        """Call the processor for the epoch's rows, if any; returns their keys."""
        columns = arrived.input.columns
        return self._call("process", arrived, numbers, columns, self._operator.fields)

    def _call(
        self,
        method: str,
        arrived: Arrivals,
        numbers: Int64Array,
        columns: Sequence[Any],
        fields: Sequence[Column],
    ) -> pa.Table:
        operator = self._operator
        keys = _named(operator.keys, arrived.input.keys, arrived.first)
        if not len(numbers):
            return keys
        batch = Batch(_named(fields, columns, arrived.order), keys, arrived.starts)
        state = self._touched.view(numbers, self._shared)
        where = f"{type(operator.processor).__name__}.{method}() of operator {operator.name!r}"
        try:
            result = getattr(self._processor, method)(batch, state, self._context)
        except MillraceError as error:
            raise type(error)(f"{error} This was in {where}.") from error
        except Exception as error:
            raise ProcessorError(
                f"{where} raised {type(error).__name__}: {error}; in a batch of {len(batch)} rows "
                f"and {keys.num_rows} keys, the first of them {keys.slice(0, 1).to_pylist()}. The "
                "epoch was not committed: fix the processor and start the query again."
            ) from error
        self._touched.take_in(numbers, state)
        self._keep(result)
        return keys

    def _keep(self, result: Any) -> None:
        what = f"operator {self._operator.name!r}: the output"
        self._outputs.append(column_batch(result, self._operator.output_schema, what))

    def close(self) -> tuple[pa.RecordBatch, dict[str, pa.RecordBatch]]:
        """The output and the side outputs; emitting is an error from here on."""
        if not self._outputs:
            self._keep(None)
        sides = {name: outlet.close() for name, outlet in self._outlets.items()}
        return pa.concat_batches(self._outputs), sides


def _united(initial: pa.Table, arrived: pa.Table, position: Int64Array) -> pa.Table:
    """The keys of both calls, each once, in order of their numbers."""
    if not initial.num_rows:
        return arrived
    _, first = np.unique(position, return_index=True)
    return pa.concat_tables([initial, arrived]).take(pa.array(first))


def _named(columns: Sequence[Column], arrays: Sequence[Any], order: pa.Array) -> pa.Table:
    """Columns of rows under their own names and types, in an order."""
    return pa.table(
        {
            c.name: types.conform(array, types.arrow_type(c.type, c.name)).take(order)
            for c, array in zip(columns, arrays, strict=True)
        }
    )
