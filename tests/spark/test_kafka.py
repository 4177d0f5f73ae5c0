"""The Kafka sink and source on a real broker: what is written, and what is refused."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark import support

import millrace as mr
from millrace.errors import InstallationError, SinkError, SourceError
from millrace.spark import kafka as connector
from millrace.spark.lag import rows_behind
from millrace_lab.servers import free_port, kafka

pytestmark = pytest.mark.stress

EPOCHS = [[("a", 1), ("b", 2)], [("a", 10)], [("b", 5), ("c", None)]]
QUICK = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}


@pytest.fixture
def folder(tmp_path: Path) -> support.Folder:
    return support.Folder(tmp_path / "in", "k string, v int")


@pytest.fixture
def topic(broker: str) -> str:
    name = f"sink-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(broker, name)
    return name


def totals(spark: SparkSession, folder: support.Folder) -> mr.Stream:
    stream = mr.stream(folder.stream(spark)).key_by("k")
    return stream.aggregate(name="t", n=mr.count(), total=mr.sum("v"))


def run(sinked: mr.StreamWriter, location: Path, folder: support.Folder) -> mr.Query:
    query = sinked.start(str(location), parallelism=2)
    try:
        for rows in EPOCHS:
            folder.drop(rows)
            query.process_all_available()
    finally:
        query.stop()
    return query


def markers_of(location: Path) -> str:
    (note,) = (location / "sinks").iterdir()
    return note.name.removeprefix("kafka-").removesuffix(".json")


@pytest.mark.parametrize("exactly_once", [True, False])
def test_keys_values_headers_and_tombstones(
    spark: SparkSession,
    broker: str,
    topic: str,
    tmp_path: Path,
    folder: support.Folder,
    exactly_once: bool,
) -> None:
    sinked = totals(spark, folder).to(
        "kafka",
        topic=topic,
        servers=broker,
        key="k",
        # A sum of nothing is NULL, and so is the value: a tombstone.
        value=F.col("total"),
        headers={"n": "n", "bytes": F.expr("unhex('ff00')")},
        exactly_once=exactly_once,
    )
    query = run(sinked, tmp_path / "l", folder)
    found = [(m.key(), m.value(), m.headers()) for m in kafka.committed(broker, topic)]
    by_key: dict[Any, list[Any]] = {}
    for key, value, headers in found:
        by_key.setdefault(key, []).append((value, headers))
    raw = ("bytes", b"\xff\x00")
    assert by_key == {
        b"a": [(b"1", [("n", b"1"), raw]), (b"11", [("n", b"2"), raw])],
        b"b": [(b"2", [("n", b"1"), raw]), (b"7", [("n", b"2"), raw])],
        b"c": [(None, [("n", b"1"), raw])],
    }
    assert query.epoch == len(EPOCHS)


def test_without_a_key_the_value_is_json_of_all_columns(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path, folder: support.Folder
) -> None:
    run(totals(spark, folder).to("kafka", topic=topic, servers=broker), tmp_path / "l", folder)
    found = kafka.committed(broker, topic)
    assert {m.key() for m in found} == {None}
    assert sorted(m.value() or b"" for m in found) == [
        b'{"k":"a","n":1,"total":1}',
        b'{"k":"a","n":2,"total":11}',
        b'{"k":"b","n":1,"total":2}',
        b'{"k":"b","n":2,"total":7}',
        b'{"k":"c","n":1}',
    ]


def test_a_topic_of_markers_that_is_gone_is_noticed(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path, folder: support.Folder
) -> None:
    sinked = totals(spark, folder).to("kafka", topic=topic, servers=broker, key="k", writers=2)
    run(sinked, tmp_path / "l", folder)
    before = len(kafka.committed(broker, topic))
    markers = markers_of(tmp_path / "l")
    more = totals(spark, folder).to("kafka", topic=topic, servers=broker, key="k", writers=3)
    with pytest.raises(SinkError, match=r"2 writers since its first start, not writers=3"):
        more.start(str(tmp_path / "l"))
    kafka.delete_topic(broker, markers)
    with pytest.raises(SinkError, match=rf"'{markers}' .* is gone.*written twice.*Restore it"):
        totals(spark, folder).to("kafka", topic=topic, servers=broker, key="k").start(
            str(tmp_path / "l")
        )
    assert len(kafka.committed(broker, topic)) == before


def test_what_cannot_be_reached_or_made_is_refused(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path, folder: support.Folder
) -> None:
    stream, nowhere = totals(spark, folder), f"127.0.0.1:{free_port()}"
    here: dict[str, Any] = {"topic": topic, "servers": broker}
    structure = F.struct("k")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"topic": topic, "servers": nowhere, **QUICK}, r"cannot be asked.*Check servers="),
        ({"topic": "missing", "servers": broker}, r"'missing' does not exist.*Create it"),
        ({**here, "key": "nobody"}, r"cannot make records.*nobody.*Check key="),
        ({**here, "value": structure}, r"struct.*to_json"),
        ({**here, "kafka.security.protocol": "NONE"}, r"cannot be asked.*security.protocol"),
    ]
    for options, message in wrong:
        with pytest.raises(SinkError, match=message):
            stream.to("kafka", **options).start(str(tmp_path / "l"))
    assert "missing" not in kafka.topics(broker)
    assert not [name for name in kafka.topics(broker) if name.startswith(f"{topic}-markers")]


def test_sources_that_cannot_be_read_are_refused_at_the_start(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    def start(**options: str) -> None:
        settings = {**QUICK, **{name.replace("_", "."): v for name, v in options.items()}}
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker)
        rows = reader.options(**settings).load()
        mr.stream(rows).key_by("key").aggregate(name="t", n=mr.count()).to("noop").start(
            str(tmp_path / "l")
        )

    nowhere = f"127.0.0.1:{free_port()}"
    assigned = '{"missing": [0]}'
    wrong: list[tuple[dict[str, str], str]] = [
        (
            {"subscribe": topic, "kafka.bootstrap.servers": nowhere},
            r"cannot be asked for the topic",
        ),
        (
            {"subscribePattern": "a.*", "kafka.bootstrap.servers": nowhere},
            r"cannot be asked for its topics",
        ),
        ({"subscribe": f"{topic},missing"}, r"'missing' does not exist.*Create it"),
        ({"assign": assigned}, r"'missing' does not exist"),
        # The broker of the tests has no listener that speaks TLS.
        ({"subscribe": topic, "kafka.security.protocol": "SSL"}, r"cannot be asked.*credentials"),
    ]
    for options, message in wrong:
        with pytest.raises(SourceError, match=message):
            start(**options)
    assert not (tmp_path / "l").exists()


def test_lag_is_in_the_progress(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    source = f"source-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(broker, source, 1)
    kafka.produce(broker, source, [(str(i), "1") for i in range(10)])
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4)
        .load()
    )
    query = mr.stream(rows).key_by("key").aggregate(name="t", n=mr.count()).to("noop")
    running = query.start(str(tmp_path / "l"), parallelism=1)
    running.process_all_available()
    progress = running.progress()
    assert progress is not None
    (lag,) = progress["sources"]
    assert (lag["rows_behind"], lag["seconds_behind"]) == (0, 0.0)
    assert running.rows_behind() == {lag["source"]: 0}
    assert source in lag["source"]
    published = [p["sources"][0] for p in running.spark_query.recentProgress if p["numInputRows"]]
    running.stop()
    assert [rows_behind(each) for each in published] == [6, 2, 0]


def test_a_running_session_gets_the_connector_once(spark: SparkSession, broker: str) -> None:
    assert connector.has_client(spark)
    before = len(spark.sql("list jars").collect())
    same = mr.session(kafka=kafka.connector())
    assert same.sparkContext is spark.sparkContext
    assert len(spark.sql("list jars").collect()) == before


def test_jars_that_cannot_be_had(spark: SparkSession) -> None:
    with pytest.raises(InstallationError, match=r"could not get.*mr.session\(kafka="):
        connector.add(spark, ["ivy://org.example:none:1?transitive=false"])
