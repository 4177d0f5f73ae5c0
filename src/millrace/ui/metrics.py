"""The page's figures for Prometheus, in its text format. All names are here.

Counters count from when this process began to watch the location.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from millrace.ui.watch import Watch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

METRICS: dict[str, tuple[str, str]] = {
    "millrace_up": ("gauge", "1 while the query runs in the watching process, else 0."),
    "millrace_epoch": ("gauge", "The last committed epoch."),
    "millrace_epochs_total": ("counter", "Epochs seen since this process began to watch."),
    "millrace_epoch_duration_seconds": ("gauge", "How long the last epoch took."),
    "millrace_last_commit_timestamp_seconds": ("gauge", "When the last epoch was committed."),
    "millrace_watermark_timestamp_seconds": ("gauge", "The last epoch's watermark."),
    "millrace_rows_total": ("counter", "Rows that came: of the sources, else to the shards."),
    "millrace_source_rows_behind": ("gauge", "Rows that a source had and its last batch left."),
    "millrace_written_bytes_total": ("counter", "Bytes of segments."),
    "millrace_state_rows": ("gauge", "Rows of an operator's state."),
    "millrace_state_bytes": ("gauge", "Bytes of an operator's live segments."),
    "millrace_shards": ("gauge", "Shards of an operator."),
    "millrace_key_groups": ("gauge", "Key groups of an operator on an executor."),
    "millrace_executors": ("gauge", "Live executors; only in the query's own process."),
    "millrace_requests": ("gauge", "Remembered rescales, moves and drains by how they stand."),
    "millrace_executors_lost_total": ("counter", "Executors that were lost with key groups."),
}
"""Name -> (type, help)."""

Sample = tuple[str, Mapping[str, str], float]


def exposition(watch: Watch) -> str:
    """Everything in Prometheus' text format."""
    grouped: dict[str, list[str]] = {}
    for name, labels, value in _samples(watch):
        grouped.setdefault(name, []).append(f"{name}{_labels(labels)} {value:.17g}")
    lines = []
    for name, (kind, help_text) in METRICS.items():
        if name in grouped:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *grouped[name]]
    return "\n".join(lines) + "\n"


def _samples(watch: Watch) -> Iterable[Sample]:
    history, live = watch.history, watch.live
    yield "millrace_up", {}, float(live is not None and live.state == "running")
    yield "millrace_epochs_total", {}, history.epochs
    yield "millrace_rows_total", {}, history.rows
    yield "millrace_written_bytes_total", {}, history.written
    if live is not None:
        yield "millrace_executors", {}, len(live.executors)
        for source, rows in sorted(live.rows_behind.items()):
            yield "millrace_source_rows_behind", {"source": source}, rows
    if history.points:
        last = history.points[-1]
        yield "millrace_epoch", {}, last.epoch
        yield "millrace_last_commit_timestamp_seconds", {}, last.time_ms / 1000
        if last.took_ms is not None:
            yield "millrace_epoch_duration_seconds", {}, last.took_ms / 1000
        if last.watermark_ms is not None:
            yield "millrace_watermark_timestamp_seconds", {}, last.watermark_ms / 1000
    for operator in watch.operators:
        label = {"operator": operator.name}
        yield "millrace_state_rows", label, operator.rows
        yield "millrace_state_bytes", label, operator.bytes
        if operator.assignment is not None:
            yield "millrace_shards", label, operator.assignment.shards
            owners = operator.assignment
            where = Counter(owners.executor_of(shard) for shard in owners.owners)
            for executor, groups in sorted(where.items()):
                yield "millrace_key_groups", {**label, "executor": executor}, groups
    marks = watch.marks()
    states = Counter((mark.kind, mark.state) for mark in marks if mark.state)
    for (kind, state), number in sorted(states.items()):
        yield "millrace_requests", {"kind": kind, "state": state}, number
    yield "millrace_executors_lost_total", {}, sum(mark.kind == "lost" for mark in marks)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
