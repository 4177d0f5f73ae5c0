"""Files that appear at their time, and answers by batch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import until

from millrace_lab.linear_road.answers import COLUMNS
from millrace_lab.linear_road.generator import Tick
from millrace_lab.linear_road.playing import Answered, Inbox, Pace, Player


@pytest.fixture
def ticks(tmp_path: Path) -> list[Tick]:
    made = []
    for number in range(4):
        path = tmp_path / f"{number}.parquet"
        path.write_text(str(number))
        made.append(Tick(path, 600 + 10 * (number + 1), 1))
    return made


def shown(inbox: Inbox) -> list[str]:
    return sorted(path.read_text() for path in inbox.folder.iterdir())


def test_ticks_are_shown_in_order(tmp_path: Path, ticks: list[Tick]) -> None:
    inbox = Inbox(tmp_path / "inbox", ticks)
    inbox.show(3)
    assert (shown(inbox), inbox.left) == (["0", "1", "2"], 1)
    assert inbox.next == ticks[3]
    inbox.show(5)
    assert (shown(inbox), inbox.left) == (["0", "1", "2", "3"], 0)


def test_a_player_shows_what_is_due_and_waits_for_the_rest(
    tmp_path: Path, ticks: list[Tick]
) -> None:
    inbox = Inbox(tmp_path / "inbox", ticks)
    # Half of the ticks are due, and the others in an hour and more.
    pace = Pace(time.time() - 7_200, begin=600, tick=10, speed=10 / 3_600)
    player = Player(inbox, pace)
    until(lambda: inbox.left == 2, "two ticks")
    assert not player.is_done
    player.close()
    assert shown(inbox) == ["0", "1"]


class Frame:
    """What a sink is given."""

    def __init__(self, *times: int) -> None:
        self._times = times

    def toArrow(self) -> pa.Table:
        columns: dict[str, Any] = {name: [0] * len(self._times) for name in COLUMNS}
        return pa.table({**columns, "time": list(self._times)})


def test_a_batch_that_is_repeated_counts_once() -> None:
    answered = Answered()
    for batch, frame in ((0, Frame(7, 5)), (1, Frame()), (2, Frame(9)), (2, Frame(9))):
        answered.keep(frame, batch)  # type: ignore[arg-type]
    assert answered.rows()[:, COLUMNS.index("time")].tolist() == [5, 7, 9]
    assert [times.tolist() for _, _, times in answered.batches()] == [[7, 5], [9]]
