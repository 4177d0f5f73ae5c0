"""What a deduplication keeps, and what a reader shows of it. Pure Arrow.

There is one table with a row per key that was seen: the key's columns and, unless keys are kept for
ever, the time at which it is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace.operators.operator import MAIN, Moment, ResultColumn, StateLayout, TableLayout
from millrace.state.eviction import Eviction

KIND = "dedup"

EVENT, PROCESSING, NEVER = "event", "processing", "never"
"""By which time keys are forgotten."""

EXPIRES = "dedup.expires"
"""When a key is forgotten, in microseconds."""

EXPIRES_AT = "expires_at"
"""The same as readers see it."""

_TIME = pa.timestamp("us", "UTC")
_MILLISECOND = 1000


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The table of a deduplication: keys, and when they are forgotten."""
    results = [ResultColumn(key.name, key.type, (key.name,)) for key in keys]
    if spec["time"] != NEVER:
        results.append(
            ResultColumn(EXPIRES_AT, _TIME, (EXPIRES,), lambda state: state[0].view(_TIME))
        )
    table = table_layout(keys, spec["time"])
    return StateLayout(
        {MAIN: table}, lambda moment: results, lambda table, moment: eviction(spec["time"], moment)
    )


def table_layout(keys: Sequence[pa.Field], time: str) -> TableLayout:
    """The one table."""
    if time == NEVER:
        return TableLayout(pa.schema(keys))
    return TableLayout(pa.schema([*keys, pa.field(EXPIRES, pa.int64())]), evicts=True)


def eviction(time: str, moment: Moment) -> Eviction | None:
    """The keys that are forgotten after the epoch of a moment."""
    if time == NEVER:
        return None
    return Eviction(EXPIRES, passed(time, moment) + 1)


def passed(time: str, moment: Moment) -> int:
    """The time up to which keys are forgotten, in microseconds."""
    if time == EVENT:
        return moment.watermark_us or 0
    # Manifests have processing times in milliseconds, and readers must see what shards saw.
    return moment.processing_us // _MILLISECOND * _MILLISECOND


def passed_before(time: str, moment: Moment) -> int:
    """The same in the epoch before."""
    return (moment.late_us or 0) if time == EVENT else moment.since_us
