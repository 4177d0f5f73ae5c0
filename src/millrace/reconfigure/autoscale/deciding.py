"""Whether what a policy wants is worth a move now. Pure: settings and a history in, a decision out.

In this order:

1. Nothing is decided while key groups move, nor from fewer than two epochs; unless a sudden load
   turns out to need far more than what was asked for when it had just begun.
2. After a change it waits for `cool_down`, or for two epochs if the query cannot keep up.
3. Shards with more work than others are balanced before more of them are asked for, so that hot key
   groups get a shard to themselves.
4. More shards, if those there are do not do.
5. Fewer, if fewer would have done for `settle`, and if what is saved in as long a time as the load
   has been low is more than the move costs.

Known rough edge: costs are compared in shard-seconds, as if a shard of a small operator cost what
one of a large operator does.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from millrace.reconfigure.autoscale import estimate as estimates
from millrace.reconfigure.autoscale.estimate import Estimate, OperatorEstimate, fitted
from millrace.reconfigure.autoscale.history import Action, Decision, History
from millrace.reconfigure.autoscale.observing import HotGroup, Observation
from millrace.reconfigure.autoscale.policies import POLICIES, Proposal
from millrace.reconfigure.autoscale.settings import Settings

PAUSE = 1.0
"""Seconds between decisions, at least."""
ABSURD = 1e12
"""Numbers as high as this are not told: something was divided by nearly nothing."""
LOPSIDED = 1.3
"""Balancing is worth a move if the heaviest shard has this much more than it would have then."""
HOT = 0.1
"""A key group is hot if it has at least this share of its operator's work."""
FAR_MORE = 1.25
"""A request is replaced by one for more if that is more by this factor."""
SOON = 6.0
"""Seconds within which a request is replaced; later it is better to have what was asked for."""
REPENTANCE = 3.0
"""Each time that fewer shards had to be taken back, the load must be low for this much longer
before they are tried again."""
MOST_REGRETS = 3
HOUR = 3600.0
SETTLED = 1.25
"""A load whose recent peak is higher than this many times the present one may fall further."""
FOLLOWED_BYTES_PER_SECOND = 64e6
"""How fast state is assumed to move before a move was seen."""


@dataclass(frozen=True)
class _Case:
    """What a decision is made from."""

    settings: Settings
    history: History
    now: Observation
    estimate: Estimate
    proposal: Proposal
    most: int

    def decision(
        self,
        action: Action,
        reason: str,
        parallelism: dict[str, int] | None = None,
        *,
        blocked: bool = False,
    ) -> Decision:
        before = self.now.parallelism
        after = before if parallelism is None else parallelism
        here, there = self.estimate.now(), self.estimate.with_shards(after)
        numbers = {
            "rows_per_second": self.estimate.rate,
            **({} if self.now.backlog is None else {"backlog_rows": float(self.now.backlog)}),
            "load": here.load,
            "load_after": there.load,
            "epoch_seconds": self.now.seconds,
            "epoch_seconds_after": there.epoch,
            "latency_seconds": self.now.latency,
            "latency_seconds_after": there.latency,
            "executors": float(self.now.executors),
        }
        return Decision(
            self.now.at,
            self.now.epoch,
            action,
            reason,
            self.settings.policy,
            dict(before),
            dict(after),
            max(self.proposal.now.values(), default=0),
            {name: round(n, 6) for name, n in numbers.items() if n < ABSURD},
            advice(self.estimate, self.proposal),
            blocked,
        )


def decide(settings: Settings, history: History) -> Decision:
    """What to do after the newest epoch of a history, and why."""
    now = history.latest
    costs = fitted(history)
    if now is None or costs is None:
        at, epoch = (now.at, now.epoch) if now is not None else (0.0, 0)
        shards = dict(now.parallelism) if now is not None else {}
        most = max(shards.values(), default=0)
        reason = "too little was seen yet"
        return Decision(at, epoch, "hold", reason, settings.policy, shards, shards, most)
    most = settings.max if now.room is None else max(settings.min, min(settings.max, now.room))
    proposal = POLICIES[settings.policy](settings, history, costs, most)
    case = _Case(settings, history, now, proposal.estimate, proposal, most)
    if now.moving:
        return _ask_for_more(case) or case.decision("hold", "key groups are moving")
    if history.epochs_since < 2:
        return case.decision("hold", "one epoch is too little to judge the last change by")
    age = now.at - history.since
    changed = bool(history.acts) and history.since >= history.acts[-1].at
    if changed and age < settings.cool_down and not proposal.urgent:
        return case.decision(
            "hold", f"the last change was {age:.1f} s ago; it gets {settings.cool_down:g} s"
        )
    return _outside_limits(case) or _balance(case) or _grow(case) or _shrink(case) or _hold(case)


