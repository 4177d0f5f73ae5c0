"""Per-key Python beside PySpark's: a count and a sessioniser with timers.

The programs are in `_peers.programs`, as each side's user would write them: `mr.Processor`, and
`StatefulProcessor` in row and in pandas mode; as one more figure, Spark's row-mode class on
Millrace (`millrace_compat`). First all of them run some small epochs, and what each batch emits is
compared with a plain computation; only then are they timed, on the same rows. An epoch has exactly
as many distinct keys as it says.

PySpark's sides are slow and get fewer epochs; with `--quick` also smaller ones, and `ratios` then
compare rows per second across sizes, which is in their favour or not at all: they pay per key. A
ratio with a size at its end is between epochs of that size on both sides.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.bench._console import Steps
from millrace.bench._contract import Result
from millrace.bench._epochs import Epochs, add_breakdown, median_ms
from millrace.bench._process import Peer
from millrace.bench._programs import Emitted, by_batch, counts, sessions
from millrace.bench._sizes import size_name

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
    epochs: int = 10
    slow_epochs: int = 3
    warm: int = 3
    sample_keys: int | None = None
    """Keys of an epoch of the slow sides, if not as many as Millrace's."""
    verify_keys: int = 2_000
    verify_epochs: int = 6

    def quick(self) -> Options:
        return replace(
            self,
            epochs=min(self.epochs, 4),
            slow_epochs=min(self.slow_epochs, 2),
            warm=2,
            sample_keys=min(self.keys, 5_000),
            verify_keys=300,
            verify_epochs=4,
        )


class Python:
    """One run of the benchmark."""

    def __init__(self, options: Options, workdir: Path, steps: Steps) -> None:
        self._options = options
        self._workdir = workdir
        self._steps = steps
        self._result = Result(NAME)
        self._sides: dict[str, Peer] = {}

    def run(self) -> Result:
        with ExitStack() as stack:
            millrace, spark = (
                stack.enter_context(Peer(kind, self._workdir))
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
        sample = options.sample_keys or full
        fast = {MILLRACE: options.epochs, COMPAT: options.slow_epochs}
        rates = {face: self._rate(face, program, full, n) for face, n in fast.items()}
        same = {MILLRACE: rates[MILLRACE]}
        if sample != full:
            same[MILLRACE] = self._rate(MILLRACE, program, sample, options.epochs)
        for face in (ROW, PANDAS):
            rates[face] = same[face] = self._rate(face, program, sample, options.slow_epochs)
        for face in (ROW, PANDAS, COMPAT):
            name = f"{NAME}.{program}.{face}"
            ratio = self._result.ratio(name, rates[MILLRACE] / rates[face])
            if sample != full and face in same:
                at_size = same[MILLRACE] / same[face]
                self._result.ratio(f"{name}.{size_name(sample)}", at_size)
            if face == ROW and full == options.rows == BAR_KEYS:
                self._result.at_least(name, ratio, TARGET)
        compat = rates[COMPAT] / rates[ROW]
        self._result.ratio(f"{NAME}.{program}.compat_over_pyspark_row", compat)

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


def run(options: Options, workdir: Path, steps: Steps) -> Result:
    """Run the benchmark in a working directory of its own."""
    return Python(options, workdir, steps).run()
