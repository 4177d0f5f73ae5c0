"""The group of the commands, and options that several of them have."""

from __future__ import annotations

from pathlib import Path

import click

from millrace_lab.bench.cli._types import Size

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
rate_option = click.option(
    "--rate", type=Size(), help="Rows per second. Default: half of the capacity, which is measured."
)
images_option = click.option(
    "--images",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw the latency timelines into this directory: an HTML page and a PNG.",
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
