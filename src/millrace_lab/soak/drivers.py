"""The drivers of a soak, dead and alive, and the tally of what happened to them."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field

from millrace import clock
from millrace_lab import processes

DUMP_SECONDS = 3.0
"""For a process to write where its threads are."""


@dataclass(eq=False)
class Driver:
    """A driver's process, the head of a process session that holds its whole Spark."""

    life: str
    process: subprocess.Popen[bytes]
    crash: str
    is_disturbed: bool
    """It has a store that fails, or a point to die at."""
    was_killed: bool = False
    """By the supervisor."""

    def members(self) -> list[int]:
        return processes.members(self.process.pid)

    def send(self, number: signal.Signals) -> None:
        processes.send(self.members(), number)

    def dump_threads(self) -> None:
        """Have the driver and its JVM write into their log where each of their threads is."""
        processes.send([self.process.pid], signal.SIGUSR1)
        children = processes.descendants(self.process.pid)
        jvms = [pid for pid in children if "SparkSubmit" in processes.command_line(pid)]
        processes.send(jvms, signal.SIGQUIT)
        clock.sleep(DUMP_SECONDS)

    def kill(self) -> None:
        """Everything of it."""
        self.was_killed = self.was_killed or self.process.poll() is None
        processes.end_session(self.process.pid)
        self.process.wait()


@dataclass
class Zombie:
    """A stopped driver."""

    driver: Driver
    wake_at: int
    """The epoch after which it is woken up."""
    woken: float | None = None
    """When it was, on the stopwatch."""


@dataclass
class Tally:
    """What has happened so far."""

    epoch: int = 0
    lives: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    """How drivers ended."""
    slowest_zombie: float = 0.0
    """Seconds from waking up to the end."""
    spark: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """What must not happen: hangs, zombies that are not fenced, errors nobody planned."""

    @property
    def restarts(self) -> int:
        return max(0, self.lives - 1)
