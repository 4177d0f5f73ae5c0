"""The table of epochs, in a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from millrace_lab.demo.board import COLUMNS, Board, EpochLine, size


def line(epoch: int) -> EpochLine:
    return EpochLine(epoch, 200_000, 250, 92_795, 25_200_000, 999, 2, {"apply": 36.4})


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, height=30, color_system=None)
    board = Board(console)
    with board.open():
        for epoch in (1, 2):
            board.add(line(epoch))
        board.mark("restarted with parallelism 4")
        board.say("  device  [n]")
        board.add(line(3))
        board.status("nearly done")
    return out.getvalue()


def test_plain_lines_say_everything_once() -> None:
    lines = shown(terminal=False).splitlines()
    assert "\x1b" not in "".join(lines)
    assert len(lines) == 7
    assert lines[4:6] == ["--- restarted with parallelism 4", "  device  [n]"]
    for row, epoch in ((lines[2], 1), (lines[3], 2), (lines[6], 3)):
        cells = row.split()
        assert cells[:5] == [str(epoch), "200,000", "800,000", "250", "92,795"]
        assert row.split("  ")[-1].strip() == "0 / 0 / 36 / 0"


def test_a_terminal_shows_the_last_state() -> None:
    last = shown(terminal=True).rsplit("\x1b[2K", 1)[-1]
    assert [heading for _, heading, _ in COLUMNS if heading not in last] == []
    assert last.index("restarted") < last.index("device  [n]") < last.index("nearly done")
    assert last.count("200,000") == 3


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (25_200_000, "25.2 MB"),
        (3_100_000_000, "3.1 GB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text
