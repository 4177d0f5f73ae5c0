"""Central moments: variance and standard deviation, skewness, kurtosis, covariance, correlation."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from millrace.arrays import Float64Array, Int64Array
from millrace.operators.aggregate.kept import Asked, Kept, Layout, State
from millrace.operators.arrays import build, float64s, int64s, validity


def _fields(name: str, *moments: str) -> list[pa.Field]:
    count = pa.field(f"{name}.count", pa.int64())
    return [count, *(pa.field(f"{name}.{moment}", pa.float64()) for moment in moments)]


def _spread_layout(asked: Asked) -> Kept:
    spread = partial(_spread, bool(asked.options["sample"]), asked.function == "stddev")
    return Kept(_fields(asked.name, "mean", "m2"), pa.float64(), spread)


def _skewness_layout(asked: Asked) -> Kept:
    return Kept(_fields(asked.name, "mean", "m2", "m3"), pa.float64(), _skewness)


def _kurtosis_layout(asked: Asked) -> Kept:
    return Kept(_fields(asked.name, "mean", "m2", "m3", "m4"), pa.float64(), _kurtosis)


def _covariance_layout(asked: Asked) -> Kept:
    covariance = partial(_covariance, bool(asked.options["sample"]))
    return Kept(_fields(asked.name, "x", "y", "co"), pa.float64(), covariance)


def _correlation_layout(asked: Asked) -> Kept:
    return Kept(_fields(asked.name, "x", "y", "co", "x2", "y2"), pa.float64(), _correlation)


LAYOUTS: dict[str, Layout] = {
    "variance": _spread_layout,
    "stddev": _spread_layout,
    "skewness": _skewness_layout,
    "kurtosis": _kurtosis_layout,
    "covar": _covariance_layout,
    "corr": _correlation_layout,
}


def _counts(state: State) -> Int64Array:
    return np.where(validity(state[0]), int64s(state[0]), 0)


def _spread(sample: bool, root: bool, state: State) -> pa.Array:
    """Variance or standard deviation."""
    count = _counts(state)
    degrees = count - (1 if sample else 0)
    known = (count > 0) & (degrees > 0)
    value = np.divide(float64s(state[2]), degrees, out=np.zeros(len(count)), where=known)
    if root:
        value = np.sqrt(value, out=value, where=known)
    return build(value, known, pa.float64())


def _skewness(state: State) -> pa.Array:
    count, m2, m3 = _counts(state), _known(state[2]), _known(state[3])
    known = (count > 0) & (m2 != 0)
    with np.errstate(all="ignore"):
        value = np.sqrt(count) * m3 / np.sqrt(m2 * m2 * m2)
    return build(np.where(known, value, 0), known, pa.float64())


def _kurtosis(state: State) -> pa.Array:
    count, m2, m4 = _counts(state), _known(state[2]), _known(state[4])
    known = (count > 0) & (m2 != 0)
    with np.errstate(all="ignore"):
        value = count * m4 / (m2 * m2) - 3.0
    return build(np.where(known, value, 0), known, pa.float64())


def _covariance(sample: bool, state: State) -> pa.Array:
    count = _counts(state)
    degrees = count - (1 if sample else 0)
    known = (count > 0) & (degrees > 0)
    value = np.divide(_known(state[3]), degrees, out=np.zeros(len(count)), where=known)
    return build(value, known, pa.float64())


def _correlation(state: State) -> pa.Array:
    count, co, x2, y2 = _counts(state), *map(_known, state[3:])
    # As in Spark: there is none of one pair, nor where a side has no variance.
    known = (count > 1) & (x2 != 0) & (y2 != 0)
    with np.errstate(all="ignore"):
        value = co / np.sqrt(x2) / np.sqrt(y2)
    return build(np.where(known, value, 0), known, pa.float64())


def _known(array: pa.Array) -> Float64Array:
    """Numbers, 0 where there is none."""
    return np.where(validity(array), float64s(array), 0.0)
