"""Classes that are compiled for a session leave nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.spark import jvm

SOURCE = "package io.millrace.tests; public class Nothing { }"


def test_jars_are_in_the_folder_that_spark_removes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path(str(spark.sparkContext._temp_dir))
    before = set(folder.iterdir())
    jvm.install(spark, [SOURCE])
    (jar,) = set(folder.iterdir()) - before
    assert jar.suffix == ".jar"
    assert list(tmp_path.iterdir()) == []
