"""Millrace on two executors of one core, with shards placed where their state is, or anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.bench._peers.engine import PARTITIONS, Engine, common_settings
from millrace.bench._peers.millrace import OPERATOR, MillraceEngine
from millrace.reconfigure.slots import Executor
from millrace.spark import epoch

EXECUTOR_MB = 1024


class PlacedEngine(MillraceEngine):
    """`placed`, and `unplaced`: the same code, but no shard says where it wants to run.

    A location's number of key groups is the number at the end of its name.
    """

    def __init__(self, workdir: Path, memory: str, *, hints: bool) -> None:
        settings = {
            **common_settings(workdir, memory),
            "spark.executor.memory": f"{EXECUTOR_MB}m",
        }
        master = f"local-cluster[{PARTITIONS},1,{EXECUTOR_MB}]"
        Engine.__init__(self, mr.session("millrace", master, settings), workdir)
        self._query = None
        self._reports = {}
        if not hints:
            vars(epoch)["places"] = _nowhere

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
                key_groups=int(folder.name.rpartition("-")[2]),
            )
        )
        return self._query.spark_query


def _nowhere(executors: Sequence[Executor], names: Sequence[str]) -> str:
    return ""
