"""Per-key Python beside PySpark's: a count and a sessioniser with timers.

The programs are in `_sides.programs`, as each side's user would write them: `mr.Processor`, and
`StatefulProcessor` in row and in pandas mode; as one more figure, Spark's row-mode class on
Millrace (`millrace_compat`). First all of them run some small epochs, and what each batch emits is
compared with a plain computation; only then are they timed, on the same rows. An epoch has exactly
as many distinct keys as it says.

PySpark's sides are slow and get fewer epochs; pandas mode, and with `--quick` row mode too, also
smaller ones. A ratio is one of rows per second, whatever the size of the epochs; one with a size at
its end is between epochs of that size on both sides.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result
from millrace_lab.bench._epochs import Epochs, add_breakdown, median_ms
from millrace_lab.bench._oracle_programs import Emitted, by_batch, counts, sessions
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name

NAME = "python"

MILLRACE, COMPAT, ROW, PANDAS = "millrace", "millrace_compat", "pyspark_row", "pyspark_pandas"
PROGRAMS = COUNT, SESSIONS = "count", "sessions"
GAP_MS, DELAY_MS = 100_000, 10_000
BAR_KEYS = 100_000
TARGET = 30


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    keys: int = BAR_KEYS
    rows: int = BAR_KEYS
    """Rows of an epoch: a multiple of its keys."""
    epochs: int = 12
    slow_epochs: int = 4
    warm: int = 12
    """Epochs of Millrace that are not timed: a slow side's JVM is warm after one of its own."""
    row_keys: int = BAR_KEYS
    pandas_keys: int = 5_000
    """The most keys in an epoch of the slow sides."""
    verify_keys: int = 300
    verify_epochs: int = 5

    def quick(self) -> Options:
        return replace(
            self,
            epochs=min(self.epochs, 4),
            slow_epochs=1,
            warm=5,
            row_keys=min(self.keys, 4_000),
            pandas_keys=min(self.keys, 4_000),
            verify_keys=100,
            verify_epochs=4,
        )


class Python(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        super().__init__(options, workdir, steps)
        self._sides: dict[str, SideProcess] = {}

    def run(self) -> Result:
        with ExitStack() as stack:
            millrace, spark = (
                stack.enter_context(SideProcess(kind, self._workdir))
                for kind in ("millrace_processing", "spark_processing")
            )
            self._sides = {MILLRACE: millrace, COMPAT: millrace, ROW: spark, PANDAS: spark}
            self._steps.step("starting the sides")
            millrace.call("ready")
            spark.call("ready")
            self._verify()
            if self._result.equal:
                for program in PROGRAMS:
                    self._measure(program)
        return self._result

    def _verify(self) -> None:
        """Every side runs the same small epochs; each must emit what the definition says."""
        self._steps.step("comparing what the sides emit")
        keys, epochs = self._options.verify_keys, self._options.verify_epochs
        # A key has two rows an epoch here, so that their order matters as well.
        rows = 2 * keys
        path = self._workdir / "input.parquet"
        self._sides[MILLRACE].call("input", rows=rows, keys=keys, epochs=epochs, path=str(path))
        table = pq.read_table(path)
        batch, key, at = (column.to_pylist() for column in table.columns)
        batches = by_batch(batch, key, at, epochs)
        expected = {COUNT: counts(batches), SESSIONS: sessions(batches, GAP_MS, DELAY_MS)}
        # Times do not matter here, so the two processes work at the same time.
        with ThreadPoolExecutor(2) as pool:
            for compared in pool.map(
                lambda faces: [self._emitted(face, rows, keys) for face in faces],
                ((MILLRACE, COMPAT), (ROW, PANDAS)),
            ):
                for face, emitted in compared:
                    for program in PROGRAMS:
                        for batch, wanted in enumerate(expected[program]):
                            self._result.compare(
                                f"{face}: batch {batch} of {program} is not what it must emit",
                                emitted[program][batch] == wanted,
                            )

    def _emitted(self, face: str, rows: int, keys: int) -> tuple[str, dict[str, list[Emitted]]]:
        epochs = self._options.verify_epochs
        emitted: dict[str, list[Emitted]] = {}
        for program in PROGRAMS:
            kept = self._workdir / "emitted" / face / program
            self._sides[face].call(
                "process",
                face=face,
                program=program,
                rows=rows,
                keys=keys,
                warm=0,
                epochs=epochs,
                keep=str(kept),
            )
            emitted[program] = [_rows(pq.read_table(kept / str(n))) for n in range(epochs)]
        return face, emitted

    def _measure(self, program: str) -> None:
        options = self._options
        full = options.keys
        sizes = {ROW: min(options.row_keys, full), PANDAS: min(options.pandas_keys, full)}
        fast = {
            size: self._rate(MILLRACE, program, size, options.epochs)
            for size in sorted({full, *sizes.values()}, reverse=True)
        }
        slow = {
            face: self._rate(face, program, size, options.slow_epochs)
            for face, size in {COMPAT: full, **sizes}.items()
        }
        for face, rate in slow.items():
            name = f"{NAME}.{program}.{face}"
            ratio = self._result.ratio(name, fast[full] / rate)
            size = sizes.get(face, full)
            if size != full:
                self._result.ratio(f"{name}.{size_name(size)}", fast[size] / rate)
            if face == ROW and full == options.rows == BAR_KEYS:
                self._result.at_least(name, ratio, TARGET)
        over = slow[COMPAT] / slow[ROW]
        self._result.ratio(f"{NAME}.{program}.compat_over_pyspark_row", over)

    def _rate(self, face: str, program: str, keys: int, epochs: int) -> float:
        options = self._options
        rows = keys * options.rows // options.keys
        warm = options.warm if face == MILLRACE else 1
        size = size_name(keys)
        self._steps.step(f"{face}: {program}, {warm} + {epochs} epochs of {size} keys")
        samples: Epochs = self._sides[face].call(
            "process",
            face=face,
            program=program,
            rows=rows,
            keys=keys,
            warm=warm,
            epochs=epochs,
        )
        self._result.figure(f"epoch_ms.{face}.{program}.{size}", median_ms(samples))
        if face == MILLRACE:
            add_breakdown(self._result, f"epoch_ms.{face}.{program}.{size}", samples)
        rate = statistics.median(epoch["rows"] * 1000 / epoch["ms"] for epoch in samples)
        return self._result.figure(f"rows_per_s.{face}.{program}.{size}", rate)


def _rows(table: pa.Table) -> Emitted:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


run = Python.measure
