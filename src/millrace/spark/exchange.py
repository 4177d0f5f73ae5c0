"""From an epoch's rows to shards: combine per input partition, fingerprint, route.

The combiner is Spark's own HashAggregate, run on each input partition by itself. Spark would put an
exchange before it, to make its result final; here the result is partial on purpose, so the rows are
wrapped in a `LogicalRDD` that claims to be clustered already. What crosses to Python is one row per
key and input partition, through one exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.epoch import rows
from millrace.keygroups import Assignment
from millrace.keygroups.scheme import Scheme
from millrace.log.segment import HI
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.window.operator import WindowOperator
from millrace.spark import jvm
from millrace.spark.fingerprint import TypedColumns, key_group, with_fingerprint
from millrace.spark.jvm import java_class
from millrace.spark.template import is_bare


def combine(df: DataFrame, keys: Sequence[Column], partials: Sequence[Column]) -> DataFrame:
    """Aggregate each input partition on its own, in the JVM, without an exchange.

    A real-time stream has no end to wait for: there each row is a group of its own.
    """
    if df.isStreaming:
        grouped: Any = df.groupBy(*keys).agg(*partials)._jdf
        package = jvm.load_real_time(df.sparkSession)
        analysed = grouped.queryExecution().analyzed()
        return DataFrame(package.RowPartials.of(grouped.sparkSession(), analysed), df.sparkSession)
    return _claim_clustered(df).groupBy(*keys).agg(*partials)


def _claim_clustered(df: DataFrame) -> DataFrame:
    """The same rows, claimed to be clustered by any columns."""
    spark = df.sparkSession
    execution = df._jdf.queryExecution()
    plan = execution.analyzed()
    # Bare rows are taken as they are; anything on top of them runs in this plan's first stage.
    rdd = plan.rdd() if is_bare(df) else execution.toRdd()
    nil = getattr(java_class(spark, "scala.collection.immutable.Nil$"), "MODULE$")
    none = java_class(spark, "scala.Option").empty()
    sql = "org.apache.spark.sql"
    hashed = java_class(spark, f"{sql}.catalyst.plans.physical.HashPartitioning")
    # Hash partitioning over no columns satisfies a requirement to be clustered by any.
    claimed = hashed(nil, rdd.getNumPartitions())
    session = df._jdf.sparkSession()
    wrapped = java_class(spark, f"{sql}.execution.LogicalRDD")(
        plan.output(), rdd, claimed, nil, False, none, session, none, none, False
    )
    return DataFrame(java_class(spark, f"{sql}.classic.Dataset").ofRows(session, wrapped), spark)


def route(hi: Column, assignment: Assignment) -> Column:
    """The shard of a fingerprint."""
    group = key_group(hi, assignment.key_groups)
    # The owners are a constant that Spark's generated code refers to but does not contain: the
    # code is the same for all assignments, so it is compiled once.
    owners = F.expr(f"array({','.join(map(str, assignment.owners))})")
    return F.get(owners, group)


class Router:
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
        self._keys = [column.alias(rows.key(i)) for i, column in enumerate(keys)]
        self._partials = {
            rows.partial(i, j): column
            for i, partials in enumerate(operator.partials(inputs))
            for j, column in enumerate(partials)
        }
        self._typed = [(F.col(rows.key(i)), key.type) for i, key in enumerate(operator.keys)]
        names = [*(rows.key(i) for i in range(len(self._keys))), *self._partials]
        self._columns = {name: F.col(name) for name in names}
        if operator.needs_order:
            self._columns[rows.PART] = F.spark_partition_id()
        self._router = Router()

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        partials = [column.alias(name) for name, column in self._partials.items()]
        combined = combine(df, self._keys, partials)
        keyed = with_fingerprint(combined, self._typed, self._columns, scheme)
        return self._router(keyed, assignment)


def event_micros(column: Column, data_type: T.DataType) -> Column:
    """An event time in microseconds since 1970; of a window, its last microsecond."""
    if isinstance(data_type, T.StructType):
        return F.unix_micros(column.getField("end")) - F.lit(1)
    return F.unix_micros(column)


@dataclass(frozen=True)
class WindowInput:
    """What a window operator gets of a stream: expressions over its columns."""

    keys: Sequence[Column]
    event_us: Column
    inputs: Sequence[Column]
    """Of the aggregates."""
    fields: Sequence[Column]
    """All columns, for late rows."""


class WindowExchange:
    """The exchange in front of a window operator: one row per key, pane and input partition.

    Rows are routed by the key alone, so all panes of a key are in one key group.
    """

    def __init__(
        self, operator: WindowOperator, stream: WindowInput, late_us: int | None = None
    ) -> None:
        """With `late_us`, the watermark of the epoch before, late rows are sent as they are."""
        windows = operator.windows
        since = F.pmod(stream.event_us - F.lit(windows.offset_us), F.lit(windows.pane_us))
        pane = stream.event_us - since
        self._groups = [column.alias(rows.key(i)) for i, column in enumerate(stream.keys)]
        self._groups.append(pane.alias(rows.PANE))
        if late_us is not None:
            start = F.pmod(pane - F.lit(windows.offset_us), F.lit(windows.slide_us))
            last_end = pane - start + F.lit(windows.size_us)
            whole = F.struct(*stream.fields)
            self._groups.append(F.when(last_end <= F.lit(late_us), whole).alias(rows.LATE))
        self._partials = {
            rows.partial(i, j): column
            for i, partials in enumerate(operator.partials(stream.inputs))
            for j, column in enumerate(partials)
        }
        self._partials[rows.COUNT] = F.count(F.lit(1))
        self._typed = [(F.col(rows.key(i)), key.type) for i, key in enumerate(operator.keys)]
        names = [*(rows.key(i) for i in range(len(operator.keys))), rows.PANE]
        names += [rows.LATE] if late_us is not None else []
        self._columns = {name: F.col(name) for name in [*names, *self._partials]}
        if operator.needs_order:
            self._columns[rows.PART] = F.spark_partition_id()
        self._router = Router()

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        partials = [column.alias(name) for name, column in self._partials.items()]
        combined = combine(df, self._groups, partials)
        keyed = with_fingerprint(combined, self._typed, self._columns, scheme)
        return self._router(keyed, assignment)


@dataclass(frozen=True)
class StreamColumns:
    """What a processor gets of a stream: expressions over its columns, with their types."""

    keys: TypedColumns
    fields: TypedColumns
    event_time: Column | None = None


def keyed_columns(keys: TypedColumns) -> dict[str, Column]:
    """What every row for a processor has beside its fingerprint: its input partition, its key."""
    named = {rows.key(i): column for i, (column, _) in enumerate(keys)}
    return {rows.PART: F.spark_partition_id(), **named}


class RowExchange:
    """The exchange in front of a processor: whole rows, as they are."""

    def __init__(self, stream: StreamColumns) -> None:
        self._keys = stream.keys
        self._columns = keyed_columns(stream.keys)
        self._columns |= {rows.column(i): c for i, (c, _) in enumerate(stream.fields)}
        if stream.event_time is not None:
            self._columns[rows.EVENT] = F.unix_micros(stream.event_time.cast("timestamp"))
        self._router: Callable[[DataFrame, Assignment], DataFrame] = Router()

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        return self._router(with_fingerprint(df, self._keys, self._columns, scheme), assignment)


@dataclass(frozen=True)
class JoinSide:
    """One stream of a join: expressions over the frame that has the rows of both."""

    rows: Column
    """Its row as a struct, NULL in rows of the other stream."""
    keys: Sequence[Column]
    fields: TypedColumns
    """The columns beside the key."""
    event_us: Column | None


def shared_columns(left: TypedColumns, right: TypedColumns) -> dict[str, Column]:
    """The columns of two streams as they travel: one for two of the same type.

    A row has the values of one stream, so what would be NULL in half of the rows is not sent.
    """
    free = list(range(len(right)))
    named = {}
    for i, (column, kind) in enumerate(left):
        # The shard tells apart nested types that differ in nothing but what can be NULL.
        nested = isinstance(kind, T.StructType | T.ArrayType | T.MapType)
        same = [j for j in free if right[j][1] == kind and not nested]
        if same:
            free.remove(same[0])
            named[rows.shared(i, same[0])] = F.coalesce(column, right[same[0]][0])
        else:
            named[rows.column(i)] = column
    return named | {rows.right(j): right[j][0] for j in free}


class JoinExchange:
    """The exchange in front of a join: the rows of both streams in one table, by their key."""

    def __init__(
        self,
        key_types: Sequence[T.DataType],
        left: JoinSide,
        right: JoinSide,
        *,
        needs_order: bool,
    ) -> None:
        # One of the two is NULL, and so are its fields.
        keys = [F.coalesce(*both) for both in zip(left.keys, right.keys, strict=True)]
        self._keys = list(zip(keys, key_types, strict=True))
        self._columns = {rows.key(i): column for i, column in enumerate(keys)}
        self._columns[rows.IS_RIGHT] = right.rows.isNotNull()
        self._columns |= shared_columns(left.fields, right.fields)
        times = [side.event_us for side in (left, right) if side.event_us is not None]
        if times:
            self._columns[rows.EVENT] = F.coalesce(*times)
        if needs_order:
            self._columns[rows.PART] = F.spark_partition_id()
        self._router = Router()

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        return self._router(with_fingerprint(df, self._keys, self._columns, scheme), assignment)
