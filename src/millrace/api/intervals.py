"""Intervals of event time as a program gives them to joins, checked before anything starts."""

from __future__ import annotations

import datetime as dt
import re

from millrace.api.event_time import Duration
from millrace.errors import JoinError, UsageError
from millrace.operators.join.layout import HOWS
from millrace.operators.process.durations import duration_us

_CALENDAR = re.compile(r"\b(month|year|quarter)s?\b", re.IGNORECASE)
_MOST_US = 366 * 86_400_000_000 * 1000
"""A thousand years: sums of times and intervals stay within 64 bits."""


def parse_within(within: object) -> tuple[int, int]:
    """The interval of `within=`, in microseconds."""
    if within is None:
        raise JoinError(
            "join() needs within=: without a bound on time, every row would be kept forever. Say "
            "how far a row of the other stream may be before and after: "
            "within=('-1 hour', '0 seconds')."
        )
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise JoinError(
            f"within={within!r}: give two lengths of time, how far before and how far after: "
            "within=('-1 hour', '0 seconds')."
        )
    lower, upper = (_signed("within", within, part) for part in within)
    if lower > upper:
        raise JoinError(
            f"within={within!r}: the first is later than the second, so no two rows would be a "
            "pair. Swap them."
        )
    return lower, upper


def parse_tolerance(tolerance: object) -> int | None:
    """The tolerance of `tolerance=`, in microseconds; None for any age."""
    if tolerance is None:
        return None
    us = _signed("tolerance", tolerance, tolerance)
    if us < 0:
        raise JoinError(f"tolerance={tolerance!r}: it is an age, and cannot be negative.")
    return us


def check_how(how: object, known: tuple[str, ...] = HOWS) -> str:
    """The kind of a join."""
    if not isinstance(how, str) or how not in known:
        raise JoinError(f"how={how!r}: use one of {', '.join(map(repr, known))}.")
    return how


def _signed(what: str, given: object, part: object) -> int:
    """A length of time with a sign; it may be zero."""
    if isinstance(part, dt.timedelta):
        us = part // dt.timedelta(microseconds=1)
    else:
        us = _of_text(what, given, part)
    if abs(us) > _MOST_US:
        raise JoinError(f"{what}={given!r}: {part!r} is longer than a thousand years.")
    return us


def _of_text(what: str, given: object, part: object) -> int:
    if not isinstance(part, str):
        raise JoinError(
            f"{what}={given!r}: {part!r} is not a duration. Use a text such as '-1 hour', or a "
            "timedelta."
        )
    if _CALENDAR.search(part):
        raise JoinError(f"{what}={given!r}: months and years differ in length. Use days or weeks.")
    text = part.strip()
    negative = text.startswith("-")
    text = text.removeprefix("-").removeprefix("+").strip()
    if re.fullmatch(r"0\s*[A-Za-z]+", text):
        return 0
    try:
        us = duration_us(text)
    except UsageError as error:
        raise JoinError(f"{what}={given!r}: {error}") from error
    return -us if negative else us


__all__ = ["Duration", "check_how", "parse_tolerance", "parse_within"]
