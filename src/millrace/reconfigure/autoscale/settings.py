"""What a user may say about autoscaling, checked before anything starts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from millrace import fields
from millrace.errors import AutoscaleError

POLICIES = ("model", "latency", "threshold", "schedule")
DAY = 86_400.0


@dataclass(frozen=True)
class Settings:
    """How a query is scaled. Times are in seconds."""

    min: int = 1
    """The fewest shards that an operator may have."""
    max: int = 16
    """The most shards that an operator may have."""
    target: float = 0.7
    """The share of its time that an operator should be busy."""
    latency: float | None = None
    """How old a row may be when the epoch that has it commits; None for as old as it is."""
    policy: str = "model"
    schedule: tuple[tuple[float, int], ...] = ()
    """For `schedule`: from which second of the day (UTC) on there are how many shards."""
    cool_down: float = 10.0
    """How long nothing happens after a change, unless the query cannot keep up."""
    settle: float = 60.0
    """How long the load must have been low before there are fewer shards."""
    catch_up: float = 15.0
    """How long rows that the query is behind by may take, in addition to those that come."""
    act: bool = True
    """Whether decisions are carried out; if not, they are only recorded."""

    def __post_init__(self) -> None:
        for name in ("min", "max"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise AutoscaleError(f"{name}={value!r}: it must be a whole number above 0.")
        if self.min > self.max:
            raise AutoscaleError(
                f"min={self.min} is above max={self.max}: there is no number of shards between "
                "them. Swap the two, or raise max."
            )
        if not _is_number(self.target) or not 0 < self.target < 1:
            raise AutoscaleError(
                f"target={self.target!r}: it is the share of time that operators are busy, so it "
                "must be above 0 and below 1. 0.7 leaves room for what comes unevenly."
            )
        if self.policy not in POLICIES:
            raise AutoscaleError(
                f"policy={self.policy!r}: there is no such policy. Choose one of "
                f"{', '.join(map(repr, POLICIES))}."
            )
        if type(self.act) is not bool:
            raise AutoscaleError(f"act={self.act!r}: it must be True or False.")
        for name in ("cool_down", "settle", "catch_up"):
            value = getattr(self, name)
            if not _is_number(value) or value <= 0:
                raise AutoscaleError(f"{name}={value!r}: it must be longer than zero.")
        if self.latency is not None and (not _is_number(self.latency) or self.latency <= 0):
            raise AutoscaleError(f"latency={self.latency!r}: it must be longer than zero.")
        if self.policy == "latency" and self.latency is None:
            raise AutoscaleError(
                "policy='latency' needs latency=: say how old a row may be, such as '2 seconds'."
            )
        if (self.policy == "schedule") != bool(self.schedule):
            raise AutoscaleError(
                "policy='schedule' and schedule= belong together: give both, such as "
                "schedule={'08:00': 8, '20:00': 2}, or neither."
            )
        for _, shards in self.schedule:
            if type(shards) is not int or not self.min <= shards <= self.max:
                raise AutoscaleError(
                    f"schedule= asks for {shards!r} shards, which is not between min={self.min} "
                    f"and max={self.max}."
                )

    def clipped(self, shards: int) -> int:
        """The nearest number of shards that is allowed."""
        return max(self.min, min(self.max, shards))

    def check_parallelism(self, parallelism: int | Mapping[str, int] | None) -> None:
        """Refuse a number of shards to start with that autoscaling would not allow."""
        given = parallelism if isinstance(parallelism, Mapping) else {"": parallelism}
        for name, shards in given.items():
            if type(shards) is int and not self.min <= shards <= self.max:
                of = f" of {name!r}" if name else ""
                raise AutoscaleError(
                    f"parallelism={shards}{of} contradicts autoscale(min={self.min}, "
                    f"max={self.max}): it is where autoscaling begins. Leave it out, or choose one "
                    "between the two."
                )

    def check_query(self, key_groups: int, trigger: float) -> None:
        """Refuse what a query with these key groups and this trigger can never do."""
        if self.max > key_groups:
            raise AutoscaleError(
                f"max={self.max}, but the location has {key_groups} key groups, and a shard has "
                f"at least one: an operator cannot have more than {key_groups} shards."
            )
        if self.latency is not None and trigger >= self.latency:
            raise AutoscaleError(
                f"latency={self.latency:g} s with a trigger of {trigger:g} s: a row waits for up "
                "to a trigger before its epoch begins. Allow a longer latency, or choose a "
                "shorter trigger."
            )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "schedule": [list(entry) for entry in self.schedule]}

    @staticmethod
    def from_json(data: Any) -> Settings:
        read = fields.Fields(data, "the settings")
        entries = [fields.items(e, "an entry of the schedule", 2) for e in read.items("schedule")]
        return Settings(
            min=read.integer("min", 1),
            max=read.integer("max", 1),
            target=fields.number(read["target"], "'target' of the settings"),
            latency=_maybe(read, "latency"),
            policy=read.text("policy"),
            schedule=tuple(
                (fields.number(begin, "a time"), fields.integer(shards, "a number of shards", 1))
                for begin, shards in entries
            ),
            cool_down=fields.number(read["cool_down"], "'cool_down' of the settings"),
            settle=fields.number(read["settle"], "'settle' of the settings"),
            catch_up=fields.number(read["catch_up"], "'catch_up' of the settings"),
            act=bool(read["act"]),
        )


def parse_schedule(schedule: object) -> tuple[tuple[float, int], ...]:
    """`{"08:00": 8, "20:00": 2}` as seconds of the day and numbers of shards, in order."""
    if not isinstance(schedule, Mapping):
        raise AutoscaleError(
            f"schedule={schedule!r}: give times of the day (UTC) and numbers of shards, such as "
            "{'08:00': 8, '20:00': 2}."
        )
    found: dict[float, int] = {}
    for when, shards in schedule.items():
        match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", when) if type(when) is str else None
        if match is None:
            raise AutoscaleError(
                f"schedule= has {when!r}, which is no time of the day. Write '08:00'."
            )
        found[3600.0 * int(match[1]) + 60.0 * int(match[2])] = shards
    return tuple(sorted(found.items()))


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _maybe(read: fields.Fields, name: str) -> float | None:
    return fields.number(read[name], name) if read.has(name) else None
