"""The query of `timed` on real executors: rescaled 2 -> 4 -> 2, an executor killed in between.

python -m tests.faults.timed_moving LOCATION SINKS STRATEGY

Prints one line of JSON: how the moves ended, and what differs from one batch.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from tests.faults import timed
from tests.faults.moving import EXECUTORS, executor_pids, session
from tests.waiting import DEADLINE

from millrace.errors import MoveError
from millrace_lab import processes
from millrace_lab.soak.oracle import check_timed

FIRST = 5
"""An epoch in which windows are open, and some sessions are over."""
AFTER = 8
"""Epochs after each move: all that was open then is over."""


def main() -> None:
    location, sinks, strategy = sys.argv[1:]
    spark = session(f"local-cluster[{EXECUTORS},1,1024]")
    query = timed.start(spark, Path(location), Path(sinks))
    timed.run_until(query, FIRST)
    ended = []
    for shards in (4, 2):
        move = query.rescale(shards, strategy=strategy)
        victims = executor_pids(spark.sparkContext.applicationId)
        processes.send([victims[min(victims)]], signal.SIGKILL)
        try:
            ended.append(move.wait(DEADLINE).state)
        except MoveError:
            # Its target may be the executor that died; then the director plans another.
            ended.append(move.state)
        timed.run_until(query, query.epoch + AFTER)
    query.stop()
    verdict = check_timed(Path(location), Path(sinks))
    report = {
        "moves": ended,
        "shards": sorted({a.shards for a in query.assignment().values()}),
        "compared": verdict.compared,
        "mismatches": verdict.mismatches,
    }
    print("RESULT " + json.dumps(report), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
