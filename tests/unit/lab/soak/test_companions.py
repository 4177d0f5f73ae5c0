"""The processes beside the query of a soak: what their reports add up to, and how they end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millrace_lab.soak import companions as companions_module
from millrace_lab.soak.companions import Companions
from millrace_lab.soak.witness import Report


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def companions(tmp_path: Path, problems: list[str]) -> Companions:
    return Companions(
        tmp_path, tmp_path / "location", {}, False, lambda text: None, problems.append
    )


def test_the_reports_of_all_witnesses_add_up(companions: Companions, tmp_path: Path) -> None:
    folder = tmp_path / "witnesses"
    first = Report(3, Counter({"epochs compared": 3}), ["wrong"], ["odd"])
    second = Report(5, Counter({"epochs compared": 2, "met StoreError": 1}))
    first.write(folder / "reading-1.json")
    second.write(folder / "reading-2.json")
    Report(5, Counter({"look-ups compared": 9}), ["late"]).write(folder / "client-1.json")
    companions.starts.update({"reading": 2, "serve": 4})
    assert companions.counts() == {
        "client: look-ups compared": 9,
        "reader: epochs compared": 5,
        "reader: met StoreError": 1,
        "reader: started": 2,
        "serve: started": 4,
    }
    assert companions.mismatches() == ["client: late", "reader: wrong"]
    assert companions.problems() == ["reader: odd"]


def test_a_witness_that_has_not_seen_the_last_epoch_is_a_problem(
    companions: Companions, tmp_path: Path, problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companions_module, "WITNESS_SECONDS", 0.05)
    companions.starts.update({"reading": 1, "client": 1})
    Report(7).write(tmp_path / "witnesses" / "reading-1.json")
    Report(6).write(tmp_path / "witnesses" / "client-1.json")
    companions.finish(7, lambda: None)
    assert [text.partition(":")[0] for text in problems] == ["client is at epoch 6, not 7"]


def test_there_is_no_server_to_kill_before_it_listens(companions: Companions) -> None:
    assert not companions.kill_serve()
