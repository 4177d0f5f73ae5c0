"""The kinds of state that a processor can declare, and how they differ in the log.

Invariant: a kind keeps its name, its place and its columns, because locations have them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

EVENT_TIME, PROCESSING_TIME = "event", "processing"


class Place(enum.Enum):
    """Where the values of a state are."""

    MAIN = enum.auto()
    """A column of the key's row."""
    POSITIONS = enum.auto()
    """A table of elements by position; the key's row has where they start and end."""
    ENTRIES = enum.auto()
    """A table of entries; the key's row has how many there are."""
    TIMERS = enum.auto()
    """The table of all timers of one time; the key's row has how many there are."""
    SHARED = enum.auto()
    """A table whose rows belong to no key."""


@dataclass(frozen=True)
class StateKind:
    """What differs from kind to kind."""

    name: str
    place: Place
    columns: tuple[str, ...] = ("value",)
    """A column for each of the types that its declaration has."""
    has_entry_keys: bool = False
    """Whether its first column identifies an entry, so that its type cannot change."""
    per_shard: bool = False
    """Whether each shard has rows of its own."""
    time: str = ""
    """The time of a timer."""

    @property
    def is_collection(self) -> bool:
        """Whether a key has a number of rows of it, in a table of its own."""
        return self.place in (Place.POSITIONS, Place.ENTRIES)

    @property
    def is_mapping(self) -> bool:
        return self.has_entry_keys and len(self.columns) == 2


KINDS = {
    kind.name: kind
    for kind in (
        StateKind("value", Place.MAIN),
        StateKind("reducing", Place.MAIN),
        StateKind("aggregating", Place.MAIN),
        StateKind("pickled", Place.MAIN),
        StateKind("list", Place.POSITIONS),
        StateKind("map", Place.ENTRIES, ("key", "value"), has_entry_keys=True),
        StateKind("set", Place.ENTRIES, ("member",), has_entry_keys=True),
        StateKind("broadcast", Place.SHARED, ("key", "value"), has_entry_keys=True),
        StateKind("task", Place.SHARED, per_shard=True),
        StateKind("event-time timer", Place.TIMERS, (), time=EVENT_TIME),
        StateKind("processing-time timer", Place.TIMERS, (), time=PROCESSING_TIME),
    )
}
"""By their names in specs."""
