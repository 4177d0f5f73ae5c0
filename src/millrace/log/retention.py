"""Retention: forget old epochs, and delete what no retained manifest names.

Invariant: for every epoch whose manifest is kept, every segment live at that epoch is kept. So an
epoch can be opened exactly when its manifest is there. An epoch that a reader has a lease on is
kept whatever its age. Files of epochs that are not committed yet are left alone: a shard may be
writing them now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millrace.ids import Epoch
from millrace.log import manifest as manifests
from millrace.log import marks
from millrace.log.journal import Journal
from millrace.log.layout import SEGMENTS, segment_epoch
from millrace.log.leases import Lease, leases


@dataclass(frozen=True)
class Swept:
    """What a collection removed."""

    manifests: int
    segments: int


@dataclass(frozen=True)
class Garbage:
    """What a collection is going to remove."""

    epochs: list[Epoch]
    segments: list[str]
    leases: list[Lease]
    """Those that have expired."""


def collect(journal: Journal, retain: int) -> Swept:
    """Keep the last `retain` epochs, those back to a full manifest, and what readers hold."""
    found = garbage(journal, retain)
    if found.epochs:
        # Before they go: who commits one of them late finds its name free, and looks for this.
        marks.mark(journal.store, found.epochs)
        marks.tidy(journal.store, max(found.epochs))
    # Manifests first: a segment is removed only when no epoch that can be opened needs it.
    for epoch in found.epochs:
        journal.store.delete(manifests.manifest_path(epoch))
    segments = found.segments
    if found.epochs and segments:
        # A reader that came in the meantime has seen its manifest, so its lease is there already.
        late = [lease.epoch for lease in leases(journal.store)[0] if lease.epoch in found.epochs]
        segments = _without(segments, late)
    for path in segments:
        journal.store.delete(path)
    for lease in found.leases:
        journal.store.delete(lease.path)
    return Swept(len(found.epochs), len(segments))


def garbage(journal: Journal, retain: int) -> Garbage:
    """What a collection removes."""
    live, over = leases(journal.store)
    epochs = journal.epochs()
    if not epochs:
        return Garbage([], [], over)
    head = epochs[-1]
    wanted = min([head - max(retain, 1) + 1, *(lease.epoch for lease in live if lease.follows)])
    horizon = _full_at(journal, epochs, Epoch(wanted))
    if horizon is None:
        return Garbage([], [], over)
    keep = _needed(journal, horizon, head)
    leased: set[int] = set()
    lost = []
    for epoch in {lease.epoch for lease in live if lease.epoch < horizon}:
        if epoch not in epochs:
            lost.append(epoch)
            continue
        last_full = journal.read(epoch)[0].last_full
        leased.update(range(last_full, epoch + 1))
        keep |= _needed(journal, last_full, epoch)
    unnamed = [
        path
        for path in journal.store.list(SEGMENTS)
        if path not in keep and segment_epoch(path) <= head
    ]
    old = [epoch for epoch in epochs if epoch < horizon and epoch not in leased]
    return Garbage(old, _without(unnamed, lost), over)


def _needed(journal: Journal, full: Epoch, last: Epoch) -> set[str]:
    """The segments that epochs from a full manifest to another need."""
    trail = journal.trail(full)
    keep = {entry.path for entry in trail.segments()}
    while trail.epoch < last:
        # A segment can only become live by being added, so the first epoch's plus all later
        # additions is everything that any of them needs.
        manifest, checksum = journal.read(Epoch(trail.epoch + 1))
        trail.advance(manifest, checksum)
        for commit in manifest.operators.values():
            keep.update(entry.path for entry in commit.segments)
    return keep


def _without(segments: list[str], epochs: Iterable[Epoch]) -> list[str]:
    """Segments without those that readers of some epochs may need.

    These epochs no longer have a manifest that says which: it may be any that is not newer.
    """
    newest = max(epochs, default=None)
    return [path for path in segments if newest is None or segment_epoch(path) > newest]


def _full_at(journal: Journal, epochs: list[Epoch], wanted: Epoch) -> Epoch | None:
    """The newest full manifest at or before an epoch; else the oldest that leads to the head."""
    first = len(epochs) - 1
    while first and epochs[first - 1] == epochs[first] - 1:
        first -= 1
    # What is before a gap was kept for a reader alone.
    joined = epochs[first:]
    for epoch in ([wanted] if wanted in joined else []) + joined:
        # A collection that was interrupted leaves manifests before the first full one. A list may
        # lag behind and leave the first ones out, so they are looked at one by one.
        last_full = journal.read(epoch)[0].last_full
        if all(journal.has(before) for before in range(last_full, joined[0])):
            return last_full
    return None
