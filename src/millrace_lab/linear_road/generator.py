"""Linear Road's input: cars on expressways, drawn from a seed, in whole arrays.

Every car reports each 30 seconds, so time passes in rounds of 30 seconds, in which each car on the
road reports once. Cars enter by a ramp (lane 0), drive on lanes 1 to 3, and leave by lane 4; some
come back later. Ever more of them enter, up to 1,000 per segment and hour after three hours. The
fuller a segment is, the slower it gets. Now and then two cars, or three, stop at one place for some
minutes, and sometimes one alone, which is no accident. About one report in a hundred comes with a
question for the account's balance, and as many for what was paid on a day.

Invariants: a car that reports the speed 0 has stopped, and only then does it stay where it is; cars
never go back; nobody drives through a whole segment between two reports.

A row has `type` (0 report, 2 balance, 3 daily expenditure), `time` in seconds, and the columns of
the benchmark's tuples that these need. Travel times (type 4) are left out, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

ROUND = 30
"""Seconds between two reports of a car."""
THREE_HOURS = 10_800
FEET = 5_280
"""Of a segment, which is a mile."""
SEGMENTS = 100
DAYS = 69
ENTRY, EXIT = 0, 4
"""Lanes."""
REPORT, BALANCE, EXPENDITURE = 0, 2, 3
COLUMNS = ("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos", "qid", "day")
SCHEMA = ", ".join(f"{name} int" for name in COLUMNS) + ", at timestamp"
HISTORY_SCHEMA = "vid int, home int, tolls array<tinyint>"
BEGIN = np.datetime64("2024-01-01T00:00:00", "us")
"""When the second 0 is."""

_FEET_PER_ROUND = FEET * ROUND // 3_600
"""Of one mile per hour."""
_START_SHARE = 0.02
"""Of the last rate at which cars enter, at the beginning."""
_RETURNS = 0.1
"""Of the cars that enter, those that have been on the road before."""
_LONGEST_TRIP = 60
_STOPS = (5, 30)
"""How many reports a stopped car sends at least, and less than how many."""

Columns = dict[str, npt.NDArray[np.int32]]


@dataclass(frozen=True)
class Traffic:
    """Which traffic; equal values make equal rows."""

    xways: int = 1
    begin: int = 0
    """The second of the curve at which reports begin. Cars are on the road before."""
    end: int = THREE_HOURS
    seed: int = 1
    miles: int = SEGMENTS
    """Segments of each direction that are in use."""
    per_hour: float = 1_000.0
    """Cars that enter a segment in an hour, after three hours."""
    capacity: int = 400
    """Cars with which a segment is as slow as it gets."""
    accidents_per_hour: float = 6.0
    """Stops on each expressway."""
    questions: float = 0.01
    """Of each kind, per report."""

    def __post_init__(self) -> None:
        if self.begin % ROUND or self.end % ROUND or not 0 <= self.begin < self.end:
            raise ValueError(
                f"traffic from second {self.begin} to {self.end}: both are multiples of {ROUND}, "
                "and the end comes later."
            )
        if self.xways < 1 or not 1 <= self.miles <= SEGMENTS:
            raise ValueError(
                f"{self.xways} expressways of {self.miles} miles: there is at least one, and a "
                f"mile to {SEGMENTS} of them."
            )

    def entered(self, second: float) -> int:
        """Cars that have entered all expressways before a second."""
        t = min(max(second, 0.0) / THREE_HOURS, 1.0)
        at_end = 2 * self.miles * self.xways * self.per_hour / 3_600
        share = _START_SHARE * t + (1 - _START_SHARE) * t * t / 2
        return round(at_end * THREE_HOURS * share)

    def rounds(self) -> Iterator[Columns]:
        """The rows of each round, in order of time; questions come with the reports."""
        road = _Road(self)
        asked = 0
        for number in range(self.end // ROUND):
            reports = road.drive(number)
            if number * ROUND < self.begin:
                continue
            rows = _with_questions(self, reports, road.rng, asked)
            asked += len(rows["vid"]) - len(reports["vid"])
            yield rows


class _Road:
    """The cars on all expressways, an entry per car."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self.rng = np.random.default_rng([traffic.seed, 1836])
        names = ("vid", "xway", "dir", "lane", "pos", "spd", "own", "phase", "leaves", "until")
        self._cars: Columns = {name: np.zeros(0, np.int32) for name in names}
        self._next = 0
        self._gone = np.zeros(0, np.int32)
        """Cars that have left, and may come back."""

    def drive(self, number: int) -> Columns:
        """One round; the reports, in order of time."""
        self._advance(number)
        self._enter(number)
        self._stop(number)
        cars = self._cars
        order = np.argsort(cars["phase"], kind="stable")
        time = number * ROUND + cars["phase"]
        made = {name: cars[name] for name in ("vid", "spd", "xway", "lane", "dir", "pos")}
        made |= {"time": time, "seg": cars["pos"] // FEET}
        reports = {name: column[order].astype(np.int32) for name, column in made.items()}
        stays = cars["lane"] != EXIT
        self._gone = np.concatenate([self._gone, cars["vid"][~stays]])
        self._cars = {name: column[stays] for name, column in cars.items()}
        return reports

    def _advance(self, number: int) -> None:
        cars, traffic, rng = self._cars, self._traffic, self.rng
        size = len(cars["vid"])
        here = (cars["xway"] * 2 + cars["dir"]) * SEGMENTS + cars["pos"] // FEET
        crowd = np.bincount(here, minlength=1)[here]
        limit = np.maximum(75 - 55 * crowd // traffic.capacity, 20)
        blocked = np.bincount(here, cars["until"] > number, minlength=1)[here] > 0
        limit = np.where(blocked, 12, limit)
        speed = np.minimum(cars["own"], limit) + rng.integers(-4, 5, size)
        is_stopped = cars["until"] > number
        speed = np.where(is_stopped, 0, np.clip(speed, 5, 100))
        way = np.where(cars["dir"] == 0, 1, -1)
        last = traffic.miles * FEET - 1
        moved = cars["pos"] + way * speed * _FEET_PER_ROUND
        segment = np.clip(moved, 0, last) // FEET
        leaves = (segment - cars["leaves"]) * way >= 0
        leaves |= (moved < 0) | (moved > last)
        changes = (rng.random(size) < 0.1) | (cars["lane"] == ENTRY)
        lane = np.where(changes, rng.integers(1, 4, size), cars["lane"])
        lane = np.where(is_stopped, cars["lane"], np.where(leaves, EXIT, lane))
        cars["pos"] = np.clip(moved, 0, last).astype(np.int32)
        cars["spd"], cars["lane"] = speed.astype(np.int32), lane.astype(np.int32)

    def _enter(self, number: int) -> None:
        traffic, rng = self._traffic, self.rng
        size = traffic.entered((number + 1) * ROUND) - traffic.entered(number * ROUND)
        known = rng.permutation(self._gone)[: int(size * _RETURNS)]
        self._gone = self._gone[~np.isin(self._gone, known)]
        fresh = np.arange(self._next, self._next + size - len(known))
        self._next += len(fresh)
        direction = rng.integers(0, 2, size)
        enters = rng.integers(0, traffic.miles, size)
        trip = rng.integers(1, min(_LONGEST_TRIP, traffic.miles) + 1, size)
        own = rng.integers(50, 101, size)
        new = {
            "vid": np.concatenate([fresh, known]),
            "xway": rng.integers(0, traffic.xways, size),
            "dir": direction,
            "lane": np.full(size, ENTRY),
            "pos": enters * FEET + rng.integers(0, FEET, size),
            "spd": np.minimum(own, rng.integers(20, 41, size)),
            "own": own,
            "phase": rng.integers(0, ROUND, size),
            "leaves": enters + np.where(direction == 0, trip, -trip),
            "until": np.zeros(size),
        }
        self._cars = {
            name: np.concatenate([column, new[name].astype(np.int32)])
            for name, column in self._cars.items()
        }

    def _stop(self, number: int) -> None:
        """Stop one, two or three cars at the place of the first of them."""
        traffic, rng, cars = self._traffic, self.rng, self._cars
        expected = traffic.accidents_per_hour * traffic.xways * ROUND / 3_600
        for _ in range(rng.poisson(expected)):
            can = (cars["lane"] > ENTRY) & (cars["lane"] < EXIT) & (cars["until"] <= number)
            if not can.any():
                return
            first = rng.choice(np.flatnonzero(can))
            way = 1 if cars["dir"][first] == 0 else -1
            # Those behind it, in its segment: cars do not go back.
            behind = (cars["pos"][first] - cars["pos"]) * way
            near = can & (behind >= 0) & (cars["pos"] // FEET == cars["pos"][first] // FEET)
            near &= (cars["xway"] == cars["xway"][first]) & (cars["dir"] == cars["dir"][first])
            near[first] = False
            others = rng.permutation(np.flatnonzero(near))[: rng.choice([0, 1, 1, 2])]
            for car in (first, *others):
                cars["pos"][car], cars["lane"][car] = cars["pos"][first], cars["lane"][first]
                cars["spd"][car] = 0
                cars["until"][car] = number + rng.integers(*_STOPS)


def _with_questions(
    traffic: Traffic, reports: Columns, rng: np.random.Generator, asked: int
) -> Columns:
    """Reports with the questions of their drivers, some in the same second and some later."""
    size = len(reports["vid"])
    parts = [{"type": np.zeros(size, np.int32), **reports}]
    for kind in (BALANCE, EXPENDITURE):
        who = np.flatnonzero(rng.random(size) < traffic.questions)
        waits = rng.integers(0, ROUND, len(who)) * rng.integers(0, 2, len(who))
        until = reports["time"][who] // ROUND * ROUND + ROUND - 1
        vid = reports["vid"][who]
        part = {
            "type": np.full(len(who), kind),
            "time": np.minimum(reports["time"][who] + waits, until),
            "vid": vid,
            "qid": asked + np.arange(len(who)),
        }
        if kind == EXPENDITURE:
            part["day"] = rng.integers(1, DAYS + 1, len(who))
            # Most ask for the expressway on which they usually drive.
            other = rng.integers(0, traffic.xways, len(who))
            usual = rng.random(len(who)) < 0.75
            part["xway"] = np.where(usual, home(traffic, vid), other)
        asked += len(who)
        parts.append(part)
    rows = {
        name: np.concatenate(
            [np.asarray(part.get(name, np.full(len(part["vid"]), -1)), np.int32) for part in parts]
        )
        for name in COLUMNS
    }
    order = np.argsort(rows["time"], kind="stable")
    return {name: column[order] for name, column in rows.items()}


def _mixed(traffic: Traffic, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A number for each of some, by the finaliser of SplitMix64."""
    x = (numbers.astype(np.uint64) + np.uint64(traffic.seed)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def home(traffic: Traffic, vid: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The expressway of a car's tolls in the past."""
    drawn = _mixed(traffic, vid.astype(np.int64) * (DAYS + 1)) % np.uint64(traffic.xways)
    return drawn.astype(np.int32)


def history(traffic: Traffic, vid: npt.NDArray[np.int32]) -> npt.NDArray[np.int8]:
    """What cars paid on each of 69 days: a row per car, from 0 to 99."""
    days = vid.astype(np.int64)[:, None] * (DAYS + 1) + np.arange(1, DAYS + 1)
    return (_mixed(traffic, days) % np.uint64(100)).astype(np.int8)


def paid(traffic: Traffic, vid: int, xway: int, day: int) -> int:
    """What a car paid on an expressway on a day."""
    one = np.asarray([vid], np.int32)
    return int(history(traffic, one)[0, day - 1]) if int(home(traffic, one)[0]) == xway else 0


@dataclass(frozen=True)
class Tick:
    """The rows of some seconds, in one file: a query sees all of them or none."""

    path: Path
    end: int
    """The second after its last."""
    rows: int


def write_ticks(traffic: Traffic, folder: Path, seconds: int) -> list[Tick]:
    """Write files of `seconds` each: a divisor or a multiple of a round."""
    if seconds < 1 or (ROUND % seconds and seconds % ROUND):
        raise ValueError(f"ticks of {seconds} s: give a divisor or a multiple of {ROUND}.")
    folder.mkdir(parents=True)
    ticks: list[Tick] = []
    waiting: list[Columns] = []
    for number, rows in enumerate(traffic.rounds()):
        waiting.append(rows)
        end = traffic.begin + (number + 1) * ROUND
        if (end - traffic.begin) % seconds and end < traffic.end:
            continue
        joined = {name: np.concatenate([part[name] for part in waiting]) for name in COLUMNS}
        begin = end - len(waiting) * ROUND
        waiting = []
        for first in range(begin, end, seconds):
            cut = slice(*np.searchsorted(joined["time"], [first, first + seconds]))
            path = folder / f"{len(ticks):06d}.parquet"
            table = as_table({name: column[cut] for name, column in joined.items()})
            pq.write_table(table, path)
            ticks.append(Tick(path, min(first + seconds, end), table.num_rows))
    return ticks


def as_table(rows: Columns) -> pa.Table:
    """Rows with their event times."""
    at = BEGIN + rows["time"].astype("timedelta64[s]")
    columns = {name: pa.array(rows[name], pa.int32()) for name in COLUMNS}
    return pa.table({**columns, "at": pa.array(at, pa.timestamp("us")).cast(_UTC)})


_UTC = pa.timestamp("us", tz="UTC")


def write_history(traffic: Traffic, folder: Path) -> int:
    """Write what all cars of the traffic paid in the past; how many cars there are."""
    folder.mkdir(parents=True)
    vid = np.arange(traffic.entered(traffic.end), dtype=np.int32)
    for number, part in enumerate(np.array_split(vid, -(-max(len(vid), 1) // 200_000))):
        tolls = history(traffic, part)
        offsets = pa.array(np.arange(len(part) + 1) * DAYS, pa.int32())
        lists = pa.ListArray.from_arrays(offsets, pa.array(tolls.ravel(), pa.int8()))
        columns = {"vid": part, "home": home(traffic, part), "tolls": lists}
        pq.write_table(pa.table(columns), folder / f"{number:03d}.parquet")
    return len(vid)
