"""Latency by event from the files of a checkpoint, against sums done by hand."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from millrace_lab.bench._timeline import SAMPLES, SOURCES, Point, Spread, Timeline, read_points

START = 1000.0


def batch(checkpoint: Path, number: int, ends: list[int], committed: float) -> None:
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
    planned = {"batchTimestampMs": int((committed - 0.5) * 1000)}
    lines = ["v1", json.dumps(planned), '{"logOffset":0}', *map(str, ends)]
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))
    (checkpoint / "commits" / str(number)).write_text("v1\n{}")
    os.utime(checkpoint / "commits" / str(number), (committed, committed))


def point(batch: int, committed: float, begins: tuple[int, ...], ends: tuple[int, ...]) -> Point:
    """A batch that took half a second."""
    return Point(batch, committed, begins, ends, committed - 0.5)


def steady(seconds: int, delay: float = 0.5) -> list[Point]:
    """One epoch per second with a second of every source; done `delay` after the last tick."""
    return [
        point(n, START + n + 1 + 0.75 + delay, (n,) * SOURCES, (n + 1,) * SOURCES)
        for n in range(seconds)
    ]


def test_points_are_read_from_the_logs(tmp_path: Path) -> None:
    batch(tmp_path, 0, [0, 0, 0, 0], 5.0)
    batch(tmp_path, 1, [2, 2, 1, 1], 6.0)
    batch(tmp_path, 10, [3, 3, 3, 2], 8.0)
    batch(tmp_path, 2, [2, 2, 1, 1], 7.0)
    (tmp_path / "commits" / ".1.crc").write_text("")
    # Planned and not committed.
    (tmp_path / "offsets" / "11").write_text("v1\n{}\n-\n9\n9\n9\n9")
    assert read_points(tmp_path) == [
        point(1, 6.0, (0, 0, 0, 0), (2, 2, 1, 1)),
        point(10, 8.0, (2, 2, 1, 1), (3, 3, 3, 2)),
    ]


def test_a_source_without_an_offset_has_made_nothing(tmp_path: Path) -> None:
    batch(tmp_path, 0, [1, 1, 0, 0], 5.0)
    text = (tmp_path / "offsets" / "0").read_text()
    (tmp_path / "offsets" / "0").write_text(text[: -len("0\n0")] + "-\n-")
    assert read_points(tmp_path)[0].ends == (1, 1, 0, 0)


def test_latencies_are_from_the_making_of_a_row() -> None:
    (point,) = steady(1)
    timeline = Timeline([point], START, rate=400)
    latencies = np.sort(timeline.before(START, START + 10))
    # Source 0 makes its rows from START on, source 3 until START + 1.75; done at START + 2.25.
    half = 0.5 / SAMPLES
    assert latencies[0] == pytest.approx(0.5 + half)
    assert latencies[-1] == pytest.approx(2.25 - half)
    assert len(latencies) == SOURCES * SAMPLES
    assert timeline.rows([point]) == 400


def test_rows_that_wait_at_a_moves_begin_are_during_it() -> None:
    timeline = Timeline(steady(10), START, rate=400)
    request, end = START + 5.0, START + 6.0
    before = timeline.before(START, request)
    during = timeline.during(request, end)
    after = timeline.after(end, START + 100)
    assert len(before) + len(during) + len(after) == 10 * SOURCES * SAMPLES
    assert len(before) == 3 * SOURCES * SAMPLES


def test_a_steady_run_misses_nothing() -> None:
    timeline = Timeline(steady(10), START, rate=400)
    assert timeline.missed(START + 3, START + 8, 1.0) == 0
    assert timeline.throughput(START + 3, START + 8) == pytest.approx(400)
    assert timeline.recovered(START + 4, within=3.0) == pytest.approx(0.25)


def test_a_late_epoch_is_not_a_missed_one() -> None:
    points = steady(4)
    # It takes 1.6 s; the next one starts when it is done, and the one after that is on time again.
    points.append(Point(4, START + 7.35, (4,) * SOURCES, (5,) * SOURCES, START + 5.75))
    points.append(Point(5, START + 7.9, (5,) * SOURCES, (6,) * SOURCES, START + 7.4))
    points += steady(12)[6:]
    timeline = Timeline(points, START, rate=400)
    assert timeline.missed(START + 5, START + 9, 1.0) == 1
    # Had it been done before the next trigger but one, that trigger would have had its epoch.
    points[4] = Point(4, START + 6.9, (4,) * SOURCES, (5,) * SOURCES, START + 5.75)
    points[5] = Point(5, START + 7.5, (5,) * SOURCES, (6,) * SOURCES, START + 6.95)
    assert Timeline(points, START, rate=400).missed(START + 5, START + 9, 1.0) == 0


def test_a_pause_is_seen_everywhere() -> None:
    points = steady(4)
    # Nothing for three seconds, then all of it in one epoch, then as before.
    points.append(point(4, START + 8.25, (4,) * SOURCES, (7,) * SOURCES))
    points += [point(n, START + n + 2.25, (n,) * SOURCES, (n + 1,) * SOURCES) for n in range(7, 14)]
    timeline = Timeline(points, START, rate=400)
    request, end = START + 5.5, START + 8.0
    assert timeline.missed(request, end, 1.0) == 2
    assert max(timeline.gaps(request, end)) == pytest.approx(3.0)
    before = Spread.of(timeline.before(START, request))
    during = Spread.of(timeline.during(request, end))
    assert before.max < 2.25
    assert during.max == pytest.approx(4.25, abs=0.05)
    assert Spread.of(timeline.after(end, START + 100)).max < 2.25
    # The epoch of the pause is late; the one after it is the first of three good ones.
    assert timeline.recovered(request, within=2.3) == pytest.approx(START + 9.25 - request)
    assert timeline.recovered(request, within=0.1) is None
    # Over a time in which the rows of the pause are caught up with, nothing was lost.
    assert timeline.throughput(request, end) == pytest.approx(400)


def test_the_series_has_one_entry_per_epoch() -> None:
    timeline = Timeline(steady(2), START, rate=400)
    first, second = timeline.series(START)
    assert first[0] == pytest.approx(2.25)
    assert first[1] < first[2] < first[3]
    assert second[1:] == first[1:]


def test_what_the_source_shows_late_is_not_the_engines_latency() -> None:
    timeline = Timeline(steady(3, delay=0.25), START, rate=400)
    shown = timeline.shown(START, START + 60)
    # Source n shows its rows n quarters after the whole second; all are done at once, 0.25 later.
    assert sorted(set(np.round(shown, 6))) == [0.25, 0.5, 0.75, 1.0]
    assert len(shown) == 3 * SOURCES * SAMPLES
    assert len(timeline.shown(START + 1.1, START + 1.3)) == SAMPLES
