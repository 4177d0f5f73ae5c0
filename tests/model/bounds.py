"""How large the modelled world is, and what may be wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Deviation(Enum):
    """A protocol that is almost right."""

    CREATE_OVERWRITES = "a manifest that exists is overwritten"
    FOLLOWER_SKIPS = "a follower that is behind takes only the newest epoch's changes"
    FLIP_UNREADY = "ownership flips before the new owner has caught up"
    FLIP_MID_EPOCH = "ownership flips while an epoch runs"
    REPLICA_IN_PLACE = "a shard updates its replica before the epoch is committed"
    REPLAY_APPLIED = "a batch that is in a manifest already is applied again"
    HEAD_READ_EARLY = "the head is read when the query starts, and not again for its first batch"
    SPARK_COMMITS_FIRST = "Spark commits the batch before there is a manifest"
    NO_LATENESS_CHECK = "a driver that created a manifest does not ask whether it was too late"
    LATE_WITHOUT_PARENT = "a driver whose parent was collected takes its own manifest away"
    PARENT_IS_PROOF = "a driver whose parent is there asks no further"
    LATE_WITHOUT_CHILD = "a driver that finds no child of its manifest takes it away"
    MARK_AFTERWARDS = "a collection marks an epoch after it has deleted its manifest"
    COLLECT_UNFINISHED = "segments of an epoch that is not committed are collected"
    SHARED_SEGMENT_NAMES = "two attempts of a shard write to the same file"
    OFFSETS_OVERWRITTEN = "Spark's offset log lets a second driver replace a batch's offsets"
    MISSING_REPORT = "an epoch is committed before every shard has reported"


@dataclass(frozen=True)
class Bounds:
    """How large the world is."""

    drivers: int = 2
    executors: int = 3
    rows: tuple[int, ...] = (0, 1, 1, 0)
    """The source: the key group of each row."""
    batches: int = 3
    batch_rows: int = 2
    """The most rows of a batch; Spark takes any number up to that."""
    start: tuple[int, ...] = (0, 1)
    """Key group -> executor, at first."""
    target: tuple[int, ...] = (0, 2)
    """Where a live move takes the key groups."""
    retain: int = 1
    losses: int = 1
    """How many executors are lost, besides those that go with their driver."""


FULL = {
    "moves": Bounds(batches=2, losses=0),
    "moves and a lost executor": Bounds(batches=2, losses=1, batch_rows=1),
    "three epochs, old ones collected": Bounds(batches=3, losses=0, batch_rows=1, start=(0, 2)),
    "one driver, two lost executors": Bounds(drivers=1, batches=3, losses=2),
    "three drivers": Bounds(
        drivers=3, batches=3, losses=0, rows=(0, 1, 1), start=(0, 0), target=(0, 0)
    ),
}
"""What `make model` checks: 2 shards, 3 executors and 2 drivers, and what more fits."""

QUICK = {
    "one driver": Bounds(drivers=1, batches=2, losses=1),
    "two drivers, one epoch": Bounds(batches=1, losses=0),
    "two drivers, three epochs, no moves": Bounds(
        batches=3, losses=0, rows=(0, 1, 0), start=(0, 0), target=(0, 0)
    ),
}
"""What the tests check."""

SHOWN_IN = {
    Deviation.CREATE_OVERWRITES: Bounds(batches=1, losses=0),
    Deviation.FOLLOWER_SKIPS: Bounds(drivers=1, batches=3, losses=0, rows=(1, 0, 1)),
    Deviation.FLIP_UNREADY: Bounds(drivers=1, batches=3, losses=0),
    Deviation.FLIP_MID_EPOCH: Bounds(drivers=1, batches=1),
    Deviation.REPLICA_IN_PLACE: Bounds(drivers=1, batches=2),
    Deviation.REPLAY_APPLIED: Bounds(drivers=1, batches=2),
    Deviation.HEAD_READ_EARLY: Bounds(batches=2, losses=0, start=(0, 0), target=(0, 0)),
    Deviation.SPARK_COMMITS_FIRST: Bounds(drivers=1, batches=2),
    Deviation.NO_LATENESS_CHECK: Bounds(batches=2, losses=0, start=(0, 0), target=(0, 0)),
    Deviation.LATE_WITHOUT_PARENT: Bounds(batches=2, losses=0, start=(0, 0), target=(0, 0)),
    Deviation.PARENT_IS_PROOF: Bounds(
        batches=3, losses=0, rows=(0, 1, 0), start=(0, 0), target=(0, 0)
    ),
    Deviation.LATE_WITHOUT_CHILD: Bounds(
        batches=3, losses=0, rows=(0, 1, 0), start=(0, 0), target=(0, 0)
    ),
    Deviation.MARK_AFTERWARDS: Bounds(batches=2, losses=0, start=(0, 0), target=(0, 0)),
    Deviation.COLLECT_UNFINISHED: Bounds(drivers=1, batches=1),
    Deviation.SHARED_SEGMENT_NAMES: Bounds(batches=1, losses=1),
    Deviation.OFFSETS_OVERWRITTEN: Bounds(batches=2, losses=0, start=(0, 0), target=(0, 0)),
    Deviation.MISSING_REPORT: Bounds(drivers=1, batches=1),
}
"""A small world in which each deviation breaks something."""
