"""The recent past of a query: its epochs, summed up in spans of about a second, and the decisions
taken on the way.

Immutable: a new epoch gives a new history. `since` says from when on every operator has had the
shards that it has now. A span never mixes epochs with different numbers of shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from millrace import fields
from millrace.errors import MalformedError
from millrace.fields import Fields
from millrace.reconfigure.autoscale.observing import Observation

KEPT = 16
"""Epochs that are remembered one by one."""
KEPT_SPANS = 600
SPAN_SECONDS = 1.0
SHORTEST = 0.001
"""Seconds. No epoch begins sooner after another."""
KEPT_DECISIONS = 50

Action = Literal["hold", "rescale", "rebalance"]
ACTIONS: tuple[Action, ...] = ("hold", "rescale", "rebalance")


@dataclass(frozen=True)
class Decision:
    """What should be done after an epoch, and why."""

    at: float
    epoch: int
    action: Action
    reason: str
    policy: str
    before: dict[str, int] = field(default_factory=dict)
    """Operator -> shards that it has."""
    parallelism: dict[str, int] = field(default_factory=dict)
    """Operator -> shards that it should have."""
    wanted: int = 0
    """The shards that the policy wants, whether or not they can be had now."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What the reason rests on."""
    advice: tuple[str, ...] = ()
    """What scaling cannot mend, and what would."""
    blocked: bool = False
    """Whether nothing is done because executors cannot be had."""

    @property
    def acts(self) -> bool:
        return self.action != "hold"

    def to_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "epoch": self.epoch,
            "action": self.action,
            "reason": self.reason,
            "policy": self.policy,
            "before": self.before,
            "parallelism": self.parallelism,
            "wanted": self.wanted,
            "numbers": self.numbers,
            "advice": list(self.advice),
            "blocked": self.blocked,
        }

    @staticmethod
    def from_json(data: Any) -> Decision:
        read = Fields(data, "the decision")
        action = next((a for a in ACTIONS if a == read["action"]), None)
        if action is None:
            raise MalformedError(f"the action {read['action']!r} is none")
        return Decision(
            at=fields.number(read["at"], "'at' of the decision"),
            epoch=read.integer("epoch"),
            action=action,
            reason=read.text("reason"),
            policy=read.text("policy"),
            before=_shards(read, "before"),
            parallelism=_shards(read, "parallelism"),
            wanted=read.integer("wanted"),
            numbers={
                name: fields.number(value, f"the number {name!r}")
                for name, value in read.members("numbers").items()
            },
            advice=tuple(fields.text(line, "a piece of advice") for line in read.items("advice")),
            blocked=bool(read["blocked"]),
        )


def _shards(read: Fields, name: str) -> dict[str, int]:
    return {
        operator: fields.integer(shards, f"the shards of {operator!r}")
        for operator, shards in read.members(name).items()
    }


@dataclass(frozen=True)
class OperatorSpan:
    """One operator in some epochs; sums."""

    parallelism: int
    rows: int
    heaviest: int
    """Rows of the heaviest shard of each epoch."""
    slowest: float
    """Seconds of the slowest shard of each epoch."""


@dataclass(frozen=True)
class Span:
    """Some epochs in a row, summed up."""

    at: float
    """The end of the last one."""
    epochs: int
    interval: float
    rows: int
    rest: float
    cores: int
    moving: bool
    operators: dict[str, OperatorSpan]

    @staticmethod
    def of(new: Observation) -> Span:
        return Span(
            new.at,
            1,
            new.interval,
            new.rows,
            new.rest,
            new.cores,
            new.moving,
            {
                o.name: OperatorSpan(o.parallelism, o.rows, o.heaviest, o.slowest)
                for o in new.operators
            },
        )

    def fits(self, new: Observation) -> bool:
        """Whether an epoch continues this span."""
        return (
            self.interval < SPAN_SECONDS
            and self.cores == new.cores
            and self.moving == new.moving
            and {name: o.parallelism for name, o in self.operators.items()} == new.parallelism
        )

    def and_(self, new: Observation) -> Span:
        """The span with one more epoch."""
        return Span(
            new.at,
            self.epochs + 1,
            self.interval + new.interval,
            self.rows + new.rows,
            self.rest + new.rest,
            self.cores,
            self.moving,
            {
                o.name: OperatorSpan(
                    o.parallelism,
                    self.operators[o.name].rows + o.rows,
                    self.operators[o.name].heaviest + o.heaviest,
                    self.operators[o.name].slowest + o.slowest,
                )
                for o in new.operators
            },
        )


@dataclass(frozen=True)
class History:
    """What is known when a decision is due."""

    observations: tuple[Observation, ...] = ()
    """The newest epochs, oldest first."""
    spans: tuple[Span, ...] = ()
    """Oldest first; the last one may still grow."""
    acts: tuple[Decision, ...] = ()
    """Decisions that were to be carried out, oldest first."""
    since: float = 0.0
    """When the shards of all operators last changed, or key groups last moved."""
    epochs_since: int = 0
    """How many epochs have run since then."""

    def add(self, new: Observation) -> History:
        """The history after one more epoch."""
        last = self.latest
        same = (
            last is not None
            and last.parallelism == new.parallelism
            # Balanced shards are others, however many there are.
            and not (last.moving and not new.moving)
        )
        return replace(
            self,
            observations=(*self.observations[1 - KEPT :], new),
            spans=self._spans_with(new),
            since=self.since if same else new.at,
            epochs_since=self.epochs_since + 1 if same else 1,
        )

    def _spans_with(self, new: Observation) -> tuple[Span, ...]:
        if new.interval < SHORTEST:
            # It says nothing about how long its rows took to come.
            return self.spans
        if self.spans and self.spans[-1].fits(new):
            return (*self.spans[:-1], self.spans[-1].and_(new))
        return (*self.spans[1 - KEPT_SPANS :], Span.of(new))

    def decided(self, decision: Decision) -> History:
        """The history after a decision."""
        if not decision.acts:
            return self
        return replace(self, acts=(*self.acts[1 - KEPT_DECISIONS :], decision))

    @property
    def latest(self) -> Observation | None:
        return self.observations[-1] if self.observations else None

    def recent(self, seconds: float) -> Iterator[Span]:
        """Spans of the last seconds, as many as asked for, newest first; at least the newest."""
        if not self.spans:
            return
        newest = self.spans[-1].at
        for number, span in enumerate(reversed(self.spans)):
            if number and span.at <= newest - seconds:
                return
            yield span
