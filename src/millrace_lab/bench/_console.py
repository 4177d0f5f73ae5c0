"""What a benchmark shows: a line of progress while it runs, tables at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace_lab.bench._contract import Result


class Steps:
    """The steps of a benchmark as they happen."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name
        self._started = time.perf_counter()
        self._task = progress.add_task(f"{name}: starting")

    def step(self, text: str) -> None:
        """What is being done now."""
        self._progress.update(self._task, description=f"{self._name}: {text}")
        if not self._progress.console.is_terminal:
            self.say(f"{time.perf_counter() - self._started:6.1f} s  {self._name}: {text}")

    def say(self, text: str) -> None:
        """Something worth keeping on the screen."""
        self._progress.console.print(text, highlight=False)


@contextmanager
def steps(console: Console, name: str) -> Iterator[Steps]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    # Without a terminal every step is a line of its own, and the moving one would be noise.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield Steps(bar, name)


def _table(benchmark: str, what: str, values: Mapping[str, float]) -> Table:
    table = Table(title=f"{benchmark}: {what}s", title_justify="left")
    table.add_column(what)
    table.add_column("value", justify="right")
    for name, value in values.items():
        table.add_row(name, _number(value))
    return table


def show(console: Console, result: Result) -> None:
    """Figures, ratios and bars."""
    console.print(_table(result.name, "figure", result.figures))
    if result.ratios:
        console.print(_table(result.name, "ratio", result.ratios))
    if result.bars:
        bars = Table(title=f"{result.name}: bars", title_justify="left")
        for heading in ("bar", "value", "target", ""):
            bars.add_column(heading, justify="right" if heading in ("value", "target") else "left")
        for bar in result.bars:
            mark = "[green]reached[/]" if bar.ok else "[red]missed[/]"
            bars.add_row(bar.name, _number(bar.value), _number(bar.target), mark)
        console.print(bars)
    if result.equal:
        console.print("outputs: [green]equal[/]")
    else:
        console.print("outputs: [bold red]different[/]; the times mean nothing")
        for difference in result.differences:
            console.print(f"  {difference}", highlight=False)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
