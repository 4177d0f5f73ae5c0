"""Specs of patterns: what passes, what is malformed, and what may change."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as T

from millrace.errors import MalformedError, SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.operator import Column
from millrace.operators.pattern.builder import one_of, pattern
from millrace.operators.pattern.definition import define
from millrace.operators.pattern.expressions import column, earlier
from millrace.operators.registry import check_change, check_spec, from_spec

NAME = OperatorName("tested")
TYPES = {"x": T.LongType(), "city": T.StringType(), "k": T.StringType()}


def spec(**changes: Any) -> dict[str, Any]:
    made = define(
        pattern("a")
        .followed_by(one_of(pattern("b").where(column("x") > earlier("a").sum("x")), pattern("c")))
        .not_followed_by("d")
        .where(~(column("x") == None))  # noqa: E711
        .within("1 hour"),
        (Column("k", T.StringType()),),
        TYPES,
        {"n": earlier().count(), "city": earlier("b").last("city")},  # type: ignore[dict-item]
        "skip to last b",
        bits=("a",),
    )
    return made.to_json() | changes


def element(**changes: Any) -> dict[str, Any]:
    first = spec()["pattern"]["elements"][0] | changes
    return {"elements": [first], "not_next": [], "not_followed_by": []}


def test_what_millrace_writes_passes() -> None:
    check_spec(spec())
    assert from_spec(NAME, spec()).spec() == spec()


@pytest.mark.parametrize(
    "changes",
    [
        {"within": 0},
        {"within": "1 hour"},
        {"columns": [{"name": "pattern.mask", "type": "long"}]},
        {"columns": [{"name": "k", "type": "string"}]},
        {"pattern": {"elements": [], "not_next": [], "not_followed_by": []}},
        {"pattern": element(least=0)},
        {"pattern": element(least=3, most=2)},
        {"pattern": element(optional=True)},
        {"pattern": element(way="after")},
        {"pattern": element(greedy=1)},
        {"pattern": element(variable=None)},
        {"bits": ["z"]},
        {"conditions": {"z": {"literal": True}}},
        {"conditions": {"a": {"operation": "sqrt", "arguments": [{"literal": 1}]}}},
        {"conditions": {"a": {"operation": "not", "arguments": []}}},
        {"conditions": {"a": {"literal": [1]}}},
        {"conditions": {"a": {"function": "last", "variable": 3, "column": "x", "back": 0}}},
        {"after": {"mode": 3, "variable": None}},
        {"measures": [{"name": "n", "function": "count", "variable": 1, "column": None}]},
    ],
)
def test_a_spec_that_cannot_be_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        check_spec(spec(**changes))


def test_what_may_change_between_starts() -> None:
    more = [*spec()["columns"], {"name": "y", "type": "long"}]
    check_change(NAME, spec(), spec(columns=more, measures=[], conditions={}))
    check_change(NAME, spec(), spec(after={"mode": "every match", "variable": None}))
    with pytest.raises(SchemaChangedError, match="within 1 hour and are now within 1 second"):
        check_change(NAME, spec(), spec(within=1_000_000))
    with pytest.raises(SchemaChangedError, match="another pattern"):
        check_change(NAME, spec(), spec(pattern=element()))
    with pytest.raises(SchemaChangedError, match="conditions on the row itself"):
        check_change(NAME, spec(), spec(bits=[]))
    with pytest.raises(SchemaChangedError, match="no longer gets"):
        check_change(NAME, spec(), spec(columns=[]))
    with pytest.raises(SchemaChangedError, match="the key of operator"):
        check_change(NAME, spec(), spec(keys=[{"name": "k", "type": "long"}]))
