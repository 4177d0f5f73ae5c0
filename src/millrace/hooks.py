"""Named points of an epoch and opened stores, for a module that observes or disturbs a query.

`MILLRACE_HOOKS` names a module with two functions: `reached(point, epoch)`, called where the code
passes a named point, and `opened(store)`, whose result replaces every store that is opened. The
module is imported on first use, in the driver and in every worker that has the variable in its
environment. Without the variable both hooks do nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, TypeVar

VARIABLE = "MILLRACE_HOOKS"

AFTER_INPUT = "after-input"
BEFORE_SEGMENT = "before-segment"
AFTER_SEGMENT = "after-segment"
BEFORE_SINK = "before-sink"
AFTER_SINK = "after-sink"
BEFORE_MANIFEST = "before-manifest"
AFTER_MANIFEST = "after-manifest"
BEFORE_COMMIT = "before-commit"
SINK_BEGINS = "sink-begins"
SINK_WRITTEN = "sink-written"
SINK_COMMITTED = "sink-committed"
BEFORE_STEP = "before-step"
STAGED_STEP = "staged-step"
AFTER_STEP = "after-step"

SHARD_POINTS = (AFTER_INPUT, BEFORE_SEGMENT, AFTER_SEGMENT)
"""The points that a shard passes, in a worker. The driver passes the others, and a mirror
those of a step."""

SINK_POINTS = (SINK_BEGINS, SINK_WRITTEN, SINK_COMMITTED)
"""The points of a sink with a marker: rows are computed; rows and marker are in an open
transaction; it is committed. A sink does not know its epoch: its points pass the batch id."""

StoreT = TypeVar("StoreT")


def reach(point: str, epoch: int) -> None:
    """Say that this process is at a point of an epoch."""
    module = _module()
    if module is not None:
        module.reached(point, epoch)


def opened(store: StoreT) -> StoreT:
    """The store to use for one that was opened."""
    module = _module()
    if module is None:
        return store
    replaced: StoreT = module.opened(store)
    return replaced


def _module() -> Any:
    name = os.environ.get(VARIABLE)
    return importlib.import_module(name) if name else None
