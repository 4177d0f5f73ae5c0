"""The exchange of a query's first epoch: the rows of the initial state travel with the batch's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.epoch import rows
from millrace.keygroups import Assignment
from millrace.keygroups.scheme import Scheme
from millrace.operators.operator import Column
from millrace.spark.broadcast import BroadcastRouter, Side, no_side_columns, side_columns
from millrace.spark.exchange import RowExchange, StreamColumns, keyed_columns
from millrace.spark.fingerprint import with_fingerprint


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
        self._columns |= side_columns(sides)
        self._columns |= {
            rows.initial(i): F.lit(None).cast(described.type)
            for i, (_, described) in enumerate(initial.columns)
        }
        self._columns[rows.IS_INITIAL] = F.lit(False)
        if sides:
            self._router = BroadcastRouter(sides)
        self._initial = initial
        self._initial_keys = [
            (column.cast(data_type), data_type)
            for column, (_, data_type) in zip(initial.keys, stream.keys, strict=True)
        ]
        selected = keyed_columns(self._initial_keys)
        selected |= {rows.column(i): F.lit(None).cast(t) for i, (_, t) in enumerate(stream.fields)}
        if stream.event_time is not None:
            selected[rows.EVENT] = F.lit(None).cast("long")
        selected |= no_side_columns(sides)
        selected |= {rows.initial(i): c for i, (c, _) in enumerate(initial.columns)}
        selected[rows.IS_INITIAL] = F.lit(True)
        self._initial_columns = selected

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        batch = with_fingerprint(df, self._keys, self._columns, scheme)
        initial = with_fingerprint(
            self._initial.df, self._initial_keys, self._initial_columns, scheme
        )
        return self._router(batch.union(initial), assignment)
