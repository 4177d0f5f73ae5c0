"""Linear Road's answers by a plain program, from the specification, row after row.

Nothing is shared with the program under test but the layout of an answer. Rows are taken in order
of time, the reports of a second before its questions. What concerns other cars is a matter of whole
minutes that are over, so the order within a second does not matter otherwise.

Known rough edge: it looks at every row in Python, so a million rows take it some seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from millrace.arrays import Int64Array
from millrace_lab.linear_road.answers import COLUMNS, sorted_rows

Row = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""type, time, vid, spd, xway, lane, dir, seg, pos, qid, day."""
Segment = tuple[int, int, int]
"""Expressway, direction, number."""
Place = tuple[int, int, int, int]
"""Expressway, direction, lane, position."""

EXIT_LANE = 4
STOPPED_AFTER = 4
"""Reports from the same place."""
WATCHED_MINUTES = 5
WARNED_SEGMENTS = 4
"""Upstream of an accident, beside its own."""
FREE_CARS, FREE_SPEED = 50, 40


class _Car:
    """What is known of a car."""

    def __init__(self) -> None:
        self.segment: Segment | None = None
        self.lane = -1
        self.place: Place | None = None
        self.same = 0
        """Reports in a row from its place."""
        self.toll = 0
        """What it was told for the segment it is in."""
        self.balance = 0
        self.charged = 0
        """When it was charged last."""


class Oracle:
    """All expressways. `paid(vid, xway, day)` is what the historical tables have."""

    def __init__(self, paid: Callable[[int, int, int], int]) -> None:
        self._paid = paid
        self._cars: defaultdict[int, _Car] = defaultdict(_Car)
        self._minute = 0
        self._seen: dict[int, defaultdict[Segment, set[int]]] = {}
        """Minute -> segment -> the cars that reported from it."""
        self._speeds: dict[int, defaultdict[Segment, list[int]]] = {}
        """Minute -> segment -> the sum of speeds, and how many."""
        self._stopped: dict[int, defaultdict[Place, set[int]]] = {}
        self._accidents: set[Segment] = set()
        """Where there was an accident in the last minute."""
        self.answers: list[tuple[int, ...]] = []

    def take(self, rows: Iterable[Row]) -> None:
        """Rows in order of time, those of a second at once."""
        for row in sorted(rows, key=lambda row: (row[1], row[0])):
            kind, time, vid = row[:3]
            if time // 60 + 1 != self._minute:
                self._begin_minute(time // 60 + 1)
            if kind == 0:
                self._report(row)
            elif kind == 2:
                car = self._cars[vid]
                self._answer(2, time, vid, qid=row[9], balance=car.balance, since=car.charged)
            elif kind == 3:
                self._answer(3, time, vid, qid=row[9], toll=self._paid(vid, row[4], row[10]))

    def rows(self) -> Int64Array:
        """The answers so far, in order of all columns."""
        made = np.asarray(self.answers, np.int64).reshape(len(self.answers), len(COLUMNS))
        return sorted_rows(made)

    def _begin_minute(self, minute: int) -> None:
        assert minute > self._minute, "rows are in order of time"
        self._minute = minute
        self._seen[minute] = defaultdict(set)
        self._speeds[minute] = defaultdict(lambda: [0, 0])
        self._stopped[minute] = defaultdict(set)
        self._accidents = {
            (xway, direction, position // 5280)
            for (xway, direction, _, position), cars in self._stopped.get(minute - 1, {}).items()
            if len(cars) >= 2
        }
        for kept in (self._seen, self._speeds, self._stopped):
            for old in [m for m in kept if m < minute - WATCHED_MINUTES]:
                del kept[old]

    def _report(self, row: Row) -> None:
        _, time, vid, speed, xway, lane, direction, number, position, _, _ = row
        car, segment = self._cars[vid], (xway, direction, number)
        place = xway, direction, lane, position
        in_a_trip = car.segment is not None and car.lane != EXIT_LANE
        if in_a_trip and segment != car.segment:
            car.balance += car.toll
            car.charged = time
        if (not in_a_trip or segment != car.segment) and lane != EXIT_LANE:
            self._enter(car, vid, time, segment)
        car.same = car.same + 1 if place == car.place else 1
        car.segment, car.lane, car.place = segment, lane, place
        self._seen[self._minute][segment].add(vid)
        total = self._speeds[self._minute][segment]
        total[0] += speed
        total[1] += 1
        if car.same >= STOPPED_AFTER:
            self._stopped[self._minute][place].add(vid)

    def _enter(self, car: _Car, vid: int, time: int, segment: Segment) -> None:
        last = self._minute - 1
        cars = len(self._seen[last][segment]) if last in self._seen else 0
        average = self._average(segment)
        accident = self._accident_ahead(segment)
        car.toll = 0
        if accident is None and cars > FREE_CARS and average < FREE_SPEED:
            car.toll = 2 * (cars - FREE_CARS) ** 2
        self._answer(0, time, vid, lav=average, toll=car.toll)
        if accident is not None:
            xway, direction, number = accident
            self._answer(1, time, vid, xway=xway, dir=direction, seg=number)

    def _average(self, segment: Segment) -> int:
        """Of all speeds that were reported in the last five minutes; 0 if there are none."""
        total = readings = 0
        for minute in range(self._minute - WATCHED_MINUTES, self._minute):
            if minute in self._speeds:
                speeds, number = self._speeds[minute].get(segment, (0, 0))
                total += speeds
                readings += number
        return int(total / readings + 0.5) if readings else 0

    def _accident_ahead(self, segment: Segment) -> Segment | None:
        """The nearest one that a car which enters a segment will come to."""
        xway, direction, number = segment
        for distance in range(WARNED_SEGMENTS + 1):
            ahead = number + distance if direction == 0 else number - distance
            if (xway, direction, ahead) in self._accidents:
                return xway, direction, ahead
        return None

    def _answer(self, kind: int, time: int, vid: int, **values: int) -> None:
        made = {"type": kind, "time": time, "vid": vid, **values}
        self.answers.append(tuple(made.get(name, 0) for name in COLUMNS))
