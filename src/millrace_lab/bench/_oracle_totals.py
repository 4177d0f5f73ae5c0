"""What the sides of `bench peers` must have counted: the job's definition, on arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from millrace.arrays import Int64Array
from millrace_lab.bench._foreign.engines.job import AMOUNTS, FACTOR, PRIME, SHIFT

"""Rows of key, count and sum, sorted by key."""


def expected(rows: int, keys: int) -> Int64Array:
    """Of the first rows, by one batch."""
    v = np.arange(rows, dtype=np.int64)
    x = (v * FACTOR + SHIFT) % PRIME
    k = np.where(v < keys, v, x * x % PRIME % keys)
    n = np.bincount(k, minlength=keys)
    # Sums of integers below 2**53 are exact in the floating point of `weights`.
    total = np.bincount(k, weights=v % AMOUNTS, minlength=keys).astype(np.int64)
    found = np.flatnonzero(n)
    return np.stack([found, n[found], total[found]], axis=1)


def counted(path: Path) -> Int64Array:
    """What a side wrote."""
    return np.fromfile(path, dtype=np.int64).reshape(-1, 3)


def difference(counts: Int64Array, wanted: Int64Array) -> str | None:
    """Where a side's counts are not as wanted; None if they are."""
    if counts.shape != wanted.shape:
        return f"it has {len(counts):,} keys, and there are {len(wanted):,}"
    unequal = np.flatnonzero((counts != wanted).any(axis=1))
    if not len(unequal):
        return None
    first = int(unequal[0])
    return (
        f"{len(unequal):,} of {len(wanted):,} keys differ; the first has (key, count, sum) "
        f"{tuple(counts[first].tolist())} instead of {tuple(wanted[first].tolist())}"
    )
