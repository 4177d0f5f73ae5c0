"""Pages made of results: `docs/benchmarks.md`, `docs/state-types.md`, and the README's table.

Everything is a function of the files that `millrace bench` wrote: no number is typed by hand. A
benchmark that has no file is left out; one that this module knows nothing about gets its ratios,
bars and figures in plain tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from millrace.bench import _peers_section
from millrace.bench._contract import BenchmarkError
from millrace.bench._markdown import number, table
from millrace.bench.latency import PARTS_OF

ORDER = (
    "throughput",
    "peers",
    "growth",
    "python",
    "state-types",
    "rescale",
    "rescale-slow-store",
    "recovery",
    "limits",
    "soak",
    "query",
    "serve",
    "latency",
)
FIELDS = ("name", "equal", "figures", "ratios", "bars", "machine", "versions", "date")
BEGIN = "<!-- benchmark-results: begin -->"
END = "<!-- benchmark-results: end -->"
SOAK_BEGIN = "<!-- soak-results: begin -->"
SOAK_END = "<!-- soak-results: end -->"
NOTICE = "<!-- Made by `millrace bench report` of the files in bench/results. Do not edit. -->"

ABOUT = {
    "throughput": (
        "A keyed count over the same rows: Millrace, Spark's own streaming aggregation on RocksDB, "
        "PySpark's `transformWithState`, and the ceiling: the same rows to Python and back, with "
        "nothing done to them."
    ),
    "peers": _peers_section.ABOUT,
    "growth": (
        "Epochs that change the same number of keys, on states of growing size. `growth.A_over_B` "
        "is the quotient of two epoch times, so lower is better; 1 is flat."
    ),
    "python": (
        "A count and a sessioniser with timers, written per key in Python: as a `mr.Processor`, "
        "and as a `StatefulProcessor` for PySpark's `transformWithState` in row and in pandas "
        "mode. `millrace_compat` is the row-mode class on Millrace, as it is. A ratio is one of "
        "rows per second; with a size at its end, of epochs with so many keys on both sides."
    ),
    "rescale": (
        "2 -> 4 -> 2 executors under rows that come at a fixed rate, half of what a side can take, "
        "by every strategy and by Spark's own way: stop, repartition the checkpoint offline, "
        "start. `out` is 2 -> 4, `in` is 4 -> 2; without either, the worse of the two. Latency is "
        "by event, from its making to the commit of its epoch. An epoch is missed if a trigger "
        "passes without one. `downtime_s` is how much longer the longest gap between two commits "
        "is than usual."
    ),
    "rescale-slow-store": (
        "The same on a store as slow as object storage behind 1 Gbit/s: 20 ms and 125 MB/s for "
        "every request (`--store-latency-ms 20 --store-mb-per-s 125`). Spark's side cannot be "
        "given such a store and is left out."
    ),
    "recovery": (
        "SIGKILL of an executor, or of its Python workers alone, under the same load as in "
        "`rescale`: seconds until latency is back within 1.25 times of before, with and without a "
        "standby, beside Spark's own stateful query under the same kill."
    ),
    "limits": (
        "State of more than ten times its byte budget (`memory=`), beside a budget it never "
        "reaches and beside few keys; a map of a million entries, a million timers due in one "
        "epoch, epochs in which one key has 90 % of the rows, 4,096 key groups, and a value of "
        "100 MB. `worker_anon_mb` is the memory of the largest Python worker, mapped files aside."
    ),
    "soak": (
        "A query under kills, zombies, a failing store and disk, clock jumps and rescales, "
        "compared with a batch run: [what it does](reliability.md#soak)."
    ),
    "state-types": (
        "Each kind of state by itself, on the state layer without Spark: "
        "[the tables and the plot](state-types.md)."
    ),
    "query": (
        "SQL on a keyed count's state, beside Spark's `statestore` reader on the same rows: a scan "
        "of all keys, one column, one key. `*_s` is from opening to the answer, `*_warm_s` with a "
        "reader that stays open. `slowdown_percent` is how much longer a stream's epochs on one "
        "core are while queries run back to back on the other."
    ),
    "latency": (
        "Event latency at shares of the smaller of the two capacities, epochs back to back, the "
        "same rates for both sides. `shown` is from when the source shows a row to the commit of "
        "its epoch; `made` has the wait for the source in it, up to a second, too."
    ),
    "serve": (
        "`millrace serve` on one core, and a client on another that asks for keys drawn uniformly: "
        "one question at a time, several at a time, batches over Arrow Flight, and while epochs "
        "are committed. `epoch_visible_ms` is the longest time from an epoch's commit to the first "
        "answer from it."
    ),
}

MEASURES = {
    "updates_per_s": ("Updates per second", "A state is read and changed, once per key."),
    "reads_per_s": ("Point reads per second", "One thing in a state is looked at, once per key."),
    "scan_rows_per_s": ("Rows scanned per second", "All rows to Arrow."),
    "repartition_rows_per_s": (
        "Rows repartitioned per second",
        "Four new shards take over what one had: they open the key groups from the log and look up "
        "a row in each. State is not rewritten, so this is not bound by its size.",
    ),
    "merge_rows_per_s": ("Rows merged per second", "A new base of all key groups, in a file."),
    "checkpoint_ms": (
        "Milliseconds per checkpoint",
        "Composing and storing what an epoch changed, merges included.",
    ),
    "checkpoint_bytes": ("Bytes per checkpoint", "What it writes."),
    "state_bytes": ("Bytes of the whole state", "All rows, merged."),
}
"""What `state-types` measures: its figure, a heading, and what it means."""

Results = Mapping[str, Mapping[str, Any]]


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in a folder, by name, in the order of the pages."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith(".timelines.json"):
            # What a picture was drawn from; it lies beside its result.
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
        "Every benchmark compares the outputs of all sides before their times. A ratio above 1 is "
        "in favour of Millrace, unless it says otherwise. To run them all and make these pages, "
        "and the table in the README:",
        "    make peers\n    millrace bench all\n    millrace bench report --readme README.md",
    ]
    for name, result in results.items():
        parts += [f"## {name}", ABOUT.get(name, f"`millrace bench {name}`."), _where(result)]
        if f"{name}.png" in images and name != "state-types":
            parts.append(f"![{name}](images/{name}.png)")
        parts += _bars(result)
        if name == "latency":
            parts += _epoch_parts(result)
        if name == "peers":
            parts += _peers_section.tables(result)
        elif result["ratios"]:
            rows = [(f"`{n}`", number(v)) for n, v in result["ratios"].items()]
            parts.append(table(("ratio", "value"), rows))
        if name != "state-types":
            parts += _figures(result)
    return "\n\n".join(parts) + "\n"


def state_types_page(result: Mapping[str, Any], images: set[str]) -> str:
    figures = result["figures"]
    first = next(iter(MEASURES))
    kinds, sizes = _kinds_and_sizes(figures, first)
    parts = [
        NOTICE,
        "# What each kind of state costs",
        "On the state layer alone, in one process on one core: with Spark around it, this is what "
        "one shard does. The columns are numbers of keys; a list, map or set has four entries per "
        "key. An epoch changes all keys, but at most "
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
            "An epoch that changes one entry of a list, map or set of so many entries: it must "
            "cost what is touched. Bytes are means over the epochs, with what they merge.",
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
        parts += _bars(result)
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


def _bars(result: Mapping[str, Any]) -> list[str]:
    rows = [
        (f"`{b['name']}`", number(b["value"]), number(b["target"]), "yes" if b["ok"] else "**no**")
        for b in result["bars"]
    ]
    return [table(("bar", "value", "target", "reached"), rows)] if rows else []


def _epoch_parts(result: Mapping[str, Any]) -> list[str]:
    """What a batch of each side is made of, by load."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for name, value in result["figures"].items():
        kind, _, rest = name.partition(".")
        if kind == PARTS_OF:
            side, load, part = rest.split(".", 2)
            found.setdefault((side, load), {})[part] = value
    if not found:
        return []
    names = list(dict.fromkeys(part for parts in found.values() for part in parts))
    rows = [
        (f"`{name}`", *(number(p[name]) if name in p else "" for p in found.values()))
        for name in names
    ]
    return [
        "What a batch is made of, in milliseconds: medians of Spark's own parts, of which "
        "`triggerExecution` is the whole and `addBatch` what it hands to the query; within that, "
        "for Millrace, `epoch.*` on the driver one after the other, and `shard.*` within "
        "`epoch.run`, of the slowest shard.",
        table(("part", *(f"{side}, {load} %" for side, load in found)), rows),
    ]


