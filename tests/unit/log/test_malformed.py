"""Files with right checksums whose content is not what Millrace writes: refused, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.driving import OPERATOR, Location, fingerprint

from millrace.errors import CorruptManifestError, CorruptSegmentError, MissingFileError
from millrace.ids import Epoch
from millrace.log import Journal, open_store
from millrace.log import manifest as manifests
from millrace.log.layout import IDENTITY
from millrace.log.leases import Lease
from millrace.log.manifest import manifest_path
from millrace.log.segment import DELETED, HI, open_segment
from millrace.log.segment.entry import INDEX_KEY
from millrace_lab.fuzz.sealing import describe, read_sealed

GROUPS = 4
Edit = Callable[[Any], None]


@pytest.fixture
def location(tmp_path: Path) -> Location:
    made = Location(str(tmp_path / "location"), pa.schema([("t", pa.string())]), GROUPS)
    made.step({fingerprint(n): (f"row {n}",) for n in range(20)})
    return made


def sealed_again(location: Location, path: str, edit: Edit) -> None:
    file = Path(location.store.url) / path
    body = read_sealed(file)
    edit(body)
    file.write_bytes(manifests.seal(body)[0])


def entry(body: Any) -> Any:
    return body["operators"][OPERATOR]["segments"][0]


def put(*path: Any) -> Edit:
    """Set what is at a path in an entry."""
    *way, last, value = path

    def edit(body: Any) -> None:
        found = entry(body)
        for key in way:
            found = found[key]
        found[last] = value

    return edit


MANIFESTS: dict[str, Edit] = {
    "no epoch": lambda body: body.pop("epoch"),
    "epoch is text": lambda body: body.update(epoch="1"),
    "key groups": lambda body: body.update(keyGroups=3),
    "many key groups": lambda body: body.update(keyGroups=2**40),
    "time beyond all": lambda body: body.update(time=10**18),
    "figures": lambda body: body.update(figures={"seconds": "x"}),
    "late rows": lambda body: body.update(figures={"lateRows": {"op": -1}}),
    "evicted rows": lambda body: body.update(figures={"evictedRows": []}),
    "shards": lambda body: body.update(wanted={"op": 0}),
    "last full": lambda body: body.update(lastFull=0),
    "no snapshot": lambda body: body.update(snapshot=None),
    "specs": lambda body: body.update(specs=[]),
    "page beyond the file": put("pages", 0, 1, 2**40),
    "page checksum": put("pages", 0, 2, -1),
    "hash": put("hash", 2**64),
    "covers beyond all": put("sections", 0, 2, "0-99999999999"),
    "covers out of order": put("sections", 0, 2, "2,1"),
    "section's pages": put("sections", 0, 5, 99),
    "section's epochs": put("sections", 0, 1, 99),
    "sums of columns": put("columns", 0, "!"),
    "epoch of a segment": put("epoch", 7),
    "a segment twice": lambda body: body["operators"][OPERATOR].update(segments=2 * [entry(body)]),
}


@pytest.mark.parametrize("edit", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest(location: Location, edit: Edit) -> None:
    sealed_again(location, manifest_path(Epoch(1)), edit)
    with pytest.raises(CorruptManifestError, match=r"manifests/000000000001\.json"):
        location.journal.trail(Epoch(1))


SNAPSHOTS: dict[str, Edit] = {
    "no such segment": lambda found: found["base"][0].__setitem__(0, 7),
    "a segment from the end": lambda found: found["base"][0].__setitem__(0, -1),
    "no such section": lambda found: found["base"][0].__setitem__(1, 7),
    "key groups it has not": lambda found: found["base"][0].__setitem__(2, "0-9"),
    "a base as a piece": lambda found: found["pieces"].append([0, 0]),
    "a segment twice": lambda found: found["segments"].append(found["segments"][0]),
    "owners": lambda found: found["assignment"].update(groups=["0"]),
}


@pytest.mark.parametrize("edit", SNAPSHOTS.values(), ids=SNAPSHOTS.keys())
def test_a_snapshot(location: Location, edit: Edit) -> None:
    sealed_again(location, manifest_path(Epoch(1)), lambda b: edit(b["snapshot"][OPERATOR]))
    with pytest.raises(CorruptManifestError, match=r"manifests/000000000001\.json"):
        location.journal.trail(Epoch(1))


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b'{"format":"1"}', b"[" * 100_000, b'{"format":1,"query":NaN}']
)
def test_the_identity(location: Location, line: bytes) -> None:
    import hashlib

    digest = hashlib.sha256(line).hexdigest().encode()
    (Path(location.store.url) / IDENTITY).write_bytes(line + b"\n" + digest + b"\n")
    with pytest.raises(CorruptManifestError, match=r"millrace\.json"):
        Journal.open(open_store(location.store.url))


def resealed(location: Location, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Change the batches of the one segment, and all its checksums."""
    path = manifest_path(Epoch(1))
    body = read_sealed(Path(location.store.url) / path)
    file = Path(location.store.url) / entry(body)["path"]
    old = pa.ipc.open_file(pa.py_buffer(file.read_bytes()))
    batches = [change(old.get_batch(n)) for n in range(old.num_record_batches)]
    schema = batches[0].schema.with_metadata({INDEX_KEY: old.schema.metadata[INDEX_KEY]})
    sink = pa.BufferOutputStream()
    spans = []
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            start = sink.tell()
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
            spans.append([start, sink.tell()])
    data = sink.getvalue().to_pybytes()
    spans[0][0] = 16 + int.from_bytes(data[12:16], "little")
    pages = [(start, end - start) for start, end in spans]
    file.write_bytes(data)
    for commit in (body["operators"][OPERATOR], body["snapshot"][OPERATOR]):
        describe(commit["segments"][0], data, pages)
    (Path(location.store.url) / path).write_bytes(manifests.seal(body)[0])


