"""Batches without rows when Spark's own engine would run them: see `IdleBatches.java`.

Spark's stateful operators ask for one more batch when the watermark has moved, so that windows end
although nothing comes. Millrace's operators are no operators of Spark's, so a source without rows
asks for it in their place. It is the last source of a query, with every trigger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import clock
from millrace.spark import jvm

_NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"


@dataclass(frozen=True)
class IdleBatches:
    """When batches without rows run."""

    on_watermark: bool
    """When the watermark has moved since the last batch."""
    always: bool = False
    """All the time: processing-time timers may be due."""
    token: str = field(default_factory=clock.fresh_id)

    def attach(self, spark: SparkSession, query: Any, watermark_ms: int) -> None:
        """Let the source know the query that it is part of, and the watermark of its batch."""
        wanted = str(spark.conf.get(_NO_DATA)).lower() == "true"
        if wanted and (self.on_watermark or self.always):
            jvm.load(spark).IdleBatches.attach(self.token, query, watermark_ms)

    def detach(self, spark: SparkSession) -> None:
        jvm.load(spark).IdleBatches.detach(self.token)


def with_idle_batches(source: DataFrame, batches: IdleBatches) -> DataFrame:
    """The same rows, and the batches without rows."""
    spark = source.sparkSession
    jvm.load(spark)
    reader = spark.readStream.format(f"{jvm.PACKAGE}.IdleBatches")
    idle = reader.option("token", batches.token).option("always", batches.always).load()
    nothing = idle.select(
        *(F.lit(None).cast(each.dataType).alias(each.name) for each in source.schema.fields)
    )
    return source.union(nothing)
