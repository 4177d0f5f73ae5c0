"""The table of epochs: live in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
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


HEADINGS = (
    "epoch",
    "rows",
    "rows/s",
    "latency ms",
    "state rows",
    "state on disk",
    "written",
    "shards",
    "slowest shard ms: " + " / ".join(SHARD_PHASES),
)


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
        self._lines: deque[EpochLine | str] = deque(maxlen=room)
        self._status = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show until the block ends. The last state of the table stays on the screen."""
        if not self._console.is_terminal:
            self._console.print("  ".join(HEADINGS), soft_wrap=True)
            yield
            return
        with Live(self._table(), console=self._console, auto_refresh=False) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def add(self, line: EpochLine) -> None:
        if self._live is None:
            cells = zip(line.cells(), HEADINGS, strict=True)
            plain = "  ".join(cell.rjust(len(heading)) for cell, heading in cells)
            self._console.print(plain, soft_wrap=True, highlight=False)
        self._lines.append(line)
        self._refresh()

    def mark(self, text: str) -> None:
        """A line across the table."""
        if self._live is None:
            self._console.print(f"--- {text}", soft_wrap=True, highlight=False)
        self._lines.append(text)
        self._refresh()

    def status(self, text: str) -> None:
        """What is going on, below the table; not shown outside a terminal."""
        self._status = text
        self._refresh()

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        table = Table(caption=self._status, caption_justify="left", expand=False)
        for heading in HEADINGS:
            table.add_column(heading, justify="right", no_wrap=False, overflow="fold")
        for line in self._lines:
            if isinstance(line, EpochLine):
                table.add_row(*line.cells())
            else:
                # A mark has no columns of its own: it stands in the widest one, in a section.
                table.add_section()
                blank = [""] * (len(HEADINGS) - 1)
                table.add_row(*blank, Text(line, style="bold yellow", justify="left"))
                table.add_section()
        return table
