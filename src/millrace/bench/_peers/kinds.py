"""The peers by name."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from millrace.bench._sides import BY_NAME


class Servant(Protocol):
    """A peer inside its process; its methods `do_*` are the commands."""

    def close(self) -> None: ...


def make_engine(kind: str, workdir: Path, memory: str) -> Servant:
    """Start a peer. Imports are local: a peer loads only what it runs."""
    if kind == "statelog":
        from millrace.bench._peers.statelog import StateLog

        return StateLog()
    if kind == "querying":
        from millrace.bench._peers.querying import Querying

        return Querying()
    if kind == "millrace_pinned":
        from millrace.bench._peers.millrace import PinnedEngine

        return PinnedEngine(workdir, memory)
    if kind == "millrace":
        from millrace.bench._peers.millrace import MillraceEngine

        return MillraceEngine("millrace", workdir, memory)
    if kind == "ceiling":
        from millrace.bench._peers.ceiling import CeilingEngine

        return CeilingEngine(workdir, memory)
    if kind == "pyspark_tws":
        from millrace.bench._peers.tws import TransformWithStateEngine

        return TransformWithStateEngine(workdir, memory)
    if kind == "millrace_processing":
        from millrace.bench._peers.processing import MillraceProcessing

        return MillraceProcessing(workdir, memory)
    if kind == "spark_processing":
        from millrace.bench._peers.processing import SparkProcessing

        return SparkProcessing(workdir, memory)
    if kind in ("millrace_cluster", "spark_cluster"):
        from millrace.bench._peers.clusters import MillraceCluster, SparkCluster

        cluster = MillraceCluster if kind == "millrace_cluster" else SparkCluster
        return cluster(workdir, memory)
    if kind in ("placed", "unplaced"):
        from millrace.bench._peers.placed import PlacedEngine

        return PlacedEngine(workdir, memory, hints=kind == "placed")
    if kind in BY_NAME:
        from millrace.bench._peers.totals import make_side

        return make_side(kind, workdir, memory)
    from millrace.bench._peers.rocksdb import RocksDBEngine

    if kind not in ("spark_rocksdb", "spark_rocksdb_fastlog"):
        raise ValueError(f"there is no peer {kind!r}")
    return RocksDBEngine(workdir, memory, fast_log=kind == "spark_rocksdb_fastlog")
