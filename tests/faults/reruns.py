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

from millrace import crashpoints, processes
from millrace.soak import events

CRASH_EPOCH = 3


def main() -> None:
    location, output, master = sys.argv[1:]
    folder = Path(location).parent
    log = folder / "events"
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
            f"spark.executorEnv.{crashpoints.VARIABLE}": f"after-input@{CRASH_EPOCH}:executor",
            f"spark.executorEnv.{crashpoints.MARKS}": str(folder),
        },
    )
    # More tasks than executors before the exchange: the one that dies has run some of them.
    query = start(spark, location, output, source_partitions=8, parallelism=2)
    run_epochs(query, CRASH_EPOCH + 2)
    killed = (folder / f"after-input@{CRASH_EPOCH}").exists()
    # Both executors with shards stop working in turn. Epochs go on only because copies of their
    # tasks run elsewhere; woken up, the originals go on as well.
    (assignment,) = query.assignment().values()
    pids = executor_pids(spark.sparkContext.applicationId)
    slept = []
    for name in sorted(set(assignment.executors)):
        workers = processes.python_workers(pids[name])
        slept.append(processes.send(workers, signal.SIGSTOP))
        run_epochs(query, 1)
        processes.send(workers, signal.SIGCONT)
        run_epochs(query, 1)
    query.stop()
    spark.stop()
    report = {
        "killed": killed,
        "slept": slept,
        "spark": events.tally(log),
        **compared(location, output),
    }
    print("RESULT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
