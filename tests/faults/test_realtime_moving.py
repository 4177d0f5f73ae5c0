"""Real time keeps every row when shards become more or fewer, and when executors are killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests import processes

pytestmark = [pytest.mark.stress, pytest.mark.cluster]


def disturbed(tmp_path: Path, disturbance: str) -> dict[str, Any]:
    program = processes.start(
        "tests.faults.realtime_moving", tmp_path / "location", disturbance, log=tmp_path / "log"
    )
    assert program.wait() == 0, program.output()
    results = [line for line in program.output().splitlines() if line.startswith("{")]
    result: dict[str, Any] = json.loads(results[-1])
    assert result["rows"] > 0
    assert result["state"], result
    assert result["answers"], result
    return result


def test_rescaled_in_real_time(tmp_path: Path) -> None:
    assert disturbed(tmp_path, "rescale")["done"] == [3, 2]


def test_executors_are_killed_in_real_time(tmp_path: Path) -> None:
    assert len(set(disturbed(tmp_path, "kill")["done"])) == 2
