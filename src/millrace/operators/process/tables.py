"""The tables behind a processor's states, and how collections are loaded and written back.

A processor has one **main** table, a row per key: its key columns, its Values, and how large each
collection is. Each List, Map and Set has a table of its own with a row per element, and so have
the timers of each kind of time. A row that is not touched is not read, and not written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from millrace.arrays import BoolArray, UInt64Array
from millrace.errors import CollisionError, StateTypeError
from millrace.keygroups.hashing import entry_digests
from millrace.log.segment import DELETED, HI, LO, OWNER_HI, OWNER_LO
from millrace.operators.operator import TableChange
from millrace.operators.process.convert import encode_key, to_arrow, to_python
from millrace.operators.process.cursor import Keys
from millrace.operators.process.handles import NO_ENTRY, Elements, Entries
from millrace.operators.process.keys import freeze_loaded, key_freezer, key_thawer
from millrace.operators.process.layout import EXPIRES
from millrace.state.columns import words
from millrace.state.owners import entry_fingerprint
from millrace.state.replica import Replica
from millrace.state.sorting import sort_order

E = TypeVar("E", Entries, Elements)

WHOLE = 512
"""A collection with at most this many entries is read whole; of a larger one, only what is asked
for."""

_STRIDE = 0x9E3779B97F4A7C15
"""Odd, so that the positions of one list get different fingerprints; they spread evenly."""


def fitted(
    values: Sequence[Any], owners: Sequence[int], keys: Keys, data_type: pa.DataType, what: str
) -> pa.Array:
    """Values as an array; one that does not fit is reported with the key it belongs to."""
    try:
        return to_arrow(values, data_type, what)
    except StateTypeError as error:
        if error.position is not None:
            error.key = keys.keys[owners[error.position]]
        raise


def _equal(stored: pa.Array, given: UInt64Array) -> BoolArray:
    """Where a column of words, NULL for rows that are not there, has what is expected."""
    same: BoolArray = stored.fill_null(0).to_numpy(zero_copy_only=False) == given
    return same


def sorted_changes(replica: Replica, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Columns as a batch in the replica's schema, sorted by fingerprint."""
    batch = pa.RecordBatch.from_arrays(
        [columns[name] for name in replica.schema.names], schema=replica.schema
    )
    order = sort_order(
        np.asarray(columns[HI]).astype(np.uint64), np.asarray(columns[LO]).astype(np.uint64)
    )
    return batch.take(pa.array(order))


_Item: TypeAlias = tuple[Any, Any, int | None]
"""An entry: its key, its value, and when it expires."""

_Columns: TypeAlias = tuple[list[Any], list[Any], list[int | None]]
"""Keys, values, and when they expire."""


@dataclass(frozen=True)
class Lifetime:
    """How long what is written now lives, and what has expired by now."""

    ttl_us: int | None = None
    """None: forever."""
    now_us: int | None = None
    """None while there is no event time yet, and nothing expires."""

    @property
    def until_us(self) -> int | None:
        """When something that is written now expires."""
        if self.ttl_us is None or self.now_us is None:
            return None
        return self.now_us + self.ttl_us


FOREVER = Lifetime()


