"""Sketches merged by kernels, compared with unions by the library; and their errors."""

from __future__ import annotations

import datasketches as ds
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.unit.operators.aggregate.folding import Folding, fold

from millrace.errors import MalformedError
from millrace.operators.aggregate.reducers import resolve
from millrace.operators.aggregate.sketches import hll, kll, theta

SIZES = [[0], [1], [3, 4], [5, 9], [1] * 9, [0, 0], [100, 50], [300, 300], [9000], [9000, 10, 0]]
"""Values per sketch, from empty ones to those that have dropped most of their values."""

SPARK_WROTE = bytes.fromhex("0104033d011acc93032d0c35ee5befc8ae3efa70d1dfa7ab834e208fb6c9a844")
"""`theta_sketch_agg` of 0, 1 and 2: compressed, as only Spark writes."""


def numbers(size: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 100_000, size).tolist()


def hll_of(values: list[int], lg_k: int) -> ds.hll_sketch:
    sketch = ds.hll_sketch(lg_k, ds.HLL_8)
    for value in values:
        sketch.update(value)
    return sketch


def theta_of(values: list[int], lg_k: int) -> ds.compact_theta_sketch:
    sketch = ds.update_theta_sketch(lg_k)
    for value in values:
        sketch.update(value)
    return sketch.compact()


def whole(sketches: list[bytes | None]) -> tuple[pa.Array, np.ndarray]:
    """A column of one group."""
    return pa.array(sketches, pa.binary()), np.array([0, len(sketches)], np.int64)


@pytest.mark.parametrize("lg_k", [4, 7, 8, 12])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_hll_unions_have_the_registers_of_the_library(lg_k: int, sizes: list[int]) -> None:
    given = [hll_of(numbers(size, i), lg_k) for i, size in enumerate(sizes)]
    union = ds.hll_union(lg_k)
    for sketch in given:
        union.update(sketch)
    expected = union.get_result(ds.HLL_8).serialize_compact()
    # Spark writes them updatable, states are compact; both are read.
    forms = [
        s.serialize_compact() if i % 2 else s.serialize_updatable() for i, s in enumerate(given)
    ]
    merged = hll.merge(*whole([*forms, None]), lg_k)
    got = merged[0].as_py()
    mode = got[7] & 3
    assert mode == expected[7] & 3
    if mode == 2:
        assert got[32:36] + got[40:] == expected[32:36] + expected[40:]
    else:
        # The same coupons; a set has them in the order of its table, and here they are sorted.
        first = 8 if mode == 0 else 12
        coupons = [sorted(np.frombuffer(b[first:], np.uint32).tolist()) for b in (got, expected)]
        assert coupons[0] == coupons[1]
    read = ds.hll_sketch.deserialize(got)
    assert hll.estimates(merged)[0] == round(read.get_estimate())
    assert read.get_estimate() == pytest.approx(union.get_estimate(), rel=4 / 2 ** (lg_k / 2))


@pytest.mark.parametrize("lg_k", [5, 12])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_theta_unions_are_those_of_the_library(lg_k: int, sizes: list[int]) -> None:
    given = [theta_of(numbers(size, i), lg_k) for i, size in enumerate(sizes)]
    union = ds.theta_union(lg_k)
    for sketch in given:
        union.update(sketch)
    merged = theta.merge(*whole([*(s.serialize() for s in given), None]), lg_k)
    assert_same_theta(merged, union.get_result())


@pytest.mark.parametrize(
    "sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (60, 70), (9000, 20), (9000, 9000)]
)
def test_theta_intersections_and_differences_are_those_of_the_library(
    sizes: tuple[int, int],
) -> None:
    left, right = (theta_of(list(range(i * 7, i * 7 + s)), 6) for i, s in enumerate(sizes))
    columns = [pa.array([s.serialize()]) for s in (left, right)]
    both = ds.theta_intersection()
    both.update(left)
    both.update(right)
    assert_same_theta(theta.combined(*columns, theta.INTERSECTION), both.get_result())
    difference = ds.theta_a_not_b().compute(left, right)
    assert_same_theta(theta.combined(*columns, theta.DIFFERENCE), difference)
    union = ds.theta_union(16)
    union.update(left)
    union.update(right)
    assert_same_theta(theta.combined(*columns, theta.UNION), union.get_result())


def assert_same_theta(got: pa.Array, expected: ds.compact_theta_sketch) -> None:
    assert theta.first_bad(got) == -1
    read = ds.compact_theta_sketch.deserialize(got[0].as_py())
    assert list(read) == sorted(expected)
    assert (read.theta64, read.is_empty()) == (expected.theta64, expected.is_empty())
    assert theta.estimates(got)[0] == pytest.approx(expected.get_estimate())


