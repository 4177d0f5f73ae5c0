"""Frequent items: which values are most frequent, with counts that are too low by a known error.

Spark's JVM counts per key and input partition with a sketch of Apache DataSketches, of bounded
size. Here its bytes are taken apart into items, counts and an error, and counts of the same item
are added up. When a key has more items than are tracked, the count of the largest that has to go is
taken from all (Agarwal et al., Mergeable Summaries, 2013), and what is lost is added to the error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int32Array, Int64Array, UInt8Array
from millrace.jit import kernel
from millrace.operators.aggregate.sketches.columns import Blobs, blobs, number, signed
from millrace.operators.lists import list_type, lists_at


class Errors(NamedTuple):
    """By how much the counts of each state may be too low; nothing where it is not valid."""

    values: Int64Array
    valid: BoolArray


def taken_apart(sketches: pa.Array, item_type: pa.DataType) -> list[pa.Array]:
    """Items, counts and error of sketches as Spark writes them; the error is 0 for NULL."""
    given = blobs(sketches)
    cuts, counts, error, at = _counts(given)
    if pa.types.is_string(item_type):
        offsets, data = _strings(given, cuts, at)
        items = pa.Array.from_buffers(
            pa.string(), len(counts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
    else:
        items = _typed(_longs(given, cuts, at), item_type)
    return [
        lists_at(items, cuts, list_type(item_type)),
        lists_at(pa.array(counts), cuts, list_type(pa.int64())),
        pa.array(error),
    ]


def _typed(numbers: Int64Array, item_type: pa.DataType) -> pa.Array:
    """Items of an integer, date or time type, which travel as bigint."""
    width = f"i{item_type.bit_width // 8}"
    values = np.ascontiguousarray(numbers.astype(width))
    return pa.Array.from_buffers(item_type, len(values), [None, pa.py_buffer(values)])


def cut(
    counts: Int64Array, cuts: Int64Array, errors: Errors, starts: Int64Array, track: int
) -> tuple[BoolArray, Int64Array]:
    """Bring each group to at most `track` items, changing counts; which stay, and its error."""
    return _cut(counts, cuts, (errors.values, errors.valid), starts, track)


@kernel
def _counts(sketches: Blobs) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Where each sketch's items are among all, their counts, its error, and where items begin."""
    offsets, data, valid = sketches
    rows = len(valid)
    cuts = np.zeros(rows + 1, np.int64)
    at = np.zeros(rows, np.int64)
    error = np.zeros(rows, np.int64)
    for i in range(rows):
        some = 0
        # An empty sketch has one word and no counts.
        if valid[i] and (data[offsets[i]] & 63) > 1:
            some = signed(number(data, offsets[i] + 8, 4))
            error[i] = signed(number(data, offsets[i] + 24, 8))
            at[i] = offsets[i] + 32 + 8 * some
        cuts[i + 1] = cuts[i] + some
    counts = np.empty(cuts[rows], np.int64)
    for i in range(rows):
        for j in range(cuts[i], cuts[i + 1]):
            counts[j] = signed(number(data, offsets[i] + 32 + 8 * (j - cuts[i]), 8))
    return cuts, counts, error, at


@kernel
def _longs(sketches: Blobs, cuts: Int64Array, at: Int64Array) -> Int64Array:
    data = sketches[1]
    out = np.empty(cuts[-1], np.int64)
    for i in range(len(at)):
        for j in range(cuts[i], cuts[i + 1]):
            out[j] = signed(number(data, at[i] + 8 * (j - cuts[i]), 8))
    return out


@kernel
def _strings(sketches: Blobs, cuts: Int64Array, at: Int64Array) -> tuple[Int32Array, UInt8Array]:
    """Each string is its length in four bytes, and its bytes."""
    data = sketches[1]
    offsets = np.zeros(cuts[-1] + 1, np.int32)
    for i in range(len(at)):
        place = at[i]
        for j in range(cuts[i], cuts[i + 1]):
            length = signed(number(data, place, 4))
            offsets[j + 1] = offsets[j] + length
            place += 4 + length
    out = np.empty(offsets[-1], np.uint8)
    for i in range(len(at)):
        place = at[i]
        for j in range(cuts[i], cuts[i + 1]):
            length = offsets[j + 1] - offsets[j]
            out[offsets[j] : offsets[j + 1]] = data[place + 4 : place + 4 + length]
            place += 4 + length
    return offsets, out


@kernel
def _cut(
    counts: Int64Array,
    cuts: Int64Array,
    errors: tuple[Int64Array, BoolArray],
    starts: Int64Array,
    track: int,
) -> tuple[BoolArray, Int64Array]:
    error, known = errors
    groups = len(starts) - 1
    kept = np.ones(len(counts), np.bool_)
    total = np.zeros(groups, np.int64)
    for g in range(groups):
        for i in range(starts[g], starts[g + 1]):
            if known[i]:
                total[g] += error[i]
        first, last = cuts[g], cuts[g + 1]
        if last - first <= track:
            continue
        ordered = np.sort(counts[first:last])
        less = ordered[last - first - track - 1]
        total[g] += less
        for i in range(first, last):
            counts[i] -= less
            kept[i] = counts[i] > 0
    return kept, total
