"""Five Structured Streaming programs, run with and without one line.

    python examples/unchanged/programs.py            # Spark's own engine
    python examples/unchanged/programs.py --millrace # the same programs on Millrace

Both print the same rows. The programs know nothing of Millrace; `main` has the line.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

LINES = [
    ("12:00:05", "ann", "to be or not to be"),
    ("12:00:40", "bob", "that is the question"),
    ("12:01:10", "ann", "to be"),
    ("12:01:10", "ann", "to be"),
    ("12:09:00", "cy", "whether tis nobler"),
    ("12:30:00", "bob", "to sleep"),
    ("12:55:00", "ann", "no more"),
]
CLICKS = [("12:00:20", "ann"), ("12:01:15", "ann"), ("12:20:00", "bob"), ("12:56:00", "ann")]


def windowed_word_count(lines: DataFrame, clicks: DataFrame) -> DataFrame:
    """Words per minute."""
    words = lines.select(F.explode(F.split("text", " ")).alias("word"), "at")
    return words.groupBy(F.window("at", "1 minute"), "word").count()


def sessions(lines: DataFrame, clicks: DataFrame) -> DataFrame:
    """How much each user wrote without a break of five minutes."""
    return lines.groupBy(F.session_window("at", "5 minutes"), "user").agg(
        F.count("*").alias("lines"), F.sum(F.length("text")).alias("letters")
    )


def impressions_and_clicks(lines: DataFrame, clicks: DataFrame) -> DataFrame:
    """Each line with the clicks of its user within a minute, or without one."""
    near = F.expr("user = who AND clicked >= at AND clicked <= at + INTERVAL 1 MINUTE")
    return lines.join(clicks, near, "leftOuter")


def distinct_lines(lines: DataFrame, clicks: DataFrame) -> DataFrame:
    """How many different lines came in ten minutes."""
    once = lines.dropDuplicates(["user", "text", "at"])
    return once.groupBy(F.window("at", "10 minutes")).count()


class Longest(StatefulProcessor):
    """Emits a user's line if it is longer than all before."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.longest = handle.getValueState("longest", "letters int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: (row.at, row.text)):
            before = self.longest.get() if self.longest.exists() else (0,)
            if len(row.text) > before[0]:
                self.longest.update((len(row.text),))
                yield Row(user=key[0], letters=len(row.text))

    def close(self) -> None:
        pass


def longest_lines(lines: DataFrame, clicks: DataFrame) -> DataFrame:
    """The records of each user."""
    return lines.groupBy("user").transformWithState(
        Longest(), "user string, letters int", "Append", "None"
    )


PROGRAMS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "windowed word count": windowed_word_count,
    "sessions": sessions,
    "impressions and clicks": impressions_and_clicks,
    "distinct lines": distinct_lines,
    "longest lines": longest_lines,
}


def run(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    """Run all programs over the same files; what each wrote."""
    _write(
        folder / "lines", [{"at": f"2024-01-01T{a}Z", "user": u, "text": t} for a, u, t in LINES]
    )
    _write(folder / "clicks", [{"clicked": f"2024-01-01T{a}Z", "who": who} for a, who in CLICKS])
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    lines = reader.schema("at timestamp, user string, text string").json(str(folder / "lines"))
    clicks = reader.schema("clicked timestamp, who string").json(str(folder / "clicks"))
    lines = lines.withWatermark("at", "2 minutes")
    clicks = clicks.withWatermark("clicked", "2 minutes")
    written = {}
    for name, program in PROGRAMS.items():
        place = folder / name.replace(" ", "_")
        query = (
            program(lines, clicks)
            .writeStream.format("parquet")
            .outputMode("append")
            .option("checkpointLocation", f"{place}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{place}/out")
        )
        query.awaitTermination()
        rows = spark.read.parquet(f"{place}/out").collect()
        written[name] = sorted(json.dumps(row.asDict(True), default=str) for row in rows)
    return written


def _write(folder: Path, rows: list[dict[str, str]]) -> None:
    folder.mkdir(parents=True)
    for number, row in enumerate(rows):
        file = folder / f"{number}.json"
        file.write_text(json.dumps(row))
        # The source takes the oldest file first.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def main() -> None:
    """Run the programs and print what they wrote."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--millrace", action="store_true", help="run them on Millrace")
    chosen = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    if chosen.millrace:
        import millrace as mr

        mr.enable(spark, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in run(spark, Path(folder)).items():
            print(name, *rows, sep="\n  ")
    spark.stop()


if __name__ == "__main__":
    main()
