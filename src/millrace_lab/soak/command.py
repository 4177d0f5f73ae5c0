"""`millrace soak`: run it, show how far it is, say what it found."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace import clock
from millrace.cli.failures import INTERRUPTED, explained, interrupts_set
from millrace_lab.bench import Result
from millrace_lab.soak import clocks
from millrace_lab.soak import schedule as s
from millrace_lab.soak.disk import Disk
from millrace_lab.soak.drivers import Tally
from millrace_lab.soak.oracle import Verdict, check
from millrace_lab.soak.supervisor import Interrupted, Supervisor
from millrace_lab.soak.workload import CHOSEN_KEYS

EVERY_SECONDS = 30.0
"""Without a terminal, a line of progress this often."""


@dataclass
class _Display:
    """A bar in a terminal, lines elsewhere."""

    console: Console
    bar: Progress
    seconds: float
    talks: bool

    def __post_init__(self) -> None:
        self._began = self._last = clock.stopwatch()
        self._task = self.bar.add_task("starting Spark", total=self.seconds)

    def progress(self, tally: Tally) -> None:
        now = clock.stopwatch()
        acts = sum(tally.acts.values())
        text = (
            f"epoch {tally.epoch:,}, {acts} disturbances, {tally.restarts} restarts, "
            f"{len(tally.problems)} problems"
        )
        self.bar.update(
            self._task, completed=min(now - self._began, self.seconds), description=text
        )
        if not self.console.is_terminal and now - self._last >= EVERY_SECONDS:
            self._last = now
            self._print(text)

    def say(self, text: str) -> None:
        if self.talks or text.startswith("PROBLEM"):
            self._print(text)

    def _print(self, text: str) -> None:
        at = clock.stopwatch() - self._began
        self.bar.console.print(f"{at:7.1f} s  {text}", highlight=False, markup=False)


@dataclass(frozen=True)
class Wanted:
    """What was asked for."""

    minutes: float
    disturbances: int | None
    seed: int
    executors: int
    only: tuple[str, ...]
    chosen_keys: bool = CHOSEN_KEYS

    @property
    def command(self) -> str:
        """How to do it again."""
        words = ["millrace soak"]
        if self.disturbances is None:
            words.append(f"--minutes {self.minutes:g}")
        else:
            words.append(f"--disturbances {self.disturbances}")
        words += [f"--seed {self.seed}", f"--executors {self.executors}"]
        if self.chosen_keys != CHOSEN_KEYS:
            words.append("--chosen-keys" if self.chosen_keys else "--plain-keys")
        return " ".join([*words, *(f"--only '{kind}'" for kind in self.only)])


@click.command(
    epilog="""\b
Examples:
  millrace soak --minutes 30 --seed 1
  millrace soak --minutes 5 --disturbances 20
