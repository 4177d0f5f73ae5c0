"""How many executors to keep warm: as many as a sudden load has needed, if they take long to start.

An executor that is there takes key groups over within epochs. One that must be started first is
late by its start-up time. If that is more than rows may be, a sudden load is late however quickly
it is noticed, unless somebody waits for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from millrace.reconfigure.autoscale.history import Decision
from millrace.reconfigure.autoscale.settings import Settings

HOUR = 3600.0


def spare_executors(
    acts: Sequence[Decision],
    now: float,
    start_up: float | None,
    cores: int,
    settings: Settings,
) -> int:
    """The number to keep, of executors with a number of cores; 0 if none would pay."""
    if settings.latency is None or start_up is None or start_up <= settings.latency / 2:
        return 0
    grown = [
        max(act.parallelism.values()) - max(act.before.values())
        for act in acts
        if act.action == "rescale" and now - act.at <= HOUR and act.before
    ]
    sudden = [shards for shards in grown if shards > 0]
    if not sudden:
        return 0
    in_use = max(acts[-1].parallelism.values())
    room = max(0, settings.max - in_use)
    return min(math.ceil(statistics.median(sudden) / max(1, cores)), math.ceil(room / cores))
