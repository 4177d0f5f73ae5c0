"""Spark's processors on both engines: the same class, the same files, the same output per batch.

Each file is one micro-batch. What a processor sees and does is written down as text, so that types
count, not just values. After the last file both engines run batches without data, in which timers
fire. The first that emits something is compared; whether more follow differs: Spark waits for the
watermark to move, Millrace does not.
Nothing depends on how long a batch takes: processing times are shown relative to the batch's, and
a TTL or timer is either a millisecond or an hour.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.waiting import DEADLINE, until

import millrace as mr
from millrace.api.origin import origin
from millrace.spark.steps import OperatorStep

SCHEMA = (
    "k string, at timestamp, n long, d double, s string, m map<string,long>, "
    "st struct<p:int,q:timestamp>, xs array<int>"
)
OUTPUT = "k string, what string, n long, at timestamp, parts array<struct<a:long,b:string>>"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HOUR = 3_600_000

VALUE = (
    "n long, d double, s string, t timestamp, a array<int>, m map<string,long>, "
    "x struct<p:int,q:timestamp>, b binary, c decimal(10,2), dd date, i int, f float, y boolean"
)


def shown(value: Any) -> str:
    """A value's text; the order of a map's entries is not Spark's to promise."""
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{shown(k)}: {shown(v)}" for k, v in value.items())) + "}"
    if isinstance(value, Row):
        return f"Row{[f'{n}={shown(v)}' for n, v in zip(value.__fields__, value, strict=True)]}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return f"{value!r}"


class Everything(StatefulProcessor):
    """Uses every method, and tells what it saw."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", VALUE)
        self.count = handle.getValueState("k", "n long")
        self.elements = handle.getListState("my list", "n long, at timestamp")
        self.entries = handle.getMapState("entries", "s string, i int", "n long, x struct<p:int>")
        self.unused = handle.getListState("unused", "n long")
        handle.getValueState("temporary", "n long")
        handle.deleteIfExists("temporary")
        handle.deleteIfExists("never there")

    def steps(self, key: Any, rows: list[Any], timer_values: Any) -> Iterator[tuple[str, int]]:
        n = sum(int(row.n) for row in rows)
        moment = None if rows[0].at is pd.NaT else rows[0].at
        yield f"{type(key).__name__} {shown(tuple(key))}", n
        yield f"watermark {timer_values.getCurrentWatermarkInMs()}", n
        yield f"now {timer_values.getCurrentProcessingTimeInMs() > 1_600_000_000_000}", n
        yield from self.of_value(n, moment)
        yield from self.of_list(n, moment)
        yield from self.of_map(n)

    def of_value(self, n: int, moment: dt.datetime | None) -> Iterator[tuple[str, int]]:
        count = self.count.get()
        self.count.update(((0 if count is None else count[0]) + n,))
        yield f"count {shown(count)} -> {shown(self.count.get())}", n
        yield f"value {self.value.exists()} {shown(self.value.get())}", n
        if n == 4:
            self.value.clear()
        elif n == 5:
            # Nothing here is what the schema says, but for the number of fields.
            self.value.update((1.5, 3, 12, None, "no", 7, None, "text", 5, None, 2**33 + 5, 1, 1))
        else:
            nested = (n, moment)
            exact = decimal.Decimal("1.005")
            day = dt.date(2024, 2, 29)
            map_ = {"a": n, "b": None}
            self.value.update(
                (n, 0.5, "é", moment, (1, None), map_, nested, b"\0x", exact, day, -1, 0.1, True)
            )
        yield f"value {self.value.exists()} {shown(self.value.get())}", n

    def of_list(self, n: int, moment: dt.datetime | None) -> Iterator[tuple[str, int]]:
        yield f"list {self.elements.exists()} {shown(list(self.elements.get()))}", n
        if n % 2:
            self.elements.appendValue((n, moment))
            self.elements.appendList([(n + 1, None), (None, moment)])
        elif n == 4:
            self.elements.clear()
        else:
            self.elements.put([(n, moment)])
        both = zip(self.elements.get(), self.elements.get(), strict=True)
        yield f"list {self.elements.exists()} {shown(list(both))}", n
        yield f"unused {self.unused.exists()} {list(self.unused.get())}", n

    def of_map(self, n: int) -> Iterator[tuple[str, int]]:
        entries = self.entries
        yield f"map {entries.exists()} {sorted(map(shown, entries.iterator()))}", n
        for i in range(3):
            held = entries.getValue(("x", i))
            entries.updateValue(("x", i), (n if held is None else held.n + i, (i,)))
        entries.updateValue((None, n), (None, None))
        entries.removeKey(("x", n % 3))
        entries.removeKey(("nobody", 0))
        yield f"entry {shown(entries.getValue(('x', 0)))} {shown(entries.getValue(('y', 0)))}", n
        yield f"has {entries.containsKey(('x', 1))} {entries.containsKey(('y', 1))}", n
        yield f"keys {sorted(map(shown, entries.keys()))}", n
        yield f"values {sorted(map(shown, entries.values()))}", n
        if n == 5:
            entries.clear()
            yield f"map {entries.exists()} {list(entries.iterator())}", n

    def set_timers(self, key: Any, at_ms: int) -> Iterator[tuple[str, int]]:
        for after in (0, 5_000, 60_000, -HOUR, 60_000):
            self.handle.registerTimer(at_ms + after)
        self.handle.deleteTimer(at_ms + 5_000)
        self.handle.deleteTimer(at_ms + 7_000)
        yield f"timers {sorted(self.handle.listTimers())}", 0

    def expire(self, key: Any, timer_values: Any, info: Any) -> Iterator[tuple[str, int]]:
        at = info.getExpiryTimeInMs()
        count = self.count.get()
        yield f"fired {at} {shown(key)} {timer_values.getCurrentWatermarkInMs()}", at
        yield f"listed {sorted(self.handle.listTimers())} {shown(count)}", at
        self.count.update((-1 if count is None else count[0] + 1000,))
        # Its own: no effect. The next: fires all the same, if it is due. An old one: next time.
        self.handle.registerTimer(at)
        self.handle.deleteTimer(at + HOUR)
        if at % 60_000 == 0:
            self.handle.registerTimer(at - 1)

    def close(self) -> None:
        pass


class Rows(Everything):
    """The processor of `transformWithState`."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        listed = list(rows)
        yield Row(k=key[0], what=f"rows {shown(listed)}", n=len(listed), at=listed[0].at)
        at_ms = 0 if listed[0].at is None else int(listed[0].at.timestamp() * 1000)
        for what, n in [*self.steps(key, listed, timerValues), *self.set_timers(key, at_ms)]:
            yield Row(n=n, what=what, k=key[0], ignored=1)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        for what, at in self.expire(key, timerValues, expiredTimerInfo):
            # A naive time in the output is taken as UTC.
            yield Row(
                k=key[0], what=what, at=dt.datetime(2024, 1, 1), parts=[Row(b="x", a=at), None]
            )

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.count.update((initialState.start,))
        self.elements.appendValue((initialState.start, initialState.since))
        self.entries.updateValue((shown(tuple(key)), 0), (len(shown(initialState)), None))
        self.handle.registerTimer(initialState.start)


