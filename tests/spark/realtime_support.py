"""A source that Spark reads in real time without a server: its own, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession


class Numbers:
    """A stream of whole numbers, in a column `value`. It outlives the queries that read it."""

    def __init__(self, spark: SparkSession, partitions: int = 1) -> None:
        java: Any = spark._jvm
        sources = java.org.apache.spark.sql.execution.streaming.sources
        made = getattr(getattr(sources, "LowLatencyMemoryStream$"), "MODULE$")
        encoder = java.org.apache.spark.sql.Encoders.INT()
        self._java = java
        self._stream = made.apply(spark._jsparkSession, partitions, encoder)
        self._spark = spark
        self.sent: list[int] = []

    def send(self, numbers: Iterable[int]) -> None:
        """Add numbers: partition after partition gets one."""
        listed = self._java.java.util.ArrayList()
        for number in numbers:
            listed.add(number)
            self.sent.append(number)
        self._stream.addData(self._java.scala.jdk.javaapi.CollectionConverters.asScala(listed))

    def frame(self) -> DataFrame:
        frame = DataFrame(self._stream.toDF(), self._spark)
        return frame.selectExpr("cast(value as long) as value")
