"""Exactness under movement: rescales, moves, drains and kills on real executors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests import processes
from tests.stress import few

from millrace_lab.soak.cluster import standalone_cluster

ALL = "live,pause,fluid,lazy,standby,restart"


def ended(tmp_path: Path, module: str, *arguments: object) -> dict[str, Any]:
    """What a program printed at its end."""
    program = processes.start(
        module, tmp_path / "location", tmp_path / "output", *arguments, log=tmp_path / "log"
    )
    try:
        code = program.wait()
    finally:
        program.kill_all()
    lines = [line for line in program.output().splitlines() if line.startswith("RESULT ")]
    assert code == 0, f"{arguments}:\n{program.output()}"
    assert lines, f"{arguments}:\n{program.output()}"
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


def result_of(tmp_path: Path, module: str, *arguments: object) -> dict[str, Any]:
    result = ended(tmp_path, module, *arguments)
    assert result["state_equal"], result
    assert result["outputs_equal"], result
    return result


def moved(tmp_path: Path, seed: int, actions: int, *more: str) -> dict[str, Any]:
    result = result_of(tmp_path, "tests.faults.moving", seed, actions, ALL, *more)
    assert not [state for state in result["moves"] if state in ("waiting", "moving")], result
    return result


@pytest.mark.cluster
@pytest.mark.parametrize(("seed", "actions"), few([(1, 3), (2, 12), (3, 12)], (1, 3)))
def test_state_and_outputs_are_those_of_a_still_query(
    tmp_path: Path, seed: int, actions: int
) -> None:
    result = moved(tmp_path, seed, actions)
    assert len(result["actions"]) == actions


@pytest.mark.cluster
@pytest.mark.stress
def test_on_a_standalone_cluster(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path, workers=3) as master:
        result = moved(tmp_path, 3, 4, master)
    assert len(result["actions"]) == 4


@pytest.mark.stress
@pytest.mark.cluster
def test_copies_of_tasks_and_stages_that_run_again(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path, workers=3) as master:
        result = result_of(tmp_path, "tests.faults.reruns", master)
    assert result["killed"], result
    assert len(result["copied"]) == 2, result
    assert result["spark"].get("stages run again"), result


@pytest.mark.stress
@pytest.mark.cluster
def test_executors_are_given_back_and_asked_for_again(tmp_path: Path) -> None:
    result = result_of(tmp_path, "tests.faults.elastic")
    assert result["moves"] == ["done", "done"], result
    first, few, again = map(set, result["alive"])
    # One runs the only shard and one is kept warm; the others are new, by Spark's numbers.
    assert len(first) == len(again) == 3, result
    assert len(few) == 2, result
    assert few < first, result
    assert again - first, result
    assert set(result["used"]) == again, result
