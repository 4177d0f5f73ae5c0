"""From an epoch's rows to shards: combine per input partition, fingerprint, route.

The combiner is Spark's own HashAggregate, run on each input partition by itself. Spark would put an
exchange before it, to make its result final; here the result is partial on purpose, so the rows are
wrapped in a `LogicalRDD` that claims to be clustered already. What crosses to Python is one row per
key and input partition, through one exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.keygroups import Assignment
from millrace.keygroups.fingerprint import fingerprint, key_group
from millrace.log.segment import HI, LO
from millrace.operators.aggregate import PART, AggregateOperator, key_names
from millrace.processors.rows import EVENT
from millrace.spark.template import is_bare


def combine(df: DataFrame, keys: Sequence[Column], partials: Sequence[Column]) -> DataFrame:
    """Aggregate each input partition on its own, in the JVM, without an exchange."""
    return _claim_clustered(df).groupBy(*keys).agg(*partials)


def _claim_clustered(df: DataFrame) -> DataFrame:
    """The same rows, claimed to be clustered by any columns."""
    spark = df.sparkSession
    jvm: Any = spark._jvm
    execution = df._jdf.queryExecution()
    plan = execution.analyzed()
    # Bare rows are taken as they are; anything on top of them runs in this plan's first stage.
    rdd = plan.rdd() if is_bare(df) else execution.toRdd()
    nil = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
    none = jvm.scala.Option.empty()
    physical = jvm.org.apache.spark.sql.catalyst.plans.physical
    # Hash partitioning over no columns satisfies a requirement to be clustered by any.
    claimed = physical.HashPartitioning(nil, rdd.getNumPartitions())
    session = df._jdf.sparkSession()
    wrapped = jvm.org.apache.spark.sql.execution.LogicalRDD(
        plan.output(), rdd, claimed, nil, False, none, session, none, none, False
    )
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, wrapped), spark)


def route(hi: Column, assignment: Assignment) -> Column:
    """The shard of a fingerprint."""
    group = key_group(hi, assignment.key_groups)
    # The owners are a constant that Spark's generated code refers to but does not contain: the
    # code is the same for all assignments, so it is compiled once.
    owners = F.expr(f"array({','.join(map(str, assignment.owners))})")
    return F.get(owners, group)


class _Router:
    """Sends rows to shards; the expression is built once per assignment."""

    def __init__(self) -> None:
        self._route: tuple[Assignment, Column] | None = None

    def __call__(self, df: DataFrame, assignment: Assignment) -> DataFrame:
        if self._route is None or self._route[0] != assignment:
            self._route = (assignment, route(F.col(HI), assignment))
        return df.repartitionById(assignment.shards, self._route[1])


class AggregateExchange:
    """The exchange in front of an aggregate. Expressions are built once and used every epoch."""

    def __init__(
        self, operator: AggregateOperator, keys: Sequence[Column], inputs: Sequence[Column]
    ) -> None:
        names = key_names(operator)
        self._keys = [key.alias(name) for key, name in zip(keys, names, strict=True)]
        self._partials = operator.partial_columns(inputs)
        typed = [(F.col(n), k.type) for n, k in zip(names, operator.keys, strict=True)]
        hi, lo = fingerprint(typed)
        self._columns = [hi.alias(HI), lo.alias(LO), F.col("*")]
        if operator.needs_order:
            self._columns.append(F.spark_partition_id().alias(PART))
        self._router = _Router()

    def __call__(self, df: DataFrame, assignment: Assignment) -> DataFrame:
        combined = combine(df, self._keys, self._partials).select(*self._columns)
        return self._router(combined, assignment)


class RowExchange:
    """The exchange in front of a processor: whole rows, as they are."""

    def __init__(
        self,
        keys: Sequence[tuple[Column, T.DataType]],
        fields: Sequence[Column],
        event_time: Column | None,
    ) -> None:
        hi, lo = fingerprint(keys)
        self._columns = [hi.alias(HI), lo.alias(LO), F.spark_partition_id().alias(PART)]
        self._columns += [column.alias(f"_k{i}") for i, (column, _) in enumerate(keys)]
        self._columns += [column.alias(f"_c{i}") for i, column in enumerate(fields)]
        if event_time is not None:
            self._columns.append(F.unix_micros(event_time.cast("timestamp")).alias(EVENT))
        self._router: Callable[[DataFrame, Assignment], DataFrame] = _Router()

    def __call__(self, df: DataFrame, assignment: Assignment) -> DataFrame:
        return self._router(df.select(*self._columns), assignment)
