"""Real time keeps every row when the number of shards changes while rows come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import processes

pytestmark = pytest.mark.stress


def test_rescaled_in_real_time(tmp_path: Path) -> None:
    program = processes.start(
        "tests.faults.realtime_moving", tmp_path / "location", log=tmp_path / "log"
    )
    assert program.wait() == 0, program.output()
    result = json.loads(program.output().strip().splitlines()[-1])
    assert result["shards"] == [3, 2]
    assert result["rows"] > 0
    assert result["state"], result
    assert result["answers"], result
