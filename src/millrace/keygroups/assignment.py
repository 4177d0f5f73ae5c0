"""Which shard owns which key group, and where the shard runs. Pure: no Spark, no files.

Invariant: every key group has exactly one owner, and every shard number is below `shards`.
Every epoch has an assignment of its own, which is what makes live rescaling possible.
The executors are hints to Spark's scheduler: correctness never depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from millrace.arrays import Int64Array
from millrace.errors import CorruptManifestError, UsageError
from millrace.ids import Shard
from millrace.keygroups.ranges import format_ranges, parse_ranges

ANYWHERE = ""
"""The executor of a shard that has no preferred one."""


@dataclass(frozen=True)
class Assignment:
    """Key group -> shard -> executor."""

    shards: int
    owners: tuple[int, ...]
    executors: tuple[str, ...] = ()
    """The executor of each shard; empty if none has a preferred one."""

    @staticmethod
    def even(key_groups: int, shards: int) -> Assignment:
        """Contiguous ranges whose sizes differ by at most one."""
        check_parallelism(shards, key_groups)
        return Assignment(shards, tuple(g * shards // key_groups for g in range(key_groups)))

    @property
    def key_groups(self) -> int:
        return len(self.owners)

    def executor_of(self, shard: int) -> str:
        return self.executors[shard] if self.executors else ANYWHERE

    def placed(self, executors: tuple[str, ...]) -> Assignment:
        """The same key groups, with the shards on these executors."""
        return replace(self, executors=executors if any(executors) else ())

    def groups_of(self, shard: Shard) -> Int64Array:
        return np.flatnonzero(np.asarray(self.owners) == shard)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "shards": self.shards,
            "groups": [
                format_ranges(self.groups_of(Shard(s)).tolist()) for s in range(self.shards)
            ],
        }
        if self.executors:
            data["executors"] = list(self.executors)
        return data

    @staticmethod
    def from_json(data: dict[str, Any], key_groups: int) -> Assignment:
        owners = np.full(key_groups, -1, np.int64)
        owned = 0
        for shard, text in enumerate(data["groups"]):
            groups = parse_ranges(text)
            owned += len(groups)
            owners[groups[groups < key_groups]] = shard
        if (owners < 0).any():
            missing = format_ranges(np.flatnonzero(owners < 0).tolist())
            raise CorruptManifestError(f"the assignment gives key groups {missing} no owner")
        if owned != key_groups or len(data["groups"]) != data["shards"]:
            raise CorruptManifestError(
                f"the assignment {data} does not give each of {key_groups} key groups one owner"
            )
        executors = tuple(data.get("executors", ()))
        return Assignment(int(data["shards"]), tuple(owners.tolist()), executors)


def check_parallelism(shards: object, key_groups: int) -> int:
    """Return `shards` if an operator can have that many, else raise."""
    if type(shards) is not int or not 1 <= shards <= key_groups:
        raise UsageError(
            f"parallelism={shards!r}: it must be a whole number between 1 and the number of key "
            f"groups, {key_groups}."
        )
    return shards
