"""A query of several branches that begins with an initial state, as a program to be killed.

python -m tests.faults.branches INPUT LOCATION SINKS
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.faults import driver

import millrace as mr

SCHEMA = "user string, seconds long, _epoch int, _seq long"
BEGINNING = [("ann", 100), ("eve", 7), (None, 3)]


class Spent(mr.Processor):
    """Seconds per user, and beside them every hundred that is crossed."""

    total = mr.Value("long", default=0)
    hundreds = mr.SideOutput("user string, total long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        for row in rows:
            before = self.total.get()
            self.total.set(before + row.seconds)
            if before // 100 < self.total.get() // 100:
                self.hundreds.emit((key.user, self.total.get()))
        yield (key.user, self.total.get())


def build(spark: SparkSession, folder: Path, sinks: Path) -> mr.Sinked:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/*")
    spent = (
        mr.stream(source)
        .key_by("user")
        .process(
            Spent(),
            "user string, total long",
            name="spent",
            initial_state=spark.createDataFrame(BEGINNING, "user string, total long"),
        )
    )
    hundreds = spent.side("hundreds")
    return spent.to("parquet", path=str(sinks / "spent")).also(
        hundreds.to("parquet", path=str(sinks / "hundreds")),
        hundreds.key_by("user").aggregate(name="crossed", n=mr.count()).to("noop"),
    )


def main() -> None:
    folder, location, sinks = sys.argv[1:]
    spark = driver.session()
    driver.finish(build(spark, Path(folder), Path(sinks)), Path(location))
    spark.stop()


if __name__ == "__main__":
    main()