"""
)
@click.option("--minutes", type=click.FloatRange(min=0), default=5.0, show_default=True)
@click.option(
    "--disturbances",
    type=click.IntRange(min=0),
    help="End after this many disturbances, however long that takes, instead of some minutes.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Determines what happens.")
@click.option(
    "--executors",
    type=click.IntRange(2, 16),
    default=2,
    show_default=True,
    help="Of one core each.",
)
@click.option(
    "--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write it here."
)
@click.option("--verbose", is_flag=True, help="Say everything that happens.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the location, the sinks and the logs in this directory, which must be new or empty.",
)
@click.option(
    "--only",
    type=click.Choice([kind.split(",")[0] for kind in s.WEIGHTS]),
    multiple=True,
    help="Only these kinds of disturbance.",
)
@click.option(
    "--chosen-keys/--plain-keys",
    default=CHOSEN_KEYS,
    show_default=True,
    help="Count texts that somebody chose to collide under weak fingerprints.",
)
def soak(
    minutes: float,
    disturbances: int | None,
    seed: int,
    executors: int,
    out: Path | None,
    verbose: bool,
    keep: Path | None,
    only: tuple[str, ...],
    chosen_keys: bool,
) -> None:
    """Disturb a query in every way we can, then compare it with a batch run.

    Drivers, executors and Python workers are killed and stopped, at random times and at named
    points; the store fails and is out of reach; its disk fills up and becomes read-only; the clock
    jumps. Beside it a reader and a client of `millrace serve` compare what they see, epoch by
    epoch. At the end all state and all outputs must equal a recomputation in one batch; the exit
    code is 1 if not.
    """
    if keep is not None and keep.is_dir() and any(keep.iterdir()):
        raise click.UsageError(f"{keep} is not empty; --keep needs a new or empty directory.")
    console = Console(soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="millrace-soak-"))
    interrupted = threading.Event()
    disk = Disk(folder / "disk")
    try:
        with explained(), interrupts_set(interrupted):
            wanted = Wanted(minutes, disturbances, seed, executors, only, chosen_keys)
            result = _run(console, folder, disk, wanted, verbose, interrupted)
        if result is None:
            click.echo("interrupted; nothing is left running")
            sys.exit(INTERRUPTED)
        _show(console, result)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(result, indent=2) + "\n")
        failed = result["mismatches"] or result["problems"]
        if keep is not None or failed:
            _keep(folder, keep)
        if failed:
            sys.exit(1)
    except Exception:
        _keep(folder, keep)
        raise
    finally:
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)


def _keep(folder: Path, keep: Path | None) -> None:
    kept = keep or Path(tempfile.mkdtemp(prefix="millrace-soak-failed-"))
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    click.echo(f"location, sinks and logs are in {kept}")


def _run(
    console: Console,
    folder: Path,
    disk: Disk,
    wanted: Wanted,
    verbose: bool,
    interrupted: threading.Event,
) -> dict[str, Any] | None:
    left_out = dict.fromkeys(s.MOUNTS, disk.missing) if disk.missing else {}
    if clocks.missing():
        left_out[s.CLOCK_JUMP] = clocks.missing()
    for kind, what in left_out.items():
        console.print(f"left out: {kind}: needs {what}", highlight=False)
    only = wanted.only
    kinds = [k for k in s.WEIGHTS if k not in left_out and (not only or k.split(",")[0] in only)]
    seconds = wanted.minutes * 60
    clock_ = None if s.CLOCK_JUMP in left_out else clocks.JumpingClock(folder)
    columns = BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn()
    began = clock.stopwatch()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        display = _Display(console, bar, seconds, verbose)
        supervisor = Supervisor(
            folder,
            disk,
            s.Schedule(wanted.seed, kinds, wanted.executors),
            wanted.executors,
            clock_,
            wanted.chosen_keys,
            display.say,
            interrupted.is_set,
        )
        try:
            supervisor.run(seconds, wanted.disturbances, display.progress)
        except Interrupted:
            return None
    console.print("comparing all state and outputs with a batch run ...", highlight=False)
    verdict = check(supervisor.location, supervisor.sinks, wanted.chosen_keys)
    verdict.mismatches += supervisor.companions.mismatches()
    return _result(
        wanted, left_out, began, supervisor.tally, verdict, supervisor.companions.counts()
    )


def _result(
    wanted: Wanted,
    left_out: dict[str, str],
    began: float,
    tally: Tally,
    verdict: Verdict,
    beside: dict[str, int],
) -> dict[str, Any]:
    result = Result("soak")
    result.figure("seconds", clock.stopwatch() - began)
    result.figure("epochs", tally.epoch)
    result.figure("rows", verdict.rows)
    result.figure("restarts", tally.restarts)
    result.figure("disturbances", sum(tally.acts.values()))
    result.figure("rows compared", sum(verdict.compared.values()))
    result.figure("seconds of the slowest zombie", tally.slowest_zombie)
    result.at_most("mismatches", len(verdict.mismatches), 0)
    result.at_most("problems", len(tally.problems), 0)
    result.compare("a batch run", not verdict.mismatches)
    return {
        **result.to_json(),
        "command": wanted.command,
        "minutes": wanted.minutes,
        "seed": wanted.seed,
        "executors": wanted.executors,
        "epochs": tally.epoch,
        "rows": verdict.rows,
        "restarts": tally.restarts,
        "disturbances": dict(sorted(tally.acts.items())),
        "ends": dict(sorted(tally.ends.items())),
        "spark": dict(sorted(tally.spark.items())),
        "beside": beside,
        "chosen_keys": wanted.chosen_keys,
        "left_out": left_out,
        "compared": verdict.compared,
        "problems": tally.problems,
        "mismatches": verdict.mismatches,
    }


def _show(console: Console, result: dict[str, Any]) -> None:
    table = Table(title="soak", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name in ("epochs", "rows", "restarts"):
        table.add_row(name, f"{result[name]:,}")
    for title, part in (
        ("disturbances", "disturbances"),
        ("how drivers ended", "ends"),
        ("what Spark did", "spark"),
        ("beside the query", "beside"),
        ("rows compared", "compared"),
    ):
        table.add_section()
        table.add_row(f"[bold]{title}[/]", f"{sum(result[part].values()):,}")
        for name, count in result[part].items():
            table.add_row(f"  {name}", f"{count:,}")
    table.add_section()
    for name in ("problems", "mismatches"):
        count = len(result[name])
        table.add_row(name, f"[{'red' if count else 'green'}]{count}[/]")
    console.print(table)
    for line in [*result["problems"], *result["mismatches"]]:
        console.print(f"  {line}", style="red", highlight=False, markup=False)
