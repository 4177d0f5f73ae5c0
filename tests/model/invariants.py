"""What must hold, whatever happens."""

from __future__ import annotations

from tests.model.bounds import Bounds
from tests.model.checker import Broken
from tests.model.state import Driver, Manifest, Rows, State

LOST = "no lost update"
DOUBLE = "no double update"
OWNER = "one owner per key group and epoch"
MONOTONE = "versions are monotone"
ONE_WINNER = "an epoch is committed by one driver"
READY = "a live move flips to an executor that has followed"
NO_FALSE_ALARM = "Spark is never ahead of the manifests"
OUTPUT = "a batch has one output"
KEPT = "a retained epoch stays"

INVARIANTS = (LOST, DOUBLE, OWNER, MONOTONE, ONE_WINNER, READY, NO_FALSE_ALARM, OUTPUT, KEPT)


def expected(bounds: Bounds, state: State, group: int, epoch: int) -> Rows:
    """A key group's state after an epoch: all rows of the batches up to it, in order."""
    end = state.offsets[min(epoch, len(state.offsets)) - 1]
    return tuple(row for row in range(end) if bounds.rows[row] == group)


def check_state(bounds: Bounds, action: str, state: State, manifest: Manifest, epoch: int) -> None:
    """What a manifest says is what the batches up to it say."""
    for group, rows in enumerate(manifest.state):
        wanted = expected(bounds, state, group, epoch)
        if rows != wanted:
            invariant = LOST if set(wanted) - set(rows) else DOUBLE
            raise Broken(invariant, action, f"key group {group} has {rows}, not {wanted}")


def check_output(bounds: Bounds, action: str, state: State, driver: Driver) -> None:
    """Whoever writes a batch's output again writes the same."""
    for _, segment in driver.reports:
        for group, rows in segment.changed if segment is not None else ():
            wanted = expected(bounds, state, group, driver.batch + 1)
            if rows != wanted:
                raise Broken(OUTPUT, action, f"key group {group}: {rows}, and {wanted} before")
