"""Broadcast streams: a second stream's rows, in the same batches as the keyed ones.

A query has one Spark stream. The rows of a broadcast state are united with the keyed ones, in a
column of their own that is NULL elsewhere, so Spark's offsets cover both and a batch that runs
again has the same rows of both. In front of the operator that they are for, each broadcast row is
sent to every shard; nothing else in the query sees them. Broadcast rows have no event time: the
watermark follows from the keyed rows alone.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.epoch import rows
from millrace.errors import UsageError
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.log.segment import HI
from millrace.operators.operator import Column
from millrace.operators.process.shared.broadcast import KEY, VALUE
from millrace.operators.process.shared.declarations import Broadcast
from millrace.spark.exchange import RowExchange, StreamColumns, route
from millrace.spark.fingerprint import quoted

DELETED = "deleted"
"""A boolean column of this name marks entries to remove."""

_SHARD = "_shard"
_BY_KEY = -1


@dataclass(frozen=True)
class Side:
    """The rows of one broadcast state."""

    column: str
    type: T.StructType
    rows: DataFrame
    """A streaming frame with that column alone: structs of a key and a value."""


def make_side(
    operator: OperatorName, declaration: Broadcast, source: DataFrame, keys: Sequence[Column]
) -> Side:
    """The rows of a streaming frame, keyed by some of its columns, as entries of a state."""
    where = f"broadcast={{{declaration.name!r}: ...}} of operator {operator!r}"
    if _has_watermark(source._jdf.queryExecution().analyzed()):
        raise UsageError(
            f"{where}: the stream has a watermark, which would hold back the one of the keyed "
            "rows. Give it without event_time= and withWatermark()."
        )
    key = _key(keys, declaration.key_type, where)
    value = _value(source, [k.name for k in keys], declaration.value_type, where)
    entry = F.struct(key.alias(KEY), value.alias(VALUE))
    column = f"_broadcast/{operator}/{declaration.name}"
    data_type = T.StructType(
        [T.StructField(KEY, declaration.key_type), T.StructField(VALUE, declaration.value_type)]
    )
    return Side(column, data_type, source.select(entry.cast(data_type).alias(column)))


def _has_watermark(plan: Any) -> bool:
    if plan.getClass().getSimpleName() == "EventTimeWatermark":
        return True
    children = plan.children()
    return any(_has_watermark(children.apply(i)) for i in range(children.size()))


def _key(keys: Sequence[Column], wanted: T.DataType, where: str) -> SparkColumn:
    if len(keys) == 1:
        key, given = quoted(keys[0].name), keys[0].type
    else:
        key = F.struct(*(quoted(k.name) for k in keys))
        given = T.StructType([T.StructField(k.name, k.type) for k in keys])
    if given.simpleString() != wanted.simpleString():
        raise UsageError(
            f"{where}: the stream's key is of type {given.simpleString()}, and the state's keys "
            f"are declared as {wanted.simpleString()}. Cast the column, or key_by() another one."
        )
    return key


def _value(source: DataFrame, keys: list[str], wanted: T.DataType, where: str) -> SparkColumn:
    """The columns beside the keys: one of the state's type, or the fields of its struct."""
    fields = [f for f in source.schema.fields if f.name not in keys]
    removed = F.lit(False)
    if DELETED in [f.name for f in fields] and not _is_field(DELETED, wanted):
        marker = next(f for f in fields if f.name == DELETED)
        if not isinstance(marker.dataType, T.BooleanType):
            raise UsageError(
                f"{where}: the column {DELETED!r} marks entries to remove and must be a boolean, "
                f"not {marker.dataType.simpleString()}."
            )
        removed = F.coalesce(quoted(DELETED), F.lit(False))
        fields.remove(marker)
    types = {f.name: f.dataType.simpleString() for f in fields}
    if len(fields) == 1 and fields[0].dataType.simpleString() == wanted.simpleString():
        value = quoted(fields[0].name)
    elif isinstance(wanted, T.StructType) and types == {
        f.name: f.dataType.simpleString() for f in wanted.fields
    }:
        value = F.struct(*(quoted(f.name) for f in wanted.fields))
    else:
        given = ", ".join(f"{name} {kind}" for name, kind in types.items()) or "none"
        fit = "its fields, or one column of that type"
        raise UsageError(
            f"{where}: the state's values are declared as {wanted.simpleString()}, and the stream "
            f"has, beside its key, the columns {given}. They should be "
            f"{fit if isinstance(wanted, T.StructType) else 'one column of that type'}; select "
            "and cast them in transform() first."
        )
    return F.when(~removed, value)


