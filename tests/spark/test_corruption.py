"""Damage in Spark's own logs, or in how they fit the manifests: found before it does harm.

Damage in segments and manifests is in test_bad_input.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import support

import millrace as mr
from millrace.errors import CorruptSparkLogError, MissingEpochError
from millrace.log.manifest import manifest_path

SCHEMA = "device string, value int"
AGGREGATES = {"n": mr.count(), "total": mr.sum("value")}
EPOCHS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> support.Folder:
    return support.Folder(tmp_path_factory.mktemp("damage") / "in", SCHEMA)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, folder: support.Folder) -> Path:
    """A location with three epochs, and one more batch of input that it has not seen."""
    location = folder.path.parent / "location"
    query = started(spark, folder, location)
    for epoch in range(EPOCHS):
        folder.drop([(f"d{n % 5}", n + epoch) for n in range(20)])
        query.process_all_available()
    query.stop()
    folder.drop([("d1", 100), ("new", 1)])
    return location


def started(spark: SparkSession, folder: support.Folder, location: Path) -> mr.Query:
    stream = mr.stream(folder.stream(spark)).key_by("device").aggregate(**AGGREGATES, name="t")
    return stream.to("noop").start(str(location), parallelism=2)


def go_on(spark: SparkSession, folder: support.Folder, location: Path) -> None:
    query = started(spark, folder, location)
    try:
        query.process_all_available()
    finally:
        query.stop()
    expected = support.batch_state(folder.batch(spark), ["device"], AGGREGATES)
    support.assert_same(mr.open(str(location)).to_arrow(), expected, ["device"], str(location))


@pytest.fixture
def location(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "location")
    return tmp_path / "location"


def flip(path: Path) -> None:
    data = path.read_bytes()
    at = len(data) // 2
    path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def test_sparks_logs_have_checksums(whole: Path) -> None:
    files = [p for p in whole.glob("spark/**/*") if p.is_file() and not p.name.startswith(".")]
    assert {p.parent.name for p in files} >= {"offsets", "commits"}
    assert all((p.parent / f".{p.name}.crc").exists() for p in files)


@pytest.mark.parametrize("damage", [flip, cut, empty])
@pytest.mark.parametrize("name", ["metadata", "offsets/2", "commits/2", "sources/0/2"])
def test_damage_in_sparks_logs(
    spark: SparkSession, folder: support.Folder, location: Path, name: str, damage: object
) -> None:
    damage(location / "spark" / name)  # type: ignore[operator]
    with pytest.raises(CorruptSparkLogError, match=f"spark/{name} does not match"):
        started(spark, folder, location)


@pytest.mark.parametrize("name", ["metadata", "offsets/2", "sources/0/2"])
def test_a_log_of_sparks_that_is_missing(
    spark: SparkSession, folder: support.Folder, location: Path, name: str
) -> None:
    (location / "spark" / name).unlink()
    with pytest.raises(CorruptSparkLogError, match=f"spark/{name} is missing"):
        started(spark, folder, location)


def test_all_of_sparks_logs_are_missing(
    spark: SparkSession, folder: support.Folder, location: Path
) -> None:
    shutil.rmtree(location / "spark")
    with pytest.raises(CorruptSparkLogError, match="spark/metadata is missing"):
        started(spark, folder, location)


def test_a_commit_of_sparks_that_is_missing(
    spark: SparkSession, folder: support.Folder, location: Path
) -> None:
    """The batch is recognised by its manifest."""
    (location / "spark/commits/2").unlink()
    go_on(spark, folder, location)


def test_the_newest_manifest_is_missing(
    spark: SparkSession, folder: support.Folder, location: Path
) -> None:
    (location / manifest_path(EPOCHS)).unlink()  # type: ignore[arg-type]
    with pytest.raises(MissingEpochError, match="epoch 2"):
        mr.open(str(location))
    with pytest.raises(MissingEpochError, match="epoch 2"):
        go_on(spark, folder, location)


def test_nothing_is_damaged(spark: SparkSession, folder: support.Folder, location: Path) -> None:
    go_on(spark, folder, location)
