"""The commands: each says what it measures, and makes the sizes of a run of its options."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from millrace_lab.bench._contract import BenchmarkError
from millrace_lab.bench.cli._running import BENCHMARKS, benchmark, execute, module, quick_option
from millrace_lab.bench.cli._types import (
    Backends,
    Cases,
    KafkaSides,
    Kinds,
    Patterns,
    Queries,
    Sides,
    Size,
    Sizes,
    Stores,
    Strategies,
)

some_minutes = click.option("--quick", is_flag=True, help="Smaller sizes: some minutes.")
timed_option = click.option(
    "--epochs", type=click.IntRange(min=1), default=5, show_default=True, help="Timed per side."
)
flink_option = click.option(
    "--environments",
    type=click.Path(file_okay=False, path_type=Path),
    default=".peers",
    show_default=True,
    help="Where `make peers` has put Flink's environment.",
)


@click.group()
def bench() -> None:
    """Compare Millrace with Spark and other engines: first the outputs, then the times.

    \b
    Examples:
      millrace bench throughput --quick
      millrace bench throughput --json throughput.json --keys 100k
      millrace bench growth --json growth.json
      millrace bench rescale --quick
      millrace bench peers --peers flink-sql-heap,flink-sql-rocksdb
      millrace bench all --out src/millrace_lab/results
      millrace bench report --readme README.md
    """


@benchmark(bench, "throughput")
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Rows per epoch.")
@click.option("--keys", type=Sizes(), default="100k,5m", show_default=True, help="Sizes of state.")
@click.option("--epochs", type=int, default=12, show_default=True, help="Timed epochs per side.")
def throughput_command(rows: int, keys: tuple[int, ...], epochs: int) -> Any:
    """A keyed count: rows per second, and the time of an epoch of 1,000 rows.

    Beside Spark's own streaming aggregation on RocksDB, PySpark's transformWithState, and the
    ceiling (the same rows to Python and back, nothing done). Each side has its own JVM.

    \b
    Examples:
      millrace bench throughput --quick
      millrace bench throughput --json throughput.json
      millrace bench throughput --rows 500k --keys 100k,1m --epochs 20
    """
    from millrace_lab.bench import throughput

    return throughput.Options(rows=rows, keys=keys, epochs=max(epochs, 1))


@benchmark(bench, "fingerprints")
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Rows per epoch.")
@click.option("--keys", type=Sizes(), default="100k,5m", show_default=True, help="Sizes of state.")
@click.option("--epochs", type=int, default=24, show_default=True, help="Timed epochs per side.")
def fingerprints_command(rows: int, keys: tuple[int, ...], epochs: int) -> Any:
    """The cost of collision-resistant fingerprints, compared with format 1.

    A keyed count by whole numbers and by strings of 40 characters, in a new location and in one of
    format 1, in one JVM and in turns.

    \b
    Examples:
      millrace bench fingerprints --quick
      millrace bench fingerprints --json fingerprints.json
      millrace bench fingerprints --keys 100k --epochs 60
    """
    from millrace_lab.bench import fingerprints

    return fingerprints.Options(rows=rows, keys=keys, epochs=max(epochs, 1))


@benchmark(bench, "growth")
@click.option("--rows", type=Size(), default="100k", show_default=True, help="Keys per epoch.")
@click.option(
    "--keys", type=Sizes(), default="1m,5m,20m", show_default=True, help="Sizes of state."
)
@click.option("--epochs", type=int, default=30, show_default=True, help="Timed epochs per size.")
def growth_command(rows: int, keys: tuple[int, ...], epochs: int) -> Any:
    """Epochs that change the same number of keys, on states of growing size.

    Also the bytes they write, merges included, and the time to open the state in a new process.

    \b
    Examples:
      millrace bench growth --quick
      millrace bench growth --json growth.json
      millrace bench growth --keys 1m,2m,4m --rows 50k
    """
    from millrace_lab.bench import growth

    return growth.Options(changed=rows, keys=keys, epochs=max(epochs, 1))


@benchmark(bench, "python")
@click.option("--keys", type=Size(), default="100k", show_default=True, help="Keys per epoch.")
@click.option("--rows", type=Size(), default=None, help="Rows per epoch; as many as keys.")
@click.option("--epochs", type=int, default=12, show_default=True, help="Timed epochs.")
def python_command(keys: int, rows: int | None, epochs: int) -> Any:
    """Per-key Python: a count, and sessions with timers.

    Beside PySpark's transformWithState in row and in pandas mode, on the same rows. PySpark's sides
    run a third of the epochs, because one takes that long.

    \b
    Examples:
      millrace bench python --quick
      millrace bench python --json python.json
      millrace bench python --keys 20k --rows 200k
    """
    from millrace_lab.bench import python

    rows = keys if rows is None else rows
    if rows % keys:
        raise click.UsageError(f"--rows {rows} must be a multiple of --keys {keys}.")
    epochs = max(epochs, 1)
    return python.Options(keys=keys, rows=rows, epochs=epochs, slow_epochs=-(-epochs // 3))


@benchmark(bench, "state-types")
@click.option(
    "--keys", type=Sizes(), default="1k,100k,1m", show_default=True, help="Numbers of keys."
)
@click.option("--rows", type=Size(), default="100k", show_default=True, help="Keys per epoch.")
@click.option("--epochs", type=int, default=5, show_default=True, help="Timed epochs per size.")
@click.option("--big", type=Size(), default="1m", show_default=True, help="A large collection.")
def state_types_command(keys: tuple[int, ...], rows: int, epochs: int, big: int) -> Any:
    """Every kind of state: updates, reads, scans, repartitioning, merges, checkpoints.

    Without Spark, on the state layer alone. Also lists, maps and sets with very many entries, of
    which an epoch changes one.

    \b
    Examples:
      millrace bench state-types --quick
      millrace bench state-types --json state-types.json
      millrace bench state-types --keys 10k --big 200k
    """
    from millrace_lab.bench import state_types

    return state_types.Options(keys=keys, changed=rows, epochs=max(epochs, 1), big=big)


@benchmark(bench, "backends", some_minutes)
@click.option("--keys", type=Sizes(), default="100k,5m", show_default=True, help="Sizes of state.")
@click.option("--rows", type=Size(), default="100k", show_default=True, help="Keys per epoch.")
@click.option("--epochs", type=int, default=5, show_default=True, help="Timed epochs per size.")
@click.option("--backends", type=Backends(), default=None, help="Which engines.  [default: all]")
@click.option("--kinds", type=Kinds(), default=None, help="Which kinds of state.  [default: all]")
def backends_command(
    keys: tuple[int, ...],
    rows: int,
    epochs: int,
    backends: tuple[str, ...] | None,
    kinds: tuple[str, ...] | None,
) -> Any:
    """State engines: Millrace's table, a dict, RocksDB, Redis and Spark's RocksDB store.

    The same updates, reads, scans, checkpoints, restores, repartitions and merges on each, for
    values, lists, maps and nested values, without a stream around them.

    \b
    Examples:
      millrace bench backends --quick
      millrace bench backends --json backends.json
      millrace bench backends --backends millrace,rocksdb --kinds value --keys 1m
    """
    from millrace_lab.bench import backends as module

    return module.Options(
        keys=keys,
        changed=rows,
        epochs=max(epochs, 1),
        backends=backends or module.Options.backends,
        kinds=kinds or module.Options.kinds,
    )


images_option = click.option(
    "--images",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw the latency timelines into this directory: an HTML page and a PNG.",
)
rate_option = click.option(
    "--rate", type=Size(), help="Rows per second. Default: half of the capacity, which is measured."
)


@benchmark(bench, "rescale")
@click.option("--keys", type=Size(), default="5m", show_default=True, help="Size of the state.")
@rate_option
@click.option(
    "--strategies",
    type=Strategies(),
    default="live,pause,fluid,lazy,standby,restart",
    show_default=True,
    help="Which ones, in this order.",
)
@click.option("--store-latency-ms", type=float, default=0.0, help="Make every request this late.")
@click.option("--store-mb-per-s", type=float, default=0.0, help="Limit each request's bandwidth.")
@click.option("--spark/--no-spark", default=True, help="Also run Spark's own way.  [default: on]")
@images_option
def rescale_command(
    keys: int,
    rate: int | None,
    strategies: tuple[str, ...],
    store_latency_ms: float,
    store_mb_per_s: float,
    spark: bool,
    images: Path | None,
) -> Any:
    """2 -> 4 -> 2 executors under a steady load, by every strategy.

    Latency by event before, during and after, beside Spark's own way: stop, repartition the
    checkpoint offline, start. The timelines are written beside the JSON file. A slow store stands
    for object storage; Spark's side has no such store and is left out then.

    \b
    Examples:
      millrace bench rescale --quick
      millrace bench rescale --json rescale.json --images docs/images
      millrace bench rescale --strategies live,pause --store-latency-ms 20 --store-mb-per-s 125
    """
    from millrace_lab.bench import _openloop, rescale

    return rescale.Options(
        keys=keys,
        rate=rate,
        strategies=strategies,
        spark=spark,
        store=_openloop.Store(store_latency_ms, store_mb_per_s),
        images=images,
    )


@benchmark(bench, "recovery")
@click.option("--keys", type=Size(), default="5m", show_default=True, help="Size of the state.")
@rate_option
@click.option("--spark/--no-spark", default=True, help="Also kill Spark's own.  [default: on]")
@images_option
def recovery_command(keys: int, rate: int | None, spark: bool, images: Path | None) -> Any:
    """SIGKILL of an executor, and of its Python workers alone, under a steady load.

    Time until latency is back within 1.25x of before; with and without a standby, and beside
    Spark's own stateful query under the same kill.

    \b
    Examples:
      millrace bench recovery --quick
      millrace bench recovery --json recovery.json --images docs/images
      millrace bench recovery --keys 1m --rate 50k --no-spark
    """
    from millrace_lab.bench import recovery

    return recovery.Options(keys=keys, rate=rate, spark=spark, images=images)


@benchmark(bench, "stores", some_minutes)
@click.option("--keys", type=Size(), default="1m", show_default=True, help="Size of the state.")
@click.option("--rate", type=Size(), default="20k", show_default=True, help="Rows per second.")
@click.option(
    "--stores",
    type=Stores(),
    default="local,s3,hdfs",
    show_default=True,
    help="Which ones, in this order.",
)
@click.option("--slow/--no-slow", default=True, help="Also at 20 ms and 1 Gbit/s.  [default: on]")
def stores_command(keys: int, rate: int, stores: tuple[str, ...], slow: bool) -> Any:
    """Epochs on a local disk, in a bucket and on HDFS, and a live rescale on each.

    The time of an epoch, the requests it makes of the store, and the latency by event while 2
    executors become 4 and 2 again; as the store is, and with 20 ms and 1 Gbit/s per request.
    `make servers` installs MinIO and HDFS; without MinIO, moto's server stands for S3.

    \b
    Examples:
      millrace bench stores --quick
      millrace bench stores --json stores.json
      millrace bench stores --stores local,s3 --keys 100k --no-slow
    """
    from millrace_lab.bench import stores as module

    return module.Options(keys=keys, rate=rate, stores=stores, slow=slow)


@benchmark(bench, "placement")
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Rows per epoch.")
@click.option("--keys", type=Size(), default="1m", show_default=True, help="Size of the state.")
@click.option("--epochs", type=int, default=16, show_default=True, help="Timed epochs per side.")
def placement_command(rows: int, keys: int, epochs: int) -> Any:
    """What 256, 1024 and 4096 key groups and placement cost while nothing moves.

    Beside the same code with fixed partitions that run anywhere.

    \b
    Examples:
      millrace bench placement --quick
      millrace bench placement --json placement.json
    """
    from millrace_lab.bench import placement

    return placement.Options(rows=rows, keys=keys, epochs=max(epochs, 1))


@benchmark(bench, "serve")
@click.option("--keys", type=Size(), default="1m", show_default=True, help="Size of the state.")
@click.option("--seconds", type=float, default=8.0, show_default=True, help="For each load.")
@click.option("--batch", type=Size(), default="10k", show_default=True, help="Keys per batch.")
def serve_command(keys: int, seconds: float, batch: int) -> Any:
    """Look-ups of a server on one core: over HTTP, over Arrow Flight, and while epochs come in.

    \b
    Examples:
      millrace bench serve --quick
      millrace bench serve --json serve.json
      millrace bench serve --keys 5m --batch 1k
    """
    from millrace_lab.bench import serve

    return serve.Options(keys=keys, seconds=seconds, batch=batch)


@benchmark(bench, "query")
@click.option("--keys", type=Size(), default="5m", show_default=True, help="Size of the state.")
@click.option("--rows", type=Size(), default="100k", show_default=True, help="Rows per epoch.")
@click.option("--epochs", type=int, default=24, show_default=True, help="Timed epochs per side.")
def query_command(keys: int, rows: int, epochs: int) -> Any:
    """SQL on state beside Spark's `statestore` reader, and what queries cost a running stream.

    A scan of all keys, one column, and one key; then epochs on one core while queries run back to
    back on the other.

    \b
    Examples:
      millrace bench query --quick
      millrace bench query --json query.json
      millrace bench query --keys 1m --epochs 12
    """
    from millrace_lab.bench import query

    return query.Options(keys=keys, rows=rows, epochs=max(epochs, 2))


@benchmark(bench, "limits")
@click.option("--keys", type=Size(), default="4m", show_default=True, help="Keys beyond memory.")
def limits_command(keys: int) -> Any:
    """State beyond its memory, huge collections, many timers, one hot key, big values.

    \b
    Examples:
      millrace bench limits --quick
      millrace bench limits --json limits.json
    """
    from millrace_lab.bench import limits

    return limits.Options(keys=keys)


@benchmark(bench, "endurance")
@click.option("--epochs", type=Size(), default="5k", show_default=True, help="Epochs to run.")
@click.option("--every", type=int, default=25, show_default=True, help="Epochs per sample.")
def endurance_command(epochs: int, every: int) -> Any:
    """Thousands of small epochs with readers, a view, `serve` and the page open: what grows.

    Files, memory, threads and descriptors of every process, sampled while the epochs run.

    \b
    Examples:
      millrace bench endurance --quick
      millrace bench endurance --json endurance.json
      millrace bench endurance --epochs 600 --every 10
    """
    from millrace_lab.bench import endurance

    return endurance.Options(epochs=epochs, sample_every=max(every, 1))


@benchmark(bench, "latency")
@click.option("--keys", type=Size(), default="100k", show_default=True, help="Size of the state.")
@click.option(
    "--rate",
    type=Size(),
    help="Rows per second that count as the capacity. Default: the smaller of the two, measured.",
)
@click.option(
    "--rounds", type=int, default=3, show_default=True, help="Runs of each side and load."
)
def latency_command(keys: int, rate: int | None, rounds: int) -> Any:
    """Event latency at 10, 50 and 80 % of capacity, beside Spark's own stateful query.

    Both sides get the same rates, on the same executors, with epochs back to back.

    \b
    Examples:
      millrace bench latency --quick
      millrace bench latency --json latency.json
      millrace bench latency --keys 1m --rate 100k
    """
    from millrace_lab.bench import latency

    return latency.Options(keys=keys, rate=rate, rounds=max(rounds, 1))


@benchmark(bench, "end-to-end", some_minutes)
@click.option(
    "--rates", type=Sizes(), default="1k,10k,100k", show_default=True, help="Events per second."
)
@click.option("--keys", type=Size(), default="1k", show_default=True, help="Different keys.")
@click.option(
    "--sides",
    type=KafkaSides(),
    default=None,
    help="Which ones: millrace, millrace-at-least-once, spark, spark-real-time.  [default: all]",
)
def end_to_end_command(rates: tuple[int, ...], keys: int, sides: tuple[str, ...] | None) -> Any:
    """Kafka to Kafka: event latency by the producer's time stamp, at some rates.

    Millrace with its exactly-once sink and with the one that is at least once, beside Spark's
    micro-batches and its real-time trigger. `make servers` installs the broker.

    \b
    Examples:
      millrace bench end-to-end --quick
      millrace bench end-to-end --json end-to-end.json
      millrace bench end-to-end --rates 1k --sides millrace,spark
    """
    from millrace_lab.bench import end_to_end

    return end_to_end.Options(rates=rates, keys=keys, sides=sides or end_to_end.SIDES)


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


@bench.command("all")
@quick_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="src/millrace_lab/results",
    show_default=True,
    help="The directory for the results, one JSON file per benchmark.",
)
@click.option(
    "--docs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Make the pages of the results in this folder. Default: `docs`, if it is there; none "
    "with --quick.",
)
def all_command(quick: bool, out: Path, docs: Path | None) -> None:
    """Every benchmark, one after the other, if what it needs is installed. Then the pages.

    \b
    Examples:
      millrace bench all
      millrace bench all --quick --out /tmp/results
      millrace bench all --quick --out /tmp/results --docs /tmp/pages
    """
    if docs is None and not quick and Path("docs").is_dir():
        docs = Path("docs")
    codes = []
    for name in BENCHMARKS:
        options = module(name).Options()
        why_not = getattr(module(name), "why_not", None)
        reason = None if why_not is None else why_not(options)
        if reason is not None:
            click.echo(f"{name}: {reason}")
            continue
        if docs is not None and hasattr(options, "images"):
            options = replace(options, images=docs / "images")
        codes.append(execute(name, options, quick, out / f"{name}.json", None))
    if docs is not None:
        _make_pages(out, docs, None, plots=True)
    sys.exit(max(codes))


@bench.command("report")
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="src/millrace_lab/results",
    show_default=True,
    help="The folder with the results.",
)
@click.option(
    "--docs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="docs",
    show_default=True,
    help="The folder for the pages.",
)
@click.option(
    "--readme",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also replace the table of results in this file.",
)
@click.option("--plots/--no-plots", default=True, help="Draw the pictures.")
def report_command(results: Path, docs: Path, readme: Path | None, plots: bool) -> None:
    """Rebuild the pages about benchmarks from the results of earlier runs.

    \b
    Examples:
      millrace bench report
      millrace bench report --readme README.md
      millrace bench report --results /tmp/results --docs /tmp/pages --no-plots
    """
    _make_pages(results, docs, readme, plots=plots)


def _make_pages(results: Path, docs: Path, readme: Path | None, *, plots: bool) -> None:
    from millrace_lab.bench import _result_plots, report

    try:
        found = report.load(results)
        images = docs / "images"
        if plots:
            _result_plots.draw(found, images)
        drawn = [path.name for path in images.glob("*.png")]
        for name, text in report.pages(found, drawn).items():
            (docs / name).write_text(text)
            click.echo(f"written: {docs / name}")
        reliability = docs / "reliability.md"
        if "soak" in found and reliability.exists():
            reliability.write_text(report.with_soak(reliability.read_text(), found["soak"]))
            click.echo(f"written: {reliability}")
        if readme is not None:
            readme.write_text(report.with_summary(readme.read_text(), found))
            click.echo(f"written: {readme}")
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
