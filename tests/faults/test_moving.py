"""Exactness under movement: rescales, moves, drains and kills on real executors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests import processes
from tests.standalone import standalone_cluster

ALL = "live,pause,fluid,lazy,standby,restart"


def moved(tmp_path: Path, seed: int, actions: int, *more: str) -> dict[str, Any]:
    program = processes.start(
        "tests.faults.moving",
        tmp_path / "location",
        tmp_path / "output",
        seed,
        actions,
        ALL,
        *more,
        log=tmp_path / "log",
    )
    try:
        code = program.wait(540)
    finally:
        program.kill_all()
    lines = [line for line in program.output().splitlines() if line.startswith("RESULT ")]
    assert code == 0, f"seed {seed}:\n{program.output()}"
    assert lines, f"seed {seed}:\n{program.output()}"
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    assert result["state_equal"], result
    assert result["outputs_equal"], result
    assert not [state for state in result["moves"] if state in ("waiting", "moving")], result
    return result


@pytest.mark.cluster
@pytest.mark.parametrize("seed", [1])
def test_state_and_outputs_are_those_of_a_still_query(tmp_path: Path, seed: int) -> None:
    result = moved(tmp_path, seed, 7)
    assert len(result["actions"]) == 7


@pytest.mark.cluster
def test_on_a_standalone_cluster(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path, workers=3) as master:
        result = moved(tmp_path, 3, 4, master)
    assert len(result["actions"]) == 4
