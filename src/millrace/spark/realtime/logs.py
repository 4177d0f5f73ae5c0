"""Spark's logs where a real-time query left off, or is about to go on.

In real time Spark writes down what a batch has read after the batch, so after the manifest. If the
driver dies in between, Spark would run the batch again and read further, while its rows are in the
state. The manifest has the batch's offsets: a start gives them to Spark before Spark looks.

A batch of the other kind that is in a manifest, but not in Spark's log of commits, is no better: in
real time Spark forgets what it had planned. It is marked as committed.

A query whose timers need a heartbeat has one more source in micro-batches than in real time, where
batches come by themselves. Spark wants an offset for each source, so that line comes and goes.
"""

from __future__ import annotations

import contextlib
import json

from millrace import clock
from millrace.errors import AlreadyExistsError, CorruptSparkLogError
from millrace.log import Trail, spark_logs
from millrace.log.store import Store

_HEAD = 2
"""Lines of a batch's offsets before the first source's."""
_UNKNOWN = "-"
"""Spark's line for a source that has not begun."""


def complete(store: Store, trail: Trail, *, real_time: bool) -> None:
    """Let Spark's logs have the last batch of the manifests, where Spark would not know better."""
    batch = trail.batch_id
    if batch is None or (trail.offsets is None and not real_time):
        # Spark runs a micro-batch again, and it is found in the manifest.
        return
    done = spark_logs.last_committed(store)
    if done is not None and done >= batch:
        return
    if not spark_logs.is_planned(store, batch):
        if trail.offsets is None:
            # What is missing is said by the check of the logs.
            return
        _create(store, f"{spark_logs.OFFSETS}/{batch}", trail.offsets)
    elif trail.offsets is not None:
        lines = spark_logs.offset_lines(store, batch)
        if lines[_HEAD:] != trail.offsets.splitlines()[_HEAD:]:
            raise CorruptSparkLogError(
                f"{store.url}/{spark_logs.OFFSETS}/{batch} says that batch {batch} has read up to "
                f"{lines[_HEAD:]}; the manifest of epoch {trail.epoch} says "
                f"{trail.offsets.splitlines()[_HEAD:]}. Another query may be running on the "
                "location: stop it. If there is none, restore the folder 'spark' from a backup."
            )
    watermark = _watermark_ms(spark_logs.offset_lines(store, batch))
    committed = json.dumps({"nextBatchWatermarkMs": watermark}, separators=(",", ":"))
    _create(store, f"{spark_logs.COMMITS}/{batch}", f"v1\n{committed}")


def _create(store: Store, path: str, text: str) -> None:
    # What another driver has just written ends one of the two, as the location's fence does.
    with contextlib.suppress(AlreadyExistsError):
        store.create(path, text.encode())


def _watermark_ms(lines: list[str]) -> int:
    """The watermark of a batch. That of the next may be later; it never is earlier."""
    found = json.loads(lines[1]).get("batchWatermarkMs", 0)
    return found if type(found) is int else 0


def fit_sources(store: Store, sources: int, *, beats: bool) -> None:
    """Let the last batch have an offset for the heartbeat exactly if there is one from now on.

    `sources` is the number of the others. What was planned and is not in a manifest stays as it is
    in micro-batches, and is forgotten in real time.
    """
    batches = spark_logs.planned(store)
    if not batches:
        return
    batch = batches[-1]
    lines = spark_logs.offset_lines(store, batch)
    given = len(lines) - _HEAD
    if beats and given == sources:
        lines.append(_beats(store, sources))
    elif not beats and given == sources + 1 and _is_beat(store, sources):
        del lines[-1]
    else:
        return
    spark_logs.rewrite(store, f"{spark_logs.OFFSETS}/{batch}", "\n".join(lines).encode())


def _beat_path(number: int) -> str:
    return f"{spark_logs.SOURCES}/{number}/0"


def _is_beat(store: Store, number: int) -> bool:
    return store.size(_beat_path(number)) is not None


def _beats(store: Store, number: int) -> str:
    """How far the heartbeat would be, had it gone on."""
    if not _is_beat(store, number):
        return _UNKNOWN
    since = int(store.read(_beat_path(number)).decode().splitlines()[1])
    return str(max(0, (clock.now_ms() - since) // 1000))
