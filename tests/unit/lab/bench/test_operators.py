"""`bench operators` without its engines: the rows, what must come out, and which case is where."""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict

import duckdb
import numpy as np
import pyarrow as pa

from millrace_lab.bench._foreign.engines import cases, job
from millrace_lab.bench._operator_tiles import TileOptions
from millrace_lab.bench._sides.operators import MILLRACE, SPARK, newest, whole_numbers
from millrace_lab.bench.operators import Options, expected, ordered
from millrace_lab.bench.patterns import Options as PatternOptions

ROWS, KEYS, MINUTES = 600, 40, 4


def ms_of(v: int, rows: int = ROWS) -> int:
    return cases.BASE_MS - v * 7919 % cases.JITTER_MS + v * cases.MINUTE_MS // rows


def test_rows_are_the_same_in_sql_and_in_python() -> None:
    columns = ", ".join(f"{sql} AS {name}" for name, sql in cases.columns_sql(ROWS, KEYS).items())
    far = [0, 1, 599, 600, 2_399, 10**9]
    found = duckdb.sql(f"SELECT {columns} FROM (SELECT UNNEST({far}) AS v)").fetchall()
    assert found == [(v, job.key_of(v, KEYS), job.amount_of(v), ms_of(v)) for v in far]


def test_no_row_is_late() -> None:
    newest = 0
    for v in range(MINUTES * ROWS):
        newest = max(newest, ms_of(v))
        assert ms_of(v) > newest - cases.DELAY_S * 1000


def test_what_windows_must_emit() -> None:
    for name, size, slide in (("tumbling", 1, 1), ("hopping", 10, 1)):
        totals: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for v in range(MINUTES * ROWS):
            last = ms_of(v) // cases.MINUTE_MS
            for minute in range(last - size + 1, last + 1, slide):
                window = minute * cases.MINUTE_MS, (minute + size) * cases.MINUTE_MS
                totals[job.key_of(v, KEYS), *window].append(job.amount_of(v))
        wanted = sorted(
            (*window, len(amounts), sum(amounts))
            for window, amounts in totals.items()
            if window[2] <= cases.limit_ms(MINUTES)
        )
        found = expected(cases.BY_NAME[name], KEYS, ROWS, MINUTES)
        assert [tuple(row) for row in found.tolist()] == wanted
        assert len(wanted) > KEYS
        shuffled = np.random.default_rng(1).permutation(found)
        assert np.array_equal(ordered(cases.BY_NAME[name], shuffled, MINUTES), found)


def emitted(name: str) -> list[tuple[int, ...]]:
    """What one batch says must come out."""
    found = expected(cases.BY_NAME[name], KEYS, ROWS, MINUTES)
    return [tuple(row) for row in found.tolist()]


