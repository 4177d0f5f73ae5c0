"""Handles: what `self.count` is while a key is being processed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from millrace.arrays import BoolArray
from millrace.errors import StateTypeError, UsageError
from millrace.operators.process.cursor import Cursor
from millrace.operators.process.declarations import (
    ON_READ_AND_WRITE,
    Aggregating,
    Reducing,
    Value,
)

NO_ENTRY: Any = object()
"""In place of an entry's value: there is no such entry."""
UNKNOWN: Any = object()
"""In place of an entry's value: it was not looked up yet, or not touched."""
_NONE: Any = frozenset()
_NOTHING = "None cannot be merged, and a merge or add function must return the new value, in"


class ValueHandle:
    """One value of the current key. A value that is changed in place must be set again."""

    __slots__ = ("_cursor", "_default", "_read_refreshes", "dirty", "read", "values")

    def __init__(self, declaration: Value, cursor: Cursor, keys: int) -> None:
        self._cursor = cursor
        self._default = declaration.default
        self._read_refreshes = (
            declaration.ttl_us is not None and declaration.ttl_refresh == ON_READ_AND_WRITE
        )
        self.values: Any = None
        self.dirty = bytearray(keys)
        self.read = bytearray(keys)

    def get(self) -> Any:
        """The value, or the default while there is none."""
        i = self._cursor.i
        value = self.values[i]
        if value is None:
            return self._fallback()
        if self._read_refreshes:
            self.read[i] = 1
        return value

    def _fallback(self) -> Any:
        default = self._default
        return copy.deepcopy(default) if isinstance(default, list | dict | set) else default

    def set(self, value: Any) -> None:
        """Replace the value; None clears it."""
        i = self._cursor.i
        self.values[i] = value
        self.dirty[i] = 1

    def clear(self) -> None:
        self.set(None)

    def exists(self) -> bool:
        return self.values[self._cursor.i] is not None

    @property
    def touched(self) -> BoolArray:
        """Which keys' value was set, or was read and lives longer for it."""
        return np.frombuffer(self.dirty, np.bool_) | np.frombuffer(self.read, np.bool_)


class PickledHandle(ValueHandle):
    __slots__ = ()

    def get(self) -> Any:
        data = super().get() if self.exists() else None
        return self._fallback() if data is None else pickle.loads(data)

    def set(self, value: Any) -> None:
        super().set(None if value is None else pickle.dumps(value))


class ReducingHandle(ValueHandle):
    """`add` merges a value into the one there is."""

    __slots__ = ("_merge", "_name")

    def __init__(self, declaration: Reducing, cursor: Cursor, keys: int) -> None:
        super().__init__(declaration, cursor, keys)
        self._merge = declaration.merge_function
        self._name = declaration.name

    def add(self, value: Any) -> None:
        i = self._cursor.i
        current = self.values[i]
        if current is not None:
            value = self._merge(current, value)
        if value is None:
            raise StateTypeError(f"{_NOTHING} reducing state {self._name!r}.")
        self.values[i] = value
        self.dirty[i] = 1


class AggregatingHandle(ValueHandle):
    """`add` feeds the accumulator; `get` shows its result."""

    __slots__ = ("_declaration",)

    def __init__(self, declaration: Aggregating, cursor: Cursor, keys: int) -> None:
        super().__init__(declaration, cursor, keys)
        self._declaration = declaration

    def add(self, value: Any) -> None:
        declaration = self._declaration
        current = self.values[self._cursor.i]
        if current is None:
            current = declaration.create_function()
        self._keep(declaration.add_function(current, value))

    def get(self) -> Any:
        """The result; None while nothing was added."""
        accumulator = super().get()
        result = self._declaration.result_function
        return accumulator if accumulator is None or result is None else result(accumulator)

    def merge(self, accumulator: Any) -> None:
        """Merge another accumulator in."""
        current = self.values[self._cursor.i]
        merge = self._declaration.merge_function
        if merge is None:
            raise UsageError(f"aggregating state {self._declaration.name!r} has no merge function.")
        self._keep(accumulator if current is None else merge(current, accumulator))

    def _keep(self, accumulator: Any) -> None:
        if accumulator is None:
            raise StateTypeError(f"{_NOTHING} aggregating state {self._declaration.name!r}.")
        self.set(accumulator)


class Entries:
    """One key's collection: what is known of it, and what changed.

    `complete` says that everything is known; otherwise entries are looked up one by one, and `size`
    may still count some that have expired. `moved` are those that were removed and set again, which
    puts them last.
    """

    __slots__ = ("changed", "complete", "known", "moved", "read", "size")

    def __init__(self, known: dict[Any, Any], size: int, complete: bool) -> None:
        self.known = known
        self.size = size
        self.complete = complete
        self.changed: dict[Any, Any] = {}
        # Replaced when the first is added: there is one of these per key, and most stay empty.
        self.read: set[Any] = _NONE
        self.moved: set[Any] = _NONE


