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
from millrace.errors import MalformedError, UsageError
from millrace.fields import Fields, text
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
        fields = Fields(data, "the assignment")
        shards = fields.integer("shards", 1, key_groups)
        owners = np.full(key_groups, -1, np.int64)
        owned = 0
        for shard, ranges in enumerate(fields.items("groups", shards)):
            groups = parse_ranges(ranges, key_groups)
            owned += len(groups)
            owners[groups] = shard
        if (owners < 0).any():
            missing = format_ranges(np.flatnonzero(owners < 0).tolist())
            raise MalformedError(f"the assignment gives key groups {missing} no owner")
        if owned != key_groups:
            raise MalformedError(f"the assignment gives some of {key_groups} key groups two owners")
        executors = fields.items("executors", shards) if fields.has("executors") else []
        names = tuple(text(name, "the executor of a shard") for name in executors)
        return Assignment(shards, tuple(owners.tolist()), names)


def check_parallelism(shards: object, key_groups: int) -> int:
    """Return `shards` if an operator can have that many, else raise."""
    if type(shards) is not int or not 1 <= shards <= key_groups:
        raise UsageError(
            f"parallelism={shards!r}: it must be a whole number between 1 and the number of key "
            f"groups, {key_groups}."
        )
    return shards
