"""The witnesses of a soak: what they put up with, and what they report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from millrace.errors import CorruptManifestError, CorruptSegmentError, MissingFileError, StoreError
from millrace_lab.faults.outage import ClientFault
from millrace_lab.soak import workload as w
from millrace_lab.soak.client import Client, Expected
from millrace_lab.soak.state_check import Comparison, create_input, totals_after
from millrace_lab.soak.witness import Report, begin, is_planned


def raising(error: Exception) -> Any:
    def step(report: Report) -> None:
        raise error

    return step


@pytest.mark.parametrize("error", [StoreError(), ClientFault(), OSError(), MissingFileError()])
def test_a_store_that_fails_is_counted(error: Exception) -> None:
    report = Report()
    begin(raising(error), report)
    begin(raising(error), report)
    assert report.counts == {f"met {type(error).__name__}": 2}
    assert report.problems == []


def test_an_error_that_nobody_planned_is_a_problem() -> None:
    report = Report()
    begin(raising(CorruptSegmentError("page 3")), report)
    begin(raising(KeyError("k")), report)
    assert report.problems == ["CorruptSegmentError: page 3", "KeyError: 'k'"]
    assert not report.counts


def test_a_manifest_that_was_just_collected_explains_an_error() -> None:
    error = CorruptManifestError("epoch 3 needs a manifest")
    assert not is_planned(error)
    error.__cause__ = MissingFileError("manifests/1")
    assert is_planned(error)


def test_a_report_survives_being_written(tmp_path: Path) -> None:
    report = Report(epoch=3)
    report.counts["epochs compared"] += 2
    report.mismatches.append("one")
    path = tmp_path / "reading-1.json"
    assert Report.read(path) == Report()
    report.write(path)
    assert Report.read(path) == report
    assert [found.name for found in tmp_path.iterdir()] == ["reading-1.json"]


def test_a_wrong_row_and_a_missing_one_are_found() -> None:
    with duckdb.connect(":memory:") as db:
        create_input(db, 2, chosen_keys=True)
        check = Comparison(db)
        right = db.execute(totals_after()).to_arrow_table()
        assert right is not None
        check.compare("totals", totals_after(), right)
        assert check.mismatches == []
        assert check.compared["totals"] == right.num_rows > 0
        check.compare("totals", totals_after(), right.slice(1))
        wrong = right.set_column(1, "n", pa.array([7] * right.num_rows, pa.int64()))
        check.compare("totals", totals_after(), wrong)
    assert ["is missing" in text for text in check.mismatches] == [True, True, False]


@pytest.mark.parametrize("chosen", [False, True])
def test_the_texts_of_a_pair_have_rows_of_their_own(chosen: bool) -> None:
    texts = w.names(chosen)
    assert len(set(texts)) == 2 * w.PAIRS
    assert {len(text) for text in texts} == {64}
    with duckdb.connect(":memory:") as db:
        create_input(db, 1, chosen)
        counts = dict(db.execute("select name, count(*) from input group by name").fetchall())
    assert set(counts) == set(texts)
    assert counts[texts[0]] > counts[texts[1]]


def test_answers_are_judged_at_the_epoch_that_they_name(tmp_path: Path) -> None:
    client, expected, report = Client(tmp_path, False), Expected(False), Report()

    def judge(epoch: int, key: int, row: dict[str, Any] | None) -> None:
        client._judge(report, {"epoch": epoch}, w.TOTALS, "k", [key], [row])

    for epoch in (1, 2):
        row = expected.row(epoch, w.TOTALS, 5)
        assert row is not None
        judge(epoch, 5, {name: value for name, value in row.items() if name != "k"})
        judge(epoch, w.KEYS + 5, None)
    assert report.mismatches == []
    assert report.counts["look-ups compared"] == 4
    judge(3, 5, expected.row(2, w.TOTALS, 5))
    judge(3, 5, None)
    judge(3, w.KEYS + 5, expected.row(3, w.TOTALS, 5))
    judge(2, w.KEYS + 5, None)
    assert len(report.mismatches) == 4
    assert report.mismatches[-1] == "serve went from epoch 3 back to 2"
