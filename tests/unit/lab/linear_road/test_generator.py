"""The traffic: what a car may do, how many there are, and that a seed says all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_lab.linear_road.generator import (
    BALANCE,
    COLUMNS,
    DAYS,
    ENTRY,
    EXIT,
    EXPENDITURE,
    FEET,
    REPORT,
    THREE_HOURS,
    Traffic,
    history,
    home,
    paid,
    write_history,
    write_ticks,
)

SMALL = Traffic(
    xways=2, begin=300, end=1_200, miles=6, per_hour=8_000, capacity=30, accidents_per_hour=60
)


def columns(traffic: Traffic) -> dict[str, npt.NDArray[np.int32]]:
    rounds = list(traffic.rounds())
    return {name: np.concatenate([part[name] for part in rounds]) for name in COLUMNS}


def by_car(rows: dict[str, npt.NDArray[np.int32]]) -> dict[str, npt.NDArray[np.int32]]:
    """The reports, in order of car and time."""
    reports = {name: column[rows["type"] == REPORT] for name, column in rows.items()}
    order = np.lexsort((reports["time"], reports["vid"]))
    return {name: column[order] for name, column in reports.items()}


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 3), st.integers(2, 12))
def test_what_a_car_may_do(seed: int, xways: int, miles: int) -> None:
    traffic = replace(SMALL, seed=seed, xways=xways, miles=miles, begin=0, end=1_200)
    rows = columns(traffic)
    assert (np.diff(rows["time"]) >= 0).all()
    cars = by_car(rows)
    assert (cars["seg"] == cars["pos"] // FEET).all()
    assert set(cars["xway"]) <= set(range(xways))
    assert cars["seg"].min() >= 0
    assert cars["seg"].max() < miles
    assert set(cars["lane"]) <= set(range(5))
    follows = cars["vid"][1:] == cars["vid"][:-1]
    in_trip = follows & (cars["lane"][:-1] != EXIT)
    # A trip begins on the ramp, and then there is a report every 30 seconds.
    assert (cars["lane"][1:][~in_trip] == ENTRY).all()
    assert (cars["lane"][1:][in_trip] != ENTRY).all()
    time, pos, spd = (np.diff(cars["time"]), np.diff(cars["pos"]), cars["spd"][1:])
    assert (time[in_trip] == 30).all()
    assert (time[follows] > 0).all()
    way = np.where(cars["dir"][1:] == 0, 1, -1)
    ahead = (pos * way)[in_trip]
    assert ahead.min() >= 0
    assert np.abs(np.diff(cars["seg"]))[in_trip].max() <= 1
    # Who stands where it was reports the speed 0, or leaves at the very end of the road.
    stands = (ahead == 0) & (cars["lane"][1:][in_trip] != EXIT)
    assert (spd[in_trip][stands] == 0).all()
    assert (cars["spd"][cars["spd"] != 0] >= 5).all()
    for name in ("xway", "dir"):
        assert (np.diff(cars[name])[in_trip] == 0).all()


def test_a_seed_says_everything() -> None:
    one, same, other = (columns(t) for t in (SMALL, SMALL, replace(SMALL, seed=2)))
    assert all((one[name] == same[name]).all() for name in COLUMNS)
    assert len(one["vid"]) != len(other["vid"])


def test_there_are_accidents_returns_and_questions() -> None:
    rows = columns(replace(SMALL, end=2_400))
    cars = by_car(rows)
    still = cars["spd"] == 0
    places = np.column_stack([cars[name][still] for name in ("xway", "dir", "lane", "pos", "vid")])
    _, cars_at = np.unique(np.unique(places, axis=0)[:, :4], axis=0, return_counts=True)
    assert {1, 2} <= set(cars_at)
    entries = cars["vid"][cars["lane"] == ENTRY]
    assert len(entries) > len(np.unique(entries)) > 0.8 * len(entries)
    reports = (rows["type"] == REPORT).sum()
    for kind in (BALANCE, EXPENDITURE):
        asked = rows["type"] == kind
        assert 0.006 < asked.sum() / reports < 0.014
        assert set(rows["vid"][asked]) <= set(cars["vid"])
    asked = rows["qid"][rows["type"] != REPORT]
    assert sorted(asked) == list(range(len(asked)))


def test_the_load_grows_up_to_the_rate_of_the_benchmark() -> None:
    traffic = Traffic()
    assert traffic.entered(0) == 0
    per_hour = (traffic.entered(THREE_HOURS) - traffic.entered(THREE_HOURS - 60)) * 60
    assert per_hour / 200 == pytest.approx(1_000, rel=0.01)
    assert traffic.entered(THREE_HOURS) == 2 * Traffic(miles=50).entered(THREE_HOURS)
    assert 0.02 < traffic.entered(3_600) / traffic.entered(THREE_HOURS) < 0.2


def test_files_have_every_second_in_one_piece(tmp_path: Path) -> None:
    rows = columns(SMALL)
    for seconds in (15, 30, 180):
        ticks = write_ticks(SMALL, tmp_path / str(seconds), seconds)
        tables = [pq.read_table(tick.path) for tick in ticks]
        assert [len(t) for t in tables] == [tick.rows for tick in ticks]
        for tick, table in zip(ticks, tables, strict=True):
            times = table["time"].to_numpy()
            assert (times < tick.end).all()
            assert (times >= tick.end - seconds).all()
        for name in COLUMNS:
            found = np.concatenate([table[name].to_numpy() for table in tables])
            assert (found == rows[name]).all()
        assert ticks[-1].end == SMALL.end


def test_the_past_is_the_same_wherever_it_is_asked_for(tmp_path: Path) -> None:
    number = write_history(SMALL, tmp_path / "history")
    table = pq.read_table(tmp_path / "history")
    assert number == len(table) > max(columns(SMALL)["vid"])
    tolls = np.asarray(table["tolls"].to_pylist())
    assert tolls.shape == (number, DAYS)
    assert (tolls.min(), tolls.max()) == (0, 99)
    cars = np.arange(number, dtype=np.int32)
    assert (tolls == history(SMALL, cars)).all()
    homes = home(SMALL, cars)
    assert set(homes) == {0, 1}
    assert (table["home"].to_numpy() == homes).all()
    assert paid(SMALL, 17, int(homes[17]), 69) == tolls[17, 68]
    assert paid(SMALL, 17, 1 - int(homes[17]), 69) == 0


@pytest.mark.parametrize(
    "wrong",
    [{"begin": 10}, {"end": 45}, {"begin": 600, "end": 600}, {"xways": 0}, {"miles": 101}],
)
def test_traffic_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"traffic from|expressways of"):
        Traffic(**wrong)


def test_ticks_that_cut_a_round_unevenly_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a divisor or a multiple of 30"):
        write_ticks(SMALL, tmp_path / "ticks", 7)
