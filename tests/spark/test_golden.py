"""Locations of every format version stay readable, and a query continues from them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.golden import program
from tests.golden.make import BATCHES

import millrace as mr
from millrace.log import Journal, open_store
from millrace.log.inspection import inspect
from millrace.log.manifest import FORMAT_VERSION

GOLDEN = sorted(program.FOLDER.glob("format-*.tar.gz"))


def unpacked(archive: Path, target: Path) -> str:
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    return str(target / "location")


def test_every_format_has_a_golden_location() -> None:
    names = [path.name for path in GOLDEN]
    assert names == [f"format-{version}.tar.gz" for version in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name)
def test_a_reader_unpickles_nothing(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("something was unpickled")

    location = unpacked(archive, tmp_path)
    with mr.open(location) as reader:
        # Numba unpickles a kernel from its cache when a process first calls it.
        program.check(reader, BATCHES)
    for name in ("pickle.loads", "pickle.load", "pickle.Unpickler"):
        monkeypatch.setattr(name, refuse)
    with mr.open(location) as reader:
        shown = reader.to_arrow("visits")
        assert shown.schema.field("anything").type == pa.binary()
        assert all(value.startswith(b"\x80") for value in shown.column("anything").to_pylist())
        program.check(reader, BATCHES)


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name)
def test_it_is_read_and_a_query_goes_on_from_it(
    spark: SparkSession, tmp_path: Path, archive: Path
) -> None:
    location = unpacked(archive, tmp_path)
    assert inspect(Journal.open(open_store(location))).is_sound
    with mr.open(location) as reader:
        program.check(reader, BATCHES)
    # Spark knows the files it has seen by their old paths; these are new to it.
    inbox = tmp_path / "in"
    program.drop(inbox, BATCHES)
    query = program.stream(spark, inbox).to("noop").start(location, parallelism=3)
    try:
        query.process_all_available()
        program.drop(inbox, BATCHES + 1)
        query.process_all_available()
    finally:
        query.stop()
    with mr.open(location) as reader:
        program.check(reader, BATCHES + 2)
