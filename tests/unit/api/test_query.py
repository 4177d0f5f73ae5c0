"""What a query passes on to its run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from millrace.api.query import Query


def test_waiting_for_the_end_is_waiting_for_the_runs_end() -> None:
    waited = []

    def await_end(given: float | None) -> bool:
        waited.append(given)
        return given is None

    run: Any = SimpleNamespace(await_end=await_end, is_stopped=False, reason=lambda error: None)
    assert not Query(run, "location").await_termination(0.05)
    assert Query(run, "location").await_termination()
    assert waited == [0.05, None]
