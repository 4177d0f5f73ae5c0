"""Sensor readings made from row numbers.

Invariant: a reading is a function of its row number and nothing else. So the stream, which counts
rows up epoch by epoch, and a batch over `range(rows)` see the same readings, and the state of the
one can be compared with the result of the other.

Devices are skewed (the square of a uniform draw: a hundredth of the devices send a tenth of the
readings), one reading in sixteen has no metric, and one in eight is not positive and filtered out.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millrace as mr
from millrace.api.stream import Stream

OPERATOR = "totals"
KEYS = ("device", "metric")
DEVICES = 20_000
PARTITIONS = 2

_DRAW = "pmod(xxhash64(row, {salt}), 1000003) / 1000003D"
_EXPRESSIONS = (
    f"format_string('dev-%05d', int(pow({_DRAW.format(salt=1)}, 2) * {DEVICES})) as device",
    f"element_at(array('temperature', 'humidity', 'pressure', 'vibration', NULL), "
    f"1 + int(4.25 * {_DRAW.format(salt=2)})) as metric",
    f"round(80 * {_DRAW.format(salt=3)} - 10, 2) as value",
)


@dataclass(frozen=True)
class Pace:
    """How fast readings are made, from when on."""

    begin_ms: int
    rows_per_second: float

    @property
    def at(self) -> str:
        """When a reading was taken, as Spark SQL."""
        ms = f"{self.begin_ms} + bigint(row * {1000 / self.rows_per_second!r}D)"
        return f"timestamp_millis({ms}) as at"


def readings(rows: DataFrame, pace: Pace) -> DataFrame:
    """Readings for a frame with a column `row`."""
    return rows.selectExpr(*_EXPRESSIONS, pace.at)


def valid(df: DataFrame) -> DataFrame:
    """The stateless step of both sides."""
    return df.where("value > 0")


def totals(spark: SparkSession, rows_per_epoch: int, pace: Pace) -> Stream:
    """The stream: a number of rows in every epoch, aggregated per device and metric."""
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_per_epoch)
        .option("numPartitions", PARTITIONS)
        .load()
        .selectExpr("value as row")
    )
    return (
        mr.stream(readings(source, pace), event_time="at", watermark="2 seconds")
        .transform(valid)
        .key_by(*KEYS)
        .aggregate(
            n=mr.count(),
            total=mr.sum("value"),
            low=mr.min("value"),
            peak=mr.max("value"),
            avg=mr.mean("value"),
            seen=mr.max("at"),
            name=OPERATOR,
        )
    )


def recomputed(spark: SparkSession, rows: int, pace: Pace) -> DataFrame:
    """The same aggregate by Spark alone, in one batch over the first `rows` rows."""
    source = spark.range(rows).withColumnRenamed("id", "row")
    return (
        valid(readings(source, pace))
        .groupBy(*KEYS)
        .agg(
            F.count("*").alias("n"),
            F.sum("value").alias("total"),
            F.min("value").alias("low"),
            F.max("value").alias("peak"),
            F.avg("value").alias("avg"),
            F.max("at").alias("seen"),
        )
    )
