"""The exchange of a query's first epoch: the rows of the initial state travel with the batch's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.epoch import rows
from millrace.keygroups import Assignment
from millrace.operators.operator import Column
from millrace.spark.broadcast import BroadcastRouter, Side, no_side_columns, side_columns
from millrace.spark.exchange import RowExchange, StreamColumns, keyed_columns


@dataclass(frozen=True)
class InitialRows:
    """A batch DataFrame that state begins with."""

    df: DataFrame
    keys: Sequence[SparkColumn]
    """The same key as the stream's, as expressions over the frame."""
    columns: Sequence[tuple[SparkColumn, Column]]
    """What the processor gets of a row."""


class InitialExchange(RowExchange):
    """The batch's rows, and the rows of a batch DataFrame with the same key, marked."""

    def __init__(
        self, stream: StreamColumns, initial: InitialRows, sides: Sequence[Side] = ()
    ) -> None:
        super().__init__(stream)
        self._columns += side_columns(sides)
        self._columns += [
            F.lit(None).cast(described.type).alias(rows.initial(i))
            for i, (_, described) in enumerate(initial.columns)
        ]
        self._columns.append(F.lit(False).alias(rows.IS_INITIAL))
        if sides:
            self._router = BroadcastRouter(sides)
        typed = [
            (column.cast(data_type), data_type)
            for column, (_, data_type) in zip(initial.keys, stream.keys, strict=True)
        ]
        selected = keyed_columns(typed)
        selected += [
            F.lit(None).cast(t).alias(rows.column(i)) for i, (_, t) in enumerate(stream.fields)
        ]
        if stream.event_time is not None:
            selected.append(F.lit(None).cast("long").alias(rows.EVENT))
        selected += no_side_columns(sides)
        selected += [c.alias(rows.initial(i)) for i, (c, _) in enumerate(initial.columns)]
        selected.append(F.lit(True).alias(rows.IS_INITIAL))
        self._initial = initial.df.select(*selected)

    def __call__(self, df: DataFrame, assignment: Assignment) -> DataFrame:
        return self._router(df.select(*self._columns).union(self._initial), assignment)
