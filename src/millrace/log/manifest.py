"""Manifests: the driver's atomic record that commits an epoch.

A manifest is one file, created if absent, named after its epoch. Its first line is JSON, its second
the SHA-256 of the first, so a flipped or missing byte is noticed. Each names its parent's checksum,
so the manifests form a chain. Most say only what the epoch added; now and then, and first in every
run, a *full* one repeats all that is live, so that opening a location reads a bounded number of
files. `last_full` points back to the newest full one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from millrace import fields
from millrace.errors import CorruptManifestError, MalformedError, NewerFormatError
from millrace.fields import INT64, MOST_TIME_MS, Fields
from millrace.ids import Epoch, OperatorName, TableName
from millrace.keygroups import Assignment
from millrace.keygroups.groups import MAX_KEY_GROUPS, MIN_KEY_GROUPS
from millrace.log.layout import MANIFESTS
from millrace.log.segment import SegmentEntry

FORMAT_VERSION = 2
"""Of a location: its identity and its manifests. What a segment looks like has a version of its
own. Version 2 has other fingerprints, and says so in the identity."""
FIRST_VERSION = 1
"""What leases and requests have, in which nothing has changed since."""

SEAL_BYTES = 65
"""The second line of a sealed file: a SHA-256 in hexadecimal digits, and the line's end."""

ROW_FIGURES = {
    "inputRows": "input rows",
    "lateRows": "late rows",
    "evictedRows": "evicted rows",
}
"""Figures that are numbers of rows by operator, and what an error calls them."""

MOST_EPOCHS = 10**18 - 1
MOST_WATERMARK_MS = INT64 // 1000
"""In microseconds it fits 64 bits. Spark has later years than Python."""


@dataclass(frozen=True)
class OperatorCommit:
    """What one epoch did to one operator."""

    assignment: Assignment
    segments: tuple[SegmentEntry, ...]
    rows: int
    """Live rows of the operator's state after the epoch."""

    def to_json(self) -> dict[str, Any]:
        return {
            "assignment": self.assignment.to_json(),
            "segments": [segment.to_json() for segment in self.segments],
            "rows": self.rows,
        }

    @staticmethod
    def from_json(data: Any, key_groups: int, epoch: int) -> OperatorCommit:
        fields = Fields(data, "an operator")
        segments = tuple(SegmentEntry.from_json(s, key_groups) for s in fields.items("segments"))
        if any(segment.epoch != epoch for segment in segments):
            raise MalformedError("it adds segments of other epochs")
        if len({segment.path for segment in segments}) < len(segments):
            raise MalformedError("it adds a segment twice")
        return OperatorCommit(
            assignment=Assignment.from_json(fields["assignment"], key_groups),
            segments=segments,
            rows=fields.integer("rows"),
        )


@dataclass(frozen=True)
class Manifest:
    """One committed epoch."""

    query: str
    run: str
    epoch: Epoch
    parent: str
    """Checksum of the previous manifest; empty for the first."""
    last_full: Epoch
    batch_id: int | None
    watermark_ms: int | None
    time_ms: int
    key_groups: int
    operators: dict[TableName, OperatorCommit]
    specs: dict[OperatorName, dict[str, Any]] | None = None
    """Full manifests only: what each operator is."""
    snapshot: dict[TableName, dict[str, Any]] | None = field(default=None, repr=False)
    """Full manifests only: everything that is live, as `OperatorLog.to_json` writes it."""
    figures: dict[str, Any] | None = None
    """For people who watch: how long the epoch took, how many rows came, were late, and went.
    Nothing depends on it."""
    processing_ms: int = 0
    """The epoch's processing time; 0 where it was not kept yet."""
    unmet_parallelism: dict[OperatorName, int] = field(default_factory=dict)
    """The number of shards that operators should have, where it differs from the assignment
    because executors are gone."""
    watermarks: dict[OperatorName, int] = field(default_factory=dict)
    """The watermark of each operator that has one, in microseconds."""
    offsets: str | None = None
    """Of a real-time batch, what Spark's log says of it, or would if the driver had not died: Spark
    writes that after the commit."""
    format: int = FORMAT_VERSION
    """That of the location's identity."""

    @property
    def is_full(self) -> bool:
        return self.snapshot is not None


def manifest_path(epoch: Epoch) -> str:
    return f"{MANIFESTS}/{epoch:012d}.json"


def epoch_of_path(path: str) -> Epoch | None:
    """The epoch of a manifest's path; None for other files, such as what a crash left behind."""
    found = _MANIFEST.fullmatch(path.rsplit("/", 1)[-1])
    return Epoch(int(found[1])) if found else None


_MANIFEST = re.compile(r"([0-9]{12}|[1-9][0-9]{12,17})\.json")


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """The file's bytes and the manifest's checksum."""
    body: dict[str, Any] = {
        "format": manifest.format,
        "query": manifest.query,
        "run": manifest.run,
        "epoch": manifest.epoch,
        "parent": manifest.parent,
        "lastFull": manifest.last_full,
        "batchId": manifest.batch_id,
        "watermark": manifest.watermark_ms,
        "time": manifest.time_ms,
        "processing": manifest.processing_ms,
        "keyGroups": manifest.key_groups,
        "operators": {name: commit.to_json() for name, commit in manifest.operators.items()},
    }
    if manifest.figures is not None:
        body["figures"] = manifest.figures
    if manifest.unmet_parallelism:
        body["wanted"] = manifest.unmet_parallelism
    if manifest.watermarks:
        body["watermarks"] = manifest.watermarks
    if manifest.offsets is not None:
        body["offsets"] = manifest.offsets
    if manifest.snapshot is not None:
        body["specs"] = manifest.specs
        body["snapshot"] = manifest.snapshot
    return seal(body)


