"""The steps of a pipeline: what happens to rows between a source and a sink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from millrace.keygroups import Assignment
from millrace.keygroups.scheme import Scheme
from millrace.operators import Operator
from millrace.spark.broadcast import Side

Exchange = Callable[[DataFrame, Assignment, Scheme], DataFrame]


@dataclass(frozen=True, eq=False)
class TransformStep:
    """Stateless Spark after an operator, applied to every batch."""

    function: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, eq=False)
class OperatorStep:
    """An operator and the exchange in front of it."""

    operator: Operator
    exchange: Exchange
    code: bytes | None = None
    """The operator itself, for those that a spec does not describe completely."""
    first: Exchange | None = None
    """The exchange of the location's very first epoch, if it brings more than the batch."""
    late: Callable[[int], Exchange] | None = None
    """The exchange to use where late rows are read, if it is another one: given the operator's
    watermark of the epoch before, it sends them in full."""
    sides: tuple[Side, ...] = ()
    """The streams of the operator's broadcast states."""


@dataclass(frozen=True)
class OutputStep:
    """Continues with another output of the previous operator."""

    output: str


Step = TransformStep | OperatorStep | OutputStep
"""Paths share their beginning if it is the same steps: the very same transforms and operators."""
