"""The oracle, by cases worked out by hand from the specification."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from millrace_lab.linear_road.answers import COLUMNS, difference
from millrace_lab.linear_road.oracle import Oracle, Row

ENTRY, TRAVEL, EXIT = 0, 1, 4


def report(
    time: int, vid: int, pos: int, *, spd: int = 30, lane: int = TRAVEL, xway: int = 0, dir: int = 0
) -> Row:
    return (0, time, vid, spd, xway, lane, dir, pos // 5280, pos, -1, -1)


def balance(time: int, vid: int, qid: int) -> Row:
    return (2, time, vid, -1, -1, -1, -1, -1, -1, qid, -1)


def answered(rows: Iterable[Row]) -> list[dict[str, int]]:
    oracle = Oracle(lambda vid, xway, day: 100 * vid + 10 * xway + day)
    oracle.take(rows)
    return [dict(zip(COLUMNS, row, strict=True)) for row in oracle.answers]


def of_type(rows: Iterable[Row], kind: int, *names: str) -> list[tuple[int, ...]]:
    return [tuple(one[name] for name in names) for one in answered(rows) if one["type"] == kind]


def crowd(minute: int, cars: int, seg: int, spd: int = 30) -> list[Row]:
    """Cars that report from a segment in a minute, numbered from 1000."""
    return [
        report((minute - 1) * 60 + n % 60, 1000 + n, seg * 5280 + n, spd=spd) for n in range(cars)
    ]


def wreck(begin: int, until: int, *vids: int, pos: int, lane: int = TRAVEL) -> list[Row]:
    """Cars that report the same place every 30 seconds, the last time before `until`."""
    return [
        report(time, vid, pos, spd=0, lane=lane) for vid in vids for time in range(begin, until, 30)
    ]


@pytest.mark.parametrize(("cars", "toll"), [(50, 0), (51, 2), (60, 200)])
def test_a_toll_begins_with_the_51st_car_of_the_last_minute(cars: int, toll: int) -> None:
    rows = [*crowd(1, cars, 7), report(60, 1, 7 * 5280)]
    assert of_type(rows, 0, "vid", "lav", "toll")[-1] == (1, 30, toll)


def test_a_car_that_reports_twice_is_one_car() -> None:
    twice = [report(row[1] // 2 + 30, row[2], row[8]) for row in crowd(1, 50, 7)]
    rows = [*crowd(1, 50, 7), *twice, report(60, 1, 7 * 5280)]
    assert of_type(rows, 0, "vid", "toll")[-1] == (1, 0)


@pytest.mark.parametrize(("spd", "toll"), [(39, 200), (40, 0)])
def test_a_fast_segment_is_free(spd: int, toll: int) -> None:
    rows = [*crowd(1, 60, 7, spd), report(60, 1, 7 * 5280)]
    assert of_type(rows, 0, "lav", "toll")[-1] == (spd, toll)


def test_the_speed_is_the_mean_of_all_readings_of_five_minutes() -> None:
    # One reading of 90 six minutes ago, one of 60, and three of 21.
    rows = [report(0, 2, 5280, spd=90), report(60, 2, 5280, spd=60)]
    rows += [report(time, 2, 5280, spd=21) for time in (240, 270, 300)]
    rows.append(report(360, 1, 5280))
    # (60 + 3 * 21) / 4 = 30.75; the mean of the minutes' means would be 34.
    assert of_type(rows, 0, "vid", "lav")[-1] == (1, 31)


def test_an_empty_segment_has_no_speed_and_no_toll() -> None:
    assert of_type([report(500, 1, 0)], 0, "lav", "toll") == [(0, 0)]


def test_a_toll_is_told_once_in_a_segment_and_not_on_the_way_out() -> None:
    rows = [
        report(0, 1, 100, lane=ENTRY),
        report(30, 1, 3000),
        report(60, 1, 5300),
        report(90, 1, 11000, lane=EXIT),
    ]
    assert of_type(rows, 0, "time") == [(0,), (60,)]


def test_a_toll_is_charged_when_the_car_enters_the_next_segment() -> None:
    rows = [*crowd(1, 60, 7), *crowd(2, 61, 8)]
    rows += [
        report(60, 1, 7 * 5280, lane=ENTRY),  # is told 200
        balance(60, 1, 1),
        report(119, 1, 8 * 5280 - 1),
        balance(119, 1, 2),
        report(149, 1, 8 * 5280 + 1),  # is charged 200, and told 2 * 11 * 11
        balance(149, 1, 3),
        report(179, 1, 9 * 5280 + 1, lane=EXIT),  # is charged 242
        balance(190, 1, 4),
    ]
    found = of_type(rows, 2, "qid", "balance", "since")
    assert found == [(1, 0, 0), (2, 0, 0), (3, 200, 149), (4, 442, 179)]


def test_the_toll_of_the_segment_of_the_exit_is_not_charged() -> None:
    rows = [*crowd(1, 60, 7)]
    rows += [report(60, 1, 7 * 5280), report(90, 1, 7 * 5280 + 99, lane=EXIT)]
    # Another trip, which begins elsewhere.
    rows += [report(300, 1, 20 * 5280, lane=ENTRY, xway=3), balance(300, 1, 1)]
    assert of_type(rows, 2, "balance", "since") == [(0, 0)]
    assert of_type(rows, 0, "vid", "time")[-1] == (1, 300)


def test_a_question_of_the_same_second_comes_after_the_report() -> None:
    rows = [*crowd(1, 60, 7), report(60, 1, 7 * 5280), balance(90, 1, 1)]
    rows.append(report(90, 1, 8 * 5280))
    assert of_type(rows, 2, "balance", "since") == [(200, 90)]


def test_two_cars_at_one_place_are_an_accident_from_their_fourth_report_on() -> None:
    # Fourth reports at 90 and 95 seconds, both in minute 2; so minute 3 is warned.
    rows = [*wreck(0, 200, 1, pos=52_900), *wreck(5, 200, 2, pos=52_900)]
    rows += [report(119, 8, 52_800), report(120, 9, 52_800)]
    assert of_type(rows, 1, "vid", "time", "seg") == [(9, 120, 10)]


@pytest.mark.parametrize(
    "second",
    [
        wreck(0, 300, 2, pos=52_901),
        wreck(0, 300, 2, pos=52_900, lane=2),
        [report(*args, xway=1) for args in ((0, 2, 52_900), (30, 2, 52_900), (60, 2, 52_900))],
        wreck(30, 120, 2, pos=52_900),
        [],
    ],
)
def test_what_is_no_accident(second: list[Row]) -> None:
    rows = [*wreck(0, 300, 1, pos=52_900), *second, report(250, 9, 52_800)]
    assert of_type(rows, 1, "vid") == []


def test_four_segments_upstream_are_warned_and_free() -> None:
    rows = [*wreck(0, 300, 1, 2, pos=52_900)]
    for seg in range(4, 13):
        rows += crowd(3, 60, seg)
        rows.append(report(180, 2000 + seg, seg * 5280))
    warned = [one for one in of_type(rows, 1, "vid", "xway", "dir", "seg") if one[0] >= 2000]
    assert warned == [(2000 + seg, 0, 0, 10) for seg in range(6, 11)]
    tolls = dict(of_type(rows, 0, "vid", "toll"))
    assert {seg for seg in range(4, 13) if tolls[2000 + seg] == 0} == set(range(6, 11))


def test_the_other_direction_is_warned_on_the_other_side() -> None:
    rows = [report(time, vid, 52_900, spd=0, dir=1) for vid in (1, 2) for time in range(0, 180, 30)]
    rows += [report(180, 2000 + seg, seg * 5280, dir=1) for seg in range(8, 17)]
    rows += [report(180, 3000, 52_900, dir=0)]
    assert of_type(rows, 1, "vid", "seg") == [(2000 + seg, 10) for seg in range(10, 15)]


def test_of_two_accidents_the_nearest_is_told() -> None:
    rows = [*wreck(0, 180, 1, 2, pos=10 * 5280), *wreck(0, 180, 3, 4, pos=8 * 5280)]
    rows.append(report(180, 9, 7 * 5280))
    assert of_type(rows, 1, "vid", "seg") == [(9, 8)]


def test_an_accident_is_over_in_the_minute_after_a_car_has_moved() -> None:
    # Both are stopped in minute 3; car 2 moves at 180, so it is not in minute 4.
    rows = [*wreck(0, 400, 1, pos=52_900), *wreck(0, 180, 2, pos=52_900)]
    rows.append(report(180, 2, 53_900))
    rows += [report(239, 8, 52_800), report(240, 9, 52_800)]
    assert of_type(rows, 1, "vid") == [(8,)]


def test_what_was_paid_on_a_day() -> None:
    rows: list[Row] = [(3, 40, 7, -1, 2, -1, -1, -1, -1, 5, 69)]
    assert of_type(rows, 3, "time", "qid", "toll") == [(40, 5, 789)]


def test_a_difference_names_a_row_of_each_side() -> None:
    rows = np.arange(22).reshape(2, 11)
    assert difference(rows, rows.copy()) is None
    assert "it lacks {'type': 11" in str(difference(rows[:1], rows))
    doubled = np.concatenate([rows[:1], rows])
    assert "it has {'type': 0" in str(difference(doubled, rows))