def rows_by_key(part: slice = slice(None)) -> dict[int, list[tuple[int, int]]]:
    """Event time and number of some rows, in order, by key."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for v in range(MINUTES * ROWS)[part]:
        found[job.key_of(v, KEYS)].append((ms_of(v), v))
    return {key: sorted(rows) for key, rows in found.items()}


def test_what_sessions_must_emit() -> None:
    gap, wanted = cases.GAP_S * 1000, []
    for key, rows in rows_by_key().items():
        session: list[tuple[int, int]] = []
        for row in [*rows, (cases.BASE_MS * 2, 0)]:
            if session and row[0] > session[-1][0] + gap:
                total = sum(job.amount_of(v) for _, v in session)
                wanted.append((key, session[0][0], session[-1][0] + gap, len(session), total))
                session = []
            session.append(row)
    limit = cases.limit_ms(MINUTES)
    assert emitted("session") == sorted(row for row in wanted if row[2] <= limit)
    assert any(n > 1 for _, _, _, n, _ in emitted("session"))


def test_what_passes_without_duplicates() -> None:
    ticks = {
        (key, ms // cases.TICK_MS * cases.TICK_MS)
        for key, rows in rows_by_key().items()
        for ms, _ in rows
    }
    assert emitted("dedup") == sorted(t for t in ticks if t[1] <= cases.limit_ms(MINUTES))
    # What has the same key within a tick is found, because the watermark is not so far behind.
    assert cases.TICK_MS <= cases.DELAY_S * 1000


def test_what_joins_must_emit() -> None:
    others = rows_by_key(slice(1, None, 2))
    inner, left = [], []
    for key, rows in rows_by_key(slice(0, None, 2)).items():
        for ms, v in rows:
            near = [w for at, w in others.get(key, ()) if 0 <= ms - at <= cases.WITHIN_S * 1000]
            if ms <= cases.limit_ms(MINUTES):
                inner += [(key, v, ms, w) for w in near]
                left += [(key, v, ms, w) for w in near or [-1]]
    assert emitted("inner_join") == sorted(inner)
    assert emitted("left_join") == sorted(left)
    assert 0 < len(inner) < len(left)


def test_which_rows_are_the_best() -> None:
    wanted = [
        (key, *row)
        for key, rows in rows_by_key().items()
        for row in sorted((job.amount_of(v), v) for _, v in rows)[-cases.BEST :]
    ]
    assert emitted("top") == sorted(wanted)


def test_what_patterns_must_find() -> None:
    def jump(a: list[int]) -> bool:
        return a[0] < cases.LOW and a[1] >= cases.HIGH

    def rising(a: list[int]) -> bool:
        return a[0] < a[1] < a[2]

    def streak(a: list[int]) -> bool:
        return max(a[:4]) < 700 and a[4] * 4 > sum(a[:4]) * 2

    o, limit = PatternOptions(), cases.limit_ms(MINUTES)
    by_key: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for v in range(MINUTES * o.verify_rows):
        by_key[job.key_of(v, o.verify_keys)].append((ms_of(v, o.verify_rows), v))
    for name, length, holds in (("jump", 2, jump), ("rising", 3, rising), ("streak", 5, streak)):
        wanted = []
        for key, found in by_key.items():
            rows = sorted(found)
            for i in range(len(rows) - length + 1):
                chosen = rows[i : i + length]
                first, last = chosen[0], chosen[-1]
                in_time = last[0] - first[0] < cases.WITHIN_PATTERN_S * 1000 and last[0] <= limit
                if in_time and holds([job.amount_of(v) for _, v in chosen]):
                    wanted.append((key, first[1], last[1], last[0]))
        batch = expected(cases.BY_NAME[name], o.verify_keys, o.verify_rows, MINUTES)
        assert [tuple(row) for row in batch.tolist()] == sorted(wanted)
        assert wanted


def test_no_two_of_the_compared_rows_of_a_pattern_have_one_key_and_time() -> None:
    o = PatternOptions()
    rows = range(o.verify_rows * o.verify_minutes)
    at = {(job.key_of(v, o.verify_keys), ms_of(v, o.verify_rows)) for v in rows}
    assert len(at) == len(rows)


def test_of_updates_the_newest_of_each_key_are_left() -> None:
    batches = [[[1, 5], [1, 4], [2, 3]], [[2, 9]], [[1, 6], [1, 5]]]
    found = newest([np.asarray(rows, np.int64) for rows in batches])
    assert found.tolist() == [[2, 9], [1, 6], [1, 5]]


def test_every_case_is_on_every_side() -> None:
    names = [case.name for case in cases.CASES]
    patterns = {case.name for case in cases.PATTERNS}
    assert set(names) == SPARK.keys() == set(Options().cases)
    assert MILLRACE.keys() == {*names, *patterns}
    assert patterns == set(PatternOptions().cases) == set(PatternOptions().quick().cases)
    for case in (*cases.CASES, *cases.PATTERNS):
        assert case.final is None or case.final in case.columns
        assert re.search(r"\bevents\b", case.flink)


def test_output_becomes_whole_numbers() -> None:
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    window = {"start": at, "end": at + dt.timedelta(minutes=1)}
    table = pa.Table.from_pylist(
        [{"k": 7, "window": window, "n": 2}, {"k": 8, "window": window, "n": None}],
        pa.schema(
            [
                ("k", pa.int64()),
                ("window", pa.struct([(s, pa.timestamp("us", "UTC")) for s in window])),
                ("n", pa.int32()),
            ]
        ),
    )
    start = round(at.timestamp() * 1000)
    found = whole_numbers(table, ("n", "k", "start", "end"))
    assert found.tolist() == [[2, 7, start, start + 60_000], [-1, 8, start, start + 60_000]]


def test_a_quick_run_is_smaller() -> None:
    quick = Options().quick()
    assert quick.rows < Options().rows
    assert quick.tiles.keys < TileOptions().keys
    assert Options(keys=(7,)).quick().keys == (7,)
