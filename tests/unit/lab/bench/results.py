"""Results as benchmarks write them, small and complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millrace_lab.bench import Result
from millrace_lab.bench._state_kinds import KINDS
from millrace_lab.bench.report import MEASURES

SIZES = ("1k", "100k")


def python_result() -> Result:
    result = Result("python")
    for program in ("count", "sessions"):
        for side, rate in {"millrace": 200_000, "pyspark_row": 5_000}.items():
            result.figure(f"rows_per_s.{side}.{program}.100k", rate)
        ratio = result.ratio(f"python.{program}.pyspark_row", 40.0)
        result.at_least(f"python.{program}.pyspark_row", ratio, 30)
    return result


def state_types_result() -> Result:
    result = Result("state-types")
    for n, measure in enumerate([*MEASURES, "updates_per_checkpoint"]):
        for m, kind in enumerate(KINDS):
            for size in SIZES:
                result.figure(f"{measure}.{kind.name}.{size}", 1000 * n + 10 * m + 1)
    for name in ("list_append.100", "list_append.1m", "list_append.1m_over_100"):
        result.figure(f"big.ms.{name}", 1.5)
        result.figure(f"big.bytes.{name}", 2048)
    result.at_most("big.bytes.list_append.1m_over_100", 2.5, 2)
    return result


def peers_result() -> Result:
    result = Result("peers")
    rates = {
        "millrace-aggregate": 2_000_000,
        "millrace-processor": 100_000,
        "flink-sql-heap": 4_000_000,
        "pyflink-heap": 500,
    }
    for side, rate in rates.items():
        name = f"{side}.100k"
        result.figure(f"rows_per_s.{name}", rate)
        result.figure(f"rows_per_s.{name}.low", rate / 2)
        result.figure(f"rows_per_s.{name}.high", rate * 2)
        result.figure(f"cpu_s_per_m_rows.{name}", 1.5)
        result.figure(f"peak_mb.{name}", 1234)
        result.figure(f"gb_s_per_m_rows.{name}", 0.25)
    for side, ratio in {"flink-sql-heap": 0.5, "pyflink-heap": 200}.items():
        result.ratio(f"peers.{side}.100k", ratio)
        result.ratio(f"peers.{side}.100k.low", ratio / 4)
        result.ratio(f"peers.{side}.100k.high", ratio * 4)
    result.versions["flink"] = "9.9"
    return result


def written(folder: Path, *results: Result) -> dict[str, Any]:
    """Write results as `--json` does; gives them back as they are read."""
    for result in results:
        result.write(folder / f"{result.name}.json")
    return {
        result.name: json.loads((folder / f"{result.name}.json").read_text()) for result in results
    }
