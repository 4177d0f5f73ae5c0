"""Manifests: the driver's atomic record that commits an epoch.

A manifest is one file, created if absent, named after its epoch. Its first line is JSON, its second
the SHA-256 of the first, so a flipped or missing byte is noticed. Each names its parent's checksum,
so the manifests form a chain. Most say only what the epoch added; now and then, and first in every
run, a *full* one repeats all that is live, so that opening a location reads a bounded number of
files. `last_full` points back to the newest full one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from millrace.errors import CorruptManifestError, NewerFormatError
from millrace.ids import Epoch, OperatorName, TableName
from millrace.keygroups import Assignment
from millrace.log.layout import MANIFESTS
from millrace.log.segment import FORMAT_VERSION, SegmentEntry

SEAL_BYTES = 65
"""The second line of a sealed file: a SHA-256 in hexadecimal digits, and the line's end."""


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
    def from_json(data: dict[str, Any], key_groups: int) -> OperatorCommit:
        return OperatorCommit(
            assignment=Assignment.from_json(data["assignment"], key_groups),
            segments=tuple(SegmentEntry.from_json(s) for s in data["segments"]),
            rows=data["rows"],
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
    """For people who watch: how long the epoch took, how many rows came. Nothing depends on it."""
    processing_ms: int = 0
    """The epoch's processing time; 0 where it was not kept yet."""
    unmet_parallelism: dict[OperatorName, int] = field(default_factory=dict)
    """The number of shards that operators should have, where it differs from the assignment
    because executors are gone."""

    @property
    def is_full(self) -> bool:
        return self.snapshot is not None


def manifest_path(epoch: Epoch) -> str:
    return f"{MANIFESTS}/{epoch:012d}.json"


def epoch_of_path(path: str) -> Epoch | None:
    """The epoch of a manifest's path; None for other files, such as what a crash left behind."""
    name = path.rsplit("/", 1)[-1]
    stem = name.removesuffix(".json")
    return Epoch(int(stem)) if stem != name and stem.isdigit() else None


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """The file's bytes and the manifest's checksum."""
    body: dict[str, Any] = {
        "format": FORMAT_VERSION,
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
    body: dict[str, Any] = json.loads(line)
    if body["format"] > FORMAT_VERSION:
        raise NewerFormatError(
            f"{where} has format {body['format']}; this Millrace reads up to {FORMAT_VERSION}. "
            "Upgrade Millrace."
        )
    return body, digest


def decode(data: bytes, where: str) -> tuple[Manifest, str]:
    """A manifest and its checksum from a file's bytes."""
    body, digest = unseal(data, where)
    key_groups = body["keyGroups"]
    manifest = Manifest(
        query=body["query"],
        run=body["run"],
        epoch=Epoch(body["epoch"]),
        parent=body["parent"],
        last_full=Epoch(body["lastFull"]),
        batch_id=body["batchId"],
        watermark_ms=body["watermark"],
        time_ms=body["time"],
        key_groups=key_groups,
        operators={
            TableName(name): OperatorCommit.from_json(commit, key_groups)
            for name, commit in body["operators"].items()
        },
        specs=body.get("specs"),
        snapshot=body.get("snapshot"),
        figures=body.get("figures"),
        processing_ms=body.get("processing", 0),
        unmet_parallelism={OperatorName(name): n for name, n in body.get("wanted", {}).items()},
    )
    return manifest, digest
