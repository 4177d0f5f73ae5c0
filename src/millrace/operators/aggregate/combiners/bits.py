"""Bitwise and, or, exclusive or of integers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, Int64Array
from millrace.jit import kernel
from millrace.operators.aggregate.kept import State
from millrace.operators.arrays import build, int64s, validity

_AND, _OR, _XOR = 0, 1, 2


def _combine(
    operation: int, states: State, starts: Int64Array, options: Mapping[str, Any]
) -> list[pa.Array]:
    values = states[0]
    folded, valid = _folded(int64s(values), validity(values), starts, operation)
    width = f"i{values.type.bit_width // 8}"
    return [build(folded.astype(width), valid, values.type)]


COMBINERS = {
    "bit_and": partial(_combine, _AND),
    "bit_or": partial(_combine, _OR),
    "bit_xor": partial(_combine, _XOR),
}


@kernel
def _folded(
    values: Int64Array, valid: BoolArray, starts: Int64Array, operation: int
) -> tuple[Int64Array, BoolArray]:
    groups = len(starts) - 1
    out = np.zeros(groups, np.int64)
    some = np.zeros(groups, np.bool_)
    for g in range(groups):
        found = np.int64(-1) if operation == _AND else np.int64(0)
        for i in range(starts[g], starts[g + 1]):
            if not valid[i]:
                continue
            some[g] = True
            if operation == _AND:
                found &= values[i]
            elif operation == _OR:
                found |= values[i]
            else:
                found ^= values[i]
        out[g] = found
    return out, some
