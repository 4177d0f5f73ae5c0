"""The summary of the benchmarks: the table in the README and at the top of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace_lab.bench._markdown import number, table

ROWS = (
    # Result, what is shown, at which size, Millrace's figure, the peer and its figure, the ratio.
    (
        "throughput",
        "keyed count, rows/s",
        "100,000",
        "rows_per_s.millrace.100k",
        ("Spark on RocksDB", "rows_per_s.spark_rocksdb.100k"),
        "throughput.spark_rocksdb.100k",
    ),
    (
        "throughput",
        "keyed count, rows/s",
        "5 million",
        "rows_per_s.millrace.5m",
        ("Spark on RocksDB", "rows_per_s.spark_rocksdb.5m"),
        "throughput.spark_rocksdb.5m",
    ),
    (
        "throughput",
        "keyed count, rows/s",
        "100,000",
        "rows_per_s.millrace.100k",
        ("PySpark `transformWithState`, the same epochs", "rows_per_s.pyspark_tws_full.100k"),
        "throughput.pyspark_tws_full.100k",
    ),
    (
        "throughput",
        "an epoch of 1,000 rows, ms",
        "100,000",
        "epoch_ms.millrace.1k",
        ("Spark on RocksDB", "epoch_ms.spark_rocksdb.1k"),
        "latency.spark_rocksdb.1k",
    ),
    (
        "latency",
        "a row's latency at half of Spark's capacity, p50, ms",
        "100,000",
        "latency.millrace.50.shown_p50_ms",
        ("Spark on RocksDB", "latency.spark.50.shown_p50_ms"),
        "latency.spark.50.shown_p50",
    ),
    (
        "peers",
        "keyed count and sum, rows/s, epochs of a million rows",
        "1 million",
        "rows_per_s.millrace-aggregate.1m",
        ("Flink SQL, heap", "rows_per_s.flink-sql-heap.1m"),
        "peers.flink-sql-heap.1m",
    ),
    (
        "peers",
        "keyed count and sum, rows/s, epochs of a million rows",
        "1 million",
        "rows_per_s.millrace-aggregate.1m",
        ("Flink SQL, RocksDB", "rows_per_s.flink-sql-rocksdb.1m"),
        "peers.flink-sql-rocksdb.1m",
    ),
    (
        "python",
        "per-key Python, a count, rows/s",
        "100,000",
        "rows_per_s.millrace.count.100k",
        ("PySpark `transformWithState`", "rows_per_s.pyspark_row.count.100k"),
        "python.count.pyspark_row",
    ),
    (
        "python",
        "per-key Python, sessions, rows/s",
        "100,000",
        "rows_per_s.millrace.sessions.100k",
        ("PySpark `transformWithState`", "rows_per_s.pyspark_row.sessions.100k"),
        "python.sessions.pyspark_row",
    ),
    (
        "rescale",
        "2 → 4 → 2 executors, seconds without output (below 1 counts as 1)",
        "5 million",
        "rescale.live.downtime_s",
        ("Spark: stop, repartition, start", "rescale.spark.downtime_s"),
        "rescale.downtime.spark_over_live",
    ),
    (
        "recovery",
        "an executor is killed, seconds until latency is back",
        "5 million",
        "recovery.executor.seconds",
        ("Spark on RocksDB, at a lower rate", "recovery.spark_executor.seconds"),
        "recovery.spark_over_executor",
    ),
    (
        "query",
        "SQL over the whole state, s",
        "5 million",
        "scan_s.millrace.5m",
        ("Spark's `statestore` reader", "scan_s.spark.5m"),
        "scan.5m",
    ),
)


def summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table, with the rows whose results there are."""
    rows = []
    for name, what, keys, own, (peer, theirs), ratio in ROWS:
        result = results.get(name)
        if result is None or not result["equal"]:
            continue
        figures, ratios = result["figures"], result["ratios"]
        if own in figures and theirs in figures and ratio in ratios:
            shown = f"{peer}: {number(figures[theirs])}"
            rows.append((what, keys, number(figures[own]), shown, number(ratios[ratio])))
    return table(("benchmark", "keys", "Millrace", "peer", "ratio"), rows)
