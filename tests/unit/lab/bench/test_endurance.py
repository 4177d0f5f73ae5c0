"""How growth is told from noise."""

from __future__ import annotations

import pytest

from millrace_lab.bench import BenchmarkError
from millrace_lab.bench.endurance import COUNT_SLACK, Growth, growth_of


def series(values: list[float]) -> Growth:
    return growth_of([{"epoch": 10.0 * i, "x": value} for i, value in enumerate(values)], "x")


def test_a_series_that_rises_and_falls_has_not_grown() -> None:
    growth = series([40.0 + i % 8 for i in range(80)])
    assert not growth.is_beyond(*COUNT_SLACK)
    assert abs(growth.slope) < 10


def test_a_series_that_rises_has_grown() -> None:
    growth = series([40.0 + i for i in range(80)])
    assert growth.is_beyond(*COUNT_SLACK)
    assert growth.slope == pytest.approx(100)
    assert (growth.first, growth.last) == (63.5, 109.5)


def test_what_a_start_needs_is_no_growth() -> None:
    growth = series([0.0] * 8 + [100.0] * 72)
    assert not growth.is_beyond(*COUNT_SLACK)


def test_a_sample_without_a_value_counts_as_none() -> None:
    samples = [{"epoch": float(i)} for i in range(20)]
    samples[-1]["x"] = 5.0
    assert growth_of(samples, "x").first == 0


def test_too_few_samples() -> None:
    with pytest.raises(BenchmarkError, match="run more epochs"):
        series([1.0, 2.0])
