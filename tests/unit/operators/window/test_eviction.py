"""Windows that are over leave the state, its counts and, with a merge, the disk."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.operators.window.driving import Windowed, make_operator, partial_table

from millrace.operators.window.emission import FINAL, Emission
from millrace.operators.window.panes import Windows
from millrace.reading.reader import open_location
from millrace.state import merging
from millrace.state.eviction import Eviction

MINUTE = 60_000_000


def test_a_row_without_a_time_stays() -> None:
    over = Eviction("t", 5).over(pa.array([4, 5, None, -1]))
    assert over.tolist() == [True, False, False, True]


def test_state_stays_as_large_as_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MERGE_RATIO", 0.5)
    operator = make_operator(Windows(MINUTE, MINUTE), Emission(FINAL))
    driven = Windowed("memory://windows-bounded", operator)
    stored = []
    for minute in range(1, 40):
        driven.watermark_us = max(0, minute - 2) * MINUTE
        rows = [(f"k{n}", minute * MINUTE, n) for n in range(100)]
        emitted = driven.send(partial_table(operator, [rows]))
        assert len(emitted) == (100 if minute > 3 else 0)
        log = driven.trail.operator(driven.operator.name)  # type: ignore[arg-type]
        sections = [s for entry in log.segments().values() for s in entry.sections]
        stored.append(sum(section.rows for section in sections))
    assert driven.rows == 300
    assert driven.counters["evicted"] == 100
    assert max(stored[20:]) <= max(stored[:20])
    # Nothing comes for an hour: all is over, although nothing was written for it.
    driven.watermark_us = 120 * MINUTE
    assert len(driven.send()) == driven.counters["evicted"] > 0
    assert driven.rows == 0
    assert driven.send() == []
    driven.restart()
    assert driven.send() == []
    with open_location("memory://windows-bounded", lease=False) as reader:
        assert reader.to_arrow().num_rows == 0
        assert reader.sql("select count(*) as n from windows").to_pylist() == [{"n": 0}]
        assert reader.sql("select rows from millrace_operators").to_pylist() == [{"rows": 0}]
    with open_location("memory://windows-bounded", epoch=39, lease=False) as before:
        assert before.to_arrow().num_rows == 300
