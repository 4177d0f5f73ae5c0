"""What happens while a query changes or is damaged, and where it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from millrace_lab.bench.cli._group import bench, images_option, rate_option, some_minutes
from millrace_lab.bench.cli._running import benchmark
from millrace_lab.bench.cli._types import Size, Stores, Strategies


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
