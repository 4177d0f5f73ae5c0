"""What a soak does to its query, in an order that a seed determines.

Pure: no processes here. The draws do not depend on how long anything takes, so the same seed gives
the same acts in the same order; when each happens is the machine's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace import clock, hooks
from millrace.reconfigure.strategies import STRATEGIES
from millrace_lab.faults import crashes
from millrace_lab.faults.faulty import Faults

EXECUTOR_KILLED = "executor killed"
WORKER_KILLED = "Python worker killed"
DRIVER_KILLED = "driver killed"
MACHINE_KILLED = "everything killed at once"
EXECUTOR_STOPPED = "executor stopped, woken up later"
WORKER_STOPPED = "Python worker stopped, woken up later"
DRIVER_STOPPED = "driver stopped, woken up after its replacement committed"
DISK_FULL = "disk full"
READ_ONLY = "store read-only"
CLOCK_JUMP = "clock jump"
RESCALE = "rescale"
OUTAGE = "store out of reach"
COLLECTION = "millrace gc by hand"
SERVE_KILLED = "serve killed"

WEIGHTS = {
    EXECUTOR_KILLED: 4,
    WORKER_KILLED: 5,
    DRIVER_KILLED: 2,
    MACHINE_KILLED: 1,
    EXECUTOR_STOPPED: 3,
    WORKER_STOPPED: 3,
    DRIVER_STOPPED: 1,
    DISK_FULL: 2,
    READ_ONLY: 2,
    CLOCK_JUMP: 3,
    RESCALE: 4,
    OUTAGE: 2,
    COLLECTION: 4,
    SERVE_KILLED: 2,
}
"""Every kind of act, and how often it comes relative to the others."""

MOUNTS = (DISK_FULL, READ_ONLY)
"""Acts that need a file system of the soak's own."""


@dataclass(frozen=True)
class Act:
    """Something to do to the running query."""

    kind: str
    pause: float
    """Seconds to wait before it, and for at least an epoch."""
    share: float
    """Which victim, as a share of those there are."""
    seconds: float
    """How long it lasts, for what lasts."""
    jump: int
    """Where the clock goes, in seconds from the true time."""
    parallelism: int
    strategy: str


@dataclass(frozen=True)
class Life:
    """How a driver lives."""

    speculation: bool
    standby: int
    faults: str
    """For the store, in every process; empty for none."""
    crash: str
    """A named point and a victim, at an epoch to come; empty for none."""
    crash_after: int
    """In how many epochs."""


class Schedule:
    """Acts and lives."""

    def __init__(self, seed: int, kinds: Sequence[str], executors: int) -> None:
        self._kinds = list(kinds)
        self._executors = executors
        self._acts = clock.dice(f"{seed} acts")
        self._lives = clock.dice(f"{seed} lives")
        points = [(point, "driver") for point in crashes.DRIVER_POINTS]
        for point in hooks.SHARD_POINTS:
            points += [(point, "executor"), (point, "worker")]
        self._points = points
        self._to_come: list[tuple[str, str]] = []

    def acts(self) -> Iterator[Act]:
        """Without an end. Every kind comes once before any comes twice."""
        first = list(self._kinds)
        self._acts.shuffle(first)
        for kind in first:
            yield self._act(kind)
        weights = [WEIGHTS[kind] for kind in self._kinds]
        while True:
            yield self._act(self._acts.choices(self._kinds, weights)[0])

    def _act(self, kind: str) -> Act:
        dice = self._acts
        return Act(
            kind=kind,
            pause=dice.uniform(0.5, 4),
            share=dice.random(),
            seconds=dice.uniform(2, 8),
            jump=dice.choice((dice.randint(-7200, 7200), dice.randint(-60, 60))),
            parallelism=dice.randint(1, self._executors + 2),
            strategy=dice.choice(list(STRATEGIES)),
        )

    def life(self) -> Life:
        """The next driver's."""
        dice = self._lives
        point, victim = self._point(dice)
        crashes = dice.random() < 0.6
        return Life(
            speculation=dice.random() < 0.7,
            standby=dice.choice((0, 0, 1)),
            faults=str(_faults(dice)) if dice.random() < 0.6 else "",
            crash=f"{point}@{{epoch}}:{victim}" if crashes else "",
            crash_after=dice.randint(2, 8),
        )

    def _point(self, dice: clock.Dice) -> tuple[str, str]:
        """All points in turn, in an order of the seed's."""
        if not self._to_come:
            self._to_come = list(self._points)
            dice.shuffle(self._to_come)
        return self._to_come.pop()


def _faults(dice: clock.Dice) -> Faults:
    """Most lives get through some epochs; some do not."""
    rate = dice.choice((0.0005, 0.002, 0.01))
    return Faults(
        error=rate,
        after=rate / 2,
        partial=rate / 2,
        late=rate / 2,
        twice=0.02,
        stale=0.2,
        slow=0.02,
        slow_ms=dice.choice((20.0, 200.0)),
        seed=str(dice.getrandbits(32)),
    )
