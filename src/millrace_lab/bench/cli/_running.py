"""What all benchmarks have in common: their options, how one runs, and where its result goes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from millrace_lab.bench._console import show, steps
from millrace_lab.bench._contract import BenchmarkError, Result

BENCHMARKS: list[str] = []
"""Their names, in the order of the help."""
_TIMELINES = "timelines"

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


def benchmark(
    group: click.Group, name: str, quick: Callable[[Any], Any] = quick_option
) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of `millrace bench`: a function from its own options to what the run is given.

    The benchmark itself is the module of `millrace_lab.bench` with the command's name, imported
    when it runs so that the command line answers at once.
    """

    def command(options: Callable[..., Any]) -> click.Command:
        @functools.wraps(options)
        def run(json_path: Path | None, quick: bool, keep: Path | None, **given: Any) -> None:
            sys.exit(execute(name, options(**given), quick, json_path, keep))

        BENCHMARKS.append(name)
        return group.command(name)(json_option(quick(keep_option(run))))

    return command


def module(name: str) -> Any:
    """The benchmark of a command."""
    return importlib.import_module(f"millrace_lab.bench.{name.replace('-', '_')}")


def execute(name: str, options: Any, quick: bool, json_path: Path | None, keep: Path | None) -> int:
    """Run one benchmark; the exit code."""
    options = options.quick() if quick else options
    if json_path is not None and _TIMELINES in {f.name for f in dataclasses.fields(options)}:
        options = dataclasses.replace(options, timelines=json_path.with_suffix(".timelines.json"))
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
            result: Result = module(name).run(options, workdir, shown)
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