class Frames(Everything):
    """The processor of `transformWithStateInPandas`."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        frames = list(rows)
        types = [(list(f.columns), [str(t) for t in f.dtypes], list(f.index)) for f in frames]
        records = [row for f in frames for row in f.itertuples(index=False)]
        seen = [(f"{types}", len(frames))]
        plain = [(r.k, r.at, r.n, r.d, r.s, r.m, r.st) for r in records]
        seen += [(shown(plain), len(records))]
        at_ms = 0 if records[0].at is pd.NaT else int(records[0].at.timestamp() * 1000)
        seen += [*self.steps(key, records, timerValues), *self.set_timers(key, at_ms)]
        for what, n in seen:
            yield pd.DataFrame(
                {
                    "n": [n],
                    "k": [key[0]],
                    "what": [what],
                    "at": [records[0].at],
                    "parts": [[{"a": n, "b": None}]],
                }
            )

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        for what, at in self.expire(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame(
                {"k": [key[0]], "what": what, "n": at, "at": pd.NaT, "parts": [None]}
            )

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        rows = list(initialState.itertuples(index=False))
        self.count.update((sum(int(row.start) for row in rows),))
        self.entries.updateValue((shown(tuple(key)), 0), (len(rows), None))
        self.handle.registerTimer(int(rows[0].start))


class Passing(StatefulProcessor):
    """Processing time: state that lives a millisecond or an hour, timers in the past and future."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.states = []
        for name, ttl in (("short", 1), ("long", HOUR), ("forever", 0)):
            self.states.append(
                (
                    handle.getValueState(f"{name}-value", "n long", ttl),
                    handle.getListState(f"{name}-list", "n long", ttlDurationMs=ttl),
                    handle.getMapState(f"{name}-map", "s string", "n long", ttl),
                )
            )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        n = sum(row.n for row in rows)
        yield Row(k=key[0], what=f"watermark {timerValues.getCurrentWatermarkInMs()}", n=n)
        for value, elements, entries in self.states:
            for _ in range(2):
                found = (value.exists(), value.get(), elements.exists(), list(elements.get()))
                held = (
                    entries.exists(),
                    entries.getValue((f"{n}",)),
                    entries.containsKey(("all",)),
                    sorted(entries.iterator()),
                    sorted(entries.keys()),
                    sorted(entries.values()),
                )
                yield Row(k=key[0], what=shown((*found, *held)), n=n)
                value.update((n,))
                elements.appendValue((n,))
                entries.updateValue((f"{n}",), (n,))
                entries.updateValue(("all",), (n,))
        for after in (-HOUR, 0, 1, HOUR):
            self.handle.registerTimer(now + after)
        earlier = [t - now for t in self.handle.listTimers() if t - now in (-HOUR, 0, 1, HOUR)]
        yield Row(k=key[0], what=f"timers {sorted(earlier)}", n=n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        after = expiredTimerInfo.getExpiryTimeInMs() - timerValues.getCurrentProcessingTimeInMs()
        kind = "old" if after <= -HOUR else "now" if after == 0 else "next"
        yield Row(k=key[0], what=f"fired {kind} {after <= 0} {self.states[1][0].get()}", n=None)

    def close(self) -> None:
        pass


class Before(StatefulProcessor):
    """No time at all; the first life of a query."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")
        self.old = handle.getValueState("old", "n long")
        self.old_map = handle.getMapState("old map", "n long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = self.count.get()
        n = (0 if count is None else count[0]) + sum(row.n for row in rows)
        self.count.update((n,))
        self.old.update((n,))
        self.old_map.updateValue((n,), (n,))
        times = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(k=key[0], what=f"{times} {list(self.old_map.keys())}", n=n)

    def close(self) -> None:
        pass


class After(StatefulProcessor):
    """The second life: two states are gone, one is new."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")
        handle.deleteIfExists("old")
        handle.deleteIfExists("old map")
        self.new = handle.getListState("new", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = self.count.get()
        self.new.appendValue((sum(row.n for row in rows),))
        yield Row(k=key[0], what=f"{count} {list(self.new.get())}", n=0)

    def close(self) -> None:
        pass


def row(k: str | None, at: str | None, n: int, **more: Any) -> dict[str, Any]:
    return {"k": k, "at": at, "n": n, **more}


FULL = {
    "d": 1.5,
    "s": "ü",
    "m": {"x": 1},
    "st": {"p": 1, "q": "2024-01-01 00:00:00"},
    "xs": [1, 2],
}
FILES = [
    [
        row("a", "2024-01-01 12:00:00", 1, **FULL),
        row("b", "2024-01-01 12:00:10", 2),
        row("a", "2024-01-01 11:59:00", 2, s="again"),
        row(None, "2024-01-01 12:00:00", 7, d=0.25),
    ],
    # The watermark is 12:00:10, but rows are late by that of the batch before.
    [
        row("a", "2024-01-01 12:10:00.123456", 3, **FULL),
        row("c", "2024-01-01 12:00:00", 9),
        row("b", "2024-01-01 12:00:11", 4, m={}),
    ],
    # Two are late now, one of them exactly at the watermark of the batch before.
    [
        row("a", "2024-01-01 12:00:05", 4),
        row("d", "2024-01-01 12:00:10", 8),
        row("e", "2024-01-01 12:00:10.001", 5),
        row("c", "2024-01-01 12:10:00", 5),
        row("b", "2024-01-01 12:20:00", 6),
    ],
    [row("c", "2024-01-01 12:30:00", 3), row("a", "2024-01-01 12:30:00", 5), row("z", None, 1)],
]
INITIAL = "k string, start long, since timestamp"


Seen = Callable[["Outputs"], bool]


class Lab:
    """Runs a processor on either engine, and keeps what each batch emitted."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.folder = path / "input"
        self.folder.mkdir()
        self.files = 0

    def put(self, rows: list[dict[str, Any]]) -> None:
        """One micro-batch. Spark takes files in the order of their times."""
        text = "\n".join(json.dumps(row) for row in rows)
        hidden = self.folder / f".{self.files}"
        hidden.write_text(text)
        self.files += 1
        os.utime(hidden, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        hidden.rename(self.folder / f"{self.files:03d}.json")

    def source(self) -> DataFrame:
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder))

    def on_spark(self, transformed: DataFrame, seen: Seen | None = None) -> Outputs:
        """Run until some output was seen, or else until everything is committed."""
        outputs = Outputs()
        writer = transformed.writeStream.foreachBatch(outputs.take)
        query = writer.option("checkpointLocation", str(self.path / "spark")).start()
        try:
            if seen is None:
                query.processAllAvailable()
            else:
                until(lambda: seen(outputs) or not query.isActive, "the output that ends a run")
            assert query.exception() is None
        finally:
            query.stop()
        return outputs

    def on_millrace(self, stream: mr.Stream, seen: Seen | None = None) -> Outputs:
        outputs = Outputs()
        sinked = stream.for_each_batch(outputs.take)
        query = sinked.start(str(self.path / "millrace"), parallelism=3)
        try:
            if seen is None:
                query.process_all_available()
            else:
                until(lambda: seen(outputs) or not query.is_active, "the output that ends a run")
            if query.exception() is not None:
                raise AssertionError("the query failed") from query.exception()
        finally:
            query.stop()
        return outputs


class Outputs:
    """What each batch emitted, sorted."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def take(self, df: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = sorted(shown(row) for row in df.collect())

    def of(self, batch_id: int) -> list[str]:
        return self.batches.get(batch_id, [])

    def after(self, batch_id: int) -> list[str]:
        """The first batch after this one that emitted something."""
        later = sorted(i for i, rows in self.batches.items() if i > batch_id and rows)
        return self.of(later[0]) if later else []


def compare(spark_side: Outputs, ours: Outputs, files: int) -> None:
    for batch in range(files):
        assert ours.of(batch) == spark_side.of(batch), f"batch {batch}"
    assert ours.after(files - 1) == spark_side.after(files - 1), "the first batch without data"


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Iterator[Lab]:
    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.session.timeZone": "America/New_York",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield Lab(spark, tmp_path)
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.stress
@pytest.mark.parametrize("in_pandas", [False, True], ids=["rows", "pandas"])
def test_event_time(lab: Lab, in_pandas: bool) -> None:
    for rows in FILES:
        lab.put(rows)
    since = dt.datetime(2023, 5, 5, tzinfo=dt.UTC)
    initial_rows = [("a", 100, since), ("a", 101, since), ("q", 200, None), (None, 300, since)]
    initial = lab.spark.createDataFrame(initial_rows, INITIAL).coalesce(1)
    processor = Frames() if in_pandas else Rows()

    def arguments() -> tuple[Any, ...]:
        return processor, OUTPUT, "Update", "EventTime", initial.groupBy("k")

    grouped = lab.source().withWatermark("at", "0 seconds").groupBy("k")
    ours = mr.transform_with_state_in_pandas if in_pandas else mr.transform_with_state
    theirs = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    last = len(FILES) - 1

    def done(seen: Outputs) -> bool:
        return len(seen.after(last)) > 0

    spark_side = lab.on_spark(theirs(*arguments()), done)
    our_side = lab.on_millrace(ours(grouped, *arguments()), done)
    compare(spark_side, our_side, len(FILES))
    text = "".join(line for lines in spark_side.batches.values() for line in lines)
    assert "fired 200 " in text, "the initial state's timers fire"
    assert "'d'" not in text, "late rows are dropped"


@pytest.mark.stress
def test_processing_time(lab: Lab) -> None:
    files = [[row("a", None, 1), row("b", None, 2)], [row("a", None, 3)], [row("a", None, 4)]]
    for rows in files:
        lab.put(rows)
    arguments = Passing(), "k string, what string, n long", "append", "ProcessingTime"
    last = len(files) - 1

    def done(seen: Outputs) -> bool:
        return len(seen.after(last)) > 0

    grouped = lab.source().groupBy("k")
    spark_side = lab.on_spark(grouped.transformWithState(*arguments), done)
    our_side = lab.on_millrace(mr.transform_with_state(grouped, *arguments), done)
    compare(spark_side, our_side, len(files))
    assert "fired old True" in "".join(spark_side.of(0))
    assert "fired next True" in "".join(spark_side.after(last))


@pytest.mark.stress
def test_states_are_deleted_and_added_between_two_lives(lab: Lab) -> None:
    lab.put([row("a", None, 1), row("b", None, 2)])
    lab.put([row("a", None, 3)])
    output = "k string, what string, n long"
    files = 2
    for processor in (Before(), After()):
        if isinstance(processor, After):
            lab.put([row("a", None, 4), row("b", None, 5), row("c", None, 6)])
            files = 3
        grouped = lab.source().groupBy("k")
        transformed = grouped.transformWithState(processor, output, "Update", "None")
        spark_side = lab.on_spark(transformed)
        stream = mr.transform_with_state(grouped, processor, output, "Update", "none")
        our_side = lab.on_millrace(stream)
        compare(spark_side, our_side, files)
        assert spark_side.of(files - 1)


class Dated(StatefulProcessor):
    """Gives its output an event time: that of the input, or an hour before."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], at=row.at - dt.timedelta(hours=1) if row.n == 1 else row.at)

    def close(self) -> None:
        pass


@pytest.mark.stress
def test_output_may_not_be_late(lab: Lab) -> None:
    """Late by the watermark of the batch before: the second file's is not yet, the third's is."""
    lab.put([row("a", "2024-01-01 12:00:00", 0)])
    lab.put([row("a", "2024-01-01 12:10:00", 1)])
    lab.put([row("a", "2024-01-01 12:20:00", 1)])
    grouped = lab.source().withWatermark("at", "0 seconds").groupBy("k")
    arguments = Dated(), "k string, at timestamp", "Append", "EventTime", None, "at"
    spark_side, our_side = Outputs(), Outputs()
    writer = grouped.transformWithState(*arguments).writeStream.foreachBatch(spark_side.take)
    spark_query = writer.option("checkpointLocation", str(lab.path / "spark")).start()
    with pytest.raises(StreamingQueryException):
        spark_query.awaitTermination(int(DEADLINE))
    assert "EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED" in str(spark_query.exception())
    stream = mr.transform_with_state(grouped, *arguments)
    query = stream.for_each_batch(our_side.take).start(str(lab.path / "millrace"), parallelism=2)
    until(lambda: not query.is_active, "ended by the late row")
    assert "not after the watermark" in str(query.exception())
    assert our_side.batches == spark_side.batches
    assert len(our_side.batches) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timeMode": "WallClock"}, "timeMode='WallClock'"),
        ({"outputMode": "Complete"}, "needs an aggregation"),
        ({"outputMode": "Sometimes"}, "outputMode='Sometimes'"),
        ({"statefulProcessor": Before}, "takes an instance"),
        ({"eventTimeColumnName": "when"}, "'when' is not in the output schema"),
        ({"eventTimeColumnName": "k"}, "is not a timestamp"),
        ({"name": "no/slash"}, "cannot be an operator's name"),
        ({"by": []}, "grouped by no column"),
        ({"by": ["st.p"]}, "which is not a column"),
        ({"grouped": None}, "must be a grouped DataFrame"),
        ({"batch": True}, "got a batch DataFrame"),
        ({"initialState": "n"}, "The types must agree"),
    ],
)
def test_what_the_call_refuses(lab: Lab, change: dict[str, Any], message: str) -> None:
    rows = lab.spark.createDataFrame([], SCHEMA)
    df = rows if change.pop("batch", False) else lab.source()
    grouped = change.pop("grouped", df.groupBy(*change.pop("by", ["k"])))
    if "initialState" in change:
        change["initialState"] = rows.groupBy(change["initialState"])
    arguments = {
        "statefulProcessor": Before(),
        "outputStructType": "k string, what string, n long",
        "outputMode": "Append",
        "timeMode": "None",
        **change,
    }
    with pytest.raises(mr.MillraceError, match=message):
        mr.transform_with_state(grouped, **arguments)


def test_grouping_columns_are_found(lab: Lab) -> None:
    df = lab.source().withColumnRenamed("s", "s.t")
    output = "k string, what string, n long"
    for columns in ((df["k"], F.col("`s.t`")), (df.k, "`s.t`")):
        stream = mr.transform_with_state(df.groupBy(*columns), Before(), output, "Append", "None")
        assert stream.schema.names == ["k", "what", "n"]
        step = origin(stream).point.step
        assert isinstance(step, OperatorStep)
        assert [key["name"] for key in step.operator.spec()["keys"]] == ["k", "s.t"]
    with pytest.raises(mr.MillraceError, match="which is not a column"):
        mr.transform_with_state(df.groupBy(df.n + 1), Before(), output, "Append", "None")
    with pytest.raises(mr.MillraceError, match="rollup"):
        mr.transform_with_state(df.rollup("k"), Before(), output, "Append", "None")
