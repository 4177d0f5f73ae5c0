"""Several outputs of one query: side outputs, late rows, branches; and where state begins.

The outputs are compared with a recomputation of all input in batch, through restarts and failures.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark import support

import millrace as mr
from millrace import hooks
from millrace.errors import (
    DuplicateNameError,
    InitialStateError,
    ProcessorError,
    SinkError,
    StateTypeError,
    UnknownColumnError,
    UnknownOutputError,
    UsageError,
)

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "user string, seconds long"
OUTPUT = "user string, visits long"


class Visits(mr.Processor):
    """Counts, and tells of visits that are long or whose number is round."""

    count = mr.Value("long", default=0)
    long_ones = mr.SideOutput("user string, seconds long, visits long")
    round_ones = mr.SideOutput(
        "at struct<visits:long,when:timestamp>, price decimal(9,2), tags array<string>,"
        " parts map<string,long>"
    )

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        for row in rows:
            self.count.set(self.count.get() + 1)
            if row.seconds > 50:
                self.long_ones.emit((key.user, row.seconds, self.count.get()))
            if self.count.get() % 5 == 0:
                self.round_ones.emit(round_one(key.user, self.count.get()))
        yield (key.user, self.count.get())


def round_one(user: str | None, count: int) -> tuple[Any, ...]:
    at = {"visits": count, "when": NOON + dt.timedelta(seconds=count)}
    return at, decimal.Decimal(count) / 4, [str(user), "x"], {str(user): count}


def rows_of(rng: random.Random, count: int) -> list[tuple[str | None, int]]:
    users = [None, "", *(f"u{i}" for i in range(12))]
    return [(rng.choice(users), rng.randint(0, 80)) for _ in range(count)]


def files(path: Path) -> dict[int, list[dict[str, Any]]]:
    """What a file sink holds, by batch id."""
    found = {}
    for folder in path.glob("batch_id=*"):
        # Spark's files have timestamps without a zone, of nanoseconds.
        table = pq.read_table(folder, partitioning=None, coerce_int96_timestamp_unit="us")
        rows = table.to_pylist(maps_as_pydicts="strict")
        found[int(folder.name.partition("=")[2])] = rows
    return found


def committed(location: Path) -> int:
    return len(list((location / "manifests").glob("*.json")))


def counted(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(support.frozen(row) for row in rows)


class Oracle:
    """What the processor emits, recomputed from all input."""

    def __init__(self, epochs: list[list[tuple[str | None, int]]]) -> None:
        self.main: list[list[dict[str, Any]]] = []
        self.long_ones: list[list[dict[str, Any]]] = []
        self.round_ones: list[list[dict[str, Any]]] = []
        counts: Counter[str | None] = Counter()
        for rows in epochs:
            long_ones, round_ones = [], []
            for user, seconds in rows:
                counts[user] += 1
                n = counts[user]
                if seconds > 50:
                    long_ones.append({"user": user, "seconds": seconds, "visits": n})
                if n % 5 == 0:
                    row = dict(
                        zip(("at", "price", "tags", "parts"), round_one(user, n), strict=True)
                    )
                    row["at"]["when"] = row["at"]["when"].replace(tzinfo=None)
                    round_ones.append(row)
            self.main.append([{"user": u, "visits": counts[u]} for u in {u for u, _ in rows}])
            self.long_ones.append(long_ones)
            self.round_ones.append(round_ones)


def finish(sinked: mr.StreamWriter, location: Path, parallelism: int = 2) -> mr.Query:
    query = sinked.start(str(location), parallelism=parallelism)
    try:
        query.process_all_available()
    finally:
        query.stop()
    return query


def shard_runs(query: mr.Query) -> int:
    """How many times a shard ran in the last epoch, repeated ones included."""
    return len(query._run.runner._plans.reports())


@pytest.mark.stress
def test_side_outputs_equal_a_recomputation_through_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(5)
    persistent = set(spark.sparkContext._jsc.getPersistentRDDs())
    folder = support.Folder(tmp_path / "in", SCHEMA)
    epochs = [rows_of(rng, size) for size in (90, 1, 60)]
    outputs: support.Outputs = {}
    for rows, parallelism in zip(epochs, (2, 3, 1), strict=True):
        folder.drop(rows)
        visits = (
            mr.stream(folder.stream(spark)).key_by("user").process(Visits(), OUTPUT, name="visits")
        )
        long_ones = visits.side("long_ones")
        per_user = long_ones.key_by("user").aggregate(
            name="per-user", n=mr.count(), top=mr.max("seconds")
        )
        query = finish(
            visits.to("parquet", path=str(tmp_path / "main")).also(
                long_ones.transform(lambda df: df.where("seconds <> 77")).to(
                    "parquet", path=str(tmp_path / "long")
                ),
                visits.side("round_ones").to("parquet", path=str(tmp_path / "round")),
                per_user.for_each_batch(support.record(outputs)),
                visits.key_by("visits").aggregate(name="by-count", users=mr.count()).to("noop"),
            ),
            tmp_path / "location",
            parallelism,
        )
        # Three operators; the first has four readers and still ran once.
        assert shard_runs(query) == 3 * parallelism
    oracle = Oracle(epochs)
    kept = [[r for r in rows if r["seconds"] != 77] for rows in oracle.long_ones]
    for name, expected in (("main", oracle.main), ("long", kept), ("round", oracle.round_ones)):
        written = files(tmp_path / name)
        assert sorted(written) == list(range(len(epochs)))
        for batch_id, rows in enumerate(expected):
            assert counted(written[batch_id]) == counted(rows), f"{name} of batch {batch_id}"
    aggregates = {"n": mr.count(), "top": mr.max("seconds")}
    inputs = folder.batch(spark).where("seconds > 50")
    reader = mr.open(str(tmp_path / "location"))
    state = support.batch_state(inputs, ["user"], aggregates)
    support.assert_same(reader.to_arrow("per-user"), state, ["user"], "per-user")
    for epoch, table in support.batch_outputs(inputs, ["user"], aggregates, len(epochs)).items():
        support.assert_same(outputs[epoch - 1], table, ["user"], f"per-user in epoch {epoch}")
    by_count = Counter(row["visits"] for rows in oracle.main for row in rows)
    assert {r["visits"]: r["users"] for r in reader.to_arrow("by-count").to_pylist()} == by_count
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= persistent


def test_a_side_output_alone(spark: SparkSession, tmp_path: Path) -> None:
    """The main output is not read, and what is not read is not sent."""
    rng = random.Random(6)
    folder = support.Folder(tmp_path / "in", SCHEMA)
    epochs = [rows_of(rng, 50), rows_of(rng, 30)]
    visits = mr.stream(folder.stream(spark)).key_by("user").process(Visits(), OUTPUT, name="v")
    for rows in epochs:
        folder.drop(rows)
        query = finish(
            visits.side("round_ones").to("parquet", path=str(tmp_path / "round")),
            tmp_path / "location",
        )
        assert query._run.runner._plans._pipeline.outputs == {"v": ("round_ones",)}
        assert shard_runs(query) == 2
    written = files(tmp_path / "round")
    for batch_id, expected in enumerate(Oracle(epochs).round_ones):
        assert counted(written[batch_id]) == counted(expected)


class Extremes(mr.BatchProcessor):
    """Emits the sums, and beside them the rows that are far from their key's last sum."""

    total = mr.Value("long", default=0)
    far = mr.SideOutput("user string, seconds long, total long")

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        import numpy as np

        seconds, before = batch.numpy("seconds"), state.numpy("total")
        total = before + np.add.reduceat(seconds, batch.starts[:-1])
        state["total"] = total
        is_far = seconds > before[batch.key_of_row]
        rows = batch.table.select(["user", "seconds"])
        rows = rows.append_column("total", [total[batch.key_of_row]])
        self.far.emit(rows.filter(is_far))
        return {"user": batch.keys["user"], "total": total}


