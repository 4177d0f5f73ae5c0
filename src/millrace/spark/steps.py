"""The steps of a query, and the points that they lead to: the graph that a program builds.

A point is where rows are after a step; its inputs are the points that the step reads. Points are
compared by identity: what a program keeps in a variable and reads twice is one point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millrace.keygroups import Assignment
from millrace.keygroups.scheme import Scheme
from millrace.operators import Operator
from millrace.spark.broadcast import Side

Exchange = Callable[[DataFrame, Assignment, Scheme], DataFrame]


@dataclass(frozen=True)
class SourceStep:
    """Where a streaming DataFrame comes in."""


@dataclass(frozen=True, eq=False)
class TransformStep:
    """Stateless Spark: part of the source's own plan, or applied to every batch."""

    function: Callable[[DataFrame], DataFrame]
    is_own: bool = False
    """Whether it belongs to the operator before it, whose other outputs are then asked for here."""
    is_fixed: bool = False
    """Whether it gives the same plan for every batch, so that one is enough."""


@dataclass(frozen=True, eq=False)
class OperatorStep:
    """An operator and the exchange in front of it.

    The exchange of an operator with two inputs gets both in one frame: see `spark.uniting`.
    """

    operator: Operator
    exchange: Exchange
    code: bytes | None = None
    """The operator itself, for those that a spec does not describe completely."""
    first: Exchange | None = None
    """The exchange of the location's very first epoch, if it brings more than the batch."""
    late: Callable[[int], Exchange] | None = None
    """The exchange to use where late rows are read, if it is another one: given the operator's
    watermark of the epoch before, it sends them in full."""
    before: Callable[[int], None] | None = None
    """Told the operator's watermark of the epoch before, ahead of each epoch's plan."""
    sides: tuple[Side, ...] = ()
    """The streams of the operator's broadcast states."""


@dataclass(frozen=True)
class OutputStep:
    """Continues with another output of the previous operator."""

    output: str


@dataclass(frozen=True)
class UnionStep:
    """The rows of all inputs, by column name."""

    schema: T.StructType
    as_they_are: tuple[bool, ...]
    """Which inputs have the columns of the schema in its order already."""


Step = SourceStep | TransformStep | OperatorStep | OutputStep | UnionStep


@dataclass(eq=False)
class Point:
    """Where rows are after a step."""

    step: Step
    inputs: tuple[Point, ...] = ()
    frame: DataFrame | None = None
    """The rows as a streaming frame, as long as they have passed no operator."""
    _outputs: dict[str, Point] = field(default_factory=dict)

    def output(self, name: str) -> Point:
        """Another output of the operator that leads here: the same point however often asked."""
        if name not in self._outputs:
            self._outputs[name] = Point(OutputStep(name), (self,))
        return self._outputs[name]
