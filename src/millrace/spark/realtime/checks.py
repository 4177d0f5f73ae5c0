"""What cannot run in real time, and why: found before anything starts.

A real-time plan is one chain of stages that all run at once. Spark cannot read one of them twice,
so there is one sink, and nothing is read by two steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from millrace.errors import RealTimeError, ShardLostError
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.operators.process.outputs import LATE
from millrace.reconfigure.autoscale.settings import Settings
from millrace.reconfigure.cluster import DirectorOptions
from millrace.spark.graph import operator_of
from millrace.spark.pipeline import Pipeline
from millrace.spark.steps import OperatorStep, UnionStep

MICRO_BATCHES = "or use a trigger such as '1 second'"

_SHARD = re.compile(r"millrace\.realtime: (.*?) /millrace\.realtime", re.DOTALL)
_SLOTS = re.compile(r"CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT.*?needs (\d+).*?only (\d+)", re.DOTALL)
_SOURCE = re.compile(r"STREAMING_REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED\].*?([\w.$]+\.[\w$]+)")
_OPERATOR = re.compile(
    r"STREAMING_REAL_TIME_MODE\.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST\](.*?)(?:\n|$)"
)
_GONE = re.compile(r"millrace\.realtime: [^/]*? which has ended|ExecutorLostFailure")
_STAGE = re.compile(r"in stage (\d+)\.")
_SYMPTOMS = ("StacklessClosedChannelException", "streaming shuffle writer", "StreamingShuffle")
_SAME_SOURCE = "STREAMING_REAL_TIME_MODE.IDENTICAL_SOURCES_IN_UNION_NOT_SUPPORTED"


def check_pipeline(pipeline: Pipeline, *, is_new: bool) -> None:
    """Raise if a query's steps cannot be one chain of stages."""
    if len(pipeline.paths) > 1:
        raise RealTimeError(
            f"the query has {len(pipeline.paths)} sinks, and in real time a query has one. Start a "
            f"query for each at a location of its own, {MICRO_BATCHES}."
        )
    pipeline.paths[0].sink.check_real_time()
    graph = pipeline.graph
    for point in graph.points:
        if graph.is_shared(point):
            what = (
                f"the output of operator {operator_of(point).name!r}"
                if isinstance(point.step, OperatorStep)
                else "a stream"
            )
            raise RealTimeError(
                f"{what} is read twice, which a real-time plan cannot do. Read it once in each of "
                f"two queries, {MICRO_BATCHES}."
            )
        if isinstance(point.step, UnionStep) and point.frame is None:
            raise RealTimeError(
                "a union of what operators emit cannot run in real time. Unite the streams before "
                f"the operators, {MICRO_BATCHES}."
            )
    for step in pipeline.steps:
        name = step.operator.name
        if is_new and step.first is not None:
            raise RealTimeError(
                f"operator {name!r} has an initial state, which is read in a micro-batch. Start "
                "the query once with trigger='available_now', then in real time."
            )
        if any(table.everywhere for table in step.operator.tables.values()) and not step.sides:
            raise RealTimeError(
                f"operator {name!r} needs the rows of an epoch on all shards at once. Use a "
                "trigger such as '1 second'."
            )
        if step.sides:
            raise RealTimeError(
                f"operator {name!r} has broadcast state, whose rows must reach all shards in the "
                f"same epoch. Use a trigger such as '1 second'."
            )
        if LATE in pipeline.outputs[name]:
            raise RealTimeError(
                f"the late rows of operator {name!r} are told from others by micro-batches. Leave "
                f"late() out, {MICRO_BATCHES}."
            )
    if pipeline.reads_of_batch > 1:
        raise RealTimeError(
            f"a source is read twice, which a real-time plan cannot do. Read it once, "
            f"{MICRO_BATCHES}."
        )


def check_cluster(spark: SparkSession) -> None:
    """Raise if a session has features that Spark does not combine with real time."""
    conf = spark.sparkContext.getConf()
    for key, what in (
        ("spark.dynamicAllocation.enabled", "allocates executors dynamically"),
        ("spark.speculation", "runs slow tasks twice"),
    ):
        if conf.get(key, "false") == "true":
            raise RealTimeError(
                f"the session {what} ({key}=true), which Spark does not do for stages that run at "
                f"once. Set {key}=false before the session starts."
            )