def _ask_for_more(case: _Case) -> Decision | None:
    """Ask for more than was asked for, before that is there. Once: it starts the move over."""
    acts = [act for act in case.history.acts if act.at >= case.history.since]
    if not case.proposal.urgent or len(acts) != 1 or case.now.at - acts[0].at > SOON:
        return None
    asked = acts[0].parallelism
    more = {name: max(n, case.proposal.now.get(name, n)) for name, n in asked.items()}
    if max(more.values()) < FAR_MORE * max(asked.values()):
        return None
    return case.decision("rescale", f"not only {max(asked.values())}; {_because(case, more)}", more)


def _outside_limits(case: _Case) -> Decision | None:
    """Numbers of shards that the settings do not allow, or that there are no cores for."""
    settings = case.settings
    now = case.now.parallelism
    allowed = {name: settings.clipped(n) for name, n in now.items()}
    if allowed != now:
        reason = f"between min={settings.min} and max={settings.max}, as set"
        fitting = {name: min(n, case.most) for name, n in allowed.items()}
        return case.decision("rescale", reason, fitting) if fitting != now else None
    fitting = {name: min(n, case.most) for name, n in now.items()}
    if fitting == now:
        return None
    return case.decision(
        "rescale", f"there are {case.now.cores} cores for {case.now.shards} shards", fitting
    )


def _balance(case: _Case) -> Decision | None:
    """Balance operators of which one shard has much more than it need have, if that is needed."""
    if case.settings.policy in ("threshold", "schedule"):
        return None
    lopsided = [
        o
        for o in case.estimate.operators
        if o.parallelism > 1 and o.heaviest > LOPSIDED * o.share(o.parallelism)
    ]
    now, balanced = case.estimate.now(), case.estimate.balanced()
    allowed = case.settings.latency or math.inf
    needed = now.load > case.settings.target or now.latency > allowed
    if not lopsided or not needed or _balanced_before(case):
        return None
    parts = []
    for o in lopsided:
        hot = [h for h in o.hot if h.share >= HOT]
        why = f"; {_named(hot)} gets a shard to itself" if hot else ""
        parts.append(
            f"a shard of {o.name} has {o.heaviest:.0%} of its rows, "
            f"{o.share(o.parallelism):.0%} would do{why}"
        )
    reason = f"{'; '.join(parts)}: load {_load(now.load)} to {_load(balanced.load)}"
    return case.decision("rebalance", reason)


def _balanced_before(case: _Case) -> bool:
    """Whether these shards were balanced a short while ago: then it did not help."""
    acts = case.history.acts
    if not acts or acts[-1].action != "rebalance":
        return False
    recent = case.now.at - acts[-1].at < REPENTANCE * case.settings.settle
    return recent and acts[-1].before == case.now.parallelism


def _grow(case: _Case) -> Decision | None:
    before, wanted = case.now.parallelism, case.proposal.now
    more = {name: max(n, wanted.get(name, n)) for name, n in before.items()}
    if more == before or not case.proposal.must_grow:
        return None
    return case.decision("rescale", _because(case, more), more)


def _shrink(case: _Case) -> Decision | None:
    before, settings = case.now.parallelism, case.settings
    fewer = {name: min(n, case.proposal.enough.get(name, n)) for name, n in before.items()}
    if fewer == before or case.proposal.urgent or not _is_worth(before, fewer):
        return None
    if settings.policy == "schedule":
        return case.decision("rescale", _because(case, fewer), fewer)
    if case.now.full:
        # It may be far behind: what comes is what it can take.
        return None
    settle = settings.settle * REPENTANCE ** _regrets(case, fewer)
    age = case.now.at - case.history.since
    if settings.policy != "threshold":
        high = estimates.peak(case.history, settle)
        low = min(age, estimates.low_for(case.history, settle, max(1.0, high)))
        if low < settle or (high > SETTLED and age < REPENTANCE * settle):
            return None
        saved = (max(before.values()) - max(fewer.values())) * low
        cost = move_seconds(case.history) * max(fewer.values())
        if 0 < saved < cost:
            return case.decision(
                "hold",
                f"{max(fewer.values())} shards would do, but moving takes {cost:.0f} "
                f"shard-seconds and saves {saved:.0f} if the load stays low for as long again",
            )
    return case.decision("rescale", _because(case, fewer), fewer)


def _is_worth(before: dict[str, int], fewer: dict[str, int]) -> bool:
    """Whether executors are saved, or an operator has at least twice what it needs."""
    if max(fewer.values()) < max(before.values()):
        return True
    return any(2 * fewer[name] <= n for name, n in before.items())


def _regrets(case: _Case, fewer: dict[str, int]) -> int:
    """How often these shards were tried in the last hour and had to be taken back soon after."""
    acts = [act for act in case.history.acts if act.action == "rescale"]
    found = 0
    for earlier, later in itertools.pairwise(acts):
        shrank = sum(earlier.parallelism.values()) < sum(earlier.before.values())
        grew = sum(later.parallelism.values()) > sum(later.before.values())
        soon = later.at - earlier.at < 2 * case.settings.settle
        if shrank and grew and soon and earlier.parallelism == fewer:
            found += case.now.at - later.at < HOUR
    return min(found, MOST_REGRETS)


