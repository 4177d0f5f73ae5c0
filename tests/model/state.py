"""The state of the model: a location, and the drivers that work on it.

Everything is a tuple, so that states can be compared and remembered. A key group's state is the
tuple of rows that were applied to it, in order: a lost update is a row that is not there, a double
one is there twice.
"""

from __future__ import annotations

from typing import NamedTuple

Rows = tuple[int, ...]
"""Rows of the source that were applied to a key group."""

GONE: Rows = (-1,)
"""What is in a file that was collected: nobody can read it."""

NEVER = -1

DOWN, STARTED, ASKED, LOGGED, RUNNING, CREATED, OVERTAKEN, COMMITTED = range(8)
"""Where a driver is; OVERTAKEN: there is a later epoch than the one it has just created."""


class Segment(NamedTuple):
    """What one shard wrote: the rows of each key group it changed."""

    changed: tuple[tuple[int, Rows], ...]
    groups: tuple[int, ...]
    """All key groups that the shard had."""


class Manifest(NamedTuple):
    """A committed epoch."""

    layout: tuple[int, ...]
    """Key group -> executor; an executor's key groups are one shard."""
    changed: tuple[Rows | None, ...]
    """Key group -> its state, if the epoch changed it."""
    state: tuple[Rows, ...]
    """Key group -> its state: what a full manifest says, or a chain back to one."""
    is_late: bool = False
    """Whether there was a manifest of this epoch before: it has another checksum than that one."""


class Held(NamedTuple):
    """A key group in a replica."""

    at: int
    rows: Rows


Replica = tuple[Held | None, ...] | None
"""Key group -> what an executor holds of it; None: the executor was lost."""


class Driver(NamedTuple):
    """A driver and the executors of its application."""

    phase: str = DOWN
    first: bool = True
    trail: int = 0
    """The version it has."""
    batch: int = 0
    logged: bool = False
    """Whether Spark found the batch's offsets in its log, to repeat them."""
    layout: tuple[int, ...] = ()
    """Key group -> executor, in the epoch that runs or ran last."""
    reports: tuple[tuple[int, Segment | None], ...] = ()
    """Executor -> its shard's segment; None: a collection has removed the file."""
    followed: tuple[int, ...] = ()
    """Key group -> how far its destination is known to have followed it."""
    replicas: tuple[Replica, ...] = ()
    is_late: bool = False
    """Not known to the driver: the manifest it created was created once before."""


class State(NamedTuple):
    """A location and its drivers."""

    offsets: tuple[int, ...]
    """Spark's offset log: the row after the last one of each batch."""
    commits: int
    """Spark's commit log: how many batches."""
    manifests: tuple[Manifest | None, ...]
    """Epoch - 1 -> its manifest; None: not there any more."""
    losses: int
    """How many executors were lost so far."""
    drivers: tuple[Driver, ...]
    marked: frozenset[int] = frozenset()
    """Epochs of which it is written down that they may be collected."""

    @property
    def head(self) -> int:
        """The highest epoch with a manifest."""
        for epoch in range(len(self.manifests), 0, -1):
            if self.manifests[epoch - 1] is not None:
                return epoch
        return 0
