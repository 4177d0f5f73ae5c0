"""Spark's logs in a location: every byte counts, and so does every file."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.driving import Location, fingerprint

import millrace as mr
from millrace.errors import CorruptSparkLogError, MissingEpochError, MissingFileError
from millrace.log.inspection import inspect
from millrace.log.manifest import manifest_path
from millrace.log.spark_logs import (
    check_logs,
    damaged_logs,
    is_interrupted,
    last_committed,
    offset_lines,
    planned,
    rewrite,
)
from millrace.log.store import open_store

BATCHES = 3


def hadoop_sums(data: bytes, size: int = 512) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    sums = b"".join(zlib.crc32(part).to_bytes(4) for part in parts)
    return b"crc\0" + size.to_bytes(4) + sums


@pytest.fixture
def location(tmp_path: Path) -> Location:
    """A location with three epochs, and Spark's logs as they are beside them."""
    made = Location(str(tmp_path / "location"), pa.schema([("n", pa.int64())]), 4)
    root = Path(made.store.url)
    write(root / "spark/metadata", '{"id":"0"}')
    for batch in range(BATCHES):
        made.step({fingerprint(batch): (batch,)})
        write(root / f"spark/offsets/{batch}", f'v1\n{{"batch":1}}\n{{"logOffset":{batch}}}\n-')
        write(root / f"spark/commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        write(root / f"spark/sources/0/{batch}", f'v1\n{{"path":"file:/{batch}"}}\n' + "x" * 900)
    return made


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (path.parent / f".{path.name}.crc").write_bytes(hadoop_sums(text.encode()))


def test_logs_that_are_right(location: Location) -> None:
    check_logs(location.store, BATCHES - 1)
    check_logs(location.store, None)
    assert not damaged_logs(location.store)
    assert last_committed(location.store) == BATCHES - 1
    assert inspect(location.journal).is_sound


def test_every_flipped_byte_and_every_shorter_file_is_named(location: Location) -> None:
    root = Path(location.store.url)
    for path in sorted(root.glob("spark/**/*")):
        if path.is_dir() or path.name.startswith("."):
            continue
        data = path.read_bytes()
        flipped = [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(len(data))]
        for damaged in [*flipped[:600], *(data[:keep] for keep in (0, 1, 512, len(data) - 1))]:
            if damaged == data:
                continue
            path.write_bytes(damaged)
            name = path.relative_to(root).as_posix()
            assert [found for found, _ in damaged_logs(location.store)] == [name]
            with pytest.raises(CorruptSparkLogError, match=name):
                check_logs(location.store, BATCHES - 1)
        assert not inspect(location.journal).is_sound
        path.write_bytes(data)
    check_logs(location.store, BATCHES - 1)


@pytest.mark.parametrize("missing", ["metadata", "offsets/2", "sources/0/2"])
def test_a_missing_file_is_named(location: Location, missing: str) -> None:
    Path(location.store.url, "spark", missing).unlink()
    with pytest.raises(CorruptSparkLogError, match=f"{missing} is missing"):
        check_logs(location.store, BATCHES - 1)
    assert not inspect(location.journal).is_sound


def test_a_compacted_log_of_a_file_source(location: Location) -> None:
    root = Path(location.store.url, "spark/sources/0")
    write(root / "2.compact", "v1\n")
    for name in ("0", "1", "2"):
        (root / name).unlink()
    check_logs(location.store, BATCHES - 1)


def test_a_damaged_checksum_file_is_damage(location: Location) -> None:
    path = Path(location.store.url, "spark/offsets/.2.crc")
    for damaged in (b"", b"crc\0", b"crc\0" + bytes(8), b"no" + path.read_bytes()[2:]):
        path.write_bytes(damaged)
        assert [found for found, _ in damaged_logs(location.store)] == ["spark/offsets/2"]


def test_a_reader_notices_that_the_newest_manifest_is_missing(location: Location) -> None:
    Path(location.store.url, manifest_path(location.epoch)).unlink()
    with pytest.raises(MissingEpochError, match=r"committed batch 2 .* of epoch 2, is of batch 1"):
        mr.open(location.store.url)
    assert mr.open(location.store.url, epoch=2).epoch == 2


def test_what_spark_has_planned_and_committed(location: Location) -> None:
    store = location.store
    assert planned(store) == [0, 1, 2]
    assert not is_interrupted(store)
    store.delete("spark/commits/2")
    assert last_committed(store) == 1
    assert is_interrupted(store)
    assert offset_lines(store, 1) == ["v1", '{"batch":1}', '{"logOffset":1}', "-"]


def test_a_query_that_has_not_run_is_not_interrupted(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert (last_committed(store), planned(store), is_interrupted(store)) == (None, [], False)
    store.put("spark/offsets/0", b"v1\n{}\n-")
    assert is_interrupted(store)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1024, 1025])