def test_a_batch_processors_side_output(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(7)
    folder = support.Folder(tmp_path / "in", SCHEMA)
    epochs = [rows_of(rng, 60), rows_of(rng, 25), rows_of(rng, 25)]
    for rows, parallelism in zip(epochs, (2, 1, 3), strict=True):
        folder.drop(rows)
        sums = (
            mr.stream(folder.stream(spark))
            .key_by("user")
            .process(Extremes(), "user string, total long", name="sums")
        )
        finish(
            sums.to("parquet", path=str(tmp_path / "main")).also(
                sums.side("far").to("parquet", path=str(tmp_path / "far"))
            ),
            tmp_path / "location",
            parallelism,
        )
    totals: Counter[str | None] = Counter()
    written, far = files(tmp_path / "main"), files(tmp_path / "far")
    for batch_id, rows in enumerate(epochs):
        before = Counter(totals)
        for user, seconds in rows:
            totals[user] += seconds
        expected = [{"user": u, "total": totals[u]} for u in {u for u, _ in rows}]
        assert counted(written[batch_id]) == counted(expected)
        expected = [{"user": u, "seconds": s, "total": totals[u]} for u, s in rows if s > before[u]]
        assert counted(far[batch_id]) == counted(expected)


def test_a_batch_is_written_once_though_a_later_sink_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(8)
    folder = support.Folder(tmp_path / "in", SCHEMA)
    epochs = [rows_of(rng, 30), rows_of(rng, 30)]
    seen: dict[int, list[Counter[Any]]] = {}
    fails = [True]

    def build() -> mr.StreamWriter:
        source = mr.stream(folder.stream(spark))
        visits = source.key_by("user").process(Visits(), OUTPUT, name="visits")

        def keep(df: DataFrame, batch_id: int) -> None:
            seen.setdefault(batch_id, []).append(counted(df.toArrow().to_pylist()))
            if batch_id == 1 and fails.pop():
                raise OSError("the disk is full")

        return (
            visits.side("long_ones")
            .to("parquet", path=str(tmp_path / "long"))
            .also(visits.for_each_batch(keep))
        )

    folder.drop(epochs[0])
    finish(build(), tmp_path / "location")
    folder.drop(epochs[1])
    with pytest.raises(Exception, match="the disk is full"):
        finish(build(), tmp_path / "location")
    oracle = Oracle(epochs)
    written = files(tmp_path / "long")
    assert counted(written[1]) == counted(oracle.long_ones[1]), "the first sink has it already"
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "long").rglob("*.parquet")}
    assert committed(tmp_path / "location") == 1
    fails.append(False)
    finish(build(), tmp_path / "location", parallelism=1)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "long").rglob("*.parquet")} == stamps
    assert seen == {0: [counted(oracle.main[0])], 1: [counted(oracle.main[1])] * 2}


