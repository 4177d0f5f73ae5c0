"""A real-time query that is disturbed while rows come, as a program of its own: it needs slots.

python -m tests.faults.realtime_moving LOCATION rescale|kill

It is rescaled in a local session, or loses executors of a cluster. Prints one line of JSON: what
was done, and whether the state and the newest answers equal a count in plain Python.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from typing import Any

from pyspark.sql import SparkSession
from tests.faults import driver, moving
from tests.spark.realtime_support import Numbers
from tests.waiting import DEADLINE

import millrace as mr
from millrace import clock
from millrace_lab import processes

SLOTS = 4
"""One partition of the source, and at most three shards."""
SHARDS = (1, 3, 2)
EXECUTORS = 3
"""Of one core each: one for the source, two for shards."""
KILLS = 2
KEYS = 101
PAUSE = 0.01


class Feed:
    """Sends ten numbers every hundredth of a second until it is stopped."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE):
            first = len(self._numbers.sent)
            self._numbers.send(range(first, first + 10))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()


def committed(query: mr.Query, more: int) -> None:
    """Wait until some more epochs are committed."""
    epoch, until = query.epoch + more, clock.stopwatch() + DEADLINE
    while query.epoch < epoch:
        assert query.is_active, query.exception()
        assert clock.stopwatch() < until, f"epoch {query.epoch}, not {epoch}"
        clock.sleep(0.05)


def rescale(query: mr.Query) -> list[object]:
    had: list[object] = []
    for shards in SHARDS[1:]:
        query.rescale(shards).wait(DEADLINE)
        committed(query, 2)
        had.append(query.assignment()["totals"].shards)
    return had


def kill(query: mr.Query, application: str) -> list[object]:
    killed: list[object] = []
    for _ in range(KILLS):
        pids = moving.executor_pids(application)
        victim = next(name for name in query.assignment()["totals"].executors if name in pids)
        processes.send([pids[victim]], signal.SIGKILL)
        killed.append(victim)
        committed(query, 3)
    return killed


def run(spark: SparkSession, location: str, disturbance: str) -> dict[str, Any]:
    numbers = Numbers(spark)
    frame = numbers.frame().selectExpr(f"value % {KEYS} as k", "value as v")
    totals = mr.stream(frame).key_by("k").aggregate(name="totals", n=mr.count(), total=mr.sum("v"))
    shards = SHARDS[0] if disturbance == "rescale" else 2
    query = totals.to("memory", name="answers").start(
        location, parallelism=shards, trigger="real time 1 second"
    )
    try:
        with Feed(numbers):
            committed(query, 2)
            if disturbance == "rescale":
                done = rescale(query)
            else:
                done = kill(query, spark.sparkContext.applicationId)
        query.process_all_available()
        state = query.sql("select k, n, total from totals").to_pylist()
    finally:
        query.stop()
    newest = {row.k: row.n for row in spark.table("answers").collect()}
    n: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for number in numbers.sent:
        n[number % KEYS] += 1
        total[number % KEYS] += number
    return {
        "rows": len(numbers.sent),
        "done": done,
        "state": {row["k"]: (row["n"], row["total"]) for row in state}
        == {key: (n[key], total[key]) for key in n},
        "answers": newest == n,
    }


def main() -> None:
    location, disturbance = sys.argv[1:]
    if disturbance == "rescale":
        spark = driver.session(SLOTS)
    else:
        spark = moving.session(f"local-cluster[{EXECUTORS},1,1024]")
    print(json.dumps(run(spark, location, disturbance)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
