"""The exchange in front of components: the edges that matter, to every shard.

Each input partition is reduced to a spanning forest where it is, in Python; only that is sent. What
other operators on graphs get is rows by key, as processors do (`exchange.RowExchange`).
"""

from __future__ import annotations

import functools

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millrace.epoch import rows
from millrace.keygroups import Assignment
from millrace.keygroups.scheme import Scheme
from millrace.log.segment import HI, LO
from millrace.operators.graph.components import ComponentsOperator
from millrace.operators.graph.forest import reduced

_SHARD = "_shard"


class ComponentsExchange:
    """Sends the forest of each input partition to all shards."""

    def __init__(self, operator: ComponentsOperator, first: Column, second: Column) -> None:
        definition = operator.definition
        self._ends = [first.alias(rows.column(0)), second.alias(rows.column(1))]
        self._vertex = operator.vertex
        self._sides = definition.sides
        word = T.LongType()
        self._schema = T.StructType([T.StructField(HI, word), T.StructField(LO, word)])
        for number, kind in enumerate((definition.vertex, definition.vertex, word, word)):
            self._schema.add(rows.column(number), kind)

    def __call__(self, df: DataFrame, assignment: Assignment, scheme: Scheme) -> DataFrame:
        reduce = functools.partial(
            reduced,
            vertex=self._vertex,
            sides=self._sides,
            scheme=scheme,
            names=self._schema.names,
        )
        kept = df.select(*self._ends).mapInArrow(reduce, self._schema)
        everywhere = F.array(*(F.lit(shard) for shard in range(assignment.shards)))
        copied = kept.select("*", F.explode(everywhere).alias(_SHARD))
        return copied.repartitionById(assignment.shards, F.col(_SHARD)).drop(_SHARD)
