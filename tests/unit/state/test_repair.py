"""Damaged segments come back byte for byte, or are left alone with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.driving import OPERATOR, Location, fingerprint

from millrace.cli import main
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.log import SegmentEntry, Trail
from millrace.log.inspection import inspect
from millrace.state import merging
from millrace.state.repair import Repair, repair
from millrace.state.replica import Replica

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
EPOCHS = 24


@pytest.fixture(scope="module", autouse=True)
def eager_runs() -> Iterator[None]:
    """Runs after a few deltas, not hundreds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "LOG_PIECES", 12)
        patch.setattr(merging, "RUN_PIECES", 4)
        yield


@pytest.fixture(scope="module")
def location(eager_runs: None, tmp_path_factory: pytest.TempPathFactory) -> Location:
    """Two shards with deltas, runs and bases, full and incremental manifests, some NULLs."""
    made = Location(str(tmp_path_factory.mktemp("repair") / "location"), SCHEMA, 8)
    for epoch in range(1, EPOCHS + 1):
        few = range(epoch % 5 * 100, epoch % 5 * 100 + 40)
        keys = range(600) if epoch == 1 or epoch > 20 else few
        rows = {fingerprint(k): (epoch, None if k % 11 == 0 else str(k)) for k in keys}
        gone = {fingerprint(k): None for k in range(epoch % 7, 20, 7)} if epoch > 5 else {}
        made.step({**rows, **gone}, Assignment.even(8, 2), full=epoch % 8 == 0)
        made.store.put(f"spark/offsets/{epoch - 1}", b"v1\n{}\n-")
    made.store.put("spark/metadata", b"{}")
    return made


def repaired(location: Location, paths: list[str], *, dry_run: bool = False) -> list[Repair]:
    def opened(trail: Trail, table: OperatorName) -> Replica:
        assert table == OPERATOR
        return location.replica()

    return repair(location.journal, paths, opened, dry_run=dry_run)


def entries(location: Location) -> dict[str, SegmentEntry]:
    return {
        entry.path: entry
        for epoch in location.journal.epochs()
        for entry in location.journal.read(epoch)[0].operators[OPERATOR].segments
    }


def computable(entry: SegmentEntry) -> list[int]:
    """Pages of sections that older epochs have the rows of."""
    return [
        page
        for section in entry.sections
        if section.last < entry.epoch
        for page in range(section.first_page, section.first_page + section.pages)
    ]


def test_there_is_something_to_repair(location: Location) -> None:
    kinds = {
        "base" if s.is_base else "run"
        for entry in entries(location).values()
        for s in entry.sections
        if s.last < entry.epoch
    }
    assert kinds == {"base", "run"}


def test_every_merged_page_comes_back(location: Location) -> None:
    for path, entry in entries(location).items():
        full = Path(location.store.url) / path
        content = full.read_bytes()
        for page in computable(entry):
            offset, length, _ = entry.pages[page]
            full.write_bytes(content[:offset] + b"\0" * length + content[offset + length :])
            assert not inspect(location.journal).is_sound
            assert repaired(location, [path]) == [Repair(path, True)]
            assert full.read_bytes() == content
    assert inspect(location.journal).is_sound


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.data())
def test_any_damage_is_undone_or_left_alone(location: Location, data: st.DataObject) -> None:
    known = entries(location)
    path = data.draw(st.sampled_from(sorted(known)))
    entry = known[path]
    full = Path(location.store.url) / path
    content = full.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    flipped = content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]
    damaged = content[:at] if cut else flipped
    full.write_bytes(damaged)
    try:
        [found] = repaired(location, [path])
        # What only this file had must be whole: the pages that its own epoch wrote.
        own = set(range(len(entry.pages))) - set(computable(entry))
        spans = [entry.pages[page][:2] for page in own]
        lost = any(at < o + n if cut else o <= at < o + n for o, n in spans)
        assert found.is_repaired is not lost
        assert full.read_bytes() == (damaged if lost else content)
        assert found.is_repaired or "backup" in found.reason
    finally:
        full.write_bytes(content)


def test_a_missing_file_is_beyond_repair(location: Location) -> None:
    path = next(p for p, entry in entries(location).items() if entry.epoch == EPOCHS)
    full = Path(location.store.url) / path
    content = full.read_bytes()
    full.unlink()
    try:
        [found] = repaired(location, [path])
        assert not found.is_repaired
        assert not full.exists()
    finally:
        full.write_bytes(content)


def test_a_repair_needs_the_epoch_before(location: Location, tmp_path: Path) -> None:
    path, entry = next((p, entry) for p, entry in entries(location).items() if computable(entry))
    full = Path(location.store.url) / path
    content = full.read_bytes()
    offset = entry.pages[computable(entry)[0]][0]
    full.write_bytes(content[:offset] + b"\0" * 8 + content[offset + 8 :])
    before = Path(location.store.url) / f"manifests/{entry.epoch - 1:012d}.json"
    manifest = before.read_bytes()
    before.unlink()
    try:
        [found] = repaired(location, [path])
        assert not found.is_repaired
        assert f"{entry.epoch - 1}" in found.reason
    finally:
        before.write_bytes(manifest)
        full.write_bytes(content)


def test_the_command_says_what_cannot_be_repaired(location: Location) -> None:
    result = CliRunner().invoke(main, ["repair", location.store.url])
    assert (result.exit_code, result.output.strip()) == (0, "nothing is damaged")
    manifest = Path(location.store.url) / f"manifests/{EPOCHS:012d}.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content[:-2])
    try:
        result = CliRunner().invoke(main, ["repair", location.store.url, "--json"])
    finally:
        manifest.write_bytes(content)
    assert result.exit_code == 1
    assert json.loads(result.output) == {
        "segments": [],
        "others": [manifest.relative_to(location.store.url).as_posix()],
    }
