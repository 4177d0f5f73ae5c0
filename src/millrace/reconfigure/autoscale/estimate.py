"""What rows and epochs cost, from a history, and what they would cost with other shards.

The stages of an epoch run one after the other: each operator's shards, and the rest that is Spark's
and the sink's. A stage takes a fixed time, and a time for every row of its heaviest shard. So with
demands d (rows per second) and shares s (of the heaviest shard), of every second

    load = sum over operators of d * per_row * s

are spent on rows, however rows are cut into epochs, and a query whose load is below 1 keeps up. Its
epochs take `fixed / (1 - load)` back to back, or `fixed + load * trigger` behind a trigger that is
longer. A row waits for the epoch before its own, and then for its own.

The costs are a line through what was observed at different numbers of rows per shard. While those
hardly differ, all of an operator's time counts as time for rows, as DS2 assumes; the first change
of load or of shards then corrects it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from millrace.reconfigure.autoscale.history import History, Span
from millrace.reconfigure.autoscale.observing import HotGroup, Observation
from millrace.reconfigure.autoscale.settings import Settings

FITTED = 120
"""Spans that a line is drawn through."""
SPREAD = 1.5
"""Rows per shard must differ by this factor before a line through them is believed."""
LEAST_SLOPE = 0.2
"""At least this share of an operator's time counts as time for rows."""
OPENING = 0.02
"""Seconds that opening a shard and writing its segment take, while nothing better is known."""
UNEVEN = 1.05
"""Shards are as even as whole key groups allow."""
NEWEST = 3
"""Spans that tell what things cost now."""
STEADY = 10.0
"""Seconds that the rate of a steady load is a mean of."""
PARTS = 4
"""Parts of the past whose rates are compared."""
ACCEPTABLE = 0.4
"""The share of the latency that an epoch may take in all: a row waits for two of them."""

Parallelism = Mapping[str, int]


@dataclass(frozen=True)
class Line:
    """Seconds of a stage: fixed, and for each row of its heaviest shard."""

    fixed: float
    per_row: float


@dataclass(frozen=True)
class Outcome:
    """How a query would do with some number of shards."""

    load: float
    """Of every second, the part that is spent on rows; above 1 the query falls behind."""
    epoch: float
    latency: float


@dataclass(frozen=True)
class OperatorEstimate:
    """What one operator needs."""

    name: str
    parallelism: int
    rate: float
    """Rows that come per second."""
    demand: float
    """The same, and what it is behind by."""
    line: Line
    heaviest: float
    """The share of the rows that the heaviest shard has now."""
    hot: tuple[HotGroup, ...] = ()

    @property
    def floor(self) -> float:
        """The share of the heaviest key group, which no number of shards divides."""
        return self.hot[0].share if self.hot else 0.0

    def share(self, shards: int) -> float:
        """The share of the heaviest of a number of shards, once they are balanced."""
        return min(1.0, max(UNEVEN / shards, self.floor)) if shards > 1 else 1.0

    @property
    def true_rate(self) -> float:
        """Rows per second that a shard can do."""
        return 1 / self.line.per_row if self.line.per_row > 0 else math.inf


