"""Linear Road on Millrace: windows, joins and a look-up, and one processor behind them.

- `per_minute`: cars and speeds of each segment, by windows of a minute.
- `stopped` and `accidents`: cars that stand where they stood 90 seconds before, by a semi join, and
  the places with two of them, by windows of a minute.
- `recent`: both, of the last five minutes, at the end of every minute.
- `traffic`: each report with the row of `recent` of its segment, by an as-of join.
- `cars`: the processor, by car. It tells tolls and accidents, and keeps accounts.
- `expenditures`: what was paid on a day of the past, by a look-up.

What a car is told depends on other cars only by minutes that are over. A window of the last minute
is final when the watermark passes the minute, and the as-of join holds a report until the watermark
has reached it; so a report meets exactly the windows that end before it, however rows fall into
epochs. A report waits for one epoch after its own, not for a minute.

Invariant: rows of one second must come in one batch, because the watermark has no delay.

Known rough edge: a car counts as stopped if it reports the speed 0 from the place where it reported
it 90 seconds before. Reports come every 30 seconds and cars do not go back, so these are the first
and the last of four in a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import millrace as mr
from millrace_lab.linear_road.answers import COLUMNS

FEET = 5_280
EXIT = 4
UPSTREAM = 4
"""Segments before an accident's own in which cars are warned."""
SEGMENT = ("xway", "dir", "seg")
PLACE = ("xway", "dir", "lane", "pos")
ANSWER = ", ".join(f"{name} {'long' if name in ('toll', 'balance') else 'int'}" for name in COLUMNS)

_SCALE = 1_000_000
"""A minute times this, plus a number below it: the largest is of the last minute."""
_NOBODY = -1


def program(rows: DataFrame, history: DataFrame) -> mr.Stream:
    """All answers, as one stream, of rows and of what cars paid in the past."""
    traffic = mr.stream(rows, event_time="at", watermark="0 seconds")
    reports = traffic.transform(lambda df: df.where("type = 0"))
    cars = _with_traffic(traffic, _recent(reports)).key_by("vid")
    answers = cars.process(Cars(), ANSWER, name="cars")
    return answers.union(_expenditures(traffic, mr.stream(history)))


def _recent(reports: mr.Stream) -> mr.Stream:
    """Of each segment, at the end of every minute: its cars, its speed, and accidents ahead."""
    per_minute = (
        reports.key_by(*SEGMENT)
        .window("1 minute")
        .aggregate(
            cars=mr.count_distinct("vid"), speeds=mr.sum("spd"), n=mr.count(), name="per_minute"
        )
        .transform(
            lambda df: df.select(
                *SEGMENT,
                "window",
                "speeds",
                "n",
                _at_minute(F.col("cars")).alias("cars"),
                F.lit(None).cast("long").alias("accident"),
            )
        )
    )
    recent = (
        per_minute.union(_warned(_accidents(reports)))
        .key_by(*SEGMENT)
        .window("5 minutes", slide="1 minute")
        .aggregate(
            speeds=mr.sum("speeds"),
            n=mr.sum("n"),
            cars=mr.max("cars"),
            accident=mr.max("accident"),
            name="recent",
        )
    )
    return recent.transform(
        lambda df: df.select(
            *SEGMENT,
            "window",
            F.expr("CASE WHEN n > 0 THEN (2 * speeds + n) DIV (2 * n) ELSE 0 END").alias("lav"),
            _of_last_minute("cars").alias("cars"),
            (_of_last_minute("accident") % 1_000).alias("accident"),
        )
    )


def _minute() -> Column:
    """The end of a row's window, in minutes since 1970."""
    return F.expr("unix_seconds(window.end) DIV 60")


def _at_minute(number: Column) -> Column:
    return _minute() * _SCALE + number


def _of_last_minute(name: str) -> Column:
    """What `_at_minute` packed, if that was the last minute of the window; else NULL."""
    column = F.col(name)
    return F.when(F.floor(column / _SCALE) == _minute(), column % _SCALE)


