"""Spark's executors: who is alive, asking for more, giving back.

These are the calls that Spark's own dynamic allocation makes, so they work on every cluster
manager that it works on. An executor's name is `executor-<id>`, with Spark's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.cluster import Allowance, Executor, Followed, ToFollow
from millrace.spark import jvm
from millrace.spark.following import follow
from millrace.spark.plans import PlanCache

PREFIX = "executor-"
DRIVER = f"{PREFIX}driver"
"""The only executor of a local session: the driver itself."""


class SparkCluster:
    """The executors of a Spark session, for a director."""

    def __init__(
        self,
        spark: SparkSession,
        plans: PlanCache,
    ) -> None:
        self._spark = spark
        self._plans = plans
        context: Any = spark.sparkContext._jsc
        self._context = context.sc()

    def alive(self) -> tuple[Executor, ...]:
        """Live executors in the order of their ids; the driver only if it is the only one."""
        lines = str(jvm.load(self._spark).Executors.alive(self._context)).splitlines()
        found = [
            Executor(PREFIX + name, host, max(1, int(cores)))
            for name, host, cores in (line.split("\t") for line in lines)
        ]
        workers = [e for e in found if e.name != DRIVER]
        if not workers:
            return tuple(found) if self.is_local else ()
        return tuple(sorted(workers, key=lambda e: _number(e.name)))

    @property
    def is_local(self) -> bool:
        """Whether the driver is the only executor there can be."""
        return bool(self._context.isLocal())

    def request(self, total: int) -> bool:
        """Ask for this number of executors in all; whether the cluster manager was asked."""
        return bool(jvm.load(self._spark).Executors.request(self._context, total))

    def release(self, names: Sequence[str]) -> bool:
        """Give executors back; whether the cluster manager was asked."""
        ids = ",".join(name.removeprefix(PREFIX) for name in names)
        return bool(jvm.load(self._spark).Executors.release(self._context, ids))

    def follow(
        self, version: Epoch, to_follow: ToFollow, allowances: Mapping[str, Allowance]
    ) -> list[Followed]:
        """One round on all executors in `to_follow` at once."""
        names = sorted(to_follow)
        where = preferred_locations(self.alive(), names)
        tasks = self._plans.tasks()
        return follow(self._spark, where, names, tasks, version, to_follow, allowances)

    def prepare(self, assignments: Mapping[OperatorName, Assignment]) -> None:
        """Make the plans of future assignments."""
        self._plans.prepare(assignments)


def slots(spark: SparkSession) -> int:
    """How many tasks can run at once."""
    context: Any = spark.sparkContext._jsc
    lines = str(jvm.load(spark).Executors.alive(context.sc())).splitlines()
    cores = {name: int(count) for name, _, count in (line.split("\t") for line in lines)}
    driver = cores.pop(DRIVER.removeprefix(PREFIX), 0)
    per_task = int(spark.sparkContext.getConf().get("spark.task.cpus", "1") or 1)
    return sum(count // per_task for count in cores.values()) or driver // per_task


def preferred_locations(executors: Sequence[Executor], names: Sequence[str]) -> str:
    """Spark's task locations for executors by name; empty for those that are not alive."""
    hosts = {e.name: e.host for e in executors}
    if len(hosts) < 2:
        # With one executor there is nothing to prefer.
        return ""
    return ",".join(
        f"executor_{hosts[name]}_{name.removeprefix(PREFIX)}" if name in hosts else ""
        for name in names
    )


def _number(name: str) -> tuple[int, str]:
    text = name.removeprefix(PREFIX)
    return (int(text), "") if text.isdigit() else (1 << 30, text)
