"""Pages about results: `docs/benchmarks.md`, `docs/state-types.md`, the README's and soak's tables.

Everything is a function of the files that `millrace bench` wrote: no number is typed by hand. The
page of benchmarks shows what people compare; the result files hold every figure. A benchmark
without a file is left out, and one without a grid gets all its figures in one table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from millrace_lab.bench import _report_peers
from millrace_lab.bench._contract import BenchmarkError
from millrace_lab.bench._markdown import number, table
from millrace_lab.bench._summary import summary

ORDER = (
    "throughput",
    "peers",
    "operators",
    "patterns",
    "graphs",
    "nexmark",
    "linear-road",
    "growth",
    "python",
    "state-types",
    "backends",
    "rescale",
    "rescale-slow-store",
    "stores",
    "recovery",
    "limits",
    "fingerprints",
    "endurance",
    "soak",
    "query",
    "serve",
    "latency",
    "end-to-end",
    "realtime",
)
FIELDS = ("name", "equal", "figures", "ratios", "bars", "machine", "versions", "date")
BEGIN = "<!-- benchmark-results: begin -->"
END = "<!-- benchmark-results: end -->"
SOAK_BEGIN = "<!-- soak-results: begin -->"
SOAK_END = "<!-- soak-results: end -->"
NOTICE = (
    "<!-- Made by `millrace bench report` from the files in src/millrace_lab/results. "
    "Do not edit. -->"
)

ABOUT = {
    "throughput": (
        "A keyed count over the same rows: Millrace, Spark's own streaming aggregation on RocksDB, "
        "and PySpark's `transformWithState`. The ceiling sends the same rows to Python and back "
        "and does nothing with them. `fastlog` is Spark with Millrace's checkpoint file manager."
    ),
    "peers": _report_peers.ABOUT,
    "operators": (
        "The same query over the same rows by Millrace, Spark's own operators on RocksDB, and "
        "Flink SQL on heap and RocksDB: windows of a minute, windows of ten minutes every minute, "
        "sessions with a gap of ten seconds, each key once in ten seconds, an inner and a left "
        "join of two halves of the rows within ten seconds, and the ten best rows of each key. "
        "Results are final, but for the best rows, which are updates. All rows that the sides "
        "emit are compared with a batch in DuckDB first. An epoch is a minute of event time, a "
        "million rows; Flink is timed by the clock. Ratios compare rows per second, and `peak_mb` "
        "is the memory of all processes of a side. `growth.A_over_B` divides the times of epochs "
        "that open and end 100,000 windows while A and B are open: lower is better. `tiles` are "
        "look-ups of windows of five minutes, an hour and a day of one key, in one request over "
        "HTTP; `dense` keys have rows in each of the 1440 minutes."
    ),
    "patterns": (
        "[Patterns](patterns.md) over the same rows by Millrace and Flink SQL's MATCH_RECOGNIZE, "
        "on heap and RocksDB: two adjacent rows with a condition on each, three of which each is "
        "larger than the one before, and four low ones followed by one that is compared with their "
        "sum. All rows that the sides emit are compared with window functions of DuckDB first. An "
        "epoch is a minute of event time, a million rows; Flink is timed by the clock."
    ),
    "graphs": (
        "[Operators on graphs](graphs.md) over edges whose ends follow a power law, from an empty "
        "graph on, ten edges for each vertex that there may be, while SQL queries the state. The "
        "state of a smaller run is compared with networkx first."
    ),
    "nexmark": (
        "[NEXMark's queries](nexmark.md) with state, over the same events, by Millrace, Spark's "
        "own operators on RocksDB where they can express them, and Flink SQL on heap. All rows of "
        "every answer are compared with a batch in DuckDB first. Rows are events of all kinds. An "
        "epoch is a million events, ten seconds of event time; Flink is timed by the clock. Each "
        "side makes the events by itself, which is part of its time."
    ),
    "linear-road": (
        "[Linear Road](linear-road.md): `xways` is the most expressways that two cores and two "
        "shards sustain in the last minutes of the three hours, with every answer within 5 seconds "
        "and daily expenditures within 10, by a clock that runs `clock` times as fast as ours. "
        "`growing` is the whole curve on executors of one core, autoscaled from one shard up, and "
        "`failure` a run in which one is killed. All answers are compared with a plain program's. "
        "`arithmetic` divides expressways by what a core sustains, and was not measured. `seep` is "
        "what SEEP published, on other machines."
    ),
    "growth": (
        "Epochs change the same number of keys while the state grows. `growth.A_over_B` divides "
        "two epoch times: lower is better, and 1 is flat."
    ),
    "python": (
        "A count and a sessioniser with timers, written per key in Python: as a `mr.Processor`, "
        "and as a `StatefulProcessor` for PySpark's `transformWithState` in row and in pandas "
        "mode. `millrace_compat` runs the row-mode class unchanged on Millrace. Ratios compare "
        "rows per second. A size at the end of a ratio is the number of keys per epoch on both "
        "sides."
    ),
    "rescale": (
        "2 -> 4 -> 2 executors. Rows arrive at a fixed rate, half of a side's capacity. Millrace "
        "rescales by every strategy; Spark stops, repartitions the checkpoint offline and starts. "
        "Each figure is the worse of the two directions. Latency runs from an event's creation to "
        "the commit of its epoch. An epoch is missed if a trigger passes without one. "
        "`downtime_s` is how much longer than usual the longest gap between two commits is."
    ),
    "rescale-slow-store": (
        "The same on a store as slow as object storage behind 1 Gbit/s: 20 ms and 125 MB/s for "
        "every request (`--store-latency-ms 20 --store-mb-per-s 125`). Spark cannot use such a "
        "store, so its side is left out."
    ),
    "recovery": (
        "SIGKILL hits an executor, or only its Python workers, under the load of `rescale`. "
        "`seconds` is the time until latency is back within 1.25 times its earlier value, with "
        "and without a standby. Spark's own stateful query suffers the same kill."
    ),
    "limits": (
        "State of more than ten times its byte budget (`memory=`), compared with a budget it never "
        "reaches and with few keys; a map of a million entries; a million timers due in one epoch; "
        "epochs in which one key has 90 % of the rows; 4,096 key groups; a value of 100 MB. "
        "`worker_anon_mb` is the memory of the largest Python worker without mapped files."
    ),
    "fingerprints": (
        "A keyed count on a new location, whose keys cannot be made to collide, beside one on a "
        "location of format 1. Ratios are medians of pairs of turns in one JVM. `noise` compares "
        "a second new location with the first."
    ),
    "endurance": (
        "Thousands of small epochs with readers, a view, `millrace serve` and the live page open. "
        "Files of the location by folder; memory without mapped files, threads and descriptors of "
        "every process. `first` and `last` are medians of an early and a late part of the run, "
        "`slope` is the rise per 1,000 epochs."
    ),
    "soak": (
        "A query under kills, zombies, a failing store and disk, clock jumps and rescales, "
        "compared with a batch run: [what it does](reliability.md#soak)."
    ),
    "state-types": (
        "Each kind of state alone, on the state layer without Spark: "
        "[the tables and the plot](state-types.md)."
    ),
    "query": (
        "SQL on the state of a keyed count, and Spark's `statestore` reader on the same rows: a "
        "scan of all keys, one column, one key. `*_s` is the time from opening to the answer; "
        "`*_warm_s` uses a reader that stays open. `slowdown_percent` is how much longer a "
        "stream's epochs on one core take while queries run back to back on the other."
    ),
    "latency": (
        "Event latency at shares of the smaller of the two capacities. Epochs run back to back, at "
        "the same rates for both sides. `shown` runs from when the source shows a row to the "
        "commit of its epoch; `made` also includes the wait for the source, up to a second. Of the "
        "parts of a batch (medians), `triggerExecution` is the whole, and `addBatch` is what Spark "
        "hands to the query. Within `addBatch`, Millrace's `epoch.*` follow each other on the "
        "driver. `shard.*` are parts of `epoch.run`, of the slowest shard."
    ),
    "backends": (
        "The same operations on state engines in a process each, without a stream around them: "
        "Millrace with the user's Python for each key (`millrace`) and without "
        "(`millrace_table`, values only), a Python dict that is pickled, RocksDB by rocksdict, "
        "Redis over loopback with pipelines, and Spark's RocksDB state store inside its JVM. "
        "[When which is the better choice](state-engines.md). Columns are kinds of state and "
        "numbers of keys. The totals of all keys are compared after updates, after restoring and "
        "after dividing and uniting."
    ),
    "stores": (
        "The keyed count of `rescale` with its location on a local disk, in a bucket and on HDFS, "
        "servers on the same machine; `slow` adds 20 ms and 125 MB/s to every request. Requests "
        "are those of the driver and all shards per epoch of a steady run; `spark_` are Spark's "
        "own logs, which on a local disk nobody counts, and `inbox_` looks for requests to the "
        "query, by the clock. Rescales are 2 -> 4 -> 2 executors by the "
        "strategy `live`, the worse of the two directions."
    ),
    "end-to-end": (
        "A count per key from a topic of Kafka to a topic, at fixed rates of events. Latency runs "
        "from the event's hand-over to the producer's client to the moment when a reader of "
        "committed records has a record that includes it, for every event. `millrace` writes "
        "exactly once; the others at least once. Broker, producer, consumer and engine share the "
        "machine. A ratio above 1 says that the other's events take longer than those of the "
        "exactly-once sink."
    ),
    "realtime": (
        "A count per key from a topic of Kafka to a topic, with Spark's real-time trigger: epochs "
        "of 10 seconds, events at the boundary of two of them included; `within` is one long "
        "epoch. State has all keys before the first event. Latency runs from the event's "
        "hand-over to the producer's client to the moment when a reader of committed records has "
        "a record that includes it, for every event; all sides write at least once. `sustained` "
        "is a burst of events, Millrace's rows per second over Spark's. Broker, producer, "
        "consumer and engine share the machine."
    ),
    "serve": (
        "`millrace serve` on one core, and a client on another that looks up keys at random: one "
        "request at a time, several at a time, batches over Arrow Flight, and during commits. "
        "`epoch_visible_ms` is the longest time from an epoch's commit to the first answer from "
        "it."
    ),
    "placement": (
        "A keyed count on two executors while nothing moves. `fixed` has the fewest key groups "
        "possible and leaves placement to Spark, as a query with fixed partitions does; `unplaced` "
        "has 256 key groups and leaves placement to Spark."
    ),
}

BACKEND_MEASURES = {
    "updates_per_s": "updates per second",
    "reads_per_s": "point reads per second",
    "scan_keys_per_s": "keys scanned per second",
    "checkpoint_ms": "checkpoint, ms",
    "checkpoint_bytes": "checkpoint, bytes",
    "restore_ms": "restore, ms",
    "repartition_ms": "repartition 1 to 4, ms",
    "merge_ms": "merge 4 to 1, ms",
    "peak_mb": "peak memory, MB",
}
"""What `backends` measures, and how it is headed."""

MOVES = (
    "p99_before_s|p99_during_s|p99_during_over_before|downtime_s|duration_s|epochs_missed|seconds"
)
BY_MOVE = rf"\w+\.(?P<row>\w+)\.(?P<column>{MOVES})$"
GRIDS: dict[str, dict[str, str]] = {
    "throughput": {
        "rows/s, by keys": r"rows_per_s\.(?P<row>\w+)\.(?P<column>\w+)$",
        "epoch of 1,000 rows": r"(?P<column>epoch_ms)\.(?P<row>\w+)\.1k$",
    },
    "nexmark": {
        "rows/s": r"rows_per_s\.(?P<row>q\d+)\.(?P<column>[a-z-]+)$",
        "Millrace over": r"nexmark\.(?P<row>q\d+)\.(?P<column>[a-z-]+)$",
        "CPU s per million rows": r"cpu_s_per_m_rows\.(?P<row>q\d+)\.(?P<column>[a-z-]+)$",
        "peak memory, MB": r"peak_mb\.(?P<row>q\d+)\.(?P<column>[a-z-]+)$",
    },
    "linear-road": {
        "seconds from report to answer": (
            r"linear-road\.(?P<row>L\d+|growing|failure)\.(?P<column>\w+\.(?:p50|p99|max)_s)$"
        ),
    },
    "operators": {
        f"{heading}, by side and keys": rf"{figure}\.(?P<row>\w+)\.(?P<column>[\w-]+\.\d+\w)$"
        for heading, figure in (
            ("rows/s", "rows_per_s"),
            ("peak memory, MB", "peak_mb"),
            ("MB written per million rows", "written_mb_per_m_rows"),
        )
    }
    | {"open windows, look-ups": r"(?P<column>)(?P<row>(?:open_windows|eviction|tiles)\..+)$"},
    "patterns": {
        f"{heading}, by side and keys": rf"{figure}\.(?P<row>\w+)\.(?P<column>[\w-]+\.\d+\w)$"
        for heading, figure in (
            ("rows/s", "rows_per_s"),
            ("rows/s per core", "rows_per_s_per_core"),
            ("peak memory, MB", "peak_mb"),
        )
    },
    "graphs": {
        "edges": (
            r"(?P<column>edges_per_s|last_epoch_ms|peak_mb|queries_beside|query_s)"
            r"\.(?P<row>\w+\.\w+)$"
        )
    },
    "growth": {
        "by keys": (
            r"(?P<row>epoch_ms|state_layer_ms|open_s|open_unmerged_s|first_lookup_s|merged_rows"
            r"|write_amplification_aged)\.(?P<column>\w+)$"
        )
    },
    "python": {"rows/s, by program and keys": r"rows_per_s\.(?P<row>\w+)\.(?P<column>\w+\.\w+)$"},
    "rescale": {"strategy": BY_MOVE},
    "rescale-slow-store": {"strategy": BY_MOVE},
    "recovery": {"killed": BY_MOVE},
    "backends": {
        heading: rf"{figure}\.(?P<row>\w+)\.(?P<column>[a-z]+\.\w+)$"
        for figure, heading in BACKEND_MEASURES.items()
    },
    "stores": {
        "epoch, ms": r"epoch_ms\.(?P<row>\w+)\.(?P<column>p\d+)$",
        "requests per epoch": r"requests_per_epoch\.(?P<row>\w+)\.(?P<column>\w+)$",
        "live rescale": BY_MOVE,
    },
    "end-to-end": {
        "latency, ms, by events/s": r"latency_ms\.(?P<row>[a-z-]+)\.(?P<column>\w+\.\w+)$",
        "events/s taken": r"rows_per_s\.(?P<row>[a-z-]+)\.(?P<column>\w+)$",
    },
    "realtime": {
        "latency, ms": r"latency_ms\.(?P<row>[a-z-]+\.\w+\.\w+\.\w+)\.(?P<column>\w+)$",
        "rows/s of a burst": r"(?P<column>rows_per_s)\.(?P<row>[a-z-]+)$",
    },
    "limits": {
        "byte budget": r"budget\.(?P<column>\w+_\w+)\.(?P<row>few_keys|small_budget|large_budget)$",
        "hot key, key groups": r"(?:hot|groups)\.(?P<column>epoch_ms)\.(?P<row>\w+)$",
        "map, timers, value": r"(?P<column>)(?P<row>(?:map|timers|value)\..+)$",
    },
    "fingerprints": {
        "ratio": r"(?P<row>cpu|noise)\.(?P<column>\w+\.\w+)$",
        "rows/s": r"rows_per_s\.(?P<row>\w+)\.(?P<column>\w+\.\w+)$",
        "CPU s per epoch": r"cpu_s_per_epoch\.(?P<row>\w+)\.(?P<column>\w+\.\w+)$",
    },
    "endurance": {"what may grow": r"(?P<row>.+)\.(?P<column>first|last|slope)$"},
    "soak": {},
    "query": {
        "seconds": r"(?P<row>\w+_s)\.(?P<column>spark|millrace)\.\w+$",
        "the stream's epochs": r"(?P<column>epoch_ms)\.(?P<row>\w+)\.\w+$",
    },
    "latency": {
        "ms, by load in %": r"latency\.(?P<row>\w+\.\d+)\.(?P<column>\w+_ms)$",
        "Spark over Millrace, by load in %": (
            r"latency\.spark\.(?P<row>\d+)\.(?P<column>\w+_(?:p50|p99|max))$"
        ),
        "part of a batch, ms": r"epoch_ms\.(?P<column>\w+\.\d+)\.(?P<row>(?!getBatch).+)$",
    },
    "placement": {"placement": r"placement\.(?P<column>rows_per_s|epoch_ms)\.(?P<row>.+)$"},
}
"""Benchmark -> a heading, and which of its figures a table shows in which row and column."""

MEASURES = {
    "updates_per_s": ("Updates per second", "Each key's state is read and changed once."),
    "reads_per_s": ("Point reads per second", "One entry of each key's state is read."),
    "scan_rows_per_s": ("Rows scanned per second", "All rows to Arrow."),
    "repartition_rows_per_s": (
        "Rows repartitioned per second",
        "Four new shards take over from one: they open the key groups from the log and look up "
        "a row in each. Nothing is rewritten, so the size of the state is no limit.",
    ),
    "merge_rows_per_s": (
        "Rows merged per second",
        "A new base of all key groups is written to a file.",
    ),
    "checkpoint_ms": (
        "Milliseconds per checkpoint",
        "What an epoch changed is composed and stored, merges included.",
    ),
    "checkpoint_bytes": ("Bytes per checkpoint", "What it writes."),
    "state_bytes": ("Bytes of the whole state", "All rows, merged."),
}
"""What `state-types` measures: its figure, a heading, and what it means."""

NO_BENCHMARKS = {"mutation.json"}
"""Figures that are published but do not compare anything."""

Results = Mapping[str, Mapping[str, Any]]


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in a folder, by name, in the order of the pages."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith(".timelines.json") or path.name in NO_BENCHMARKS:
            # What a picture was drawn from lies beside its result.
            continue
        try:
            result = json.loads(path.read_text())
            missing = [field for field in FIELDS if field not in result]
        except (ValueError, TypeError) as error:
            raise BenchmarkError(f"{path} is not a benchmark's result: {error}") from error
        if missing:
            raise BenchmarkError(f"{path} is not a benchmark's result: it has no {missing[0]!r}.")
        found[result["name"]] = result
    if not found:
        raise BenchmarkError(
            f"there are no results in {folder}. Run `millrace bench all` first, or name another "
            "folder with --results."
        )
    known = [name for name in ORDER if name in found]
    return {name: found[name] for name in [*known, *sorted(found.keys() - set(known))]}


def pages(results: Results, images: Iterable[str] = ()) -> dict[str, str]:
    """The text of every page, by its name in the folder of the documents."""
    shown = set(images)
    made = {"benchmarks.md": benchmarks_page(results, shown)}
    if "state-types" in results:
        made["state-types.md"] = state_types_page(results["state-types"], shown)
    return made


def benchmarks_page(results: Results, images: set[str]) -> str:
    parts = [
        NOTICE,
        "# Benchmarks",
        "Every benchmark compares the outputs of all sides before their times. A ratio above 1 "
        "favours Millrace unless its description says otherwise. To run all benchmarks and "
        "rebuild these pages and the table in the README:",
        "    make peers\n    millrace bench all\n    millrace bench report --readme README.md",
        "This page shows what people compare. Every figure is in the JSON files in "
        "`src/millrace_lab/results`.",
        "## Summary",
        summary(results),
    ]
    for name, result in results.items():
        about = ABOUT.get(name, f"`millrace bench {name}`.")
        parts += [f"## {name}", f"{about}\n{_where(result)}"]
        if name == "state-types":
            continue
        if f"{name}.png" in images:
            parts.append(f"![{name}](images/{name}.png)")
        if name == "peers":
            parts += _report_peers.tables(result)
        else:
            parts += _figures(name, result)
    return "\n\n".join(parts) + "\n"


def state_types_page(result: Mapping[str, Any], images: set[str]) -> str:
    figures = result["figures"]
    first = next(iter(MEASURES))
    kinds, sizes = _kinds_and_sizes(figures, first)
    parts = [
        NOTICE,
        "# What each kind of state costs",
        "Measured on the state layer alone, in one process on one core: the work of one shard "
        "without Spark around it. The columns are numbers of keys. A list, map or set has four "
        "entries per key. An epoch changes all keys, up to "
        f"{_most(figures, 'updates_per_checkpoint'):,.0f}.",
        _where(result),
    ]
    if "state-types.png" in images:
        parts.append("![What each kind of state costs](images/state-types.png)")
    for measure, (heading, meaning) in MEASURES.items():
        rows = [
            (kind, *(number(figures[f"{measure}.{kind}.{size}"]) for size in sizes))
            for kind in kinds
        ]
        parts += [f"## {heading}", meaning, table(("state", *sizes), rows)]
    big = [name.removeprefix("big.ms.") for name in figures if name.startswith("big.ms.")]
    if big:
        parts += [
            "## Large collections",
            "An epoch changes one entry of a large list, map or set. It should cost what it "
            "touches, not what there is. Bytes are means over the epochs, merges included.",
            table(
                ("change", "entries", "ms", "bytes written"),
                [
                    (
                        name.split(".")[0].replace("_", ": "),
                        name.split(".")[1].replace("_over_", " over "),
                        number(figures[f"big.ms.{name}"]),
                        number(figures[f"big.bytes.{name}"]),
                    )
                    for name in big
                ],
            ),
        ]
        parts += _ratios(result, result["ratios"])
    return "\n\n".join(parts) + "\n"


def _kinds_and_sizes(figures: Mapping[str, float], measure: str) -> tuple[list[str], list[str]]:
    names = [n.split(".")[1:] for n in figures if n.startswith(f"{measure}.")]
    kinds = dict.fromkeys(kind for kind, _ in names)
    return list(kinds), list(dict.fromkeys(size for _, size in names))


def _most(figures: Mapping[str, float], measure: str) -> float:
    return max((v for n, v in figures.items() if n.startswith(f"{measure}.")), default=0)


def _where(result: Mapping[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    equal = "outputs equal" if result["equal"] else "**outputs differ: the times mean nothing**"
    return (
        f"{result['date'][:10]}, {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory_gib']} GiB; {listed}; {equal}."
    )


def _ratios(result: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """These ratios, and all bars, in one table: many a bar is a target for a ratio."""
    rows = {name: (number(result["ratios"][name]), "", "") for name in names}
    for bar in result["bars"]:
        reached = "yes" if bar["ok"] else "**no**"
        rows[bar["name"]] = (number(bar["value"]), number(bar["target"]), reached)
    listed = [(f"`{name}`", *row) for name, row in rows.items()]
    return [table(("ratio or bar", "value", "target", "reached"), listed)] if listed else []


def _figures(name: str, result: Mapping[str, Any]) -> list[str]:
    """The grids of a benchmark with its bars; all that there is of one without grids."""
    if name in GRIDS:
        made = (_grid(result, heading, shown) for heading, shown in GRIDS[name].items())
        return [*_ratios(result, ()), *filter(None, made)]
    bars = {bar["name"] for bar in result["bars"]}
    left = {n: v for n, v in result["figures"].items() if n not in bars}
    rows = [(f"`{figure}`", number(value)) for figure, value in left.items()]
    listed = [table(("figure", "value"), rows)] if rows else []
    return [*_ratios(result, result["ratios"]), *listed]


def _grid(result: Mapping[str, Any], heading: str, shown: str) -> str:
    """A table of what matches by name, in the rows and columns that the names give."""
    cells: dict[str, dict[str, str]] = {}
    for name, value in [*result["figures"].items(), *result["ratios"].items()]:
        if match := re.match(shown, name):
            cells.setdefault(match["row"], {})[match["column"]] = number(value)
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    rows = [(f"`{name}`", *(row.get(c, "") for c in columns)) for name, row in cells.items()]
    return table((heading, *columns), rows) if rows else ""


def with_summary(readme: str, results: Results) -> str:
    """The README with its table of results replaced."""
    note = (
        "Medians; all sides ran on the same machine with equal outputs. A ratio above 1 favours "
        "Millrace.\nMade by `millrace bench report`; [all benchmarks](docs/benchmarks.md)."
    )
    return _replaced(readme, BEGIN, f"{summary(results)}\n\n{note}", END)


def with_soak(page: str, result: Mapping[str, Any]) -> str:
    """The page about reliability with the figures of the last soak replaced."""
    counts = [("epochs", result["epochs"]), ("rows", result["rows"])]
    counts += [("drivers started again", result["restarts"])]
    for heading, part in SOAK_PARTS.items():
        # Results from before there was something beside the query lack that part.
        if part not in result:
            continue
        counts += [(f"**{heading}**", sum(result[part].values())), *result[part].items()]
    counts += [(f"**{name}**", len(result[name])) for name in ("problems", "mismatches")]
    made = [
        f"The latest run, {result['figures']['seconds'] / 60:.0f} minutes: `{result['command']}`",
        _where(result),
        table(("", "number"), [(name, f"{count:,}") for name, count in counts]),
        "Made by `millrace bench report` from `src/millrace_lab/results/soak.json`.",
    ]
    return _replaced(page, SOAK_BEGIN, "\n\n".join(made), SOAK_END)


SOAK_PARTS = {
    "disturbances": "disturbances",
    "how drivers ended": "ends",
    "what Spark did": "spark",
    "beside the query": "beside",
    "rows compared": "compared",
}


def _replaced(text: str, begin: str, made: str, end: str) -> str:
    """A text with what is between two marks replaced."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise BenchmarkError(f"there is no place for the results: {begin} ... {end}")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"
