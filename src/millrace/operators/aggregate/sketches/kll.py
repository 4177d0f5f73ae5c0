"""KLL sketches of doubles: quantiles. The library merges them, one key at a time.

Up to `k` values a sketch is a list of them, and its quantiles are exact. Beyond that it keeps a
sample: which of two neighbours stays is random, in Spark and in the library, so an epoch that is
repeated after a crash may give another estimate within the same error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Float64Array, Int64Array
from millrace.operators.aggregate.sketches.columns import by_library
from millrace.operators.arrays import validity


def merge(sketches: pa.Array, starts: Int64Array, k: int) -> pa.Array:
    """The union of each group of sketches; NULLs count as empty."""
    from datasketches import kll_doubles_sketch

    valid = validity(sketches)
    if not valid.all():
        counts = np.concatenate(([0], np.cumsum(valid)))
        sketches, starts = sketches.drop_null(), counts[starts]
    if len(sketches) == len(starts) - 1 and (np.diff(starts) == 1).all():
        return sketches
    empty = kll_doubles_sketch(k).serialize()
    merged: list[bytes] = []
    given = sketches.to_pylist()
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if last - first < 2:
            merged.append(given[first] if last > first else empty)
            continue
        sketch = by_library(kll_doubles_sketch.deserialize, given[first])
        for other in given[first + 1 : last]:
            sketch.merge(by_library(kll_doubles_sketch.deserialize, other))
        merged.append(sketch.serialize())
    return pa.array(merged, pa.binary())


def quantiles(sketches: pa.Array, ranks: Sequence[float]) -> tuple[Float64Array, BoolArray]:
    """For each sketch the values at some ranks, and whether it has any."""
    from datasketches import kll_doubles_sketch

    values = np.zeros((len(sketches), len(ranks)), np.float64)
    known = np.zeros(len(sketches), np.bool_)
    wanted = list(ranks)
    for i, blob in enumerate(sketches.to_pylist()):
        if blob is None:
            continue
        sketch = by_library(kll_doubles_sketch.deserialize, blob)
        if not sketch.is_empty():
            values[i] = sketch.get_quantiles(wanted, True)
            known[i] = True
    return values, known
