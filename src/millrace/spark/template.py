"""Planning an operator once: later epochs run the same physical plan over their own rows.

Analysing, optimising and planning the same few expressions takes longer than running a small epoch.
The batches of a query have the same schema, so the plan of the first one serves all: only the scan
at its bottom is replaced. What differs between epochs is bound to the rows, not to the plan.

This holds only if nothing else in the plan depends on the batch. So a template starts from *bare*
rows: a batch as Spark hands it over, or another template's output, but not what a user's function
made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from millrace.errors import EpochFailedError
from millrace.spark import jvm
from millrace.spark.shard import MOMENT_PROPERTY


class PlanTemplate:
    """A physical plan with a hole where the batch goes."""

    def __init__(self, batch: DataFrame, build: Callable[[DataFrame], DataFrame]) -> None:
        self._java = jvm.load(batch.sparkSession).PlanTemplate
        output: Any = build(batch)._jdf
        self._plan = output.queryExecution().executedPlan()
        self._schema = output.schema()
        scans = self._java.scans(self._plan)
        if scans != 1:
            raise EpochFailedError(
                f"the plan of an operator has {scans} scans of its batch where one was expected. "
                "This is a bug in Millrace; nothing was committed."
            )

    def over(self, batch: DataFrame, moment: str, preferred_locations: str) -> DataFrame:
        """The output over another batch, at a moment, where Spark prefers to run it."""
        plan: Any = batch._jdf.queryExecution().analyzed()
        rows = self._java.run(self._plan, plan.rdd())
        return _bound(batch, rows, self._schema, moment, preferred_locations)


def at_moment(output: DataFrame, moment: str, preferred_locations: str) -> DataFrame:
    """A frame whose tasks know a moment, and run at the preferred locations if they can."""
    frame: Any = output._jdf
    return _bound(
        output, frame.queryExecution().toRdd(), frame.schema(), moment, preferred_locations
    )


def _bound(
    frame: DataFrame, rows: Any, schema: Any, moment: str, preferred_locations: str
) -> DataFrame:
    bound = jvm.load(frame.sparkSession).MomentRdd(
        rows, MOMENT_PROPERTY, moment, preferred_locations
    )
    return _bare(frame, bound, schema)


def _bare(frame: DataFrame, rows: Any, schema: Any) -> DataFrame:
    session: Any = frame._jdf.sparkSession()
    return DataFrame(session.internalCreateDataFrame(rows, schema, False), frame.sparkSession)


def bare_union(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of bare frames with the same columns, bare again: nothing is planned."""
    first: Any = frames[0]._jdf
    united, *others = (frame._jdf.queryExecution().analyzed().rdd() for frame in frames)
    for rows in others:
        united = united.union(rows)
    # What is never NULL in one may be NULL in another.
    return _bare(frames[0], united, first.schema().asNullable())


class KeptFrame:
    """A frame for several readers: the first that runs it keeps its rows for the others."""

    def __init__(self, frame: DataFrame) -> None:
        plan: Any = frame._jdf.queryExecution()
        rows = plan.analyzed().rdd() if is_bare(frame) else plan.toRdd()
        self._rows = jvm.load(frame.sparkSession).KeptRows.of(rows)
        self.frame = _bare(frame, self._rows, frame._jdf.schema())

    def release(self) -> None:
        """Forget the rows; running the frame after this computes them again."""
        self._rows.unpersist(False)


def is_bare(batch: DataFrame) -> bool:
    """Whether a frame is nothing but rows."""
    plan: Any = batch._jdf.queryExecution().analyzed()
    return bool(plan.getClass().getSimpleName() == "LogicalRDD")


def rows_of(frame: DataFrame) -> Any:
    """The rows of a frame, in Spark's own form. Those of a bare one need no planning."""
    java: Any = frame._jdf
    # A frame's own rows would be computed again; planning finds those that it has cached.
    if is_bare(frame) and not java.storageLevel().isValid():
        return java.queryExecution().analyzed().rdd()
    return java.queryExecution().toRdd()
