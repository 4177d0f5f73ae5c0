"""Random values of every type a key or an aggregate's input may have.

Domains are small, so that keys repeat, and hold what is easily got wrong: NULL at every level, -0.0
beside 0.0, NaN, empty strings, the ends of the ranges.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

Draw = Callable[[random.Random], Any]

_EPOCH = dt.datetime(1970, 1, 1)


def _naive(rng: random.Random) -> dt.datetime:
    return _EPOCH + dt.timedelta(
        microseconds=rng.choice([0, -1, 1, 1_700_000_000_123_456, 86_400_000_000])
    )


def _floats(rng: random.Random) -> float:
    return rng.choice([0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, 1e30])


def _calm(rng: random.Random) -> float:
    return rng.choice([0.0, -0.0, 1.5, -2.25, 7.125, 1e6, round(rng.uniform(-100, 100), 3)])


def _text(rng: random.Random) -> str:
    return rng.choice(["", "a", "b", "A", "ä", "zz", "a\x00b", "日本", "x" * 40])


_ELEMENT = T.StructType([T.StructField("d", T.DoubleType()), T.StructField("s", T.StringType())])

KEY_TYPES: dict[str, tuple[T.DataType, Draw]] = {
    "boolean": (T.BooleanType(), lambda r: r.random() < 0.5),
    "byte": (T.ByteType(), lambda r: r.choice([-128, -1, 0, 127])),
    "short": (T.ShortType(), lambda r: r.choice([-32768, 0, 1, 32767])),
    "int": (T.IntegerType(), lambda r: r.choice([-(2**31), 0, 7, 2**31 - 1])),
    "long": (T.LongType(), lambda r: r.choice([-(2**63), -1, 0, 2**63 - 1])),
    "float": (T.FloatType(), lambda r: r.choice([0.0, -0.0, math.nan, 1.5, math.inf])),
    "double": (T.DoubleType(), _floats),
    "decimal": (T.DecimalType(9, 2), lambda r: Decimal(r.choice([0, 1, -99999, 123])).scaleb(-2)),
    "wide_decimal": (
        T.DecimalType(38, 6),
        lambda r: Decimal(r.choice([0, -(10**37), 10**37 + 1, 5])).scaleb(-6),
    ),
    "string": (T.StringType(), _text),
    "binary": (T.BinaryType(), lambda r: r.choice([b"", b"\x00", b"\xff\xfe", b"abc"])),
    "date": (
        T.DateType(),
        lambda r: dt.date(1970, 1, 1) + dt.timedelta(days=r.choice([-1, 0, 20000])),
    ),
    "timestamp": (T.TimestampType(), lambda r: _naive(r).replace(tzinfo=dt.UTC)),
    "timestamp_ntz": (T.TimestampNTZType(), _naive),
    "interval": (
        T.DayTimeIntervalType(),
        lambda r: dt.timedelta(microseconds=r.choice([0, -1, 1, 10**12])),
    ),
    "struct": (
        T.StructType([T.StructField("a", T.StringType()), T.StructField("b", T.IntegerType())]),
        lambda r: {"a": maybe(r, _text), "b": maybe(r, lambda s: s.choice([0, 1]))},
    ),
    "array": (
        T.ArrayType(T.StringType()),
        lambda r: [maybe(r, _text) for _ in range(r.choice([0, 1, 2]))],
    ),
    "nested": (
        T.StructType(
            [T.StructField("xs", T.ArrayType(_ELEMENT)), T.StructField("n", T.IntegerType())]
        ),
        lambda r: {
            "xs": maybe(
                r,
                lambda s: [
                    maybe(s, lambda t: {"d": maybe(t, _floats), "s": maybe(t, _text)})
                    for _ in range(s.choice([0, 1, 2]))
                ],
            ),
            "n": maybe(r, lambda s: 1),
        },
    ),
}

NUMBERS: dict[str, tuple[T.DataType, Draw]] = {
    "byte": (T.ByteType(), lambda r: r.randint(-128, 127)),
    "short": (T.ShortType(), lambda r: r.randint(-32768, 32767)),
    "int": (T.IntegerType(), lambda r: r.randint(-(2**31), 2**31 - 1)),
    "long": (T.LongType(), lambda r: r.randint(-(2**52), 2**52)),
    "float": (T.FloatType(), _calm),
    "double": (T.DoubleType(), lambda r: _calm(r) if r.random() < 0.97 else _floats(r)),
    "decimal": (
        T.DecimalType(9, 2),
        lambda r: Decimal(r.randint(-999999999, 999999999)).scaleb(-2),
    ),
    "wide_decimal": (
        T.DecimalType(36, 6),
        lambda r: Decimal(r.randint(-(10**33), 10**33)).scaleb(-6),
    ),
}

ORDERED: dict[str, tuple[T.DataType, Draw]] = {
    **NUMBERS,
    **{
        name: KEY_TYPES[name]
        for name in (
            "boolean",
            "string",
            "binary",
            "date",
            "timestamp",
            "timestamp_ntz",
            "interval",
        )
    },
}

ANY: dict[str, tuple[T.DataType, Draw]] = {
    **ORDERED,
    "struct": KEY_TYPES["struct"],
    "array": KEY_TYPES["array"],
    "nested": KEY_TYPES["nested"],
    "map": (
        T.MapType(T.StringType(), T.IntegerType()),
        lambda r: [
            (k, maybe(r, lambda s: s.randint(0, 9))) for k in ("a", "b")[: r.choice([0, 1, 2])]
        ],
    ),
}


def maybe(rng: random.Random, draw: Draw) -> Any:
    """A value, or NULL one time in six."""
    return None if rng.random() < 1 / 6 else draw(rng)