def _hold(case: _Case) -> Decision:
    now, limit = case.estimate.now(), case.most
    wanted, shards = max(case.proposal.now.values()), case.now.shards
    is_limited = case.now.room is not None and case.now.room < case.settings.max
    # In full epochs the load is what the shards can take, not what comes.
    is_full = case.now.full and wanted >= limit
    is_too_much = is_full or now.load > (1 + 1e-9) * case.settings.target
    if is_limited and is_too_much and shards >= limit:
        load = "what waits" if is_full else f"a load of {_load(now.load)}"
        return case.decision(
            "hold",
            f"more than {limit} shards are wanted for {load}, but the cluster has "
            f"{case.now.cores} cores and gives no more; the stream goes on with them",
            blocked=True,
        )
    if case.proposal.unreachable and wanted <= shards:
        return case.decision(
            "hold", f"no allowed number of shards reaches {case.proposal.unreachable}"
        )
    return case.decision("hold", f"load {_load(now.load)}, epochs {case.now.seconds:.2f} s: enough")


def _because(case: _Case, after: dict[str, int]) -> str:
    """The numbers behind a rescale, in a sentence."""
    changed = ", ".join(
        f"{name} {n} to {after[name]}"
        for name, n in case.now.parallelism.items()
        if after[name] != n
    )
    settings, estimate = case.settings, case.estimate
    if settings.policy == "schedule":
        return f"{changed}: the schedule says so"
    if settings.policy == "threshold":
        busy = max(o.slowest / max(case.now.interval, 1e-9) for o in case.now.operators)
        return f"{changed}: the busiest shard was busy for {busy:.0%} of the time"
    here, there = estimate.now(), estimate.with_shards(after)
    bottleneck = max(estimate.operators, key=lambda o: o.demand * o.line.per_row * o.heaviest)
    parts = [f"load {_load(here.load)} to {_load(there.load)} (target {settings.target:.0%})"]
    if settings.latency is not None:
        parts.append(
            f"latency {case.now.latency:.2f} s to {there.latency:.2f} s "
            f"(allowed {settings.latency:g} s)"
        )
    if case.now.backlog:
        parts.append(f"{case.now.backlog:,} rows behind")
    if case.now.full:
        parts.append("more rows wait, nobody knows how many")
    parts.append(_described(bottleneck))
    return f"{changed}: {'; '.join(parts)}"


def _described(o: OperatorEstimate) -> str:
    rate = f"{o.true_rate:,.0f}" if math.isfinite(o.true_rate) else "any number of"
    return f"{o.name} gets {o.rate:,.0f} rows/s, and a shard does {rate}"


def _load(load: float) -> str:
    return f"{load:.0%}" if load < 10 else "above 1000%"


def _named(hot: list[HotGroup]) -> str:
    groups = ", ".join(str(h.group) for h in hot)
    return f"key group {groups}" if len(hot) == 1 else f"each of the key groups {groups}"


def advice(estimate: Estimate, proposal: Proposal) -> tuple[str, ...]:
    """What scaling cannot mend."""
    found = []
    for o in estimate.operators:
        for hot in o.hot[:1]:
            # It binds once there are more shards than would make all as heavy as it is.
            if hot.share < HOT or hot.share * max(2, o.parallelism) < LOPSIDED:
                continue
            if hot.key and hot.key_share >= hot.share / 2:
                found.append(
                    f"the key {hot.key} has {hot.key_share:.0%} of the rows of {o.name}, and one "
                    "key is one shard's: aggregate it in two steps with a salted key, or give it "
                    "a stream of its own"
                )
            else:
                found.append(
                    f"key group {hot.group} has {hot.share:.0%} of the work of {o.name}, and a key "
                    "group is one shard's: a location with more key_groups divides it further"
                )
    if proposal.unreachable:
        found.append(
            f"{proposal.unreachable} cannot be had: {estimate.fixed:.2f} s of an epoch do not "
            f"depend on the number of shards{_by_trigger(estimate)}"
        )
    return tuple(found)


def _by_trigger(estimate: Estimate) -> str:
    return f", and one begins every {estimate.trigger:g} s" if estimate.trigger else ""


def move_seconds(history: History) -> float:
    """How long a move takes: as the last one did, else by the size of the state."""
    lasted, end = 0.0, None
    for span in reversed(history.spans):
        if span.moving:
            end = span.at if end is None else end
            lasted = end - span.at + span.interval
        elif end is not None:
            return lasted
    if end is not None:
        return lasted
    latest = history.latest
    size = latest.state_bytes if latest is not None else 0
    return 2.0 + size / FOLLOWED_BYTES_PER_SECOND