def test_what_spark_compresses_is_read() -> None:
    compressed, starts = whole([SPARK_WROTE])
    assert theta.first_bad(compressed) == -1
    assert_same_theta(theta.merge(compressed, starts, 12), theta_of([0, 1, 2], 12))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"not a sketch at all",
        SPARK_WROTE[:-5],
        SPARK_WROTE[:8],
        theta_of([1, 2, 3], 5).serialize()[:-1],
        hll_of([1], 8).serialize_compact(),
    ],
)
def test_other_bytes_are_recognised(bad: bytes) -> None:
    good = theta_of([1], 5).serialize()
    assert theta.first_bad(pa.array([good, None, bad], pa.binary())) == 2


def test_approximate_counts_stay_within_their_error_over_many_epochs() -> None:
    folding = Folding("approx_distinct", T.LongType(), lg_k=12)
    sketched = Folding("distinct_sketch", T.LongType(), lg_k=12)
    shown = 0
    for epoch in range(20):
        rows = {"k": {p: list(range(500 * epoch + p, 500 * epoch + 1500, 3)) for p in range(3)}}
        shown = folding.epoch(rows)["k"]
        sketch = sketched.epoch(rows)["k"]
    expected = 500 * 19 + 1500
    assert shown == pytest.approx(expected, rel=4 * 1.04 / 64)
    assert theta.estimates(pa.array([sketch]))[0] == pytest.approx(expected, rel=4 / 64)


def test_the_order_of_sketches_does_not_matter() -> None:
    blobs = [hll_of(numbers(size, size), 10).serialize_compact() for size in (5, 300, 4000)]
    merged = [hll.merge(*whole(order), 10)[0] for order in (blobs, blobs[::-1])]
    assert merged[0] == merged[1]


def test_quantiles_of_many_values_stay_within_their_error() -> None:
    options = {"ranks": [0.01, 0.5, 0.99], "single": False, "accuracy": 200}
    folding = Folding("quantile", T.DoubleType(), **options)
    shown = []
    for epoch in range(30):
        rows = {p: [float(v) for v in range(epoch + p, 30_000, 60)] for p in (0, 30)}
        shown = folding.epoch({"k": rows})["k"]
    assert shown == pytest.approx([300, 15_000, 29_700], abs=0.04 * 30_000)
    assert fold("quantile", T.DoubleType(), [None], **options) is None


def test_heavy_hitters_overestimate_by_at_most_their_error() -> None:
    folding = Folding("heavy_hitters", T.StringType(), k=3, track=16)
    rows = 0
    for epoch in range(12):
        values = ["a"] * 30 + ["b"] * 20 + [f"rare {epoch} {i}" for i in range(40)]
        rows += len(values)
        shown = folding.epoch({"k": {0: values[::2], 1: values[1::2]}})["k"]
        assert [found["item"] for found in shown[:2]] == ["a", "b"]
        for found, per_epoch in zip(shown, (30, 20), strict=False):
            exact = per_epoch * (epoch + 1)
            assert exact <= found["count"] <= exact + 3.5 * rows / 16
        items, _, _ = folding.state["k"]
        assert len(items) <= 16


def test_rare_values_are_counted_exactly() -> None:
    values = [3, 3, 5, None, 3, 5, 7]
    shown = fold("heavy_hitters", T.IntegerType(), values[:3], values[3:], k=2, track=100)
    assert shown == [{"item": 3, "count": 3}, {"item": 5, "count": 2}]
    assert fold("heavy_hitters", T.IntegerType(), [None], k=2, track=100) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"not a sketch at all",
        hll_of(numbers(9000, 1), 12).serialize_compact()[:-1],
        hll_of([1], 11).serialize_compact(),
        hll_of([1], 12).serialize_compact()[:7],
    ],
)
def test_bytes_that_are_no_hll_sketch_are_not_merged(bad: bytes) -> None:
    good = hll_of([1], 12).serialize_compact()
    with pytest.raises(MalformedError, match="a HyperLogLog sketch"):
        hll.merge(*whole([good, None, bad]), 12)


def test_bytes_that_are_no_sketch_are_not_read() -> None:
    with pytest.raises(MalformedError, match="a theta sketch"):
        theta.merge(*whole([b"something else"]), 12)
    with pytest.raises(MalformedError, match="a sketch"):
        kll.merge(*whole([b"something else", b"and another"]), 200)
    with pytest.raises(MalformedError, match="a sketch"):
        kll.quantiles(pa.array([b"something else"]), [0.5])


def test_lists_that_belong_together_have_the_same_lengths() -> None:
    reducer = resolve("mode", "x", T.LongType(), {})
    lists = zip(([[1, 2]], [[1]]), reducer.fields, strict=True)
    with pytest.raises(MalformedError, match="different lengths"):
        reducer.result([pa.array(given, field.type) for given, field in lists])
