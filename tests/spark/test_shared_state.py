"""Broadcast and task state in real queries, against batch computations over the same files."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark import support
from tests.stress import few

import millrace as mr
from millrace.errors import SchemaChangedError, UsageError

PAYMENTS = "shop string, amount double"
RULES = "shop string, limit double, note string"
OUTPUT = "shop string, amount double, limit double, note string, n long"


class Fraud(mr.Processor):
    """Shows each payment with the rule that holds."""

    n = mr.Value("long", default=0)
    rules = mr.Broadcast("string", "struct<limit:double,note:string>")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        rule = self.rules.get(key.shop, {"limit": None, "note": None})
        self.n.set(self.n.get() + len(rows))
        for row in rows:
            yield (row.shop, row.amount, rule["limit"], rule["note"], self.n.get())


class Seen(mr.Processor):
    """Counts the rows of each shard."""

    rows = mr.TaskState("long", split="divide", merge=sum, default=0)
    log = mr.TaskState("array<string>", split="divide", merge="concat", default=[])

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.rows.set(self.rows.get() + len(rows))
        self.log.set([*self.log.get(), key.shop])
        yield (key.shop, self.rows.get())


@pytest.fixture
def payments(tmp_path: Path) -> support.Folder:
    return support.Folder(tmp_path / "payments", PAYMENTS)


@pytest.fixture
def rules(tmp_path: Path) -> support.Folder:
    return support.Folder(tmp_path / "rules", RULES)


def keyed(folder: support.Folder, spark: SparkSession, *, deleted: str = "limit is null") -> Any:
    """Rules by shop; one without a limit removes what there is."""
    return (
        mr.stream(folder.stream(spark))
        .transform(lambda df: df.selectExpr("shop", "limit", "note", f"{deleted} as deleted"))
        .key_by("shop")
    )


def run_once(
    stream: mr.Stream, location: Path, parallelism: int, outputs: support.Outputs | None = None
) -> mr.Query:
    """One epoch with all there is."""
    kept: support.Outputs = {} if outputs is None else outputs
    query = stream.for_each_batch(support.record(kept)).start(
        str(location), parallelism=parallelism, trigger="available_now"
    )
    query.await_termination()
    assert query.exception() is None
    return query


DROPS: list[tuple[list[Any], list[Any]]] = [
    ([("a", 10.0, "first"), ("b", 20.0, None)], [("a", 1.0), ("b", 2.0), ("c", 3.0)]),
    ([], [("a", 4.0), ("c", 5.0)]),
    ([("a", 11.0, "x"), ("a", 12.0, "last"), ("c", 1.0, None)], [("a", 6.0), ("b", 7.0)]),
    ([("b", None, None), ("z", None, None)], [("a", 8.0), ("b", 9.0), ("c", 10.0), (None, 1.0)]),
    ([("b", 5.0, "back"), (None, 0.5, "null")], [("b", 11.0), (None, 2.0)]),
]


def as_of(spark: SparkSession, payments: support.Folder, rules: support.Folder) -> DataFrame:
    """Each payment with the last rule of its epoch or before, by a join of all files."""
    paid, known = payments.batch(spark).alias("p"), rules.batch(spark).alias("r")
    joined = paid.join(
        known,
        F.col("p.shop").eqNullSafe(F.col("r.shop")) & (F.col("r._epoch") <= F.col("p._epoch")),
        "left",
    )
    last = F.max_by(F.struct("r.limit", "r.note"), F.col("r._seq")).alias("rule")
    return joined.groupBy("p._epoch", "p._seq", "p.shop", "p.amount").agg(last)


@pytest.mark.parametrize("batched", few([False, True], True))
def test_broadcast_rows_come_before_the_keyed_rows_of_their_epoch(
    spark: SparkSession,
    tmp_path: Path,
    payments: support.Folder,
    rules: support.Folder,
    batched: bool,
) -> None:
    outputs: support.Outputs = {}
    processor = FraudBatch() if batched else Fraud()
    for (new_rules, new_payments), parallelism in zip(DROPS, (2, 4, 1, 3, 2), strict=True):
        rules.drop(new_rules, files=1)
        payments.drop(new_payments, files=2)
        stream = (
            mr.stream(payments.stream(spark))
            .transform(lambda df: df.select("shop", "amount"))
            .key_by("shop")
            .process(processor, OUTPUT, name="fraud", broadcast={"rules": keyed(rules, spark)})
        )
        run_once(stream, tmp_path / "l", parallelism, outputs)
    expected: dict[int, Counter[Any]] = {}
    for row in as_of(spark, payments, rules).collect():
        rule = row.rule if row.rule is not None and row.rule.limit is not None else (None, None)
        shown = (row.shop, row.amount, *rule)
        expected.setdefault(row._epoch - 1, Counter())[shown] += 1
    found = {
        batch: Counter(tuple(r.values())[:4] for r in table.to_pylist())
        for batch, table in outputs.items()
    }
    assert found == expected
    counted = support.by_key(mr.open(str(tmp_path / "l")).to_arrow("fraud"), ["shop"], "")
    counts = {key: values["n"] for key, values in counted.items()}
    assert counts == Counter((shop,) for _, paid in DROPS for shop, _ in paid)
    state = mr.open(str(tmp_path / "l")).to_arrow("fraud", state="rules")
    assert state.column_names == ["key", "value"]
    assert {r["key"]: r["value"] for r in state.to_pylist()} == {
        "a": {"limit": 12.0, "note": "last"},
        "b": {"limit": 5.0, "note": "back"},
        "c": {"limit": 1.0, "note": None},
        None: {"limit": 0.5, "note": "null"},
    }
    earlier = mr.open(str(tmp_path / "l"), epoch=4).to_arrow("fraud", state="rules")
    assert sorted(earlier.column("key").to_pylist()) == ["a", "c"]


class FraudBatch(mr.BatchProcessor):
    """The same with columns."""

    n = mr.Value("long", default=0)
    rules = mr.Broadcast("string", "struct<limit:double,note:string>")

    def process(self, batch: mr.Batch, state: mr.States, ctx: mr.Context) -> Any:
        table = state["rules"]
        known = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        shops = batch.table["shop"].to_pylist()
        found = [known.get(shop, {"limit": None, "note": None}) for shop in shops]
        counts = state.numpy("n") + np.diff(batch.starts)
        state["n"] = counts
        return {
            "shop": shops,
            "amount": batch.table["amount"],
            "limit": [rule["limit"] for rule in found],
            "note": [rule["note"] for rule in found],
            "n": counts[batch.key_of_row],
        }


class Joined(mr.Processor):
    names = mr.Broadcast("long", "string")
    colours = mr.Broadcast("long", "string")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        yield (key.n, self.names.get(key.n), self.colours.get(key.n))


@pytest.mark.stress
def test_broadcasts_reach_operators_wherever_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """Behind an aggregate, behind another processor with a broadcast state, and two at once."""
    payments = support.Folder(tmp_path / "p", PAYMENTS)
    rules = support.Folder(tmp_path / "r", RULES)
    names = support.Folder(tmp_path / "n", "n long, name string")
    colours = support.Folder(tmp_path / "c", "n long, name string")

    def by_number(folder: support.Folder) -> Any:
        return mr.stream(folder.stream(spark).select("n", "name")).key_by("n")

    def joined(stream: mr.Stream) -> mr.Stream:
        sides = {"names": by_number(names), "colours": by_number(colours)}
        return stream.key_by("n").process(
            Joined(), "n long, name string, colour string", name="joined", broadcast=sides
        )

    source = mr.stream(payments.stream(spark).select("shop", "amount")).key_by("shop")
    aggregated = joined(source.aggregate(n=mr.count(), name="counts"))
    fraud = source.process(Fraud(), OUTPUT, name="fraud", broadcast={"rules": keyed(rules, spark)})
    limited = joined(fraud.transform(lambda df: df.where("limit > 1").select("n")))
    expected: dict[str, list[set[Any]]] = {
        "aggregated": [{(1, "one", None), (2, None, "red")}, {(2, None, "red"), (3, "drei", None)}],
        "limited": [{(2, None, "red")}, {(3, "drei", None)}],
    }
    outputs: dict[str, support.Outputs] = {"aggregated": {}, "limited": {}}
    for new_rules, new_names, new_colours, paid in (
        ([("a", 2.0, None)], [(1, "one"), (3, "three")], [(2, "red")], "aab"),
        ([], [(3, "drei"), (1, None)], [], "ab"),
    ):
        rules.drop(new_rules)
        names.drop(new_names)
        colours.drop(new_colours)
        payments.drop([(shop, 1.0) for shop in paid])
        run_once(aggregated, tmp_path / "aggregated", 2, outputs["aggregated"])
        run_once(limited, tmp_path / "limited", 3, outputs["limited"])
    for name, epochs in expected.items():
        found = [{tuple(r.values()) for r in outputs[name][n].to_pylist()} for n in range(2)]
        assert found == epochs, name
    reader = mr.open(str(tmp_path / "limited"))
    assert reader.to_arrow("joined", state="names").to_pylist() == [{"key": 3, "value": "drei"}]
    assert reader.tables("joined") == ["names", "colours"]


def test_a_broadcast_does_not_hold_the_watermark_back_and_comes_on_an_idle_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Alarm(mr.Processor):
        texts = mr.Broadcast("string", "string")
        alarm = mr.EventTimeTimer()
        tick = mr.ProcessingTimeTimer()

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.alarm.set(ctx.event_time + mr.minutes(5))
            yield (key.k, self.texts.get(key.k))

        def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
            yield (key.k, self.texts.get(key.k))

    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    events = support.Folder(tmp_path / "e", "k string, at timestamp")
    texts = support.Folder(tmp_path / "t", "k string, text string")
    texts.drop([("a", "hello"), ("b", "there")])
    events.drop([("a", noon)])
    outputs: support.Outputs = {}
    query = (
        mr.stream(events.stream(spark).select("k", "at"), event_time="at", watermark="1 minute")
        .key_by("k")
        .process(
            Alarm(),
            "k string, text string",
            name="alarm",
            broadcast={"texts": mr.stream(texts.stream(spark).select("k", "text")).key_by("k")},
        )
        .for_each_batch(support.record(outputs))
        .start(str(tmp_path / "l"), parallelism=2)
    )
    try:
        query.process_all_available()
        texts.drop([("a", "bye")])
        query.process_all_available()
        assert mr.open(query.location).to_arrow("alarm", state="texts").to_pylist() == [
            {"key": k, "value": v}
            for k, v in sorted({"a": "bye", "b": "there"}.items(), key=_order(query.location))
        ]
        events.drop([("b", noon + mr.hours(1))])
        query.process_all_available()
        query.process_all_available()
        progress = query.progress()
    finally:
        query.stop()
    assert progress is not None
    assert progress["watermark_ms"] == int((noon + mr.minutes(59)).timestamp() * 1000)
    rows = [tuple(r.values()) for n in sorted(outputs) for r in outputs[n].to_pylist()]
    assert rows == [("a", "hello"), ("b", "there"), ("a", "bye")]


def _order(location: str) -> Callable[[tuple[str, str]], int]:
    keys = mr.open(location).to_arrow("alarm", state="texts").column("key").to_pylist()
    return lambda item: keys.index(item[0])


def test_task_state_follows_the_shards(
    spark: SparkSession, tmp_path: Path, payments: support.Folder
) -> None:
    """The totals stay exact whatever the parallelism, also when a batch runs twice."""
    stream = (
        mr.stream(payments.stream(spark).select("shop", "amount"))
        .key_by("shop")
        .process(Seen(), "shop string, rows long", name="seen")
    )

    def failing(df: DataFrame, batch_id: int) -> None:
        df.collect()
        raise RuntimeError("the sink is full")

    total = 0
    logged: Counter[str] = Counter()
    for n, parallelism in enumerate((1, 4, 3, 2, 7)):
        shops = [f"s{(n * 7 + i) % 23}" for i in range(n * 10 + 5)]
        payments.drop([(shop, 1.0) for shop in shops], files=2)
        total += len(shops)
        logged.update(set(shops))
        if n % 2:
            broken = stream.for_each_batch(failing).start(str(tmp_path / "l"), parallelism=5)
            with pytest.raises(Exception, match="the sink is full"):
                broken.process_all_available()
        query = run_once(stream, tmp_path / "l", parallelism)
        assert query.epoch == n + 1
        reader = mr.open(str(tmp_path / "l"))
        rows = reader.to_arrow("seen", state="rows")
        assert rows.column_names == ["shard", "groups", "value"]
        assert sum(rows.column("value").to_pylist()) == total
        assert set(rows.column("shard").to_pylist()) <= set(range(parallelism))
        log = reader.to_arrow("seen", state="log").column("value").to_pylist()
        assert Counter(shop for part in log for shop in part) == logged


def test_a_shard_without_rows_hands_its_task_state_on(
    spark: SparkSession, tmp_path: Path, payments: support.Folder
) -> None:
    stream = (
        mr.stream(payments.stream(spark).select("shop", "amount"))
        .key_by("shop")
        .process(Seen(), "shop string, rows long", name="seen")
    )
    payments.drop([(f"s{i}", 1.0) for i in range(20)])
    run_once(stream, tmp_path / "l", 1)
    payments.drop([("s1", 1.0)])
    run_once(stream, tmp_path / "l", 4)
    rows = mr.open(str(tmp_path / "l")).to_arrow("seen", state="rows").to_pylist()
    assert [(r["shard"], r["groups"]) for r in rows] == [
        (0, "0-63"),
        (1, "64-127"),
        (2, "128-191"),
        (3, "192-255"),
    ]
    assert sorted(r["value"] for r in rows) == [5, 5, 5, 6]


Attempt = Callable[[mr.KeyedStream, DataFrame], Any]


def _fraud(main: mr.KeyedStream, broadcast: Any) -> mr.Stream:
    return main.process(Fraud(), OUTPUT, name="fraud", broadcast=broadcast)


PROGRAMS: dict[str, tuple[Attempt, str]] = {
    "no stream given": (
        lambda main, df: main.process(Fraud(), OUTPUT, name="fraud"),
        "got no stream for it. Give one by its key: broadcast={'rules': mr.stream(df).key_by(",
    ),
    "another name": (
        lambda main, df: _fraud(main, {"ruels": mr.stream(df).key_by("shop")}),
        "declares no broadcast state 'ruels'; it declares 'rules'",
    ),
    "a processor without broadcast state": (
        lambda main, df: main.process(
            Seen(), "s string, n long", broadcast={"rules": mr.stream(df).key_by("shop")}
        ),
        "Seen declares no broadcast state 'rules'; it declares none",
    ),
    "a frame": (lambda main, df: _fraud(main, {"rules": df}), "got a DataFrame for it"),
    "a stream without a key": (
        lambda main, df: _fraud(main, {"rules": mr.stream(df)}),
        "got a Stream for it",
    ),
    "the output of an operator": (
        lambda main, df: _fraud(
            main, {"rules": mr.stream(df).key_by("shop").aggregate(n=mr.count()).key_by("shop")}
        ),
        "straight from a source",
    ),
    "another type of key": (
        lambda main, df: _fraud(main, {"rules": mr.stream(df).key_by("limit")}),
        "key is of type double, and the state's keys are declared as string",
    ),
    "several key columns": (
        lambda main, df: _fraud(main, {"rules": mr.stream(df).key_by("shop", "note")}),
        "key is of type struct<shop:string,note:string>",
    ),
    "a missing column": (
        lambda main, df: _fraud(main, {"rules": mr.stream(df.drop("note")).key_by("shop")}),
        "struct<limit:double,note:string>, and the stream has, beside its key, the columns limit",
    ),
    "another type of value": (
        lambda main, df: _fraud(
            main,
            {"rules": mr.stream(df.withColumn("limit", F.lit(1))).key_by("shop")},
        ),
        "the columns limit int, note string",
    ),
    "a marker that is not a boolean": (
        lambda main, df: _fraud(
            main, {"rules": mr.stream(df.withColumn("deleted", F.lit(1))).key_by("shop")}
        ),
        "'deleted' marks entries to remove and must be a boolean, not int",
    ),
    "a watermark": (
        lambda main, df: _fraud(
            main,
            {
                "rules": mr.stream(
                    df.withColumn("at", F.lit(None).cast("timestamp")),
                    event_time="at",
                    watermark="1 hour",
                )
                .transform(lambda df: df.drop("at"))
                .key_by("shop")
            },
        ),
        "Give it without event_time=",
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_wrong_broadcast_is_refused_before_anything_starts(
    what: str, spark: SparkSession, payments: support.Folder, rules: support.Folder
) -> None:
    attempt, named = PROGRAMS[what]
    main = mr.stream(payments.stream(spark).select("shop", "amount")).key_by("shop")
    with pytest.raises(UsageError) as caught:
        attempt(main, rules.stream(spark).select("shop", "limit", "note"))
    assert named in str(caught.value)


def test_a_broadcast_state_cannot_be_added_to_a_location(
    spark: SparkSession, tmp_path: Path, payments: support.Folder, rules: support.Folder
) -> None:
    class Plain(mr.Processor):
        n = mr.Value("long", default=0)

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.n.set(self.n.get() + len(rows))

    main = mr.stream(payments.stream(spark).select("shop", "amount")).key_by("shop")
    payments.drop([("a", 1.0)])
    run_once(main.process(Plain(), OUTPUT, name="fraud"), tmp_path / "l", 2)
    before = support.files_of(tmp_path / "l")
    with pytest.raises(SchemaChangedError, match="the new broadcast state 'rules'"):
        run_once(_fraud(main, {"rules": keyed(rules, spark)}), tmp_path / "l", 2)
    assert support.files_of(tmp_path / "l") == before


def test_types_of_keys_and_values(spark: SparkSession, tmp_path: Path) -> None:
    """Struct keys from several columns, values of one column of a nested type."""

    class Nested(mr.Processor):
        rules = mr.Broadcast("struct<a:int,at:timestamp>", "map<string,array<decimal(5,2)>>")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            for row in rows:
                yield (repr(self.rules.get({"a": row.a, "at": row.at})),)

    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    events = support.Folder(tmp_path / "e", "a int, at timestamp")
    known = support.Folder(tmp_path / "k", "a int, at timestamp, text string")
    events.drop([(1, noon), (1, None), (2, noon)])
    known.drop([(1, noon, "x"), (1, None, "y"), (2, noon, "z"), (2, noon, None)])
    side = mr.stream(known.stream(spark)).transform(
        lambda df: df.selectExpr(
            "a", "at", "if(text is null, null, map(text, array(cast(1.5 as decimal(5,2))))) as v"
        )
    )
    outputs: support.Outputs = {}
    stream = (
        mr.stream(events.stream(spark).select("a", "at"))
        .key_by("a")
        .process(Nested(), "t string", broadcast={"rules": side.key_by("a", "at")})
    )
    run_once(stream, tmp_path / "l", 2, outputs)
    table: pa.Table = outputs[0]
    assert sorted(table.column("t").to_pylist()) == [
        "None",
        "{'x': [Decimal('1.50')]}",
        "{'y': [Decimal('1.50')]}",
    ]
