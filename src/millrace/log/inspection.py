"""The inspection of a whole location: what is reachable, what is damaged, what is not needed.

Reads every byte that a retained epoch needs and compares it with its checksum. Changes nothing, and
continues after damage, so that one inspection finds all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.errors import (
    CorruptionError,
    CorruptSparkLogError,
    LocationError,
    MillraceError,
    MissingFileError,
    StoreError,
)
from millrace.ids import Epoch
from millrace.log import manifest as manifests
from millrace.log.journal import Journal
from millrace.log.layout import (
    COLLECTED,
    IDENTITY,
    LEASES,
    MANIFESTS,
    REQUESTS,
    SCALING,
    SEGMENTS,
    SINKS,
    SPARK,
    VIEWS,
    segment_epoch,
)
from millrace.log.segment import SegmentEntry, open_segment
from millrace.log.spark_logs import check_logs, damaged_logs
from millrace.log.trail import Trail

_OTHERS = (IDENTITY, SPARK, REQUESTS, LEASES, VIEWS, SINKS, SCALING, COLLECTED)
"""What else belongs to a location."""


@dataclass(frozen=True)
class Damage:
    """A damaged file."""

    path: str
    problem: str
    epochs: tuple[int, int] | None
    """The first and last retained epoch that need it; None if the state does not."""


@dataclass
class Inspection:
    """What an inspection found."""

    location: str
    epochs: tuple[int, int] | None = None
    """The first and last epoch with a manifest."""
    readable: list[int] = field(default_factory=list)
    """Epochs that can be opened, with every byte intact."""
    segments: int = 0
    bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    """Segments of committed epochs that no retained manifest names."""
    unfinished: list[str] = field(default_factory=list)
    """Segments of an epoch that is not committed: being written, or left by a crash."""
    strangers: list[str] = field(default_factory=list)
    """Files that are not Millrace's."""

    @property
    def is_sound(self) -> bool:
        return not self.damaged


def inspect(
    journal: Journal, progress: Callable[[int, int], None] = lambda done, total: None
) -> Inspection:
    """Inspect everything; `progress` gets the number of segments read so far, and of all."""
    found = Inspection(journal.store.url)
    epochs = journal.epochs()
    if epochs:
        found.epochs = (epochs[0], epochs[-1])
    needed = _needed(journal, epochs, found)
    bad = _read_all(journal, needed, found, progress)
    for epoch, paths in needed.items():
        if not paths.keys() & bad:
            found.readable.append(epoch)
    _sort_files(journal, needed, found, epochs[-1] if epochs else Epoch(0))
    _read_others(journal, found)
    return found


def _read_others(journal: Journal, found: Inspection) -> None:
    """What is not the state itself: Spark's logs, requests and their answers, leases."""
    head = (found.epochs or (0, 0))[1]
    span = (head, head)
    logs = [Damage(*problem, span) for problem in damaged_logs(journal.store)]
    newest = found.readable[-1] if found.readable and journal.store.list(SPARK) else 0
    try:
        # Without any logs of Spark's it is a copy that is only to be read.
        check_logs(journal.store, journal.trail(Epoch(newest)).batch_id)
    except CorruptSparkLogError as error:
        logs = logs or [Damage(SPARK, str(error), span)]
    found.damaged += logs
    for path in [*journal.store.list(REQUESTS), *journal.store.list(LEASES)]:
        if path.endswith(".json"):
            try:
                manifests.unseal(journal.store.read(path), f"{journal.store.url}/{path}")
            except MissingFileError:
                # Released or forgotten in the meantime.
                continue
            except (CorruptionError, LocationError) as error:
                found.damaged.append(Damage(path, str(error), None))


def _needed(
    journal: Journal, epochs: list[Epoch], found: Inspection
) -> dict[Epoch, dict[str, SegmentEntry]]:
    """The segments of every epoch that can be opened."""
    needed: dict[Epoch, dict[str, SegmentEntry]] = {}
    trail: Trail | None = None
    for epoch in epochs:
        try:
            if trail is not None and trail.epoch == epoch - 1:
                journal.follow(trail, epoch)
            else:
                trail = journal.trail(epoch)
        except StoreError:
            raise
        except MillraceError as error:
            trail = None
            path = manifests.manifest_path(epoch)
            found.damaged.append(Damage(path, str(error), (epoch, epoch)))
            continue
        needed[epoch] = {entry.path: entry for entry in trail.segments()}
    return needed


def _read_all(
    journal: Journal,
    needed: dict[Epoch, dict[str, SegmentEntry]],
    found: Inspection,
    progress: Callable[[int, int], None],
) -> set[str]:
    """Read every page of every segment; the paths of those that are damaged."""
    users: dict[str, list[int]] = {}
    entries: dict[str, SegmentEntry] = {}
    for epoch, segments in needed.items():
        entries.update(segments)
        for path in segments:
            users.setdefault(path, []).append(epoch)
    found.segments = len(entries)
    bad = set()
    for number, (path, entry) in enumerate(sorted(entries.items()), 1):
        span = (users[path][0], users[path][-1])
        problems = _problems(journal, entry)
        found.damaged += [Damage(path, problem, span) for problem in problems]
        if problems:
            bad.add(path)
        else:
            found.bytes += entry.bytes
        progress(number, len(entries))
    return bad


def _problems(journal: Journal, entry: SegmentEntry) -> list[str]:
    try:
        segment = open_segment(journal.store, entry)
    except (CorruptionError, LocationError) as error:
        return [str(error)]
    problems = []
    for number in range(len(entry.pages)):
        try:
            segment.page(number)
        except (CorruptionError, LocationError) as error:
            problems.append(str(error))
    return problems


def _sort_files(
    journal: Journal,
    needed: dict[Epoch, dict[str, SegmentEntry]],
    found: Inspection,
    head: Epoch,
) -> None:
    named = {path for segments in needed.values() for path in segments}
    for path in journal.store.list(""):
        top = path.split("/", 1)[0]
        if path in named or top in _OTHERS:
            continue
        if top == MANIFESTS and manifests.epoch_of_path(path) is not None:
            continue
        if top == SEGMENTS:
            (found.orphans if segment_epoch(path) <= head else found.unfinished).append(path)
        elif path.endswith(".tmp"):
            found.unfinished.append(path)
        else:
            found.strangers.append(path)
