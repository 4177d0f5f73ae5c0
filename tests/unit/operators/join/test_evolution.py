"""Which changes of joins, as-of joins and lookups a location can follow."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operators.join.driving import NAME, make_as_of, make_operator

from millrace.errors import SchemaChangedError
from millrace.operators.registry import check_change, from_spec

MORE = {"name": "more", "type": "string"}
LONG = {"name": "l", "type": "long"}


def lookup_spec(**changed: Any) -> dict[str, Any]:
    join = make_operator(0, 1, "inner").spec()
    kept = {name: join[name] for name in ("keys", "left", "right")}
    return {"kind": "lookup", **kept, "how": "left"} | changed


SPECS = {
    "join": make_operator(-5, 5, "left").spec(),
    "as_of": make_as_of(10).spec(),
    "lookup": lookup_spec(),
}


@pytest.mark.parametrize("kind", SPECS)
def test_a_spec_makes_the_operator_again(kind: str) -> None:
    assert from_spec(NAME, SPECS[kind]).spec() == SPECS[kind]


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("join", {"left": [LONG, MORE]}),
        ("join", {"right": [MORE, *SPECS["join"]["right"]]}),
        ("join", {"time": "right"}),
        ("as_of", {"tolerance": 5}),
        ("lookup", {"how": "inner"}),
        ("lookup", {"left": [MORE]}),
    ],
)
def test_changes_that_state_can_follow(kind: str, changed: dict[str, Any]) -> None:
    check_change(NAME, SPECS[kind], SPECS[kind] | changed)


@pytest.mark.parametrize(
    ("kind", "changed", "match"),
    [
        ("join", {"how": "full"}, "how='left'"),
        ("join", {"within": {"lower": -6, "upper": 5}}, "within -5 to 5"),
        ("join", {"keys": [MORE]}, "the key"),
        ("join", {"left": [MORE]}, "no longer gets the column 'l'"),
        ("join", {"left": [LONG | {"type": "string"}]}, "was bigint and is now string"),
        ("as_of", {"tolerance": 11}, "longer"),
        ("as_of", {"tolerance": None}, "longer"),
        ("as_of", {"right": []}, "'r' of its right stream"),
        ("lookup", {"right": []}, "'r' of its right stream"),
        ("lookup", {"kind": "as_of"}, "was 'lookup' and is now 'as_of'"),
    ],
)
def test_changes_that_are_refused(kind: str, changed: dict[str, Any], match: str) -> None:
    with pytest.raises(SchemaChangedError, match=match):
        check_change(NAME, SPECS[kind], SPECS[kind] | changed)
