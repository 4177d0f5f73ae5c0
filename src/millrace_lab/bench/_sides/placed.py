"""Millrace on two executors of one core, with shards placed where their state is, or anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millrace.reconfigure.cluster import Executor
from millrace.spark import epoch
from millrace_lab.bench._sides.engine import PARTITIONS
from millrace_lab.bench._sides.millrace import MillraceEngine

EXECUTOR_MB = 1024


class PlacedEngine(MillraceEngine):
    """`placed`, and `unplaced`: the same code, but no shard says where it wants to run.

    A location's number of key groups is the number at the end of its name.
    """

    def __init__(self, workdir: Path, memory: str, *, hints: bool) -> None:
        master = f"local-cluster[{PARTITIONS},1,{EXECUTOR_MB}]"
        more = {"spark.executor.memory": f"{EXECUTOR_MB}m"}
        super().__init__("millrace", workdir, memory, master, more)
        if not hints:
            vars(epoch)["preferred_locations"] = _nowhere

    def options(self, folder: Path) -> dict[str, Any]:
        return {"key_groups": int(folder.name.rpartition("-")[2])}


def _nowhere(executors: Sequence[Executor], names: Sequence[str]) -> str:
    return ""
