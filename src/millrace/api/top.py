"""`top`: an aggregate that keeps the best rows, and rows with ranks made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.api.columns import named, resolve
from millrace.api.origin import grouping, origin, then
from millrace.errors import DuplicateNameError
from millrace.operators.aggregate.functions import Aggregate, top
from millrace.spark.steps import TransformStep

if TYPE_CHECKING:
    from millrace.api.keyed import KeyedStream
    from millrace.api.stream import Stream

TOP, RANK = "top", "rank"
"""The aggregate that `top` keeps, and the column that it emits for the order of rows."""
_AT, _ROW = "_at", "_row"


def ranked(
    keyed: KeyedStream, k: int, by: str | SparkColumn, columns: tuple[str | SparkColumn, ...]
) -> tuple[Aggregate, list[str]]:
    """What `top` aggregates, and the columns that it shows, in their order."""
    group = grouping(keyed)
    sample = origin(group.stream).sample()
    first, _ = resolve(sample, by, "top(by=...)")
    if columns:
        others = [(resolve(sample, column, "top()")[0].name, column) for column in columns]
        names = [first.name, *(name for name, _ in others)]
    else:
        keys = {key.name for key in group.keys} - group.computed
        names = [name for name in group.stream.schema.names if name not in keys]
        others = [(name, name) for name in names]
    taken = [key.name for key in group.keys if key.name in names]
    if taken:
        raise DuplicateNameError(
            f"top() would have two columns called {taken[0]!r}: one of the key and one of the "
            "row. Name the columns of the rows that you want: top(10, 'amount', 'item')."
        )
    rest = tuple(column for name, column in others if name != first.name)
    return top(k, by, *rest), list(dict.fromkeys([*names, first.name]))


def exploded(ranked: Stream, names: list[str]) -> Stream:
    """A row for each rank, instead of an array of them."""
    at = ranked.schema.names.index(TOP)
    before, after = ranked.schema.names[:at], ranked.schema.names[at + 1 :]
    taken = {*before, *after, RANK} & set(names)
    if taken or RANK in before:
        name = min(taken or {RANK})
        raise DuplicateNameError(
            f"top() would have two columns called {name!r}. Rename the one of the stream in "
            "transform(), or name the columns that you want: top(10, 'amount', 'item')."
        )
    fields = [F.col(f"{_ROW}.`{name.replace('`', '``')}`").alias(name) for name in names]

    def explode(df: DataFrame) -> DataFrame:
        rows = df.select(
            *map(named, before), F.posexplode(TOP).alias(_AT, _ROW), *map(named, after)
        )
        rank = (F.col(_AT) + F.lit(1)).alias(RANK)
        return rows.select(*map(named, before), rank, *fields, *map(named, after))

    shown = explode(origin(ranked).sample()).schema
    step = TransformStep(explode, is_own=True)
    return then(ranked, shown, step, event_time=origin(ranked).event_time)
