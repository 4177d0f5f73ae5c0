"""A query whose tasks Spark runs twice: copies of slow tasks, and stages whose input was lost.

python -m tests.faults.reruns LOCATION OUTPUT MASTER

Spark's event log, which the session writes beside the location, says whether that happened. Copies
never run on the host of the original, so the executors of MASTER must be on different ones.

Prints one line of JSON: what Spark ran again, and whether state and outputs equal what plain Python
makes of the same input.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from tests.faults.moving import compared, executor_pids, run_epochs, session, start

import millrace as mr
from millrace import hooks
from millrace_lab import processes
from millrace_lab.faults import crashes
from millrace_lab.soak import events

CRASH_EPOCH = 3


def two_placed(query: mr.Query) -> list[str]:
    """The executors with a shard, once there are two: of a stage with one task that does not end,
    or with two on the same executor, Spark makes no copies."""
    while True:
        (assignment,) = query.assignment().values()
        names = sorted(set(assignment.executors))
        if len(names) == 2:
            return names
        run_epochs(query, 1)


def run_without(query: mr.Query, application: str, executor: str, log: Path) -> int:
    """Stop an executor's workers until Spark has run copies of their tasks; how many it ran."""
    workers: set[int] = set()
    before = copies = events.tally(log)["speculative tasks"]
    while copies == before:
        # An epoch that found the executor without a worker, or its core taken, did not need it:
        # then the next one will.
        found = processes.python_workers(executor_pids(application)[executor])
        processes.send(found, signal.SIGSTOP)
        workers.update(found)
        run_epochs(query, 1)
        copies = events.tally(log)["speculative tasks"]
    processes.send(workers, signal.SIGCONT)
    run_epochs(query, 1)
    return copies - before


def main() -> None:
    location, output, master = sys.argv[1:]
    folder = Path(location).parent
    log = folder / "events"
    crash = crashes.environment(f"{hooks.AFTER_INPUT}@{CRASH_EPOCH}:executor", folder)
    spark = session(
        master,
        {
            **events.event_log(log),
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s",
            # The executor dies after its map output was registered; the shard that runs again
            # must find out at once that it is gone.
            "spark.shuffle.io.maxRetries": "1",
            "spark.shuffle.io.retryWait": "200ms",
            # In the executors, whose shards reach the point.
            **{f"spark.executorEnv.{name}": value for name, value in crash.items()},
        },
    )
    # More tasks than executors before the exchange: the one that dies has run some of them.
    query = start(spark, location, output, source_partitions=8, parallelism=2)
    run_epochs(query, CRASH_EPOCH + 2)
    killed = (folder / f"{hooks.AFTER_INPUT}@{CRASH_EPOCH}").exists()
    # Two executors with shards stop working in turn. Epochs go on only because copies of their
    # tasks run elsewhere; woken up, the originals go on as well.
    copied: dict[str, int] = {}
    while len(copied) < 2:
        name = next((name for name in two_placed(query) if name not in copied), "")
        if name:
            copied[name] = run_without(query, spark.sparkContext.applicationId, name, log)
        else:
            run_epochs(query, 1)
    query.stop()
    spark.stop()
    report = {
        "killed": killed,
        "copied": copied,
        "spark": events.tally(log),
        **compared(location, output),
    }
    print("RESULT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
