"""A query on real executors that is rescaled, moved, drained and killed at by a seeded schedule.

python -m tests.faults.moving LOCATION OUTPUT SEED ACTIONS STRATEGIES [MASTER]

Prints one line of JSON: what was done, and whether state and all outputs equal what plain Python
makes of the same input.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tests.waiting import DEADLINE

import millrace as mr
from millrace.api.query import Query
from millrace.errors import MoveError, UsageError
from millrace_lab import processes
from millrace_lab.local_cluster import starting
from millrace_lab.local_session import local_settings

EXECUTORS = 3
ROWS = 3000
KEYS = 997
KEY_GROUPS = 32


def executor_pids(application: str) -> dict[str, int]:
    """Executor name -> process id, wherever it was started."""
    found = processes.executor_processes(application=application)
    return {f"executor-{name}": pid for name, pid in found.items()}


class Schedule:
    """Seeded actions on a running query."""

    def __init__(self, query: Query, app: str, seed: int, strategies: list[str]) -> None:
        self._query = query
        self._app = app
        self._random = random.Random(seed)
        self._strategies = strategies
        self.done: list[str] = []
        self.moves: list[Any] = []

    def step(self) -> None:
        action = self._random.choice(
            ["rescale", "rescale", "rescale", "move", "drain", "kill executor", "kill workers"]
        )
        strategy = self._random.choice(self._strategies)
        pids = executor_pids(self._app)
        # One that was killed is listed until Spark notices.
        executors = [name for name in self._query.executors() if name in pids]
        if not executors:
            return
        victim = self._random.choice(executors)
        if action == "rescale":
            shards = self._random.randint(1, EXECUTORS + 1)
            self.moves.append(self._query.rescale(shards, strategy=strategy))
            self.done.append(f"rescale {shards} {strategy}")
        elif action == "move":
            groups = self._random.sample(range(KEY_GROUPS), 5)
            self.moves.append(self._query.move(groups, victim, strategy=strategy))
            self.done.append(f"move {groups} {victim} {strategy}")
        elif action == "drain" and len(executors) > 1:
            self.moves.append(self._query.drain(victim))
            self.moves.append(self._query.undrain(victim))
            self.done.append(f"drain {victim}")
        elif action == "kill executor":
            processes.send([pids[victim]], signal.SIGKILL)
            self.done.append(f"kill {victim}")
        elif action == "kill workers":
            processes.send(processes.descendants(pids[victim]), signal.SIGKILL)
            self.done.append(f"kill the workers of {victim}")


def expected(batches: int) -> tuple[dict[int, tuple[int, int]], dict[int, dict[int, Any]]]:
    """The final state, and the output of every batch."""
    state: dict[int, tuple[int, int]] = {}
    outputs: dict[int, dict[int, Any]] = {}
    for batch in range(batches):
        changed = {}
        for value in range(batch * ROWS, (batch + 1) * ROWS):
            n, total = state.get(value % KEYS, (0, 0))
            changed[value % KEYS] = state[value % KEYS] = (n + 1, total + value)
        outputs[batch] = changed
    return state, outputs


def session(master: str, config: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    with starting():
        spark = mr.session(
            "millrace-moving",
            master=master,
            config={
                **local_settings("512m"),
                "spark.executor.memory": "512m",
                # Kills come faster here than a real cluster would forgive.
                "spark.task.maxFailures": "16",
                "spark.deploy.maxExecutorRetries": "-1",
                **config,
            },
        )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(
    spark: SparkSession, location: str, output: str, source_partitions: int = 2, **options: Any
) -> Query:
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", source_partitions)
        .load()
        .selectExpr(f"value % {KEYS} as k", f"value div {ROWS} as batch", "value")
    )
    return (
        mr.stream(source)
        .key_by("k")
        .aggregate(n=mr.count(), total=mr.sum("value"), batch=mr.max("batch"), name="t")
        .to("parquet", path=output)
        .start(location, key_groups=KEY_GROUPS, trigger="100 milliseconds", **options)
    )


def run_epochs(query: Query, number: int) -> None:
    """Return when `number` more are committed."""
    target = query.epoch + number
    while query.epoch < target:
        query.await_termination(1)
        assert query.is_active, query.exception()


def compared(location: str, output: str) -> dict[str, Any]:
    """The state and everything that was written, against what they should be."""
    reader = mr.open(location)
    assert reader.batch_id is not None
    state, outputs = expected(reader.batch_id + 1)
    table = reader.to_arrow("t").to_pydict()
    found = dict(zip(table["k"], zip(table["n"], table["total"], strict=True), strict=True))
    written: dict[int, dict[int, Any]] = {}
    rows = pq.read_table(output).to_pylist()
    for row in rows:
        written.setdefault(row["batch"], {})[row["k"]] = (row["n"], row["total"])
    return {
        "epochs": reader.epoch,
        "state_equal": found == state,
        "outputs_equal": written == outputs and len(rows) == sum(map(len, outputs.values())),
    }


def main() -> None:
    location, output, seed, actions, strategies, *master = sys.argv[1:]
    spark = session(master[0] if master else f"local-cluster[{EXECUTORS},1,1024]")
    query = start(spark, location, output, parallelism=2, standby=int(seed) % 2)
    schedule = Schedule(query, spark.sparkContext.applicationId, int(seed), strategies.split(","))
    run_epochs(query, 2)
    while len(schedule.done) < int(actions):
        try:
            schedule.step()
        except UsageError as error:
            # An executor that died since the list was made.
            if "executor" not in str(error):
                raise
        run_epochs(query, schedule._random.randint(0, 3))
    ended = []
    for move in schedule.moves:
        try:
            ended.append(move.wait(DEADLINE).state)
        except MoveError:
            ended.append(move.state)
    run_epochs(query, 2)
    query.stop()
    report = {
        "seed": int(seed),
        "actions": schedule.done,
        "moves": ended,
        "shards": [a.shards for a in query.assignment().values()],
        **compared(location, output),
    }
    print("RESULT " + json.dumps(report), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
