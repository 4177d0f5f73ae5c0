"""What the sides of `bench python` are compared with, and Millrace's own programs."""

from __future__ import annotations

import datetime as dt

from millrace.testing import Harness
from millrace_lab.bench._oracle_programs import by_batch, counts, sessions
from millrace_lab.bench._sides.programs import GAP_MS, OUTPUTS, SESSIONS, Count, Sessions

BATCHES = [
    [(1, 0), (2, 5), (1, 50)],
    [(1, 140), (3, 150)],
    [(2, 300), (3, 310), (3, 305)],
    [],
]


def test_counts_of_batches() -> None:
    assert counts(BATCHES) == [
        [(1, 2), (2, 1)],
        [(1, 3), (3, 1)],
        [(2, 2), (3, 3)],
        [],
    ]


def test_sessions_of_batches() -> None:
    # The watermarks are none, 40, 140 and 300.
    assert sessions(BATCHES, gap_ms=100, delay_ms=10) == [
        [],
        [],
        [(2, 5, 5, 1), (3, 150, 150, 1)],
        [(1, 0, 140, 3)],
    ]


def test_a_session_ends_when_the_watermark_is_its_gap_away() -> None:
    for latest, ended in ((209, []), (210, [(1, 100, 100, 1)])):
        assert sessions([[(1, 100), (2, latest)], []], gap_ms=100, delay_ms=10)[1] == ended


def test_columns_are_cut_into_batches() -> None:
    assert by_batch([1, 0, 1], [7, 8, 9], [1, 2, 3], 3) == [[(8, 2)], [(7, 1), (9, 3)], []]


def at(ms: int) -> dt.datetime:
    return dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


def test_the_sessioniser_emits_what_the_definition_says() -> None:
    harness = Harness(
        Sessions(),
        key="key",
        schema="key long, at timestamp",
        output=OUTPUTS[SESSIONS],
        event_time="at",
    )
    start = round(at(0).timestamp() * 1000)
    scaled = [[(key, time * GAP_MS // 100) for key, time in rows] for rows in BATCHES]
    found, latest = [], 0
    for rows in scaled:
        found += harness.send([{"key": key, "at": at(ms)} for key, ms in rows])
        latest = max([latest, *(ms for _, ms in rows)])
        found += harness.advance_watermark(at(latest - 10_000))
    # In a query the watermark moves with the next batch, so that needs one more.
    expected = sessions([*scaled, []], GAP_MS, 10_000)
    shifted = [(k, s + start, e + start, n) for batch in expected for k, s, e, n in batch]
    assert len(found) == 3
    assert sorted(found) == sorted(shifted)


def test_the_count_emits_what_the_definition_says() -> None:
    harness = Harness(Count(), key="key", schema="key long", output="key long, n long")
    found = [sorted(harness.send([{"key": key} for key, _ in rows])) for rows in BATCHES]
    assert found == counts(BATCHES)
