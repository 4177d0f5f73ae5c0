"""`millrace autoscale` on records of a query that does not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.cli.test_reconfigure import location, run
from tests.unit.driving import Location
from tests.unit.reconfigure.autoscale.epochs import Epochs

from millrace.reconfigure.autoscale.deciding import decide
from millrace.reconfigure.autoscale.observing import Observation
from millrace.reconfigure.autoscale.recording import Records
from millrace.reconfigure.autoscale.settings import Settings

__all__ = ["location"]


@pytest.fixture
def recorded(location: Location) -> Location:
    records = Records(location.store)
    settings = Settings(max=8)
    seen: list[Observation] = []
    epochs = Epochs(fixed=0.0)
    for rows, number in ((4000, 30), (30_000, 10)):
        for _ in range(number):
            seen.append(epochs.run(1, rows, 1).observations[-1])
    records.write_seen(settings, seen)
    records.write_decision(decide(settings, epochs.history))
    return location


def test_a_location_without_records(location: Location) -> None:
    result = run("autoscale", location.store.url)
    assert result.exit_code == 1
    assert "has no records of autoscaling" in result.output


def test_a_location_or_a_file(tmp_path: Path) -> None:
    assert run("autoscale").exit_code == 2
    assert run("autoscale", "--replay", str(tmp_path / "missing")).exit_code == 2
    result = run("autoscale", str(tmp_path / "nowhere"))
    assert result.exit_code == 1
    assert "is not a Millrace location" in result.output


def test_it_explains(recorded: Location) -> None:
    result = run("autoscale", recorded.store.url, "--explain")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "autoscaling by model: on, 1 to 8 shards, target 70%"
    assert lines[1].startswith("epoch 40: 30,000 rows in")
    assert lines[2].startswith("  totals: 1 shards, 30,000 rows, 10,000 rows/s a shard")
    assert lines[3].startswith("now: rescale, totals 1 to 5: load")
    assert lines[4].startswith("epoch 40: rescale, totals 1 to 5")
    body = json.loads(run("autoscale", recorded.store.url, "--json").output)
    assert body["now"]["parallelism"] == {"totals": 5}
    assert body["settings"]["max"] == 8


def test_a_dry_run_takes_other_settings(recorded: Location) -> None:
    result = run("autoscale", recorded.store.url, "--dry-run", "--max", "3", "--target", "0.9")
    assert "rescale, totals 1 to 3" in result.output
    wrong = run("autoscale", recorded.store.url, "--dry-run", "--target", "1.5")
    assert wrong.exit_code == 1
    assert "above 0 and below 1" in wrong.output


def test_records_are_replayed_with_another_policy(recorded: Location, tmp_path: Path) -> None:
    file = tmp_path / "seen.jsonl"
    result = run("autoscale", recorded.store.url, "--record", str(file))
    assert result.output == f"wrote 40 epochs to {file}\n"
    result = run("autoscale", "--replay", str(file), "--policy", "threshold")
    assert "totals 1 to 2: the busiest shard was busy for 300%" in result.output
    assert "40 epochs, 40 decisions by threshold: 1 to 2 shards wanted" in result.output
    decisions = json.loads(run("autoscale", "--replay", str(file), "--json").output)
    assert decisions[-1]["parallelism"] == {"totals": 5}
    file.write_text("no history")
    result = run("autoscale", "--replay", str(file))
    assert result.exit_code == 1
    assert "line 1" in result.output
    assert "is no observation" in result.output


def test_a_switch_needs_a_running_query(recorded: Location) -> None:
    result = run("autoscale", recorded.store.url, "--off", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "no query on" in result.output
