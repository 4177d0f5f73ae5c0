"""Every aggregate over random rows in several epochs and input partitions, with another parallelism
in between, against Spark's own functions over all rows in one batch."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from tests.spark import support
from tests.unit.operators.aggregate.folding import same

import millrace as mr
from millrace.errors import NotASketchError, UnsupportedTypeError

pytestmark = pytest.mark.usefixtures("generated_code")

SCHEMA = (
    "k int, i int, l bigint, d double, s string, b boolean, m decimal(10,2), t date, "
    "a array<int>, o double, mp map<string,int>"
)


def exact() -> dict[str, tuple[mr.Aggregate, Column]]:
    """Aggregates, each with what Spark has for it."""
    return {
        "avg": (mr.avg("i"), F.avg("i")),
        "every": (mr.bool_and("b"), F.bool_and("b")),
        "some": (mr.bool_or("b"), F.bool_or("b")),
        "ands": (mr.bit_and("l"), F.bit_and("l")),
        "ors": (mr.bit_or("i"), F.bit_or("i")),
        "xors": (mr.bit_xor("l"), F.bit_xor("l")),
        "skew": (mr.skewness("i"), F.skewness("i")),
        "kurt": (mr.kurtosis("m"), F.kurtosis("m")),
        "co": (mr.covar_pop("i", "m"), F.covar_pop("i", "m")),
        "co1": (mr.covar_samp("i", F.col("m") * 2), F.covar_samp("i", F.col("m") * 2)),
        "co_short": (mr.covar("m", "i"), F.covar_samp("m", "i")),
        "corr": (mr.corr("i", "o"), F.corr("i", "o")),
        "corr_nan": (mr.corr("d", "o"), F.corr("d", "o")),
        "latest": (mr.max_by("s", "o"), F.max_by("s", "o")),
        "oldest": (mr.min_by("a", "o"), F.min_by("a", "o")),
        "maps": (mr.max_by("mp", "o"), F.max_by("mp", "o")),
        **{
            f"distinct_{c}": (mr.count_distinct(c), F.count_distinct(c))
            for c in ("i", "d", "s", "m", "t", "a")
        },
        "about": (mr.approx_distinct("s"), F.hll_sketch_estimate(F.hll_sketch_agg("s", 12))),
        "about_i": (mr.approx_distinct("i"), F.hll_sketch_estimate(F.hll_sketch_agg("i", 12))),
        "about_d": (mr.approx_distinct("d"), F.count_distinct("d")),
        "p50": (
            mr.quantile("i", 0.5),
            F.kll_sketch_get_quantile_double(
                F.kll_sketch_agg_double(F.col("i").cast("double")), F.lit(0.5)
            ),
        ),
    }


EPOCH_FILES = {1: 3, 2: 1, 3: 2}
"""Into how many files, and so input partitions, the rows of each epoch go."""

OTHERS = {
    **{f"list_{c}": mr.collect_list(c) for c in ("d", "s", "a", "mp")},
    **{f"set_{c}": mr.collect_set(c) for c in ("d", "s", "t", "a")},
    **{f"mode_{c}": mr.mode(c) for c in ("d", "s", "m")},
    "users": mr.distinct_sketch("l"),
    "ps": mr.quantile("d", [0, 0.25, 1]),
    "top": mr.heavy_hitters("s", 50),
    "days": mr.heavy_hitters("t", 50),
}


def rows(rng: random.Random, count: int, first: int) -> list[tuple[Any, ...]]:
    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    doubles = [0.0, -0.0, float("nan"), float("inf"), 1.5, -2.25]
    return [
        (
            maybe(rng.randint(0, 6)),
            maybe(rng.randint(-30, 30)),
            maybe(rng.randint(-(2**63), 2**63 - 1)),
            maybe(rng.choice(doubles)),
            maybe(rng.choice("abcdeé") * rng.randint(0, 2)),
            maybe(rng.random() < 0.8),
            maybe(decimal.Decimal(rng.randint(-500, 500)).scaleb(-2)),
            maybe(dt.date(2024, 1, rng.randint(1, 9))),
            maybe([rng.randint(0, 2) for _ in range(rng.randint(0, 2))]),
            # No two rows are equal by this one: with ties, Spark's result depends on its plan.
            maybe(float((first + n) * 7919 % 1009)),
            maybe({"x": rng.randint(0, 3)}),
        )
        for n in range(count)
    ]


def test_every_aggregate_equals_a_spark_batch(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(11)
    folder = support.Folder(tmp_path / "in", SCHEMA)
    location = str(tmp_path / "location")
    pairs = exact()
    aggregates = {name: mine for name, (mine, _) in pairs.items()} | OTHERS
    keyed = mr.stream(folder.stream(spark)).key_by("k").aggregate(name="all", **aggregates)
    outputs: support.Outputs = {}
    writer = keyed.for_each_batch(support.record(outputs))
    seen = 0
    for parallelism, sizes in ((2, [90, 40]), (3, [60])):
        query = writer.start(location, parallelism=parallelism, key_groups=8)
        for size in sizes:
            folder.drop(rows(rng, size, seen), files=EPOCH_FILES[folder.drops + 1])
            seen += size
            query.process_all_available()
        query.stop()
    everything = folder.batch(spark).cache()
    reader = mr.open(location)
    state = reader.to_arrow("all")
    batch = everything.groupBy("k").agg(*(theirs.alias(n) for n, (_, theirs) in pairs.items()))
    support.assert_same(state.select(["k", *pairs]), batch.toArrow(), ["k"], "state")
    final = support.last_per_key(outputs.values(), ["k"])
    by_key = support.by_key(state, ["k"], "state")
    assert str(support.by_key(final, ["k"], "outputs")[(1,)]) == str(by_key[(1,)])
    check_others(everything, by_key)
    check_sketches(spark, everything, reader, state)


def check_others(everything: Any, by_key: dict[Any, dict[str, Any]]) -> None:
    """Results that Spark leaves open in part: the order of lists, which of several modes."""
    given: dict[Any, list[dict[str, Any]]] = {}
    for row in everything.orderBy("_seq").toArrow().to_pylist():
        given.setdefault((row["k"],), []).append(row)
    assert given.keys() == by_key.keys()
    for key, mine in by_key.items():
        for name, value in mine.items():
            kind, _, column = name.partition("_")
            known = [r[column] for r in given[key] if r.get(column) is not None] if column else []
            if kind == "list":
                check_order(value, [r for r in given[key] if r[column] is not None], column)
            elif kind == "set":
                assert len(value) == len(set(map(same, value)))
                assert set(map(same, value)) == set(map(same, known)), (key, name)
            elif kind == "mode":
                counts = Counter(map(same, known))
                assert counts[same(value)] == max(counts.values()), (key, name)
        numbers = sorted(r["d"] for r in given[key] if r["d"] is not None and r["d"] == r["d"])
        places = [0, max(-(-len(numbers) // 4) - 1, 0), -1]
        assert mine["ps"] == [numbers[p] for p in places]
        for name, column in (("top", "s"), ("days", "t")):
            counts = Counter(r[column] for r in given[key] if r[column] is not None)
            assert {t["item"]: t["count"] for t in mine[name]} == counts
            assert [t["count"] for t in mine[name]] == sorted(counts.values(), reverse=True)


def check_order(value: list[Any], given: list[dict[str, Any]], column: str) -> None:
    """Epochs follow each other, and so do rows of a file; the order of files is Spark's."""
    for epoch in EPOCH_FILES:
        rows = [str(row[column]) for row in given if row["_epoch"] == epoch]
        chunk, value = [str(v) for v in value[: len(rows)]], value[len(rows) :]
        assert sorted(chunk) == sorted(rows), (column, epoch)
        assert EPOCH_FILES[epoch] > 1 or chunk == rows, (column, epoch)
    assert not value


