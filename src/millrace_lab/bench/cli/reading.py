"""State that is read while it changes, and rows on their way through."""

from __future__ import annotations

from typing import Any

import click

from millrace_lab.bench.cli._group import bench, some_minutes
from millrace_lab.bench.cli._running import benchmark
from millrace_lab.bench.cli._types import KafkaSides, RealTimeSides, Size, Sizes


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


@benchmark(bench, "realtime", some_minutes)
@click.option(
    "--rates",
    type=Sizes(),
    default="200,2k,20k,100k",
    show_default=True,
    help="Events per second.",
)
@click.option(
    "--keys",
    type=Sizes(),
    default="100k,1m",
    show_default=True,
    help="Sizes of state: the first for everything, the others at 2k events/s.",
)
@click.option(
    "--sides",
    type=RealTimeSides(),
    default=None,
    help="Which ones: millrace-real-time, spark-real-time, millrace-at-least-once, spark.  "
    "[default: all]",
)
@click.option(
    "--seconds",
    type=float,
    default=60.0,
    show_default=True,
    help="How long events come.",
)
def realtime_command(
    rates: tuple[int, ...], keys: tuple[int, ...], sides: tuple[str, ...] | None, seconds: float
) -> Any:
    """Kafka to Kafka in real time: latency within epochs and across them, and a burst.

    Millrace and Spark with the real-time trigger, beside Millrace's epochs and Spark's
    micro-batches. `make servers` installs the broker.

    \b
    Examples:
      millrace bench realtime --quick
      millrace bench realtime --json realtime.json
      millrace bench realtime --rates 2k --keys 100k --sides millrace-real-time,spark-real-time
    """
    from millrace_lab.bench import realtime

    return realtime.Options(
        rates=rates, keys=keys, sides=sides or realtime.SIDES, seconds=max(seconds, 11.0)
    )
