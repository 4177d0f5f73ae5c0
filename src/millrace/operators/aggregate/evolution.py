"""Which changes of an aggregate a location can follow.

Aggregates may be added, and start from empty, and may be put in another order. Nothing else.
"""

from __future__ import annotations

from typing import Any

from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.evolution import ADVICE, check_keys


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    check_keys(name, old, new)
    after = {a["name"]: a for a in new["aggregates"]}
    for before in old["aggregates"]:
        now = after.get(before["name"])
        if now is None:
            raise SchemaChangedError(
                f"operator {name!r} no longer has the aggregate "
                f"'{AggregateSpec.from_json(before)}'. {ADVICE}"
            )
        if now != before:
            raise SchemaChangedError(
                f"operator {name!r}: '{AggregateSpec.from_json(before)}' has become "
                f"'{AggregateSpec.from_json(now)}'. {ADVICE}"
            )
