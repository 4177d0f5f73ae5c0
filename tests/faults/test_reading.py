"""Readers beside a writer that is killed again and again: always a whole epoch, and the right one.

The writer is a process of its own that continues after what is committed. Input of an epoch follows
from its number, so the oracle of every epoch is known without asking anyone.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.reading.streams import KeyTuple, Oracle, as_oracle, batch, draw
from tests.waiting import until

import millrace as mr
from millrace.log import Journal, open_store
from millrace.log.inspection import inspect

KILLS = (5, 14, 23)
"""The writer is killed once such an epoch was seen, wherever it is by then."""
AHEAD = 7
"""It gets at most this number of epochs further, so that every kill has a part of its own."""
EPOCHS = 30

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
if sys.argv[4] == "wait":
    sys.stdin.read()
"""


def rows(epoch: int) -> list[tuple[KeyTuple, int]]:
    return draw(random.Random(epoch), 40, 25)


def oracle(epoch: int) -> Oracle:
    return batch(row for e in range(1, epoch + 1) for row in rows(e))


def start(location: Path, until: int) -> subprocess.Popen[bytes]:
    """A writer up to an epoch; if it is not the last, it then waits to be killed."""
    root = str(Path(__file__).parents[2])
    then = "end" if until == EPOCHS else "wait"
    arguments = [str(location), root, str(until), then]
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdin=subprocess.PIPE)


@pytest.mark.stress
def test_a_writer_that_is_killed(tmp_path: Path) -> None:
    location = tmp_path / "location"
    writer = start(location, 1)
    manifests = location / "manifests"
    try:
        # By its name: a manifest that is being written has another one.
        until(lambda: any(manifests.glob("[0-9]*.json")) or writer.poll() is not None, "an epoch")
        assert writer.poll() is None, "the writer ended by itself"
    finally:
        writer.kill()
        writer.wait()
    held = mr.open(str(location))
    first = held.epoch
    warm = mr.open(str(location))
    seen: set[int] = set()
    writer = start(location, KILLS[0] + AHEAD)
    try:
        for number, last in enumerate((*KILLS, EPOCHS)):
            while warm.epoch < last:
                assert last == EPOCHS or writer.poll() is None, "the writer ended by itself"
                seen.add(warm.refresh())
                assert as_oracle(warm.sql("select * from totals")) == oracle(warm.epoch)
                with mr.open(str(location)) as fresh:
                    assert as_oracle(fresh.sql("select * from totals")) == oracle(fresh.epoch)
                assert writer.poll() in (None, 0), "the writer failed"
            if last == EPOCHS:
                break
            writer.kill()
            writer.wait()
            assert as_oracle(held.to_arrow()) == oracle(first)
            following = KILLS[number + 1 : number + 2]
            writer = start(location, following[0] + AHEAD if following else EPOCHS)
    finally:
        writer.kill()
        writer.wait()
    assert len(seen) > len(KILLS)
    assert as_oracle(held.to_arrow()) == oracle(first)
    held.close()
    warm.close()
    assert inspect(Journal.open(open_store(str(location)))).is_sound
