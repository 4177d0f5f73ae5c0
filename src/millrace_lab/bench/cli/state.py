"""What a single query's state costs."""

from __future__ import annotations

from typing import Any

import click

from millrace_lab.bench.cli._group import bench, some_minutes
from millrace_lab.bench.cli._running import benchmark
from millrace_lab.bench.cli._types import Backends, Kinds, Size, Sizes


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
