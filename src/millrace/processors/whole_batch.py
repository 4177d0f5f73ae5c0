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
from pyspark import cloudpickle
from pyspark.sql import types as T

from millrace import types
from millrace.errors import MillraceError, ProcessorError, StateAccessError, StateTypeError
from millrace.ids import OperatorName
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.aggregate import Key
from millrace.operators.operator import MAIN, Change, Moment, TableChange, TableLayout
from millrace.processors.batch import Context
from millrace.processors.convert import to_arrow
from millrace.processors.declarations import ON_READ_AND_WRITE, Value
from millrace.processors.layout import layout
from millrace.processors.processor import check_placement, declarations, fresh_copy
from millrace.processors.rows import Arrived, drop_late, empty_rows, state_specs
from millrace.processors.shared.broadcast import BroadcastHandle
from millrace.processors.shared.declarations import SharedDeclaration
from millrace.processors.shared.session import SharedStates
from millrace.processors.shared.task import TaskHandle
from millrace.processors.sweep import sweep_of
from millrace.processors.tables import EXPIRES
from millrace.state.replica import Replica
from millrace.state.writing import Sweep

Int64Array = npt.NDArray[np.int64]
Column: TypeAlias = Any
"""An Arrow array, a NumPy array, or a list."""


class BatchProcessor:
    """Logic per shard and epoch. States are class attributes, all of them `mr.Value`."""

    def process(self, batch: Batch, state: States, ctx: Context) -> Any:
        """Return the output: an Arrow table, or a dict of columns, or None."""
        raise NotImplementedError


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
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame; needs polars to be installed."""
        polars: Any = importlib.import_module("polars")

        return polars.from_arrow(self.table)

    def __len__(self) -> int:
        return int(self.table.num_rows)


class States:
    """The Value states of the batch's keys, as columns: `state["mean"]` is one entry per key."""

    def __init__(
        self,
        columns: dict[str, pa.Array],
        types_: dict[str, pa.DataType],
        shared: Mapping[str, BroadcastHandle | TaskHandle],
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

    def __setitem__(self, name: str, values: Column) -> None:
        """Replace the state of all keys of the batch, or a task state; NULL clears it."""
        shared = self._shared.get(name)
        if shared is not None:
            shared.set(values)
            return
        self._check(name)
        expected = len(self._columns[name])
        column = _as_array(values, self._types[name], f"state {name!r}")
        if len(column) != expected:
            raise StateTypeError(
                f"state {name!r} was set to {len(column)} values; the batch has {expected} keys."
            )
        self._columns[name] = column
        self.changed.add(name)


class _Stored:
    """The states of some keys as they are in the table, without those that have expired."""

    def __init__(
        self,
        main: Replica,
        addresses: npt.NDArray[np.uint64],
        values: Mapping[str, Value],
        moment: Moment,
    ) -> None:
        self.columns = dict(zip(values, main.gather(addresses, list(values)), strict=True))
        self.expired = 0
        for name, declaration in values.items():
            now = moment.of(declaration.ttl_time)
            if declaration.ttl_us is not None and now is not None:
                column = self.columns[name]
                (expires,) = main.gather(addresses, [f"{name}.{EXPIRES}"])
                over = pc.fill_null(pc.less_equal(expires, now), False)
                self.expired += pc.sum(pc.and_(over, column.is_valid())).as_py() or 0
                self.columns[name] = pc.if_else(over, pa.scalar(None, column.type), column)

    def view(
        self, values: Mapping[str, Value], shared: Mapping[str, BroadcastHandle | TaskHandle]
    ) -> States:
        """What the processor sees: defaults in the place of missing values."""
        columns = dict(self.columns)
        for name, declaration in values.items():
            if declaration.default is not None:
                what = f"the default of state {name!r}"
                default = to_arrow([declaration.default], columns[name].type, what)[0]
                columns[name] = pc.coalesce(columns[name], default)
        return States(columns, {name: column.type for name, column in columns.items()}, shared)


class WholeBatchOperator:
    """Keys, a batch processor, and the schemas around it."""

    runs_without_rows = False

    def __init__(
        self,
        name: OperatorName,
        keys: Sequence[Key],
        fields: Sequence[Key],
        processor: BatchProcessor,
        output: T.StructType,
        event_time: str | None,
    ) -> None:
        self.name = name
        self.keys = tuple(keys)
        self.fields = tuple(fields)
        self.processor = processor
        self.output_schema = output
        self.event_time = event_time
        check_placement(processor)
        every = declarations(processor)
        declared = {n: d for n, d in every.items() if not isinstance(d, SharedDeclaration)}
        for state, declaration in declared.items():
            if type(declaration) is not Value:
                raise StateAccessError(
                    f"{type(processor).__name__}.{state} is a {declaration.kind}; a BatchProcessor "
                    "has Value states only. Use a mr.Processor for lists, maps, sets and timers."
                )
        self._values: dict[str, Value] = {n: d for n, d in declared.items() if isinstance(d, Value)}
        self._shared = SharedStates(name, processor)
        self._states = state_specs(every)
        self.tables: dict[str, TableLayout] = layout(self.keys, self._states)

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "process",
            "keys": [{"name": k.name, "type": types.to_json(k.type)} for k in self.keys],
            "states": self._states,
        }

    def code(self) -> bytes:
        """What a worker needs to run it."""
        parts = (self.name, self.keys, self.fields, self.processor, self.output_schema)
        dumps: Any = cloudpickle.dumps
        return bytes(dumps((WholeBatchOperator, (*parts, self.event_time))))

    def no_rows(self) -> pa.Table:
        return empty_rows(self.keys, self.fields, self.event_time, self._shared.fields())

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        return sweep_of(table, self._states, moment)

    def show(self, state: pa.RecordBatch) -> pa.RecordBatch:
        return state.select([k.name for k in self.keys] + list(self._values))

    def apply(
        self, replicas: dict[str, Replica], rows: pa.Table, groups: Int64Array, moment: Moment
    ) -> Change:
        shared = self._shared.open(rows, replicas, groups, moment)
        rows, late = drop_late(shared.rows, moment, self.event_time)
        main = replicas[MAIN]
        arrived = Arrived(rows)
        if not rows.num_rows:
            return Change(shared.changes(), self._output(None), {"late": late})
        addresses = main.find(arrived.hi, arrived.lo)
        stored = _Stored(main, addresses, self._values, moment)
        state = stored.view(self._values, shared.handles)
        keys = pa.table(
            {
                k.name: types.conform(rows.column(f"_k{i}"), types.arrow_type(k.type, k.name)).take(
                    arrived.first
                )
                for i, k in enumerate(self.keys)
            }
        )
        table = pa.table(
            {
                f.name: types.conform(rows.column(f"_c{i}"), types.arrow_type(f.type, f.name)).take(
                    arrived.order
                )
                for i, f in enumerate(self.fields)
            }
        )
        context = Context(moment)
        processor = fresh_copy(self.processor)
        try:
            result = processor.process(Batch(table, keys, arrived.starts), state, context)
        except MillraceError as error:
            raise type(error)(f"{error} This was in operator {self.name!r}.") from error
        except Exception as error:
            raise ProcessorError(
                f"{type(self.processor).__name__}.process() of operator {self.name!r} raised "
                f"{type(error).__name__}: {error}; in a batch of {len(table)} rows and "
                f"{keys.num_rows} keys, the first of them {keys.slice(0, 1).to_pylist()}. The "
                "epoch was not committed: fix the processor and start the query again."
            ) from error
        changes = self._changes(main, addresses, arrived, keys, stored, state, moment)
        # What expired is gone with the rows that are written.
        expired = stored.expired if changes else 0
        shared.close()
        changes |= shared.changes()
        return Change(changes, self._output(result), {"late": late, "expired": expired})

    def _changes(
        self,
        main: Replica,
        addresses: npt.NDArray[np.uint64],
        arrived: Arrived,
        keys: pa.Table,
        stored: _Stored,
        state: States,
        moment: Moment,
    ) -> dict[str, TableChange]:
        refreshed = state.changed | {
            name
            for name, value in self._values.items()
            if name in state.read and value.ttl_refresh == ON_READ_AND_WRITE and value.ttl_us
        }
        if not refreshed:
            return {}
        columns: dict[str, pa.Array] = {
            HI: pa.array(arrived.hi),
            LO: pa.array(arrived.lo),
            **{
                name: types.conform(keys.column(name), keys.schema.field(name).type)
                for name in keys.column_names
            },
        }
        filled = np.zeros(len(arrived.hi), np.bool_)
        for name, declaration in self._values.items():
            # What was not set stays as it was stored: a default is not a value.
            column = state[name] if name in state.changed else stored.columns[name]
            columns[name] = column
            filled |= column.is_valid().to_numpy(zero_copy_only=False)
            if declaration.ttl_us is not None:
                now = moment.of(declaration.ttl_time)
                until = None if now is None else now + declaration.ttl_us
                if name in refreshed:
                    expires = pa.array([until] * len(filled), pa.int64())
                else:
                    (expires,) = main.gather(addresses, [f"{name}.{EXPIRES}"])
                columns[f"{name}.{EXPIRES}"] = expires
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

    def _output(self, result: Any) -> pa.RecordBatch:
        fields = self.output_schema.fields
        if result is None:
            result = {}
            columns: Mapping[str, Any] = {f.name: [] for f in fields}
        elif isinstance(result, pa.Table | pa.RecordBatch):
            columns = {name: result.column(name) for name in result.schema.names}
        elif isinstance(result, Mapping):
            columns = result
        else:
            raise StateTypeError(
                f"operator {self.name!r}: process() returned {type(result).__name__}; it should "
                "return an Arrow table, a dict of columns, or None."
            )
        missing = [f.name for f in fields if f.name not in columns]
        if missing:
            raise StateTypeError(
                f"operator {self.name!r}: the output has no column {missing[0]!r}; the schema is "
                f"{self.output_schema.simpleString()}."
            )
        arrays = [
            _as_array(
                columns[f.name],
                types.arrow_type(f.dataType, f.name),
                f"output column {f.name!r} of operator {self.name!r}",
            )
            for f in fields
        ]
        if len({len(array) for array in arrays}) > 1:
            sizes = {f.name: len(a) for f, a in zip(fields, arrays, strict=True)}
            raise StateTypeError(
                f"operator {self.name!r}: the output's columns have different lengths: {sizes}."
            )
        return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields])


def _as_array(values: Column, data_type: pa.DataType, what: str) -> pa.Array:
    """A column of exactly this type; takes other widths of a number, but no other kind of value."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        values = pa.array(values)
    elif not isinstance(values, pa.Array | pa.ChunkedArray):
        if not isinstance(values, list | tuple):
            values = list(values)
        return to_arrow(values, data_type, what)
    try:
        if not _is_same_kind(values.type, data_type):
            raise TypeError(f"it was given as {values.type}")
        return types.conform(values, data_type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise StateTypeError(f"{what} is declared as {data_type}: {error}.") from error


def _is_same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    kinds = (
        lambda t: pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t),
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
        lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        pa.types.is_timestamp,
        pa.types.is_date,
        pa.types.is_boolean,
        pa.types.is_nested,
    )
    return pa.types.is_null(given) or any(kind(given) and kind(wanted) for kind in kinds)