class _OwnedTable(Generic[E]):
    """Rows that belong to the keys of an epoch: what is loaded of them, and what changed.

    A row is identified by its owner and its place: an entry's key, or an element's position.
    """

    def __init__(self, replica: Replica, keys: Keys, what: str, lifetime: Lifetime) -> None:
        """`what` names the state in errors."""
        self.entries: list[E | None] = [None] * len(keys)
        self.expired = 0
        self._replica = replica
        self._keys = keys
        self._what = what
        self._lifetime = lifetime
        self._now_us = lifetime.now_us
        self._ttl_us = lifetime.ttl_us
        self._loaded = False

    def _is_over(self, expires: int | None) -> bool:
        return expires is not None and self._now_us is not None and expires <= self._now_us

    @property
    def touched(self) -> list[int]:
        """Keys whose rows changed."""
        return [j for j, e in enumerate(self.entries) if e is not None and self._is_touched(e)]

    def changes(self) -> TableChange | None:
        """All changed rows."""
        owners, places, values = self._all_changed()
        if not owners:
            return None
        hi, lo = self._fingerprints(owners, places)
        deleted = np.asarray([value is NO_ENTRY for value in values], np.bool_)
        addresses = self._replica.find(hi, lo)
        existing = addresses != 0
        self._found(owners, existing, deleted)
        # What came and went within the epoch leaves no row.
        wanted = np.flatnonzero(~deleted | existing)
        if not len(wanted):
            return None
        # Plain numbers: taking items of lists by numpy's is several times slower.
        picked = wanted.tolist()
        chosen = [owners[w] for w in picked]
        kept = [None if values[w] is NO_ENTRY else values[w] for w in picked]
        gone = deleted[wanted]
        columns: dict[str, pa.Array] = {
            HI: pa.array(hi[wanted]),
            LO: pa.array(lo[wanted]),
            DELETED: pa.array(gone),
            OWNER_HI: pa.array(self._keys.hi[chosen]),
            OWNER_LO: pa.array(self._keys.lo[chosen]),
            **self._columns([places[w] for w in picked], kept, chosen),
        }
        if self._ttl_us is not None:
            until = self._lifetime.until_us
            columns[EXPIRES] = pa.array([until] * len(wanted), pa.int64())
        rows = sorted_changes(self._replica, columns)
        self._check_alone(rows)
        self._check_same(addresses[wanted], columns)
        return TableChange(
            rows,
            added=int((~existing[wanted] & ~gone).sum()),
            removed=int(gone.sum()),
        )

    def _check_alone(self, rows: pa.RecordBatch) -> None:
        """Raise if two changed rows have one fingerprint."""
        hi, lo = words(rows, HI), words(rows, LO)
        twice = np.flatnonzero((hi[1:] == hi[:-1]) & (lo[1:] == lo[:-1]))
        if len(twice):
            at = int(twice[0])
            places = rows.select(self._place_columns).slice(at, 2).to_pylist()
            raise self._collision(places[0], places[1])

    def _check_same(self, addresses: UInt64Array, columns: dict[str, pa.Array]) -> None:
        """Raise if a changed row would take the place of another: one with another owner or place.

        The fingerprint of an entry has 88 bits of its own, which is enough by chance, but not
        against somebody who knows the salt, or for whom there is none.
        """
        there = np.flatnonzero(addresses)
        if not len(there):
            return
        names = [OWNER_HI, OWNER_LO, *self._place_columns]
        stored = self._replica.gather(addresses[there], names)
        given = [columns[name].take(pa.array(there)) for name in names]
        if all(a.equals(b) for a, b in zip(given, stored, strict=True)):
            return
        pairs = zip(self._identities(given), self._identities(stored), strict=True)
        for mine, theirs in pairs:
            if mine != theirs:
                raise self._collision(mine, theirs)

    def _identities(self, columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
        """Owner and place of each row, as objects that are equal if the rows are the same."""
        owners = [array.to_pylist() for array in columns[:2]]
        return list(zip(*owners, *self._places(columns[2:]), strict=True))

    def _places(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        return [to_python(array) for array in columns]

    def _collision(self, mine: object, theirs: object) -> CollisionError:
        return CollisionError(
            f"two rows of {self._what} have one fingerprint: {mine} and {theirs}. Keeping both is "
            "impossible, so the epoch was not committed. By chance this does not happen: somebody "
            "chose these keys. Leave one of them out of the input, or start a new location, in "
            "which they differ."
        )

    @property
    def _place_columns(self) -> list[str]:
        """The columns that tell the rows of one owner apart."""
        raise NotImplementedError

    def _all_changed(self) -> tuple[list[int], list[Any], list[Any]]:
        """Owners, places and values of what changed; NO_ENTRY is the value of what is gone."""
        owners: list[int] = []
        places: list[Any] = []
        values: list[Any] = []
        for j in self.touched:
            here = self.entries[j]
            assert here is not None
            changed = self._changed(here)
            owners += [j] * len(changed)
            places += changed.keys()
            values += changed.values()
        return owners, places, values

    def _found(self, owners: list[int], existing: BoolArray, deleted: BoolArray) -> None:
        """Take note of which changed rows existed before the epoch, and which are gone now."""

    def _fitted(self, column: str, values: list[Any], owners: list[int], part: str) -> pa.Array:
        data_type = self._replica.schema.field(column).type
        return fitted(values, owners, self._keys, data_type, f"{part} of {self._what}")

    def _is_touched(self, here: E) -> bool:
        raise NotImplementedError

    def _changed(self, here: E) -> dict[Any, Any]:
        """What changed of one key, by place."""
        raise NotImplementedError

    def _fingerprints(
        self, owners: list[int], places: list[Any]
    ) -> tuple[UInt64Array, UInt64Array]:
        raise NotImplementedError

    def _columns(
        self, places: list[Any], values: list[Any], owners: list[int]
    ) -> dict[str, pa.Array]:
        """A row's own columns."""
        raise NotImplementedError


class CollectionTable(_OwnedTable[Entries]):
    """The entries of a Map, a Set or of timers: a row each, found by its key or by its owner."""

    def __init__(
        self,
        replica: Replica,
        keys: Keys,
        what: str,
        sizes: Callable[[], list[int]],
        columns: tuple[Sequence[str], str | None],
        lifetime: Lifetime = FOREVER,
    ) -> None:
        """`columns` are those of an entry's key and that of its value, if it has one."""
        super().__init__(replica, keys, what, lifetime)
        self._sizes = sizes
        self._key_columns, self._value_column = list(columns[0]), columns[1]
        self._key_type = replica.schema.field(self._key_columns[0]).type
        self._is_single = len(self._key_columns) == 1
        self.freeze: Callable[[Any], Any] = key_freezer(self._key_type, what)
        self.thaw = key_thawer(self._key_type)

    def load(self, i: int) -> Entries:
        """The entries of one key; the first call loads those of all keys that have few."""
        if not self._loaded:
            self._loaded = True
            sizes = self._sizes()
            few = [j for j, size in enumerate(sizes) if 0 < size <= WHOLE]
            if few:
                self._load_whole(few)
            for j, size in enumerate(sizes):
                if self.entries[j] is None:
                    self.entries[j] = Entries({}, size, complete=size == 0)
        here = self.entries[i]
        assert here is not None
        return here

    def _load_whole(self, numbers: list[int]) -> None:
        columns, offsets = self._scan(numbers)
        if self._ttl_us is None:
            keys, values = columns[:2]
            for j, first, last in zip(numbers, offsets, offsets[1:], strict=False):
                if last == first + 1:
                    known = {keys[first]: values[first]}
                else:
                    known = dict(zip(keys[first:last], values[first:last], strict=True))
                self.entries[j] = Entries(known, last - first, complete=True)
            return
        items = list(zip(*columns, strict=True))
        for n, j in enumerate(numbers):
            here = Entries({}, 0, complete=True)
            self._take(here, items[offsets[n] : offsets[n + 1]])
            here.size = len(here.known)
            self.entries[j] = here

    def _scan(self, numbers: list[int]) -> tuple[_Columns, list[int]]:
        """All entries of some keys, those of a key in order of fingerprint."""
        addresses, offsets = self._replica.entries(self._keys.hi[numbers], self._keys.lo[numbers])
        # How rows lie in pages depends on what was merged when. What a user sees must not.
        hi, lo = (np.asarray(a) for a in self._replica.gather(addresses, [HI, LO]))
        owner = np.repeat(np.arange(len(numbers)), np.diff(offsets))
        return self._read(addresses[np.lexsort((lo, hi, owner))]), offsets.tolist()

    def _take(self, here: Entries, items: list[_Item]) -> None:
        for key, value, expires in items:
            if self._is_over(expires):
                here.changed[key] = NO_ENTRY
                self.expired += 1
            else:
                here.known[key] = value

    def _read(self, addresses: UInt64Array) -> _Columns:
        names = list(self._key_columns)
        if self._value_column is not None:
            names.append(self._value_column)
        if self._ttl_us is not None:
            names.append(EXPIRES)
        columns = [to_python(array) for array in self._replica.gather(addresses, names)]
        width = len(self._key_columns)
        if self._is_single:
            keys = freeze_loaded(columns[0], self._key_type, self.freeze)
        else:
            keys = list(zip(*columns[:width], strict=True))
        rest = columns[width:]
        values = rest.pop(0) if self._value_column is not None else [True] * len(keys)
        expires = rest.pop(0) if rest else [None] * len(keys)
        return keys, values, expires

    def complete(self, i: int, here: Entries) -> None:
        """Read the rest of a large collection."""
        columns, _ = self._scan([i])
        items = list(zip(*columns, strict=True))
        changed = here.changed
        fresh = Entries({}, 0, complete=True)
        self._take(fresh, [item for item in items if item[0] not in changed])
        known = {
            key: changed.get(key, value)
            for key, value, _ in items
            if key in fresh.known or (key in changed and key not in here.moved)
        }
        known |= changed
        here.known = {key: value for key, value in known.items() if value is not NO_ENTRY}
        here.changed = fresh.changed | changed
        here.size = len(here.known)
        here.complete = True

    def lookup(self, i: int, here: Entries, key: Any) -> Any:
        """One entry of a large collection; NO_ENTRY if there is none."""
        hi, lo = self._fingerprints([i], [key])
        address = self._replica.find(hi, lo)
        if address[0] == 0:
            return NO_ENTRY
        (stored,), (value,), (expires,) = self._read(address)
        # As parts of tuples, so that NaN, which stands for itself, is the same.
        if (stored,) != (key,):
            return NO_ENTRY
        if self._is_over(expires):
            here.changed[key] = NO_ENTRY
            here.size -= 1
            self.expired += 1
            return NO_ENTRY
        return value

    def _fingerprints(self, owners: list[int], keys: list[Any]) -> tuple[UInt64Array, UInt64Array]:
        # Many owners have the same timers, but entries of a map mostly keys of their own.
        encode = encode_key if self._is_single else functools.cache(encode_key)
        scheme = self._replica.scheme
        assert scheme is not None
        hi, lo = self._keys.hi[owners], self._keys.lo[owners]
        return entry_fingerprint(hi, *entry_digests((hi, lo), map(encode, keys), scheme))

    @property
    def _place_columns(self) -> list[str]:
        return self._key_columns

    def _places(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        places = super()._places(columns)
        if self._is_single:
            return [freeze_loaded(places[0], self._key_type, self.freeze)]
        return places

    def sizes_after(self, before: list[int], numbers: list[int]) -> list[int]:
        """How many entries some keys have now, given how many each had."""
        found = []
        for size, i in zip(before, numbers, strict=True):
            here = self.entries[i]
            found.append(size if here is None else here.size)
        return found

    def _is_touched(self, here: Entries) -> bool:
        return bool(here.changed or here.read)

    def _changed(self, here: Entries) -> dict[Any, Any]:
        if not here.read:
            return here.changed
        return {k: here.known[k] for k in here.read if k in here.known} | here.changed

    def _columns(
        self, places: list[Any], values: list[Any], owners: list[int]
    ) -> dict[str, pa.Array]:
        parts = [places] if self._is_single else [list(p) for p in zip(*places, strict=True)]
        columns = {
            name: self._fitted(name, part, owners, "a key")
            for name, part in zip(self._key_columns, parts, strict=True)
        }
        if self._value_column is not None:
            value = self._fitted(self._value_column, values, owners, "a value")
            columns[self._value_column] = value
        return columns


class ListTable(_OwnedTable[Elements]):
    """The elements of a List: a row per position."""

    def __init__(
        self,
        replica: Replica,
        keys: Keys,
        what: str,
        bounds: Callable[[], tuple[list[int], list[int]]],
        mixed: Callable[[], list[bool]] | None = None,
        lifetime: Lifetime = FOREVER,
    ) -> None:
        """`mixed` says which lists may have elements that expire out of order."""
        super().__init__(replica, keys, what, lifetime)
        self._bounds = bounds
        self._mixed = mixed

    def load(self, i: int) -> Elements:
        if not self._loaded:
            self._loaded = True
            starts, ends = self._bounds()
            few = []
            expires = self._ttl_us is not None
            mixed = self._mixed() if self._mixed is not None else [False] * len(starts)
            for j, (start, end) in enumerate(zip(starts, ends, strict=True)):
                settled = start == end or not expires
                self.entries[j] = Elements(start, end, settled=settled, mixed=mixed[j])
                if start < end <= start + WHOLE:
                    few.append(j)
            over = self._fetch([(j, range(starts[j], ends[j])) for j in few])
            if expires:
                self._settle(few, over)
        here = self.entries[i]
        assert here is not None
        return here

    def settle(self, i: int, here: Elements) -> None:
        """Find out which elements of a large list have expired: a look at all only if mixed."""
        if here.mixed:
            places = [p for p in range(here.start, here.end) if p not in here.known]
            self._settle([i], self._fetch([(i, places)]))
            return
        first = self._first_alive(i, here)
        here.settled = True
        gone = range(here.start, first)
        if not gone:
            return
        addresses = self._replica.find(*self._fingerprints([i] * len(gone), list(gone)))
        self.expired += int((addresses != 0).sum())
        for place in gone:
            here.changed[place] = NO_ENTRY
            here.known.pop(place, None)
        here.touched = True
        here.start = first

    def _first_alive(self, i: int, here: Elements) -> int:
        """The first position that has not expired, given that none behind one that has not has.

        From the front in growing steps: mostly few have expired since the last epoch.
        """
        gone, step = here.start - 1, 1
        alive = here.stored_end
        while gone + step < alive:
            if self._is_alive(i, here, gone + step):
                alive = gone + step
                break
            gone += step
            step *= 2
        while gone + 1 < alive:
            middle = (gone + alive) // 2
            if self._is_alive(i, here, middle):
                alive = middle
            else:
                gone = middle
        return alive

    def _is_alive(self, i: int, here: Elements, place: int) -> bool:
        if place not in here.known:
            # One that a merge has left out is not found: it had expired before.
            self._fetch([(i, [place])])
        return place in here.known

    def _settle(self, numbers: list[int], over: list[tuple[int, int]]) -> None:
        for j, place in over:
            here = self.entries[j]
            assert here is not None
            here.changed[place] = NO_ENTRY
            here.touched = True
            self.expired += 1
        for j in numbers:
            here = self.entries[j]
            assert here is not None
            here.settled = True
            here.holes = {p for p in range(here.start, here.end) if p not in here.known}
            while here.start in here.holes:
                here.holes.remove(here.start)
                here.start += 1

    def fetch(self, i: int, here: Elements, positions: Sequence[int]) -> None:
        """Read some elements of one key."""
        self._fetch([(i, positions)])

    def _fetch(self, wanted: list[tuple[int, Sequence[int]]]) -> list[tuple[int, int]]:
        """Read elements; returns those that are there but have expired."""
        owners = [j for j, positions in wanted for _ in positions]
        places = [p for _, positions in wanted for p in positions]
        if not owners:
            return []
        addresses = self._replica.find(*self._fingerprints(owners, places))
        names = ["value"] + ([EXPIRES] if self._ttl_us is not None else [])
        owner_hi, owner_lo, *rest = self._replica.gather(addresses, [OWNER_HI, OWNER_LO, *names])
        # Found, and not another key's.
        found = (addresses != 0) & _equal(owner_hi, self._keys.hi[owners])
        found &= _equal(owner_lo, self._keys.lo[owners])
        columns = [to_python(array) for array in rest]
        expires = columns[1] if len(columns) > 1 else [None] * len(owners)
        over = []
        rows = zip(owners, places, found.tolist(), columns[0], expires, strict=True)
        for j, place, is_there, value, until in rows:
            if not is_there:
                continue
            if self._is_over(until):
                over.append((j, place))
                continue
            here = self.entries[j]
            assert here is not None
            here.known[place] = value
        return over

    @property
    def _place_columns(self) -> list[str]:
        return ["position"]

    def _fingerprints(
        self, owners: list[int], places: list[int]
    ) -> tuple[UInt64Array, UInt64Array]:
        lo = self._keys.lo[owners] + np.asarray(places, np.uint64) * np.uint64(_STRIDE)
        return self._keys.hi[owners], lo

    @property
    def expires(self) -> bool:
        """Whether elements have a time to live."""
        return self._ttl_us is not None

    def _is_touched(self, here: Elements) -> bool:
        return here.touched

    def _changed(self, here: Elements) -> dict[Any, Any]:
        return here.changed

    def _columns(
        self, places: list[Any], values: list[Any], owners: list[int]
    ) -> dict[str, pa.Array]:
        value = self._fitted("value", values, owners, "an element")
        return {"position": pa.array(places, pa.int64()), "value": value}
