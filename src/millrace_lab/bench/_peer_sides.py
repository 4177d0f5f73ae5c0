"""The sides of `millrace bench peers`: what each one is, where it runs, and how it is timed."""

from __future__ import annotations

from dataclasses import dataclass

AGGREGATE, PROCESSOR = "millrace-aggregate", "millrace-processor"


@dataclass(frozen=True)
class SideKind:
    """One side."""

    name: str
    title: str
    beside: str
    """The side of Millrace its ratio is with: the one that is written as it is, with built-in
    aggregates or with the user's own Python per key."""
    environment: str | None = None
    """Its folder of `.peers`; None if it runs in this one."""
    sample: int | None = None
    """Rows of an epoch, for sides too slow for those of the others. None: as the others."""
    continuous: bool = False
    """Timed by the clock and its own counters, because it has no epochs."""
    patience: float = 1.0
    """How many times as long as usual its windows are, if its counters move in large steps."""
    fill: bool = True
    """Whether every key exists before it is timed; some are too slow for that."""
    large: bool = False
    """Whether it is timed at every size of state, or only at the smallest."""


SIDES = (
    SideKind(AGGREGATE, "Millrace, aggregates", AGGREGATE, large=True),
    SideKind(PROCESSOR, "Millrace, `mr.Processor`", PROCESSOR),
    SideKind("spark-rocksdb", "Spark aggregation, RocksDB", AGGREGATE, large=True),
    SideKind("spark-hdfs", "Spark aggregation, HDFS-backed", AGGREGATE, large=True),
    SideKind("pyspark-row", "PySpark `transformWithState`, rows", PROCESSOR, sample=20_000),
    SideKind(
        "pyspark-pandas",
        "PySpark `transformWithState`, pandas",
        PROCESSOR,
        sample=2_000,
        fill=False,
    ),
    *(
        SideKind(
            f"flink-sql-{name}",
            f"Flink SQL, {title}",
            AGGREGATE,
            environment="flink",
            continuous=True,
            large=True,
        )
        for name, title in (("heap", "heap"), ("rocksdb", "RocksDB"))
    ),
    *(
        SideKind(
            f"pyflink-{name}",
            f"PyFlink keyed state, {title}",
            PROCESSOR,
            environment="flink",
            continuous=True,
            patience=2.0,
            fill=False,
        )
        for name, title in (("heap", "heap"), ("rocksdb", "RocksDB"))
    ),
    SideKind("bytewax", "Bytewax", PROCESSOR, environment="bytewax", continuous=True),
    SideKind("pathway", "Pathway", AGGREGATE, environment="pathway", continuous=True, large=True),
)
NAMES = tuple(side.name for side in SIDES)
MILLRACE = (AGGREGATE, PROCESSOR)
BY_NAME = {side.name: side for side in SIDES}

LEFT_OUT = {
    "Quix Streams 3.28": (
        "it installs, but every row goes through a Kafka broker, including those of its own "
        "sources and of its state's log. Without a broker a job fails at its start (`Failed to get "
        "metadata: Local: Broker transport failure`); with one, its input would differ."
    ),
}
"""Stream processors that have no side, and why."""