def _accidents(reports: mr.Stream) -> mr.Stream:
    """Minutes in which two cars have stopped at one place."""
    still = reports.transform(lambda df: df.where("spd = 0").select("vid", *PLACE, "at"))
    ago = "-90 seconds"
    stopped = still.join(still, on=["vid", *PLACE], within=(ago, ago), how="semi", name="stopped")
    return (
        stopped.key_by(*PLACE)
        .window("1 minute")
        .aggregate(cars=mr.count_distinct("vid"), name="accidents")
        .transform(lambda df: df.where("cars >= 2"))
    )


def _warned(accidents: mr.Stream) -> mr.Stream:
    """The segments in which cars hear of an accident; of several, the nearest one."""

    def upstream(df: DataFrame) -> DataFrame:
        distances = F.array(*(F.lit(n) for n in range(UPSTREAM + 1)))
        where = F.expr(f"pos DIV {FEET}").cast("int")
        apart = df.select("*", where.alias("at_seg"), F.explode(distances).alias("distance"))
        behind = F.expr("at_seg - IF(dir = 0, distance, -distance)").cast("int")
        nearness = (UPSTREAM - F.col("distance")) * 1_000 + F.col("at_seg")
        return apart.select(
            "xway",
            "dir",
            behind.alias("seg"),
            "window",
            F.lit(0).cast("long").alias("speeds"),
            F.lit(0).cast("long").alias("n"),
            F.lit(None).cast("long").alias("cars"),
            _at_minute(nearness).alias("accident"),
        )

    return accidents.transform(upstream)


def _with_traffic(traffic: mr.Stream, recent: mr.Stream) -> mr.Stream:
    """Reports with the traffic of their segment, in order of time with questions of balances."""

    def placed(df: DataFrame) -> DataFrame:
        """Questions go to places of their own, where there is no traffic."""
        is_report = F.col("type") == 0
        nowhere = {"xway": F.lit(_NOBODY), "dir": F.lit(_NOBODY), "seg": F.expr("vid % 1024")}
        return df.where("type IN (0, 2)").select(
            *(F.when(is_report, F.col(c)).otherwise(nowhere[c]).alias(c) for c in SEGMENT),
            *("type", "time", "vid", "lane", "qid", "at"),
        )

    joined = traffic.transform(placed).as_of(
        recent, on=list(SEGMENT), tolerance="60 seconds", name="traffic"
    )
    is_due = "lav < 40 AND cars > 50 AND accident IS NULL"
    toll = f"CASE WHEN {is_due} THEN 2 * (cars - 50) * (cars - 50) ELSE 0 END"
    # Without `at`: the join has put the rows in order, and a processor would take those that the
    # watermark has reached for late ones.
    return joined.transform(
        lambda df: df.select(
            *SEGMENT,
            *("type", "time", "vid", "lane", "qid"),
            F.expr("CAST(coalesce(lav, 0) AS INT)").alias("lav"),
            F.expr(f"CAST({toll} AS BIGINT)").alias("toll"),
            F.expr(f"CAST(coalesce(accident, {_NOBODY}) AS INT)").alias("accident"),
        )
    )


