"""The ceiling: what an epoch costs when the rows reach Python and nothing is done with them.

The same source, the same partial aggregate in the JVM, the same exchange and hand-over to Python as
Millrace's, then a function that gives the rows back as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.epoch import rows
from millrace.ids import OperatorName
from millrace.keygroups import DEFAULT_KEY_GROUPS, Assignment
from millrace.keygroups.scheme import UNSALTED
from millrace.log import open_store
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.operator import Column
from millrace.spark.bookkeeping import checkpoint_files
from millrace.spark.exchange import AggregateExchange
from millrace.spark.session import BATCH_SETTINGS
from millrace.spark.template import PlanTemplate
from millrace_lab.bench._sides.engine import COUNTS, PARTITIONS, Engine, common_settings


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nothing."""
    return batches


class CeilingEngine(Engine):
    """`ceiling`."""

    def __init__(self, workdir: Path, memory: str) -> None:
        settings = common_settings(workdir, memory)
        super().__init__(mr.session("ceiling", "local[2]", settings), workdir)
        count = AggregateSpec("n", "count", "count(*)", T.IntegerType(), ())
        operator = AggregateOperator(OperatorName("counts"), [Column("key", T.LongType())], [count])
        self._exchange = AggregateExchange(operator, [F.col("key")], [F.lit(1)])
        self._assignment = Assignment.even(DEFAULT_KEY_GROUPS, PARTITIONS)

    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        # One epoch at a time is how outputs are compared; only then are they kept.
        keep = folder / "rows" if trigger else None
        template: PlanTemplate | None = None

        def run(df: DataFrame, batch_id: int) -> None:
            nonlocal template
            for key, value in BATCH_SETTINGS.items():
                df.sparkSession.conf.set(key, value)
            if template is None:
                template = PlanTemplate(df, self._build)
            passed = template.over(df, "null", "")
            if keep is None:
                passed.write.format("noop").mode("overwrite").save()
            else:
                passed.write.mode("append").parquet(str(keep))

        writer = source.writeStream.foreachBatch(run)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        with checkpoint_files(self.spark, open_store(str(folder))):
            return (writer.trigger(**trigger) if trigger else writer).start()

    def _build(self, df: DataFrame) -> DataFrame:
        routed = self._exchange(df, self._assignment, UNSALTED)
        return routed.mapInArrow(pass_on, routed.schema)

    def table(self, folder: Path) -> pa.Table:
        passed = self.spark.read.parquet(str(folder / "rows"))
        counts = passed.groupBy(rows.key(0)).agg(F.sum(rows.partial(0, 0))).toArrow()
        return pa.table(counts.columns, names=["key", "n"]).cast(COUNTS)
