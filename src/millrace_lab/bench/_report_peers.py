"""The section about `peers` on the page of benchmarks: tables, and what they do not compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace_lab.bench._markdown import number, table
from millrace_lab.bench._peer_sides import LEFT_OUT, MILLRACE, SIDES, SideKind

ABOUT = (
    "A running count and sum per key, over the same rows, by other stream processors. Each side "
    "has its own process and environment (`make peers`), two cores, a parallelism of 2, a sink "
    "that drops its input, and JVMs of 4 GB. First every side counts the same rows to the end, "
    "and its final counts and sums are compared with one batch. Then the sides are timed one at "
    "a time, after a warm-up. A ratio is Millrace's rows per second over the other's, as medians "
    "of all windows. Its range goes from Millrace's slowest window over the other's fastest to "
    "the opposite. Built-in aggregates are compared with Millrace's aggregates, Python programs "
    "per key with an `mr.Processor`."
)

COMPARABLE = (
    "You can compare how many rows per second each engine takes in on this machine while it "
    "makes its state or input durable about every second, and what that costs. You cannot "
    "compare latency: Millrace and Spark work in epochs of a million rows, and a result appears "
    "with its epoch. Flink, Bytewax and Pathway take in rows one by one or in small batches and, "
    "mini-batches and commits aside, can have a result within milliseconds. Below a few hundred "
    "milliseconds, an engine without epochs is the better choice. All of them run on one machine "
    "here, although Spark and Flink are built for many."
)

SETTINGS = (
    "PySpark's `transformWithState` is timed on epochs of 20,000 rows (row mode) and 2,000 rows "
    "(pandas mode), because larger ones take too long. Few of those rows share a key, and it "
    "pays per key. Pandas mode and PyFlink are too slow to create all keys first, so their state "
    "is smaller, which favours them. Flink SQL runs with mini-batches (1 s, 50,000 rows) and "
    "their two-phase aggregation. PyFlink's program has the default bundles and state cache; the "
    "cache holds only a few of the keys, so most rows cost a request to the JVM and back. It "
    "also uses buffer debloating to help its checkpoints, which still take several seconds each "
    "(`checkpoints.*` in the result file counts them). Flink checkpoints exactly once every "
    "second, incrementally on RocksDB, with 1 GB of managed memory. Bytewax runs as two "
    "processes with recovery on; its keys are strings. Pathway has two threads, commits about a "
    "million rows at a time, and persists its input, because it persists operator state only "
    "with a license key. Spark's state stores have their defaults, with RocksDB's changelog on."
)

COSTS = (
    "CPU seconds include all processes of a side, user and system, per million rows. Memory is "
    "the peak of the sum of their proportional set sizes (PSS) during the timed part: a JVM "
    "takes what its heap may have, whether it needs it or not. GB s per million rows is that "
    "peak times the seconds per million rows."
)


def tables(result: Mapping[str, Any]) -> list[str]:
    """The tables, one per number of keys, and the text around them."""
    figures = result["figures"]
    sizes = dict.fromkeys(name.split(".")[2] for name in figures if name.startswith("rows_per_s."))
    parts = [COMPARABLE, SETTINGS, COSTS]
    for size in sizes:
        rows = [_row(result, side, size) for side in SIDES if _rate(side, size) in figures]
        heading = (
            f"{size} keys",
            "rows/s",
            "range",
            "Millrace over it",
            "range",
            "CPU s per million rows",
            "peak memory, MB",
            "GB s per million rows",
        )
        parts.append(table(heading, rows))
    if LEFT_OUT:
        parts.append("Left out:")
        parts.append("\n".join(f"- {name}: {reason}" for name, reason in LEFT_OUT.items()))
    return parts


def _row(result: Mapping[str, Any], side: SideKind, size: str) -> list[str]:
    figures, ratios = result["figures"], result["ratios"]
    rate, ratio = _rate(side, size), f"peers.{side.name}.{size}"
    compared = ["", ""]
    if ratio in ratios:
        compared = [_named(side, number(ratios[ratio])), _range(ratios, ratio)]
    return [
        side.title,
        number(figures[rate]),
        _range(figures, rate),
        *compared,
        *(
            number(figures[f"{what}.{side.name}.{size}"])
            for what in ("cpu_s_per_m_rows", "peak_mb", "gb_s_per_m_rows")
        ),
    ]


def _rate(side: SideKind, size: str) -> str:
    return f"rows_per_s.{side.name}.{size}"


def _named(side: SideKind, ratio: str) -> str:
    """A ratio, and with which of Millrace's sides if that is not the first."""
    return ratio if side.beside == MILLRACE[0] else f"{ratio} (processor)"


def _range(values: Mapping[str, float], name: str) -> str:
    return f"{number(values[f'{name}.low'])} to {number(values[f'{name}.high'])}"