def test_late_rows_are_a_stream_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", "user string, at timestamp, n long")
    minutes = [
        [("a", 30, 1), ("b", 31, 2)],
        [("a", 29, 3), ("a", 5, 4), (None, 6, 5)],
        [("b", 1, 6)],
    ]
    outputs: support.Outputs = {}
    late: support.Outputs = {}

    class Count(mr.Processor):
        count = mr.Value("long", default=0)

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
            self.count.set(self.count.get() + len(rows))
            yield (key.user, self.count.get())

    source = mr.stream(folder.stream(spark), event_time="at", watermark="10 minutes")
    counts = source.key_by("user").process(Count(), OUTPUT, name="counts")
    by_user = counts.late().key_by("user").aggregate(name="late", n=mr.count(), last=mr.max("n"))
    sinked = counts.for_each_batch(support.record(outputs)).also(
        counts.late().for_each_batch(support.record(late)), by_user.to("noop")
    )
    dropped = 0
    for rows in minutes:
        folder.drop([(u, NOON + dt.timedelta(minutes=m), n) for u, m, n in rows])
        query = finish(sinked, tmp_path / "location")
        progress = query.recent_progress()
        dropped += sum(p["operators"]["counts"]["counters"].get("late", 0) for p in progress)
    rows = [row for table in late.values() for row in table.to_pylist()]
    # The watermark is at 12:21 when the second batch comes.
    assert sorted(row["n"] for row in rows) == [4, 5, 6]
    assert {row["at"].astimezone(dt.UTC) for row in rows} == {
        NOON + dt.timedelta(minutes=m) for m in (5, 6, 1)
    }
    assert [row["_epoch"] for row in sorted(rows, key=lambda r: r["n"])] == [2, 2, 3]
    assert dropped == 3
    reader = mr.open(str(tmp_path / "location"))
    state = {r["user"]: (r["n"], r["last"]) for r in reader.to_arrow("late").to_pylist()}
    assert state == {"a": (1, 4), None: (1, 5), "b": (1, 6)}
    kept = [row for table in outputs.values() for row in table.to_pylist()]
    assert max(row["visits"] for row in kept if row["user"] == "a") == 2