class Cars(mr.BatchProcessor):
    """What cars are told and charged, and their accounts; all cars of a shard at once."""

    place = mr.Value("int")
    """The segment of the last report: expressway, direction and number in one."""
    lane = mr.Value("int")
    toll = mr.Value("long", default=0)
    """What the car was told for the segment it is in."""
    balance = mr.Value("long", default=0)
    since = mr.Value("int", default=0)
    """When it was charged last."""

    def process(self, batch: Any, state: Any, ctx: Any) -> dict[str, npt.NDArray[Any]]:
        key, first = batch.key_of_row, batch.starts[:-1]
        # Of a second, reports come before questions.
        order = np.lexsort((batch.numpy("type"), batch.numpy("time"), key))
        rows = {name: batch.numpy(name)[order] for name in batch.table.column_names}
        is_report, time, lane, toll = rows["type"] == 0, rows["time"], rows["lane"], rows["toll"]
        place = (rows["xway"] * 2 + rows["dir"]) * 1_000 + rows["seg"]
        last = _Last(key, first)

        reported = last(is_report)
        before = _shifted(reported, first)
        was_at = _of(before, place, state.numpy("place", default=_NOBODY)[key])
        was_on = _of(before, lane, state.numpy("lane", default=_NOBODY)[key])
        in_trip = is_report & (was_at != _NOBODY) & (was_on != EXIT)
        leaves = in_trip & (place != was_at)
        told = is_report & (leaves | ~in_trip) & (lane != EXIT)

        notified = last(told)
        owed = _of(_shifted(notified, first), toll, state.numpy("toll")[key])
        charges = np.where(leaves, owed, 0)
        total = np.cumsum(charges)
        balance = state.numpy("balance")[key] + total - (total - charges)[first][key]
        charged = last(leaves)
        since = _of(charged, time, state.numpy("since")[key])

        ends = batch.starts[1:] - 1
        newest = reported[ends]
        state["place"] = _of(newest, place, state.numpy("place", default=_NOBODY))
        state["lane"] = _of(newest, lane, state.numpy("lane", default=_NOBODY))
        state["toll"] = _of(notified[ends], toll, state.numpy("toll"))
        state["balance"], state["since"] = balance[ends], since[ends]

        rows |= {"balance": balance, "since": since}
        parts = [
            _answers(rows, told, 0, ("lav", "toll")),
            _answers(
                rows | {"seg": rows["accident"]},
                told & (rows["accident"] != _NOBODY),
                1,
                SEGMENT,
            ),
            _answers(rows, rows["type"] == 2, 2, ("qid", "balance", "since")),
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}


class _Last:
    """The last row up to each, of the same key, that meets a condition; -1 if there is none."""

    def __init__(self, key: npt.NDArray[np.int64], first: npt.NDArray[np.int64]) -> None:
        self._first = first[key]
        self._number = np.arange(len(key))

    def __call__(self, condition: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        found = np.maximum.accumulate(np.where(condition, self._number, -1))
        return np.where(found >= self._first, found, -1)


def _shifted(found: npt.NDArray[np.int64], first: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same without the row itself."""
    before = np.concatenate([[-1], found[:-1]])
    before[first] = -1
    return before


def _of(
    found: npt.NDArray[np.int64], values: npt.NDArray[Any], otherwise: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """The values of rows that were found, else others."""
    return np.where(found >= 0, values[found], otherwise)


def _answers(
    rows: dict[str, npt.NDArray[Any]],
    chosen: npt.NDArray[np.bool_],
    kind: int,
    names: tuple[str, ...],
) -> dict[str, npt.NDArray[Any]]:
    size = int(chosen.sum())
    filled = ("time", "vid", *names)
    empty = np.zeros(size, np.int64)
    made = {name: rows[name][chosen] if name in filled else empty for name in COLUMNS}
    return made | {"type": np.full(size, kind)}


def _expenditures(traffic: mr.Stream, history: mr.Stream) -> mr.Stream:
    """What cars paid on a day of the past, looked up."""
    asked = traffic.transform(
        lambda df: df.where("type = 3").select("vid", "type", "time", "qid", "xway", "day")
    )
    known = history.key_by("vid").latest(name="history")

    def answered(df: DataFrame) -> DataFrame:
        paid = "IF(home = xway, CAST(element_at(tolls, day) AS BIGINT), 0L)"
        given = {name: F.col(name) for name in ("type", "time", "vid", "qid")}
        given |= {"toll": F.expr(f"coalesce({paid}, 0L)"), "balance": F.lit(0).cast("long")}
        return df.select(*(given.get(name, F.lit(0)).alias(name) for name in COLUMNS))

    return asked.lookup(known, on="vid", name="expenditures").transform(answered)
