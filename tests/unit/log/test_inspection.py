"""A look at a whole location finds every damaged byte, and nothing that is right."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.driving import Location, fingerprint

from millrace.cli import main
from millrace.log.inspection import inspect
from millrace.log.manifest import manifest_path, seal

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
EPOCHS = 9


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Location:
    made = Location(str(tmp_path_factory.mktemp("inspection") / "location"), SCHEMA, 4)
    for epoch in range(1, EPOCHS + 1):
        made.step({fingerprint(k): (epoch, str(k)) for k in range(epoch % 3, 60, 3)})
    for batch in range(EPOCHS):
        # What Spark writes beside the manifests.
        made.store.put(f"spark/offsets/{batch}", b"v1\n{}\n-")
    made.store.put("spark/metadata", b"{}")
    return made


def files(location: Location) -> list[str]:
    return [*location.store.list("segments"), *location.store.list("manifests")]


def test_a_location_that_is_right(location: Location) -> None:
    found = inspect(location.journal)
    assert found.is_sound
    assert found.readable == list(range(1, EPOCHS + 1))
    assert found.segments == len(location.store.list("segments"))
    assert not found.orphans + found.unfinished + found.strangers


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_any_flipped_byte_is_found_and_named(location: Location, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(location)))
    full = Path(location.store.url) / path
    content = full.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    try:
        full.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
        found = inspect(location.journal)
    finally:
        full.write_bytes(content)
    assert path in [damage.path for damage in found.damaged]
    for damage in found.damaged:
        assert not set(range(damage.epochs[0], damage.epochs[1] + 1)) & set(found.readable)


@settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_a_file_cut_short_or_missing_is_found(location: Location, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(location)))
    full = Path(location.store.url) / path
    content = full.read_bytes()
    keep = data.draw(st.none() | st.integers(0, len(content) - 1))
    if keep is None and path == manifest_path(location.epoch):
        # Nothing says that there was an epoch after the last one.
        keep = 0
    try:
        if keep is None:
            full.unlink()
        else:
            full.write_bytes(content[:keep])
        found = inspect(location.journal)
    finally:
        full.write_bytes(content)
    if path.startswith("segments") or keep is not None:
        assert path in [damage.path for damage in found.damaged]
    else:
        # A missing manifest shows in those that need it, or not at all if it was the first.
        assert len(found.readable) < EPOCHS


def test_files_that_nobody_needs(location: Location) -> None:
    root = Path(location.store.url)
    orphan = root / "segments/table/000000000001-0000-abc.arrow"
    unfinished = root / "segments/table/000000000099-0000-abc.arrow"
    stranger = root / "notes.txt"
    for path in (orphan, unfinished, stranger):
        path.write_bytes(b"?")
    try:
        found = inspect(location.journal)
        swept = CliRunner().invoke(main, ["gc", location.store.url, "--json", "--dry-run"])
    finally:
        for path in (orphan, unfinished, stranger):
            path.unlink()
    assert found.is_sound
    assert found.orphans == ["segments/table/000000000001-0000-abc.arrow"]
    assert found.unfinished == ["segments/table/000000000099-0000-abc.arrow"]
    assert found.strangers == ["notes.txt"]
    assert json.loads(swept.output) == {"manifests": 0, "segments": 1, "dry_run": True}


def test_the_command(location: Location, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["check", location.store.url])
    assert result.exit_code == 0
    assert "sound" in result.output
    assert f"epochs 1 to {EPOCHS}" in result.output
    segment = location.store.list("segments")[-1]
    full = Path(location.store.url) / segment
    content = full.read_bytes()
    full.write_bytes(content[:-1])
    try:
        result = CliRunner().invoke(main, ["check", location.store.url, "--json"])
    finally:
        full.write_bytes(content)
    assert result.exit_code == 1
    assert [damage["path"] for damage in json.loads(result.output)["damaged"]] == [segment]
    result = CliRunner().invoke(main, ["check", str(tmp_path)])
    assert result.exit_code == 1
    assert "not a Millrace location" in result.output


def test_requests_and_leases_that_are_damaged(tmp_path: Path) -> None:
    made = Location(str(tmp_path), SCHEMA, 4)
    made.step({fingerprint(1): (1, "x")})
    whole, _ = seal({"format": 1})
    made.store.put("requests/1.json", whole)
    made.store.put("leases/000000000001-only-5-x.json", b"{}")
    made.store.put("requests/2.json", whole[:-2])
    made.store.put("requests/3.tmp", b"not looked at")
    found = inspect(made.journal)
    assert [(d.path, d.epochs) for d in found.damaged] == [
        ("requests/2.json", None),
        ("leases/000000000001-only-5-x.json", None),
    ]
    assert "its checksum does not match its content" in found.damaged[0].problem
    assert not found.is_sound
    assert found.readable == [1]


def test_a_location_without_epochs(tmp_path: Path) -> None:
    made = Location(str(tmp_path), SCHEMA, 4)
    made.store.put("segments/table/000000000001-0000-x.arrow", b"")
    made.store.put("manifests/000000000001.json.abc.tmp", b"")
    made.store.put("notes.txt", b"")
    steps: list[tuple[int, int]] = []
    found = inspect(made.journal, lambda done, total: steps.append((done, total)))
    assert (found.epochs, found.readable, found.segments, found.bytes) == (None, [], 0, 0)
    assert found.unfinished == [
        "manifests/000000000001.json.abc.tmp",
        "segments/table/000000000001-0000-x.arrow",
    ]
    assert found.strangers == ["notes.txt"]
    assert (found.orphans, steps, found.is_sound) == ([], [], True)


def test_progress_is_reported_segment_by_segment(tmp_path: Path) -> None:
    made = Location(str(tmp_path), SCHEMA, 4)
    for n in range(3):
        made.step({fingerprint(1): (n, "x")})
    steps: list[tuple[int, int]] = []
    found = inspect(made.journal, lambda done, total: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert found.bytes == sum(entry.bytes for entry in made.trail.segments())
    assert (found.epochs, found.readable) == ((1, 3), [1, 2, 3])


def test_a_damaged_log_of_a_query_that_has_committed_nothing(tmp_path: Path) -> None:
    made = Location(str(tmp_path / "location"), SCHEMA, 4)
    made.store.put("spark/offsets/0", b"v1\n{}\n-")
    made.store.put("spark/offsets/.0.crc", b"not a checksum")
    found = inspect(made.journal)
    assert [(damage.path, damage.epochs) for damage in found.damaged] == [
        ("spark/offsets/0", (0, 0))
    ]
