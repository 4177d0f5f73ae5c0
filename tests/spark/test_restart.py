"""What may change between two starts from one location, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark import support
from tests.waiting import DEADLINE, until

import millrace as mr
from millrace.errors import OperatorSetChangedError, SchemaChangedError

SCHEMA = "device string, room int, value int"
FIRST = [("a", 1, 5), ("b", 1, 7), (None, 2, None)]
SECOND = [("a", 1, 1), ("c", 2, 2)]


@pytest.fixture
def folder(tmp_path: Path) -> support.Folder:
    return support.Folder(tmp_path / "in", SCHEMA)


def totals(stream: mr.Stream, **aggregates: mr.Aggregate) -> mr.Stream:
    return stream.key_by("device").aggregate(name="totals", **aggregates)


def run(stream: mr.Stream, location: Path, parallelism: int = 2) -> mr.Query:
    query = stream.to("noop").start(str(location), parallelism=parallelism)
    try:
        query.process_all_available()
    finally:
        query.stop()
    return query


def test_another_parallelism(
    spark: SparkSession, tmp_path: Path, folder: support.Folder, caplog: pytest.LogCaptureFixture
) -> None:
    aggregates = {"n": mr.count(), "total": mr.sum("value")}
    identities = set()
    for parallelism in (2, 4, 1):
        folder.drop(FIRST + SECOND)
        query = run(
            totals(mr.stream(folder.stream(spark)), **aggregates), tmp_path / "l", parallelism
        )
        progress = query.progress()
        assert progress is not None
        assert progress["operators"]["totals"]["shards"] == parallelism
        identities.add(query.id)
    assert len(identities) == 1
    told = [m for m in caplog.messages if "the program sets parallelism=" in m]
    for message, (was, now) in zip(told, ((2, 4), (4, 1)), strict=True):
        assert f"should have had {was} shards" in message
        assert f"continues with {now}," in message
    expected = support.batch_state(folder.batch(spark), ["device"], aggregates)
    support.assert_same(mr.open(str(tmp_path / "l")).to_arrow(), expected, ["device"], "after 3")


def test_the_number_of_key_groups_stays(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    stream = totals(mr.stream(folder.stream(spark)), n=mr.count())
    for key_groups, rows in ((4, FIRST), (64, SECOND)):
        folder.drop(rows)
        query = stream.to("noop").start(str(tmp_path / "l"), parallelism=2, key_groups=key_groups)
        query.process_all_available()
        query.stop()
    state = support.by_key(mr.open(str(tmp_path / "l")).to_arrow(), ["device"], "")
    assert state == {("a",): {"n": 2}, ("b",): {"n": 1}, (None,): {"n": 1}, ("c",): {"n": 1}}


def test_an_added_aggregate_starts_from_empty(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    folder.drop(FIRST)
    run(
        totals(mr.stream(folder.stream(spark)), n=mr.count(), total=mr.sum("value")), tmp_path / "l"
    )
    folder.drop(SECOND)
    wider = totals(
        mr.stream(folder.stream(spark)),
        later=mr.count(),
        total=mr.sum("value"),
        top=mr.max("value"),
        n=mr.count(),
        avg=mr.mean("value"),
        spread=mr.variance("value"),
        newest=mr.last("room"),
    )
    run(wider, tmp_path / "l")
    state = mr.open(str(tmp_path / "l")).to_arrow()
    assert state.column_names == ["device", "later", "total", "top", "n", "avg", "spread", "newest"]
    rows = {
        key: tuple(values.values())
        for (key,), values in support.by_key(state, ["device"], "").items()
    }
    assert rows == {
        "a": (1, 6, 1, 2, 1.0, None, 1),
        "b": (0, 7, None, 1, None, None, None),
        "c": (1, 2, 2, 1, 2.0, None, 2),
        None: (0, None, None, 1, None, None, None),
    }
    # The epoch before the change still shows what it was.
    assert mr.open(str(tmp_path / "l"), epoch=1).to_arrow().column_names == ["device", "n", "total"]


def test_reordered_aggregates_keep_their_values(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    aggregates = {"n": mr.count(), "low": mr.min("value"), "total": mr.sum("value")}
    folder.drop(FIRST)
    run(totals(mr.stream(folder.stream(spark)), **aggregates), tmp_path / "l")
    folder.drop(SECOND)
    turned = dict(reversed(aggregates.items()))
    run(totals(mr.stream(folder.stream(spark)), **turned), tmp_path / "l", parallelism=3)
    expected = support.batch_state(folder.batch(spark), ["device"], turned)
    support.assert_same(mr.open(str(tmp_path / "l")).to_arrow(), expected, ["device"], "reordered")


Change = Callable[[mr.Stream], mr.Stream]

REFUSED: dict[str, tuple[type[Exception], Change, list[str]]] = {
    "operator renamed": (
        OperatorSetChangedError,
        lambda s: s.key_by("device").aggregate(n=mr.count(), total=mr.sum("value"), name="sums"),
        ["'totals'", "'sums'"],
    ),
    "operator added": (
        OperatorSetChangedError,
        lambda s: (
            totals(s, n=mr.count(), total=mr.sum("value"))
            .key_by("n")
            .aggregate(m=mr.count(), name="extra")
        ),
        ["the new 'extra'"],
    ),
    "operators replaced": (
        OperatorSetChangedError,
        lambda s: (
            s.key_by("device")
            .aggregate(n=mr.count(), name="x")
            .key_by("n")
            .aggregate(m=mr.count(), name="y")
        ),
        ["no longer has 'totals'", "'x', 'y'"],
    ),
    "key renamed": (
        SchemaChangedError,
        lambda s: (
            s.transform(lambda df: df.withColumnRenamed("device", "unit"))
            .key_by("unit")
            .aggregate(n=mr.count(), total=mr.sum("value"), name="totals")
        ),
        ["device string", "unit string"],
    ),
    "key added": (
        SchemaChangedError,
        lambda s: s.key_by("device", "room").aggregate(
            n=mr.count(), total=mr.sum("value"), name="totals"
        ),
        ["(device string)", "(device string, room int)"],
    ),
    "key type changed": (
        SchemaChangedError,
        lambda s: totals(
            s.transform(lambda df: df.withColumn("device", df.device.cast("binary"))),
            n=mr.count(),
            total=mr.sum("value"),
        ),
        ["device string", "device binary"],
    ),
    "aggregate removed": (
        SchemaChangedError,
        lambda s: totals(s, n=mr.count()),
        ["no longer has", "total = sum(value) over int"],
    ),
    "function changed": (
        SchemaChangedError,
        lambda s: totals(s, n=mr.count(), total=mr.max("value")),
        ["total = sum(value) over int", "total = max(value) over int"],
    ),
    "input changed": (
        SchemaChangedError,
        lambda s: totals(s, n=mr.count(), total=mr.sum("room")),
        ["sum(value)", "sum(room)"],
    ),
    "input type changed": (
        SchemaChangedError,
        lambda s: totals(
            s.transform(lambda df: df.withColumn("value", df.value.cast("double"))),
            n=mr.count(),
            total=mr.sum("value"),
        ),
        ["over int", "over double"],
    ),
}


def test_refused_changes_name_the_difference_and_touch_nothing(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    location = tmp_path / "l"
    definition = {"n": mr.count(), "total": mr.sum("value")}
    folder.drop(FIRST)
    run(totals(mr.stream(folder.stream(spark)), **definition), location)
    folder.drop(SECOND)
    before = support.files_of(location)
    sink = tmp_path / "sink"
    for what, (kind, change, named) in REFUSED.items():
        changed = change(mr.stream(folder.stream(spark))).to("parquet", path=str(sink))
        with pytest.raises(kind) as caught:
            changed.start(str(location), parallelism=2)
        for words in [*named, "checkpointLocation"]:
            assert words in str(caught.value), f"{what}: {caught.value}"
        assert support.files_of(location) == before, what
        assert not sink.exists(), what
    run(totals(mr.stream(folder.stream(spark)), **definition), location)
    expected = support.batch_state(folder.batch(spark), ["device"], definition)
    support.assert_same(mr.open(str(location)).to_arrow(), expected, ["device"], "after refusals")


def test_a_removed_operator_is_refused(
    spark: SparkSession, tmp_path: Path, folder: support.Folder
) -> None:
    folder.drop(FIRST)
    both = (
        totals(mr.stream(folder.stream(spark)), n=mr.count())
        .key_by("n")
        .aggregate(m=mr.count(), name="second")
    )
    run(both, tmp_path / "l")
    before = support.files_of(tmp_path / "l")
    with pytest.raises(OperatorSetChangedError, match="no longer has 'second'"):
        run(totals(mr.stream(folder.stream(spark)), n=mr.count()), tmp_path / "l")
    assert support.files_of(tmp_path / "l") == before


class Alarms(mr.Processor):
    """Counts, and says so once more after a while without rows."""

    n = mr.Value("long", default=0)
    quiet = mr.ProcessingTimeTimer()

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        self.n.set(self.n.get() + len(rows))
        self.quiet.set(ctx.processing_time + dt.timedelta(milliseconds=1))
        yield (key.k, self.n.get(), "rows")

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Iterator[Any]:
        yield (key.k, self.n.get(), "quiet")


def test_timers_with_one_trigger_after_another(spark: SparkSession, tmp_path: Path) -> None:
    """A query with timers has a heartbeat besides its input, with every trigger alike."""
    folder = support.Folder(tmp_path / "in", "k string")
    outputs: support.Outputs = {}
    alarms = (
        mr.stream(folder.stream(spark))
        .key_by("k")
        .process(Alarms(), "k string, n long, why string", name="alarms")
        .for_each_batch(support.record(outputs))
    )
    location = str(tmp_path / "location")

    def said() -> list[tuple[str, int, str]]:
        return [tuple(row.values()) for t in list(outputs.values()) for row in t.to_pylist()]

    def quiet_counts() -> set[tuple[str, int]]:
        return {(k, n) for k, n, why in said() if why == "quiet"}

    for trigger in ("available_now", "100 milliseconds", "available_now", None):
        folder.drop([("a",), ("b",)])
        query = alarms.start(location, parallelism=2, trigger=trigger)
        if trigger == "available_now":
            assert query.await_termination(DEADLINE)
        else:
            query.process_all_available()
            if trigger is None:
                until(lambda: quiet_counts() >= {("a", 4), ("b", 4)}, "the last timers fired")
            query.stop()
            # As if it had been killed before Spark noted its last batch.
            commits = tmp_path / "location" / "spark" / "commits"
            last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
            (commits / str(last)).unlink()
    every = {(k, n) for k in "ab" for n in (1, 2, 3, 4)}
    assert {(k, n) for k, n, why in said() if why == "rows"} == every
    # A count that rows of the next run changed before its timer was looked at did not stay quiet.
    assert quiet_counts() <= every
    assert len(said()) == len(set(said()))