def test_one_output_for_several_readers(spark: SparkSession, tmp_path: Path) -> None:
    """Branches of any stream, of an aggregate or of the source; what they share runs once."""
    folder = support.Folder(tmp_path / "in", "k string, v long")
    first: support.Outputs = {}
    second: support.Outputs = {}
    source = mr.stream(folder.stream(spark)).transform(lambda df: df.where("v > 0"))
    sums = source.key_by("k").aggregate(name="sums", total=mr.sum("v"))
    random_ones = sums.transform(lambda df: df.withColumn("r", F.rand()))
    sinked = random_ones.for_each_batch(support.record(first)).also(
        random_ones.for_each_batch(support.record(second)),
        source.key_by("v").aggregate(name="values", n=mr.count()).to("noop"),
    )
    for rows in ([("a", 1), ("b", 2), ("a", -5)], [("a", 2), ("c", 2)]):
        folder.drop(rows)
        query = finish(sinked, tmp_path / "location")
        assert shard_runs(query) == 2 * 2
    for batch_id in (0, 1):
        assert counted(first[batch_id].to_pylist()) == counted(second[batch_id].to_pylist())
    reader = mr.open(str(tmp_path / "location"))
    assert {r["k"]: r["total"] for r in reader.to_arrow("sums").to_pylist()} == {
        "a": 3,
        "b": 2,
        "c": 2,
    }
    assert {r["v"]: r["n"] for r in reader.to_arrow("values").to_pylist()} == {1: 1, 2: 3}


@pytest.mark.parametrize(
    "reshape",
    [
        lambda df: df.coalesce(1),
        lambda df: df.limit(0).union(df),
        lambda df: df.sparkSession.range(5, numPartitions=3).selectExpr("'' k", "id").union(df),
    ],
)
def test_partitions_may_be_reshaped_after_an_operator(
    spark: SparkSession, tmp_path: Path, reshape: Callable[[DataFrame], DataFrame]
) -> None:
    """A shard is where its rows are, not the partition of the task that asks for them."""
    folder = support.Folder(tmp_path / "in", "k string, v long")
    folder.drop([(f"k{i}", i) for i in range(50)])
    counts = mr.stream(folder.stream(spark)).key_by("k").aggregate(name="n", n=mr.count())
    outputs: support.Outputs = {}
    finish(
        counts.transform(reshape).for_each_batch(support.record(outputs)),
        tmp_path / "location",
        parallelism=3,
    )
    assert [row["k"] for row in outputs[0].to_pylist()].count("k7") == 1
    assert len({r["k"] for r in outputs[0].to_pylist()} - {""}) == 50
    assert mr.open(str(tmp_path / "location")).to_arrow("n").num_rows == 50


class Loyal(mr.Processor):
    """Points that begin with what an old system had."""

    points = mr.Value("long", default=0)
    pages = mr.Map("string", "long")
    log = mr.List("string")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        for row in rows:
            self.points.set(self.points.get() + row.v)
            self.pages[row.page] = self.pages.get(row.page, 0) + 1
            self.log.append(row.page)
        yield (key.k, self.points.get(), len(self.log))


