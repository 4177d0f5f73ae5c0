"""The exchange in front of a pattern: which conditions a row meets, and what is kept of it.

Conditions on a row alone are computed here, in the JVM, and travel as the bits of one number. Where
a row that meets none of them could not make a difference, it is left out before it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.epoch import rows
from millrace.keygroups import Assignment
from millrace.keygroups.scheme import Scheme
from millrace.operators.pattern.operator import PatternOperator
from millrace.spark.exchange import Router
from millrace.spark.fingerprint import with_fingerprint


@dataclass(frozen=True)
class PatternInput:
    """What a pattern gets of a stream: expressions over its columns."""

    keys: Sequence[Column]
    event_us: Column
    kept: Sequence[Column]
    """What conditions on earlier rows and matches read, beside the key."""
    conditions: Sequence[Column]
    """In the order of their bits."""
    fields: Sequence[Column]
    """All columns, for late rows."""
    leaves_out: bool
    """Whether rows that meet no condition make no difference."""


class PatternExchange:
    """Sends each row to the shard of its key. Expressions are built once and used every epoch."""

    def __init__(
        self, operator: PatternOperator, stream: PatternInput, late_us: int | None = None
    ) -> None:
        """With `late_us`, the watermark of the epoch before, late rows are sent in full."""
        self._keys = [(c, key.type) for c, key in zip(stream.keys, operator.keys, strict=True)]
        met = [F.coalesce(condition, F.lit(False)) for condition in stream.conditions]
        bits = [
            F.when(condition, F.lit(1 << bit).cast("long")).otherwise(F.lit(0).cast("long"))
            for bit, condition in enumerate(met)
        ]
        mask = reduce(lambda x, y: x.bitwiseOR(y), bits, F.lit(0).cast("long"))
        self._columns = {rows.PART: F.spark_partition_id()}
        self._columns |= {rows.key(i): column for i, column in enumerate(stream.keys)}
        kept = [*stream.kept, mask]
        self._columns |= {rows.column(i): column for i, column in enumerate(kept)}
        self._columns[rows.EVENT] = stream.event_us
        self._met: Column | None = None
        if late_us is not None:
            whole = F.struct(*stream.fields)
            self._columns[rows.LATE] = F.when(stream.event_us <= F.lit(late_us), whole)
        elif stream.leaves_out:
            self._met = reduce(lambda x, y: x | y, met)
        self._router = Router()

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        if self._met is not None:
            df = df.where(self._met)
        return self._router(with_fingerprint(df, self._keys, self._columns, scheme), assignment)
