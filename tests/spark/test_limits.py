"""Every limit at a small size: state beyond its budget, big collections, many timers, a hot key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from millrace_lab.bench import limits
from millrace_lab.bench._console import steps


@pytest.mark.stress
def test_limits_at_a_small_size(spark: SparkSession, tmp_path: Path) -> None:
    options = limits.Options(
        keys=60_000,
        budget=100_000,
        rows=20_000,
        entries=20_000,
        timers=20_000,
        hot_rows=20_000,
        value=3_000_000,
        epochs=2,
    )
    with steps(Console(quiet=True), "limits") as shown:
        result = limits.Limits(lambda: spark, options, tmp_path, shown).run()
    assert result.differences == []
    figures = result.figures
    assert figures["budget.state_mb.small_budget"] > 10 * figures["budget.mb"]
    # An epoch may go beyond the budget by what it changes itself; the large one keeps everything.
    assert (
        figures["budget.reported_heap_mb.small_budget"]
        < figures["budget.reported_heap_mb.large_budget"]
    )
    assert figures["timers.fired_in_one_epoch"] == options.timers
