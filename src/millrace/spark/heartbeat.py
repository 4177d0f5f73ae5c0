"""A heartbeat: epochs that run although no rows came, so that timers fire on an idle stream.

Spark starts a micro-batch when a source has something new. A query with timers gets one more,
Spark's own rate source at one row a second, and all its rows are filtered out: what is left is the
beat. Queries without timers have none.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace import clock
from millrace.log import spark_logs
from millrace.log.store import Store


def with_heartbeat(source: DataFrame) -> DataFrame:
    """The same rows, and a batch every second even if there are none."""
    spark = source.sparkSession
    beat = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    # The rate source counts from 0, so nothing passes; a constant would be optimised away.
    nothing = beat.where("value < 0").select(
        *(F.lit(None).cast(field.dataType).alias(field.name) for field in source.schema.fields)
    )
    return source.unionByName(nothing)


def continue_heartbeat(store: Store) -> None:
    """Before a query starts, let its heartbeat continue from where it is, whatever the clock says.

    Spark's rate source counts the seconds since its first start, by the wall clock. If that was set
    back, a restarted query would plan a batch that ends before it begins. Spark fails on such a
    batch, and because the batch is in its log, fails on it at every start. So the source's first
    start is set back as well, and such a batch, which cannot have run, is repaired.
    """
    batches = spark_logs.planned(store)
    if not batches:
        return
    lines = spark_logs.offset_lines(store, batches[-1])
    # The heartbeat is the last of the sources; two lines come before the first one's.
    path = f"{spark_logs.SOURCES}/{len(lines) - 3}/0"
    if store.size(path) is None:
        # Nothing has beaten yet: the state was imported from a query without one.
        return
    reached = _seconds(lines)
    if len(batches) > 1:
        before = _seconds(spark_logs.offset_lines(store, batches[-2]))
        if reached < before and spark_logs.is_interrupted(store):
            mended = "\n".join([*lines[:-1], str(before)])
            spark_logs.rewrite(store, f"{spark_logs.OFFSETS}/{batches[-1]}", mended.encode())
            reached = before
    version, since = store.read(path).decode().splitlines()
    latest = clock.now_ms() - 1000 * reached
    if int(since) > latest:
        spark_logs.rewrite(store, path, f"{version}\n{latest}".encode())


def _seconds(lines: list[str]) -> int:
    """How far the heartbeat is at the end of a batch, in Spark's record of it."""
    return 0 if lines[-1] == "-" else int(lines[-1])