def test_a_file_that_is_rewritten_gets_its_checksums(location: Location, size: int) -> None:
    store, data = location.store, b"y" * size
    rewrite(store, "spark/offsets/1", data)
    assert store.read("spark/offsets/1") == data
    assert store.read("spark/offsets/.1.crc") == hadoop_sums(data)
    assert not damaged_logs(store)


def test_a_file_without_checksums_is_rewritten_without(location: Location) -> None:
    store = location.store
    store.delete("spark/offsets/.1.crc")
    rewrite(store, "spark/offsets/1", b"new")
    assert store.read("spark/offsets/1") == b"new"
    assert store.size("spark/offsets/.1.crc") is None


@pytest.mark.parametrize(
    ("sums", "whole"),
    [
        (b"crc\0" + (512).to_bytes(4), True),
        (b"crc\0" + (512).to_bytes(4) + bytes(4), True),
        (b"crc\0" + (512).to_bytes(4) + bytes(3) + b"x", False),
        (b"crc\0" + (0).to_bytes(4), False),
        (b"crc\0" + (1).to_bytes(4), True),
        (b"crx\0" + (512).to_bytes(4), False),
        (b"crc\0" + (512).to_bytes(4)[:3], False),
    ],
)
def test_the_checksums_of_an_empty_file(location: Location, sums: bytes, whole: bool) -> None:
    root = Path(location.store.url)
    (root / "spark/offsets/1").write_bytes(b"")
    (root / "spark/offsets/.1.crc").write_bytes(sums)
    assert (damaged_logs(location.store) == []) is whole


def test_a_file_that_spark_forgets_while_it_is_read_is_no_damage(location: Location) -> None:
    store = location.store
    real = store.read

    def read(path: str) -> bytes:
        if path == "spark/offsets/1":
            raise MissingFileError(path)
        return real(path)

    store.read = read  # type: ignore[method-assign]
    assert damaged_logs(store) == []


def test_what_is_missing_is_named(location: Location) -> None:
    store = location.store
    store.delete("spark/sources/0/2")
    store.delete("spark/sources/0/.2.crc")
    with pytest.raises(CorruptSparkLogError, match=r"spark/sources/0/2 is missing.*batch 2 read"):
        check_logs(store, 2)
    check_logs(store, 1)
    with pytest.raises(CorruptSparkLogError, match=r"spark/offsets/3 is missing.*batch 3 read"):
        check_logs(store, 3)
    store.delete("spark/metadata")
    with pytest.raises(CorruptSparkLogError, match=r"spark/metadata is missing\. Continuing would"):
        check_logs(store, 1)


def test_a_file_that_another_driver_writes_is_no_damage(location: Location) -> None:
    name = ".3.f7904405.tmp"
    location.store.put(f"spark/sources/0/{name}", b"v1\n")
    location.store.put(f"spark/sources/0/.{name}.crc", b"crc\0")
    assert not damaged_logs(location.store)
    check_logs(location.store, BATCHES - 1)
