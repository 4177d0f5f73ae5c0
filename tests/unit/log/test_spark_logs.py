"""Spark's logs in a location: every byte counts, and so does every file."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.driving import Location, fingerprint

import millrace as mr
from millrace.errors import CorruptSparkLogError, MissingEpochError
from millrace.log.inspection import inspect
from millrace.log.manifest import manifest_path
from millrace.log.spark_logs import check_logs, damaged_logs, last_committed

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
