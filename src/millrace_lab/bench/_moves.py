"""What is made of one reconfiguration: latencies before, during and after, downtime, throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millrace_lab.bench._contract import Result
from millrace_lab.bench._openloop import Side
from millrace_lab.bench._timeline import Spread, Timeline

MOVES = ("out", "in")
LEAST_EPOCHS = 5
"""Throughput during a move is over at least this many epochs: one or two say little."""


@dataclass(frozen=True)
class Measured:
    """One move of one run."""

    before: Spread
    during: Spread
    after: Spread
    duration: float
    downtime: float
    missed: int
    throughput: float
    """Rows per second during, as a share of before."""
    bytes: int

    @property
    def p99_ratio(self) -> float:
        return self.during.p99 / self.before.p99


def measure(
    timeline: Timeline, move: dict[str, Any], since: float, until: float, trigger: float
) -> Measured:
    """A move inside a run that was steady from `since` and is looked at up to `until`."""
    requested = move["requested"]
    ended = timeline.first_commit(move["ended"])
    normal = sorted(timeline.gaps(since, requested))
    gap = normal[len(normal) // 2]
    least = max(ended, requested + LEAST_EPOCHS * trigger)
    return Measured(
        before=Spread.of(timeline.before(since, requested)),
        during=Spread.of(timeline.during(requested, ended)),
        after=Spread.of(timeline.after(ended, until)),
        duration=ended - requested,
        downtime=max(0.0, max(timeline.gaps(requested, ended)) - gap),
        missed=timeline.missed(requested, ended, trigger),
        throughput=timeline.throughput(requested, least) / timeline.throughput(since, requested),
        bytes=int(move["bytes"]),
    )


def there_and_back(
    side: Side, name: str, strategy: str, parallelisms: Sequence[int], steady: float
) -> list[dict[str, Any]]:
    """Rescale a running query, let it run for a while after each move; what they report."""
    process, moves = side.process, []
    for parallelism in parallelisms:
        moves.append(process.call("rescale", parallelism=parallelism, strategy=strategy))
        process.call("wait_commits", name=name, number=1, timeout=300)
        process.call("wait", seconds=steady)
    process.call("wait_commits", name=name, number=1, timeout=300)
    return moves


def measure_both(
    timeline: Timeline, moves: Sequence[dict[str, Any]], steady: float, trigger: float
) -> list[Measured]:
    """Out and in again, of a run that was steady for some seconds before each."""
    first, second = moves
    returned = timeline.first_commit(first["ended"])
    windows = (
        (first["requested"] - steady, second["requested"]),
        (max(returned, second["requested"] - 0.75 * steady), timeline.points[-1].committed),
    )
    return [
        measure(timeline, move, since, until, trigger)
        for move, (since, until) in zip(moves, windows, strict=True)
    ]


def add_worse(result: Result, prefix: str, measured: Sequence[Measured]) -> None:
    """The worse of several moves, or their sum."""
    result.figure(f"{prefix}.p99_during_over_before", max(m.p99_ratio for m in measured))
    result.figure(f"{prefix}.downtime_s", max(m.downtime for m in measured))
    result.figure(f"{prefix}.duration_s", max(m.duration for m in measured))
    result.figure(f"{prefix}.epochs_missed", sum(m.missed for m in measured))
    result.figure(f"{prefix}.throughput_during_over_before", min(m.throughput for m in measured))
    result.figure(f"{prefix}.bytes", sum(m.bytes for m in measured))


def add_figures(result: Result, prefix: str, measured: Measured) -> None:
    """All of it, by flat names."""
    for phase in ("before", "during", "after"):
        spread: Spread = getattr(measured, phase)
        for name in ("p50", "p99", "max"):
            result.figure(f"{prefix}.{name}_{phase}_s", getattr(spread, name))
    result.figure(f"{prefix}.duration_s", measured.duration)
    result.figure(f"{prefix}.downtime_s", measured.downtime)
    result.figure(f"{prefix}.epochs_missed", measured.missed)
    result.figure(f"{prefix}.throughput_during_over_before", measured.throughput)
    result.figure(f"{prefix}.p99_during_over_before", measured.p99_ratio)
    result.figure(f"{prefix}.bytes", measured.bytes)
