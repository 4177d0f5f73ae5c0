"""Which jars a session gets for Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import UsageError
from millrace.spark import kafka


def test_a_tested_version_gets_all_jars_by_name() -> None:
    found = kafka.jars(True, "4.3.1")
    assert found[0] == "ivy://org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0?transitive=false"
    assert [url.split(":")[2] for url in found] == [
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
        "kafka-clients",
        "commons-pool2",
    ]


def test_another_version_gets_the_connector_of_its_own() -> None:
    assert kafka.jars(True, "4.9.0") == [
        "ivy://org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.0?transitive=true"
    ]


def test_a_folder_gives_its_jars(tmp_path: Path) -> None:
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    assert kafka.jars(tmp_path) == [str(tmp_path / "a.jar"), str(tmp_path / "b.jar")]


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no jars in this folder.*kafka-clients"):
        kafka.jars(str(tmp_path))
    with pytest.raises(UsageError, match=r"kafka=3: it is True, or the folder"):
        kafka.jars(3)