def _figures(result: Mapping[str, Any]) -> list[str]:
    rows = [(f"`{name}`", number(value)) for name, value in result["figures"].items()]
    if not rows:
        return []
    heading = "<details><summary>All figures</summary>"
    return [heading, table(("figure", "value"), rows), "</details>"]


README_ROWS = (
    # Result, what is shown, at which size, Millrace's figure, the peer and its figure, the ratio.
    (
        "throughput",
        "keyed count, rows/s",
        "100,000",
        "rows_per_s.millrace.100k",
        ("Spark on RocksDB", "rows_per_s.spark_rocksdb.100k"),
        "throughput.spark_rocksdb.100k",
    ),
    (
        "throughput",
        "keyed count, rows/s",
        "5 million",
        "rows_per_s.millrace.5m",
        ("Spark on RocksDB", "rows_per_s.spark_rocksdb.5m"),
        "throughput.spark_rocksdb.5m",
    ),
    (
        "throughput",
        "keyed count, rows/s",
        "100,000",
        "rows_per_s.millrace.100k",
        ("PySpark `transformWithState`, the same epochs", "rows_per_s.pyspark_tws_full.100k"),
        "throughput.pyspark_tws_full.100k",
    ),
    (
        "throughput",
        "an epoch of 1,000 rows, ms",
        "100,000",
        "epoch_ms.millrace.1k",
        ("Spark on RocksDB", "epoch_ms.spark_rocksdb.1k"),
        "latency.spark_rocksdb.1k",
    ),
    (
        "latency",
        "a row's latency at half of Spark's capacity, p50, ms",
        "100,000",
        "latency.millrace.50.shown_p50_ms",
        ("Spark on RocksDB", "latency.spark.50.shown_p50_ms"),
        "latency.spark.50.shown_p50",
    ),
    (
        "peers",
        "keyed count and sum, rows/s, epochs of a million rows",
        "1 million",
        "rows_per_s.millrace-aggregate.1m",
        ("Flink SQL, heap", "rows_per_s.flink-sql-heap.1m"),
        "peers.flink-sql-heap.1m",
    ),
    (
        "peers",
        "keyed count and sum, rows/s, epochs of a million rows",
        "1 million",
        "rows_per_s.millrace-aggregate.1m",
        ("Flink SQL, RocksDB", "rows_per_s.flink-sql-rocksdb.1m"),
        "peers.flink-sql-rocksdb.1m",
    ),
    (
        "python",
        "per-key Python, a count, rows/s",
        "100,000",
        "rows_per_s.millrace.count.100k",
        ("PySpark `transformWithState`", "rows_per_s.pyspark_row.count.100k"),
        "python.count.pyspark_row",
    ),
    (
        "python",
        "per-key Python, sessions, rows/s",
        "100,000",
        "rows_per_s.millrace.sessions.100k",
        ("PySpark `transformWithState`", "rows_per_s.pyspark_row.sessions.100k"),
        "python.sessions.pyspark_row",
    ),
    (
        "rescale",
        "2 → 4 → 2 executors, seconds without output (below 1 counts as 1)",
        "5 million",
        "rescale.live.downtime_s",
        ("Spark: stop, repartition, start", "rescale.spark.downtime_s"),
        "rescale.downtime.spark_over_live",
    ),
    (
        "recovery",
        "an executor is killed, seconds until latency is back",
        "5 million",
        "recovery.executor.seconds",
        ("Spark on RocksDB, at a lower rate", "recovery.spark_executor.seconds"),
        "recovery.spark_over_executor",
    ),
    (
        "query",
        "SQL over the whole state, s",
        "5 million",
        "scan_s.millrace.5m",
        ("Spark's `statestore` reader", "scan_s.spark.5m"),
        "scan.5m",
    ),
)


