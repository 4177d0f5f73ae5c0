"""The exchange in front of a session operator: one row per piece of a session and input partition.

Two rows of a key that are less than a gap apart are of one session. So rows that fall into the same
stretch of time, as long as a gap and counted from 1970, can be combined by a hash aggregate: Spark
sorts nothing, and a session sends a row per gap of its length. Rows that are late are not combined
with rows that are not. Where the order of rows matters, only those of one event time are combined,
and the shard puts them in order.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.epoch import rows
from millrace.keygroups import Assignment
from millrace.keygroups.scheme import Scheme
from millrace.operators.session.operator import SessionOperator
from millrace.spark import jvm
from millrace.spark.exchange import Router, WindowInput, combine
from millrace.spark.fingerprint import invoke, with_fingerprint

_IS_LATE = "_is_late"


class SessionExchange:
    """Sends pieces of sessions to the shards of their keys."""

    def __init__(
        self, operator: SessionOperator, stream: WindowInput, late_us: int | None = None
    ) -> None:
        """With `late_us`, the watermark of the epoch before, late rows are sent as they are."""
        self._operator = operator
        self._event_us = stream.event_us
        self._end = stream.event_us + F.lit(operator.gap_us)
        keys = [column.alias(rows.key(i)) for i, column in enumerate(stream.keys)]
        piece = stream.event_us
        if not operator.needs_order:
            piece = piece - F.pmod(piece, F.lit(operator.gap_us))
        self._groups = [*keys, piece.alias(rows.PANE)]
        if late_us is not None:
            whole = F.struct(*stream.fields)
            self._groups.append(F.when(self._end <= F.lit(late_us), whole).alias(rows.LATE))
        self._partials = {
            rows.partial(i, j): column
            for i, partials in enumerate(operator.partials(stream.inputs))
            for j, column in enumerate(partials)
        }
        self._partials |= {
            rows.COUNT: F.count(F.lit(1)),
            rows.FIRST: F.min(stream.event_us),
            rows.LAST: F.max(stream.event_us),
        }
        self._typed = [(F.col(rows.key(i)), key.type) for i, key in enumerate(operator.keys)]
        names = [rows.key(i) for i in range(len(keys))]
        names += [rows.LATE] if late_us is not None else []
        self._columns = {name: F.col(name) for name in [*names, *self._partials]}
        if operator.needs_order:
            self._columns[rows.PART] = F.spark_partition_id()
        self._router = Router()
        self._tells_late = late_us is None and not operator.needs_order
        self._late_us = 0
        self._late_rows: Any = None

    def before(self, late_us: int) -> None:
        """Called ahead of each epoch with the operator's watermark of the epoch before."""
        self._late_us = late_us
        if self._late_rows is not None:
            self._late_rows.set(late_us)

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        partials = [column.alias(name) for name, column in self._partials.items()]
        groups = self._groups
        if self._tells_late:
            groups = [*groups, self._is_late(df).alias(_IS_LATE)]
        combined = combine(df, groups, partials)
        keyed = with_fingerprint(combined, self._typed, self._columns, scheme)
        return self._router(keyed, assignment)

    def _is_late(self, df: DataFrame) -> Column:
        # All plans of a query refer to one object, of the JVM that they run in.
        spark = df.sparkSession
        package = jvm.load(spark)
        if self._late_rows is None:
            self._late_rows = package.LateRows()
        self._late_rows.set(self._late_us)
        end = F.coalesce(self._end, F.lit(0))
        return invoke(spark, self._late_rows, "isLate", T.BooleanType(), [end])
