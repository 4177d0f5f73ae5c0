"""What a query passes on to Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.api.query import Query


@pytest.mark.parametrize(("seconds", "ms"), [(0.05, 50), (0.0001, 1), (2, 2000)])
def test_fractions_of_a_second_are_waited_for_as_such(seconds: float, ms: int) -> None:
    waited = []

    def await_termination(given: int) -> bool:
        waited.append(given)
        return False

    java = SimpleNamespace(awaitTermination=await_termination)
    run: Any = SimpleNamespace(spark_query=SimpleNamespace(_jsq=java))
    assert not Query(run, "location").await_termination(seconds)
    assert waited == [ms]
