"""What the programs of `bench python` must emit, computed from their input another way.

A plain dict per program and one pass over the rows: the definition of a count and of a session,
without an engine in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

Emitted = list[tuple[int, ...]]
"""What one batch emitted, sorted; times in milliseconds."""


def counts(batches: Sequence[Sequence[tuple[int, int]]]) -> list[Emitted]:
    """For each batch of (key, time): its keys with their number of rows so far."""
    total: dict[int, int] = defaultdict(int)
    emitted: list[Emitted] = []
    for rows in batches:
        for key, _ in rows:
            total[key] += 1
        emitted.append(sorted((key, total[key]) for key in {key for key, _ in rows}))
    return emitted


def sessions(
    batches: Sequence[Sequence[tuple[int, int]]], gap_ms: int, delay_ms: int
) -> list[Emitted]:
    """For each batch of (key, time): the sessions that ended in it."""
    held: dict[int, tuple[int, int, int]] = {}
    latest: int | None = None
    emitted = []
    for rows in batches:
        watermark = None if latest is None else latest - delay_ms
        ended: Emitted = []
        for key, at in sorted(rows):
            session = held.get(key)
            if session is not None and at - session[1] <= gap_ms:
                held[key] = (session[0], at, session[2] + 1)
                continue
            if session is not None:
                ended.append((key, *session))
            held[key] = (at, at, 1)
        if watermark is not None:
            for key in [k for k, s in held.items() if s[1] + gap_ms <= watermark]:
                ended.append((key, *held.pop(key)))
        emitted.append(sorted(ended))
        times = [at for _, at in rows] + ([] if latest is None else [latest])
        latest = max(times, default=None)
    return emitted


def by_batch(
    batch: Iterable[int], key: Iterable[int], at: Iterable[int], number: int
) -> list[list[tuple[int, int]]]:
    """Columns of input as (key, time) by batch."""
    batches: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    for b, k, t in zip(batch, key, at, strict=True):
        batches[b].append((k, t))
    return batches
