"""The cluster as a director sees it: its executors, and how to get more, fewer, and following ones.

Spark's is `spark.executors.SparkCluster`; the simulator has one of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace import clock
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment

PATIENCE_SECONDS = 60.0
"""How long a rescale waits for executors that were requested."""

START_UPS = 9
"""How many start-up times are remembered."""

ToFollow = Mapping[str, Mapping[OperatorName, Sequence[int]]]
"""Executor -> operator -> key groups it has to follow, those that are furthest behind first."""


@dataclass(frozen=True)
class Executor:
    """A live executor."""

    name: str
    host: str
    cores: int


@dataclass(frozen=True)
class Allowance:
    """What one executor may use in one round of following."""

    seconds: float
    bytes: float
    low_priority: bool = False
    """Whether to let everything else on its machine go first."""


@dataclass(frozen=True)
class Followed:
    """How far one executor has followed some key groups of one operator."""

    operator: OperatorName
    executor: str
    groups: tuple[int, ...]
    version: Epoch
    bytes: int


class Cluster(Protocol):
    """The executors of one query."""

    @property
    def is_local(self) -> bool:
        """Whether there is one executor and there can be no other."""

    def alive(self) -> tuple[Executor, ...]: ...

    def request(self, total: int) -> bool:
        """Ask for this number of executors in all."""

    def release(self, names: Sequence[str]) -> bool:
        """Give executors back."""

    def follow(
        self, version: Epoch, to_follow: ToFollow, allowances: Mapping[str, Allowance]
    ) -> list[Followed]:
        """One round on all executors in `to_follow` at once."""

    def prepare(self, assignments: Mapping[OperatorName, Assignment]) -> None:
        """Make ahead of time whatever an epoch with these assignments needs."""


@dataclass(frozen=True)
class DirectorOptions:
    """The options of `start` that concern executors."""

    standby: int = 0
    """How many executors follow every key group besides its owner."""
    elastic: bool = False
    """Whether to ask Spark for executors and give idle ones back."""
    spare_executors: int = 0
    """With `elastic`: executors kept warm beyond those in use."""
    follow_bytes_per_second: float = 256e6
    restarts_only: bool = False
    """Whether every move is carried out as by `restart`, and nothing follows beside the epochs."""


class ElasticExecutors:
    """Requests and releases executors for an elastic query; does nothing for any other."""

    def __init__(self, cluster: Cluster, options: DirectorOptions) -> None:
        self._cluster = cluster
        self.is_active = options.elastic and not cluster.is_local
        self.spare = options.spare_executors
        """Executors that are kept warm beyond those in use."""
        self._asked: tuple[int, float] | None = None
        """How many were asked for that are not there yet, and when."""
        self._start_ups: list[float] = []

    def request_for(self, shards: int, alive: Sequence[Executor]) -> None:
        """Request the executors that this number of shards needs."""
        needed = self._needed(shards, alive)
        if self.is_active and needed > len(alive):
            self._cluster.request(needed)
            self._asked = (needed, clock.stopwatch())

    def see(self, alive: Sequence[Executor]) -> None:
        """Take note of the executors there are: how long did new ones take?"""
        if self._asked is not None and len(alive) >= self._asked[0]:
            self._start_ups.append(clock.stopwatch() - self._asked[1])
            del self._start_ups[:-START_UPS]
            self._asked = None

    @property
    def start_up_seconds(self) -> float | None:
        """How long it takes from asking for executors to having them; None if it is not known."""
        return statistics.median(self._start_ups) if self._start_ups else None

    def suffice(self, shards: int, alive: Sequence[Executor], requested: float) -> bool:
        """Whether there are enough, or the wait since `requested` was long enough."""
        if not self.is_active or sum(e.cores for e in alive) >= shards:
            return True
        return clock.stopwatch() - requested > PATIENCE_SECONDS

    def release_idle(self, shards: int, alive: Sequence[Executor], busy: Collection[str]) -> None:
        """Give idle executors back, except the spare ones."""
        idle = [e.name for e in alive if e.name not in busy]
        surplus = len(alive) - self._needed(shards, alive)
        if self.is_active and surplus > 0 and idle:
            self._cluster.release(idle[-surplus:])

    def _needed(self, shards: int, alive: Sequence[Executor]) -> int:
        cores = max((e.cores for e in alive), default=1)
        return -(-shards // cores) + self.spare
