"""An elastic query on real executors: they are given back after a scale in and asked for again.

python -m tests.faults.elastic LOCATION OUTPUT

Prints one line of JSON: the executors that were alive at each size, and whether state and outputs
equal what plain Python makes of the same input.
"""

from __future__ import annotations

import json
import sys

from tests.faults.moving import EXECUTORS, compared, run_epochs, session, start
from tests.waiting import DEADLINE, until

import millrace as mr

SPARE = 1


def await_executors(query: mr.Query, number: int) -> list[str]:
    """Their names, once there are that many."""
    until(lambda: len(query.executors()) == number, f"{number} executors")
    return list(query.executors())


def main() -> None:
    location, output = sys.argv[1:]
    spark = session(f"local-cluster[{EXECUTORS},1,1024]")
    query = start(
        spark, location, output, parallelism=EXECUTORS, elastic=True, spare_executors=SPARE
    )
    run_epochs(query, 2)
    alive = [await_executors(query, EXECUTORS)]
    states = []
    for shards in (1, EXECUTORS):
        states.append(query.rescale(shards).wait(DEADLINE).state)
        alive.append(await_executors(query, min(shards + SPARE, EXECUTORS)))
    run_epochs(query, 2)
    (assignment,) = query.assignment().values()
    query.stop()
    report = {
        "alive": alive,
        "moves": states,
        "used": sorted(set(assignment.executors)),
        **compared(location, output),
    }
    print("RESULT " + json.dumps(report), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
