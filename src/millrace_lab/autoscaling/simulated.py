"""A simulated query: epochs of a load, on shards that a policy or a number decides about.

Its costs are the simulator's own and unknown to the policy, which sees observations only. An
executor has one core. It costs from the moment it is asked for until it is given back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from millrace.reconfigure.autoscale.deciding import PAUSE, decide
from millrace.reconfigure.autoscale.history import Decision, History
from millrace.reconfigure.autoscale.observing import (
    HotGroup,
    Observation,
    OperatorLoad,
    ShardLoad,
)
from millrace.reconfigure.autoscale.settings import Settings
from millrace_lab.autoscaling.loads import Load

OPERATOR = "totals"


@dataclass(frozen=True)
class World:
    """What things really cost, in seconds."""

    per_row: float = 8e-5
    """One core does 12,500 rows a second."""
    shard: float = 0.03
    """Opening a shard and writing its segment."""
    spark: float = 0.25
    """What Spark needs for an epoch, however few rows it has."""
    spark_per_row: float = 4e-6
    noise: float = 0.08
    trigger: float = 0.0
    hot: float = 0.0
    """The share of the hottest key group."""
    start_up: float = 4.0
    """From asking for an executor to having it."""
    move: float = 1.0
    """From having the executors to the first epoch on them."""
    cores: int | None = None
    """All cores there are; None for as many as are asked for."""
    rate_limit: int | None = None
    """Rows of one epoch, at most."""
    tells: bool = True
    """Whether a source with a limit says what it has left."""

    def share(self, shards: int, balanced: bool) -> float:
        """The share of the heaviest shard."""
        if not self.hot:
            return 1.0 / shards
        lone = max(self.hot, (1 - self.hot) / (shards - 1)) if shards > 1 else 1.0
        return lone if balanced else self.hot + (1 - self.hot) / shards

    def epoch(self, rows: float, shards: int, cores: int, balanced: bool = True) -> float:
        """Seconds of an epoch, without noise."""
        rest = self.spark + self.spark_per_row * rows / cores
        return rest + self.shard + self.per_row * rows * self.share(shards, balanced)

    def suffices(self, rate: float, shards: int, target: float, latency: float) -> bool:
        """Whether these shards do for a steady load: busy for less than the target, in time."""
        cores = shards if self.cores is None else self.cores
        load = rate * (self.per_row * self.share(shards, True) + self.spark_per_row / cores)
        if load > target:
            return False
        interval = self.trigger
        # The epoch's rows are those of an interval, which is as long as the epoch or the trigger.
        for _ in range(200):
            interval = max(self.trigger, self.epoch(rate * interval, shards, cores))
        return interval + self.epoch(rate * interval, shards, cores) <= latency


@dataclass(frozen=True)
class Outcome:
    """What a run of a simulated query came to."""

    cost: float
    """Executor-seconds."""
    late: float
    """Seconds in which rows were committed too late."""
    longest_late: float
    """The longest time in which all rows were."""
    acts: tuple[Decision, ...]
    history: tuple[Observation, ...] = field(repr=False, default=())
    shards: tuple[tuple[float, int], ...] = field(repr=False, default=())


Scaler = Callable[[History], Decision | None]


def scaled_by(settings: Settings) -> Scaler:
    return lambda history: decide(settings, history)


def fixed(history: History) -> None:
    """No scaling."""


@dataclass
class _Pending:
    """A change that was asked for."""

    at: float
    shards: int


def simulate(
    world: World, load: Load, scaler: Scaler, *, shards: int, latency: float, seed: int
) -> Outcome:
    """Run a query over a load."""
    rng = np.random.default_rng([seed, 77])
    history = History()
    observed: list[Observation] = []
    acts: list[Decision] = []
    sizes = [(0.0, shards)]
    pending: _Pending | None = None
    executors, balanced = shards, not world.hot
    cost = late = longest = streak = 0.0
    previous, end, taken, number, looked = 0.0, 1.0, 0.0, 0, 0.0
    while True:
        start = max(end, previous + world.trigger)
        if start >= load.seconds:
            break
        if pending is not None and pending.at <= start:
            shards, executors, pending = pending.shards, pending.shards, None
            balanced = True
            sizes.append((start, shards))
        available = load.before(start) - taken
        rows = available if world.rate_limit is None else min(available, world.rate_limit)
        taken += rows
        cores = executors if world.cores is None else world.cores
        crowded = max(1.0, shards / cores)
        factor = float(rng.lognormal(0.0, world.noise))
        busy = factor * (
            world.shard + world.per_row * rows * world.share(shards, balanced) * crowded
        )
        rest = factor * (world.spark + world.spark_per_row * rows / cores)
        before, end, number = end, start + busy + rest, number + 1
        cost += executors * (end - before)
        backlog = available - rows
        waited = 0.0 if backlog < 1 else backlog / max(1.0, rows) * (busy + rest)
        age = (start - previous) + (end - start) + waited
        if age > latency:
            late += end - before
            streak += end - before
            longest = max(longest, streak)
        else:
            streak = 0.0
        observation = Observation(
            epoch=number,
            at=end,
            seconds=end - start,
            interval=start - previous,
            rows=round(rows),
            operators=(_operator(world, round(rows), shards, busy, balanced),),
            trigger=world.trigger,
            backlog=round(backlog) if world.rate_limit is not None and world.tells else None,
            full=not world.tells and world.rate_limit is not None and rows >= world.rate_limit,
            executors=executors,
            cores=cores,
            room=world.cores,
            moving=pending is not None,
        )
        previous = start
        history = history.add(observation)
        observed.append(observation)
        decision = None
        if end - looked >= PAUSE:
            decision, looked = scaler(history), end
        if decision is not None and decision.acts:
            history = history.decided(decision)
            acts.append(decision)
            wanted = decision.parallelism[OPERATOR]
            waits = world.start_up if world.cores is None and wanted > executors else 0.0
            pending = _Pending(end + waits + world.move, wanted)
            if world.cores is None:
                executors = max(executors, wanted)
    return Outcome(cost, late, longest, tuple(acts), tuple(observed), tuple(sizes))


def _operator(world: World, rows: int, shards: int, busy: float, balanced: bool) -> OperatorLoad:
    heaviest = world.share(shards, balanced)
    others = (1 - heaviest) / (shards - 1) if shards > 1 else 0.0
    loads = [ShardLoad(round(rows * heaviest), busy)]
    loads += [ShardLoad(round(rows * others), busy * others / heaviest) for _ in range(shards - 1)]
    hot = (HotGroup(7, world.hot),) if world.hot else ()
    return OperatorLoad(OPERATOR, tuple(loads), hot)


def oracle_cost(world: World, load: Load, settings: Settings) -> float:
    """Executor-seconds of one who knows the load, and has at every time the fewest shards that do.

    It pays nothing for moves and has new executors at once.
    """
    allowed = settings.latency if settings.latency is not None else float("inf")
    needed: dict[float, int] = {}
    total = 0.0
    rates, counts = np.unique(np.round(load.rate, 0), return_counts=True)
    for rate, count in zip(rates.tolist(), counts.tolist(), strict=True):
        needed[rate] = next(
            (
                shards
                for shards in range(settings.min, settings.max + 1)
                if world.suffices(rate, shards, settings.target, allowed)
            ),
            settings.max,
        )
        total += needed[rate] * count * 0.1
    return total


def with_seed(world: World, seed: int) -> World:
    """The same kind of world with other costs."""
    rng = np.random.default_rng([seed, 5])
    return replace(
        world,
        per_row=world.per_row * float(rng.uniform(0.6, 1.6)),
        shard=world.shard * float(rng.uniform(0.5, 2.0)),
        spark=world.spark * float(rng.uniform(0.5, 1.4)),
        start_up=world.start_up * float(rng.uniform(0.5, 2.0)),
        move=world.move * float(rng.uniform(0.5, 2.0)),
    )
