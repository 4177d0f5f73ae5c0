"""The exchange of the first epoch of a query with an initial state: its rows travel along."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.keygroups import Assignment
from millrace.keygroups.fingerprint import fingerprint
from millrace.log.segment import HI, LO
from millrace.operators.aggregate import PART, Key
from millrace.processors.rows import EVENT, IS_INITIAL
from millrace.spark.broadcast import BroadcastRouter, Side, no_side_columns, side_columns
from millrace.spark.exchange import RowExchange


class InitialExchange(RowExchange):
    """The batch's rows, and the rows of a batch DataFrame with the same key, marked."""

    def __init__(
        self,
        keys: Sequence[tuple[Column, T.DataType]],
        fields: Sequence[tuple[Column, T.DataType]],
        event_time: Column | None,
        initial: DataFrame,
        initial_keys: Sequence[Column],
        initial_fields: Sequence[Key],
        columns: Sequence[Column],
        sides: Sequence[Side] = (),
    ) -> None:
        super().__init__(keys, [column for column, _ in fields], event_time)
        none = [
            F.lit(None).cast(field.type).alias(f"_i{i}") for i, field in enumerate(initial_fields)
        ]
        self._columns = [*self._columns, *side_columns(sides), *none]
        self._columns.append(F.lit(False).alias(IS_INITIAL))
        if sides:
            self._router = BroadcastRouter(sides)
        typed = [
            (column.cast(data_type), data_type)
            for column, (_, data_type) in zip(initial_keys, keys, strict=True)
        ]
        hi, lo = fingerprint(typed)
        selected = [hi.alias(HI), lo.alias(LO), F.spark_partition_id().alias(PART)]
        selected += [column.alias(f"_k{i}") for i, (column, _) in enumerate(typed)]
        selected += [F.lit(None).cast(t).alias(f"_c{i}") for i, (_, t) in enumerate(fields)]
        if event_time is not None:
            selected.append(F.lit(None).cast("long").alias(EVENT))
        selected += no_side_columns(sides)
        selected += [column.alias(f"_i{i}") for i, column in enumerate(columns)]
        self._initial = initial.select(*selected, F.lit(True).alias(IS_INITIAL))

    def __call__(self, df: DataFrame, assignment: Assignment) -> DataFrame:
        return self._router(df.select(*self._columns).union(self._initial), assignment)
