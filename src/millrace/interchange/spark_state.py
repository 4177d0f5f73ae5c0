"""The state of a Spark query, read from its checkpoint through Spark's own `statestore` source.

The result has the columns of Millrace's tables and the fingerprints of its keys. Spark and Millrace
keep aggregates differently, and this module bridges each difference: an aggregate of Spark is some
columns of a *buffer*, in the order in which `agg` names the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace import types
from millrace.epoch import rows
from millrace.errors import SparkStateError
from millrace.keygroups.scheme import Scheme
from millrace.log.segment import HI, LO
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import MAIN, Column
from millrace.operators.process.declarations import Declaration, List, Map, TimerDeclaration, Value
from millrace.operators.process.processor import declarations
from millrace.spark.fingerprint import quoted, with_fingerprint

TIMERS = "_timers"
WRITERS = {
    "stateStoreSave": "an aggregation",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    "transformWithStateExec": "transformWithState",
    "transformWithStateInPySparkExec": "transformWithState",
}
"""Spark's stateful operators whose state can be imported, by Spark's names for them."""


@dataclass(frozen=True)
class SparkOperator:
    """A stateful operator in a checkpoint, at a batch."""

    spark: SparkSession
    checkpoint: str
    number: int
    name: str
    batch_id: int
    scheme: Scheme
    """Of the fingerprints that its keys get."""

    @property
    def title(self) -> str:
        kind = WRITERS.get(self.name, self.name)
        return f"operator {self.number} ({kind}) of {self.checkpoint}"

    def read(self, **options: Any) -> DataFrame:
        """What Spark's source says of the state."""
        reader = self.spark.read.format("statestore").option("operatorId", self.number)
        reader = reader.option("batchId", self.batch_id).options(**options)
        return reader.load(self.checkpoint)


def operators(
    spark: SparkSession, checkpoint: str, batch_id: int, scheme: Scheme
) -> list[SparkOperator]:
    """The stateful operators of a checkpoint, by their number; `scheme` is the new location's."""
    try:
        rows = spark.read.format("state-metadata").load(checkpoint).collect()
    except PySparkException as error:
        raise SparkStateError(
            f"{checkpoint} has no state that Spark can read: {str(error).splitlines()[0]}"
        ) from error
    found = {row["operatorId"]: row["operatorName"] for row in rows}
    return [SparkOperator(spark, checkpoint, n, found[n], batch_id, scheme) for n in sorted(found)]


def aggregate_rows(source: SparkOperator, target: AggregateOperator) -> pa.Table:
    """The state of an aggregation in the columns of Millrace's."""
    if source.name != "stateStoreSave":
        raise _other_kind(source, "an aggregate", "an aggregation")
    df = source.read()
    keys = _keys(df, source, target.keys)
    buffers = df.schema["value"].dataType
    assert isinstance(buffers, T.StructType)
    # By position: two sums are both called `sum`.
    plain = T.StructType([T.StructField(f"b{i}", f.dataType) for i, f in enumerate(buffers.fields)])
    value = F.col("value").cast(plain)
    columns, at = [], 0
    for aggregate in target.aggregates:
        names = _buffer_names(aggregate)
        given = [field.name for field in buffers.fields[at : at + len(names)]]
        if given != names:
            raise SparkStateError(
                f"'{aggregate}' needs the buffer ({', '.join(names)}), and {source.title} has "
                f"({', '.join(f.name for f in buffers.fields)}), where ({', '.join(given)}) "
                "comes next. Give all aggregates, in the order of Spark's agg()."
            )
        parts = [value.getField(f"b{at + i}") for i in range(len(names))]
        columns += _state_columns(aggregate, parts)
        at += len(names)
    if at < len(buffers.fields):
        left = ", ".join(field.name for field in buffers.fields[at:])
        raise SparkStateError(
            f"{source.title} has more aggregates than operator {target.name!r}: ({left}) is left."
        )
    named = [c.alias(k.name) for c, k in zip(keys, target.keys, strict=True)]
    plain_df = df.select(*named, *columns)
    typed = [(quoted(key.name), key.type) for key in target.keys]
    shown = {name: quoted(name) for name in plain_df.columns}
    table = with_fingerprint(plain_df, typed, shown, source.scheme).toArrow()
    schema = target.tables[MAIN].schema
    arrays = [types.conform(table.column(f.name), f.type) for f in schema]
    return pa.table([table.column(HI), table.column(LO), *arrays], names=[HI, LO, *schema.names])


def _other_kind(source: SparkOperator, target: str, wanted: str) -> SparkStateError:
    return SparkStateError(f"{target} can only continue {wanted}, not {source.title}.")


def _keys(df: DataFrame, source: SparkOperator, keys: Sequence[Column]) -> list[SparkColumn]:
    struct = df.schema["key"].dataType
    assert isinstance(struct, T.StructType)
    given = [(f.name, f.dataType.simpleString()) for f in struct.fields]
    wanted = [(k.name, k.type.simpleString()) for k in keys]
    if [t for _, t in given] != [t for _, t in wanted]:
        raise SparkStateError(
            f"the key of {source.title} is ({_listed(given)}), and the stream's is "
            f"({_listed(wanted)}). Key the stream by the same columns, in the same order."
        )
    return [
        F.col("key").getField(field.name).cast(key.type)
        for field, key in zip(struct.fields, keys, strict=True)
    ]


