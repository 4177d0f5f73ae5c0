"""`bench linear-road` without its query: the search for L, and what counts as in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from millrace_lab.bench import linear_road
from millrace_lab.bench._contract import Result
from millrace_lab.bench.cli import bench
from millrace_lab.bench.linear_road import Options, Run, largest
from millrace_lab.linear_road.playing import Pace


@pytest.mark.parametrize("most", [1, 5, 8, 64])
def test_the_largest_number_is_found_in_few_steps(most: int) -> None:
    for limit in range(most + 3):
        asked: list[int] = []

        def sustains(number: int, limit: int = limit, asked: list[int] = asked) -> bool:
            asked.append(number)
            return number <= limit

        assert largest(sustains, most) == min(limit, most)
        assert len(asked) == len(set(asked)) <= 2 * most.bit_length() + 1
        assert max(asked) <= most


@pytest.mark.parametrize(
    ("types", "seconds", "kept_up", "in_time"),
    [
        ([0, 1, 2, 3], [5.0, 5.0, 5.0, 10.0], True, True),
        ([0, 3], [5.1, 1.0], True, False),
        ([0, 3], [1.0, 10.1], True, False),
        ([0], [1.0], False, False),
    ],
)
def test_every_answer_has_to_be_in_time(
    types: list[int], seconds: list[float], kept_up: bool, in_time: bool
) -> None:
    nothing = np.zeros((0, 11), np.int64)
    run = Run(nothing, np.asarray(types), np.asarray(seconds), {"kept_up": kept_up})
    assert run.is_in_time == in_time


def test_a_report_arrives_with_its_tick() -> None:
    pace = Pace(began=1000.0, begin=600, tick=10, speed=5.0)
    assert pace.due(610) == 1002.0
    times = np.asarray([600, 609, 610, 620])
    assert pace.arrived(times).tolist() == [1002.0, 1002.0, 1004.0, 1006.0]


def test_the_options_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def run(options: Options, workdir: Any, steps: Any) -> Result:
        seen.append(options)
        return Result("linear-road")

    monkeypatch.setattr(linear_road, "run", run)
    given = ["linear-road", "--minutes", "30", "--most", "7", "--clock", "2"]
    assert CliRunner().invoke(bench, given).exit_code == 0
    (options,) = seen
    assert (options.traffic.begin, options.traffic.end) == (9_000, 10_800)
    assert (options.most, options.clock) == (7, 2.0)
    quick = options.quick()
    assert quick.traffic.miles < options.traffic.miles
    assert quick.most == 2
    assert CliRunner().invoke(bench, ["linear-road", "--minutes", "4"]).exit_code == 2
    assert CliRunner().invoke(bench, ["linear-road", "--clock", "0"]).exit_code == 2
