"""Open state of a running query: SQL, views and look-ups, equal to a batch query over its rows."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark import support

import millrace as mr
from millrace.errors import ReadOnlyError, SqlError
from millrace.spark import run as run_module

EPOCHS = 8


def test_queries_while_the_stream_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQL here, readers from outside and a view, during input and rescales: always one epoch."""
    # An epoch is a drop: on a slow machine, one without rows could come in between.
    monkeypatch.setattr(run_module, "IDLE_SECONDS", float("inf"))
    folder = support.Folder(tmp_path / "in", "k string, v long")
    rng = random.Random(41)
    location = str(tmp_path / "l")
    stream = mr.stream(folder.stream(spark)).key_by("k")
    totals = stream.aggregate(n=mr.count(), total=mr.sum("v"), name="totals").to("noop")
    query = totals.start(location, parallelism=2, key_groups=16, trigger="50 milliseconds")
    # Empty before the first epoch, and refused if it is not a query on what there is.
    assert query.sql("select * from totals").num_rows == 0
    with pytest.raises(SqlError, match="The tables are totals"):
        query.sql("select * from other")
    with pytest.raises(ReadOnlyError):
        query.sql("drop table totals")
    view = query.view("sums", "select sum(n) as n, sum(total) as total from totals")
    seen: list[tuple[int, dict[Any, Any]]] = []
    done = threading.Event()
    failed: list[BaseException] = []

    def look(opens_each_time: bool) -> None:
        try:
            while not done.is_set():
                if opens_each_time and query.epoch:
                    with mr.open(location) as reader:
                        at, rows = reader.sql_at("select * from totals", None)
                else:
                    at, rows = query._open_state().reader.sql_at("from totals", query.epoch)
                seen.append((int(at), support.by_key(rows, ["k"], f"epoch {at}")))
        except BaseException as error:
            failed.append(error)

    lookers = [threading.Thread(target=look, args=(each,)) for each in (True, False)]
    for looker in lookers:
        looker.start()
    for drop in range(EPOCHS):
        folder.drop([(f"k{rng.randrange(40)}", rng.randrange(100)) for _ in range(80)], files=2)
        if drop in (2, 4):
            query.rescale(1 + drop)
        query.process_all_available()
    done.set()
    for looker in lookers:
        looker.join()
    assert not failed
    assert query.epoch == EPOCHS
    by_epoch = folder.batch(spark).groupBy("_epoch", "k").agg(F.count("*"), F.sum("v")).collect()
    oracle: dict[int, dict[Any, Any]] = {0: {}}
    for epoch in range(1, EPOCHS + 1):
        state = {key: dict(row) for key, row in oracle[epoch - 1].items()}
        for e, k, n, total in by_epoch:
            if e == epoch:
                row = state.setdefault((k,), {"n": 0, "total": 0})
                row["n"] += n
                row["total"] += total
        oracle[epoch] = state
    assert seen
    for at, state in seen:
        assert state == oracle[at], f"epoch {at}"
    assert support.by_key(query.sql("from totals"), ["k"], "now") == oracle[EPOCHS]
    sums = {"n": EPOCHS * 80, "total": sum(row["total"] for row in oracle[EPOCHS].values())}
    assert view.wait(EPOCHS).to_pylist() == [sums]
    assert query.view_result("sums").to_pylist() == [sums]
    query.stop()
    with mr.open(location) as reader:
        assert reader.view("sums").rows.to_pylist() == [sums]
        key = next(iter(oracle[EPOCHS]))
        (found,) = reader.get([key, ("none",)]).slice(0, 1).to_pylist()
        assert found == {"k": key[0], **oracle[EPOCHS][key], "_found": True}
        changed = reader.changes(EPOCHS - 1)
        assert support.by_key(changed.drop_columns(["_change", "_epoch"]), ["k"], "feed") == {
            k: v for k, v in oracle[EPOCHS].items() if v != oracle[EPOCHS - 1].get(k)
        }
