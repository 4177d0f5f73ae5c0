"""Unchanged programs: the same rows in the same batches on both engines; and a query's face."""

from __future__ import annotations

import logging
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StateOperatorProgress, StreamingQueryProgress
from tests.conftest import ROOT
from tests.spark.unchanged import cases
from tests.spark.unchanged.engines import (
    ONE_PARTITION,
    Case,
    on_millrace,
    on_spark,
    program_of,
    read,
    refusal,
    write_batches,
)
from tests.stress import few

import millrace as mr
from millrace.errors import (
    ForeignCheckpointError,
    NotStreamingError,
    SessionError,
    UnsupportedPlanError,
)
from millrace.spark.settings import configured

EVERY_RUN = ("tumbling", "left", "windows of windows")
"""The cases of `make test`; `make stress` runs all."""
EVERY_REFUSAL = ("an aggregate without a watermark", "a left join, updates", "duplicates, complete")
EVERY_REASON = ("no groupBy", "left with a further condition", "a limit in SQL")


@pytest.fixture(scope="module")
def streams(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, DataFrame]]:
    folder = tmp_path_factory.mktemp("unchanged")
    given = {"visits": cases.VISITS, "clicks": cases.CLICKS, "orders": cases.ORDERS}
    found = {}
    for name, stream in given.items():
        write_batches(folder / name, stream)
        found[name] = read(spark, folder / name, stream)
    found["v"] = found["visits"].withWatermark("at", "10 minutes")
    found["c"] = found["clicks"].withWatermark("shown", "5 minutes")
    found["o"] = found["orders"].withWatermark("made", "5 minutes")
    pages = [("/", "home"), ("/buy", "shop")]
    found["static"] = spark.createDataFrame(pages, "page string, title string")
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        yield found


def _by_name(given: list[Case]) -> dict[str, Case]:
    return {case.name: case for case in given}


ALL = _by_name(cases.cases())
REFUSED = _by_name(cases.refused())
LEFT = _by_name(cases.left_to_spark())
DIFFERING = _by_name(cases.differing())


@pytest.mark.parametrize("name", few(ALL, *EVERY_RUN))
def test_both_engines_write_the_same_rows_in_the_same_batches(
    name: str, spark: SparkSession, streams: dict[str, DataFrame], tmp_path: Path
) -> None:
    case = ALL[name]
    with configured(spark, case.conf):
        df = program_of(spark, case, streams)
        expected = on_spark(df, case.mode, tmp_path / "spark")
        assert any(expected.batches.values()), "a case that emits nothing shows nothing"
        assert on_millrace(df, case.mode, tmp_path / "millrace") == expected


@pytest.mark.stress
@pytest.mark.parametrize("name", DIFFERING)
def test_what_is_documented_to_differ_does(
    name: str, spark: SparkSession, streams: dict[str, DataFrame], tmp_path: Path
) -> None:
    case = DIFFERING[name]
    with configured(spark, case.conf):
        df = program_of(spark, case, streams)
        expected = on_spark(df, case.mode, tmp_path / "spark")
        assert on_millrace(df, case.mode, tmp_path / "millrace") != expected


@pytest.mark.parametrize("name", few(REFUSED, *EVERY_REFUSAL))
def test_what_spark_refuses_is_refused_in_its_own_words(
    name: str, spark: SparkSession, streams: dict[str, DataFrame], tmp_path: Path
) -> None:
    case = REFUSED[name]

    def told(writer: Callable[[DataFrame], Any], location: Path) -> str:
        def start() -> None:
            df = program_of(spark, case, streams)
            writer(df).outputMode(case.mode).format("noop").start(checkpointLocation=str(location))

        return refusal(start)

    expected = told(lambda df: df.writeStream, tmp_path / "spark")
    assert expected
    assert told(mr.write_stream, tmp_path / "millrace") == expected
    assert not (tmp_path / "millrace").exists()


@pytest.mark.parametrize("name", few(LEFT, *EVERY_REASON))
def test_what_has_no_operator_says_which_node_and_why(
    name: str, spark: SparkSession, streams: dict[str, DataFrame], tmp_path: Path
) -> None:
    case = LEFT[name]
    df = program_of(spark, case, streams)
    assert case.why is not None
    with pytest.raises(UnsupportedPlanError) as error:
        mr.write_stream(df).outputMode(case.mode).format("noop").start(
            checkpointLocation=str(tmp_path / "location")
        )
    assert re.search(case.why, str(error.value))
    assert not (tmp_path / "location").exists()


def _late(query: Any) -> int:
    """How many rows a query says that it dropped."""
    return sum(p.stateOperators[0].numRowsDroppedByWatermark for p in query.recentProgress)


