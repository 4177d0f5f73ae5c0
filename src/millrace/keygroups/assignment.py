"""Which shard owns which key group. Pure: no Spark, no files.

Invariant: every key group has exactly one owner, and every shard number is below `shards`.
An assignment is chosen anew for every epoch, which is what makes live rescaling possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.errors import CorruptManifestError, UsageError
from millrace.ids import Shard
from millrace.keygroups.ranges import format_ranges, parse_ranges


@dataclass(frozen=True)
class Assignment:
    """Key group -> shard."""

    shards: int
    owners: tuple[int, ...]

    @staticmethod
    def even(key_groups: int, shards: int) -> Assignment:
        """Contiguous ranges whose sizes differ by at most one."""
        if not 1 <= shards <= key_groups:
            raise UsageError(
                f"parallelism={shards}: it must be between 1 and the number of key groups, "
                f"{key_groups}."
            )
        return Assignment(shards, tuple(g * shards // key_groups for g in range(key_groups)))

    @property
    def key_groups(self) -> int:
        return len(self.owners)

    @property
    def is_even(self) -> bool:
        return self == Assignment.even(self.key_groups, self.shards)

    def groups_of(self, shard: Shard) -> npt.NDArray[np.int64]:
        return np.flatnonzero(np.asarray(self.owners) == shard)

    def to_json(self) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "groups": [
                format_ranges(self.groups_of(Shard(s)).tolist()) for s in range(self.shards)
            ],
        }

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
        return Assignment(int(data["shards"]), tuple(owners.tolist()))
