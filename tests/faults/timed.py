"""The soak's window, session, join and deduplication, as a program to be killed.

    python -m tests.faults.timed LOCATION SINKS EPOCHS

It stops when that number of epochs is committed. The soak's oracle says what state and outputs must
be.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.faults import driver

import millrace as mr
from millrace_lab.soak import timed, workload

KEY_GROUPS = 16


def build(spark: SparkSession, sinks: Path) -> mr.StreamWriter:
    first, *others = timed.outputs(spark, workload.rows(spark), sinks)
    return first.also(*others)


def start(spark: SparkSession, location: Path, sinks: Path, parallelism: int = 2) -> mr.Query:
    return build(spark, sinks).start(
        str(location), parallelism=parallelism, key_groups=KEY_GROUPS, trigger=None
    )


def run_until(query: mr.Query, epoch: int) -> None:
    """Return when an epoch is committed."""
    while query.epoch < epoch:
        query.await_termination(0.2)
        assert query.is_active, query.exception()


def main() -> None:
    location, sinks, epochs = sys.argv[1:]
    spark = driver.session()
    query = start(spark, Path(location), Path(sinks))
    run_until(query, int(epochs))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
