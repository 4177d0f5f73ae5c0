"""Central moments of several sets of rows, put together without their rows (Pebay, 2008)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.arrays import Float64Array, Int64Array
from millrace.jit import kernel
from millrace.operators.aggregate.kept import State
from millrace.operators.arrays import build, float64s, int64s, validity


def _moments(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    columns = _numbers(states[1:])
    # Kernels take all four; skewness keeps three.
    m4 = columns[3] if len(columns) > 3 else np.zeros(len(columns[0]))
    merged = _merged(_counts(states[0]), (columns[0], columns[1], columns[2], m4), starts)
    return _arrays(merged[: len(states)])


def _pairs(states: State, starts: Int64Array, options: Mapping[str, Any]) -> list[pa.Array]:
    columns = _numbers(states[1:])
    none = np.zeros(len(columns[0]))
    x2, y2 = columns[3:] if len(columns) > 3 else (none, none)
    means = columns[0], columns[1]
    merged = _merged_pairs(_counts(states[0]), means, (columns[2], x2, y2), starts)
    return _arrays(merged[: len(states)])


COMBINERS = {"skewness": _moments, "kurtosis": _moments, "covar": _pairs, "corr": _pairs}


def _counts(array: pa.Array) -> Int64Array:
    return np.where(validity(array), int64s(array), 0)


def _numbers(columns: Sequence[pa.Array]) -> list[Float64Array]:
    return [np.where(validity(column), float64s(column), 0.0) for column in columns]


def _arrays(columns: Sequence[npt.NDArray[Any]]) -> list[pa.Array]:
    every = np.ones(len(columns[0]), np.bool_)
    kinds = [pa.int64(), *[pa.float64()] * (len(columns) - 1)]
    return [build(c, every, t) for c, t in zip(columns, kinds, strict=True)]


Four = tuple[Float64Array, Float64Array, Float64Array, Float64Array]


@kernel
def _merged(
    counts: Int64Array, columns: Four, starts: Int64Array
) -> tuple[Int64Array, Float64Array, Float64Array, Float64Array, Float64Array]:
    means, m2s, m3s, m4s = columns
    groups = len(starts) - 1
    out = np.zeros((4, groups), np.float64)
    total = np.zeros(groups, np.int64)
    for g in range(groups):
        count = np.int64(0)
        mean = m2 = m3 = m4 = 0.0
        for i in range(starts[g], starts[g + 1]):
            if counts[i] == 0:
                continue
            if count == 0:
                count, mean, m2, m3, m4 = counts[i], means[i], m2s[i], m3s[i], m4s[i]
                continue
            a, b = np.float64(count), np.float64(counts[i])
            n = a + b
            delta = means[i] - mean
            step = delta / n
            m4 += (
                m4s[i]
                + delta * step * step * step * a * b * (a * a - a * b + b * b)
                + 6.0 * step * step * (a * a * m2s[i] + b * b * m2)
                + 4.0 * step * (a * m3s[i] - b * m3)
            )
            m3 += (
                m3s[i] + delta * step * step * a * b * (a - b) + 3.0 * step * (a * m2s[i] - b * m2)
            )
            m2 += m2s[i] + delta * step * a * b
            mean += step * b
            count += counts[i]
        total[g] = count
        out[0, g], out[1, g], out[2, g], out[3, g] = mean, m2, m3, m4
    return total, out[0], out[1], out[2], out[3]


@kernel
def _merged_pairs(
    counts: Int64Array,
    means: tuple[Float64Array, Float64Array],
    products: tuple[Float64Array, Float64Array, Float64Array],
    starts: Int64Array,
) -> tuple[Int64Array, Float64Array, Float64Array, Float64Array, Float64Array, Float64Array]:
    xs, ys = means
    cos, x2s, y2s = products
    groups = len(starts) - 1
    out = np.zeros((5, groups), np.float64)
    total = np.zeros(groups, np.int64)
    for g in range(groups):
        count = np.int64(0)
        x = y = co = x2 = y2 = 0.0
        for i in range(starts[g], starts[g + 1]):
            if counts[i] == 0:
                continue
            if count == 0:
                count, x, y, co, x2, y2 = counts[i], xs[i], ys[i], cos[i], x2s[i], y2s[i]
                continue
            a, b = np.float64(count), np.float64(counts[i])
            n = a + b
            dx, dy = xs[i] - x, ys[i] - y
            co += cos[i] + dx * dy / n * a * b
            x2 += x2s[i] + dx * dx / n * a * b
            y2 += y2s[i] + dy * dy / n * a * b
            x += dx / n * b
            y += dy / n * b
            count += counts[i]
        total[g] = count
        out[0, g], out[1, g], out[2, g], out[3, g], out[4, g] = x, y, co, x2, y2
    return total, out[0], out[1], out[2], out[3], out[4]
