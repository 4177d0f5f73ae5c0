"""The end of the demonstration: a table of its acts, what happened, and whether it was right."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from millrace_lab.demo.board import EpochLine

COLUMNS = ("", "shards", "epochs", "rows/s in an epoch", "latency p50", "latency max")


@dataclass
class Act:
    """The epochs of one part."""

    name: str
    lines: list[EpochLine] = field(default_factory=list)

    def cells(self) -> list[str]:
        latencies = [line.latency_ms for line in self.lines]
        shards = sorted({line.shards for line in self.lines})
        return [
            self.name,
            ", ".join(map(str, shards)),
            str(len(self.lines)),
            f"{statistics.median(line.rows_per_second for line in self.lines):,.0f}",
            f"{statistics.median(latencies):,.0f} ms",
            f"{max(latencies):,.0f} ms",
        ]


@dataclass
class Summary:
    """What was found."""

    acts: list[Act] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    equal: bool | None = None

    def begin(self, name: str) -> Act:
        self.acts.append(Act(name))
        return self.acts[-1]

    def verdict(self, epoch: int, rows: int, keys: int, expected: int, equal: bool) -> None:
        """How the comparison with a batch ended."""
        self.equal = equal
        self.facts.append(
            f"state at epoch {epoch} ({keys:,} keys) and batch recomputation of {rows:,} rows "
            f"({expected:,} keys): {'equal' if equal else 'NOT equal'}"
        )

    def show(self, console: Console) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in COLUMNS:
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for act in self.acts:
            if act.lines:
                table.add_row(*act.cells())
        console.print()
        console.print(table)
        console.print()
        for fact in self.facts[:-1]:
            console.print(fact, soft_wrap=True, highlight=False)
        style = "bold green" if self.equal else "bold red"
        console.print(self.facts[-1], style=style, soft_wrap=True, highlight=False)
