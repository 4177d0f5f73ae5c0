"""Operators and whole programs, beside Spark and other engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from millrace_lab.bench.cli._group import (
    bench,
    flink_option,
    images_option,
    some_minutes,
    timed_option,
)
from millrace_lab.bench.cli._running import benchmark
from millrace_lab.bench.cli._types import Cases, Patterns, Queries, Sides, Size, Sizes


@benchmark(
    bench,
    "peers",
    click.option("--quick", is_flag=True, help="Smaller sizes: about two minutes."),
)
@click.option(
    "--peers",
    "sides",
    type=Sides(),
    default=None,
    help="Which ones to compare: spark-rocksdb, spark-hdfs, pyspark-row, pyspark-pandas, "
    "flink-sql-heap, flink-sql-rocksdb, pyflink-heap, pyflink-rocksdb, bytewax, pathway.  "
    "[default: all]",
)
@click.option("--keys", type=Sizes(), default="100k,1m", show_default=True, help="Sizes of state.")
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Rows per epoch.")
@click.option(
    "--windows", type=click.IntRange(min=1), default=5, show_default=True, help="Timed per side."
)
@click.option(
    "--environments",
    type=click.Path(file_okay=False, path_type=Path),
    default=".peers",
    show_default=True,
    help="Where `make peers` has put the environments of the others.",
)
def peers_command(
    sides: tuple[str, ...] | None,
    keys: tuple[int, ...],
    rows: int,
    windows: int,
    environments: Path,
) -> Any:
    """Millrace beside other stream processors: a count and a sum per key.

    Spark's own aggregation and transformWithState, Flink SQL, PyFlink, Bytewax and Pathway: rows
    per second, CPU seconds and memory. Those that are not Spark need environments of their own,
    which `make peers` makes; sides whose environment is missing are named and left out. Slow sides
    are timed only at the first size.

    \b
    Examples:
      millrace bench peers --quick
      millrace bench peers --json peers.json
      millrace bench peers --peers spark-rocksdb,flink-sql-heap --keys 100k
    """
    from millrace_lab.bench import peers
    from millrace_lab.bench._peer_sides import NAMES

    return peers.Options(
        sides=sides or NAMES, keys=keys, rows=rows, windows=windows, environments=environments
    )


@benchmark(
    bench,
    "operators",
    some_minutes,
)
@click.option(
    "--cases", type=Cases(), default=None, help="Which operators, by name.  [default: all]"
)
@click.option("--keys", type=Sizes(), default="100k,1m", show_default=True, help="Sizes of state.")
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Rows per epoch.")
@timed_option
@click.option("--peers/--no-peers", default=True, help="Also run the others.  [default: on]")
@click.option(
    "--growth/--no-growth",
    default=True,
    help="Also measure open windows, eviction and look-ups.  [default: on]",
)
@flink_option
def operators_command(
    cases: tuple[str, ...] | None,
    keys: tuple[int, ...],
    rows: int,
    epochs: int,
    peers: bool,
    growth: bool,
    environments: Path,
) -> Any:
    """Windows, sessions, deduplication, joins and best rows beside Spark's own on RocksDB and Flink
    SQL on heap and RocksDB.

    Rows per second, CPU seconds, memory and bytes written. Then epochs beside millions of open
    windows, an epoch that ends a million, and look-ups of windows of three lengths over HTTP.

    \b
    Examples:
      millrace bench operators --quick
      millrace bench operators --json operators.json
      millrace bench operators --cases session,top --keys 100k --no-growth
    """
    from millrace_lab.bench import operators

    return operators.Options(
        cases=cases or operators.Options.cases,
        keys=keys,
        rows=rows,
        epochs=epochs,
        peers=peers,
        growth=growth,
        environments=environments,
    )


@benchmark(
    bench,
    "patterns",
    some_minutes,
)
@click.option(
    "--cases", type=Patterns(), default=None, help="Which patterns, by name.  [default: all]"
)
@click.option("--keys", type=Sizes(), default="100k", show_default=True, help="Numbers of keys.")
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Rows per epoch.")
@timed_option
@click.option("--peers/--no-peers", default=True, help="Also run Flink.  [default: on]")
@flink_option
def patterns_command(
    cases: tuple[str, ...] | None,
    keys: tuple[int, ...],
    rows: int,
    epochs: int,
    peers: bool,
    environments: Path,
) -> Any:
    """Three patterns beside Flink SQL's MATCH_RECOGNIZE on heap and RocksDB.

    Rows per second, also per core, CPU seconds, memory and bytes written.

    \b
    Examples:
      millrace bench patterns --quick
      millrace bench patterns --json patterns.json
      millrace bench patterns --cases rising --no-peers
    """
    from millrace_lab.bench import patterns

    return patterns.Options(
        cases=cases or patterns.Options.cases,
        keys=keys,
        rows=rows,
        epochs=epochs,
        peers=peers,
        environments=environments,
    )


@benchmark(
    bench,
    "graphs",
    some_minutes,
)
@click.option(
    "--case",
    "cases",
    multiple=True,
    type=click.Choice(["degrees", "components", "bipartite", "triangles", "triangles_sampled"]),
    help="What is computed; may be given several times.  [default: all]",
)
@click.option("--edges", type=Size(), default="10m", show_default=True, help="Edges of the graph.")
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Edges per epoch.")
def graphs_command(cases: tuple[str, ...], edges: int, rows: int) -> Any:
    """Operators on graphs over edges of a power law, while their state is queried.

    Edges per second, memory, and the time of SQL on the state meanwhile.

    \b
    Examples:
      millrace bench graphs --quick
      millrace bench graphs --case degrees --edges 1m
    """
    from millrace_lab.bench import graphs

    return graphs.Options(cases=cases or graphs.Options.cases, edges=edges, rows=rows)


@benchmark(
    bench,
    "nexmark",
    some_minutes,
)
@click.option(
    "--queries",
    type=Queries(),
    default=None,
    help="Which queries, such as q5,q7.  [default: all that keep state]",
)
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Events per epoch.")
@timed_option
@click.option("--peers/--no-peers", default=True, help="Also run the others.  [default: on]")
@flink_option
def nexmark_command(
    queries: tuple[str, ...] | None, rows: int, epochs: int, peers: bool, environments: Path
) -> Any:
    """NEXMark's queries beside Spark's own operators on RocksDB and Flink SQL on heap.

    Events per second, CPU seconds, memory and bytes written, of each query on the sides that can
    express it. Answers are compared with a batch in DuckDB first.

    \b
    Examples:
      millrace bench nexmark --quick
      millrace bench nexmark --queries q5,q7 --quick
      millrace bench nexmark --json nexmark.json
    """
    from millrace_lab.bench import nexmark

    return nexmark.Options(
        queries=queries or nexmark.Options.queries,
        rows=rows,
        epochs=epochs,
        peers=peers,
        environments=environments,
    )


@benchmark(bench, "linear-road", some_minutes)
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Expressways, at most.",
)
@click.option(
    "--minutes",
    type=click.IntRange(min=5, max=180),
    default=10,
    show_default=True,
    help="How many of the last minutes of three hours a probe takes.",
)
@click.option(
    "--clock",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds of the road in a second. Ten expressways bring as many rows as one at 10.",
)
@click.option(
    "--growing-clock",
    type=click.FloatRange(min=0.1),
    help="The same for the load that grows. Default: 0.7 of the L that was found.",
)
@images_option
def linear_road_command(
    most: int, minutes: int, clock: float, growing_clock: float | None, images: Path | None
) -> Any:
    """Linear Road: the most expressways that two cores sustain, with every answer in 5 seconds.

    Also the whole curve of three hours with autoscaling from one shard up, and a run in which an
    executor is killed. All answers are compared with a plain program's.

    \b
    Examples:
      millrace bench linear-road --quick
      millrace bench linear-road --json linear-road.json --images docs/images
      millrace bench linear-road --minutes 180 --most 8
    """
    from millrace_lab.bench import linear_road

    options = linear_road.Options()
    traffic = replace(options.traffic, begin=options.traffic.end - minutes * 60)
    return replace(
        options,
        traffic=traffic,
        most=most,
        clock=clock,
        growing_clock=growing_clock,
        images=images,
    )