def check_sketches(spark: SparkSession, everything: Any, reader: mr.Reader, state: Any) -> None:
    """Sketches of state are Spark's: both read each other's, and SQL on state has functions."""
    sketch = F.theta_sketch_agg("l", 12).alias("theirs")
    theirs = everything.groupBy("k").agg(F.count_distinct("l").alias("n"), sketch)
    mine = spark.createDataFrame(state.select(["k", "users"]).to_pandas(), "k int, users binary")
    both = F.theta_sketch_estimate(F.theta_intersection("users", "theirs"))
    joined = theirs.join(mine, theirs.k.eqNullSafe(mine.k))
    for n, together in joined.select("n", both).collect():
        assert n == together
    found = reader.sql(
        "select theta_sketch_estimate(a.users) one, "
        "theta_sketch_estimate(theta_union(a.users, b.users)) either, "
        "theta_sketch_estimate(theta_intersection(a.users, b.users)) both_, "
        "theta_sketch_estimate(theta_difference(a.users, b.users)) only_a, "
        "theta_sketch_estimate(theta_union(a.users, NULL)) nothing, "
        '(select theta_sketch_estimate(theta_union_list(list(users))) from "all") total '
        'from "all" a, "all" b where a.k = 1 and b.k = 2'
    ).to_pylist()[0]
    counts = [set(), set()]
    for row in everything.toArrow().to_pylist():
        if row["k"] in (1, 2) and row["l"] is not None:
            counts[row["k"] - 1].add(row["l"])
    assert found["one"] == len(counts[0])
    assert found["either"] == len(counts[0] | counts[1])
    assert found["both_"] == len(counts[0] & counts[1])
    assert found["only_a"] == len(counts[0] - counts[1])
    assert found["nothing"] is None
    assert found["total"] == everything.select("l").dropna().distinct().count()
    with pytest.raises(NotASketchError, match="not a theta sketch"):
        reader.sql("select theta_sketch_estimate('hello'::blob)")


@pytest.mark.parametrize(
    ("aggregate", "named"),
    [
        (mr.max_by("i", "mp"), "map<string,int>"),
        (mr.min_by("i", "a"), "array<int>"),
        (mr.bit_and("d"), "double"),
        (mr.bool_or("i"), "int"),
        (mr.quantile("s", 0.5), "string"),
        (mr.corr("i", "s"), "string"),
        (mr.skewness("b"), "boolean"),
        (mr.collect_set("mp"), "map<string,int>"),
        (mr.mode("mp"), "map<string,int>"),
        (mr.approx_distinct("mp"), "map<string,int>"),
        (mr.heavy_hitters("d"), "double"),
    ],
)
def test_types_that_do_not_fit_are_refused_before_a_start(
    spark: SparkSession, tmp_path: Path, aggregate: mr.Aggregate, named: str
) -> None:
    stream = support.Folder(tmp_path / "in", SCHEMA).stream(spark)
    with pytest.raises(UnsupportedTypeError) as raised:
        mr.stream(stream).key_by("k").aggregate(x=aggregate)
    assert named in str(raised.value)
    assert aggregate.function in str(raised.value)
