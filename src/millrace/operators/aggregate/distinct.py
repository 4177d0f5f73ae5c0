"""Which values of a list are equal: found by fingerprint, for the lists of all keys at once.

Equal means what it means for keys: 0.0 is -0.0, and NaN is NaN.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrays import BoolArray, Int64Array, UInt64Array
from millrace.jit import kernel
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.scheme import UNSALTED
from millrace.operators.aggregate.extremes import float_order
from millrace.operators.arrays import validity
from millrace.operators.lists import list_parts

_FEW = 12
"""A list up to this length is compared value by value; a longer one gets a hash table."""


def words(values: pa.Array) -> tuple[UInt64Array, UInt64Array]:
    """128 bits for each value, the same in every location."""
    return fingerprints([values], UNSALTED)


def other_lists(before: pa.Array, after: pa.Array) -> BoolArray:
    """Which lists have other values than before, or the same in another order."""
    old, old_lengths = list_parts(before)
    new, lengths = list_parts(after)
    other: BoolArray = old_lengths != lengths
    # Values of lists that are as long as before are at the same place among all of these.
    old = old.filter(pa.array(~np.repeat(other, old_lengths)))
    new = new.filter(pa.array(~np.repeat(other, lengths)))
    owner = np.repeat(np.flatnonzero(~other), lengths[~other])
    other[owner[_unequal(old, new)]] = True
    return other


def _unequal(old: pa.Array, new: pa.Array) -> BoolArray:
    """Which values differ from those at the same place."""
    found: BoolArray = validity(old) != validity(new)
    if pa.types.is_struct(old.type):
        for pair in zip(old.flatten(), new.flatten(), strict=True):
            found |= _unequal(*pair)
    elif pa.types.is_nested(old.type):
        for old_half, new_half in zip(words(old), words(new), strict=True):
            found |= old_half != new_half
    elif pa.types.is_floating(old.type):
        found |= float_order(old) != float_order(new)
    else:
        found |= pc.not_equal(old, new).fill_null(False).to_numpy(zero_copy_only=False)
    return found


@kernel
def first_equal(cuts: Int64Array, hi: UInt64Array, lo: UInt64Array) -> Int64Array:
    """For each value the position of the first that equals it in its list.

    List `g` has the values `cuts[g]` to `cuts[g + 1]`.
    """
    out = np.empty(len(hi), np.int64)
    table = np.empty(64, np.int64)
    for g in range(len(cuts) - 1):
        first, last = cuts[g], cuts[g + 1]
        if last - first <= _FEW:
            for i in range(first, last):
                found = i
                for j in range(first, i):
                    if hi[j] == hi[i] and lo[j] == lo[i]:
                        found = j
                        break
                out[i] = found
            continue
        size = 64
        while size < 2 * (last - first):
            size *= 2
        if size > len(table):
            table = np.empty(size, np.int64)
        table[:size] = -1
        mask = np.uint64(size - 1)
        for i in range(first, last):
            slot = lo[i] & mask
            while table[slot] >= 0:
                j = table[slot]
                if hi[j] == hi[i] and lo[j] == lo[i]:
                    break
                slot = (slot + np.uint64(1)) & mask
            if table[slot] < 0:
                table[slot] = i
            out[i] = table[slot]
    return out


@kernel
def summed(first: Int64Array, counts: Int64Array) -> Int64Array:
    """Counts of equal values, added up where the first of them is; 0 elsewhere."""
    out = np.zeros(len(counts), np.int64)
    for i in range(len(counts)):
        out[first[i]] += counts[i]
    return out
