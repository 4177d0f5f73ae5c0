"""The peers by name."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from millrace_lab.bench._peer_sides import BY_NAME


class Servant(Protocol):
    """A side inside its process; its methods `do_*` are the commands."""

    def close(self) -> None: ...


def make_engine(kind: str, workdir: Path, memory: str) -> Servant:
    """Start a side. Imports are local: a side loads only what it runs."""
    if kind == "statelog":
        from millrace_lab.bench._sides.statelog import StateLog

        return StateLog()
    if kind == "querying":
        from millrace_lab.bench._sides.querying import Querying

        return Querying()
    if kind == "millrace_pinned":
        from millrace_lab.bench._sides.millrace import PinnedEngine

        return PinnedEngine(workdir, memory)
    if kind == "millrace":
        from millrace_lab.bench._sides.millrace import MillraceEngine

        return MillraceEngine("millrace", workdir, memory)
    if kind == "millrace_format_1":
        from millrace_lab.bench._sides.millrace import FirstFormatEngine

        return FirstFormatEngine("millrace", workdir, memory)
    if kind == "ceiling":
        from millrace_lab.bench._sides.ceiling import CeilingEngine

        return CeilingEngine(workdir, memory)
    if kind == "pyspark_tws":
        from millrace_lab.bench._sides.tws import TransformWithStateEngine

        return TransformWithStateEngine(workdir, memory)
    if kind == "millrace_processing":
        from millrace_lab.bench._sides.processing import MillraceProcessing

        return MillraceProcessing(workdir, memory)
    if kind == "spark_processing":
        from millrace_lab.bench._sides.processing import SparkProcessing

        return SparkProcessing(workdir, memory)
    if kind in ("millrace_cluster", "spark_cluster"):
        from millrace_lab.bench._sides.clusters import MillraceCluster, SparkCluster

        cluster = MillraceCluster if kind == "millrace_cluster" else SparkCluster
        return cluster(workdir, memory)
    if kind in ("kafka-producer", "kafka-consumer"):
        from millrace_lab.bench._sides.kafka_load import Receiver, Sender

        return Sender() if kind == "kafka-producer" else Receiver()
    if kind.startswith("kafka-"):
        from millrace_lab.bench._sides import kafka_to_kafka

        return kafka_to_kafka.make_side(kind, workdir, memory)
    if kind.startswith("backend-"):
        from millrace_lab.bench._sides.backend import BackendSide

        return BackendSide(kind.removeprefix("backend-"), workdir)
    if kind == "millrace_remote":
        from millrace_lab.bench._sides.remote import RemoteCluster

        return RemoteCluster(workdir, memory)
    if kind in ("placed", "unplaced"):
        from millrace_lab.bench._sides.placed import PlacedEngine

        return PlacedEngine(workdir, memory, hints=kind == "placed")
    if kind == "operators-millrace":
        from millrace_lab.bench._sides.operators import MillraceCases

        return MillraceCases(kind, workdir, memory)
    if kind == "operators-spark":
        from millrace_lab.bench._sides.operators import SparkCases

        return SparkCases(workdir, memory)
    if kind in ("nexmark-millrace", "nexmark-spark"):
        from millrace_lab.bench._sides.nexmark import MillraceNexmark, SparkNexmark

        nexmark = MillraceNexmark if kind == "nexmark-millrace" else SparkNexmark
        return nexmark(workdir, memory)
    if kind == "linear-road":
        from millrace_lab.bench._sides.linear_road import LinearRoadSide

        return LinearRoadSide(workdir, memory)
    if kind == "graphs-millrace":
        from millrace_lab.bench._sides.graphs import MillraceGraphs

        return MillraceGraphs(workdir, memory)
    if kind in BY_NAME:
        from millrace_lab.bench._sides.totals import make_side

        return make_side(kind, workdir, memory)
    from millrace_lab.bench._sides.rocksdb import RocksDBEngine

    if kind not in ("spark_rocksdb", "spark_rocksdb_fastlog"):
        raise ValueError(f"there is no side {kind!r}")
    return RocksDBEngine(workdir, memory, fast_log=kind == "spark_rocksdb_fastlog")
