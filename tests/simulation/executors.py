"""Executors without Spark: processes with replicas of their own, that come, go, and lag.

As with Spark, a location is only preferred: what is meant for an executor that is gone runs on
another. A round of following that fails in one task fails as a whole, and what its other tasks did
is done.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from millrace import clock
from millrace.epoch.shard import ShardTask
from millrace.errors import StoreError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.log.copies import VARIABLE
from millrace.log.store import Store
from millrace.reconfigure.cluster import Allowance, Executor, Followed, ToFollow
from millrace.spark.following import follow_here
from millrace.state.cache import ReplicaCache


@dataclass(eq=False)
class Process:
    """One executor's process."""

    executor: Executor
    copies: str
    """Where it keeps pages of remote segments."""
    cache: ReplicaCache
    alive: bool = True
    listed: bool = True
    """Whether Spark still believes that it is alive."""

    @property
    def name(self) -> str:
        return self.executor.name

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run something in this process, with its disk."""
        os.environ[VARIABLE] = self.copies
        try:
            yield
        finally:
            del os.environ[VARIABLE]


class SimulatedCluster:
    """What a director directs."""

    is_local = False

    def __init__(self, rng: random.Random, copies: str, store: Store) -> None:
        self._rng = rng
        self._store = store
        self._copies = copies
        self._number = 0
        self.processes: list[Process] = []
        self.requested = 0
        """How many executors Spark was asked for."""
        self.faulty = False
        self.faults = 0
        self.tasks: Callable[[], Mapping[OperatorName, ShardTask]] = dict
        self.followed: dict[tuple[OperatorName, str, int], Epoch] = {}
        """How far executors that live have really come."""

    def join(self, cores: int) -> Process:
        name = f"executor-{self._number}"
        process = Process(
            Executor(name, "host", cores),
            os.path.join(self._copies, name),
            ReplicaCache(lambda url: self._store),
        )
        self._number += 1
        self.processes.append(process)
        return process

    def kill(self, process: Process, *, noticed: bool) -> None:
        process.alive = False
        process.listed = not noticed
        process.cache.clear()
        self.followed = {k: v for k, v in self.followed.items() if k[1] != process.name}

    def notice(self) -> None:
        """Spark finds out who is dead."""
        self.processes = [p for p in self.processes if p.alive]

    def renew(self) -> None:
        """The driver is gone, and with it its executors; as many new ones start."""
        self._number = 0
        self.followed.clear()
        old = [p for p in self.processes if p.alive]
        self.processes = []
        for process in old:
            self.join(process.executor.cores)

    def living(self) -> list[Process]:
        return [p for p in self.processes if p.alive]

    def pick(self, name: str) -> Process:
        """Where a task runs that would like to run on this executor."""
        living = self.living()
        if not living:
            raise StoreError("no executor is alive: simulated")
        for process in living:
            if process.name == name and not (self.faulty and self._rng.random() < 0.05):
                return process
        self.faults += 1
        return self._rng.choice(living)

    def alive(self) -> tuple[Executor, ...]:
        return tuple(p.executor for p in self.processes if p.listed)

    def request(self, total: int) -> bool:
        self.requested = total
        return True

    def release(self, names: Sequence[str]) -> bool:
        for process in self.processes:
            if process.name in names:
                self.kill(process, noticed=True)
        return True

    def prepare(self, assignments: Mapping[OperatorName, Assignment]) -> None:
        assert assignments

    def follow(
        self, version: Epoch, to_follow: ToFollow, allowances: Mapping[str, Allowance]
    ) -> list[Followed]:
        assert set(allowances) == set(to_follow)
        found: list[Followed] = []
        failing = self.faulty and self._rng.random() < 0.15
        tasks = self.tasks()
        for name in sorted(to_follow):
            chunks = self._rng.randint(1, 4)
            clock.sleep(min(0.05 * chunks, allowances[name].seconds))
            process = self.pick(name)
            if failing and self._rng.random() < 0.5:
                self.faults += 1
                raise StoreError("a task of the round failed: simulated")
            found += self._follow_on(process, tasks, version, to_follow[name], chunks)
            if self.faulty and self._rng.random() < 0.05 and len(self.living()) > 1:
                self.kill(process, noticed=False)
                self.faults += 1
        return found

    def _follow_on(
        self,
        process: Process,
        tasks: Mapping[OperatorName, ShardTask],
        version: Epoch,
        to_follow: Mapping[OperatorName, Sequence[int]],
        chunks: int,
    ) -> list[Followed]:
        found = []
        looks = 0

        def exhausted(_: int) -> bool:
            nonlocal looks
            looks += 1
            return looks >= chunks

        for operator, groups in to_follow.items():
            with process.inside():
                done, reached, read = follow_here(
                    tasks[operator], version, np.asarray(sorted(groups)), exhausted, process.cache
                )
            for group in done:
                self.followed[operator, process.name, group] = reached
            found.append(Followed(operator, process.name, tuple(done), reached, read))
        return found
