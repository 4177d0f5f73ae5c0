"""All that a processor can have in one query: initial state, side output, broadcast and task state,
with other branches beside it and live moves in the middle, against a plain recomputation."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark import support

import millrace as mr

SHOPS = [f"s{i}" for i in range(12)]


class Desk(mr.Processor):
    n = mr.Value("long", default=0)
    rules = mr.Broadcast("string", "struct<limit:double,note:string>")
    rows = mr.TaskState("long", split="divide", merge=sum, default=0)
    log = mr.TaskState("array<string>", split="divide", merge="concat", default=[])
    alerts = mr.SideOutput("shop string, amount double, note string")

    def on_initial_state(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.n.set(sum(row.n for row in rows))
        yield (key.shop, "begun", self.n.get(), self._limit(key.shop))

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        rule = self.rules.get(key.shop)
        for row in rows:
            if rule is not None and row.amount > rule["limit"]:
                self.alerts.emit((key.shop, row.amount, rule["note"]))
        self.n.set(self.n.get() + len(rows))
        self.rows.set(self.rows.get() + len(rows))
        self.log.set([*self.log.get(), key.shop])
        yield (key.shop, "paid", self.n.get(), self._limit(key.shop))

    def _limit(self, shop: str) -> float | None:
        rule = self.rules.get(shop)
        return None if rule is None else rule["limit"]


class Named(mr.Processor):
    """Behind the other one, with a broadcast stream of its own."""

    n = mr.Value("long", default=0)
    names = mr.Broadcast("string", "string")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.n.set(self.n.get() + len(rows))
        yield (key.note, self.names.get(key.note), self.n.get())


class Oracle:
    """The same, with dicts."""

    def __init__(self, initial: dict[str, int]) -> None:
        self.initial = initial
        self.n = dict(initial)
        self.rules: dict[str, tuple[float, str]] = {}
        self.names: dict[str, str] = {}
        self.noted: Counter[str] = Counter()
        self.paid: Counter[str] = Counter()
        self.log: Counter[str] = Counter()
        self.main: Counter[Any] = Counter()
        self.alerts: Counter[Any] = Counter()
        self.named: Counter[Any] = Counter()
        self.raw: Counter[Any] = Counter()

    def begin(self) -> None:
        for shop, n in self.initial.items():
            self.main[shop, "begun", n, self._limit(shop)] += 1

    def _limit(self, shop: str) -> float | None:
        return self.rules[shop][0] if shop in self.rules else None

    def epoch(self, payments: list[tuple[str, float]]) -> None:
        self.raw.update(payments)
        notes: Counter[str] = Counter()
        for shop, amount in payments:
            self.paid[shop] += 1
            self.n[shop] = self.n.get(shop, 0) + 1
            if shop in self.rules and amount > self.rules[shop][0]:
                note = self.rules[shop][1]
                self.alerts[shop, amount, note] += 1
                notes[note] += 1
        for shop in {shop for shop, _ in payments}:
            self.log[shop] += 1
            self.main[shop, "paid", self.n[shop], self._limit(shop)] += 1
        for note, count in notes.items():
            self.noted[note] += count
            self.named[note, self.names.get(note), self.noted[note]] += 1


def counted(outputs: support.Outputs) -> Counter[Any]:
    return Counter(tuple(row.values()) for table in outputs.values() for row in table.to_pylist())


@pytest.mark.stress
def test_everything_at_once_through_live_moves(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(5)
    payments = support.Folder(tmp_path / "payments", "shop string, amount double")
    rules = support.Folder(tmp_path / "rules", "shop string, limit double, note string")
    names = support.Folder(tmp_path / "names", "note string, name string")
    initial = {shop: rng.randrange(100) for shop in [*SHOPS[:5], "quiet"]}
    oracle = Oracle(initial)
    outputs: dict[str, support.Outputs] = {
        name: {} for name in ("main", "alerts", "named", "raw", "totals")
    }

    def branches(parallelism: int | None) -> mr.Query:
        source = mr.stream(payments.stream(spark).select("shop", "amount"))
        desk = source.key_by("shop").process(
            Desk(),
            "shop string, what string, n long, limit double",
            name="desk",
            initial_state=spark.createDataFrame(list(initial.items()), "shop string, n long"),
            broadcast={
                "rules": mr.stream(
                    rules.stream(spark)
                    .selectExpr("*", "limit is null as deleted")
                    .drop("_epoch", "_seq")
                ).key_by("shop")
            },
        )
        alerts = desk.side("alerts")
        named = alerts.key_by("note").process(
            Named(),
            "note string, name string, n long",
            name="named",
            broadcast={
                "names": mr.stream(names.stream(spark).select("note", "name")).key_by("note")
            },
        )
        sinks = {
            "alerts": alerts,
            "named": named,
            "raw": source,
            "totals": source.key_by("shop").aggregate(name="totals", n=mr.count()),
        }
        return (
            desk.for_each_batch(support.record(outputs["main"]))
            .also(*(s.for_each_batch(support.record(outputs[n])) for n, s in sinks.items()))
            .start(str(tmp_path / "l"), parallelism=parallelism, key_groups=8)
        )

    def pay(count: int = 15) -> None:
        rows = [(rng.choice(SHOPS), float(rng.randrange(20))) for _ in range(count)]
        payments.drop(rows, files=2)
        oracle.epoch(rows)

    def rule(*changes: tuple[str, float | None, str | None]) -> None:
        rules.drop(list(changes))
        for shop, limit, note in changes:
            oracle.rules.pop(shop, None)
            if limit is not None and note is not None:
                oracle.rules[shop] = (limit, note)

    def name(note: str, text: str) -> None:
        names.drop([(note, text)])
        oracle.names[note] = text

    def moved(query: mr.Query, move: Any) -> int:
        """Rules and payments in turn, an epoch each, until the move is done."""
        epochs = 0
        while move.is_open:
            if epochs % 2:
                rule((rng.choice(SHOPS), float(rng.randrange(20)), rng.choice("xyz")))
            else:
                pay()
            query.process_all_available()
            epochs += 1
            check_shared(query)
        return epochs

    def check_shared(query: mr.Query) -> None:
        reader = mr.open(query.location)
        held = reader.to_arrow("desk", state="rules").to_pylist()
        stored = {r["key"]: (r["value"]["limit"], r["value"]["note"]) for r in held}
        assert stored == oracle.rules
        held = reader.to_arrow("desk", state="rows").to_pylist()
        assert sum(r["value"] for r in held) == sum(oracle.paid.values())
        assignment = query.assignment()["desk"]
        assert {r["shard"] for r in held} <= set(assignment.owners)
        logs = reader.to_arrow("desk", state="log").column("value").to_pylist()
        assert Counter(shop for log in logs for shop in log) == oracle.log

    rule(*((shop, 10.0, "x") for shop in [*SHOPS[3:8], "quiet"]))
    name("x", "ex")
    oracle.begin()
    pay(40)
    query = branches(2)
    try:
        query.process_all_available()
        check_shared(query)
        # Nothing here waits for time to pass, so there is no source but these.
        progress = query.spark_query.lastProgress
        assert progress is not None
        assert len(progress["sources"]) == 3
        assert moved(query, query.rescale(4, operator="desk", strategy="fluid")) > 1
        assert len(set(query.assignment()["desk"].owners)) == 4
        name("y", "why")
        query.process_all_available()
        moved(query, query.rescale(1))
        assert query.assignment()["desk"].shards == query.assignment()["named"].shards == 1
    finally:
        query.stop()
    query = branches(3)
    try:
        rule(("s1", None, None), ("s2", 0.0, "z"))
        query.process_all_available()
        pay(30)
        query.process_all_available()
        check_shared(query)
    finally:
        query.stop()
    assert counted(outputs["main"]) == oracle.main
    assert counted(outputs["alerts"]) == oracle.alerts
    assert counted(outputs["named"]) == oracle.named
    assert counted(outputs["raw"]) == oracle.raw
    assert all(table.column_names == ["shop", "amount"] for table in outputs["raw"].values())
    reader = mr.open(str(tmp_path / "l"))
    assert listed(reader.to_arrow("desk"), "shop") == oracle.n
    assert listed(reader.to_arrow("named"), "note") == oracle.noted
    assert listed(reader.to_arrow("totals"), "shop") == oracle.paid
    assert listed(reader.to_arrow("named", state="names"), "key", "value") == oracle.names
    assert reader.tables("desk") == ["rules", "rows", "log"]


class Looked(mr.Processor):
    table = mr.Broadcast("string", "string")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        yield (key.k, self.table.get(key.k))


def test_branches_with_broadcasts_may_be_given_in_any_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark numbers the sources, and each must find its own offsets after a restart."""
    rows = support.Folder(tmp_path / "rows", "k string")
    sides = {n: support.Folder(tmp_path / n, "k string, v string") for n in ("one", "two", "three")}
    outputs: dict[str, support.Outputs] = {"raw": {}, **{n: {} for n in sides}}
    for round_, order in enumerate(
        (["one", "raw", "two", "three"], ["three", "two", "one", "raw"])
    ):
        rows.drop([(k,) for k in "abc"])
        for n, folder in sides.items():
            folder.drop([("abc"[round_], f"{n}{round_}")])
        source = mr.stream(rows.stream(spark).select("k"))
        branches = {"raw": source} | {
            n: source.key_by("k").process(
                Looked(),
                "k string, v string",
                name=n,
                broadcast={"table": mr.stream(f.stream(spark).select("k", "v")).key_by("k")},
            )
            for n, f in sides.items()
        }
        first, *others = [branches[n].for_each_batch(support.record(outputs[n])) for n in order]
        query = first.also(*others).start(
            str(tmp_path / "l"), parallelism=2, trigger="available_now"
        )
        query.await_termination()
        assert query.exception() is None
        assert query.epoch == round_ + 1
        assert {r["k"] for r in outputs["raw"][round_].to_pylist()} == set("abc")
        assert outputs["raw"][round_].num_rows == 3
        for n in sides:
            known = {"abc"[r]: f"{n}{r}" for r in range(round_ + 1)}
            found = {r["k"]: r["v"] for r in outputs[n][round_].to_pylist()}
            assert found == {k: known.get(k) for k in "abc"}


def listed(state: pa.Table, key: str, value: str = "n") -> dict[str, Any]:
    return dict(zip(state.column(key).to_pylist(), state.column(value).to_pylist(), strict=True))
