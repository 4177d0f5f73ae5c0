"""What a query starts with, after whatever it had before."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import UsageError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.log import Journal, OperatorCommit, Trail, open_store
from millrace.reconfigure.placement import starting_assignments

OP, OTHER = OperatorName("op"), OperatorName("other")
GROUPS = 16


def after(folder: Path, assignment: Assignment, wanted: dict[OperatorName, int]) -> Trail:
    """What a driver reads that starts after an epoch with an assignment."""
    journal = Journal.create(open_store(str(folder)), GROUPS)
    journal.commit(
        journal.trail(Epoch(0)),
        run="run",
        batch_id=0,
        watermark_ms=None,
        operators={OP: OperatorCommit(assignment, (), 0)},
        specs={OP: {}},
        full=True,
        unmet_parallelism=wanted,
    )
    return journal.trail(journal.head())


def test_without_a_past(caplog: pytest.LogCaptureFixture) -> None:
    trail = Trail(GROUPS)
    assert starting_assignments("here", trail, [OP], None, 3)[OP].shards == 3
    assert starting_assignments("here", trail, [OP], None, 99)[OP].shards == GROUPS
    assert starting_assignments("here", trail, [OP], 5, 3)[OP].shards == 5
    both = starting_assignments("here", trail, [OP, OTHER], {"op": 2}, 3)
    assert {name: a.shards for name, a in both.items()} == {OP: 2, OTHER: 3}
    assert not caplog.messages


def test_what_was_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    uneven = Assignment(2, (0,) * 3 + (1,) * 13)
    trail = after(tmp_path, uneven, {})
    for parallelism in (None, 2, {"op": 2}, {}):
        assert starting_assignments("here", trail, [OP], parallelism, 9) == {OP: uneven}
    assert not caplog.messages


def test_a_rescale_that_the_program_undoes_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trail = after(tmp_path, Assignment.even(GROUPS, 4), {})
    assert starting_assignments("here", trail, [OP], 2, 9)[OP] == Assignment.even(GROUPS, 2)
    (told,) = caplog.messages
    assert told.startswith("here: operator 'op' should have had 4 shards up to epoch 1; ")
    assert "continues with 2, because the program sets parallelism=" in told


def test_shards_that_were_lost_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Executors went first, and then the driver: what is wanted has outlived both."""
    trail = after(tmp_path, Assignment.even(GROUPS, 3), {OP: 4})
    for parallelism in (None, 4):
        assert starting_assignments("here", trail, [OP], parallelism, 9)[OP].shards == 4
    assert not caplog.messages
    assert starting_assignments("here", trail, [OP], 3, 9)[OP].shards == 3
    assert "should have had 4 shards" in caplog.messages[0]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"parallelism= names 'odd'.*operators are 'op'"):
        starting_assignments("here", Trail(GROUPS), [OP], {"odd": 1}, 1)
    with pytest.raises(UsageError, match="parallelism=17"):
        starting_assignments("here", Trail(GROUPS), [OP], 17, 1)
