"""Planning an epoch once: later epochs run the same physical plan over their own rows.

Analysing, optimising and planning the same few expressions takes longer than running a small epoch.
The batches of a query have the same schema, so the plan of the first one serves all: only the scan
at its bottom is replaced. What differs between epochs reaches the shards by a local property of the
job, not by the plan.

This holds only if nothing else in the plan depends on the batch, so a query whose own functions run
between operators is planned anew every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from millrace.spark import jvm


class PlanTemplate:
    """A physical plan with a hole where the batch goes."""

    def __init__(self, batch: DataFrame, build: Callable[[DataFrame], DataFrame]) -> None:
        self._java = jvm.load(batch.sparkSession).PlanTemplate
        output: Any = build(batch)._jdf
        self._plan = output.queryExecution().executedPlan()
        self._schema = output.schema()
        self.usable = _rows(batch) is not None and self._java.scans(self._plan) == 1

    def over(self, batch: DataFrame) -> DataFrame:
        """The output over another batch."""
        rows = self._java.run(self._plan, _rows(batch))
        session: Any = batch._jdf.sparkSession()
        frame = session.internalCreateDataFrame(rows, self._schema, False)
        return DataFrame(frame, batch.sparkSession)


def _rows(batch: DataFrame) -> Any | None:
    """The rows of a frame as Spark hands it to foreachBatch; None for any other frame."""
    plan: Any = batch._jdf.queryExecution().analyzed()
    return plan.rdd() if plan.getClass().getSimpleName() == "LogicalRDD" else None
