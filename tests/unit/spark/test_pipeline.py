"""The tree of steps: how watermarks go on through it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from millrace.ids import OperatorName
from millrace.spark.pipeline import Path, Pipeline
from millrace.spark.steps import OperatorStep, OutputStep, TransformStep


class Holding:
    """Lets rows go up to some microseconds after their time."""

    def __init__(self, name: str, by_us: int) -> None:
        self.name = OperatorName(name)
        self._by_us = by_us

    def output_watermark(self, watermark_us: int | None) -> int | None:
        return None if watermark_us is None else watermark_us - self._by_us


def step(name: str, by_us: int = 0) -> Any:
    operator: Any = Holding(name, by_us)
    return OperatorStep(operator, lambda df, assignment: df)


def test_an_operator_has_the_watermark_that_the_one_before_gives_on() -> None:
    first, second, third = step("first", 10), step("second", 5), step("third")
    between = TransformStep(lambda df: df)
    sink: Any = None
    paths = [
        Path((first, between, second, third), T.StructType(), sink),
        Path((first, OutputStep("late"), step("beside")), T.StructType(), sink),
        Path((step("alone"),), T.StructType(), sink),
    ]
    pipeline = Pipeline(paths)
    assert pipeline.watermarks(100) == {
        "first": 100,
        "second": 90,
        "third": 85,
        "beside": 90,
        "alone": 100,
    }
    assert set(pipeline.watermarks(None).values()) == {None}