def _ended(df: DataFrame, location: Path) -> Any:
    """A query on Spark's own engine that has gone through its input."""
    writer = df.writeStream.outputMode("update").format("memory").trigger(availableNow=True)
    with configured(df.sparkSession, ONE_PARTITION):
        query = writer.start(checkpointLocation=str(location), queryName="spark_faces")
        query.awaitTermination()
    return query


def _newest(spark: SparkSession, table: str) -> dict[Any, int]:
    """The largest count of each page."""
    shown = spark.table(table).groupBy("page").agg(F.max("count").alias("n"))
    return {row.page: row.n for row in shown.collect()}


def test_the_query_has_the_face_of_sparks(
    spark: SparkSession, streams: dict[str, DataFrame], tmp_path: Path
) -> None:
    counted = streams["v"].groupBy(F.window("at", "5 minutes"), "page").count()
    with mr.enable(spark):
        query: Any = (
            counted.writeStream.queryName("faces")
            .outputMode("update")
            .format("memory")
            .option("checkpointLocation", str(tmp_path / "location"))
            .start()
        )
    try:
        query.processAllAvailable()
        assert isinstance(query, mr.Query)
        assert (query.name, query.isActive) == ("faces", True)
        assert query.id in [each.id for each in spark.streams.active]
        assert spark.streams.get(query.id).runId == query.runId
        assert query.status["isTriggerActive"] in (True, False)
        last = query.lastProgress
        assert isinstance(last, StreamingQueryProgress)
        (operator,) = last.stateOperators
        assert isinstance(operator, StateOperatorProgress)
        assert operator.operatorName == "window-1"
        assert len(last.sources) == 1
        assert _late(query) == _late(_ended(counted, tmp_path / "spark")) > 0
        state = query.sql('select sum(count) as n from "window-1"').to_pylist()
        assert state == [{"n": operator.numRowsTotal}]
        assert query.exception() is None
        assert query.awaitTermination(0.01) is False
        query.rescale(3).wait()
    finally:
        query.stop()
    assert not query.isActive
    assert query.awaitTermination() is None
    assert _newest(spark, "faces") == _newest(spark, "spark_faces") != {}


def test_what_has_no_operator_runs_on_sparks_engine(
    spark: SparkSession,
    streams: dict[str, DataFrame],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    median = streams["v"].groupBy("page").agg(F.percentile_approx("ms", 0.5).alias("m"))

    def start(strict: bool, place: str) -> Any:
        with mr.enable(spark, strict=strict):
            writer = median.writeStream.outputMode("update").format("noop")
            return writer.trigger(availableNow=True).start(checkpointLocation=str(tmp_path / place))

    with caplog.at_level(logging.WARNING, "millrace"):
        query = start(False, "checkpoint")
    query.awaitTermination()
    assert not isinstance(query, mr.Query)
    (line,) = [r.getMessage() for r in caplog.records if "own engine" in r.getMessage()]
    assert line.startswith(
        "a query runs on Spark's own engine: aggregate-1: percentile_approx(ms, 0.5D, 10000): "
        "there is no aggregate"
    )
    assert "\n" not in line
    with pytest.raises(UnsupportedPlanError, match="percentile_approx"):
        start(True, "other")
    assert not (tmp_path / "other").exists()
    mr.explain(median)
    assert "no operator" in capsys.readouterr().out
    counted = streams["v"].groupBy("page").count()
    with pytest.raises(ForeignCheckpointError, match="checkpoint"):
        mr.write_stream(counted).outputMode("update").format("noop").start(
            checkpointLocation=str(tmp_path / "checkpoint")
        )


def test_bad_input(spark: SparkSession, streams: dict[str, DataFrame], tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="Spark Connect"):
        mr.enable(object())  # type: ignore[arg-type]
    with pytest.raises(NotStreamingError):
        mr.write_stream(spark.range(3))
    with pytest.raises(NotStreamingError):
        mr.explain(spark.range(3))
    counted = streams["v"].groupBy("page").count()
    location = str(tmp_path / "location")
    with pytest.raises(AnalysisException, match="watermark"):
        mr.write_stream(counted).format("noop").start(checkpointLocation=location)
    with pytest.raises(UnsupportedPlanError, match="no state"):
        mr.write_stream(streams["v"]).format("noop").start(checkpointLocation=location)
    assert not Path(location).exists()


@pytest.mark.stress
def test_examples_write_the_same_with_and_without_the_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    programs = runpy.run_path(str(ROOT / "examples" / "unchanged" / "programs.py"))
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    spark.conf.set(
        provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
    try:
        expected = programs["run"](spark, tmp_path / "spark")
        with mr.enable(spark, strict=True):
            assert programs["run"](spark, tmp_path / "millrace") == expected
    finally:
        spark.conf.set(provider, str(before))
    assert all(expected.values())
