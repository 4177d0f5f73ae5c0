"""`millrace mirror`: once, its status, and what it refuses."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.mirrors.places import RocksDbPlace
from tests.unit.reading.streams import Counted, draw

from millrace.cli.command import main


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    made = Counted(str(tmp_path / "location"))
    made.send(draw(random.Random(3), 30))
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["mirror", *arguments])


def test_once_and_status(counted: Counted, tmp_path: Path) -> None:
    place = RocksDbPlace(tmp_path)
    before = run(counted.url, place.url, "--status")
    assert before.exit_code == 0, before.output
    assert "is empty: 1 epochs behind" in before.output
    assert not place.path.exists()
    once = run(counted.url, place.url, "--operator", "totals", "--once")
    assert once.exit_code == 0, once.output
    assert "shows epoch 1, committed at 2023-11-14" in once.output
    assert once.output.endswith("up to date\n")
    counted.send(draw(random.Random(4), 10))
    status = json.loads(run(counted.url, place.url, "--status", "--json").output)
    assert (status["epoch"], status["epochs_behind"], status["operator"]) == (1, 1, "totals")
    assert status["seconds_behind"] > 0
    assert json.loads(run(counted.url, place.url, "--once", "--json").output)["epoch"] == 2
    assert run(counted.url, place.url, "--reset", "--once").exit_code == 0
    assert place.epoch() == 2
    assert len(place.rows()) == len(counted.history[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--status", "--once"], "--status changes nothing"),
        (["--json"], "--json goes with"),
        (["--operator", "sums", "--once"], "no operator 'sums'"),
    ],
)
def test_refused(counted: Counted, tmp_path: Path, options: list[str], message: str) -> None:
    done = run(counted.url, RocksDbPlace(tmp_path).url, *options)
    assert done.exit_code == 1
    assert message in done.output


def test_a_target_that_there_is_not(counted: Counted) -> None:
    done = run(counted.url, "mongodb://host", "--once")
    assert done.exit_code == 1
    assert "rocksdb:PATH" in done.output
