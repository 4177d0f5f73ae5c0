"""Sealing what was mutated, as somebody who can write to a location would.

Checksums and the chain of manifests are computed here from the description of the formats, so that
a mutation reaches what comes after the checksums.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from millrace.ids import Epoch
from millrace.log.manifest import manifest_path, seal
from millrace_lab.fuzz.corpus import EPOCHS


def read_sealed(path: Path) -> Any:
    return json.loads(path.read_bytes().split(b"\n")[0])


class Manifests:
    """The manifests of a location as JSON, to be changed and written again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.bodies: dict[int, Any] = {
            epoch: read_sealed(self.path(epoch)) for epoch in range(1, EPOCHS + 1)
        }

    def path(self, epoch: int) -> Path:
        return self._root / manifest_path(Epoch(epoch))

    def write(self, first: int = 1, *, chained: bool = True) -> None:
        """Write those from an epoch on; unless they are chained, each keeps the parent it has."""
        parent = None
        for epoch in range(first, EPOCHS + 1):
            body = self.bodies[epoch]
            if chained and parent is not None and isinstance(body, dict):
                body["parent"] = parent
            data, parent = seal(body)
            self.path(epoch).write_bytes(data)

    def entries(self, path: str) -> Iterator[dict[str, Any]]:
        """Everything that is said of a segment."""
        for body in self.bodies.values():
            commits = [*body["operators"].values(), *(body.get("snapshot") or {}).values()]
            for commit in commits:
                yield from (entry for entry in commit["segments"] if entry["path"] == path)


def describe(entry: dict[str, Any], data: bytes, pages: Sequence[tuple[int, int]]) -> None:
    """Have an entry say of a segment's bytes what they are; pages are offsets and lengths."""
    digest = xxhash.xxh3_64()
    at = 0
    for offset, length in pages:
        digest.update(data[at:offset])
        at = offset + length
    digest.update(data[at:])
    parts = [data[offset : offset + length] for offset, length in pages]
    entry["bytes"], entry["hash"] = len(data), digest.intdigest()
    entry["pages"] = [
        [offset, length, xxhash.xxh3_64_intdigest(part)]
        for (offset, length), part in zip(pages, parts, strict=True)
    ]
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data[8:]))
        entry["columns"] = [_column_sums(pa.py_buffer(part), schema) for part in parts]
    except (pa.ArrowException, OSError, ValueError, EOFError):
        # Then nothing but the whole page can be verified.
        entry.pop("columns", None)


def _column_sums(page: pa.Buffer, schema: pa.Schema) -> str:
    data = page.to_pybytes()
    spans = [(0, 8 + int.from_bytes(data[4:8], "little"))]
    for column in pa.ipc.read_record_batch(page, schema).columns:
        there = [b for b in column.buffers() if b is not None and b.size]
        first = min((b.address for b in there), default=page.address) - page.address
        last = max((b.address + b.size for b in there), default=page.address) - page.address
        spans.append((first, last))
    sums = (xxhash.xxh3_64_intdigest(data[max(a, 0) : max(b, 0)]) & 0xFFFFFFFF for a, b in spans)
    return base64.b64encode(b"".join(s.to_bytes(4, "little") for s in sums)).decode()
