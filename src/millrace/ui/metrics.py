"""The page's figures for Prometheus. All names are here, and `docs/metrics.md` is made from them.

Counters and histograms count from when this process began to watch the location, with the epochs
that it found there. They are computed from what the page knows whenever somebody asks, so nothing
is counted twice and nothing is kept that the page does not keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from millrace.ui.histogram import Histogram
from millrace.ui.watch import Watch

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True)
class Described:
    """A metric."""

    kind: str
    """gauge, counter or histogram"""
    help: str
    labels: tuple[str, ...] = ()


METRICS: dict[str, Described] = {
    "millrace_up": Described("gauge", "1 while the query runs in the watching process, else 0."),
    "millrace_epoch": Described("gauge", "The last committed epoch."),
    "millrace_epochs_total": Described("counter", "Epochs seen by this process."),
    "millrace_epoch_duration_seconds": Described("gauge", "How long the last epoch took."),
    "millrace_epoch_seconds": Described(
        "histogram", "How long epochs took, from the hand-over of the batch to its commit."
    ),
    "millrace_event_latency_seconds": Described(
        "histogram",
        "How old the oldest row of an epoch can have been at its commit: the time since the epoch "
        "before it began.",
    ),
    "millrace_shard_seconds": Described(
        "histogram",
        "How long an operator's slowest shard took in an epoch; only in the query's own process.",
        ("operator",),
    ),
    "millrace_last_commit_timestamp_seconds": Described(
        "gauge", "When the last epoch was committed."
    ),
    "millrace_watermark_timestamp_seconds": Described("gauge", "The last epoch's watermark."),
    "millrace_rows_total": Described(
        "counter", "Rows that came: of the sources, else to the shards."
    ),
    "millrace_source_rows_behind": Described(
        "gauge", "Rows that a source had and its last batch left.", ("source",)
    ),
    "millrace_source_seconds_behind": Described(
        "gauge", "For how long rows of a source have been waiting, at most.", ("source",)
    ),
    "millrace_written_bytes_total": Described("counter", "Bytes of segments."),
    "millrace_state_rows": Described("gauge", "Rows of an operator's state.", ("operator",)),
    "millrace_state_bytes": Described(
        "gauge", "Bytes of an operator's live segments.", ("operator",)
    ),
    "millrace_operator_watermark_timestamp_seconds": Described(
        "gauge", "An operator's own watermark; only in queries with event time.", ("operator",)
    ),
    "millrace_late_rows_total": Described(
        "counter", "Rows that came to an operator too late for its watermark.", ("operator",)
    ),
    "millrace_evicted_rows_total": Described(
        "counter",
        "Rows of an operator's state that the watermark or their time to live has passed.",
        ("operator",),
    ),
    "millrace_shards": Described("gauge", "Shards of an operator.", ("operator",)),
    "millrace_key_groups": Described(
        "gauge", "Key groups of an operator on an executor.", ("operator", "executor")
    ),
    "millrace_executors": Described("gauge", "Live executors; only in the query's own process."),
    "millrace_requests": Described(
        "gauge", "Remembered rescales, moves and drains by how they stand.", ("kind", "state")
    ),
    "millrace_move_seconds": Described(
        "histogram", "How long rescales, moves and drains took that are done.", ("kind",)
    ),
    "millrace_executors_lost_total": Described(
        "counter", "Executors that were lost with key groups."
    ),
    "millrace_autoscale_decisions_total": Described(
        "counter", "Decisions of autoscaling that are on record.", ("action",)
    ),
    "millrace_autoscale_on": Described(
        "gauge",
        "1 while autoscaling acts, 0 while it does not; only in an autoscaled query's process.",
    ),
    "millrace_autoscale_wanted_shards": Described(
        "gauge", "Shards that autoscaling wants now; only in an autoscaled query's process."
    ),
    "millrace_autoscale_load_ratio": Described(
        "gauge",
        "The part of every second that is spent on rows, as autoscaling sees it; only in an "
        "autoscaled query's process.",
    ),
    "millrace_autoscale_backlog_rows": Described(
        "gauge", "Rows that no epoch has read, as autoscaling sees them; only if sources tell."
    ),
}
"""By name, in the order of the documentation."""

Sample = tuple[str, Mapping[str, str], "float | Histogram"]


def exposition(watch: Watch) -> str:
    """Everything in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(watch))
    return generate_latest(registry).decode()


class _Collector(Collector):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        grouped: dict[str, list[Sample]] = {}
        for sample in _samples(self._watch):
            grouped.setdefault(sample[0], []).append(sample)
        for name, described in METRICS.items():
            if name in grouped:
                yield _family(name, described, grouped[name])


