"""Millrace, as its user runs it: `mr.session`, a keyed count, the state read back from outside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.keygroups import DEFAULT_KEY_GROUPS
from millrace.keygroups.scheme import CHAINED
from millrace.log import Journal, open_store
from millrace_lab.bench._sides.engine import PARTITIONS, Engine, Queries, common_settings, numbers

OPERATOR = "counts"


class MillraceQueries(Queries):
    """Queries of Millrace, whose epochs come with the operator's own report."""

    operator = OPERATOR

    def __init__(
        self,
        name: str,
        workdir: Path,
        memory: str,
        master: str = "local[2]",
        more: Mapping[str, str] | None = None,
    ) -> None:
        settings = {**common_settings(workdir, memory), **(more or {})}
        super().__init__(mr.session(name, master, settings), workdir)
        self._query: mr.Query | None = None
        self._reports: dict[int, dict[str, Any]] = {}

    def parts(self, query: StreamingQuery, batch: int) -> dict[str, float]:
        report = self._report(batch)
        if report is None:
            return {}
        operator = report["operators"][self.operator]
        return {
            **{f"phase.{k}": v * 1000 for k, v in report["phases"].items()},
            **{f"shard.{k}": v * 1000 for k, v in operator["shard_seconds"].items()},
        }

    def _epochs(self, query: StreamingQuery) -> list[dict[str, Any]]:
        assert self._query is not None
        self._reports = {r["batch_id"]: r for r in self._query.recent_progress()}
        epochs = super()._epochs(query)
        for epoch in epochs:
            report = self._report(epoch["batch"])
            if report is not None:
                operator = report["operators"][self.operator]
                epoch["epoch"] = report["epoch"]
                epoch["state_rows"] = operator["num_rows_total"]
                epoch["changed"] = operator["num_rows_updated"]
                epoch["segment_bytes"] = operator["bytes_written"]
                epoch["merged"] = operator["merged_rows"]
        return epochs

    def _report(self, batch: int) -> dict[str, Any] | None:
        return self._reports.get(batch)


class MillraceEngine(MillraceQueries, Engine):
    """`millrace`, and with one core to itself `millrace_pinned`."""

    def options(self, folder: Path) -> dict[str, Any]:
        """What a query is started with, beside what all are."""
        # Everything is kept, so that what was written can be counted afterwards.
        return {"retain_epochs": 1_000_000}

    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        self._query = (
            mr.stream(source)
            .key_by("key")
            .aggregate(n=mr.count(), name=OPERATOR)
            .to("noop")
            .start(
                str(folder),
                parallelism=PARTITIONS,
                trigger="available_now" if trigger else None,
                **self.options(folder),
            )
        )
        return self._query.spark_query

    def table(self, folder: Path) -> pa.Table:
        return numbers(mr.open(str(folder)).to_arrow(OPERATOR))


class FirstFormatEngine(MillraceEngine):
    """`millrace_format_1`: in locations of that format, with its fingerprints."""

    def start(self, source: DataFrame, folder: Path, trigger: dict[str, Any]) -> StreamingQuery:
        Journal.create(open_store(str(folder)), DEFAULT_KEY_GROUPS, CHAINED)
        return super().start(source, folder, trigger)


class PinnedEngine(MillraceEngine):
    """`millrace_pinned`: the JVM and its workers stay on the first core."""

    def __init__(self, workdir: Path, memory: str) -> None:
        # Before the JVM starts: it and what it starts inherit this.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        super().__init__("millrace-pinned", workdir, memory, "local[1]")
