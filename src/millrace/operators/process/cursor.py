"""The keys of one shard in one epoch, and which of them is being processed.

Everything is loaded for all keys at once and lies in lists by key number; a handle reads and writes
at the cursor's position. What changed is collected after the last key. A state that no key asks for
is never loaded.
"""

from __future__ import annotations

from typing import Any

from millrace.arrays import UInt64Array
from millrace.errors import StateAccessError


class Cursor:
    """Which key is being processed."""

    __slots__ = ("i",)

    def __init__(self) -> None:
        self.i = -1


class Outside:
    """Stands in for a state's values while no key is being processed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object) -> Any:
        raise StateAccessError(
            f"state {self._name!r} was used outside of process() and on_timer(). State belongs to "
            "a key: use it only while a key is being processed."
        )

    __getitem__ = __setitem__ = _refuse


class Keys:
    """The touched keys, sorted by fingerprint."""

    def __init__(
        self, hi: UInt64Array, lo: UInt64Array, addresses: UInt64Array, keys: list[Any]
    ) -> None:
        self.hi = hi
        self.lo = lo
        self.addresses = addresses
        """Where the main rows of the keys are; 0 for a key without one."""
        self.keys = keys

    def __len__(self) -> int:
        return len(self.hi)