@dataclass(frozen=True)
class Estimate:
    """What a query needs."""

    operators: tuple[OperatorEstimate, ...]
    rest: Line
    """Spark's part and the sink's; its rows are those of the sources, over the cores."""
    rate: float
    """Rows that the sources give per second."""
    demand: float
    trigger: float
    cores: int
    grows: bool
    """Whether there will be a core for each shard."""

    @property
    def fixed(self) -> float:
        """What the shortest epoch takes."""
        return self.rest.fixed + sum(o.line.fixed for o in self.operators)

    def now(self) -> Outcome:
        """How it does with its present shards, as unbalanced as they are."""
        shares = {o.name: o.heaviest for o in self.operators}
        shards = max((o.parallelism for o in self.operators), default=1)
        return self._outcome(shares, shards)

    def balanced(self) -> Outcome:
        """How it would do with its present number of shards, balanced."""
        return self.with_shards({o.name: o.parallelism for o in self.operators})

    def with_shards(self, parallelism: Parallelism | int) -> Outcome:
        """How it would do with other shards."""
        if isinstance(parallelism, int):
            parallelism = {o.name: parallelism for o in self.operators}
        shares = {o.name: o.share(parallelism[o.name]) for o in self.operators}
        return self._outcome(shares, max(parallelism.values(), default=1))

    def _outcome(self, shares: Mapping[str, float], shards: int) -> Outcome:
        cores = shards if self.grows else self.cores
        load = self.demand * self.rest.per_row / max(1, cores)
        for o in self.operators:
            load += o.demand * o.line.per_row * shares[o.name]
        fixed = self.fixed
        behind_trigger = fixed + load * self.trigger
        if self.trigger > 0 and behind_trigger <= self.trigger:
            return Outcome(load, behind_trigger, self.trigger + behind_trigger)
        if load >= 1:
            return Outcome(load, math.inf, math.inf)
        epoch = fixed / (1 - load)
        return Outcome(load, epoch, max(epoch, self.trigger) + epoch)

    def seconds_of(self, rows: Mapping[str, int], shards: int) -> float:
        """How long an epoch takes in which each operator has these rows."""
        cores = shards if self.grows else self.cores
        most = max(rows.values(), default=0)
        seconds = self.fixed + most * self.rest.per_row / max(1, cores)
        return seconds + sum(
            rows[o.name] * o.line.per_row * o.share(shards) for o in self.operators
        )

    def at_peak(self, peak: float) -> Estimate:
        """The same for a time when the rows were multiplied by a factor."""
        return replace(
            self,
            operators=tuple(
                replace(o, rate=o.rate * peak, demand=max(o.demand, o.rate * peak))
                for o in self.operators
            ),
            rate=self.rate * peak,
            demand=max(self.demand, self.rate * peak),
        )


@dataclass(frozen=True)
class Costs:
    """What rows and epochs cost, whatever their number."""

    rest: Line
    operators: dict[str, tuple[Line, float, tuple[HotGroup, ...]]]
    """Operator -> its line, the share of its heaviest shard, and its hot key groups."""


def fitted(history: History) -> Costs | None:
    """The costs that a history tells; None if it is too short."""
    latest = history.latest
    spans = list(islice(history.recent(math.inf), FITTED))
    if latest is None or sum(span.epochs for span in spans) < 2:
        return None
    # While key groups move, epochs are not as they are at other times.
    still = [span for span in spans if not span.moving] or spans
    rest = _line([(s.rows / s.epochs / max(1, s.cores), s.rest / s.epochs) for s in still], None)
    operators = {}
    for load in latest.operators:
        name = load.name
        past = [(s.operators[name], s.epochs) for s in still if name in s.operators]
        line = _line([(o.heaviest / n, o.slowest / n) for o, n in past], OPENING)
        newest = [o for o, _ in past[:NEWEST] if o.rows and o.parallelism == load.parallelism]
        heaviest = sum(o.heaviest for o in newest) / max(1, sum(o.rows for o in newest))
        hot = _hot(history.observations, name)
        operators[name] = line, heaviest or 1 / load.parallelism, hot
    return Costs(rest, operators)


def estimated(
    history: History, settings: Settings, costs: Costs, seconds: float = STEADY
) -> Estimate:
    """What the query needs, by its costs and the rate of the last seconds."""
    latest = history.latest
    assert latest is not None
    window = list(history.recent(seconds))
    rate = _rate(window)
    operators = []
    for load in latest.operators:
        line, heaviest, hot = costs.operators[load.name]
        mine = _rate(window, load.name)
        operators.append(
            OperatorEstimate(load.name, load.parallelism, mine, mine, line, heaviest, hot)
        )
    grows = latest.room is None
    estimate = Estimate(
        tuple(operators), costs.rest, rate, rate, latest.trigger, latest.cores, grows
    )
    return _with_backlog(estimate, latest, settings)


def _hot(observations: Sequence[Observation], name: str) -> tuple[HotGroup, ...]:
    """The hot key groups by their usual shares: one epoch with few rows has many by chance."""
    past = [load for o in observations[-8:] if (load := o.operator(name)) is not None]
    shares: dict[int, list[float]] = {}
    newest: dict[int, HotGroup] = {}
    for load in past:
        for hot in load.hot:
            shares.setdefault(hot.group, []).append(hot.share)
            newest[hot.group] = hot
    # One that was not among the hottest of an epoch had less than those that were.
    usual = {
        group: statistics.median([*found, *[0.0] * (len(past) - len(found))])
        for group, found in shares.items()
    }
    steady = [replace(newest[group], share=share) for group, share in usual.items() if share > 0]
    return tuple(sorted(steady, key=lambda hot: -hot.share))


