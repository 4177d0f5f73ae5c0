"""The exchange in front of a deduplication: whole rows, as they are, by the fingerprint of the key.

Columns of the key that are columns of the stream are not sent twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.epoch import rows
from millrace.keygroups import Assignment
from millrace.keygroups.scheme import Scheme
from millrace.operators.dedup.operator import DedupOperator
from millrace.spark.exchange import Router
from millrace.spark.fingerprint import with_fingerprint


class DedupExchange:
    """Sends each row to the shard of its key. Expressions are built once and used every epoch."""

    def __init__(
        self,
        operator: DedupOperator,
        keys: Sequence[Column],
        fields: Sequence[Column],
        event_us: Column | None,
    ) -> None:
        self._keys = [(column, key.type) for column, key in zip(keys, operator.keys, strict=True)]
        self._columns = {rows.PART: F.spark_partition_id()}
        self._columns |= {rows.key(i): keys[k] for i, k in enumerate(operator.computed)}
        self._columns |= {rows.column(i): column for i, column in enumerate(fields)}
        if event_us is not None:
            self._columns[rows.EVENT] = event_us
        self._router = Router()

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        return self._router(with_fingerprint(df, self._keys, self._columns, scheme), assignment)
