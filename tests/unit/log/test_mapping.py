"""Mapped files: their bytes, shared, without a descriptor, and for as long as somebody looks."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.log.mapping import map_file

CONTENT = bytes(range(256)) * 40


def mapped(path: Path, *, writable: bool = False) -> memoryview:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return map_file(descriptor, os.fstat(descriptor).st_size, writable=writable)
    finally:
        os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "mapped-file"
    made.write_bytes(CONTENT)
    return made


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.parametrize("writable", [False, True])
def test_bytes_without_a_descriptor(path: Path, writable: bool) -> None:
    before = len(os.listdir("/proc/self/fd"))
    views = [mapped(path, writable=writable) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(bytes(view) == CONTENT for view in views)
    assert views[0].readonly is not writable
    assert views[0][255] == 255


def test_writing_is_seen_by_all(path: Path) -> None:
    ours, theirs = mapped(path, writable=True), mapped(path)
    ours[3:6] = b"xyz"
    assert bytes(theirs[2:7]) == b"\x02xyz\x06"
    assert path.read_bytes()[3:6] == b"xyz"
    with pytest.raises(TypeError):
        theirs[0:1] = b"n"


def test_it_lives_as_long_as_a_slice_of_it(path: Path) -> None:
    view = mapped(path)
    part = pa.py_buffer(view).slice(10, 5)
    path.unlink()
    del view
    gc.collect()
    assert part.to_pybytes() == CONTENT[10:15]
    assert mappings(path) == 1
    del part
    gc.collect()
    assert mappings(path) == 0


def test_an_empty_file_and_one_that_is_none(path: Path) -> None:
    path.write_bytes(b"")
    assert len(mapped(path)) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        map_file(-1, 10)
