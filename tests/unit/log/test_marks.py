"""What is left of collected epochs, and who finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.ids import Epoch
from millrace.log import marks, open_store
from millrace.log.marks import LARGE, SMALL, is_marked, mark, most_marks, tidy
from millrace.log.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_epochs_that_were_collected_are_marked(store: Store) -> None:
    mark(store, [Epoch(3), Epoch(SMALL + 1), Epoch(SMALL + 2)])
    mark(store, [Epoch(4)])
    assert store.list("") == ["collected/64/000000000000", "collected/64/000000000001"]
    assert all(is_marked(store, Epoch(e)) for e in (1, 3, SMALL - 1, SMALL, 2 * SMALL - 1))
    assert not is_marked(store, Epoch(2 * SMALL))
    assert not is_marked(store, Epoch(LARGE))


def test_many_small_marks_become_a_large_one(store: Store) -> None:
    epochs = [Epoch(e) for e in (*range(1, LARGE, 7 * SMALL), LARGE + SMALL + 1)]
    mark(store, epochs)
    before = store.list("")
    tidy(store, Epoch(2 * LARGE - 1))
    assert store.list("") == before
    tidy(store, Epoch(2 * LARGE))
    last = LARGE // SMALL + 1
    assert store.list("") == [f"collected/64/{last:012d}", "collected/65536/000000000000"]
    assert all(is_marked(store, epoch) for epoch in epochs)
    assert not is_marked(store, Epoch(2 * LARGE))


def test_no_moment_is_without_a_mark(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mark(store, [Epoch(5)])
    seen = []
    delete = type(store).delete

    def watched(self: Store, path: str) -> None:
        seen.append(self.size("collected/65536/000000000000"))
        delete(self, path)

    monkeypatch.setattr(type(store), "delete", watched)
    tidy(store, Epoch(2 * LARGE))
    assert seen == [0]


def test_the_head_of_most_queries_is_in_a_range_without_a_mark() -> None:
    assert marks.SMALL <= 100


def test_there_are_no_more_marks_than_is_said(store: Store) -> None:
    for head in (1, 20 * SMALL, 2 * LARGE):
        mark(store, [Epoch(e) for e in range(0, head, SMALL)])
        tidy(store, Epoch(head))
        assert len(store.list("")) <= most_marks(Epoch(head))
    assert most_marks(Epoch(2 * LARGE)) == LARGE // SMALL + 2
