"""A query of several branches with initial, broadcast and task state, as a program to be killed.

python -m tests.faults.branches INPUT RATES LOCATION SINKS
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.faults import driver

import millrace as mr

SCHEMA = "user string, seconds long, _epoch int, _seq long"
RATES = "name string, rate long, _epoch int, _seq long"
BEGINNING = [("ann", 100), ("eve", 7), (None, 3)]


class Spent(mr.Processor):
    """What each user owes at the rate of the hour, and beside it every hundred that is crossed."""

    total = mr.Value("long", default=0)
    rates = mr.Broadcast("string", "long")
    seen = mr.TaskState("long", split="divide", merge=sum, default=0)
    hundreds = mr.SideOutput("user string, total long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        self.seen.set(self.seen.get() + len(rows))
        for row in rows:
            before = self.total.get()
            self.total.set(before + row.seconds * self.rates["hour"])
            if before // 100 < self.total.get() // 100:
                self.hundreds.emit((key.user, self.total.get()))
        yield (key.user, self.total.get())


def build(spark: SparkSession, folder: Path, rates: Path, sinks: Path) -> mr.StreamWriter:
    def one_by_one(path: Path, schema: str) -> DataFrame:
        source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return source.parquet(f"{path}/*")

    rate = one_by_one(rates, RATES).select("name", "rate")
    spent = (
        mr.stream(one_by_one(folder, SCHEMA))
        .key_by("user")
        .process(
            Spent(),
            "user string, total long",
            name="spent",
            broadcast={"rates": mr.stream(rate).key_by("name")},
            initial_state=spark.createDataFrame(BEGINNING, "user string, total long"),
        )
    )
    hundreds = spent.side("hundreds")
    return spent.to("parquet", path=str(sinks / "spent")).also(
        hundreds.to("parquet", path=str(sinks / "hundreds")),
        hundreds.key_by("user").aggregate(name="crossed", n=mr.count()).to("noop"),
    )


def main() -> None:
    folder, rates, location, sinks = map(Path, sys.argv[1:])
    spark = driver.session()
    driver.finish(build(spark, folder, rates, sinks), location)
    spark.stop()


if __name__ == "__main__":
    main()
