"""State as Spark tables, without Spark: what the source plans and reads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import EqualTo, GreaterThan, In
from tests.unit.serve.counting import Counting

from millrace.errors import UnknownEpochError, UnknownOperatorError, UsageError
from millrace.operators.operator import Column
from millrace.spark.tables import (
    ChangeReader,
    FilteringReader,
    KeyGroups,
    Options,
    StateReader,
    StateSource,
)

KEYS = (Column("user", T.StringType()), Column("page", T.StringType()))


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    made = Counting(str(tmp_path), KEYS)
    for epoch in range(3):
        made.epoch({(f"u-{i % 5}", f"p-{i % 3}"): (1, i) for i in range(epoch, 12)})
    return made


def read(reader: Any, partitions: Any = None) -> list[dict[str, Any]]:
    parts = reader.partitions() if partitions is None else partitions
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def as_state(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    assert len({(row["user"], row["page"]) for row in rows}) == len(rows)
    return {(row["user"], row["page"]): (row["n"], row["total"]) for row in rows}


def test_all_rows(counting: Counting) -> None:
    source = StateSource({"path": counting.url, "numPartitions": "5"})
    assert source.schema().simpleString() == (
        "struct<user:string,page:string,n:bigint,total:bigint>"
    )
    reader = source.reader(source.schema())
    assert len(reader.partitions()) == 5
    assert as_state(read(reader)) == counting.state


def test_a_read_stays_at_its_epoch(counting: Counting) -> None:
    reader = StateReader(Options.parse({"path": counting.url}))
    before = dict(counting.state)
    counting.epoch({("new", "new"): (1, 1)})
    assert as_state(read(reader)) == before
    earlier = StateReader(Options.parse({"path": counting.url, "batchId": "0"}))
    assert {row["n"] for row in read(earlier)} == {1}


def test_filters(counting: Counting) -> None:
    reader = FilteringReader(Options.parse({"path": counting.url, "numPartitions": "16"}))
    given = [
        EqualTo(("user",), "u-1"),
        In(("page",), ("p-0", "p-1", "none")),
        GreaterThan(("n",), 0),
    ]
    assert list(reader.pushFilters(given)) == given, "Spark applies them once more"
    parts = reader.partitions()
    assert 1 <= len(parts) <= 3
    found = as_state(read(reader, parts))
    wanted = {key for key in counting.state if key[0] == "u-1" and key[1] in ("p-0", "p-1")}
    assert found == {key: counting.state[key] for key in wanted}
    assert len(wanted) == 2


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(("user",), "u-1")],
        [EqualTo(("user",), 5), EqualTo(("page",), "p-1")],
        [In(("user",), tuple(map(str, range(200)))), In(("page",), tuple(map(str, range(200))))],
    ],
    ids=["half a key", "another type", "too many"],
)
def test_filters_that_are_left_to_spark(counting: Counting, filters: list[Any]) -> None:
    reader = FilteringReader(Options.parse({"path": counting.url}))
    reader.pushFilters(filters)
    assert as_state(read(reader)) == counting.state


def replayed(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    ordered = sorted(rows, key=lambda row: row["_epoch"])
    assert {row["_change"] for row in rows} <= {"upsert"}
    return {(row["user"], row["page"]): (row["n"], row["total"]) for row in ordered}


def test_a_feed_of_batches(counting: Counting) -> None:
    options = {"path": counting.url, "readChangeFeed": "true", "changeStartBatchId": "0"}
    rows = read(StateReader(Options.parse(options)))
    assert {row["_epoch"] for row in rows} == {1, 2, 3}
    assert replayed(rows) == counting.state
    part = options | {"changeStartBatchId": "1", "changeEndBatchId": "1"}
    assert {row["_epoch"] for row in read(StateReader(Options.parse(part)))} == {2}


def test_a_stream_of_changes(counting: Counting) -> None:
    options = {"path": counting.url, "readChangeFeed": "true", "maxEpochsPerTrigger": "1"}
    source = StateSource(options)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    assert (start, end) == ({"epoch": 0}, {"epoch": 3})
    rows = read(reader, reader.partitions(start, end))
    assert replayed(rows) == counting.state
    assert len(rows) == len(counting.state), "the state itself, and not how it came about"
    assert list(source.schema().names) == list(rows[0])
    assert reader.latestOffset(end, None) == end
    assert reader.partitions(end, end) == []
    for _ in range(2):
        counting.epoch({("u-1", "p-1"): (1, 1), ("new", "new"): (1, 1)})
    after = reader.latestOffset(end, None)
    assert after == {"epoch": 4}
    news = read(reader, reader.partitions(end, after))
    assert {(row["user"], row["_epoch"]) for row in news} == {("u-1", 4), ("new", 4)}
    assert replayed(rows + news + read(reader, reader.partitions(after, {"epoch": 5}))) == (
        counting.state
    )


def test_available_now_ends(counting: Counting) -> None:
    reader = ChangeReader(Options.parse({"path": counting.url, "readChangeFeed": "true"}))
    reader.prepareForTriggerAvailableNow()
    counting.epoch({("u-1", "p-1"): (1, 1)})
    assert reader.latestOffset({"epoch": 0}) == {"epoch": 3}


def test_a_stream_from_a_batch(counting: Counting) -> None:
    options = {"path": counting.url, "readChangeFeed": "true", "changeStartBatchId": "2"}
    assert ChangeReader(Options.parse(options)).initialOffset() == {"epoch": 2}


def test_filters_are_pushed_only_if_asked_for(counting: Counting) -> None:
    plain = StateSource({"path": counting.url})
    assert type(plain.reader(T.StructType())) is StateReader
    asked = StateSource({"path": counting.url, "pushFilters": "true"})
    assert type(asked.reader(T.StructType())) is FilteringReader


def test_refusals(counting: Counting) -> None:
    def source(**options: str) -> StateSource:
        return StateSource({"path": counting.url, **options})

    with pytest.raises(UnknownOperatorError, match="there is no operator 'x'"):
        source(operator="x").schema()
    with pytest.raises(UnknownEpochError, match="batches 0 to 2 are retained"):
        source(batchId="9").schema()
    for options, why in [
        ({"color": "red"}, "has no option 'color'"),
        ({"batchId": "one"}, "whole number"),
        ({"readChangeFeed": "maybe"}, "true or false"),
        ({"batchId": "1", "epoch": "1"}, "give one of them"),
        ({"stateVarName": "a", "readRegisteredTimers": "true"}, "give one"),
    ]:
        with pytest.raises(UsageError, match=why):
            source(**options).schema()
    with pytest.raises(UsageError, match="changeStartBatchId"):
        source(readChangeFeed="true").reader(T.StructType())
    with pytest.raises(UsageError, match="readChangeFeed"):
        source().streamReader(T.StructType())
    with pytest.raises(UsageError, match="needs a location"):
        StateSource({}).schema()


def test_partitions_can_travel(counting: Counting) -> None:
    reader = FilteringReader(Options.parse({"path": counting.url}))
    reader.pushFilters([EqualTo(("user",), "u-1"), EqualTo(("page",), "p-1")])
    part: KeyGroups = pickle.loads(pickle.dumps(reader.partitions()))[0]
    again: FilteringReader = pickle.loads(pickle.dumps(reader))
    assert [batch.num_rows for batch in again.read(part)] == [1]