def _with_backlog(estimate: Estimate, latest: Observation, settings: Settings) -> Estimate:
    """The estimate with a demand that also works off what has piled up."""
    excess = float(latest.backlog or 0)
    if settings.latency is not None and latest.interval > 0:
        # Sources without a limit give all they have: what piles up are longer epochs.
        best = estimate.with_shards(settings.max).epoch
        acceptable = max(estimate.trigger, ACCEPTABLE * settings.latency, 1.2 * best)
        if latest.interval > 1.5 * acceptable:
            excess += latest.rows * (1 - acceptable / latest.interval)
    if excess <= 0 or latest.rows <= 0:
        return estimate
    more = excess / settings.catch_up
    return replace(
        estimate,
        demand=estimate.rate + more,
        operators=tuple(
            replace(o, demand=o.rate + more * _rows(latest, o.name) / latest.rows)
            for o in estimate.operators
        ),
    )


def peak(history: History, seconds: float) -> float:
    """How many times the present rate came, at most, on average of a part of the last seconds."""
    return max((high for high, _ in _past_rates(history, seconds, seconds)), default=1.0)


def low_for(history: History, seconds: float, peak: float) -> float:
    """For how long the rate has not been above a peak, up to all that is remembered."""
    lasted = 0.0
    for high, ago in _past_rates(history, seconds, math.inf):
        if high > 1.05 * peak:
            return lasted
        lasted = ago
    return lasted


def _past_rates(history: History, seconds: float, until: float) -> Iterator[tuple[float, float]]:
    """Rates over parts of the past, as multiples of the present rate; and how long ago they began.

    Newest first. Of several operators, the one that had the most counts.
    """
    window = list(history.recent(STEADY))
    if not window:
        return
    present = {name: _rate(window, name) for name in window[0].operators}
    part: list[Span] = []
    length, end = 0.0, window[0].at
    for span in history.recent(until):
        part.append(span)
        length += span.interval
        if length >= seconds / PARTS:
            times = [_rate(part, name) / rate for name, rate in present.items() if rate > 0]
            yield max(times, default=1.0), end - span.at + span.interval
            part, length = [], 0.0


def _rate(window: Iterable[Span], name: str | None = None) -> float:
    """Rows per second of an operator, or of the sources."""
    length = rows = 0.0
    for span in window:
        length += span.interval
        if name is None:
            rows += span.rows
        elif name in span.operators:
            rows += span.operators[name].rows
    return rows / length if length > 0 else 0.0


def _rows(observation: Observation, name: str) -> int:
    load = observation.operator(name)
    return load.rows if load is not None else 0


def _line(points: Sequence[tuple[float, float]], fixed: float | None) -> Line:
    """A line through (rows, seconds), newest first, by the medians of its two halves.

    The halves are of the range and not of the points: a load that has just changed shows in few.

    While the rows do not differ enough to tell, up to `fixed` seconds count as fixed; None is all.
    """
    points = [(x, y) for x, y in points if x > 0]
    if not points:
        return Line(0.0, 0.0)
    x = statistics.median([x for x, _ in points[:NEWEST]])
    y = statistics.median([y for _, y in points[:NEWEST]])
    most, fewest = max(points)[0], min(points)[0]
    between = math.sqrt(most) * math.sqrt(fewest)
    low = [point for point in points if point[0] < between]
    high = [point for point in points if point[0] >= between]
    enough = min(len(low), len(high)) >= NEWEST
    (low_x, low_y), (high_x, high_y) = (_middle(half if enough else points) for half in (low, high))
    if high_x >= SPREAD * low_x:
        slope = (high_y - low_y) / (high_x - low_x)
        least = 0.0 if fixed is None else LEAST_SLOPE
        slope = max(least * y / x, min(slope, y / x))
    elif fixed is None:
        slope = 0.0
    else:
        slope = (y - min(y / 2, fixed)) / x
    return Line(max(0.0, y - slope * x), slope)


def _middle(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median([x for x, _ in points]), statistics.median([y for _, y in points])