class Imported(Loyal):
    """The same, from rows of another shape, and with something to say about each key."""

    def on_initial_state(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Iterator[Any]:
        for row in rows:
            self.points.set(self.points.get() + row.amount)
            self.log.append(f"old {row.amount}")
        yield (key.k, self.points.get(), -1)


INPUT = "k string, page string, v long"
BATCHES = [[("a", "/", 1), ("c", "/", 3)], [("a", "/x", 5), ("b", "/", 1), (None, "/", 2)]]


def crash(monkeypatch: pytest.MonkeyPatch, point: str, epoch: int) -> None:
    """Fail at a point of an epoch, once."""
    real, pending = hooks.reach, [True]

    def reach(at: str, now: int) -> None:
        if (at, now) == (point, epoch) and pending and pending.pop():
            raise RuntimeError(f"lost power at {point}")
        real(at, now)

    monkeypatch.setattr(hooks, "reach", reach)


@pytest.mark.parametrize(
    ("point", "epochs"),
    [(None, 1), (hooks.AFTER_SINK, 0), (hooks.AFTER_MANIFEST, 1)],
)
def test_the_initial_state_is_applied_once(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str | None,
    epochs: int,
) -> None:
    """With a failure of the first epoch before its manifest, after it, or none."""
    folder = support.Folder(tmp_path / "in", INPUT)
    start = spark.createDataFrame(
        [
            ("a", 100, {"/": 7}, ["old"]),
            ("z", 200, None, None),
            (None, 300, {}, ["x", "y"]),
            ("gone", None, None, None),
        ],
        "k string, points long, pages map<string,long>, log array<string>",
    )
    location = tmp_path / "location"
    outputs: support.Outputs = {}

    def build() -> mr.StreamWriter:
        source = mr.stream(folder.stream(spark))
        loyal = source.key_by("k").process(
            Loyal(), "k string, points long, n int", name="loyal", initial_state=start
        )
        return loyal.for_each_batch(support.record(outputs))

    folder.drop(BATCHES[0])
    if point is not None:
        crash(monkeypatch, point, 1)
        with pytest.raises(Exception, match="lost power"):
            finish(build(), location)
        assert committed(location) == epochs
    finish(build(), location)
    assert {tuple(r.values()) for r in outputs[0].to_pylist()} == {("a", 101, 2), ("c", 3, 1)}
    folder.drop(BATCHES[1])
    finish(build(), location, parallelism=3)
    reader = mr.open(str(location))
    assert reader.epoch == 2
    state = {r["k"]: r["points"] for r in reader.to_arrow("loyal").to_pylist()}
    assert state == {"a": 106, "b": 1, "c": 3, "z": 200, None: 302}
    pages = {
        (r["k"], r["key"]): r["value"] for r in reader.to_arrow("loyal", state="pages").to_pylist()
    }
    assert pages == {("a", "/"): 8, ("a", "/x"): 1, ("c", "/"): 1, ("b", "/"): 1, (None, "/"): 1}
    assert {tuple(r.values()) for r in outputs[1].to_pylist()} == {
        ("a", 106, 3),
        ("b", 1, 1),
        (None, 302, 3),
    }


def test_a_processor_reads_its_initial_state_itself(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", INPUT)
    old = [(f"k{i % 40}", i) for i in range(300)]
    start = spark.createDataFrame(old, "k string, amount int").repartition(4)
    outputs: support.Outputs = {}
    for rows, parallelism in (([("k3", "/", 1000)], 2), ([("k3", "/", 1)], 3)):
        folder.drop(rows)
        imported = (
            mr.stream(folder.stream(spark))
            .key_by("k")
            .process(Imported(), "k string, points long, n int", name="points", initial_state=start)
        )
        finish(imported.for_each_batch(support.record(outputs)), tmp_path / "location", parallelism)
    sums: Counter[str] = Counter()
    for key, amount in old:
        sums[key] += amount
    expected = {(key, total, -1) for key, total in sums.items()}
    assert {tuple(r.values()) for r in outputs[0].to_pylist()} == expected | {
        ("k3", sums["k3"] + 1000, 9)
    }
    assert [tuple(r.values()) for r in outputs[1].to_pylist()] == [("k3", sums["k3"] + 1001, 10)]
    state = mr.open(str(tmp_path / "location")).to_arrow("points").to_pylist()
    sums["k3"] += 1001
    assert {r["k"]: r["points"] for r in state} == sums


def test_the_initial_state_of_a_batch_processor(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    start = spark.createDataFrame([("a", 10), ("b", 20)], "user string, total long")
    for rows in ([("a", 1), ("c", 2)], [("b", 3), ("a", 1)]):
        folder.drop(rows)
        sums = (
            mr.stream(folder.stream(spark))
            .key_by("user")
            .process(Extremes(), "user string, total long", name="sums", initial_state=start)
        )
        finish(sums.to("noop"), tmp_path / "location")
    state = mr.open(str(tmp_path / "location")).to_arrow("sums").to_pylist()
    assert {r["user"]: r["total"] for r in state} == {"a": 12, "b": 23, "c": 2}


def test_wrong_outputs_are_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    source = mr.stream(folder.stream(spark))
    visits = source.key_by("user").process(Visits(), OUTPUT, name="visits")
    with pytest.raises(
        UnknownOutputError, match=r"'visits' has no side output 'short'.*'long_ones'"
    ):
        visits.side("short")
    with pytest.raises(UnknownOutputError, match="does not treat rows as late"):
        visits.late()
    with pytest.raises(UnknownOutputError, match="has no side output 'late rows'"):
        visits.side("late rows")
    for stream in (source, visits.transform(lambda df: df), visits.side("long_ones")):
        with pytest.raises(UnknownOutputError, match=r"call it on what process"):
            stream.side("long_ones")
    counts = source.key_by("user").aggregate(name="counts", n=mr.count())
    with pytest.raises(UnknownOutputError, match="it has none"):
        counts.side("long_ones")
    with pytest.raises(UnknownOutputError, match="'counts' does not treat rows as late"):
        counts.late()
    sinked = visits.to("noop")
    with pytest.raises(UsageError, match="branches that have a sink"):
        sinked.also(visits.side("long_ones"))  # type: ignore[arg-type]
    again = source.key_by("user").process(Visits(), OUTPUT, name="visits").to("noop")
    with pytest.raises(DuplicateNameError, match="keep its stream in a variable"):
        sinked.also(again).start(str(tmp_path / "location"))
    for options in ({"path": str(tmp_path / "sink")}, {"name": "t"}):
        kind = "parquet" if "path" in options else "memory"
        twice = visits.to(kind, **options).also(visits.side("long_ones").to(kind, **options))
        with pytest.raises(SinkError, match="two sinks of the query write to"):
            twice.start(str(tmp_path / "location"))
    assert not (tmp_path / "location").exists()


@pytest.mark.parametrize(
    ("schema", "error", "words"),
    [
        ("points long", UnknownColumnError, ["'k'", "part of the key", "points"]),
        ("k long, points long", InitialStateError, ["'k' is bigint", "string", "Cast"]),
        ("k string, points int", InitialStateError, ["'points' is int", "bigint"]),
        ("k string, pages map<string,int>", InitialStateError, ["map<string,bigint>"]),
        ("k string, log string", InitialStateError, ["array<string>"]),
        ("k string, score long", InitialStateError, ["'score'", "'points', 'pages', 'log'"]),
    ],
)
def test_an_initial_state_that_does_not_fit(
    spark: SparkSession, tmp_path: Path, schema: str, error: type[Exception], words: list[str]
) -> None:
    folder = support.Folder(tmp_path / "in", INPUT)
    keyed = mr.stream(folder.stream(spark)).key_by("k")
    with pytest.raises(error) as caught:
        keyed.process(
            Loyal(), "k string", name="l", initial_state=spark.createDataFrame([], schema)
        )
    for word in words:
        assert word in str(caught.value)


def test_an_initial_state_that_is_no_batch(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", INPUT)
    keyed = mr.stream(folder.stream(spark)).key_by("k")
    given: list[tuple[Any, str]] = [
        (folder.stream(spark), "is a stream"),
        ([("a", 1)], "takes a batch DataFrame, not list"),
    ]
    for wrong, words in given:
        with pytest.raises(InitialStateError, match=words):
            keyed.process(Loyal(), "k string", name="l", initial_state=wrong)


def test_two_rows_for_a_key_fail_the_first_epoch(spark: SparkSession, tmp_path: Path) -> None:
    folder = support.Folder(tmp_path / "in", INPUT)
    folder.drop(BATCHES[0])
    start = spark.createDataFrame([("a", 1), ("a", 2)], "k string, points long")
    loyal = (
        mr.stream(folder.stream(spark))
        .key_by("k")
        .process(Loyal(), "k string, points long, n int", name="loyal", initial_state=start)
    )
    with pytest.raises(InitialStateError, match=r"2 rows for key Key\(k='a'\).*on_initial_state"):
        finish(loyal.to("noop"), tmp_path / "location")
    assert committed(tmp_path / "location") == 0


class Wrong(mr.Processor):
    """Emits to its side output what a row's number says."""

    alerts = mr.SideOutput("user string, n int")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> None:
        self.alerts.emit((key.user, "many") if rows[0].seconds else ("?", 1 // 0))


def test_a_row_that_does_not_fit_a_side_output_fails_the_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    for seconds, error, words in (
        (1, StateTypeError, "side output 'alerts'.*'many'"),
        (0, ProcessorError, "ZeroDivisionError"),
    ):
        folder = support.Folder(tmp_path / f"in{seconds}", SCHEMA)
        folder.drop([("ann", seconds)])
        wrong = mr.stream(folder.stream(spark)).key_by("user").process(Wrong(), OUTPUT, name="w")
        location = tmp_path / f"location{seconds}"
        # Nobody reads the side output: it is an error all the same.
        with pytest.raises(error, match=words):
            finish(wrong.to("noop"), location)
        assert committed(location) == 0
