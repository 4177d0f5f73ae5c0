"""Patterns beside Flink SQL's MATCH_RECOGNIZE, on heap and RocksDB.

The cases, rows and rules of `operators`, with three patterns (`_foreign.engines.cases.PATTERNS`)
and without Spark, which has none: first every row that a side emits is compared with what window
functions of DuckDB find in one batch, then the sides are timed. `rows_per_s_per_core` divides by
the two cores that each side has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace_lab.bench import operators
from millrace_lab.bench._foreign.engines.cases import PATTERNS, Case
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench.operators import FLINK, MILLRACE, PEERS, Operators

NAME = "patterns"

FLINK_BAR = 2.0
"""How many times as fast as Flink on heap."""
CORES = 2


@dataclass(frozen=True)
class Options(operators.Options):
    """Sizes of a run. No two of the compared rows have the same key and time."""

    cases: tuple[str, ...] = tuple(case.name for case in PATTERNS)
    keys: tuple[int, ...] = (100_000,)
    verify_rows: int = 2_000
    verify_keys: int = 500
    growth: bool = False

    def quick(self) -> Options:
        smaller = super().quick()
        assert isinstance(smaller, Options)
        return replace(smaller, keys=(10_000,) if self.keys == Options.keys else self.keys)


class Patterns(Operators):
    """One run of the benchmark."""

    name = NAME
    peers = FLINK

    def _measure(self, case: Case, keys: int) -> None:
        rates = {}
        for name, process in self._processes.items():
            self._steps.step(f"{case.name}, {size_name(keys)} keys: {PEERS.get(name, 'millrace')}")
            rates[name] = self._turn(process, case, keys)
        ours = rates.pop(MILLRACE)
        for name, rate in rates.items():
            ratio = f"{NAME}.{case.name}.{PEERS[name]}.{size_name(keys)}"
            value = self._result.ratio(ratio, ours / rate)
            if PEERS[name].endswith("heap") and self._options.rows == operators.BAR_ROWS:
                self._result.at_least(ratio, value, FLINK_BAR)

    def _turn(self, process: SideProcess, case: Case, keys: int) -> float:
        rate = super()._turn(process, case, keys)
        side = PEERS.get(process.kind, "millrace")
        of = f"{case.name}.{side}.{size_name(keys)}"
        self._result.figure(f"rows_per_s_per_core.{of}", rate / CORES)
        return rate


run = Patterns.measure
