"""What a director directs: executors that can be counted, asked for, given back and told to follow.

Spark's is `spark.executors.SparkCluster`; the simulator has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.reconfigure.followers import Allowance, Followed, Wanted
from millrace.reconfigure.slots import Executor


class Cluster(Protocol):
    """The executors there are, and how they are told to follow."""

    @property
    def is_local(self) -> bool:
        """Whether there is one executor and there can be no other."""

    def alive(self) -> tuple[Executor, ...]: ...

    def request(self, total: int) -> bool:
        """Ask for so many executors in all."""

    def release(self, names: Sequence[str]) -> bool:
        """Give executors back."""

    def follow(
        self, version: Epoch, wanted: Wanted, allowances: Mapping[str, Allowance]
    ) -> list[Followed]:
        """One round on all executors in `wanted` at once."""

    def prepare(self, assignments: Mapping[OperatorName, Assignment]) -> None:
        """Make whatever an epoch with these assignments needs, ahead of it."""


@dataclass(frozen=True)
class DirectorOptions:
    """What `start` was told about places."""

    standby: int = 0
    """How many executors follow every key group besides its owner."""
    elastic: bool = False
    """Whether to ask Spark for executors and give idle ones back."""
    spare_executors: int = 0
    """With `elastic`: executors kept warm beyond those in use."""
    follow_bytes_per_second: float = 256e6
