"""The side of `bench graphs`: operators of `mr.graphs` over generated edges, queried as they run.

Edges come from Spark's `rate-micro-batch`, so an edge is a function of its number: the ends of a
share of all edges follow a power law, because a uniform number is raised to a power.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

import millrace as mr
from millrace_lab.bench._sides.engine import PARTITIONS, Queries, common_settings

POWER = 3
"""Of a uniform number: the larger, the more edges the first vertices have."""
SAMPLE = 0.1
PAUSE = 0.2
"""Seconds between two queries on the state of a stream that runs."""
_RANGE = 1 << 31


@dataclass(frozen=True)
class Case:
    """What is computed, and the query that is asked meanwhile and compared at the end."""

    start: Callable[[mr.graphs.Edges], mr.Stream]
    sql: str


CASES = {
    "degrees": Case(
        lambda edges: mr.graphs.degrees(edges, name="g"),
        "SELECT degree, count(*) AS vertices FROM g GROUP BY degree ORDER BY degree",
    ),
    "components": Case(
        lambda edges: mr.graphs.components(edges, name="g"),
        "SELECT size, count(*) AS components FROM (SELECT component, count(*) AS size FROM g "
        "GROUP BY component) GROUP BY size ORDER BY size",
    ),
    "bipartite": Case(
        lambda edges: mr.graphs.bipartite(edges, name="g"),
        "SELECT side, count(*) AS vertices FROM g GROUP BY side ORDER BY side",
    ),
    "triangles": Case(
        lambda edges: mr.graphs.triangle_count(edges, name="g"),
        'SELECT CAST(sum(triangles) AS BIGINT) AS triangles FROM "g-parts"',
    ),
    "triangles_sampled": Case(
        lambda edges: mr.graphs.triangle_count(edges, sample=SAMPLE, name="g"),
        'SELECT CAST(sum(triangles) AS BIGINT) AS triangles FROM "g-parts"',
    ),
}


def edges_of(numbers: DataFrame, vertices: int) -> DataFrame:
    """The edges with some numbers."""

    def end(salt: int) -> str:
        uniform = f"pmod(xxhash64({salt}, value), {_RANGE}L) / {_RANGE}D"
        return f"CAST(floor({vertices} * pow({uniform}, {POWER})) AS BIGINT)"

    return numbers.selectExpr(f"{end(1)} AS src", f"{end(2)} AS dst")


class MillraceGraphs(Queries):
    """`graphs-millrace`."""

    def __init__(self, workdir: Path, memory: str) -> None:
        settings = common_settings(workdir, memory)
        super().__init__(mr.session("graphs-millrace", "local[2]", settings), workdir)

    def do_input(self, number: int, vertices: int, path: str) -> int:
        """Write the first edges of the stream."""
        numbers = self.spark.range(0, number, 1, PARTITIONS).withColumnRenamed("id", "value")
        pq.write_table(edges_of(numbers, vertices).toArrow(), path)
        return number

    def do_timed(
        self, case: str, rows: int, vertices: int, warm: int, epochs: int, name: str
    ) -> dict[str, Any]:
        """Epochs back to back, while the state is queried; and what the state says in the end."""
        numbers = (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("numPartitions", PARTITIONS)
            .load()
        )
        edges = mr.graphs.edges(edges_of(numbers, vertices), "src", "dst")
        location = str(self.folder(name))
        chosen = CASES[case]
        query = chosen.start(edges).to("noop").start(location, parallelism=PARTITIONS)
        asking = _Asking(query, chosen.sql)
        asking.start()
        try:
            timed = self._drive(query.spark_query, warm, epochs)
        finally:
            asking.stop()
        with mr.open(location) as reader:
            answer = reader.sql(chosen.sql).to_pylist()
            edges_read = int(reader.epoch) * rows
        return {
            "epochs": timed,
            "answer": answer,
            "edges": edges_read,
            "query_s": asking.seconds,
        }


class _Asking(threading.Thread):
    """Asks for the state of a query again and again, until the query has ended."""

    def __init__(self, query: mr.Query, sql: str) -> None:
        super().__init__(name="millrace-asking", daemon=True)
        self._query = query
        self._sql = sql
        self._ended = threading.Event()
        self._error: Exception | None = None
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._ended.wait(PAUSE):
            begin = time.perf_counter()
            try:
                self._query.sql(self._sql)
            except Exception as error:
                # Of a query that has ended, `_drive` says why.
                if self._query.is_active:
                    self._error = error
                return
            self.seconds.append(time.perf_counter() - begin)

    def stop(self) -> None:
        """Wait for the last answer; raises what went wrong while the query ran."""
        self._ended.set()
        self.join()
        if self._error is not None:
            raise self._error
