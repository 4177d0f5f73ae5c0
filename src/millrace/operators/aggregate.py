"""The keyed aggregate: one row of state per key, updated by whole batches.

Spark's JVM has already reduced each input partition to one row per key (`partial_columns`). A shard
sorts those rows by fingerprint, finds the keys' rows, merges column by column, and emits the keys
that changed with their new values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T

from millrace import types
from millrace.errors import DuplicateNameError, InvalidNameError, SchemaChangedError
from millrace.ids import OperatorName
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.operator import MAIN, Change, Moment, Shown, TableChange, TableLayout
from millrace.operators.reducers import Groups, Reducer, resolve
from millrace.state.replica import Replica
from millrace.state.sorting import group_starts, sort_order
from millrace.state.writing import Sweep

KIND = "aggregate"
PART = "_part"


@dataclass(frozen=True)
class Key:
    """A column of the key."""

    name: str
    type: T.DataType


@dataclass(frozen=True)
class AggregateSpec:
    """One aggregate, resolved: what it computes, of what, and of which type."""

    name: str
    function: str
    of: str
    type: T.DataType
    options: tuple[tuple[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "function": self.function,
            "of": self.of,
            "type": types.to_json(self.type),
            "options": dict(self.options),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> AggregateSpec:
        return AggregateSpec(
            data["name"],
            data["function"],
            data["of"],
            types.from_json(data["type"]),
            tuple(sorted(data["options"].items())),
        )

    def __str__(self) -> str:
        return f"{self.name} = {self.function}({self.of}) over {self.type.simpleString()}"


class AggregateOperator:
    """Keys, aggregates, and the arithmetic between them."""

    def __init__(
        self,
        name: OperatorName,
        keys: Sequence[Key],
        aggregates: Sequence[AggregateSpec],
        *,
        ansi: bool = True,
    ) -> None:
        self.name = name
        self.keys = tuple(keys)
        self.aggregates = tuple(aggregates)
        self._reducers: list[Reducer] = [
            resolve(a.function, a.name, a.type, {**dict(a.options), "ansi": ansi})
            for a in self.aggregates
        ]
        self._key_types = [types.arrow_type(k.type, f"key column {k.name!r}") for k in self.keys]
        self._check_names()

    def _check_names(self) -> None:
        seen: set[str] = set()
        for field in self.state_schema.names:
            if field.lower() in (HI, LO, DELETED):
                raise InvalidNameError(
                    f"operator {self.name!r} would have a column called {field!r}, which is "
                    "reserved. Rename the aggregate, or the key column in transform()."
                )
            if field.lower() in seen:
                raise DuplicateNameError(
                    f"operator {self.name!r} would have two columns called {field!r}. Rename an "
                    "aggregate, or a key column in transform()."
                )
            seen.add(field.lower())

    @property
    def state_schema(self) -> pa.Schema:
        fields = [pa.field(k.name, t) for k, t in zip(self.keys, self._key_types, strict=True)]
        for reducer in self._reducers:
            fields += reducer.fields
        return pa.schema(fields)

    @property
    def output_schema(self) -> T.StructType:
        fields = [T.StructField(k.name, k.type) for k in self.keys]
        fields += [T.StructField(r.name, r.result_type) for r in self._reducers]
        return T.StructType(fields)

    @property
    def needs_order(self) -> bool:
        """Whether rows of different input partitions must be told apart."""
        return any(a.function in ("first", "last") for a in self.aggregates)

    def spec(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "keys": [{"name": k.name, "type": types.to_json(k.type)} for k in self.keys],
            "aggregates": [a.to_json() for a in self.aggregates],
        }

    @staticmethod
    def from_spec(
        name: OperatorName, spec: dict[str, Any], *, ansi: bool = True
    ) -> AggregateOperator:
        return AggregateOperator(
            name,
            [Key(k["name"], types.from_json(k["type"])) for k in spec["keys"]],
            [AggregateSpec.from_json(a) for a in spec["aggregates"]],
            ansi=ansi,
        )

    def partial_columns(self, inputs: Sequence[Column]) -> list[Column]:
        """What the JVM computes per key and input partition of the aggregates' columns."""
        return [
            partial.alias(_partial_name(i, j))
            for i, (reducer, column) in enumerate(zip(self._reducers, inputs, strict=True))
            for j, partial in enumerate(reducer.partials(column))
        ]

    @property
    def tables(self) -> dict[str, TableLayout]:
        return {MAIN: TableLayout(self.state_schema)}

    @property
    def side_schemas(self) -> dict[str, T.StructType]:
        return {}

    @property
    def runs_without_rows(self) -> bool:
        return False

    def no_rows(self) -> pa.Table:
        raise NotImplementedError("an aggregate has nothing to do without rows")

    def apply(
        self,
        replicas: dict[str, Replica],
        rows: pa.Table,
        groups: npt.NDArray[np.int64],
        moment: Moment,
    ) -> Change:
        replica = replicas[MAIN]
        hi = _words(rows.column(HI))
        lo = _words(rows.column(LO))
        order = sort_order(hi, lo)
        hi, lo = hi[order], lo[order]
        starts = group_starts(hi, lo)
        part = np.zeros(len(order), np.int64)
        if self.needs_order:
            part = rows.column(PART).to_numpy()[order].astype(np.int64)
        grouped = Groups(starts, part)
        heads = starts[:-1]
        hi, lo = hi[heads], lo[heads]
        addresses = replica.find(hi, lo)
        key_rows = pa.array(order[heads])
        keys = [
            types.conform(rows.column(_key_name(i)), key_type).take(key_rows)
            for i, key_type in enumerate(self._key_types)
        ]
        taken = pa.array(order)
        state: list[pa.Array] = []
        shown: list[pa.Array] = []
        for i, reducer in enumerate(self._reducers):
            current = replica.gather(addresses, [field.name for field in reducer.fields])
            incoming = self._incoming(rows, i, reducer, taken)
            merged = reducer.merge(current, incoming, grouped)
            state += merged
            shown.append(reducer.result(merged))
        deleted = pa.array(np.zeros(len(hi), np.bool_))
        changed = pa.RecordBatch.from_arrays(
            [pa.array(hi), pa.array(lo), deleted, *keys, *state], schema=replica.schema
        )
        output = pa.RecordBatch.from_arrays([*keys, *shown], names=self._output_names)
        added = int((addresses == 0).sum())
        return Change({MAIN: TableChange(changed, added)}, output)

    def sweep(self, table: str, moment: Moment) -> Sweep | None:
        return None

    def _incoming(
        self, rows: pa.Table, index: int, reducer: Reducer, taken: pa.Array
    ) -> list[pa.Array]:
        columns: list[pa.Array] = []
        while (name := _partial_name(index, len(columns))) in rows.schema.names:
            column = types.conform(rows.column(name), rows.schema.field(name).type)
            columns.append(column.take(taken))
        # A value that is kept as it came must have exactly the type it is kept in.
        kept = reducer.fields[0]
        if kept.name == reducer.name and columns[0].type != kept.type:
            columns[0] = columns[0].cast(kept.type)
        return columns

    @property
    def _output_names(self) -> list[str]:
        return [k.name for k in self.keys] + [r.name for r in self._reducers]

    @property
    def shown(self) -> list[Shown]:
        """The columns a reader sees: keys and results."""
        keys = [
            Shown(key.name, data_type, (key.name,))
            for key, data_type in zip(self.keys, self._key_types, strict=True)
        ]
        results = [
            Shown(
                reducer.name,
                types.arrow_type(reducer.result_type, f"aggregate {reducer.name!r}"),
                tuple(field.name for field in reducer.fields),
                reducer.result,
            )
            for reducer in self._reducers
        ]
        return keys + results

    def show(self, state: pa.RecordBatch) -> pa.RecordBatch:
        shown = [state.column(k.name) for k in self.keys]
        for reducer in self._reducers:
            shown.append(reducer.result([state.column(f.name) for f in reducer.fields]))
        return pa.RecordBatch.from_arrays(shown, names=self._output_names)


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise unless a location written under `old` can go on under `new`.

    Aggregates may be added, and start from empty, and may be put in another order. Nothing else.
    """
    advice = (
        "Start the query with its old definition, or give the changed one a new checkpointLocation."
    )
    if old["keys"] != new["keys"]:
        raise SchemaChangedError(
            f"the key of operator {name!r} was ({_describe_keys(old)}) and is now "
            f"({_describe_keys(new)}). {advice}"
        )
    after = {a["name"]: a for a in new["aggregates"]}
    for before in old["aggregates"]:
        now = after.get(before["name"])
        if now is None:
            raise SchemaChangedError(
                f"operator {name!r} no longer has the aggregate "
                f"'{AggregateSpec.from_json(before)}'. {advice}"
            )
        if now != before:
            raise SchemaChangedError(
                f"operator {name!r}: '{AggregateSpec.from_json(before)}' has become "
                f"'{AggregateSpec.from_json(now)}'. {advice}"
            )


def _describe_keys(spec: dict[str, Any]) -> str:
    return ", ".join(
        f"{k['name']} {types.from_json(k['type']).simpleString()}" for k in spec["keys"]
    )


def _key_name(index: int) -> str:
    return f"_k{index}"


def _partial_name(aggregate: int, partial: int) -> str:
    return f"_p{aggregate}_{partial}"


def key_names(operator: AggregateOperator) -> list[str]:
    """Names of the key columns on their way to the shard."""
    return [_key_name(i) for i in range(len(operator.keys))]


def _words(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.asarray(column.to_numpy()).view(np.uint64)