def _set(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, values)


def _beyond(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Offsets that point beyond the text."""
    import numpy as np

    _, offsets, text = batch.column("t").buffers()
    changed = np.frombuffer(offsets, np.int32).copy()
    changed[1] = 2**30
    made = pa.Array.from_buffers(
        pa.string(), batch.num_rows, [None, pa.py_buffer(changed.tobytes()), text]
    )
    return _set(batch, "t", made)


SEGMENTS: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {
    "out of order": lambda b: b.take(pa.array(range(b.num_rows - 1, -1, -1))),
    "fewer rows": lambda b: b.slice(1),
    "other key groups": lambda b: _set(b, HI, pa.array([2**64 - 1] * b.num_rows, pa.uint64())),
    "a NULL fingerprint": lambda b: _set(b, HI, pa.nulls(b.num_rows, pa.uint64())),
    "fingerprints as text": lambda b: _set(b, HI, pa.array(["x"] * b.num_rows)),
    "no fingerprints": lambda b: b.drop_columns([HI]),
    "deleted in a base": lambda b: _set(b, DELETED, pa.array([True] * b.num_rows)),
    "a dictionary": lambda b: _set(b, "t", b.column("t").dictionary_encode()),
    "offsets beyond the text": _beyond,
}


@pytest.mark.parametrize("change", SEGMENTS.values(), ids=SEGMENTS.keys())
def test_a_segment(location: Location, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    resealed(location, change)
    with pytest.raises(CorruptSegmentError, match=r"is whole but malformed"):
        location.state()


def test_a_segment_that_was_only_written_again_is_read(location: Location) -> None:
    before = location.state()
    resealed(location, lambda batch: batch)
    assert location.state() == before


@pytest.mark.parametrize(
    "name",
    ["5-only-5-a.json", "000000000005-only-٣-a.json", "000000000005-only-5-a b.json", "²"],
)
def test_names_that_are_not_leases(name: str) -> None:
    assert Lease.parse(f"leases/{name}") is None
    assert Lease.parse("leases/000000000005-only-5-a.json") is not None


def test_no_room_is_made_for_a_remote_segment_that_is_shorter() -> None:
    made = Location("memory://malformed-large", pa.schema([("t", pa.string())]), GROUPS)
    made.step({fingerprint(n): (f"row {n}",) for n in range(20)})
    found = next(iter(made.trail.segments()))
    with pytest.raises(CorruptSegmentError, match="its manifest says"):
        open_segment(made.store, replace(found, bytes=2**50))
    with pytest.raises(MissingFileError, match="is missing"):
        open_segment(made.store, replace(found, bytes=2**50, path="segments/table/nothing"))