def _is_field(name: str, wanted: T.DataType) -> bool:
    return isinstance(wanted, T.StructType) and name in wanted.names


def unite(source: DataFrame, sides: Sequence[Side]) -> DataFrame:
    """Keyed rows and all broadcast rows as one stream."""
    if not sides:
        return source
    united = source.select("*", *(nothing(s.column, s.type) for s in sides))
    fields = united.schema.fields
    for side in sides:
        others = [f for f in fields if f.name != side.column]
        united = united.unionByName(
            side.rows.select("*", *(nothing(f.name, f.dataType) for f in others))
        )
    return united


def nothing(name: str, data_type: T.DataType) -> SparkColumn:
    """A column of NULLs."""
    return F.lit(None).cast(data_type).alias(name)


def any_of(sides: Sequence[Side]) -> SparkColumn:
    """Whether a row is one of some broadcast streams."""
    present = [quoted(side.column).isNotNull() for side in sides]
    return functools.reduce(operator.or_, present, F.lit(False))


def with_broadcast(keyed: DataFrame, mine: Sequence[Side], batch: DataFrame) -> DataFrame:
    """An operator's keyed rows, and the broadcast rows for it that came with the batch."""
    fields = keyed.schema.fields
    united = keyed.select("*", *(nothing(side.column, side.type) for side in mine))
    broadcast = batch.where(any_of(mine)).select(
        *(nothing(f.name, f.dataType) for f in fields), *(quoted(side.column) for side in mine)
    )
    return united.union(broadcast)


def side_columns(sides: Sequence[Side]) -> dict[str, SparkColumn]:
    """The columns of an operator's broadcast states, as its shards know them."""
    return {rows.broadcast(i): quoted(side.column) for i, side in enumerate(sides)}


def no_side_columns(sides: Sequence[Side]) -> dict[str, SparkColumn]:
    """The same columns, for rows that are not broadcast."""
    return {rows.broadcast(i): F.lit(None).cast(s.type) for i, s in enumerate(sides)}


class BroadcastRouter:
    """Sends keyed rows to the shard of their key, and broadcast rows to all."""

    def __init__(self, sides: Sequence[Side]) -> None:
        names = [rows.broadcast(i) for i in range(len(sides))]
        self._is_side = functools.reduce(operator.or_, (F.col(n).isNotNull() for n in names))

    def __call__(self, df: DataFrame, assignment: Assignment) -> DataFrame:
        shards = assignment.shards
        # Both arrays are constants: a keyed row must not cost an array.
        everywhere = F.array(*(F.lit(shard) for shard in range(shards)))
        copies = F.explode(F.when(self._is_side, everywhere).otherwise(F.array(F.lit(_BY_KEY))))
        copied = df.select("*", copies.alias(_SHARD))
        by_key = route(F.col(HI), assignment)
        shard = F.when(F.col(_SHARD) == _BY_KEY, by_key).otherwise(F.col(_SHARD))
        return copied.repartitionById(shards, shard).drop(_SHARD)


class BroadcastExchange(RowExchange):
    """The exchange in front of a processor with broadcast state."""

    def __init__(self, stream: StreamColumns, sides: Sequence[Side]) -> None:
        super().__init__(stream)
        self._columns |= side_columns(sides)
        self._router = BroadcastRouter(sides)
