"""`millrace bench`: run benchmarks, show what they measured, write it to files.

Exit codes: 0 when the outputs of all sides were equal, whatever the bars; 1 when they differed or a
side failed; 2 for wrong options.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from millrace.bench._console import Steps, show, steps
from millrace.bench._contract import BenchmarkError, Result
from millrace.bench._sizes import parse_size, parse_sizes

Run = Callable[[Path, Steps], Result]


class Size(click.ParamType[int]):
    """A number such as 1000000, 100k or 5m."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Sizes(click.ParamType[tuple[int, ...]]):
    """Numbers such as 100k,5m."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(parse_sizes(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Strategies(click.ParamType[tuple[str, ...]]):
    """Names such as live,pause."""

    name = "strategies"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        from millrace.reconfigure.strategies import STRATEGIES

        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(","))
        unknown = [name for name in names if name not in STRATEGIES]
        if unknown:
            self.fail(f"{unknown[0]!r}: choose from {', '.join(STRATEGIES)}", param, ctx)
        return names


json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the result to this file.",
)
quick_option = click.option("--quick", is_flag=True, help="Smaller sizes: about 40 seconds.")
keep_option = click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep checkpoints and logs in this directory.",
)


@click.group()
def bench() -> None:
    """Measure Millrace beside Spark. Outputs are compared before times.

    \b
    Examples:
      millrace bench throughput --quick
      millrace bench throughput --json throughput.json --keys 100k
      millrace bench growth --json growth.json
      millrace bench rescale --quick
      millrace bench all --out bench/results
      millrace bench report --readme README.md
    """


@bench.command("throughput")
@json_option
@quick_option
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Rows per epoch.")
@click.option("--keys", type=Sizes(), default="100k,5m", show_default=True, help="Sizes of state.")
@click.option("--epochs", type=int, default=12, show_default=True, help="Timed epochs per side.")
@keep_option
def throughput_command(
    json_path: Path | None,
    quick: bool,
    rows: int,
    keys: tuple[int, ...],
    epochs: int,
    keep: Path | None,
) -> None:
    """A keyed count: rows per second, and the time of an epoch of 1,000 rows.

    Beside Spark's own streaming aggregation on RocksDB, PySpark's transformWithState, and the
    ceiling (the same rows to Python and back, nothing done). Each side has its own JVM.

    \b
    Examples:
      millrace bench throughput --quick
      millrace bench throughput --json throughput.json
      millrace bench throughput --rows 500k --keys 100k,1m --epochs 20
    """
    from millrace.bench import throughput

    options = throughput.Options(rows=rows, keys=keys, epochs=max(epochs, 1))
    options = options.quick() if quick else options
    sys.exit(_execute("throughput", lambda w, s: throughput.run(options, w, s), json_path, keep))


@bench.command("growth")
@json_option
@quick_option
@click.option("--rows", type=Size(), default="100k", show_default=True, help="Keys per epoch.")
@click.option(
    "--keys", type=Sizes(), default="1m,5m,20m", show_default=True, help="Sizes of state."
)
@click.option("--epochs", type=int, default=30, show_default=True, help="Timed epochs per size.")
@keep_option
def growth_command(
    json_path: Path | None,
    quick: bool,
    rows: int,
    keys: tuple[int, ...],
    epochs: int,
    keep: Path | None,
) -> None:
    """Epochs that change the same number of keys, on states of growing size.

    Also the bytes they write, merges included, and the time to open the state in a new process.

    \b
    Examples:
      millrace bench growth --quick
      millrace bench growth --json growth.json
      millrace bench growth --keys 1m,2m,4m --rows 50k
    """
    from millrace.bench import growth

    options = growth.Options(changed=rows, keys=keys, epochs=max(epochs, 1))
    options = options.quick() if quick else options
    sys.exit(_execute("growth", lambda w, s: growth.run(options, w, s), json_path, keep))


@bench.command("python")
@json_option
@quick_option
@click.option("--keys", type=Size(), default="100k", show_default=True, help="Keys per epoch.")
@click.option("--rows", type=Size(), default=None, help="Rows per epoch; as many as keys.")
@click.option("--epochs", type=int, default=12, show_default=True, help="Timed epochs.")
@keep_option
def python_command(
    json_path: Path | None,
    quick: bool,
    keys: int,
    rows: int | None,
    epochs: int,
    keep: Path | None,
) -> None:
    """Per-key Python: a count, and sessions with timers.

    Beside PySpark's transformWithState in row and in pandas mode, on the same rows. PySpark's sides
    run a third of the epochs, because one takes so long.

    \b
    Examples:
      millrace bench python --quick
      millrace bench python --json python.json
      millrace bench python --keys 20k --rows 200k
    """
    from millrace.bench import python

    rows = keys if rows is None else rows
    if rows % keys:
        raise click.UsageError(f"--rows {rows} must be a multiple of --keys {keys}.")
    epochs = max(epochs, 1)
    options = python.Options(keys=keys, rows=rows, epochs=epochs, slow_epochs=-(-epochs // 3))
    options = options.quick() if quick else options
    sys.exit(_execute("python", lambda w, s: python.run(options, w, s), json_path, keep))


@bench.command("state-types")
@json_option
@quick_option
@click.option(
    "--keys", type=Sizes(), default="1k,100k,1m", show_default=True, help="Numbers of keys."
)
@click.option("--rows", type=Size(), default="100k", show_default=True, help="Keys per epoch.")
@click.option("--epochs", type=int, default=5, show_default=True, help="Timed epochs per size.")
@click.option("--big", type=Size(), default="1m", show_default=True, help="A large collection.")
@keep_option
def state_types_command(
    json_path: Path | None,
    quick: bool,
    keys: tuple[int, ...],
    rows: int,
    epochs: int,
    big: int,
    keep: Path | None,
) -> None:
    """Every kind of state: updates, reads, scans, repartitioning, merges, checkpoints.

    Without Spark, on the state layer alone. Also lists, maps and sets with very many entries, of
    which an epoch changes one.

    \b
    Examples:
      millrace bench state-types --quick
      millrace bench state-types --json state-types.json
      millrace bench state-types --keys 10k --big 200k
    """
    from millrace.bench import state_types

    options = state_types.Options(keys=keys, changed=rows, epochs=max(epochs, 1), big=big)
    options = options.quick() if quick else options
    sys.exit(_execute("state-types", lambda w, s: state_types.run(options, w, s), json_path, keep))


@bench.command("report")
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="bench/results",
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
@click.option("--plots/--no-plots", default=True, help="Draw the pictures, which needs matplotlib.")
def report_command(results: Path, docs: Path, readme: Path | None, plots: bool) -> None:
    """Make the pages about benchmarks of the results of earlier runs.

    \b
    Examples:
      millrace bench report
      millrace bench report --readme README.md
      millrace bench report --results /tmp/results --docs /tmp/pages --no-plots
    """
    from millrace.bench import plots as pictures
    from millrace.bench import report

    try:
        found = report.load(results)
        images = docs / "images"
        if plots:
            pictures.draw(found, images)
        drawn = [path.name for path in images.glob("*.png")]
        for name, text in report.pages(found, drawn).items():
            (docs / name).write_text(text)
            click.echo(f"written: {docs / name}")
        if readme is not None:
            made = report.with_table(readme.read_text(), report.readme_table(found))
            readme.write_text(made)
            click.echo(f"written: {readme}")
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error


images_option = click.option(
    "--images",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw the latency timelines into this directory: an HTML page, and a PNG if matplotlib is "
    "installed.",
)
rate_option = click.option(
    "--rate", type=Size(), help="Rows per second. Default: half of the capacity, which is measured."
)


@bench.command("rescale")
@json_option
@quick_option
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
@keep_option
def rescale_command(
    json_path: Path | None,
    quick: bool,
    keys: int,
    rate: int | None,
    strategies: tuple[str, ...],
    store_latency_ms: float,
    store_mb_per_s: float,
    spark: bool,
    images: Path | None,
    keep: Path | None,
) -> None:
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
    from millrace.bench import _openloop, rescale

    options = rescale.Options(
        keys=keys,
        rate=rate,
        strategies=strategies,
        spark=spark,
        store=_openloop.Store(store_latency_ms, store_mb_per_s),
        timelines=_beside(json_path),
        images=images,
    )
    options = options.quick() if quick else options
    sys.exit(_execute("rescale", lambda w, s: rescale.run(options, w, s), json_path, keep))


@bench.command("recovery")
@json_option
@quick_option
@click.option("--keys", type=Size(), default="5m", show_default=True, help="Size of the state.")
@rate_option
@click.option("--spark/--no-spark", default=True, help="Also kill Spark's own.  [default: on]")
@images_option
@keep_option
def recovery_command(
    json_path: Path | None,
    quick: bool,
    keys: int,
    rate: int | None,
    spark: bool,
    images: Path | None,
    keep: Path | None,
) -> None:
    """SIGKILL of an executor, and of its Python workers alone, under a steady load.

    Time until latency is back within 1.25x of before; with and without a standby, and beside
    Spark's own stateful query under the same kill.

    \b
    Examples:
      millrace bench recovery --quick
      millrace bench recovery --json recovery.json --images docs/images
      millrace bench recovery --keys 1m --rate 50k --no-spark
    """
    from millrace.bench import recovery

    options = recovery.Options(
        keys=keys, rate=rate, spark=spark, timelines=_beside(json_path), images=images
    )
    options = options.quick() if quick else options
    sys.exit(_execute("recovery", lambda w, s: recovery.run(options, w, s), json_path, keep))


@bench.command("placement")
@json_option
@quick_option
@click.option("--rows", type=Size(), default="1m", show_default=True, help="Rows per epoch.")
@click.option("--keys", type=Size(), default="1m", show_default=True, help="Size of the state.")
@click.option("--epochs", type=int, default=16, show_default=True, help="Timed epochs per side.")
@keep_option
def placement_command(
    json_path: Path | None, quick: bool, rows: int, keys: int, epochs: int, keep: Path | None
) -> None:
    """What 256, 1024 and 4096 key groups and placement cost while nothing moves.

    Beside the same code with fixed partitions that run anywhere.

    \b
    Examples:
      millrace bench placement --quick
      millrace bench placement --json placement.json
    """
    from millrace.bench import placement

    options = placement.Options(rows=rows, keys=keys, epochs=max(epochs, 1))
    options = options.quick() if quick else options
    sys.exit(_execute("placement", lambda w, s: placement.run(options, w, s), json_path, keep))


@bench.command("serve")
@json_option
@quick_option
@click.option("--keys", type=Size(), default="1m", show_default=True, help="Size of the state.")
@click.option("--seconds", type=float, default=8.0, show_default=True, help="For each load.")
@click.option("--batch", type=Size(), default="10k", show_default=True, help="Keys per batch.")
@keep_option
def serve_command(
    json_path: Path | None, quick: bool, keys: int, seconds: float, batch: int, keep: Path | None
) -> None:
    """Look-ups of a server on one core: over HTTP, over Arrow Flight, and while epochs come in.

    \b
    Examples:
      millrace bench serve --quick
      millrace bench serve --json serve.json
      millrace bench serve --keys 5m --batch 1k
    """
    from millrace.bench import serve

    options = serve.Options(keys=keys, seconds=seconds, batch=batch)
    options = options.quick() if quick else options
    sys.exit(_execute("serve", lambda w, s: serve.run(options, w, s), json_path, keep))


@bench.command("query")
@json_option
@quick_option
@click.option("--keys", type=Size(), default="5m", show_default=True, help="Size of the state.")
@click.option("--rows", type=Size(), default="100k", show_default=True, help="Rows per epoch.")
@click.option("--epochs", type=int, default=24, show_default=True, help="Timed epochs per side.")
@keep_option
def query_command(
    json_path: Path | None, quick: bool, keys: int, rows: int, epochs: int, keep: Path | None
) -> None:
    """SQL on state beside Spark's `statestore` reader, and what queries cost a running stream.

    A scan of all keys, one column, and one key; then epochs on one core while queries run back to
    back on the other.

    \b
    Examples:
      millrace bench query --quick
      millrace bench query --json query.json
      millrace bench query --keys 1m --epochs 12
    """
    from millrace.bench import query

    options = query.Options(keys=keys, rows=rows, epochs=max(epochs, 2))
    options = options.quick() if quick else options
    sys.exit(_execute("query", lambda w, s: query.run(options, w, s), json_path, keep))


@bench.command("limits")
@json_option
@quick_option
@click.option("--keys", type=Size(), default="4m", show_default=True, help="Keys beyond memory.")
@keep_option
def limits_command(json_path: Path | None, quick: bool, keys: int, keep: Path | None) -> None:
    """State beyond its memory, huge collections, many timers, one hot key, big values.

    \b
    Examples:
      millrace bench limits --quick
      millrace bench limits --json limits.json
    """
    from millrace.bench import limits

    options = limits.Options(keys=keys)
    options = options.quick() if quick else options
    sys.exit(_execute("limits", lambda w, s: limits.run(options, w, s), json_path, keep))


@bench.command("latency")
@json_option
@quick_option
@click.option("--keys", type=Size(), default="100k", show_default=True, help="Size of the state.")
@click.option(
    "--rate",
    type=Size(),
    help="Rows per second that count as the capacity. Default: the smaller of the two, measured.",
)
@click.option(
    "--rounds", type=int, default=3, show_default=True, help="Runs of each side and load."
)
@keep_option
def latency_command(
    json_path: Path | None, quick: bool, keys: int, rate: int | None, rounds: int, keep: Path | None
) -> None:
    """Event latency at 10, 50 and 80 % of capacity, beside Spark's own stateful query.

    Both sides get the same rates, on the same executors, with epochs back to back.

    \b
    Examples:
      millrace bench latency --quick
      millrace bench latency --json latency.json
      millrace bench latency --keys 1m --rate 100k
    """
    from millrace.bench import latency

    options = latency.Options(keys=keys, rate=rate, rounds=max(rounds, 1))
    options = options.quick() if quick else options
    sys.exit(_execute("latency", lambda w, s: latency.run(options, w, s), json_path, keep))


@bench.command("all")
@quick_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="bench/results",
    show_default=True,
    help="The directory for the results, one JSON file per benchmark.",
)
def all_command(quick: bool, out: Path) -> None:
    """Every benchmark, one after the other.

    \b
    Examples:
      millrace bench all
      millrace bench all --quick --out /tmp/results
    """
    from millrace.bench import (
        growth,
        latency,
        limits,
        placement,
        python,
        query,
        recovery,
        rescale,
        serve,
        state_types,
        throughput,
    )

    speed, size, programs = throughput.Options(), growth.Options(), python.Options()
    kinds, staying, asking = state_types.Options(), placement.Options(), serve.Options()
    looking, waiting, extremes = query.Options(), latency.Options(), limits.Options()
    moving = rescale.Options(timelines=_beside(out / "rescale.json"))
    killing = recovery.Options(timelines=_beside(out / "recovery.json"))
    if quick:
        speed, size, programs = speed.quick(), size.quick(), programs.quick()
        kinds, staying, asking = kinds.quick(), staying.quick(), asking.quick()
        moving, killing, looking = moving.quick(), killing.quick(), looking.quick()
        waiting, extremes = waiting.quick(), extremes.quick()
    runs: dict[str, Run] = {
        "throughput": lambda w, s: throughput.run(speed, w, s),
        "growth": lambda w, s: growth.run(size, w, s),
        "python": lambda w, s: python.run(programs, w, s),
        "state-types": lambda w, s: state_types.run(kinds, w, s),
        "rescale": lambda w, s: rescale.run(moving, w, s),
        "recovery": lambda w, s: recovery.run(killing, w, s),
        "placement": lambda w, s: placement.run(staying, w, s),
        "query": lambda w, s: query.run(looking, w, s),
        "serve": lambda w, s: serve.run(asking, w, s),
        "limits": lambda w, s: limits.run(extremes, w, s),
        "latency": lambda w, s: latency.run(waiting, w, s),
    }
    codes = [_execute(name, run, out / f"{name}.json", None) for name, run in runs.items()]
    sys.exit(max(codes))


def _beside(json_path: Path | None) -> Path | None:
    """Where a result's timelines go."""
    return None if json_path is None else json_path.with_suffix(".timelines.json")


def _execute(name: str, run: Run, json_path: Path | None, keep: Path | None) -> int:
    console = Console()
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise click.UsageError(f"{keep} is not empty; --keep needs a new or empty directory.")
    workdir = keep.resolve() if keep else Path(tempfile.mkdtemp(prefix="millrace-bench-"))
    # A terminated benchmark ends its sides, as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with steps(console, name) as shown:
            result = run(workdir, shown)
    except BenchmarkError as error:
        click.echo(f"{name}: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo(f"{name}: interrupted; nothing is left running", err=True)
        return 130
    finally:
        if keep is None:
            shutil.rmtree(workdir, ignore_errors=True)
    show(console, result)
    if json_path is not None:
        result.write(json_path)
        console.print(f"written to {json_path}", highlight=False)
    return result.exit_code
