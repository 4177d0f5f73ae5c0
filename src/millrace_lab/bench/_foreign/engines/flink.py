"""Flink from PyPI, in its local cluster: SQL, and keyed state of its Python DataStream API.

Parallelism 2 in one JVM, with exactly-once checkpoints every second into files, incremental ones on
RocksDB; rows come from Flink's own number sequence, and go to its `blackhole`. SQL runs with
mini-batches (`MINI_BATCH`), the DataStream program in process mode with Flink's defaults for
bundles and its state cache. Rows are counted by Flink's own metrics: those that left the source for
SQL, whose output has one row per key and mini-batch; and for the Python program those it emitted,
one per row of input, because far more of them than it takes in a second fit into the buffers before
it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyflink.version
from pyflink.common import Configuration, Row, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import StreamTableEnvironment, Table

from .job import (
    AMOUNT_SQL,
    INTERVAL_S,
    KEY_SQL,
    PARALLELISM,
    amount_of,
    key_of,
    measure,
    write_counts,
)

MEMORY = "4g"
"""The JVM's heap, as for every other side with one."""
MANAGED = "1g"
"""Memory outside of it: RocksDB's caches and write buffers."""
MINI_BATCH = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
}
ENDLESS = 2_000_000_000
SOURCE, PROCESS = "numbers", "totals"
ALIVE = ("INITIALIZING", "CREATED", "RUNNING")


class Totals(KeyedProcessFunction):  # type: ignore[misc]
    """A count and a sum: one get and one update per row."""

    def open(self, runtime_context: RuntimeContext) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._totals = runtime_context.get_state(ValueStateDescriptor("totals", kind))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        n, total = self._totals.value() or (0, 0)
        n, total = n + 1, total + amount_of(value)
        self._totals.update((n, total))
        yield Row(ctx.get_current_key(), n, total)


