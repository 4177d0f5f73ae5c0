"""A heartbeat: epochs that run although no rows came, so that timers fire on an idle stream.

Spark starts a micro-batch when a source has something new. A query with timers gets one more,
Spark's own rate source at one row a second, and all its rows are filtered out: what is left is the
beat. Queries without timers have none.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def with_heartbeat(source: DataFrame) -> DataFrame:
    """The same rows, and a batch every second even if there are none."""
    spark = source.sparkSession
    beat = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    # The rate source counts from 0, so nothing passes; a constant would be optimised away.
    nothing = beat.where("value < 0").select(
        *(F.lit(None).cast(field.dataType).alias(field.name) for field in source.schema.fields)
    )
    return source.unionByName(nothing)