def seal(body: dict[str, Any]) -> tuple[bytes, str]:
    """JSON and its checksum, as two lines."""
    line = json.dumps(body, separators=(",", ":"), sort_keys=True).encode()
    digest = hashlib.sha256(line).hexdigest()
    return line + b"\n" + digest.encode() + b"\n", digest


def unseal(data: bytes, where: str) -> tuple[dict[str, Any], str]:
    """The inverse of `seal`; raises if a byte is not what was written."""
    line, _, rest = data.partition(b"\n")
    digest = hashlib.sha256(line).hexdigest()
    if rest != digest.encode() + b"\n":
        raise CorruptManifestError(
            f"{where} is damaged: its checksum does not match its content. Restore the file from a "
            "backup; earlier epochs can still be opened by number."
        )
    with malformed(where):
        body = fields.members(fields.parse(line), "the content")
        version = fields.Fields(body, "the content").integer("format", 1)
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{where} has format {version}; this Millrace reads up to {FORMAT_VERSION}. "
            "Upgrade Millrace."
        )
    return body, digest


@contextlib.contextmanager
def malformed(where: str) -> Iterator[None]:
    """Names the file in which something is not what Millrace writes."""
    try:
        yield
    except MalformedError as error:
        raise CorruptManifestError(
            f"{where} is whole but malformed: {error}. Millrace did not write it: restore the file "
            "from a backup; earlier epochs can still be opened by number."
        ) from error


def decode(data: bytes, where: str) -> tuple[Manifest, str]:
    """A manifest and its checksum from a file's bytes."""
    body, digest = unseal(data, where)
    with malformed(where):
        return _decoded(Fields(body, "the manifest")), digest


def key_groups_of(body: Fields) -> int:
    found = body.integer("keyGroups", MIN_KEY_GROUPS, MAX_KEY_GROUPS)
    if found & (found - 1):
        raise MalformedError(f"'keyGroups' is {found}, not a power of two")
    return found


def _decoded(body: Fields) -> Manifest:
    key_groups = key_groups_of(body)
    epoch = body.integer("epoch", 1, MOST_EPOCHS)
    is_full = body.has("snapshot")
    return Manifest(
        query=body.text("query"),
        run=body.text("run"),
        epoch=Epoch(epoch),
        parent=body.text("parent"),
        last_full=Epoch(
            body.integer("lastFull", epoch if is_full else 1, epoch if is_full else epoch - 1)
        ),
        batch_id=body.maybe_integer("batchId"),
        watermark_ms=body.maybe_integer("watermark", -MOST_WATERMARK_MS, MOST_WATERMARK_MS),
        time_ms=body.integer("time", 0, MOST_TIME_MS),
        key_groups=key_groups,
        operators={
            TableName(name): OperatorCommit.from_json(commit, key_groups, epoch)
            for name, commit in body.members("operators").items()
        },
        specs=_specs(body) if is_full else None,
        snapshot=_objects(body.members("snapshot"), "the snapshot") if is_full else None,
        figures=_figures(body) if body.has("figures") else None,
        processing_ms=body.integer("processing", 0, MOST_TIME_MS) if body.has("processing") else 0,
        unmet_parallelism={
            OperatorName(name): fields.integer(shards, "a number of shards", 1, key_groups)
            for name, shards in (body.members("wanted") if body.has("wanted") else {}).items()
        },
        watermarks=_watermarks(body) if body.has("watermarks") else {},
        offsets=body.text("offsets") if body.has("offsets") else None,
        format=body.integer("format", 1, FORMAT_VERSION),
    )


def _watermarks(body: Fields) -> dict[OperatorName, int]:
    """In microseconds; that of the sources is in milliseconds."""
    most_us = MOST_WATERMARK_MS * 1000
    return {
        OperatorName(name): fields.integer(us, f"the watermark of {name!r}", -most_us, most_us)
        for name, us in body.members("watermarks").items()
    }


def _specs(body: Fields) -> dict[OperatorName, dict[str, Any]]:
    """What operators are; their kinds know what else is in it."""
    return {
        OperatorName(name): spec
        for name, spec in _objects(body.members("specs"), "the specs").items()
    }


def _objects(data: dict[str, Any], what: str) -> dict[TableName, dict[str, Any]]:
    return {
        TableName(name): fields.members(value, f"{name!r} in {what}")
        for name, value in data.items()
    }


def _figures(body: Fields) -> dict[str, Any]:
    figures = body.members("figures")
    if "seconds" in figures:
        fields.number(figures["seconds"], "'seconds' of the figures")
    for figure, what in ROW_FIGURES.items():
        for name, rows in fields.members(figures.get(figure, {}), repr(figure)).items():
            fields.integer(rows, f"the {what} of {name!r}")
    return figures
