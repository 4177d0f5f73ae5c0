"""Keys that were chosen to collide stay apart: in counts, entries of maps, look-ups and tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.collisions import colliding_members, colliding_strings
from tests.spark.support import Folder

import millrace as mr
from millrace.keygroups import DEFAULT_KEY_GROUPS
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.scheme import CHAINED
from millrace.log import Journal, open_store

pytestmark = pytest.mark.usefixtures("generated_code")

KEYS = colliding_strings(6)
(SEED,) = fingerprints([pa.array(["owner"])], CHAINED)[1].tolist()
MEMBERS = colliding_members(4, SEED, prefix=1)


class Members(mr.Processor):
    seen = mr.Map("binary", "long")

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[int]]:
        for row in rows:
            self.seen[row.m] = self.seen.get(row.m, 0) + 1
        yield (len(self.seen),)


def counted(spark: SparkSession, tmp_path: Path) -> tuple[str, dict[str, int]]:
    """A location with counts of the chosen keys, and what they should be."""
    folder = Folder(tmp_path / "in", "k string, v long")
    location = str(tmp_path / "location")
    stream = folder.stream(spark)
    query = mr.stream(stream).key_by("k").aggregate(n=mr.count(), name="counts").to("noop")
    if (tmp_path / "old").exists():
        Journal.create(open_store(location), DEFAULT_KEY_GROUPS, CHAINED)
    running = query.start(location, parallelism=2)
    wanted = dict.fromkeys(KEYS, 0)
    try:
        for _ in range(2):
            rows = [(key, i) for i, key in enumerate(KEYS) for _ in range(i + 1)]
            for key, _ in rows:
                wanted[key] += 1
            folder.drop(rows, files=2)
            running.process_all_available()
    finally:
        running.stop()
    return location, wanted


def test_counts_of_chosen_keys_stay_apart(spark: SparkSession, tmp_path: Path) -> None:
    location, wanted = counted(spark, tmp_path)
    with mr.open(location) as reader:
        rows = reader.to_arrow("counts").to_pylist()
        assert {row["k"]: row["n"] for row in rows} == wanted
        # By their fingerprints, computed without Spark.
        found = reader.get([*KEYS, "another"], "counts").to_pylist()
        assert [row["n"] for row in found] == [*wanted.values(), None]
    table = spark.read.format("millrace").load(location).where(f"k = '{KEYS[2]}'")
    assert [row["n"] for row in table.collect()] == [wanted[KEYS[2]]]


def test_a_location_of_format_1_keeps_its_fingerprints(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are found by what they were written with, so there the keys still merge."""
    (tmp_path / "old").mkdir()
    location, wanted = counted(spark, tmp_path)
    with mr.open(location) as reader:
        (row,) = reader.to_arrow("counts").to_pylist()
        assert row["n"] == sum(wanted.values())
        assert reader.snapshot.journal.read(reader.epoch)[0].format == 1


def test_entries_with_chosen_keys_stay_apart(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "in", "k string, m binary")
    stream = mr.stream(folder.stream(spark)).key_by("k").process(Members(), "n long", name="seen")
    running = stream.to("noop").start(str(tmp_path / "location"), parallelism=2)
    try:
        for _ in range(2):
            folder.drop([("owner", member) for member in MEMBERS])
            running.process_all_available()
    finally:
        running.stop()
    with mr.open(str(tmp_path / "location")) as reader:
        entries = reader.to_arrow("seen", state="seen").to_pylist()
    assert {e["key"]: e["value"] for e in entries} == dict.fromkeys(MEMBERS, 2)
