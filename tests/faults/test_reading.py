"""Readers beside a writer that is killed again and again: always a whole epoch, and the right one.

The writer is a process of its own that goes on from what is committed. Input of an epoch follows
from its number, so the oracle of every epoch is known without asking anyone.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.unit.reading.streams import KeyTuple, Oracle, as_oracle, batch, draw

import millrace as mr
from millrace import clock
from millrace.log import Journal, open_store
from millrace.log.inspection import inspect

EPOCHS = 60
KILLS = 5

WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from tests.faults.test_reading import rows
from tests.unit.reading.streams import Counted
from millrace.log.retention import collect
stream = Counted(sys.argv[1], key_groups=8)
while stream.trail.epoch < int(sys.argv[3]):
    epoch = stream.trail.epoch + 1
    stream.shards = 1 + epoch % 3
    stream.send(rows(epoch))
    if epoch % 4 == 0:
        collect(stream.journal, 3)
"""


def rows(epoch: int) -> list[tuple[KeyTuple, int]]:
    return draw(random.Random(epoch), 40, 25)


def oracle(epoch: int) -> Oracle:
    return batch(row for e in range(1, epoch + 1) for row in rows(e))


def start(location: Path) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen([sys.executable, "-c", WRITER, str(location), root, str(EPOCHS)])


def test_a_writer_that_is_killed(tmp_path: Path) -> None:
    location = tmp_path / "location"
    rng = random.Random(61)
    kills_at = sorted(rng.sample(range(3, EPOCHS - 5), KILLS))
    writer = start(location)
    while not (location / "manifests").exists() or not any((location / "manifests").iterdir()):
        assert writer.poll() is None, "the writer ended by itself"
        clock.sleep(0.01)
    held = mr.open(str(location))
    first = held.epoch
    warm = mr.open(str(location))
    seen: set[int] = set()
    try:
        while warm.epoch < EPOCHS:
            seen.add(warm.refresh())
            assert as_oracle(warm.sql("select * from totals")) == oracle(warm.epoch)
            with mr.open(str(location)) as fresh:
                assert as_oracle(fresh.sql("select * from totals")) == oracle(fresh.epoch)
            if kills_at and warm.epoch >= kills_at[0]:
                kills_at.pop(0)
                writer.send_signal(signal.SIGKILL)
                writer.wait()
                assert as_oracle(held.to_arrow()) == oracle(first)
                writer = start(location)
            elif writer.poll() is not None:
                assert writer.returncode == 0, "the writer failed"
                warm.refresh()
    finally:
        writer.kill()
        writer.wait()
    assert not kills_at
    assert len(seen) > KILLS
    assert as_oracle(held.to_arrow()) == oracle(first)
    held.close()
    warm.close()
    assert inspect(Journal.open(open_store(str(location)))).is_sound
