"""What `MILLRACE_HOOKS=millrace_lab.faults.hooks` does: kill at named points, spoil stores.

Each fault has a variable of its own and does nothing without it: see `crashes`, `slow`, and for
local stores `faulty` and `outage`. `recording` spoils nothing: it writes requests down.
"""

from __future__ import annotations

from millrace.log.store import LocalStore, Store
from millrace_lab.faults import crashes, faulty, outage, recording, slow


def reached(point: str, epoch: int) -> None:
    crashes.reached(point, epoch)


def opened(store: Store) -> Store:
    disturbed = slow.slowed(store)
    if isinstance(store, LocalStore):
        disturbed = outage.interrupted(faulty.disturbed(disturbed))
    return recording.recorded(disturbed)
