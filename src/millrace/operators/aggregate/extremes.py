"""The smallest or largest value of each group, in Spark's order of its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.aggregate import kernels
from millrace.operators.arrays import decimal_words, float64s, int64s, validity


def best(
    now: pa.Array, new: pa.Array, starts: Int64Array, *, largest: bool, last: bool = False
) -> Int64Array:
    """The position of each group's best value in current + incoming laid end to end, or `NONE`.

    Group `g` has the current value `g` and the incoming ones `starts[g]` to `starts[g + 1]`. Of
    equal ones it is the first, or the last.
    """
    arrow = now.type
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        both = pa.concat_arrays([now, new])
        _, offsets, data = both.buffers()
        strings = (
            np.frombuffer(offsets, np.int32)[both.offset : both.offset + len(both) + 1],
            np.frombuffer(data or b"", np.uint8),
        )
        valid = np.concatenate([validity(now), validity(new)])
        return kernels.best_bytes(strings, valid, starts, largest, last)
    if pa.types.is_decimal(arrow):
        pair = nullable(now, decimal_words), nullable(new, decimal_words)
        return kernels.best_decimal(*pair, starts, largest, last)
    order = float_order if pa.types.is_floating(arrow) else int64s
    return kernels.best_int64(nullable(now, order), nullable(new, order), starts, largest, last)


def nullable(array: pa.Array, values: Callable[[pa.Array], npt.NDArray[Any]]) -> kernels.Nullable:
    """An array as kernels take it."""
    return values(array), validity(array)


def float_order(array: pa.Array) -> Int64Array:
    """Integers in the order Spark gives floating point: -0.0 = 0.0, NaN above all."""
    values = float64s(array) + 0.0
    bits = values.view(np.int64)
    order = np.where(bits < 0, np.int64(-(2**63)) - bits, bits)
    return np.where(np.isnan(values), np.int64(2**63 - 1), order)
