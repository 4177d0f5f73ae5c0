"""Each aggregate over each kind of value, against plain Python."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from tests.unit.operators.aggregate.folding import Folding, fold, precise_sum, spark_order, wrapped

from millrace.errors import AggregateOverflowError, UnsupportedTypeError
from millrace.operators.aggregate.reducers import resolve

NAN, INF = math.nan, math.inf
LONG, INT, DOUBLE, STRING, BINARY = (
    T.LongType(),
    T.IntegerType(),
    T.DoubleType(),
    T.StringType(),
    T.BinaryType(),
)
BIG = 2**63 - 1


def same(a: Any, b: Any) -> bool:
    """Equal as Spark compares: NaN equals NaN, -0.0 equals 0.0."""
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    ("function", "data_type", "epochs", "expected"),
    [
        ("count", STRING, [["a", None], [None], ["b"]], 2),
        ("count", STRING, [[None]], 0),
        ("sum", LONG, [[1, None, 2], [3]], 6),
        ("sum", LONG, [[None], [None]], None),
        ("sum", LONG, [[None], [0]], 0),
        ("sum", LONG, [[-(2**63)], [BIG]], -1),
        ("sum", T.ByteType(), [[-128, -128], [127]], -129),
        ("sum", T.ShortType(), [[2**15 - 1] * 3], 3 * (2**15 - 1)),
        ("sum", DOUBLE, [[0.5, None], [0.25]], 0.75),
        ("sum", DOUBLE, [[INF], [1.0]], INF),
        ("sum", DOUBLE, [[INF], [-INF]], NAN),
        ("sum", DOUBLE, [[1.0], [NAN], [1.0]], NAN),
        ("sum", DOUBLE, [[None]], None),
        ("sum", T.FloatType(), [[0.5], [0.25]], 0.75),
        ("min", LONG, [[3, 1], [2], [None]], 1),
        ("max", LONG, [[None], [-5], [-7]], -5),
        ("max", LONG, [[-(2**63)], [BIG]], BIG),
        ("min", LONG, [[None], [None]], None),
        ("min", T.ByteType(), [[5], [-128]], -128),
        ("max", DOUBLE, [[1.0, NAN], [INF]], NAN),
        ("max", DOUBLE, [[INF], [NAN], [2.0]], NAN),
        ("min", DOUBLE, [[NAN], [INF]], INF),
        ("min", DOUBLE, [[NAN], [NAN]], NAN),
        ("min", DOUBLE, [[INF], [-INF], [0.0]], -INF),
        ("min", DOUBLE, [[-1.0], [-2.0]], -2.0),
        ("max", DOUBLE, [[-1.0], [-2.0], [-0.5]], -0.5),
        ("min", DOUBLE, [[5e-324], [-5e-324]], -5e-324),
        ("max", T.FloatType(), [[1.5], [-3.0]], 1.5),
        ("min", STRING, [["b"], ["a", ""]], ""),
        ("min", STRING, [["", None], [""]], ""),
        ("max", STRING, [["a"], ["ab"], ["aa"]], "ab"),
        ("max", STRING, [["z"], ["é"], ["🐢"], ["\uffff"]], "🐢"),
        ("min", STRING, [["\U0001f422", "\uffee"]], "\uffee"),
        ("max", STRING, [[""], [None]], ""),
        ("min", BINARY, [[b"\xff"], [b"\x00\x01"], [b"\x00"]], b"\x00"),
        ("max", BINARY, [[b"\x7f"], [b"\x80"], [b""]], b"\x80"),
        ("max", T.BooleanType(), [[False], [True], [False]], True),
        ("min", T.BooleanType(), [[True], [None]], True),
        ("min", T.DateType(), [[dt.date(2024, 1, 1)], [dt.date(1960, 1, 1)]], dt.date(1960, 1, 1)),
        (
            "max",
            T.TimestampNTZType(),
            [[dt.datetime(1969, 1, 1)], [dt.datetime(1970, 1, 1, 0, 0, 0, 1)]],
            dt.datetime(1970, 1, 1, 0, 0, 0, 1),
        ),
        (
            "max",
            T.DayTimeIntervalType(),
            [[dt.timedelta(hours=-1)], [dt.timedelta(microseconds=-1)]],
            dt.timedelta(microseconds=-1),
        ),
        ("mean", LONG, [[1, 2], [None, 4]], 7 / 3),
        ("mean", LONG, [[None]], None),
        ("mean", DOUBLE, [[1.0], [NAN]], NAN),
        ("variance", LONG, [[5]], None),
        ("variance", LONG, [[None], [None]], None),
        ("variance", LONG, [[5], [None], [7]], 2.0),
    ],
)
def test_examples(
    function: str, data_type: T.DataType, epochs: list[list[Any]], expected: Any
) -> None:
    options = {"sample": True} if function == "variance" else {}
    got = fold(function, data_type, *epochs, **options)
    assert same(got, expected), (got, expected)


def test_zero_has_one_value_for_min_and_max() -> None:
    assert fold("max", DOUBLE, [-0.0], [0.0]) == 0.0
    assert fold("min", DOUBLE, [0.0], [-0.0]) == 0.0


LONGS = st.lists(st.none() | st.integers(-(2**63), BIG), max_size=4)


@given(st.lists(LONGS, min_size=1, max_size=5))
def test_long_sums_wrap_or_fail(epochs: list[list[int | None]]) -> None:
    known = [v for values in epochs for v in values if v is not None]
    expected = wrapped(sum(known)) if known else None
    assert fold("sum", LONG, *epochs, ansi=False) == expected
    running, overflowed = None, False
    for values in epochs:
        part = [v for v in values if v is not None]
        if part:
            # Within an epoch Spark has summed up, with an error of its own in ANSI mode.
            total = (running or 0) + wrapped(sum(part))
            overflowed |= total != wrapped(total)
            running = wrapped(total)
    if overflowed:
        with pytest.raises(
            AggregateOverflowError, match=r"'x' left the range of bigint.*wider type"
        ):
            fold("sum", LONG, *epochs)
    else:
        assert fold("sum", LONG, *epochs) == running


FUNCTIONS = {"min": min, "max": max}


@pytest.mark.parametrize("function", ["min", "max"])
@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (LONG, st.integers(-(2**63), BIG)),
        (DOUBLE, st.floats()),
        (T.FloatType(), st.floats(width=32)),
        (STRING, st.text()),
        (BINARY, st.binary()),
        (
            T.DecimalType(38, 3),
            st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: _thousandths(n)),
        ),
        (T.DecimalType(4, 0), st.integers(-9999, 9999).map(Decimal)),
        (T.DateType(), st.dates()),
        (T.BooleanType(), st.booleans()),
    ],
    ids=str,
)
@given(data=st.data())
def test_extremes(
    function: str, data_type: T.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    rows = st.lists(st.none() | values, max_size=4)
    epochs = data.draw(st.lists(rows, min_size=1, max_size=4))
    known = [v for epoch in epochs for v in epoch if v is not None]
    expected = FUNCTIONS[function](known, key=spark_order) if known else None
    assert same(fold(function, data_type, *epochs), expected)


def _thousandths(number: int) -> Decimal:
    sign, digits = int(number < 0), tuple(map(int, str(abs(number))))
    return Decimal((sign, digits, -3))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    edges = st.sampled_from([limit, -limit, limit // 2, 1, -1, 0])
    return (edges | st.integers(-limit, limit)).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))
    )


@pytest.mark.parametrize(
    ("precision", "scale"), [(5, 2), (10, 0), (28, 10), (38, 0), (38, 18), (38, 38)]
)
@given(data=st.data())
def test_decimal_sums(precision: int, scale: int, data: st.DataObject) -> None:
    """Exact; a sum that leaves its type on the way is an error, or NULL for good."""
    data_type = T.DecimalType(precision, scale)
    rows = st.lists(st.none() | decimals(precision, scale), max_size=4)
    epochs = data.draw(st.lists(rows, min_size=1, max_size=5))
    limit = 10 ** min(precision + 10, 38)
    total, lost = None, False
    for values in epochs:
        known = [v for v in values if v is not None]
        if known:
            part = _unscaled(precise_sum(known), scale)
            lost |= abs(part) >= limit
            total = (total or 0) + part
            lost |= abs(total) >= limit
    if lost:
        assert fold("sum", data_type, *epochs, ansi=False) is None
        with pytest.raises(
            AggregateOverflowError, match=rf"range of decimal\({min(precision + 10, 38)}"
        ):
            fold("sum", data_type, *epochs)
    else:
        expected = None if total is None else total
        for ansi in (True, False):
            got = fold("sum", data_type, *epochs, ansi=ansi)
            assert (None if got is None else _unscaled(got, scale)) == expected


def _unscaled(value: Decimal, scale: int) -> int:
    number = Fraction(value) * 10**scale
    assert number.denominator == 1
    return number.numerator


def test_a_lost_decimal_sum_stays_lost() -> None:
    """Non-ANSI: later values that would bring the sum back do not bring it back."""
    data_type = T.DecimalType(38, 0)
    most, least = Decimal(10**38 - 1), Decimal(1 - 10**38)
    folding = Folding("sum", data_type, ansi=False)
    shown = [
        folding.epoch({"lost": {0: values}, "fine": {0: [Decimal(1)]}})
        for values in ([most], [most], [least], [None], [least])
    ]
    assert [s["lost"] for s in shown] == [most, None, None, None, None]
    assert [s["fine"] for s in shown] == [Decimal(n) for n in range(1, 6)]


def test_a_sum_that_was_lost_inside_spark_is_lost_here() -> None:
    most = Decimal(10**38 - 1)
    assert fold("sum", T.DecimalType(38, 0), [most, most], [Decimal(-1)], ansi=False) is None
    assert fold("mean", T.DecimalType(38, 0), [most, most], [Decimal(-1)], ansi=False) is None
    with pytest.raises(AggregateOverflowError):
        fold("sum", T.DecimalType(38, 0), [most, most])


@pytest.mark.parametrize(("precision", "scale"), [(3, 0), (10, 2), (20, 10), (30, 0)])
@given(data=st.data())
def test_decimal_means_round_half_up(precision: int, scale: int, data: st.DataObject) -> None:
    rows = st.lists(st.none() | decimals(precision, scale), max_size=5)
    epochs = data.draw(st.lists(rows, min_size=1, max_size=4))
    known = [v for epoch in epochs for v in epoch if v is not None]
    got = fold("mean", T.DecimalType(precision, scale), *epochs)
    if not known:
        assert got is None
        return
    exact = Fraction(precise_sum(known)) / len(known) * 10 ** (scale + 4)
    rounded = math.floor(abs(exact) + Fraction(1, 2)) * (-1 if exact < 0 else 1)
    assert _unscaled(got, scale + 4) == rounded


def test_decimal_mean_examples() -> None:
    money = T.DecimalType(10, 2)
    assert fold("mean", money, [Decimal("0.01")], [Decimal("0.02")]) == Decimal("0.015")
    third = [Decimal("1.00"), Decimal("0.00"), Decimal("0.00")]
    assert str(fold("mean", money, third)) == "0.333333"
    assert str(fold("mean", money, [-v for v in third])) == "-0.333333"
    half = T.DecimalType(1, 0)
    # 1/32 = 0.03125: the digit after the last is a 5.
    assert str(fold("mean", half, [Decimal(1)] + [Decimal(0)] * 31)) == "0.0313"
    assert str(fold("mean", half, [Decimal(-1)] + [Decimal(0)] * 31)) == "-0.0313"


def test_a_decimal_mean_that_does_not_fit() -> None:
    """decimal(38, 0) leaves no room for four more digits."""
    large = Decimal(10**37)
    with pytest.raises(AggregateOverflowError, match=r"range of decimal\(38,4\)"):
        fold("mean", T.DecimalType(38, 0), [large])
    assert fold("mean", T.DecimalType(38, 0), [large], ansi=False) is None


@pytest.mark.parametrize("precision", range(1, 29))
def test_the_largest_decimal_sum_that_fits(precision: int) -> None:
    data_type = T.DecimalType(precision, 0)
    limit = 10 ** (precision + 10)
    for most in (Decimal(limit - 1), Decimal(1 - limit)):
        assert fold("sum", data_type, [most]) == most
        assert fold("sum", data_type, [Decimal(0)], [most]) == most
        one_more = Decimal(1).copy_sign(most)
        with pytest.raises(AggregateOverflowError):
            fold("sum", data_type, [most], [one_more])
        assert fold("sum", data_type, [most], [one_more], ansi=False) is None


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_decimal_mean_that_fits(sign: int) -> None:
    with pytest.raises(AggregateOverflowError, match=r"range of decimal\(38,4\)"):
        fold("mean", T.DecimalType(38, 0), [Decimal(sign * 10**34)])
    fits = Decimal(sign * (10**34 - 1))
    assert fold("mean", T.DecimalType(38, 0), [fits]) == fits


@pytest.mark.parametrize("function", ["variance", "stddev"])
@pytest.mark.parametrize("sample", [True, False])
@given(
    epochs=st.lists(
        st.lists(st.none() | st.integers(-1000, 1000), max_size=5), min_size=1, max_size=5
    )
)
def test_moments(function: str, sample: bool, epochs: list[list[int | None]]) -> None:
    known = [v for epoch in epochs for v in epoch if v is not None]
    got = fold(
        function,
        DOUBLE,
        *[[None if v is None else float(v) for v in e] for e in epochs],
        sample=sample,
    )
    if len(known) < (2 if sample else 1):
        assert got is None
        return
    exact = statistics.variance(known) if sample else statistics.pvariance(known)
    expected = math.sqrt(exact) if function == "stddev" else float(exact)
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_variance_of_close_values_far_from_zero() -> None:
    """Where the textbook formula, sum of squares minus square of the sum, has no digit left."""
    values = [1e9 + v for v in (4.0, 7.0, 13.0, 16.0)]
    assert fold("variance", DOUBLE, *[[v] for v in values], sample=True) == pytest.approx(30.0)


@given(
    epochs=st.lists(
        st.dictionaries(
            st.integers(0, 3),
            st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=3),
            min_size=1,
        ),
        min_size=1,
        max_size=4,
    ),
    last=st.booleans(),
    ignore_nulls=st.booleans(),
)
def test_first_and_last(
    epochs: list[dict[int, list[int | None]]], last: bool, ignore_nulls: bool
) -> None:
    """Earlier epochs first, then lower input partitions, whatever order they arrive in."""
    folding = Folding("last" if last else "first", INT, ignore_nulls=ignore_nulls)
    values: list[int | None] = []
    for epoch in epochs:
        shown = folding.epoch({"k": epoch})["k"]
        values += [v for part in sorted(epoch) for v in epoch[part]]
        candidates = [v for v in values if v is not None] if ignore_nulls else values
        expected = candidates[-1 if last else 0] if candidates else None
        assert shown == expected
        assert folding.results()["k"] == expected


@pytest.mark.parametrize(
    "data_type",
    [
        STRING,
        BINARY,
        T.ArrayType(T.LongType()),
        T.StructType([T.StructField("a", T.StringType()), T.StructField("b", T.ArrayType(INT))]),
        T.MapType(T.StringType(), T.LongType()),
    ],
    ids=lambda t: t.simpleString(),
)
def test_first_and_last_of_any_type(data_type: T.DataType) -> None:
    values = {
        "string": ["a", "", None],
        "binary": [b"a", b"", None],
        "array<bigint>": [[1, None], [], None],
        "map<string,bigint>": [[("a", 1)], [], None],
    }.get(data_type.simpleString(), [{"a": "x", "b": [1]}, {"a": None, "b": None}, None])
    for start in range(3):
        rotated = values[start:] + values[:start]
        epochs = [[v] for v in rotated]
        known = [v for v in rotated if v is not None]
        assert fold("first", data_type, *epochs, ignore_nulls=False) == rotated[0]
        assert fold("last", data_type, *epochs, ignore_nulls=False) == rotated[-1]
        assert fold("first", data_type, *epochs, ignore_nulls=True) == known[0]
        assert fold("last", data_type, *epochs, ignore_nulls=True) == known[-1]


@given(st.data())
@settings(max_examples=40)
def test_many_keys_at_once(data: st.DataObject) -> None:
    """Keys do not leak into their neighbours."""
    rows = st.lists(st.none() | st.integers(-99, 99), max_size=3)
    parts = st.dictionaries(st.integers(0, 2), rows, min_size=1, max_size=3)
    epochs = data.draw(st.lists(st.dictionaries(st.integers(0, 9), parts, min_size=1), max_size=4))
    foldings = {f: Folding(f, LONG) for f in ("count", "sum", "min", "max", "mean")}
    seen: dict[int, list[int]] = {}
    for epoch in epochs:
        for key, by_part in epoch.items():
            seen.setdefault(key, []).extend(
                v for vs in by_part.values() for v in vs if v is not None
            )
        for folding in foldings.values():
            folding.epoch(epoch)
    assert foldings["count"].results() == {k: len(v) for k, v in seen.items()}
    for function, choose in (("sum", sum), ("min", min), ("max", max), ("mean", statistics.fmean)):
        expected = {k: choose(v) if v else None for k, v in seen.items()}  # type: ignore[operator]
        assert foldings[function].results() == expected


@pytest.mark.parametrize(
    ("function", "data_type", "message"),
    [
        ("sum", STRING, r"sum\(\) for 'x' is over a column of type string; it takes numbers"),
        ("mean", T.DateType(), r"mean\(\) .* type date; it takes numbers"),
        ("variance", T.BooleanType(), "takes numbers"),
        ("stddev", T.ArrayType(T.LongType()), "takes numbers"),
        ("min", T.MapType(STRING, STRING), "it takes numbers, strings, binaries, dates and times"),
        ("max", T.ArrayType(T.LongType()), "it takes numbers, strings"),
        ("max", T.StructType([T.StructField("a", LONG)]), "it takes numbers, strings"),
        ("min", T.StringType("UNICODE_CI"), "it takes"),
        ("median", LONG, "no aggregate function 'median'"),
    ],
)
def test_what_cannot_be_aggregated(function: str, data_type: T.DataType, message: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=message):
        resolve(function, "x", data_type, {})