def _family(name: str, described: Described, samples: Iterable[Sample]) -> Metric:
    labels = list(described.labels)
    if described.kind == "histogram":
        histograms = HistogramMetricFamily(name, described.help, labels=labels)
        for _, given, value in samples:
            assert isinstance(value, Histogram)
            buckets = [(_bound(bound), float(count)) for bound, count in value.cumulated()]
            histograms.add_metric(_values(labels, given), buckets, value.total)
        return histograms
    made: CounterMetricFamily | GaugeMetricFamily
    if described.kind == "counter":
        made = CounterMetricFamily(name, described.help, labels=labels)
    else:
        made = GaugeMetricFamily(name, described.help, labels=labels)
    for _, given, value in samples:
        assert not isinstance(value, Histogram)
        made.add_metric(_values(labels, given), value)
    return made


def _values(labels: Iterable[str], given: Mapping[str, str]) -> list[str]:
    return [given[label] for label in labels]


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


def _samples(watch: Watch) -> Iterator[Sample]:
    history, live = watch.history, watch.live
    yield "millrace_up", {}, float(live is not None and live.state == "running")
    yield "millrace_epochs_total", {}, history.epochs
    yield "millrace_epoch_seconds", {}, history.took
    yield "millrace_event_latency_seconds", {}, history.latency
    yield "millrace_rows_total", {}, history.rows
    yield "millrace_written_bytes_total", {}, history.written
    if live is not None:
        yield "millrace_executors", {}, len(live.executors)
        for lag in live.sources:
            label = {"source": lag.source}
            if lag.rows_behind is not None:
                yield "millrace_source_rows_behind", label, lag.rows_behind
            if lag.seconds_behind is not None:
                yield "millrace_source_seconds_behind", label, lag.seconds_behind
        for operator, histogram in sorted(live.shard_seconds.items()):
            yield "millrace_shard_seconds", {"operator": operator}, histogram
    if history.points:
        last = history.points[-1]
        yield "millrace_epoch", {}, last.epoch
        yield "millrace_last_commit_timestamp_seconds", {}, last.time_ms / 1000
        if last.took_ms is not None:
            yield "millrace_epoch_duration_seconds", {}, last.took_ms / 1000
        if last.watermark_ms is not None:
            yield "millrace_watermark_timestamp_seconds", {}, last.watermark_ms / 1000
    yield from _of_operators(watch)
    marks = watch.marks()
    states = Counter((mark.kind, mark.state) for mark in marks if mark.state)
    for (kind, state), number in sorted(states.items()):
        yield "millrace_requests", {"kind": kind, "state": state}, number
    for kind, moves in sorted(watch.move_seconds.items()):
        yield "millrace_move_seconds", {"kind": kind}, moves
    yield "millrace_executors_lost_total", {}, sum(mark.kind == "lost" for mark in marks)
    yield from _of_autoscaling(watch)


def _of_operators(watch: Watch) -> Iterator[Sample]:
    for operator in watch.operators:
        label = {"operator": operator.name}
        yield "millrace_state_rows", label, operator.rows
        yield "millrace_state_bytes", label, operator.bytes
        if operator.watermark_ms is not None:
            watermark = operator.watermark_ms / 1000
            yield "millrace_operator_watermark_timestamp_seconds", label, watermark
        yield "millrace_late_rows_total", label, watch.history.late[operator.name]
        yield "millrace_evicted_rows_total", label, watch.history.evicted[operator.name]
        if operator.assignment is not None:
            yield "millrace_shards", label, operator.assignment.shards
            owners = operator.assignment
            where = Counter(owners.executor_of(shard) for shard in owners.owners)
            for executor, groups in sorted(where.items()):
                yield "millrace_key_groups", {**label, "executor": executor}, groups


def _of_autoscaling(watch: Watch) -> Iterator[Sample]:
    for action, number in sorted(watch.decided.items()):
        yield "millrace_autoscale_decisions_total", {"action": action}, number
    scaling = watch.live.scaling if watch.live is not None else None
    if scaling is None:
        return
    yield "millrace_autoscale_on", {}, float(scaling.on)
    if scaling.now is not None:
        yield "millrace_autoscale_wanted_shards", {}, scaling.now.wanted
        if "load" in scaling.now.numbers:
            yield "millrace_autoscale_load_ratio", {}, scaling.now.numbers["load"]
    if scaling.seen is not None and scaling.seen.backlog is not None:
        yield "millrace_autoscale_backlog_rows", {}, scaling.seen.backlog
