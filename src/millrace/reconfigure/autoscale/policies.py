"""Policies: how many shards each operator should have, if nothing else mattered.

    model      DS2: enough that operators are busy for `target` of their time, and rows in time
    latency    the fewest with which rows are in time
    threshold  SEEP: shards that are busy for too long are split, idle ones are merged
    schedule   what the time of the day says

A policy answers two questions: how many are needed now, and how many would have been enough for a
while. Deciding compares both with what there is.

Known rough edge: that a source gives no more than so much at once is not part of the costs. Shards
that were added for full epochs may be too few again once they are removed, and come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from millrace.reconfigure.autoscale import estimate as estimates
from millrace.reconfigure.autoscale.estimate import Costs, Estimate, Outcome, estimated
from millrace.reconfigure.autoscale.history import History
from millrace.reconfigure.autoscale.settings import DAY, Settings

SLACK = 0.15
"""Shards are added when the load is this far above its target."""
SPARE = 0.08
"""Shards are removed when the load would still be this far below its target."""
IN_TIME = 0.85
"""What is planned for takes at most this share of the latency that is allowed."""
IN_TIME_FEWER = 0.75
"""The same for fewer shards than there are."""
STABLE = 0.9
"""A query whose load is higher does not keep up reliably."""
NEARLY = 1.05
"""More shards that bring less than this factor are not worth having."""
FASTER = 1.1
"""While nobody knows how many rows wait, more shards are worth it if epochs get shorter by this
factor."""
SUDDEN = (1.0, 3.0)
"""Seconds that the rate of a load that has just changed is a mean of."""
SPLIT, MERGE = 0.7, 0.3
REPORTS = 3
"""Epochs in a row that a shard must be above or below a threshold."""


@dataclass(frozen=True)
class Proposal:
    """What a policy wants."""

    now: dict[str, int]
    """Operator -> shards that it needs now."""
    enough: dict[str, int]
    """Operator -> shards that would have been enough for a while."""
    estimate: Estimate
    """What it rests on."""
    urgent: bool = False
    """Whether the query cannot do without."""
    unreachable: str = ""
    """What no allowed number of shards reaches."""
    must_grow: bool = True
    """Whether what there is now is beyond the slack; if not, `now` is only a wish."""


Policy = Callable[[Settings, History, Costs, int], Proposal]
"""The last argument is the most shards that there can be."""


def model(settings: Settings, history: History, costs: Costs, most: int) -> Proposal:
    """The fewest shards with which the target is met, and the latency if there is one."""
    allowed = settings.latency if settings.latency is not None else math.inf
    return _fewest(settings, history, costs, most, settings.target, allowed)


def latency(settings: Settings, history: History, costs: Costs, most: int) -> Proposal:
    """The fewest shards with which rows are in time."""
    assert settings.latency is not None
    return _fewest(settings, history, costs, most, STABLE, settings.latency)


def _fewest(
    settings: Settings,
    history: History,
    costs: Costs,
    most: int,
    target: float,
    allowed: float,
) -> Proposal:
    estimate = estimated(history, settings, costs)
    if history.observations[-1].full:
        now = _fastest(settings, history, estimate, most)
        return Proposal(now, now, estimate)
    present = estimate.balanced()
    best = estimate.with_shards(most)
    unreachable = ""
    if best.load > target:
        unreachable = f"a load of {target:.0%}"
    elif best.latency > IN_TIME * allowed:
        # More shards do not help: what is left is fixed. Do not buy any for it.
        unreachable = f"{allowed:g} s of latency"
        allowed = math.inf
    # A row that was late, of which more shards would take care.
    late = history.observations[-1].latency > allowed
    sudden = _sudden(settings, history, costs, late)
    if sudden is not None:
        now = _search(settings, sudden, most, target, IN_TIME * allowed)
        return Proposal(now, now, sudden, urgent=True, unreachable=unreachable)
    now = _search(settings, estimate, most, target, IN_TIME * allowed)
    high = estimates.peak(history, settings.settle)
    before = estimate.at_peak(max(1.0, high))
    enough = _search(settings, before, most, (1 - SPARE) * target, IN_TIME_FEWER * allowed)
    return Proposal(
        now,
        enough,
        estimate,
        unreachable=unreachable,
        must_grow=present.load > (1 + SLACK) * target or present.latency > allowed,
    )


def _sudden(settings: Settings, history: History, costs: Costs, late: bool) -> Estimate | None:
    """The estimate for a load that has just changed; None if there is no need to hurry.

    A second alone may have many rows by chance: it says how many more shards, not whether.
    """
    shortest, short = (estimated(history, settings, costs, seconds) for seconds in SUDDEN)
    if not late and short.balanced().load < 1:
        return None
    return max(shortest, short, key=lambda e: e.demand)


def _fastest(settings: Settings, history: History, estimate: Estimate, most: int) -> dict[str, int]:
    """The fewest shards that do a full epoch about as quickly as the most would.

    The rate that is seen is what the query can take, not what comes, so it says nothing about the
    load. Working off what waits in the shortest time is right, whatever it is.
    """
    rows = {o.name: o.rows for o in history.observations[-1].operators}
    shortest = estimate.seconds_of(rows, most)
    shards = next(
        number
        for number in range(min(settings.min, most), most + 1)
        if estimate.seconds_of(rows, number) <= FASTER * shortest or number == most
    )
    return dict.fromkeys(rows, shards)


def _search(
    settings: Settings, estimate: Estimate, most: int, target: float, allowed: float
) -> dict[str, int]:
    """The fewest shards for all operators alike; then fewer for those that hardly need them."""
    least = min(settings.min, most)
    outcomes: list[Outcome] = []
    for shards in range(least, most + 1):
        outcomes.append(estimate.with_shards(shards))
        if outcomes[-1].load <= target and outcomes[-1].latency <= allowed:
            allowed_latency = allowed
            break
    else:
        # Nothing is enough: as many as bring something.
        allowed_latency = math.inf
    # Those that bring next to nothing are not worth having, as beside a hot key group.
    shards, outcome = next(
        (number, o)
        for number, o in enumerate(outcomes, least)
        if o.load <= NEARLY * outcomes[-1].load and o.latency <= allowed_latency
    )
    found = {o.name: shards for o in estimate.operators}
    if len(found) > 1:
        limit = _bound(outcome, max(target, outcome.load))
        for o in sorted(estimate.operators, key=lambda o: o.demand * o.line.per_row)[:-1]:
            found[o.name] = _fewer(estimate, found, o.name, least, limit)
    return found


def _bound(outcome: Outcome, load: float) -> Outcome:
    """An outcome that others are compared with: this load, and hardly longer epochs."""
    return replace(outcome, load=min(load, outcome.load + 0.02), epoch=outcome.epoch * 1.02)


def _fewer(
    estimate: Estimate, shards: dict[str, int], name: str, least: int, limit: Outcome
) -> int:
    for fewer in range(least, shards[name]):
        outcome = estimate.with_shards({**shards, name: fewer})
        if outcome.load <= limit.load and outcome.epoch <= limit.epoch:
            return fewer
    return shards[name]


def threshold(settings: Settings, history: History, costs: Costs, most: int) -> Proposal:
    """Split every shard that is busy for more than 70 % of the time, merge those below 30 %."""
    newest = history.observations[-REPORTS:]
    now: dict[str, int] = {}
    for load in newest[-1].operators:
        busy = [o for seen in newest if (o := seen.operator(load.name)) is not None]
        shards = load.parallelism
        now[load.name] = shards
        if len(busy) < REPORTS or any(o.parallelism != shards for o in busy):
            continue
        spans = [max(seen.interval, 1e-9) for seen in newest]
        used = [
            [o.shards[shard].busy / span for o, span in zip(busy, spans, strict=True)]
            for shard in range(shards)
        ]
        split = sum(min(shard) > SPLIT for shard in used)
        merged = sum(max(shard) < MERGE for shard in used) // 2
        now[load.name] = max(settings.min, min(most, shards + split - merged))
    return Proposal(now, now, estimated(history, settings, costs))


def schedule(settings: Settings, history: History, costs: Costs, most: int) -> Proposal:
    """What the schedule says for the time of the day; before its first entry, its last."""
    second = history.observations[-1].at % DAY
    begun = [shards for begin, shards in settings.schedule if begin <= second]
    shards = min(most, begun[-1] if begun else settings.schedule[-1][1])
    wanted = dict.fromkeys(costs.operators, shards)
    return Proposal(wanted, wanted, estimated(history, settings, costs))


POLICIES: dict[str, Policy] = {
    "model": model,
    "latency": latency,
    "threshold": threshold,
    "schedule": schedule,
}