class CollectionHandle:
    """Common to Map and Set. `loader` is the table behind it."""

    __slots__ = ("_cursor", "_expires", "_read_refreshes", "entries", "freeze", "loader", "thaw")

    def __init__(self, cursor: Cursor, read_refreshes: bool, expires: bool = False) -> None:
        self._cursor = cursor
        self._read_refreshes = read_refreshes
        self._expires = expires
        self.entries: Any = None
        self.loader: Any = None
        self.freeze: Callable[[Any], Any] = _itself
        self.thaw: Callable[[Any], Any] | None = None

    def _here(self) -> Entries:
        i = self._cursor.i
        here: Entries | None = self.entries[i]
        return here if here is not None else self.loader.load(i)

    def _everything(self) -> Entries:
        here = self._here()
        if not here.complete:
            self.loader.complete(self._cursor.i, here)
        return here

    def _counted(self) -> Entries:
        """What is needed to know the size: a large collection may hold expired entries."""
        return self._everything() if self._expires else self._here()

    def _lookup(self, here: Entries, key: Any) -> Any:
        """The value of an entry, or NO_ENTRY."""
        value = here.known.get(key, UNKNOWN)
        if value is UNKNOWN:
            if here.complete:
                return NO_ENTRY
            value = here.known[key] = self.loader.lookup(self._cursor.i, here, key)
        if self._read_refreshes and value is not NO_ENTRY:
            here.read = here.read or set()
            here.read.add(key)
        return value

    def _put(self, here: Entries, key: Any, value: Any) -> None:
        is_new = key not in here.known if here.complete else self._lookup(here, key) is NO_ENTRY
        if is_new:
            here.size += 1
            # Both dicts keep the order in which entries were set; this one is new.
            here.known.pop(key, None)
            if here.changed.pop(key, None) is not None:
                here.moved = here.moved or set()
                here.moved.add(key)
        here.known[key] = value
        here.changed[key] = value

    def _remove(self, key: Any) -> bool:
        here = self._here()
        if self._lookup(here, key) is NO_ENTRY:
            return False
        here.size -= 1
        if here.complete:
            del here.known[key]
        else:
            here.known[key] = NO_ENTRY
        here.changed[key] = NO_ENTRY
        return True

    def _items(self) -> list[tuple[Any, Any]]:
        here = self._everything()
        if self._read_refreshes:
            here.read = here.read | here.known.keys()
        return list(here.known.items())

    def _keys(self) -> list[Any]:
        thaw = self.thaw
        keys = [key for key, _ in self._items()]
        return keys if thaw is None else [thaw(key) for key in keys]

    def __len__(self) -> int:
        return self._counted().size

    def __bool__(self) -> bool:
        return self._counted().size > 0

    def clear(self) -> None:
        """Remove all; costs as much as there is."""
        here = self._everything()
        for key in here.known:
            here.changed[key] = NO_ENTRY
        here.known.clear()
        here.size = 0


class MapHandle(CollectionHandle):
    """A map of the current key: like a dict, but only what is touched is read and written.

    Entries come in a fixed order, and those set in this epoch last. That of earlier entries follows
    from their keys: it is the same whenever and wherever the state is read.
    """

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._lookup(self._here(), self.freeze(key))
        return default if value is NO_ENTRY else value

    def __getitem__(self, key: Any) -> Any:
        value = self._lookup(self._here(), self.freeze(key))
        if value is NO_ENTRY:
            raise KeyError(key)
        return value

    def set(self, key: Any, value: Any) -> None:
        self._put(self._here(), self.freeze(key), value)

    __setitem__ = set

    def delete(self, key: Any) -> bool:
        """Remove an entry; whether there was one."""
        return self._remove(self.freeze(key))

    def __delitem__(self, key: Any) -> None:
        if not self._remove(self.freeze(key)):
            raise KeyError(key)

    def contains(self, key: Any) -> bool:
        return self._lookup(self._here(), self.freeze(key)) is not NO_ENTRY

    __contains__ = contains

    def items(self) -> list[tuple[Any, Any]]:
        items, thaw = self._items(), self.thaw
        return items if thaw is None else [(thaw(key), value) for key, value in items]

    def keys(self) -> list[Any]:
        return self._keys()

    def values(self) -> list[Any]:
        return [value for _, value in self._items()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys())

    def update(self, other: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        for key, value in list(other.items() if isinstance(other, Mapping) else other):
            self.set(key, value)


class SetHandle(CollectionHandle):
    """A set of the current key; its members come in the same order as a map's entries."""

    __slots__ = ()

    def add(self, member: Any) -> bool:
        """Add a member; whether it is new. Adding it again makes it live longer."""
        here, member = self._here(), self.freeze(member)
        is_new = self._lookup(here, member) is NO_ENTRY
        if is_new or self._expires:
            self._put(here, member, True)
        return is_new

    def discard(self, member: Any) -> bool:
        """Remove a member; whether it was there."""
        return self._remove(self.freeze(member))

    def contains(self, member: Any) -> bool:
        return self._lookup(self._here(), self.freeze(member)) is not NO_ENTRY

    __contains__ = contains

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys())


