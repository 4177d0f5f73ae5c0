"""What cannot run in real time: found in the graph, in the number of slots, or said by Spark."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T
from tests.unit.spark.test_graph import FRAME, operator, pipeline, source, transform, union

from millrace.errors import EpochFailedError, RealTimeError, ShardLostError
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.operators.process.outputs import LATE
from millrace.spark.broadcast import Side
from millrace.spark.pipeline import Path, Pipeline
from millrace.spark.realtime.checks import (
    check_cluster,
    check_pipeline,
    check_slots,
    explained,
    is_cause,
    symptom_stage,
)
from millrace.spark.sinks import Files, Kafka, Noop, Sink
from millrace.spark.steps import OperatorStep, OutputStep, Point

KAFKA = {"topic": "t", "servers": "localhost:9092"}


def of(*ends: Point, sink: Sink | None = None) -> Pipeline:
    drawn = pipeline(*ends)
    drawn.paths = tuple(Path(p.point, p.schema, sink or Noop()) for p in drawn.paths)
    return drawn


def test_a_chain_of_operators_can_run() -> None:
    chain = operator("second", transform(operator("first", transform(source()))))
    check_pipeline(of(chain), is_new=True)
    check_pipeline(of(operator("join", source(), source())), is_new=True)
    check_pipeline(of(operator("one", union(source(), source()))), is_new=True)


def test_what_is_no_chain_is_refused() -> None:
    first = operator("first", source())
    with pytest.raises(RealTimeError, match="2 sinks"):
        check_pipeline(of(first, operator("second", source())), is_new=True)
    twice = operator("joined", operator("a", first), operator("b", first))
    with pytest.raises(RealTimeError, match="output of operator 'first' is read twice"):
        check_pipeline(of(twice), is_new=True)
    united = union(operator("a", source()), operator("b", source()))
    with pytest.raises(RealTimeError, match="Unite the streams before"):
        check_pipeline(of(united), is_new=True)


def test_a_table_that_all_shards_read_is_refused() -> None:
    with pytest.raises(RealTimeError, match="'parts' needs the rows of an epoch on all shards"):
        check_pipeline(of(operator("parts", source(), everywhere=True)), is_new=True)


def test_a_source_that_is_read_twice_is_refused() -> None:
    read = source()
    with pytest.raises(RealTimeError, match=r"a (stream|source) is read twice"):
        check_pipeline(of(operator("joined", transform(read), transform(read))), is_new=True)


def changed(end: Point, **fields: Any) -> Point:
    """An operator with another step."""
    assert isinstance(end.step, OperatorStep)
    return Point(dataclasses.replace(end.step, **fields), end.inputs)


def test_an_initial_state_is_refused_in_the_first_epoch_only() -> None:
    end = operator("one", source())
    assert isinstance(end.step, OperatorStep)
    drawn = of(changed(end, first=end.step.exchange))
    with pytest.raises(RealTimeError, match=r"'one' has an initial state.*available_now"):
        check_pipeline(drawn, is_new=True)
    check_pipeline(drawn, is_new=False)


def test_broadcast_state_is_refused() -> None:
    rules = Side("rules", T.StructType(), FRAME)
    for everywhere in (True, False):
        end = changed(operator("one", source(), everywhere=everywhere), sides=(rules,))
        with pytest.raises(RealTimeError, match="'one' has broadcast state"):
            check_pipeline(of(end), is_new=True)


def test_late_rows_are_refused() -> None:
    end = operator("one", source())
    late = Point(OutputStep(LATE), (end,))
    with pytest.raises(RealTimeError, match=r"late rows of operator 'one'.*Leave late\(\) out"):
        check_pipeline(of(late), is_new=True)


@pytest.mark.parametrize("key", ["spark.dynamicAllocation.enabled", "spark.speculation"])
def test_what_spark_does_not_combine_with_real_time_is_refused(key: str) -> None:
    def session(**settings: str) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: settings))

    check_cluster(session())
    check_cluster(session(**{key: "false"}))
    with pytest.raises(RealTimeError, match=f"Set {key}=false before the session starts"):
        check_cluster(session(**{key: "true"}))


def test_sinks_that_write_whole_batches_are_refused() -> None:
    end = operator("one", source())
    with pytest.raises(RealTimeError, match="writes whole batches"):
        check_pipeline(of(end, sink=Files("parquet", "/out", {})), is_new=True)
    with pytest.raises(RealTimeError, match="exactly_once=False"):
        check_pipeline(of(end, sink=Kafka(dict(KAFKA))), is_new=True)
    check_pipeline(of(end, sink=Kafka({**KAFKA, "exactly_once": False})), is_new=True)


def test_slots_are_counted_for_all_tasks_at_once() -> None:
    shards = {OperatorName(name): Assignment.even(8, n) for name, n in (("a", 2), ("b", 3))}
    check_slots(9, [3, 1], shards)
    with pytest.raises(RealTimeError, match=r"needs 9 slots, and the session has 8.*4 for the"):
        check_slots(8, [3, 1], shards)


@pytest.mark.parametrize(
    ("text", "kind", "match"),
    [
        (
            "Job aborted: millrace.realtime: shard 1 of operator 'a' lost its Python process 7 "
            "/millrace.realtime at io.millrace",
            ShardLostError,
            r"^shard 1 of operator 'a' lost its Python process 7\.$",
        ),
        (
            "[CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] Cannot run the pipelined stage group: it "
            "needs 5 concurrent task slots to run all its stages together, but only 2 are "
            "currently free.",
            RealTimeError,
            "needs 5 slots that are free at once, and only 2 are",
        ),
        (
            "[STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED] Streaming real-time mode has "
            "the following limitation: The input stream org.apache.spark.sql.Rate$Stream is not "
            "supported in Real-time Mode. SQLSTATE: 0A000",
            RealTimeError,
            r"the source Rate\$Stream cannot be read in real time",
        ),
        (
            "[STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST] Streaming real-time "
            "mode has the following limitation: The operator(s): org.apache.PythonExec is not in "
            "the operator allowlist for Real-Time Mode.\nmore",
            RealTimeError,
            "a transform has a step.*PythonExec",
        ),
        (
            "[STREAMING_REAL_TIME_MODE.IDENTICAL_SOURCES_IN_UNION_NOT_SUPPORTED] ...",
            RealTimeError,
            "one source is read twice",
        ),
    ],
)
def test_what_spark_says_is_said_again(text: str, kind: type[Exception], match: str) -> None:
    said = RuntimeError(text)
    with pytest.raises(kind, match=match) as raised:
        raise explained(said) or said
    assert raised.value.__cause__ is said


def test_other_errors_are_left_alone() -> None:
    assert explained(EpochFailedError("the disk is full")) is None


def test_a_lost_connection_is_a_symptom_of_what_another_task_says() -> None:
    symptom = RuntimeError(
        "Job aborted due to stage failure: Task 0 in stage 12.0 failed 1 times: "
        "io.netty.channel.StacklessClosedChannelException"
    )
    assert symptom_stage(symptom) == 12
    assert explained(symptom) is None
    assert not is_cause(str(symptom))
    said = "millrace.realtime: shard 0 of operator 'sums' lost its process /millrace.realtime"
    found = explained(symptom, f"java.lang.RuntimeException: {said}\n\tat ...")
    assert is_cause(said)
    assert isinstance(found, ShardLostError)
    assert str(found) == "shard 0 of operator 'sums' lost its process."
    assert found.__cause__ is symptom
    assert symptom_stage(RuntimeError("Task 0 in stage 12.0 failed: division by 0")) is None
