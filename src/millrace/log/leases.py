"""Leases: an open reader, on any process, keeps the files of its epoch.

    leases/000000000012-only-1700000060000-<id>.json     epoch 12, until that time
    leases/000000000012-from-1700000060000-<id>.json     epoch 12 and all after it: written by
                                                         older versions, and still respected

What a collection needs to know is in the name, so it lists one folder and opens nothing. A file
never changes: to renew a lease is to write the next one and delete the last. A reader that dies
stops renewing, and its lease expires soon after.

Invariant: a reader writes its lease first and then makes sure that its epoch's manifest is still
there; a collection deletes manifests first and then looks for leases. So of the two, one sees the
other.

Times are wall clocks of different machines: `GRACE_MS` is how far they may be apart.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import weakref
from dataclasses import dataclass

from millrace import clock
from millrace.errors import AlreadyExistsError, StoreError, UnwritableLocationError
from millrace.ids import Epoch
from millrace.log.layout import LEASES
from millrace.log.manifest import FIRST_VERSION, seal
from millrace.log.store import Store
from millrace.repeating import Repeating

LASTS_MS = 120_000
"""How long a lease is valid without being renewed."""
RENEW_MS = 40_000
"""How old a lease is when it is renewed."""
GRACE_MS = 30_000
IDLE_MS = 60_000
"""How long a lease that may lapse is kept without being used."""

_ONLY, _FROM = "only", "from"

_log = logging.getLogger("millrace")


@dataclass(frozen=True)
class Lease:
    """What a lease's file says."""

    epoch: Epoch
    follows: bool
    """Whether it keeps the later epochs as well."""
    expires_ms: int
    id: str

    @property
    def path(self) -> str:
        kind = _FROM if self.follows else _ONLY
        return f"{LEASES}/{self.epoch:012d}-{kind}-{self.expires_ms}-{self.id}.json"

    @staticmethod
    def parse(path: str) -> Lease | None:
        """The lease of a path; None for other files, such as what a crash left behind."""
        found = _NAME.fullmatch(path.rsplit("/", 1)[-1])
        if found is None:
            return None
        epoch, kind, expires, holder = found.groups()
        return Lease(Epoch(int(epoch)), kind == _FROM, int(expires), holder)


_NAME = re.compile(
    r"([0-9]{12}|[1-9][0-9]{12,17})-(only|from)-([1-9][0-9]{0,17})-([A-Za-z0-9]+)\.json"
)


def leases(store: Store) -> tuple[list[Lease], list[Lease]]:
    """All leases: the valid ones, and the expired ones."""
    found = [lease for lease in map(Lease.parse, store.list(LEASES)) if lease is not None]
    over_before = clock.now_ms() - GRACE_MS
    live = [lease for lease in found if lease.expires_ms >= over_before]
    return live, [lease for lease in found if lease.expires_ms < over_before]


class Holder:
    """A lease that is kept as long as it is needed, and moves with its reader.

    It holds one epoch, so an open reader costs the location what that epoch needs, however long
    it stays open. With `lapses` it expires when unused for a while; the next use writes it
    again. One that could not be written yet, because the store is out of reach, is written by a
    later renewal.
    """

    def __init__(self, store: Store, epoch: Epoch, *, lapses: bool = False) -> None:
        self._store = store
        self._lapses = lapses
        self.id = clock.fresh_id()
        self._lock = threading.Lock()
        self._written: Lease | None = None
        self._used_ms = clock.now_ms()
        self._wanted = True
        self._released = False
        self.epoch = epoch

    @property
    def is_written(self) -> bool:
        """Whether collections see it by now."""
        return self._written is not None

    def _write(self) -> None:
        lease = Lease(self.epoch, False, clock.now_ms() + LASTS_MS, self.id)
        body = {"format": FIRST_VERSION, "host": socket.gethostname(), "pid": os.getpid()}
        try:
            self._store.create(lease.path, seal(body)[0])
        except AlreadyExistsError:
            # Renewed within the same millisecond.
            return
        last, self._written = self._written, lease
        if last is not None:
            self._store.delete(last.path)

    def hold(self, epoch: Epoch) -> bool:
        """Hold an epoch from now on, instead of the one before; False if it was held already."""
        with self._lock:
            self._used_ms = clock.now_ms()
            if self._released or (self._written is not None and self._written.epoch == epoch):
                return False
            self.epoch = epoch
            self._wanted = True
            self._write()
            return True

    def renew(self) -> None:
        """Write the next lease if it is time, or release one that is not used."""
        with self._lock:
            if not self._wanted:
                return
            now = clock.now_ms()
            if self._lapses and now - self._used_ms > IDLE_MS:
                self._delete()
            elif self._written is None or self._written.expires_ms - now < LASTS_MS - RENEW_MS:
                self._write()

    def release(self) -> None:
        """Release the epoch for good."""
        with self._lock:
            self._released = True
            self._delete()

    def _delete(self) -> None:
        self._wanted = False
        last, self._written = self._written, None
        if last is not None:
            self._store.delete(last.path)


class _Keeper:
    """Renews the leases of this process, in a thread that begins with the first of them."""

    def __init__(self) -> None:
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._process = 0
        self.thread = Repeating("leases", self._renew)

    def keep(self, holder: Holder) -> None:
        with self._lock:
            self._holders.add(holder)
            if self._process != os.getpid():
                # Also after a fork, which threads do not survive.
                self.thread.start()
                self._process = os.getpid()

    def _renew(self) -> float:
        with self._lock:
            holders = list(self._holders)
        failed: BaseException | None = None
        for holder in holders:
            try:
                holder.renew()
            except BaseException as error:
                # One location may be out of reach, and others not.
                failed = error
        if failed is not None:
            raise failed
        return RENEW_MS / 4000


_keeper = _Keeper()


def keeping() -> Repeating:
    """The thread that renews this process's leases."""
    return _keeper.thread


def acquire(store: Store, epoch: Epoch, *, lapses: bool = False) -> Holder | None:
    """A lease on an epoch, renewed until it is released; None if the location is read-only.

    If the store is out of reach, the lease is written once it is back.
    """
    holder = Holder(store, epoch, lapses=lapses)
    try:
        holder.hold(epoch)
    except UnwritableLocationError as error:
        _log.info("no lease on epoch %s of %s: %s", epoch, store.url, error)
        return None
    except StoreError as error:
        _log.warning("no lease on epoch %s of %s yet: %s", epoch, store.url, error)
    _keeper.keep(holder)
    return holder
