"""Requests that are written down: all of them, in every process, with Spark's files of a remote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millrace.errors import AlreadyExistsError, MissingFileError
from millrace.log.store import LocalStore, open_store
from millrace_lab.faults import recording, slow
from millrace_lab.faults.recording import RecordedStore

ELSEWHERE = (
    "import sys; from millrace.log import open_store; open_store(sys.argv[1]).put('d', b'1')"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in recording.environment(tmp_path / "requests").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "requests"


def test_every_request_is_written_down(tmp_path: Path, folder: Path) -> None:
    store = open_store(str(tmp_path / "location"))
    store.create("a", b"123")
    store.put("spark/b", b"12")
    with pytest.raises(AlreadyExistsError):
        store.create("a", b"1")
    assert store.read("a") == b"123"
    assert store.read_range("a", 1, 1) == b"2"
    assert store.size("a") == 3
    assert store.list("spark") == ["spark/b"]
    store.delete("a")
    with pytest.raises(MissingFileError):
        store.read("a")
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path / "location")], check=True)
    found = recording.read(folder)
    assert [(r.operation, r.path, r.bytes) for r in found] == [
        ("create", "a", 3),
        ("put", "spark/b", 2),
        ("create", "a", 1),
        ("read", "a", 3),
        ("read_range", "a", 1),
        ("size", "a", 0),
        ("list", "spark", 0),
        ("delete", "a", 0),
        ("read", "a", 0),
        ("put", "d", 1),
    ]
    assert {r.operation for r in found} == set(recording.OPERATIONS)
    assert [r.path for r in found if r.is_sparks] == ["spark/b", "spark"]
    assert {r.url for r in found} == {store.url}
    assert sorted(path.suffix for path in folder.iterdir()) == [".tsv", ".tsv"]


def test_half_a_line_is_left_out(tmp_path: Path, folder: Path) -> None:
    open_store(str(tmp_path / "location")).put("a", b"1")
    (file,) = folder.iterdir()
    with file.open("a") as more:
        more.write("1.0\tput\tb")
    assert [r.path for r in recording.read(folder)] == ["a"]


class Remote(LocalStore):
    """A local folder with the address of a bucket."""

    @property
    def url(self) -> str:
        return "s3://bucket/streams/totals"


def test_sparks_files_of_a_remote_location_are_here_too(tmp_path: Path) -> None:
    store = RecordedStore(Remote(str(tmp_path / "far")), tmp_path / "near")
    store.create("spark/commits/0", b"done")
    store.put("state/1", b"rows")
    near = tmp_path / "near" / "totals"
    assert [p for p in near.rglob("*") if p.is_file()] == [near / "spark" / "commits" / "0"]
    assert (near / "spark" / "commits" / "0").read_bytes() == b"done"


def test_a_slow_store_is_recorded_with_its_delay(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slow.environment(30, 0).items():
        monkeypatch.setenv(name, value)
    store = open_store(str(tmp_path / "location"))
    store.put("a", b"1")
    (request,) = recording.read(folder)
    assert request.seconds >= 0.03
    assert store.local_path("a") is None