def readme_table(results: Results) -> str:
    """The table of the README, of the results that there are."""
    rows = []
    for name, what, keys, own, (peer, theirs), ratio in README_ROWS:
        result = results.get(name)
        if result is None or not result["equal"]:
            continue
        figures, ratios = result["figures"], result["ratios"]
        if own in figures and theirs in figures and ratio in ratios:
            shown = f"{peer}: {number(figures[theirs])}"
            rows.append((what, keys, number(figures[own]), shown, number(ratios[ratio])))
    return table(("benchmark", "keys", "Millrace", "peer", "ratio"), rows)


def with_table(readme: str, made: str) -> str:
    """The README with its table of results replaced."""
    note = (
        "Medians, all sides on the same machine, outputs equal; a ratio above 1 is in favour of "
        "Millrace.\nMade by `millrace bench report`; [all figures](docs/benchmarks.md)."
    )
    return _replaced(readme, BEGIN, f"{made}\n\n{note}", END)


def with_soak(page: str, result: Mapping[str, Any]) -> str:
    """The page about reliability with the figures of the last soak replaced."""
    counts = [("epochs", result["epochs"]), ("rows", result["rows"])]
    counts += [("drivers started again", result["restarts"])]
    for heading, part in SOAK_PARTS.items():
        counts += [(f"**{heading}**", sum(result[part].values())), *result[part].items()]
    counts += [(f"**{name}**", len(result[name])) for name in ("problems", "mismatches")]
    made = [
        f"The last one, {result['figures']['seconds'] / 60:.0f} minutes: `{result['command']}`",
        _where(result),
        table(("", "number"), [(name, f"{count:,}") for name, count in counts]),
        "Made by `millrace bench report` of `bench/results/soak.json`.",
    ]
    return _replaced(page, SOAK_BEGIN, "\n\n".join(made), SOAK_END)


SOAK_PARTS = {
    "disturbances": "disturbances",
    "how drivers ended": "ends",
    "what Spark did": "spark",
    "rows compared": "compared",
}


def _replaced(text: str, begin: str, made: str, end: str) -> str:
    """A text with what is between two marks replaced."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise BenchmarkError(f"there is no place for the results: {begin} ... {end}")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"
