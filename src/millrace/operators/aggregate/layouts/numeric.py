"""Counts, sums, means, and values that are kept as they came."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from millrace.operators.aggregate.kept import Asked, Kept, Layout, State, overflow
from millrace.operators.arrays import build, decimal_words, float64s, int64s, validity


def _counted(asked: Asked) -> Kept:
    return Kept([pa.field(asked.name, pa.int64())], pa.int64(), _count)


def _same(asked: Asked) -> Kept:
    """One value of the input's type."""
    return Kept([pa.field(asked.name, asked.type)], asked.type)


def _placed(asked: Asked) -> Kept:
    """A value, and unless NULLs are ignored whether there is one, as it may be NULL."""
    is_set = [] if asked.options["ignore_nulls"] else [pa.field(f"{asked.name}.set", pa.bool_())]
    return Kept([pa.field(asked.name, asked.type), *is_set], asked.type)


def _by(asked: Asked) -> Kept:
    """The value of the best row, and what makes it the best."""
    value, by = asked.type.field(0).type, asked.type.field(1).type
    return Kept([pa.field(asked.name, value), pa.field(f"{asked.name}.by", by)], value)


def _summed(asked: Asked) -> Kept:
    if not pa.types.is_decimal(asked.type):
        total = pa.int64() if pa.types.is_integer(asked.type) else pa.float64()
        return Kept([pa.field(asked.name, total)], total)
    return Kept(_decimal_fields(asked.name, asked.type), _decimal_total(asked.type), _sum_decimal)


def _averaged(asked: Asked) -> Kept:
    name, count = asked.name, pa.field(f"{asked.name}.count", pa.int64())
    if not pa.types.is_decimal(asked.type):
        return Kept([pa.field(f"{name}.sum", pa.float64()), count], pa.float64(), _mean_double)
    mean = pa.decimal128(min(asked.type.precision + 4, 38), min(asked.type.scale + 4, 38))
    fields = [*_decimal_fields(f"{name}.sum", asked.type), count]
    return Kept(fields, mean, partial(_mean_decimal, name, mean, asked.ansi))


def _decimal_total(data_type: pa.DataType) -> pa.DataType:
    return pa.decimal128(min(data_type.precision + 10, 38), data_type.scale)


def _decimal_fields(name: str, data_type: pa.DataType) -> list[pa.Field]:
    total = pa.field(name, _decimal_total(data_type))
    return [total, pa.field(f"{name}.overflow", pa.bool_())]


LAYOUTS: dict[str, Layout] = {
    "count": _counted,
    "sum": _summed,
    "mean": _averaged,
    "first": _placed,
    "last": _placed,
    "max_by": _by,
    "min_by": _by,
    **dict.fromkeys(("min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"), _same),
}


def _count(state: State) -> pa.Array:
    # NULL only where the aggregate was added later and the key has not been seen since.
    return state[0].fill_null(0) if state[0].null_count else state[0]


def _sum_decimal(state: State) -> pa.Array:
    lost = state[1].fill_null(False).to_numpy(zero_copy_only=False)
    if not lost.any():
        return state[0]
    return build(decimal_words(state[0]), validity(state[0]) & ~lost, state[0].type)


def _mean_double(state: State) -> pa.Array:
    count = np.where(validity(state[1]), int64s(state[1]), 0)
    known = count > 0
    mean = np.divide(float64s(state[0]), count, out=np.zeros(len(count)), where=known)
    return build(mean, known, pa.float64())


def _mean_decimal(name: str, target: pa.DataType, ansi: bool, state: State) -> pa.Array:
    # Exact integer arithmetic: decimals have no vectorised division that rounds half up.
    total = _sum_decimal(state[:2])
    shift = 10 ** (target.scale - total.type.scale)
    limit = 10**target.precision
    counts = state[2].to_pylist()
    means: list[int | None] = []
    for unscaled, count in zip(_unscaled(total), counts, strict=True):
        if unscaled is None or not count:
            means.append(None)
            continue
        quotient = (2 * abs(unscaled) * shift + count) // (2 * count)
        mean = quotient if unscaled >= 0 else -quotient
        if quotient >= limit:
            if ansi:
                raise overflow(name, f"decimal({target.precision},{target.scale})")
            means.append(None)
        else:
            means.append(mean)
    return _scaled(means, target)


def _unscaled(array: pa.Array) -> list[int | None]:
    words = decimal_words(array)
    low, high = words[0::2], words[1::2].view(np.int64)
    valid = validity(array)
    return [
        (int(h) << 64) + int(w) if ok else None for w, h, ok in zip(low, high, valid, strict=True)
    ]


def _scaled(values: list[int | None], data_type: pa.DataType) -> pa.Array:
    words = np.zeros(2 * len(values), np.uint64)
    valid = np.zeros(len(values), np.bool_)
    for i, value in enumerate(values):
        if value is not None:
            words[2 * i] = value & (2**64 - 1)
            words[2 * i + 1] = (value >> 64) & (2**64 - 1)
            valid[i] = True
    return build(words, valid, data_type)
