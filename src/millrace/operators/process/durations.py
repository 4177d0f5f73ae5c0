"""Short names for spans of time: `ctx.event_time + mr.minutes(30)`."""

from __future__ import annotations

import datetime as dt


def milliseconds(n: float) -> dt.timedelta:
    return dt.timedelta(milliseconds=n)


def seconds(n: float) -> dt.timedelta:
    return dt.timedelta(seconds=n)


def minutes(n: float) -> dt.timedelta:
    return dt.timedelta(minutes=n)


def hours(n: float) -> dt.timedelta:
    return dt.timedelta(hours=n)


def days(n: float) -> dt.timedelta:
    return dt.timedelta(days=n)
