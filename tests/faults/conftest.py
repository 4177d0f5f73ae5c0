"""The input that all fault tests share."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.faults.lives import Truth


@pytest.fixture(scope="session")
def truth(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return Truth(spark, tmp_path_factory.mktemp("faults") / "in")
