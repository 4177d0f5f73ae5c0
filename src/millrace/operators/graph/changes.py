"""Rows of edges on their way into an operator: the last word on each edge, and rows of state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace import types
from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.operators.input import Input
from millrace.state.replica import Replica
from millrace.state.sorting import group_starts, sort_order


def arrival_order(rows: Input) -> Int64Array:
    """Rows by input partition, then as they came: the order in which edges come and go."""
    assert rows.part is not None
    # Blocks of a shuffle arrive in any order: the lowest input partition counts as the first.
    return np.argsort(rows.part, kind="stable")


def column(values: Any, kind: pa.DataType, order: Int64Array) -> pa.Array:
    """A column of rows, in its type and in an order."""
    return types.conform(values, kind).take(pa.array(order))


def flags(values: Any, order: Int64Array) -> BoolArray:
    """A boolean column; NULL is false."""
    found: BoolArray = (
        types.conform(values, pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
    )
    return found[order]


@dataclass(frozen=True)
class Grouped:
    """Rows with equal fingerprints put together, in order of fingerprint."""

    hi: UInt64Array
    lo: UInt64Array
    first: Int64Array
    last: Int64Array
    number: Int64Array
    """Of each row, that of its group."""

    def __len__(self) -> int:
        return len(self.hi)


def grouped(hi: UInt64Array, lo: UInt64Array) -> Grouped:
    """Put rows with equal fingerprints together."""
    order = sort_order(hi, lo)
    starts = group_starts(hi[order], lo[order])
    first, last = order[starts[:-1]], order[starts[1:] - 1]
    number = np.empty(len(order), np.int64)
    number[order] = np.repeat(np.arange(len(first)), np.diff(starts))
    return Grouped(hi[first], lo[first], first, last, number)


def sums(number: Int64Array, values: Int64Array, count: int) -> Int64Array:
    """The sum of the values of each group."""
    total = np.zeros(count, np.int64)
    np.add.at(total, number, values)
    return total


def stored(
    replica: Replica,
    fingerprints: tuple[UInt64Array, UInt64Array],
    deleted: BoolArray,
    columns: Sequence[pa.Array],
    owners: tuple[UInt64Array, UInt64Array] | None = None,
) -> pa.RecordBatch:
    """Rows of state, in order of their fingerprints."""
    hi, lo = fingerprints
    words = [*fingerprints, *(owners or ())]
    order = sort_order(hi, lo)
    hi_lo, rest = ([pa.array(word[order]) for word in part] for part in (words[:2], words[2:]))
    chosen = pa.array(order)
    arrays = [*hi_lo, pa.array(deleted[order]), *rest, *(c.take(chosen) for c in columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=replica.schema)


def batch(names: Sequence[str], arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    """Rows of an output."""
    return pa.RecordBatch.from_arrays(list(arrays), names=list(names))
