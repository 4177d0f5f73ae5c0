"""Specs of sessions and deduplications: what passes, what is malformed, and what may change."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import MalformedError, SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.registry import check_change, check_spec, from_spec

NAME = OperatorName("tested")
KEYS = [{"name": "k", "type": "string"}]
EMIT = {"mode": "final", "period": 0}
SESSION = {"kind": "session", "keys": KEYS, "aggregates": [], "gap": 60_000_000, "emit": EMIT}
DEDUP = {"kind": "dedup", "keys": KEYS, "time": "event", "ttl": 0}


@pytest.mark.parametrize("spec", [SESSION, DEDUP, DEDUP | {"time": "processing", "ttl": 5}])
def test_what_millrace_writes_passes(spec: dict[str, Any]) -> None:
    check_spec(spec)
    assert from_spec(NAME, spec).spec() == spec


@pytest.mark.parametrize(
    "spec",
    [
        SESSION | {"gap": 0},
        SESSION | {"gap": "1 minute"},
        SESSION | {"gap": 10**20},
        SESSION | {"emit": {"mode": "early", "period": 0}},
        SESSION | {"emit": None},
        {name: value for name, value in SESSION.items() if name != "gap"},
        DEDUP | {"time": "sometimes"},
        DEDUP | {"time": None},
        DEDUP | {"ttl": -1},
        DEDUP | {"ttl": 1.5},
        DEDUP | {"time": "processing"},
        DEDUP | {"keys": KEYS + KEYS},
    ],
)
def test_a_spec_that_cannot_be_is_malformed(spec: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        check_spec(spec)


def test_what_may_change_between_starts() -> None:
    count = {"name": "n", "function": "count", "of": "*", "type": "integer", "options": {}}
    more = {"aggregates": [count], "emit": {"mode": "update", "period": 0}}
    check_change(NAME, SESSION, SESSION | more)
    with pytest.raises(SchemaChangedError, match="a gap of 1 minute and now have one of 2 min"):
        check_change(NAME, SESSION, SESSION | {"gap": 120_000_000})
    check_change(NAME, DEDUP, DEDUP | {"ttl": 7})
    with pytest.raises(SchemaChangedError, match="within the watermark and now does so forever"):
        check_change(NAME, DEDUP, DEDUP | {"time": "never"})
    with pytest.raises(SchemaChangedError, match="the key of operator"):
        check_change(NAME, DEDUP, DEDUP | {"keys": [{"name": "k", "type": "long"}]})
    with pytest.raises(SchemaChangedError, match="was 'session' and is now 'dedup'"):
        check_change(NAME, SESSION, DEDUP)