def _listed(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def _buffer_names(aggregate: AggregateSpec) -> list[str]:
    """What Spark calls the columns of an aggregate's buffer."""
    is_decimal = isinstance(aggregate.type, T.DecimalType)
    return {
        "count": ["count"],
        "sum": ["sum", "isEmpty"] if is_decimal else ["sum"],
        "mean": ["sum", "count"],
        "min": ["min"],
        "max": ["max"],
        "first": ["first", "valueSet"],
        "last": ["last", "valueSet"],
        "variance": ["n", "avg", "m2"],
        "stddev": ["n", "avg", "m2"],
    }[aggregate.function]


def _state_columns(aggregate: AggregateSpec, buffer: list[SparkColumn]) -> list[SparkColumn]:
    """An aggregate's state, from its buffer."""
    name = aggregate.name
    is_decimal = isinstance(aggregate.type, T.DecimalType)
    if aggregate.function == "sum" and is_decimal:
        total, is_empty = buffer
        lost = total.isNull() & ~is_empty
        return [F.when(~is_empty, total).alias(name), lost.alias(f"{name}.overflow")]
    if aggregate.function == "mean":
        total, count = buffer
        overflow = (total.isNull() & (count > 0)).alias(f"{name}.sum.overflow")
        parts = [total.alias(f"{name}.sum"), *([overflow] if is_decimal else [])]
        return [*parts, count.alias(f"{name}.count")]
    if aggregate.function in ("variance", "stddev"):
        count, mean, m2 = buffer
        parts = [count.cast("long").alias(f"{name}.count"), mean.alias(f"{name}.mean")]
        return [*parts, m2.alias(f"{name}.m2")]
    if aggregate.function in ("first", "last"):
        value, is_set = buffer
        if dict(aggregate.options)["ignore_nulls"]:
            return [F.when(is_set, value).alias(name)]
        return [value.alias(name), is_set.alias(f"{name}.set")]
    return [buffer[0].alias(name)]


@dataclass(frozen=True)
class Filled:
    """One row per key: fingerprints, the key, and a column for each state that has something."""

    rows: pa.Table
    columns: tuple[Column, ...]
    """The states' columns: values as they are, lists as arrays, maps as arrays of entries, each
    with `until`, when it expires in milliseconds, or NULL."""


def processor_rows(source: SparkOperator, target: Any, names: dict[str, str]) -> Filled:
    """The state of `transformWithState` or of `dropDuplicates`, per key.

    `names` has Spark's name of each state of the processor.
    """
    if source.name in ("dedupe", "dedupeWithinWatermark"):
        frames = [_seen(source, target)]
    elif source.name in WRITERS and source.name != "stateStoreSave":
        frames = _variables(source, target, names)
    else:
        raise _other_kind(source, "a processor", "transformWithState or dropDuplicates")
    columns = tuple(column for _, column in frames)
    merged = _merged([df for df, _ in frames], target.keys, columns)
    return Filled(merged.toArrow(), columns)


def _variables(
    source: SparkOperator, target: Any, names: dict[str, str]
) -> list[tuple[DataFrame, Column]]:
    frames = []
    for state, declaration in declarations(target.processor).items():
        if isinstance(declaration, TimerDeclaration):
            continue
        read = _READERS.get(type(declaration))
        if read is None:
            raise SparkStateError(
                f"state {state!r} of operator {target.name!r} is a {declaration.kind}, which Spark "
                "does not have. Declare a Value, List or Map, or fill it in on_initial_state()."
            )
        options = {"stateVarName": names.get(state, state), "flattenCollectionTypes": "false"}
        try:
            df = source.read(**options)
        except PySparkException as error:
            raise SparkStateError(
                f"{source.title} has no state {options['stateVarName']!r}, which operator "
                f"{target.name!r} declares: {str(error).splitlines()[0]}"
            ) from error
        values, kind = read(df, declaration, f"state {state!r} of {source.title}")
        frames.append((_with_keys(df, source, target.keys, state, values), Column(state, kind)))
    if any(isinstance(d, TimerDeclaration) for d in declarations(target.processor).values()):
        df = source.read(readRegisteredTimers="true")
        one = F.col("expiration_timestamp_ms").cast("long")
        keyed = _with_keys(df, source, target.keys, TIMERS, one)
        rest = [c for c in keyed.columns if c != TIMERS]
        grouped = keyed.groupBy(*rest).agg(F.sort_array(F.collect_list(TIMERS)).alias(TIMERS))
        frames.append((grouped, Column(TIMERS, T.ArrayType(T.LongType()))))
    return frames


def _entry(value: SparkColumn, given: T.DataType, wanted: T.DataType, where: str) -> SparkColumn:
    """A value in the declared type, and until when it is; without the struct around a field."""
    until = F.lit(None).cast("long")
    if isinstance(given, T.StructType) and given.names == ["value", "ttlExpirationMs"]:
        value, until = value.getField("value"), value.getField("ttlExpirationMs")
        given = given["value"].dataType
    is_wrapped = isinstance(given, T.StructType) and not isinstance(wanted, T.StructType)
    if isinstance(given, T.StructType) and is_wrapped and len(given.fields) == 1:
        value, given = value.getField(given.names[0]), given.fields[0].dataType
    if given.simpleString() != wanted.simpleString():
        raise SparkStateError(
            f"{where} is of type {given.simpleString()}, and is declared as "
            f"{wanted.simpleString()}. Declare it with the same type."
        )
    return F.struct(value.cast(wanted).alias("value"), until.alias("until"))


def _pair(wanted: T.DataType) -> T.StructType:
    return T.StructType([T.StructField("value", wanted), T.StructField("until", T.LongType())])


def _read_value(df: DataFrame, declared: Any, where: str) -> tuple[SparkColumn, T.DataType]:
    entry = _entry(F.col("value"), df.schema["value"].dataType, declared.type, where)
    return entry, _pair(declared.type)


def _read_list(df: DataFrame, declared: Any, where: str) -> tuple[SparkColumn, T.DataType]:
    given = df.schema["list_value"].dataType
    assert isinstance(given, T.ArrayType)
    element = given.elementType
    entries = F.transform("list_value", lambda e: _entry(e, element, declared.type, where))
    return entries, T.ArrayType(_pair(declared.type))


def _read_map(df: DataFrame, declared: Any, where: str) -> tuple[SparkColumn, T.DataType]:
    given = df.schema["map_value"].dataType
    assert isinstance(given, T.MapType)
    key_type, value_type = given.keyType, given.valueType

    def both(entry: SparkColumn) -> SparkColumn:
        key = _entry(entry.getField("key"), key_type, declared.key_type, f"the key of {where}")
        value = _entry(entry.getField("value"), value_type, declared.value_type, where)
        return F.struct(
            key.getField("value").alias("key"),
            value.getField("value").alias("value"),
            value.getField("until").alias("until"),
        )

    fields = [T.StructField("key", declared.key_type), *_pair(declared.value_type).fields]
    entries = F.transform(F.map_entries("map_value"), both)
    return entries, T.ArrayType(T.StructType(fields))


_READERS: dict[type[Declaration], Callable[..., tuple[SparkColumn, T.DataType]]] = {
    Value: _read_value,
    List: _read_list,
    Map: _read_map,
}


def _seen(source: SparkOperator, target: Any) -> tuple[DataFrame, Column]:
    """The keys that were seen, as the one value of a processor that remembers them."""
    declared = declarations(target.processor)
    values = {name: d for name, d in declared.items() if type(d) is Value}
    if len(values) != 1:
        raise SparkStateError(
            f"operator {target.name!r} should continue {source.title}, which only remembers keys. "
            "Its processor needs one Value: a boolean or, for dropDuplicatesWithinWatermark, a "
            "long or a timestamp, the time until which a key is remembered."
        )
    ((state, value),) = values.items()
    df = source.read()
    remembered: SparkColumn = F.lit(True)
    if not isinstance(value.type, T.BooleanType):
        if source.name != "dedupeWithinWatermark":
            raise SparkStateError(
                f"{source.title} remembers only that a key was seen: declare state {state!r} as "
                "boolean."
            )
        until = F.col("value").getField("expiresAtMicros")
        is_time = isinstance(value.type, T.TimestampType)
        remembered = F.timestamp_micros(until) if is_time else until.cast(value.type)
    pair = F.struct(
        remembered.cast(value.type).alias("value"), F.lit(None).cast("long").alias("until")
    )
    return _with_keys(df, source, target.keys, state, pair), Column(state, _pair(value.type))


def _with_keys(
    df: DataFrame, source: SparkOperator, keys: Sequence[Column], name: str, value: SparkColumn
) -> DataFrame:
    columns = _keys(df, source, keys)
    typed = [(c, k.type) for c, k in zip(columns, keys, strict=True)]
    named = {rows.key(i): column for i, column in enumerate(columns)}
    return with_fingerprint(df, typed, {**named, name: value}, source.scheme)


def _merged(
    frames: list[DataFrame], keys: Sequence[Column], columns: Sequence[Column]
) -> DataFrame:
    """One row per key of all frames."""
    fixed = [HI, LO, *(rows.key(i) for i in range(len(keys)))]
    wide = [
        df.select(
            *fixed,
            *(
                F.col(c.name) if c.name in df.columns else F.lit(None).cast(c.type).alias(c.name)
                for c in columns
            ),
        )
        for df in frames
    ]
    united = wide[0]
    for df in wide[1:]:
        united = united.unionByName(df)
    firsts = [F.first(name).alias(name) for name in fixed[2:]]
    firsts += [F.first(c.name, ignorenulls=True).alias(c.name) for c in columns]
    return united.groupBy(HI, LO).agg(*firsts)
