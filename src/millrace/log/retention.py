"""Retention: forget old epochs, and delete what no retained manifest names.

Invariant: for every epoch whose manifest is kept, every segment live at that epoch is kept. So an
epoch can be opened exactly when its manifest is there. Files of epochs that are not committed yet
are left alone: a shard may be writing them now.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.ids import Epoch
from millrace.log import manifest as manifests
from millrace.log.journal import Journal


@dataclass(frozen=True)
class Swept:
    """What a collection removed."""

    manifests: int
    segments: int


def collect(journal: Journal, retain: int) -> Swept:
    """Keep the last `retain` epochs, and those back to a full manifest; delete the rest."""
    epochs, segments = doomed(journal, retain)
    # Manifests first: a segment goes only when no epoch that can be opened needs it.
    for epoch in epochs:
        journal.store.delete(manifests.manifest_path(epoch))
    for path in segments:
        journal.store.delete(path)
    return Swept(len(epochs), len(segments))


def doomed(journal: Journal, retain: int) -> tuple[list[Epoch], list[str]]:
    """The epochs and the segments that a collection removes."""
    epochs = journal.epochs()
    if not epochs:
        return [], []
    head = epochs[-1]
    horizon = _full_at(journal, epochs, Epoch(head - max(retain, 1) + 1))
    trail = journal.trail(horizon)
    keep = {entry.path for entry in trail.segments()}
    while trail.epoch < head:
        # A segment can only become live by being added, so the horizon's plus all later additions
        # is everything any retained epoch needs.
        manifest, checksum = journal.read(Epoch(trail.epoch + 1))
        trail.advance(manifest, checksum)
        for commit in manifest.operators.values():
            keep.update(entry.path for entry in commit.segments)
    unnamed = [
        path
        for path in journal.store.list("segments")
        if path not in keep and segment_epoch(path) <= head
    ]
    return [epoch for epoch in epochs if epoch < horizon], unnamed


def _full_at(journal: Journal, epochs: list[Epoch], wanted: Epoch) -> Epoch:
    """The newest full manifest at or before an epoch; else the oldest there is."""
    if wanted in epochs:
        last_full = journal.read(wanted)[0].last_full
        if last_full in epochs:
            return last_full
    # A collection that was interrupted leaves manifests before the first full one.
    return next(epoch for epoch in epochs if journal.read(epoch)[0].is_full)


def segment_epoch(path: str) -> int:
    """The epoch in a segment's file name; 0 for files that are not segments."""
    stem = path.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(stem) if stem.isdigit() else 0
