"""Rows that nobody asked for: NULL, NaN, infinities, broken text, the ends of time and of numbers.

Malformed rows are the source's business, but no operator dies of what the source lets through.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark import support

import millrace as mr

SCHEMA = "k binary, text binary, x double, d decimal(38,18), micros long, n long"

LONE_SURROGATE = b"\xed\xa0\x80"
"""U+D800 as some programs write it: not UTF-8, and yet a string to Spark."""

TEXTS = [None, b"", b"plain", LONE_SURROGATE, b"\xff\xfe", b"a\x00b", "日本".encode(), b"x" * 300]
DOUBLES = [None, 0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324]
DECIMALS = [None, "0", "99999999999999999999.999999999999999999", "-99999999999999999999.9"]
MICROS = [
    None,
    0,
    -1,
    -62135596800000000,  # the year 1
    253402300799999999,  # the end of the year 9999
    -62135596800000001,  # before the first year of Python's datetime
    253402300800000000,  # after its last
    2**63 - 1,
    -(2**63),
]


def rows() -> list[tuple[Any, ...]]:
    from decimal import Decimal

    found = []
    for i in range(72):
        decimal = DECIMALS[i % len(DECIMALS)]
        found.append(
            (
                TEXTS[i % len(TEXTS)],
                TEXTS[(i * 3 + 1) % len(TEXTS)],
                DOUBLES[i % len(DOUBLES)],
                None if decimal is None else Decimal(decimal),
                MICROS[i % len(MICROS)],
                [None, 0, 2**62, -(2**63)][i % 4],
            )
        )
    return found


def parsed(df: DataFrame) -> DataFrame:
    return df.selectExpr(
        "cast(k as string) as k",
        "cast(text as string) as text",
        "x",
        "d",
        "timestamp_micros(micros) as at",
        "n",
    )


@pytest.fixture
def folder(tmp_path: Path) -> support.Folder:
    made = support.Folder(tmp_path / "in", SCHEMA)
    made.drop(rows())
    return made


class Keeps(mr.Processor):
    """Puts whatever comes into a state of every kind."""

    count = mr.Value("long", default=0)
    text = mr.Value("string")
    at = mr.Value("timestamp")
    texts = mr.List("string")
    by_text = mr.Map("string", "timestamp")
    seen = mr.Set("double")
    exact = mr.Reducing("decimal(38,18)", max)

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.count.set(self.count.get() + 1)
            self.text.set(row.text)
            self.at.set(row.at)
            self.texts.append(row.text)
            if row.text is not None:
                self.by_text[row.text] = row.at
            if row.x is not None:
                self.seen.add(row.x)
            if row.d is not None:
                self.exact.add(row.d)
        yield key.k, self.count.get(), self.text.get(), self.at.get()


def run(stream: mr.Stream, location: Path, folder: support.Folder) -> mr.Reader:
    """Two epochs, so that what was stored is also read again."""
    query = stream.to("noop").start(str(location), parallelism=2, key_groups=8)
    try:
        query.process_all_available()
        folder.drop(rows())
        query.process_all_available()
    finally:
        query.stop()
    return mr.open(str(location))


def test_aggregates(spark: SparkSession, tmp_path: Path, folder: support.Folder) -> None:
    aggregates = {
        "n": mr.count(),
        "low": mr.min("text"),
        "high": mr.max("text"),
        "least": mr.min("x"),
        "most": mr.max("x"),
        "total": mr.sum("x"),
        "early": mr.min("at"),
        "late": mr.max("at"),
        "small": mr.min("d"),
        "large": mr.max("d"),
        "long": mr.max("n"),
    }
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        stream = mr.stream(folder.stream(spark)).transform(parsed).key_by("k")
        reader = run(stream.aggregate(**aggregates, name="t"), tmp_path / "l", folder)
        found = {bytes(k): n for k, n in keyed(reader.to_arrow(), "k", "n")}
        expected = {
            bytes(row["b"]) if row["b"] is not None else b"NULL": row["n"]
            for row in parsed(folder.batch(spark))
            .groupBy("k")
            .count()
            .selectExpr("cast(k as binary) as b", "count as n")
            .collect()
        }
        assert found == expected
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def keyed(table: Any, key: str, value: str) -> list[tuple[bytes, Any]]:
    """Key bytes and a value; text as bytes, because not all of it is text."""
    import pyarrow as pa

    keys = table.column(key).combine_chunks().cast(pa.binary())
    names = [b"NULL" if k is None else k for k in keys.to_pylist()]
    return list(zip(names, table.column(value).to_pylist(), strict=True))


def test_processors(spark: SparkSession, tmp_path: Path, folder: support.Folder) -> None:
    stream = (
        mr.stream(folder.stream(spark))
        .transform(parsed)
        .key_by("k")
        .process(Keeps(), "k string, n long, text string, at timestamp", name="keeps")
    )
    reader = run(stream, tmp_path / "l", folder)
    counts = dict(keyed(reader.to_arrow("keeps"), "k", "count"))
    assert sum(counts.values()) == 2 * len(rows())
    assert len(counts) == len(TEXTS)
