"""All aggregates of one operator together: their columns, partial results, merges and results.

Plain aggregates and windows keep the same columns per row of state; only what a row stands for
differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.errors import DuplicateNameError, InvalidNameError
from millrace.ids import OperatorName
from millrace.log.segment import DELETED, HI, LO
from millrace.operators.aggregate.combining import combine
from millrace.operators.aggregate.distinct import other_lists
from millrace.operators.aggregate.reducers import Groups, Reducer, resolve
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.arrays import taken
from millrace.operators.input import Values
from millrace.state.replica import Replica


class Reducers:
    """The reducers of an operator's aggregates, in order."""

    def __init__(self, aggregates: Sequence[AggregateSpec], *, ansi: bool) -> None:
        self._ansi = ansi
        self._specs = tuple(aggregates)
        self._reducers: list[Reducer] = [
            resolve(a.function, a.name, a.type, {**dict(a.options), "ansi": ansi})
            for a in aggregates
        ]
        self._names = [field.name for field in self.fields]

    @property
    def fields(self) -> list[pa.Field]:
        """State columns."""
        return [field for reducer in self._reducers for field in reducer.fields]

    @property
    def output_fields(self) -> list[T.StructField]:
        return [T.StructField(r.name, r.result_type) for r in self._reducers]

    @property
    def needs_order(self) -> bool:
        """Whether rows of different input partitions must be kept apart."""
        return any(reducer.ordered for reducer in self._reducers)

    def partials(self, inputs: Sequence[SparkColumn]) -> list[list[SparkColumn]]:
        """What the JVM computes for each aggregate, per group and input partition."""
        return [
            reducer.partials(column) for reducer, column in zip(self._reducers, inputs, strict=True)
        ]

    def merge(
        self,
        replica: Replica,
        addresses: UInt64Array,
        partials: Sequence[Sequence[Values]],
        order: Int64Array,
        grouped: Groups,
    ) -> list[pa.Array]:
        """The new state columns; `order` puts the rows that came in order of group."""
        positions = pa.array(order)
        state: list[pa.Array] = []
        stored = self._split(replica.gather(addresses, self._names))
        for reducer, current, columns in zip(self._reducers, stored, partials, strict=True):
            state += reducer.merge(current, _incoming(reducer, columns, positions), grouped)
        return state

    def combine(self, state: Sequence[pa.Array], starts: Int64Array) -> list[pa.Array]:
        """States of several rows put together: see `combining`."""
        combined: list[pa.Array] = []
        for spec, columns in zip(self._specs, self._split(state), strict=True):
            options = dict(spec.options)
            combined += combine(spec.function, spec.name, columns, starts, options, ansi=self._ansi)
        return combined

    @property
    def may_stay(self) -> bool:
        """Whether rows often leave the state as it was, so that it pays to look."""
        return all(spec.function == "top" for spec in self._specs)

    def changed(
        self, replica: Replica, addresses: UInt64Array, state: Sequence[pa.Array]
    ) -> BoolArray:
        """Which groups have another state than before; only if they `may_stay`."""
        is_changed: BoolArray = addresses == 0
        before = replica.gather(addresses, [field.name for field in self.fields])
        for old, new in zip(before, state, strict=True):
            is_changed |= other_lists(old, new)
        return is_changed

    def results(self, state: Sequence[pa.Array]) -> list[pa.Array]:
        """What is shown of some state columns."""
        parts = self._split(state)
        return [r.result(columns) for r, columns in zip(self._reducers, parts, strict=True)]

    def _split(self, state: Sequence[pa.Array]) -> list[Sequence[pa.Array]]:
        parts, first = [], 0
        for reducer in self._reducers:
            last = first + len(reducer.fields)
            parts.append(state[first:last])
            first = last
        return parts


def check_names(operator: OperatorName, names: Sequence[str]) -> None:
    """Raise unless an operator's columns have names of their own."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in (HI, LO, DELETED):
            raise InvalidNameError(
                f"operator {operator!r} would have a column called {name!r}, which is reserved. "
                "Rename the aggregate, or the key column in transform()."
            )
        if name.lower() in seen:
            raise DuplicateNameError(
                f"operator {operator!r} would have two columns called {name!r}. Rename an "
                "aggregate, or a key column in transform()."
            )
        seen.add(name.lower())


def _incoming(reducer: Reducer, partials: Sequence[Values], order: pa.Array) -> list[pa.Array]:
    """An aggregate's partial results in order of group."""
    columns = [taken(types.conform(column, column.type), order) for column in partials]
    # A value that is kept as it came must have exactly the type it is kept in.
    kept = reducer.fields[0]
    if kept.name == reducer.name and columns[0].type != kept.type:
        columns[0] = columns[0].cast(kept.type)
    return columns
