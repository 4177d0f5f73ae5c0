"""The join operator's own rules: watermarks that go on, and rows of hot keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.operators.join.driving import TwoStreams, make_operator, table_of

from millrace import clock
from millrace.operators.join.matching import ALL, page_of, pairs
from millrace.operators.join.operator import JoinOperator
from millrace.operators.join.ordering import numbered, numbers, row_places, tick_bits

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("lower", "upper", "left", "right", "either"),
    [(-60, 0, 0, 60, 60), (0, 30, 30, 0, 30), (-5, 7, 7, 5, 7), (2, 4, 4, 0, 4), (-4, -2, 0, 4, 4)],
)
def test_the_watermark_is_held_back_by_how_long_rows_wait(
    lower: int, upper: int, left: int, right: int, either: int
) -> None:
    definition = make_operator(lower, upper, "full").definition
    for time, held in (("left", left), ("right", right), ("either", either)):
        operator = JoinOperator(make_operator(0, 0, "inner").name, replace(definition, time=time))
        assert operator.output_watermark(1000) == 1000 - held
        assert operator.output_watermark(None) is None


@pytest.mark.parametrize("interval", [(-3, 4), (2, 5), (-6, -1), (0, 0)])
def test_nothing_that_comes_out_is_late_for_what_follows(interval: tuple[int, int]) -> None:
    lower, upper = (seconds * SECOND for seconds in interval)
    for how in ("left", "right", "full", "semi", "anti"):
        operator = make_operator(lower, upper, how)
        driven = TwoStreams(f"memory://held-{clock.fresh_id()}", operator)
        times: dict[int, int] = {}
        random = np.random.default_rng(1)
        before = 0
        for epoch in range(12):
            driven.watermark_us = watermark = (100 + 2 * epoch) * SECOND
            sides = []
            for _ in range(2):
                rows = []
                for at in (watermark + random.integers(-2, 8, 6) * SECOND).tolist():
                    times[len(times)] = at
                    rows.append(("ab"[at % 2], at, len(times) - 1))
                sides.append(rows)
            for _, left, right in driven.emit(table_of(*sides)):
                if left is not None:
                    assert times[left] > before - max(upper, 0)
                if right is not None:
                    assert times[right] > before - max(-lower, 0)
            before = watermark


def test_rows_get_numbers_of_their_own_in_the_order_in_which_they_came() -> None:
    places = np.repeat(np.arange(4, dtype=np.uint64), [1, 3, 100, 0])
    lo, order = numbered(places, 7, 5)
    assert sorted(order.tolist()) == list(range(len(places)))
    pairs_of = list(zip(places[order].tolist(), lo[order].tolist(), strict=True))
    assert pairs_of == sorted(set(pairs_of))
    assert numbers(lo).tolist() == [(7 << 32) + 5 + i for i in range(len(places))]


@pytest.mark.parametrize("interval", [(-1000, 0), (-5, 2000), (0, 0), (-70_000_000, -3)])
def test_pairs_are_found_wherever_ticks_begin_anew(interval: tuple[int, int]) -> None:
    random = np.random.default_rng(3)
    bits = tick_bits(interval[1] - interval[0])
    turn = 1 << (24 + bits)
    # Around a turn, and a whole turn apart.
    base = random.choice([turn - 5_000, turn + 5_000, 2 * turn - 5_000], 400)
    times = np.asarray(base + random.integers(-8_000, 8_000, 400), np.int64)
    keys = np.asarray(random.choice([5 << 40, 5 << 40 | 3, 9 << 40], 400), np.uint64)
    lo = random.integers(0, 2, 400).astype(np.uint64)
    places = row_places(keys, times, bits)
    order = np.argsort(places)
    rows = keys[order], lo[order], times[order]
    some = np.arange(0, 400, 3)
    looked_for = tuple(column[some] for column in rows)
    page = page_of(places[order], rows[2], rows[1], rows[0].astype(np.uint32), 8)
    hit = np.zeros(len(some), np.bool_)
    found = pairs(looked_for, page, interval, bits, 0, 61, ALL, hit)  # type: ignore[arg-type]
    expected = {
        (i, j)
        for i, row in enumerate(some.tolist())
        for j in range(400)
        if rows[0][row] == rows[0][j]
        and rows[1][row] == rows[1][j]
        and interval[0] <= rows[2][j] - rows[2][row] <= interval[1]
    }
    assert set(zip(found[0].tolist(), found[1].tolist(), strict=True)) == expected
    assert len(found[0]) == len(expected)
    assert np.flatnonzero(hit).tolist() == sorted({i for i, _ in expected})
