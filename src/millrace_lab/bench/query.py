"""Queries on state, beside Spark's own reader of state on the same rows; and what they cost a
stream that runs.

Both sides count the same rows; their states are compared first, and so is the answer to every
query. Spark reads its state with the `statestore` source, on two cores. Millrace is timed as Spark
is, from opening to the answer (`*_s.millrace`), and with a reader that stays open (`*_warm_s.*`).

For the slow-down the stream has one core to itself, and a reader in another process queries back to
back on the other: rounds with and without it take turns. `slowdown_percent` is how much longer the
median epoch is with it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._epochs import Epochs, create_keys, median_ms
from millrace_lab.bench._oracle import state
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name

NAME = "query"
FILL_ROWS = 5_000_000
FEW = 6
"""Epochs that change some of the keys before anything is read, so that there are deltas."""
WARM = 4

SCAN = (
    "select count(*) as keys, cast(sum(n) as bigint) as total, min(key) as low, max(key) as high, "
    "max(n) as most from counts"
)
COLUMN = "select cast(sum(n) as bigint) as total from counts"


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: int = 5_000_000
    rows: int = 100_000
    """Per epoch."""
    epochs: int = 24
    """Timed with queries, and as many without."""
    times: int = 5
    """How often a query is timed; the median counts."""

    def quick(self) -> Options:
        return replace(
            self,
            keys=min(self.keys, 100_000),
            rows=min(self.rows, 10_000),
            epochs=min(self.epochs, 6),
            times=min(self.times, 2),
        )


class Queries(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._size = size_name(options.keys)
        self._is_full = options.keys >= 5_000_000

    def run(self) -> Result:
        with (
            SideProcess("millrace_pinned", self._workdir) as mine,
            SideProcess("querying", self._workdir) as reader,
        ):
            self._location = str(mine.workdir / self._size)
            with SideProcess("spark_rocksdb", self._workdir) as spark:
                self._fill(mine)
                self._fill(spark)
                self._steps.step("comparing the states")
                counts = [state(side, self._size, self._workdir) for side in (mine, spark)]
                self._result.compare("the states differ", counts[0].equals(counts[1]))
                middle = counts[0]["key"][self._options.keys // 2].as_py()
                del counts
                look_up = f"select n from counts where key = {middle}"
                self._measure("scan", SCAN, reader, spark)
                self._measure("column", COLUMN, reader, spark)
                self._measure("look_up", look_up, reader, spark)
            self._slow_down(mine, reader)
        return self._result

    def _fill(self, side: SideProcess) -> None:
        options = self._options
        create_keys(
            side,
            self._size,
            options.keys,
            FILL_ROWS,
            lambda left: self._steps.step(f"{side.kind}: filling, {size_name(left)} to go"),
        )
        for number in range(FEW):
            self._steps.step(f"{side.kind}: epoch {number + 1} of {FEW} with changes")
            side.call("once", name=self._size, rows=options.rows, keys=options.keys, key="hash")

    def _measure(self, name: str, query: str, reader: SideProcess, spark: SideProcess) -> None:
        times, size, result = self._options.times, self._size, self._result
        self._steps.step(f"{name}: Spark")
        # On both sides once beforehand, which is not timed.
        spark.call("sql", name=size, query=query, times=1)
        theirs = spark.call("sql", name=size, query=query, times=max(2, times // 2))
        self._steps.step(f"{name}: Millrace")
        reader.call("opened", location=self._location, query=query, times=1)
        opened = reader.call("opened", location=self._location, query=query, times=times)
        warm = reader.call("warm", location=self._location, query=query, times=times)
        same = theirs["rows"] == opened["rows"] == warm["rows"]
        result.compare(f"{name}: {theirs['rows']} is not {opened['rows']}", same)
        spark_s = result.figure(f"{name}_s.spark.{size}", _median(theirs))
        mine_s = result.figure(f"{name}_s.millrace.{size}", _median(opened))
        warm_s = result.figure(f"{name}_warm_s.millrace.{size}", _median(warm))
        result.figure(f"{name}_read_mb.{size}", warm["bytes"] / 1e6)
        ratio = result.ratio(f"{name}.{size}", spark_s / mine_s)
        result.ratio(f"{name}_warm.{size}", spark_s / warm_s)
        if name == "scan" and self._is_full:
            result.at_least(f"scan.{size}", ratio, 20)

    def _slow_down(self, mine: SideProcess, reader: SideProcess) -> None:
        options, size, result = self._options, self._size, self._result
        cores = reader.call("pin")
        rounds = max(2, min(6, options.epochs // 4))
        with_queries: Epochs = []
        without: Epochs = []
        seen: dict[str, Any] = {}
        queries = 0
        seconds = []
        for turn in range(2 * rounds):
            busy = bool(turn % 2)
            self._steps.step(
                f"epochs {'with' if busy else 'without'} queries, round {turn // 2 + 1}"
            )
            if busy:
                reader.call("begin", location=self._location, query=COLUMN)
            epochs = mine.call(
                "run",
                name=size,
                rows=options.rows,
                keys=options.keys,
                warm=WARM,
                epochs=-(-options.epochs // rounds),
            )
            (with_queries if busy else without).extend(epochs)
            if busy:
                ended = reader.call("end")
                seen |= ended["seen"]
                queries += ended["queries"]
                seconds.append(ended["seconds"])
        self._compare_seen(seen)
        alone = result.figure(f"epoch_ms.alone.{size}", median_ms(without))
        beside = result.figure(f"epoch_ms.queried.{size}", median_ms(with_queries))
        result.figure("queries_beside", queries)
        result.figure(f"query_beside_s.{size}", statistics.median(seconds))
        percent = result.figure(f"slowdown_percent.{size}", 100 * (beside / alone - 1))
        if self._is_full and cores > 1:
            result.at_most(f"slowdown_percent.{size}", percent, 10)

    def _compare_seen(self, seen: dict[str, Any]) -> None:
        """Every answer must be the number of rows up to its epoch."""
        fills = -(-self._options.keys // FILL_ROWS)
        for epoch, (row,) in seen.items():
            rows = self._options.keys + self._options.rows * (int(epoch) - fills)
            self._result.compare(
                f"epoch {epoch}: {row['total']} rows were seen, there were {rows}",
                row["total"] == rows,
            )


def _median(answer: dict[str, Any]) -> float:
    return float(statistics.median(answer["seconds"]))


run = Queries.measure