class FlinkSide:
    """`flink-sql-heap`, `flink-sql-rocksdb`, `pyflink-heap`, `pyflink-rocksdb`."""

    def __init__(self, name: str, workdir: Path) -> None:
        self._sql = name.startswith("flink-sql")
        self._rocksdb = name.endswith("rocksdb")
        self._workdir = workdir
        os.environ["JVM_ARGS"] = f"-Xmx{MEMORY} -Djava.io.tmpdir={workdir}"
        os.environ["FLINK_LOG_DIR"] = str(workdir)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def do_ready(self) -> dict[str, str]:
        """Versions; who asks waits for the JVM to start."""
        StreamExecutionEnvironment.get_execution_environment(self._configuration())
        return {"flink": pyflink.version.__version__}

    def do_counted(self, rows: int, keys: int, path: str) -> int:
        """Count the first rows, to their end."""
        # Flink applies the changes of a query; a program in Python emits a row for each of its own,
        # those of a key in order.
        changes = self._totals(0, rows - 1, keys)[1].to_pandas()
        final = changes.drop_duplicates("k", keep="last").sort_values("k")
        return write_counts(path, zip(*(final[name].tolist() for name in final), strict=True))

    def do_timed(
        self, keys: int, fill: bool, warm_s: float, windows: int, window_s: float
    ) -> dict[str, Any]:
        """Windows of an endless job."""
        first = 0 if fill else keys
        t_env, table = self._totals(first, first + ENDLESS - 1, keys)
        t_env.execute_sql(
            "CREATE TEMPORARY TABLE dropped (k BIGINT, n BIGINT, total BIGINT) "
            "WITH ('connector' = 'blackhole')"
        )
        client = table.execute_insert("dropped").get_job_client()
        # The sequence is read from two places, and the keys are made in one of them.
        rows = PARALLELISM * keys if fill else 0
        return self._measured(client, fill=rows, warm_s=warm_s, windows=windows, window_s=window_s)

    def _measured(
        self, client: Any, *, fill: int, warm_s: float, windows: int, window_s: float
    ) -> dict[str, Any]:
        """Windows of a job, which is then cancelled."""
        job = client.get_job_id()
        try:
            count = self._counter(str(job))
            found = measure(
                count,
                lambda: self._get(f"/jobs/{job}")["state"] in ALIVE,
                fill=fill,
                warm_s=warm_s,
                windows=windows,
                window_s=window_s,
            )
            _, taken = count()
            checkpoints = self._get(f"/jobs/{job}/checkpoints")["counts"]["completed"]
        finally:
            client.cancel().result()
        return {"windows": found, "checkpoints": checkpoints, "taken": taken}

    def close(self) -> None:
        """The JVM ends with this process."""

    def _configuration(self) -> Configuration:
        files = (self._workdir / "checkpoints").as_uri()
        settings = {
            "parallelism.default": str(PARALLELISM),
            "taskmanager.numberOfTaskSlots": str(PARALLELISM),
            "taskmanager.memory.managed.size": MANAGED,
            "pipeline.object-reuse": "true",
            # Checkpoints wait for what is in the buffers before a program in Python, which by
            # default is what it takes in in a minute.
            "taskmanager.network.memory.buffer-debloat.enabled": str(not self._sql).lower(),
            "state.backend.type": "rocksdb" if self._rocksdb else "hashmap",
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            "execution.checkpointing.interval": f"{INTERVAL_S:g} s",
            "execution.checkpointing.incremental": str(self._rocksdb).lower(),
            "execution.checkpointing.storage": "filesystem",
            "execution.checkpointing.dir": files,
            "io.tmp.dirs": str(self._workdir),
            "python.executable": sys.executable,
            "python.client.executable": sys.executable,
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.bind-port": str(self._port),
            "metrics.fetcher.update-interval": "20 ms",
        }
        configuration = Configuration()
        for key, value in settings.items():
            configuration.set_string(key, value)
        return configuration

    def _totals(self, first: int, last: int, keys: int) -> tuple[StreamTableEnvironment, Table]:
        """Count and sum per key, as a table of `k`, `n` and `total`."""
        env = StreamExecutionEnvironment.get_execution_environment(self._configuration())
        t_env = StreamTableEnvironment.create(env)
        sequence = NumberSequenceSource(first, last)
        numbers = env.from_source(sequence, WatermarkStrategy.no_watermarks(), SOURCE)
        if not self._sql:
            long = Types.LONG()
            kind = Types.ROW_NAMED(["k", "n", "total"], [long, long, long])
            keyed = numbers.key_by(lambda v: key_of(v, keys), key_type=long)
            return t_env, t_env.from_data_stream(
                keyed.process(Totals(), output_type=kind).name(PROCESS)
            )
        for key, value in MINI_BATCH.items():
            t_env.get_config().set(key, value)
        t_env.create_temporary_view("numbers", t_env.from_data_stream(numbers).alias("v"))
        return t_env, t_env.sql_query(
            "SELECT k, COUNT(*) AS n, SUM(amount) AS total FROM "
            f"(SELECT {KEY_SQL.format(keys=keys)} AS k, {AMOUNT_SQL} AS amount FROM numbers) "
            "GROUP BY k"
        )

    def _counter(self, job: str) -> Any:
        """The rows a job has taken in, by its metrics."""
        operator = f"Source__{SOURCE}." if self._sql else f"{PROCESS}."
        vertex, metric = self._find(job, operator)
        query = urllib.parse.urlencode({"get": metric, "agg": "sum"})
        path = f"/jobs/{job}/vertices/{vertex}/subtasks/metrics?{query}"

        def mark() -> tuple[float, int]:
            # An answer is what was fetched for the question before: ask, and ask again.
            at = time.time()
            self._get(path)
            time.sleep(0.1)
            values = self._get(path)
            return at, int(values[0]["sum"]) if values else 0

        return mark

    def _find(self, job: str, operator: str) -> tuple[str, str]:
        """The vertex of an operator, and the name of its counter of rows that left it."""
        seen: set[str] = set()
        for _ in range(600):
            for vertex in self._get(f"/jobs/{job}")["vertices"]:
                path = f"/jobs/{job}/vertices/{vertex['id']}/subtasks/metrics"
                for metric in self._get(path):
                    seen.add(metric["id"])
                    if metric["id"].startswith(operator) and metric["id"].endswith(
                        ".numRecordsOut"
                    ):
                        return vertex["id"], metric["id"]
            time.sleep(0.1)
        raise RuntimeError(f"no metric of {operator!r} in a minute, only {sorted(seen)[:200]}")

    def _get(self, path: str) -> Any:
        # Not by a proxy, whatever the environment says: it is a port of this machine.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"http://127.0.0.1:{self._port}{path}", timeout=30) as answer:
            return json.load(answer)
