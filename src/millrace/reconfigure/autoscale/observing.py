"""What one epoch showed: rows, busy time, backlog, skew. It travels to files and back as JSON.

Busy time is what a shard spends on following the log, applying rows and writing, without waiting
for its input. Rows over busy time is its true rate: what it could do if it never waited.

Rough edge: a machine with more shards than cores makes busy time longer, because it is measured by
the clock on the wall. `cpu` is the processor's time for the same work, so the two can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from millrace import fields
from millrace.fields import Fields


@dataclass(frozen=True)
class ShardLoad:
    """One shard in one epoch."""

    rows: int
    busy: float
    executor: str = ""
    cpu: float = 0.0
    """Processor time of its work in Python, in seconds."""


@dataclass(frozen=True)
class HotGroup:
    """A key group with much of its operator's work."""

    group: int
    share: float
    """Of the operator's work."""
    key: str = ""
    """The key that most of its rows have, if there is such a one."""
    key_share: float = 0.0
    """That key's share of the operator's rows."""


@dataclass(frozen=True)
class OperatorLoad:
    """One operator in one epoch."""

    name: str
    shards: tuple[ShardLoad, ...]
    hot: tuple[HotGroup, ...] = ()
    """The key groups with most work, the heaviest first; few."""

    @cached_property
    def parallelism(self) -> int:
        return len(self.shards)

    @cached_property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @cached_property
    def busy(self) -> float:
        return sum(shard.busy for shard in self.shards)

    @cached_property
    def slowest(self) -> float:
        """The time of the shard that the epoch waits for."""
        return max((shard.busy for shard in self.shards), default=0.0)

    @cached_property
    def heaviest(self) -> int:
        """The rows of the shard with most of them."""
        return max((shard.rows for shard in self.shards), default=0)

    @property
    def true_rate(self) -> float | None:
        """Rows per second that one shard could do if it were always busy."""
        return self.rows / self.busy if self.busy > 0 else None

    @property
    def skew(self) -> float:
        """How many times the mean the heaviest shard has."""
        return self.heaviest * self.parallelism / self.rows if self.rows else 1.0


@dataclass(frozen=True)
class Observation:
    """One epoch."""

    epoch: int
    at: float
    """When it was committed, in seconds since 1970."""
    seconds: float
    """How long it took."""
    interval: float
    """The time since the epoch before it began, in which its rows came."""
    rows: int
    """Rows that its sources gave."""
    operators: tuple[OperatorLoad, ...]
    trigger: float = 0.0
    """How long after the one before an epoch begins at the earliest; 0 for back to back."""
    backlog: int | None = None
    """Rows that the sources have and no epoch has read; None if they do not say."""
    behind: float | None = None
    """Since how many seconds they have been there, at most."""
    full: bool = False
    """Whether the epoch took as much as a source gives at once, and the source does not say what
    it has left."""
    executors: int = 1
    cores: int = 1
    room: int | None = None
    """The most shards that run side by side on executors that can be had; None if any number."""
    moving: bool = False
    """Whether key groups were about to move or moving."""
    state_bytes: int = 0

    @cached_property
    def parallelism(self) -> dict[str, int]:
        return {operator.name: operator.parallelism for operator in self.operators}

    @cached_property
    def shards(self) -> int:
        """The shards of the operator that has most of them."""
        return max((operator.parallelism for operator in self.operators), default=0)

    @cached_property
    def rest(self) -> float:
        """The part of the epoch that is none of its operators': sources, Spark, the sink."""
        return max(0.0, self.seconds - sum(operator.slowest for operator in self.operators))

    @property
    def latency(self) -> float:
        """How old the oldest row was when the epoch committed."""
        return self.interval + self.seconds + (self.behind or 0.0)

    def operator(self, name: str) -> OperatorLoad | None:
        return next((o for o in self.operators if o.name == name), None)

    def executor_cpu(self) -> dict[str, float]:
        """Executor -> processors that its shards kept busy, on average since the last epoch."""
        found: dict[str, float] = {}
        span = max(self.interval, self.seconds)
        for operator in self.operators:
            for shard in operator.shards:
                if shard.executor:
                    found[shard.executor] = found.get(shard.executor, 0.0) + shard.cpu
        return {name: cpu / span for name, cpu in sorted(found.items())} if span > 0 else {}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Observation:
        """What `to_json` gave, from a file; raises `MalformedError`."""
        read = Fields(data, "the observation")
        return Observation(
            epoch=read.integer("epoch"),
            at=_number(read, "at"),
            seconds=_number(read, "seconds"),
            interval=_number(read, "interval"),
            rows=read.integer("rows"),
            operators=tuple(_operator(o) for o in read.items("operators")),
            trigger=_number(read, "trigger"),
            backlog=read.maybe_integer("backlog"),
            behind=_number(read, "behind") if read.has("behind") else None,
            # Records of before this was seen do not have it.
            full=read.has("full") and bool(read["full"]),
            executors=read.integer("executors"),
            cores=read.integer("cores"),
            room=read.maybe_integer("room"),
            moving=bool(read["moving"]),
            state_bytes=read.integer("state_bytes"),
        )


def _operator(data: Any) -> OperatorLoad:
    read = Fields(data, "the operator")
    return OperatorLoad(
        read.text("name"),
        tuple(_shard(s) for s in read.items("shards")),
        tuple(_hot(h) for h in read.items("hot")),
    )


def _shard(data: Any) -> ShardLoad:
    read = Fields(data, "the shard")
    return ShardLoad(
        read.integer("rows"), _number(read, "busy"), read.text("executor"), _number(read, "cpu")
    )


def _hot(data: Any) -> HotGroup:
    read = Fields(data, "the key group")
    return HotGroup(
        read.integer("group"), _number(read, "share"), read.text("key"), _number(read, "key_share")
    )


def _number(read: Fields, name: str) -> float:
    return fields.number(read[name], f"{name!r}")


def hottest(work: Mapping[int, float], number: int = 3) -> tuple[tuple[int, float], ...]:
    """The key groups with the largest shares of some work, the heaviest first."""
    total = sum(work.values())
    if total <= 0:
        return ()
    heaviest = sorted(work, key=lambda group: (-work[group], group))[:number]
    return tuple((group, work[group] / total) for group in heaviest)
