"""Latencies of events from a topic to a topic, and whether the output is right. Pure.

An output record says how many events of a key it is about, and the time of the last of them. So
each event is answered by the first record of its key whose count includes it: every event has a
latency, also where an epoch answers many at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.arrays import Float64Array, Int64Array

_MOST = 1 << 32
"""More events than a key has."""


@dataclass(frozen=True)
class Sent:
    """The events: their keys and their times in microseconds, in order."""

    keys: Int64Array
    stamps: Int64Array


@dataclass(frozen=True)
class Answered:
    """What a side made of the events."""

    latencies: Float64Array
    """Seconds, of each event in order; infinite for those without an answer."""
    wrong: int
    """Records that say something else than the events do."""
    repeated: int
    """Records that had been there before."""

    @property
    def is_complete(self) -> bool:
        return bool(np.isfinite(self.latencies).all())


def answered(sent: Sent, records: Int64Array) -> Answered:
    """`records` has a row per record: key, count, time of the last event, when it came."""
    order = np.argsort(sent.keys, kind="stable")
    keys = sent.keys[order]
    first = np.searchsorted(keys, keys, side="left")
    # An event is the n-th of its key, from 1.
    codes = keys * _MOST + (np.arange(len(keys)) - first + 1)
    stamps = sent.stamps[order]
    said = records[:, 0] * _MOST + records[:, 1]
    place = np.searchsorted(codes, said)
    there = place < len(codes)
    right = np.zeros(len(said), bool)
    right[there] = codes[place[there]] == said[there]
    right[right] = stamps[place[right]] == records[right, 2]
    by_code = np.lexsort((records[:, 3], said))
    said, came = said[by_code], records[by_code, 3]
    answer = np.searchsorted(said, codes)
    found = answer < len(said)
    found[found] = said[answer[found]] // _MOST == keys[found]
    seconds = np.full(len(codes), np.inf)
    seconds[found] = (came[answer[found]] - stamps[found]) / 1e6
    latencies = np.empty(len(codes))
    latencies[order] = seconds
    repeated = len(said) - len(np.unique(said))
    return Answered(latencies, int((~right).sum()), repeated)
