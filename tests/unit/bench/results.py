"""Results as benchmarks write them, small and complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millrace.bench import Result
from millrace.bench._kinds import KINDS
from millrace.bench.report import MEASURES

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


def written(folder: Path, *results: Result) -> dict[str, Any]:
    """Write results as `--json` does; gives them back as they are read."""
    for result in results:
        result.write(folder / f"{result.name}.json")
    return {
        result.name: json.loads((folder / f"{result.name}.json").read_text()) for result in results
    }
