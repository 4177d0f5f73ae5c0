"""Spans of time: in words, `"30 minutes"`; by short names, `ctx.event_time + mr.minutes(30)`."""

from __future__ import annotations

import datetime as dt
import re

from millrace.errors import UsageError


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


_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}


_LONGEST = 10_000 * 366 * 86_400_000_000


def duration_us(duration: str | dt.timedelta) -> int:
    """Microseconds of `"30 days"`, `"1 hour 30 minutes"` or a timedelta."""
    if isinstance(duration, dt.timedelta):
        total = duration // dt.timedelta(microseconds=1)
    else:
        parts = re.findall(r"(\d+)\s*([A-Za-z]+)", str(duration))
        rest = re.sub(r"(\d+)\s*([A-Za-z]+)", "", str(duration)).strip()
        units = [unit.lower().removesuffix("s") for _, unit in parts]
        if not parts or rest or any(unit not in _UNITS for unit in units):
            raise UsageError(
                f"{duration!r} is not a duration. Write '30 days', '90 seconds' or a timedelta."
            )
        total = sum(int(n) * _UNITS[u] for (n, _), u in zip(parts, units, strict=True))
    if total > _LONGEST:
        raise UsageError(f"{duration!r}: a duration cannot be longer than 10,000 years.")
    if total <= 0:
        raise UsageError(f"{duration!r}: a duration must be longer than zero.")
    return total
