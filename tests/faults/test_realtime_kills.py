"""Real time from Kafka to Kafka: whatever is killed, and when, every row counts once in the state.

The oracle is a fold in Python over the whole source topic.
"""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path

import pytest
from tests import processes

import millrace as mr
from millrace import hooks
from millrace_lab.faults import crashes
from millrace_lab.servers import kafka

pytestmark = pytest.mark.stress

REAL_TIME = "real time 1 second"
CRASH_EPOCH = 2
CRASHES = [
    hooks.AFTER_SEGMENT,
    hooks.BEFORE_MANIFEST,
    hooks.AFTER_MANIFEST,
]


class Topics:
    """A source that drivers fill while they live, and a target."""

    def __init__(self, servers: str, folder: Path) -> None:
        name = uuid.uuid4().hex[:8]
        self._servers, self._folder = servers, folder
        self._source, self._target = f"in-{name}", f"out-{name}"
        self.location = folder / "location"
        kafka.create_topic(servers, self._source, 2)
        kafka.create_topic(servers, self._target, 2)

    def live(self, trigger: str, crash: str = "") -> processes.Program:
        program = processes.start(
            "tests.faults.realtime_driver",
            self._servers,
            self._source,
            self._target,
            self.location,
            kafka.connector(),
            trigger,
            log=self._folder / "log",
            **(crashes.environment(crash) if crash else {}),
        )
        program.wait()
        return program

    def expected(self) -> dict[str, tuple[int, int]]:
        state: dict[str, tuple[int, int]] = {}
        for message in kafka.committed(self._servers, self._source):
            key, value = (message.key() or b"").decode(), int(message.value() or b"0")
            n, total = state.get(key, (0, 0))
            state[key] = n + 1, total + value
        return state

    def found(self) -> dict[str, tuple[int, int]]:
        with mr.open(str(self.location)) as reader:
            rows = reader.sql("select k, n, total from totals").to_pylist()
        return {row["k"]: (row["n"], row["total"]) for row in rows}

    def newest_answers(self) -> dict[str, tuple[int, int]]:
        newest = {}
        for message in kafka.committed(self._servers, self._target):
            value = json.loads(message.value() or b"{}")
            newest[(message.key() or b"").decode()] = value["n"], value["total"]
        return newest


@pytest.mark.parametrize("point", CRASHES)
def test_killed_in_real_time(broker: str, tmp_path: Path, point: str) -> None:
    topics = Topics(broker, tmp_path)
    program = topics.live(REAL_TIME, f"{point}@{CRASH_EPOCH}")
    assert program.process.returncode == -signal.SIGKILL, program.output()
    program.assert_nobody_survives()
    # In micro-batches at one point, in real time at the others.
    trigger = "500 milliseconds" if point == hooks.AFTER_MANIFEST else REAL_TIME
    last = topics.live(trigger)
    assert last.process.returncode == 0, last.output()
    assert topics.found() == topics.expected()
    assert topics.newest_answers() == topics.expected()
