"""The processes beside the query of a soak: what their reports add up to, and how they end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millrace_lab.soak import beside as beside_module
from millrace_lab.soak.beside import Beside
from millrace_lab.soak.witness import Report


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def beside(tmp_path: Path, problems: list[str]) -> Beside:
    return Beside(tmp_path, tmp_path / "location", {}, False, lambda text: None, problems.append)


def test_the_reports_of_all_witnesses_add_up(beside: Beside, tmp_path: Path) -> None:
    folder = tmp_path / "witnesses"
    first = Report(3, Counter({"epochs compared": 3}), ["wrong"], ["odd"])
    second = Report(5, Counter({"epochs compared": 2, "met StoreError": 1}))
    first.write(folder / "reading-1.json")
    second.write(folder / "reading-2.json")
    Report(5, Counter({"look-ups compared": 9}), ["late"]).write(folder / "asking-1.json")
    beside.starts.update({"reading": 2, "serve": 4})
    assert beside.counts() == {
        "client: look-ups compared": 9,
        "reader: epochs compared": 5,
        "reader: met StoreError": 1,
        "reader: started": 2,
        "serve: started": 4,
    }
    assert beside.mismatches() == ["client: late", "reader: wrong"]
    assert beside.problems() == ["reader: odd"]


def test_a_witness_that_has_not_seen_the_last_epoch_is_a_problem(
    beside: Beside, tmp_path: Path, problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside_module, "WITNESS_SECONDS", 0.05)
    beside.starts.update({"reading": 1, "asking": 1})
    Report(7).write(tmp_path / "witnesses" / "reading-1.json")
    Report(6).write(tmp_path / "witnesses" / "asking-1.json")
    beside.finish(7, lambda: None)
    assert [text.partition(":")[0] for text in problems] == ["client is at epoch 6, not 7"]


def test_there_is_no_server_to_kill_before_it_listens(beside: Beside) -> None:
    assert not beside.kill_serve()
