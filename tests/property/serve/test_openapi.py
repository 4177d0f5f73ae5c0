"""The HTTP server against its own OpenAPI document: schemathesis makes the requests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from pyspark.sql import types as T
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.unit.serve.counting import Counting
from tests.unit.serve.serving import served

from millrace.operators.operator import Column

KEYS = (
    Column("device", T.StringType()),
    Column("number", T.LongType()),
    Column("day", T.DateType()),
    Column("price", T.DecimalType(10, 2)),
    Column("on", T.BooleanType()),
    Column("at", T.TimestampType()),
    Column("raw", T.BinaryType()),
)
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
TOKEN = "a token"
FEWER = 6
"""How many times fewer requests per operation than a test usually has examples."""


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    counting = Counting(str(tmp_path_factory.mktemp("location")), KEYS)
    counting.epoch({("a", 1, dt.date(2024, 1, 1), Decimal("1.50"), True, NOON, b"x"): (1, 5)})
    return counting.url


def every_operation(base: str, headers: dict[str, str], check: Callable[[Any], None]) -> None:
    """Have schemathesis make requests of every kind that the document describes."""
    document = schemathesis.openapi.from_url(f"{base}/openapi.json", headers=headers)
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) == 4
    for operation in operations:
        for mode in schemathesis.GenerationMode:
            _run(operation.as_strategy(generation_mode=mode), check)


def _run(cases: Any, check: Callable[[Any], None]) -> None:
    @settings(
        max_examples=max(1, settings.default.max_examples // FEWER),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def run(case: Any) -> None:
        check(case)

    try:
        run()
    except Unsatisfiable:
        # An operation without parameters cannot be asked wrongly.
        return


def validated(case: Any, **options: Any) -> None:
    # A document cannot say which of the times that it allows Python has.
    case.call_and_validate(excluded_checks=[positive_data_acceptance], **options)


def test_what_is_answered_is_described(location: str) -> None:
    with served(location) as base:
        every_operation(base, {}, validated)


def test_with_a_token_as_well(location: str) -> None:
    right = {"Authorization": f"Bearer {TOKEN}"}
    with served(location, TOKEN) as base:
        every_operation(base, right, lambda case: validated(case, headers=right))


def test_nothing_but_health_is_told_without_the_token(location: str) -> None:
    right, wrong = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": "Bearer another"}

    def refused(case: Any) -> None:
        status = case.call(headers=wrong).status_code
        assert status in ((200, 405) if case.path == "/healthz" else (401,))

    with served(location, TOKEN) as base:
        every_operation(base, right, refused)


def test_methods_that_are_not_right_are_named(location: str) -> None:
    with served(location) as base:
        for path in ("/healthz", "/v1", "/docs"):
            answer = httpx.request("DELETE", base + path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
            assert answer.headers["content-type"] == "application/json"
        answer = httpx.get(f"{base}/v1/totals/lookup")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
