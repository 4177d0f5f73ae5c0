"""The table of epochs: live in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

SHARD_PHASES = ("input", "follow", "apply", "segment")


@dataclass(frozen=True)
class EpochLine:
    """What the table says of one epoch."""

    epoch: int
    rows: int
    latency_ms: float
    state_rows: int
    state_bytes: int
    bytes_written: int
    shards: int
    shard_ms: dict[str, float]
    """The slowest shard's time in each phase."""

    @property
    def rows_per_second(self) -> float:
        return self.rows / max(self.latency_ms, 1) * 1000

    def cells(self) -> list[str]:
        phases = (f"{self.shard_ms.get(phase, 0):.0f}" for phase in SHARD_PHASES)
        return [
            f"{self.epoch}",
            f"{self.rows:,}",
            f"{self.rows_per_second:,.0f}",
            f"{self.latency_ms:,.0f}",
            f"{self.state_rows:,}",
            size(self.state_bytes),
            size(self.bytes_written),
            f"{self.shards}",
            " / ".join(phases),
        ]


COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("", "epoch", 5),
    ("", "rows", 9),
    ("", "rows/s", 9),
    ("latency", "ms", 7),
    ("state", "rows", 9),
    ("state", "on disk", 8),
    ("bytes", "written", 8),
    ("", "shards", 6),
    ("slowest shard, ms:", "/".join(SHARD_PHASES), 26),
)
"""Heading in two lines, and width. Fixed, so that the lines above and below a mark align."""


def size(count: int) -> str:
    """Bytes for people."""
    if count < 1000:
        return f"{count} B"
    for unit, limit in (("kB", 1e6), ("MB", 1e9)):
        if count < limit:
            return f"{count / (limit / 1000):.1f} {unit}"
    return f"{count / 1e9:.1f} GB"


class Board:
    """Shows lines and marks as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        room = max(console.height - 8, 5) if console.is_terminal else 0
        self._lines: deque[EpochLine | str | Text] = deque(maxlen=room)
        self._status = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show until the block ends. The last state of the table stays on the screen."""
        if not self._console.is_terminal:
            self._print([above for above, _, _ in COLUMNS])
            self._print([below for _, below, _ in COLUMNS])
            yield
            return
        with Live(self._view(), console=self._console, auto_refresh=False) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def add(self, line: EpochLine) -> None:
        if self._live is None:
            self._print(line.cells())
        self._lines.append(line)
        self._refresh()

    def mark(self, text: str) -> None:
        """A line across the table."""
        if self._live is None:
            self._console.print(f"--- {text}", soft_wrap=True, highlight=False)
        self._lines.append(text)
        self._refresh()

    def say(self, text: str) -> None:
        """A line between epochs, as it is."""
        if self._live is None:
            self._console.print(text, soft_wrap=True, highlight=False, markup=False)
        self._lines.append(Text(text))
        self._refresh()

    def status(self, text: str) -> None:
        """What is going on, below the table; not shown outside a terminal."""
        self._status = text
        self._refresh()

    def _print(self, cells: Sequence[str]) -> None:
        columns = zip(cells, COLUMNS, strict=True)
        plain = " ".join(cell.rjust(width) for cell, (_, _, width) in columns)
        self._console.print(plain, soft_wrap=True, highlight=False)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._view(), refresh=True)

    def _view(self) -> Group:
        parts: list[RenderableType] = [_table(header=True)]
        for line in self._lines:
            if isinstance(line, EpochLine):
                table = parts[-1]
                if not isinstance(table, Table):
                    table = _table(header=False)
                    parts.append(table)
                table.add_row(*line.cells())
            else:
                parts.append(
                    Rule(line, align="left", style="yellow") if type(line) is str else line
                )
        return Group(*parts, Text(self._status, style="dim"))


def _table(*, header: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=header)
    for above, below, width in COLUMNS:
        table.add_column(f"{above}\n{below}", justify="right", width=width, no_wrap=True)
    return table
