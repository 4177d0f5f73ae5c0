"""Timers of a shard's keys in one epoch.

They are a collection per key, found by the timer's name and a label. But most processors only ever
set the one timer without a label and let it fire, and for that nothing has to be read. So such
changes are **noted**, in a list per timer, and become entries of the collection only if something
else is asked of any timer. Invariant: either nothing is loaded, and the notes are all that changed;
or everything is, and there are no notes.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np

from millrace.arrays import BoolArray, Int64Array
from millrace.errors import TimerError
from millrace.operators.process.convert import from_us, to_us
from millrace.operators.process.cursor import Cursor
from millrace.operators.process.durations import duration_us
from millrace.operators.process.handles import NO_ENTRY, UNKNOWN, CollectionHandle, Entries
from millrace.operators.process.tables import CollectionTable


class TimerTable(CollectionTable):
    """The timers of one kind of time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_loaded = False
        self._noted: dict[str, list[Any]] = {}
        self._grown: Int64Array = np.zeros(len(self._keys), np.int64)

    def note(self, name: str) -> list[Any]:
        """For each key what was done to this timer: its new time, NO_ENTRY, or UNKNOWN: nothing."""
        self._noted[name] = [UNKNOWN] * len(self._keys)
        return self._noted[name]

    def load(self, i: int) -> Entries:
        if not self.is_loaded:
            self.is_loaded = True
            super().load(i)
            self._enter_noted()
        return super().load(i)

    def _enter_noted(self) -> None:
        cursor = Cursor()
        collection = CollectionHandle(cursor, False)
        collection.entries, collection.loader = self.entries, self
        for name, times in self._noted.items():
            for cursor.i, us in enumerate(times):
                if us is NO_ENTRY:
                    collection._remove((name, ""))
                elif us is not UNKNOWN:
                    collection._put(collection._here(), (name, ""), us)

    def take(self, collection: CollectionHandle, i: int, name: str, label: str, us: int) -> bool:
        """Remove a timer that is due, if it is still set to the time it had before the epoch."""
        noted = self._noted.get(name) if label == "" and not self.is_loaded else None
        if noted is None:
            if collection._lookup(collection._here(), (name, label)) != us:
                return False
            collection._remove((name, label))
            return True
        if noted[i] is not UNKNOWN and noted[i] != us:
            return False
        noted[i] = NO_ENTRY
        return True

    @property
    def touched(self) -> list[int]:
        if self.is_loaded:
            return super().touched
        found = [j for times in self._noted.values() for j, us in enumerate(times) if _is(us)]
        return found if len(self._noted) == 1 else sorted(set(found))

    def _all_changed(self) -> tuple[list[int], list[Any], list[Any]]:
        if self.is_loaded:
            return super()._all_changed()
        owners: list[int] = []
        places: list[Any] = []
        values: list[Any] = []
        for name, times in self._noted.items():
            changed = [j for j, us in enumerate(times) if _is(us)]
            owners += changed
            places += [(name, "")] * len(changed)
            values += [times[j] for j in changed]
        return owners, places, values

    def _found(self, owners: list[int], existing: BoolArray, deleted: BoolArray) -> None:
        change = np.where(deleted, -existing.astype(np.int64), (~existing).astype(np.int64))
        np.add.at(self._grown, np.asarray(owners), change)

    def sizes_after(self, before: list[int], numbers: list[int]) -> list[int]:
        if self.is_loaded:
            return super().sizes_after(before, numbers)
        sizes: list[int] = (np.asarray(before, np.int64) + self._grown[numbers]).tolist()
        return sizes


def _is(us: Any) -> bool:
    return us is not UNKNOWN


class TimerHandle:
    """A timer of the current key. Without labels there is one; a label makes another."""

    __slots__ = ("_collection", "_cursor", "_name", "_now_us", "_table", "_time", "noted")

    def __init__(
        self, name: str, time: str, collection: CollectionHandle, now_us: int | None
    ) -> None:
        self._name = name
        self._time = time
        self._collection = collection
        self._cursor = collection._cursor
        self._table: TimerTable = collection.loader
        self._now_us = now_us
        self.noted: Any = self._table.note(name)

    def set(self, time: dt.datetime, label: str = "") -> None:
        """Fire at a time; replaces an earlier setting."""
        us = self._us(time)
        if self._now_us is not None and us <= self._now_us:
            now = "the watermark" if self._time == "event" else "the epoch's processing time"
            raise TimerError(
                f"timer {self._name!r} was set to {from_us(us).isoformat()}, which is not after "
                f"{now}, {from_us(self._now_us).isoformat()}. Set it to a later time, or do now "
                "what it should do."
            )
        self._set(us, label)

    def set_next(
        self, period: str | dt.timedelta, label: str = "", *, after: dt.datetime | None = None
    ) -> dt.datetime:
        """Fire at the next multiple of a period, such as `"10 seconds"`; returns when that is.

        Multiples are counted from 1970. The next one is the first after now and, if given, after
        `after`: for a timer that sets itself again in `on_timer` there always is one, however far
        the watermark has jumped. Multiples that were passed over do not fire.
        """
        step = duration_us(period)
        bounds = [self._now_us] if self._now_us is not None else []
        if after is not None:
            bounds.append(self._us(after))
        if not bounds:
            raise TimerError(
                f"timer {self._name!r}: there is no watermark yet, so the next multiple of "
                f"{period} is not known. Give after=, for example after=ctx.event_time."
            )
        us = (max(bounds) // step + 1) * step
        self._set(us, label)
        return from_us(us)

    def _us(self, time: dt.datetime) -> int:
        try:
            return to_us(time)
        except TypeError as error:
            raise TimerError(f"timer {self._name!r}: {error}.") from error

    def _set(self, us: int, label: str) -> None:
        if label == "" and not self._table.is_loaded:
            self.noted[self._cursor.i] = us
            return
        collection = self._collection
        collection._put(collection._here(), self._labelled(label), us)

    def cancel(self, label: str = "") -> bool:
        """Cancel it; returns whether it was set."""
        return self._collection._remove(self._labelled(label))

    def get(self, label: str = "") -> dt.datetime | None:
        """When it will fire; None if it is not set."""
        collection = self._collection
        us = collection._lookup(collection._here(), self._labelled(label))
        return None if us is NO_ENTRY else from_us(us)

    def labels(self) -> list[str]:
        """The labels that are set."""
        return [label for (name, label), _ in self._collection._items() if name == self._name]

    def _labelled(self, label: str) -> tuple[str, str]:
        if type(label) is not str:
            kind = type(label).__name__
            raise TimerError(f"timer {self._name!r}: a label must be a str, not {kind}.")
        return self._name, label
