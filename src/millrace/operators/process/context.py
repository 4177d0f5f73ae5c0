"""What a processor's methods receive: the context, a timer, and a key's rows."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Any

from millrace.operators.operator import Moment
from millrace.operators.process.convert import from_us


class Context:
    """What a processor can ask about the epoch: `ctx`."""

    __slots__ = ("_event_us", "_moment", "key")

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._event_us: int | None = None
        self.key: Any = None

    @property
    def epoch(self) -> int:
        return self._moment.epoch

    @property
    def processing_time(self) -> dt.datetime:
        """The epoch's time; a repeated epoch sees the same."""
        return from_us(self._moment.processing_us)

    @property
    def watermark(self) -> dt.datetime | None:
        """Rows older than this are late."""
        us = self._moment.watermark_us
        return None if us is None else from_us(us)

    @property
    def event_time(self) -> dt.datetime | None:
        """The latest event time of the key's rows; in `on_timer`, the timer's time."""
        return None if self._event_us is None else from_us(self._event_us)


class Timer:
    """A timer that fired."""

    __slots__ = ("label", "name", "time_us")

    def __init__(self, name: str, label: str, time_us: int) -> None:
        self.name = name
        self.label = label
        self.time_us = time_us

    @property
    def time(self) -> dt.datetime:
        return from_us(self.time_us)

    def __repr__(self) -> str:
        label = f" {self.label!r}" if self.label else ""
        return f"<Timer {self.name}{label} at {self.time.isoformat()}>"


class Rows:
    """A key's rows in this epoch, in the order they came; made into objects when asked for."""

    __slots__ = ("_first", "_last", "_source")

    def __init__(self, source: RowSource, first: int, last: int) -> None:
        self._source = source
        self._first = first
        self._last = last

    def __len__(self) -> int:
        return self._last - self._first

    def __iter__(self) -> Any:
        return iter(self._source.all()[self._first : self._last])

    def __getitem__(self, index: int | slice) -> Any:
        return self._source.all()[self._first : self._last][index]

    def __repr__(self) -> str:
        return repr(list(self))


class RowSource:
    """All rows of the epoch as named tuples, made once and only if they are used."""

    def __init__(self, columns: Any, row_class: Any) -> None:
        self._columns = columns
        self._row_class = row_class
        self._rows: list[Any] | None = None

    def all(self) -> list[Any]:
        if self._rows is None:
            make = functools.partial(tuple.__new__, self._row_class)
            self._rows = list(map(make, zip(*self._columns(), strict=True)))
        return self._rows
