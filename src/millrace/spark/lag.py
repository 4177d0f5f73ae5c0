"""How far a query is behind its sources, from what Spark publishes about its batches.

Rows behind are what a source had when its last batch was planned, less what that batch took. Only
sources that number their rows by partition, as Kafka does, say so.

Seconds behind are a bound from above: they count from the last batch whose planning found nothing
that is still unread. That needs no time in the rows, and asks nobody.

Rough edge: Spark remembers a hundred batches, and `LagHistory` those at which somebody looked. A
query that has been behind for longer, or since its start, does not know since when.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

Offsets = dict[tuple[str, str], int]
"""Topic and partition -> offset."""

KEPT = 1000
"""Batches of which a history remembers what their sources said."""


class LagHistory:
    """The lag of a query that is asked for it now and then, at the cost of its last batch alone.

    Batches that nobody asked about are missing, so seconds are a looser bound: still from above.
    """

    def __init__(self) -> None:
        self._seen: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def take(self, published: Mapping[str, Any]) -> None:
        """Remember what Spark has published last; again is no harm."""
        parts = ("description", "endOffset", "latestOffset")
        sources = [{part: source[part] for part in parts} for source in published["sources"]]
        if not self._seen or self._seen[-1]["timestamp"] != published["timestamp"]:
            self._seen.append({"timestamp": published["timestamp"], "sources": sources})

    def lags(self, sources: int) -> list[dict[str, Any]]:
        """The lag of each of the first sources, up to a number."""
        return source_lags(list(self._seen), sources)


def source_lags(published: Sequence[Mapping[str, Any]], sources: int) -> list[dict[str, Any]]:
    """The lag of each of the first `sources`; `published` is what Spark has, oldest first."""
    if not published:
        return []
    last = published[-1]
    return [
        {
            "source": source["description"],
            "rows_behind": rows_behind(source),
            "seconds_behind": _seconds_behind(published, number),
        }
        for number, source in enumerate(last["sources"][:sources])
    ]


def rows_behind(source: Mapping[str, Any]) -> int | None:
    """Rows that a source had and its last batch left; None if its offsets do not say."""
    read, there = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    if read is None or there is None:
        return None
    return sum(max(0, there[partition] - read.get(partition, 0)) for partition in there)


def _seconds_behind(published: Sequence[Mapping[str, Any]], number: int) -> float | None:
    last = published[-1]
    read = _offsets(last["sources"][number]["endOffset"])
    behind = rows_behind(last["sources"][number])
    if read is None or behind is None:
        return None
    if behind == 0:
        return 0.0
    for earlier in reversed(published[:-1]):
        there = _offsets(earlier["sources"][number]["latestOffset"])
        if there is not None and all(there[p] <= read.get(p, 0) for p in there):
            return (_time(last) - _time(earlier)).total_seconds()
    return None


def _offsets(given: object) -> Offsets | None:
    """Offsets as Spark prints them: JSON of topics, partitions and numbers."""
    topics = parsed(given)
    if not isinstance(topics, Mapping):
        return None
    found: Offsets = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, Mapping):
            return None
        for partition, offset in partitions.items():
            if type(offset) is not int:
                return None
            found[str(topic), str(partition)] = offset
    return found


def parsed(offset: object) -> object:
    """An offset as Spark publishes it; None if it is not JSON."""
    try:
        return json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None


def _time(progress: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(progress["timestamp"])
