"""Two keys have the same fingerprint exactly when Spark's groupBy puts them in one group."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from tests.collisions import colliding_strings
from tests.spark import values
from tests.stress import few

from millrace.keygroups import groups_of
from millrace.keygroups.scheme import CHAINED, UNSALTED, Scheme
from millrace.spark.fingerprint import key_group, quoted, with_fingerprint

pytestmark = pytest.mark.usefixtures("generated_code")

STRINGS: list[Any] = [None, "", "a", "A", "b", "aa", "\x00", "ß", "ss"]
DOUBLES: list[Any] = [None, 0.0, -0.0, math.nan, -math.nan, 1.0, -1.0, math.inf, 5e-324, -5e-324]
PAIRS = [(a, b) for a in [None, "", "a"] for b in [None, "", "a"]]
LISTS: list[Any] = [
    None,
    [],
    [None],
    [None, None],
    [None, "a"],
    ["a", None],
    ["a"],
    [""],
    ["", "a"],
    ["a", "a"],
]

# Schema, and keys that must be told apart, or not, as Spark does.
HAND_MADE: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "two strings": ("a string, b string", PAIRS),
    "three strings": (
        "a string, b string, c string",
        [(a, b, c) for a, b in PAIRS for c in [None, "", "a"]],
    ),
    "doubles": ("a double", [(d,) for d in DOUBLES]),
    "two doubles": ("a double, b double", [(a, b) for a in DOUBLES for b in DOUBLES]),
    "floats": ("a float", [(d,) for d in [None, 0.0, -0.0, math.nan, -math.nan, 1.5, math.inf]]),
    "arrays": ("a array<string>", [(x,) for x in LISTS]),
    "two arrays": ("a array<string>, b array<string>", [(x, y) for x in LISTS for y in LISTS]),
    "arrays of doubles": (
        "a array<double>",
        [(x,) for x in [None, [], [0.0], [-0.0], [math.nan], [-math.nan], [None], [0.0, None]]],
    ),
    "arrays of arrays": (
        "a array<array<string>>",
        [
            (x,)
            for x in [
                None,
                [],
                [None],
                [[]],
                [[], None],
                [None, []],
                [["a"]],
                [["a"], []],
                [["a", None]],
            ]
        ],
    ),
    "struct": ("a struct<x: string, y: string>", [(None,), *(((x, y),) for x, y in PAIRS)]),
    "struct beside string": (
        "a struct<x: string>, b string",
        [(a, b) for a in [None, (None,), ("",), ("a",)] for b in [None, "", "a"]],
    ),
    "array of structs": (
        "a array<struct<x: string, y: int>>",
        [
            (x,)
            for x in [
                None,
                [None],
                [(None, None)],
                [(None, 1)],
                [("a", None)],
                [("a", 1)],
                [("a", 1), None],
                [None, ("a", 1)],
            ]
        ],
    ),
    "collated strings": ("a string collate UTF8_LCASE", [(s,) for s in STRINGS]),
    "ICU collation": ("a string collate UNICODE_CI_AI", [(s,) for s in [*STRINGS, "á", "Á", "ä"]]),
    "trimming collation": (
        "a string collate UTF8_BINARY_RTRIM",
        [(s,) for s in ["a", "a ", " a", "", " ", None]],
    ),
    "collated strings in an array": (
        "a array<string collate UTF8_LCASE>",
        [(x,) for x in [None, [], ["a"], ["A"], ["a", None], ["A", None], [None, "a"]]],
    ),
    "collated string in a struct": (
        "a struct<x: string collate UTF8_LCASE, y: int>",
        [(None,), (("a", 1),), (("A", 1),), (("A", 2),), ((None, 1),), (("a", None),)],
    ),
}


SCHEMES = [CHAINED, UNSALTED, Scheme(2, 2**64 - 3)]


def fingerprinted(df: DataFrame, scheme: Scheme) -> DataFrame:
    """A frame with the fingerprints of all its columns."""
    typed = [(quoted(f.name), f.dataType) for f in df.schema.fields]
    return with_fingerprint(df, typed, {name: quoted(name) for name in df.columns}, scheme)


def groups(
    spark: SparkSession, schema: T.StructType | str, keys: list[Any], scheme: Scheme
) -> tuple[Any, Any]:
    """The numbers of the rows that go together: by Spark, and by fingerprint."""
    df = spark.createDataFrame(keys, schema).coalesce(1)
    together = F.sort_array(F.collect_list("_row")).alias("rows")
    marked = fingerprinted(df, scheme).withColumn("_row", F.monotonically_increasing_id())
    by_spark = marked.groupBy(*df.columns).agg(together).select("rows").collect()
    by_print = marked.groupBy("_hi", "_lo").agg(together).select("rows").collect()
    return ({tuple(r.rows) for r in by_spark}, {tuple(r.rows) for r in by_print})


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_keys(spark: SparkSession, name: str) -> None:
    schema, keys = HAND_MADE[name]
    for scheme in SCHEMES[:2]:
        by_spark, by_print = groups(spark, schema, keys + keys[::-1], scheme)
        assert by_print == by_spark, scheme
    assert all(len(rows) >= 2 for rows in by_spark), "each key was given twice"


@pytest.mark.parametrize("seed", few(range(10), 0))
def test_drawn_keys(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    kinds = rng.sample(sorted(values.KEY_TYPES), 4)
    schema = T.StructType([T.StructField(kind, values.KEY_TYPES[kind][0]) for kind in kinds])
    keys = [
        tuple(values.maybe(rng, values.KEY_TYPES[kind][1]) for kind in kinds) for _ in range(300)
    ]
    by_spark, by_print = groups(spark, schema, keys, rng.choice(SCHEMES))
    assert by_print == by_spark, f"seed {seed}: {kinds}"
    assert 1 < len(by_spark) < len(keys), "some keys repeat, and some do not"


def test_the_key_group_is_the_top_of_the_fingerprint(spark: SparkSession) -> None:
    df = spark.range(1000)
    for count in (2, 256, 4096):
        rows = fingerprinted(df, UNSALTED).withColumn("g", key_group(F.col("_hi"), count)).toArrow()
        top = groups_of(rows.column("_hi").to_numpy().view("uint64"), count)
        assert rows.column("g").to_pylist() == top.tolist()
        assert len(set(rows.column("g").to_pylist())) > min(count, 256) * 0.8
    pairs = set(zip(rows.column("_hi").to_pylist(), rows.column("_lo").to_pylist(), strict=True))
    assert len(pairs) == 1000


def test_a_fingerprint_is_computed_once(spark: SparkSession) -> None:
    df = spark.range(10).select(F.col("id").cast("string").alias("k"))
    grouped = df.groupBy("k").agg(F.count("*").alias("n"))
    keyed = with_fingerprint(
        grouped, [(F.col("k"), T.StringType())], {"k": F.col("k"), "n": F.col("n")}, UNSALTED
    )
    plan = keyed._jdf.queryExecution().executedPlan().toString()
    assert plan.count(".ofString(") <= 1
    assert "_fingerprint" in plan


def test_keys_that_collide_in_scheme_1_do_not_in_scheme_2(spark: SparkSession) -> None:
    keys = [(text,) for text in colliding_strings(8)]
    for scheme, count in ((CHAINED, 1), (UNSALTED, 8), (Scheme.fresh(), 8)):
        _, by_print = groups(spark, "a string", keys, scheme)
        assert len(by_print) == count
