"""A run that does not commit finds out that another one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import FencedError
from millrace.ids import Epoch
from millrace.log import Journal, open_store
from millrace.log import journal as journal_module
from millrace.log.fence import Fence
from millrace.log.retention import collect

US = "this-one"


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setattr(journal_module, "FULL_EVERY", 3)
    return Journal.create(open_store(str(tmp_path)), 64)


def commit(journal: Journal, run: str, epochs: int = 1) -> Epoch:
    for _ in range(epochs):
        trail = journal.newest()
        journal.commit(
            trail,
            run=run,
            batch_id=trail.epoch,
            watermark_ms=None,
            operators={},
            specs={},
            full=False,
        )
    return journal.head()


@pytest.fixture
def fence(journal: Journal) -> Fence:
    return Fence(journal, US)


def test_a_run_whose_epochs_follow_each_other_is_not_fenced(journal: Journal, fence: Fence) -> None:
    for _ in range(5):
        ours = commit(journal, US)
        fence.check(ours, has_committed=True)
        fence.check(ours, has_committed=True)


def test_one_epoch_of_another_run_ends_a_run(journal: Journal, fence: Fence) -> None:
    ours = commit(journal, US)
    fence.check(ours, has_committed=True)
    commit(journal, "another")
    with pytest.raises(FencedError, match=r"epoch 2 of .* was committed by run another \(batch"):
        fence.check(ours, has_committed=True)


def test_an_epoch_that_was_just_committed_is_the_runs_own(journal: Journal, fence: Fence) -> None:
    """The manifest is there, and the run has not come round to knowing it."""
    before = commit(journal, US)
    fence.check(before, has_committed=True)
    commit(journal, US)
    fence.check(before, has_committed=True)


def test_the_other_run_may_have_collected_the_epochs_between(
    journal: Journal, fence: Fence
) -> None:
    ours = commit(journal, US)
    fence.check(ours, has_committed=True)
    theirs = commit(journal, "another", 12)
    collect(journal, 1)
    assert not journal.has(ours + 1)
    with pytest.raises(FencedError, match=rf"epoch {theirs} of .* by run another "):
        fence.check(ours, has_committed=True)


def test_a_new_run_lets_its_predecessor_finish_an_epoch(journal: Journal, fence: Fence) -> None:
    version = commit(journal, "predecessor")
    fence.check(version, has_committed=False)
    commit(journal, "predecessor")
    fence.check(version, has_committed=False)
    commit(journal, "predecessor")
    with pytest.raises(FencedError, match=r"epoch 3 of .* by run predecessor "):
        fence.check(version, has_committed=False)


def test_a_slow_start_is_not_fenced_by_what_came_before_it(journal: Journal, fence: Fence) -> None:
    version = commit(journal, "predecessor")
    # Spark reads its logs after this, so the run continues after this epoch.
    commit(journal, "predecessor", 5)
    fence.check(version, has_committed=False)
    fence.check(version, has_committed=False)


def test_a_run_that_moves_looks_at_nothing(
    journal: Journal, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence.check(commit(journal, US), has_committed=True)
    monkeypatch.setattr(journal, "head", None)
    for version in (2, 3, 4):
        fence.check(Epoch(version), has_committed=True)