def check_options(options: DirectorOptions, autoscale: Settings | None) -> None:
    """Raise if a query is to have more executors, or others that follow, while it runs."""
    if autoscale is not None:
        raise RealTimeError(
            "autoscale= needs micro-batches: a real-time query keeps its shards until it is "
            "started again. Leave it out, or use a trigger such as '1 second'."
        )
    if options.standby or options.elastic:
        what = "standby=" if options.standby else "elastic="
        raise RealTimeError(
            f"{what} needs micro-batches: in real time the query has its slots for good, and "
            "nothing can follow beside it. Leave it out, or use a trigger such as '1 second'."
        )


def slots_needed(sources: Sequence[int], assignments: Mapping[OperatorName, Assignment]) -> int:
    """How many tasks of a plan run at once. `sources` are their partitions."""
    return sum(sources) + sum(assignment.shards for assignment in assignments.values())


def check_slots(
    slots: int, sources: Sequence[int], assignments: Mapping[OperatorName, Assignment]
) -> None:
    """Raise if not all tasks of a plan can run at once."""
    needed = slots_needed(sources, assignments)
    if needed <= slots:
        return
    shards = {str(name): assignment.shards for name, assignment in assignments.items()}
    parts = [f"{sum(sources)} for the partitions of the sources"]
    parts += [f"{count} for the shards of {name!r}" for name, count in sorted(shards.items())]
    raise RealTimeError(
        f"the query needs {needed} slots, and the session has {slots}: {', '.join(parts)}. In real "
        "time all of them run at once. Give the session more cores, for example "
        f"mr.session(master='local[{needed}]'), or start the query with a smaller parallelism=."
    )


def symptom_stage(error: BaseException) -> int | None:
    """The stage whose task failed because a task of another stage had; None if that is not so.

    All stages run at once, and those before a shard lose their connection to it when it fails.
    Spark tells of whichever failure it hears of first.
    """
    stage = _STAGE.search(str(error))
    is_symptom = any(text in str(error) for text in _SYMPTOMS)
    return int(stage[1]) if stage is not None and is_symptom else None


def is_cause(failures: str) -> bool:
    """Whether one of these failures is a shard's own."""
    return _SHARD.search(failures) is not None or "millrace.errors." in failures


def is_loss(failures: str) -> bool:
    """Whether tasks failed because a process is gone: they may go well when they run again."""
    return _GONE.search(failures) is not None and "millrace.errors." not in failures


def explained(error: BaseException, others: str = "") -> BaseException | None:
    """Spark's error about a real-time query in our words; None if it is about something else.

    `others` are the errors of other tasks of the same job.
    """
    text = f"{error}\n{others}"
    lost = _SHARD.search(text)
    if lost is not None:
        return _caused(ShardLostError(f"{lost[1]}."), error)
    slots = _SLOTS.search(text)
    if slots is not None:
        return _caused(
            RealTimeError(
                f"the query needs {slots[1]} slots that are free at once, and only {slots[2]} are: "
                "other queries or jobs have the others. Give the session more cores, or start the "
                "query with a smaller parallelism=."
            ),
            error,
        )
    source = _SOURCE.search(text)
    if source is not None:
        return _caused(
            RealTimeError(
                f"the source {source[1].rpartition('.')[2]} cannot be read in real time: Spark "
                f"reads Kafka and sources that say they can. Read the rows from Kafka, "
                f"{MICRO_BATCHES}."
            ),
            error,
        )
    operator = _OPERATOR.search(text)
    if operator is not None:
        return _caused(
            RealTimeError(
                f"a transform has a step that Spark does not run in real time:{operator[1]} Use "
                f"expressions and functions of Spark's own in it, {MICRO_BATCHES}."
            ),
            error,
        )
    if _SAME_SOURCE in text:
        return _caused(
            RealTimeError(
                "one source is read twice, which Spark does not do in real time. Make a DataFrame "
                f"for each, {MICRO_BATCHES}."
            ),
            error,
        )
    return None


def _caused(found: BaseException, error: BaseException) -> BaseException:
    found.__cause__ = error
    return found
