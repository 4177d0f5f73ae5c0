"""The operators that a rehearsal runs: one of each kind that has kernels of its own.

A kernel is compiled once per combination of types. What is rehearsed has whole numbers for keys and
values; an aggregate over other types may still load a kernel of its own in its first epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from millrace import types
from millrace.arrays import UInt64Array
from millrace.epoch.rows import decode, encode
from millrace.ids import OperatorName
from millrace.operators import Operator
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.dedup.layout import EVENT
from millrace.operators.dedup.operator import DedupOperator
from millrace.operators.dedup.spec import DedupDefinition
from millrace.operators.input import Input
from millrace.operators.join.layout import LEFT
from millrace.operators.join.operator import JoinOperator
from millrace.operators.join.spec import JoinDefinition
from millrace.operators.operator import Column
from millrace.operators.session.operator import SessionOperator
from millrace.operators.session.spec import SessionDefinition
from millrace.operators.window.emission import FINAL, Emission
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.panes import Windows
from millrace.operators.window.spec import WindowDefinition

_NAME = OperatorName("rehearsal")
_LONG = T.LongType()
_KEY = (Column("k", _LONG),)
_ROW = T.StructType([T.StructField("a", _LONG), T.StructField("b", _LONG)])
_SPAN = 10_000
"""Of windows, gaps and intervals, in microseconds; watermarks are whole milliseconds."""
_START = 100_000
_EPOCHS = 3
_TOTALS = (
    AggregateSpec("n", "count", "*", T.IntegerType(), ()),
    AggregateSpec("total", "sum", "a", _LONG, ()),
    AggregateSpec("most", "max", "a", _LONG, ()),
)


@dataclass(frozen=True)
class Part:
    """An operator, and the rows of its epochs with their watermarks."""

    operator: Operator
    epochs: tuple[tuple[Input, int | None], ...]


def parts() -> Iterator[Part]:
    """All of them. Rows of an epoch meet those of the one before, and are over two epochs later."""
    definition = JoinDefinition(_KEY, (Column("l", _LONG),), (Column("r", _LONG),), -_SPAN, 0, LEFT)
    yield _part(JoinOperator(_NAME, definition), _joined)
    yield _part(
        SessionOperator(_NAME, SessionDefinition(_KEY, _SPAN, _TOTALS, Emission(FINAL))), _pieces
    )
    sliding = Windows(2 * _SPAN, _SPAN)
    yield _part(
        WindowOperator(_NAME, WindowDefinition(_KEY, sliding, _TOTALS, Emission(FINAL))), _panes
    )
    seen = DedupDefinition(_KEY, EVENT, _SPAN)
    yield _part(DedupOperator(_NAME, seen, _KEY), _whole)
    best = AggregateSpec("top", "top", "a", _ROW, (("k", 2),))
    yield _part(AggregateOperator(_NAME, _KEY, [best]), _best)


@dataclass(frozen=True)
class _RehearsedRows:
    """What an epoch's inputs are made of: two keys, two rows each."""

    hi: UInt64Array
    keys: pa.Array
    times: pa.Array

    def input(self, **columns: Any) -> Input:
        """Rows as they come from Spark: in several pieces."""
        rows = encode(Input(self.hi, self.hi, **columns))
        return decode(pa.concat_tables([rows.slice(0, 1), rows.slice(1)]))


def _part(operator: Operator, make: Callable[[_RehearsedRows], Input]) -> Part:
    hi = np.asarray([1, 1 << 63, 1, 1 << 63], np.uint64)
    keys = pa.array([1, 2, 1, 2])
    epochs = []
    for number in range(_EPOCHS):
        first = _START + number * _SPAN
        rows = _RehearsedRows(hi, keys, pa.array([first, first, first + 1, first + 1]))
        epochs.append((make(rows), first - _SPAN if number else None))
    return Part(operator, tuple(epochs))


def _joined(rows: _RehearsedRows) -> Input:
    left, right = pa.array([1, None, None, 2]), pa.array([None, 1, 2, None])
    is_right = pa.array([False, True, True, False])
    return rows.input(
        keys=(rows.keys,), columns=(left,), event_us=rows.times, is_right=is_right, right=(right,)
    )


def _pieces(rows: _RehearsedRows) -> Input:
    ones = pa.array([1] * len(rows.keys))
    totals = ((ones,), (ones, ones), (ones,))
    spans = {"count": ones, "first_us": rows.times, "last_us": rows.times}
    return rows.input(keys=(rows.keys,), partials=totals, **spans)


def _panes(rows: _RehearsedRows) -> Input:
    ones = pa.array([1] * len(rows.keys))
    pane = pa.array([time // _SPAN * _SPAN for time in rows.times.to_pylist()])
    totals = ((ones,), (ones, ones), (ones,))
    return rows.input(keys=(rows.keys,), partials=totals, pane=pane, count=ones)


def _whole(rows: _RehearsedRows) -> Input:
    part = np.zeros(len(rows.keys), np.int32)
    return rows.input(keys=(), part=part, columns=(rows.keys,), event_us=rows.times)


def _best(rows: _RehearsedRows) -> Input:
    row = {"a": rows.times[-1].as_py(), "b": 1}
    lists = pa.array([[row]] * len(rows.keys), pa.list_(types.arrow_type(_ROW, "row")))
    return rows.input(keys=(rows.keys,), partials=((lists,),))
