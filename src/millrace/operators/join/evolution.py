"""Which changes of a join a location can follow: those of the columns that come.

Columns may be added to either stream; rows that were stored before have NULL in them. The key, the
interval and the kind of join stay, because state has been kept for them.
"""

from __future__ import annotations

from typing import Any

from millrace import types
from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.evolution import ADVICE, check_keys
from millrace.operators.join.layout import LEFT, RIGHT


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    check_keys(name, old, new)
    if old["how"] != new["how"]:
        raise SchemaChangedError(
            f"operator {name!r} was a join with how={old['how']!r} and is now one with "
            f"how={new['how']!r}. {ADVICE}"
        )
    if old["within"] != new["within"]:
        raise SchemaChangedError(
            f"the join {name!r} was within {_interval(old)} and is now within {_interval(new)}. "
            f"{ADVICE}"
        )
    for side in (LEFT, RIGHT):
        check_columns(name, side, old[side], new[side])


def check_columns(
    name: OperatorName, side: str, old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> None:
    """Raise unless all old columns of a stream are among the new ones, with the same types."""
    after = {column["name"]: column["type"] for column in new}
    for column in old:
        before = types.simple_string(column["type"])
        if column["name"] not in after:
            raise SchemaChangedError(
                f"operator {name!r} no longer gets the column {column['name']!r} of its {side} "
                f"stream. {ADVICE}"
            )
        if after[column["name"]] != column["type"]:
            raise SchemaChangedError(
                f"operator {name!r}: the column {column['name']!r} of its {side} stream was "
                f"{before} and is now {types.simple_string(after[column['name']])}. {ADVICE}"
            )


def _interval(spec: dict[str, Any]) -> str:
    return f"{spec['within']['lower']} to {spec['within']['upper']} microseconds"