class Elements:
    """One key's list: positions `start` to `end`, those known, and those changed.

    `holes` are positions within whose element has expired before one in front of it, because that
    was set again or has no time. `mixed` says that there may be such; if not, those that have
    expired are the first ones. `settled` says that it is known which have.
    """

    __slots__ = (
        "changed",
        "end",
        "holes",
        "known",
        "mixed",
        "settled",
        "start",
        "stored_end",
        "touched",
    )

    def __init__(self, start: int, end: int, *, settled: bool = True, mixed: bool = False) -> None:
        self.start = start
        self.end = end
        self.stored_end = end
        self.settled = settled
        self.mixed = mixed
        self.known: dict[int, Any] = {}
        self.changed: dict[int, Any] = {}
        self.holes: set[int] = set()
        self.touched = False

    def places(self) -> Sequence[int]:
        """The positions of the elements, in order."""
        every = range(self.start, self.end)
        return [p for p in every if p not in self.holes] if self.holes else every


class ListHandle:
    """A list of the current key: appending writes one element, whatever the list's length."""

    __slots__ = ("_cursor", "entries", "loader")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.entries: Any = None
        self.loader: Any = None

    def _loaded(self) -> Elements:
        i = self._cursor.i
        here: Elements | None = self.entries[i]
        return here if here is not None else self.loader.load(i)

    def _here(self) -> Elements:
        """The elements, without those that have expired."""
        here = self._loaded()
        if not here.settled:
            self.loader.settle(self._cursor.i, here)
        return here

    def append(self, value: Any) -> None:
        here = self._loaded()
        here.known[here.end] = here.changed[here.end] = value
        here.end += 1
        here.touched = True

    def extend(self, values: Iterable[Any]) -> None:
        for value in list(values):
            self.append(value)

    def __len__(self) -> int:
        here = self._here()
        return here.end - here.start - len(here.holes)

    def __bool__(self) -> bool:
        return len(self) > 0

    def _at(self, here: Elements, places: Sequence[int]) -> list[Any]:
        missing = [p for p in places if p not in here.known]
        if missing:
            self.loader.fetch(self._cursor.i, here, missing)
        return [here.known[p] for p in places]

    def __iter__(self) -> Iterator[Any]:
        here = self._here()
        return iter(self._at(here, here.places()))

    def get(self) -> list[Any]:
        """All elements."""
        return list(self)

    def __getitem__(self, index: int | slice) -> Any:
        here = self._here()
        if isinstance(index, slice):
            return self._at(here, here.places()[index])
        return self._at(here, [self._place(here, index)])[0]

    def __setitem__(self, index: int, value: Any) -> None:
        here = self._here()
        place = self._place(here, index)
        here.known[place] = here.changed[place] = value
        # It now lives longer than those behind it, unless there are none or they are as new.
        here.mixed = here.mixed or place < here.stored_end - 1
        here.touched = True

    def _place(self, here: Elements, index: int) -> int:
        try:
            return here.places()[index]
        except IndexError:
            raise IndexError(
                f"index {index} is out of range: the list has {len(self)} elements"
            ) from None

    def drop_first(self, count: int = 1) -> None:
        """Remove elements at the front."""
        if count < 0:
            raise UsageError(f"drop_first({count}): the count must not be negative.")
        here = self._here()
        places = here.places()
        last = places[count] if count < len(places) else here.end
        for position in places[:count]:
            here.changed[position] = NO_ENTRY
            here.known.pop(position, None)
        here.holes = {p for p in here.holes if p > last}
        here.touched = here.touched or here.start < last
        here.start = last

    def clear(self) -> None:
        """Remove all; costs as much as there is."""
        self.drop_first(len(self))

    def set(self, values: Iterable[Any]) -> None:
        """Replace the whole list."""
        values = list(values)
        self.clear()
        self.extend(values)


def _itself(key: Any) -> Any:
    return key
