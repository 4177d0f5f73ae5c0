"""What `MILLRACE_HOOKS=millrace_lab.faults.hooks` does: kill at named points, spoil local stores.

Each fault has a variable of its own and does nothing without it: see `crashes`, `faulty`, `outage`,
`slow`.
"""

from __future__ import annotations

from millrace.log.store import LocalStore, Store
from millrace_lab.faults import crashes, faulty, outage, slow


def reached(point: str, epoch: int) -> None:
    crashes.reached(point, epoch)


def opened(store: Store) -> Store:
    if not isinstance(store, LocalStore):
        return store
    return outage.interrupted(faulty.disturbed(slow.slowed(store)))
